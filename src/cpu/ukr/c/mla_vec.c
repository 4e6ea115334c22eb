/* SPDX-License-Identifier: MIT
 * The element-wise loops of mla_vec.h for c; the build gives this file its instruction set. */
#define ATTN_CPU_MLA_VEC_TABLE attn_cpu_mla_vec_c
#include "cpu/ukr/mla_vec.h"
