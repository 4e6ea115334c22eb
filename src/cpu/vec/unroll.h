/* SPDX-License-Identifier: MIT
 * UNROLL before a loop of a constant, small number of rounds: its arrays become registers. UNROLL_SEEN: where clang
 * does not always see the constant, which may come through a struct, it decides by itself; nothing but speed depends on
 * it. NO_VECTOR(p) after a pointer of several has moved on: clang otherwise moves them as one vector, through memory.
 * INLINE before a function whose arguments must become constants where it is called. */
#ifndef ATTN_CPU_VEC_UNROLL_H
#define ATTN_CPU_VEC_UNROLL_H
#if defined(__clang__)
#define UNROLL       _Pragma("clang loop unroll(full)")
#define UNROLL_SEEN  _Pragma("clang loop vectorize(disable)") /* there is nothing to vectorise */
#define NO_VECTOR(p) __asm__("" : "+r"(p))
#else
#define UNROLL       _Pragma("GCC unroll 16")
#define UNROLL_SEEN  UNROLL
#define NO_VECTOR(p) (void)0
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || defined ATTN_AMX_EMULATED || defined ATTN_AMX_CALLS
#define INLINE static inline /* a step written out takes up to a minute to compile; these are not there for speed */
#else
#define INLINE static inline __attribute__((always_inline))
#endif
#endif
