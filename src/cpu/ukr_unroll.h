/* SPDX-License-Identifier: MIT
 * UNROLL before a loop of a constant, small number of rounds: its arrays become registers. */
#ifndef ATTN_CPU_UKR_UNROLL_H
#define ATTN_CPU_UKR_UNROLL_H
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif
