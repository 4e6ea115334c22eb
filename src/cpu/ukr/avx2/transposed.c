/* SPDX-License-Identifier: MIT
 * ukr/transposed.h for f32 on AVX2. */
#include "cpu/ukr/transposed.h"
#include "cpu/vec/avx2.h"

#define PAIRS        0
#define TABLE        attn_ukr_transposed_avx2
#define MR           6
#define MADD         v32_fma
#define MFIRST(a, b) ((a) * (b))
#include "cpu/ukr/transposed_tpl.h"
