/* SPDX-License-Identifier: MIT
 * ukr_lanes.h for f32 on AVX2. */
#include "cpu/ukr_lanes.h"
#include "cpu/ukr_vec_avx2.h"

#define PAIRS        0
#define TABLE        attn_ukr_lanes_avx2
#define MR           6
#define MADD         v32_fma
#define MFIRST(a, b) ((a) * (b))
#include "cpu/ukr_lanes_tpl.h"
