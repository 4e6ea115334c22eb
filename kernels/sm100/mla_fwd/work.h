/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: what a pair of CTAs works on, queries apart or groups of joined lists. */
#ifndef ATTN_SM100_MLA_FWD_WORK_H
#define ATTN_SM100_MLA_FWD_WORK_H
#include "kernels/sm100/mla_fwd/layout.h"
#if CFG_JOINED
#include "kernels/sm100/mla_fwd/group.h"
typedef struct kp_mla_fwd_joined_sm100 parameters;
#else
#include "kernels/sm100/mla_fwd/query.h"
typedef struct kp_mla_fwd_sm100 parameters;
#endif
#endif
