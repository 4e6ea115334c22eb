/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.finish of processors with AVX-512 BF16: see avx512bf16/finish.c. */
#ifndef ATTN_CPU_UKR_FINISH_H
#define ATTN_CPU_UKR_FINISH_H
#include "cpu/ukr/bf16.h"

int attn_ukr_finish_avx512bf16(const struct attn_fwd_finish *f);
#endif
