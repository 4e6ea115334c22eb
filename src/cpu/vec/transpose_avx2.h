/* SPDX-License-Identifier: MIT
 * Eight rows of eight numbers of 32 bits, transposed in registers. */
#ifndef ATTN_CPU_VEC_TRANSPOSE_AVX2_H
#define ATTN_CPU_VEC_TRANSPOSE_AVX2_H
#include "cpu/vec/avx2.h"
#include "cpu/vec/unroll.h"

/* r: rows, which become columns */
static inline __attribute__((always_inline)) void turn_eight(v32 *r) {
    v32 t[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    /* r[4g + c] holds columns c and c + 4 of rows 4g .. 4g+3 */
    UNROLL for (int c = 0; c < 4; c++) {
        const v32 low = _mm256_permute2f128_ps(r[c], r[c + 4], 0x20),
                  high = _mm256_permute2f128_ps(r[c], r[c + 4], 0x31);
        r[c] = low, r[c + 4] = high;
    }
}
#endif
