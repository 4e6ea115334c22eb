/* SPDX-License-Identifier: MIT
 * Dense forwards too small for the geometry of fwd.h (fwd_direct.c). */
#ifndef ATTN_CPU_DENSE_FWD_DIRECT_H
#define ATTN_CPU_DENSE_FWD_DIRECT_H
#include "cpu/dense/sdpa.h"

/* 1: the problem is computed. 0: it is none for this path, or holds what is not finite: fwd.c must run it, whatever
 * rows of the outputs are written by then. Called in the floating-point mode of an execution, before a launch's own. */
int attn_cpu_fwd_direct(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                        const attn_args *args);
#endif
