/* SPDX-License-Identifier: MIT
 * The vector layer of the instruction set that a file is compiled for, for what is written in it once: AVX-512 or AVX2.
 */
#ifndef ATTN_CPU_VEC_VEC_H
#define ATTN_CPU_VEC_VEC_H
#ifdef __AVX512F__
#include "cpu/vec/avx512.h"
#else
#include "cpu/vec/avx2.h"
#endif
#endif
