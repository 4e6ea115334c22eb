/* SPDX-License-Identifier: MIT
 * ukr/transposed.h for pairs of bf16. */
#include "cpu/ukr/transposed.h"
#include "cpu/vec/avx512bf16.h"

#define PAIRS        1
#define TABLE        attn_ukr_transposed_avx512bf16
#define MR           14
#define MADD         madd_pair
#define MFIRST(a, b) madd_pair(a, b, v32_set(0))
#include "cpu/ukr/transposed_tpl.h"
