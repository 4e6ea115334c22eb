/* SPDX-License-Identifier: MIT
 * attn_ukr_pair.finish of processors with AVX-512 BF16: see ukr_finish_avx512bf16.c. */
#ifndef ATTN_CPU_UKR_FINISH_H
#define ATTN_CPU_UKR_FINISH_H
#include "cpu/ukr_pair.h"

int attn_ukr_finish_avx512bf16(const struct attn_pair_finish *f);
#endif
