/* SPDX-License-Identifier: MIT
 * The element-wise loops of mla_vec.h for avx512; the build gives this file its instruction set. */
#define ATTN_CPU_MLA_VEC_TABLE attn_cpu_mla_vec_avx512
#include "cpu/ukr/mla_vec.h"
