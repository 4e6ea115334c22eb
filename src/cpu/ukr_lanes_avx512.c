/* SPDX-License-Identifier: MIT
 * ukr_lanes.h for f32. */
#include "cpu/ukr_lanes.h"
#include "cpu/ukr_vec_avx512.h"

#define PAIRS        0
#define TABLE        attn_ukr_lanes_avx512
#define MR           14
#define MADD         v32_fma
#define MFIRST(a, b) ((a) * (b))
#include "cpu/ukr_lanes_tpl.h"
