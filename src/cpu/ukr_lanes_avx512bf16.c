/* SPDX-License-Identifier: MIT
 * ukr_lanes.h for pairs of bf16. */
#include "cpu/ukr_lanes.h"
#include "cpu/ukr_vec_avx512bf16.h"

#define PAIRS        1
#define TABLE        attn_ukr_lanes_avx512bf16
#define MR           14
#define MADD         madd_pair
#define MFIRST(a, b) madd_pair(a, b, v32_set(0))
#include "cpu/ukr_lanes_tpl.h"
