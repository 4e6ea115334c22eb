/* SPDX-License-Identifier: MIT
 * ukr/transposed.h for f32. */
#include "cpu/ukr/transposed.h"
#include "cpu/vec/avx512.h"

#define PAIRS        0
#define TABLE        attn_ukr_transposed_avx512
#define MR           14
#define MADD         v32_fma
#define MFIRST(a, b) ((a) * (b))
#include "cpu/ukr/transposed_tpl.h"
