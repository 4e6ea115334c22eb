/* SPDX-License-Identifier: MIT
 * ukr_lanes.h for pairs of bf16. */
#include "cpu/ukr_lanes.h"
#include "cpu/ukr_vec_avx512.h"

static inline v32 madd_pair(v32 a, v32 b, v32 c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

#define PAIRS        1
#define TABLE        attn_ukr_lanes_avx512bf16
#define MADD         madd_pair
#define MFIRST(a, b) madd_pair(a, b, v32_set(0))
#include "cpu/ukr_lanes_tpl.h"
