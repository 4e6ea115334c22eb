/* SPDX-License-Identifier: MIT
 * Sums as tensor cores of sm_90 form them, for ATTNSIM_MMA=h100. */
#ifndef SIM_ALIGNED_SUM_H
#define SIM_ALIGNED_SUM_H
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { SIM_ALIGNED_MOST = 64 };

static inline int sim_exponent(double x) { /* of 0: less than of any product */
    uint64_t u;
    memcpy(&u, &x, 8);
    return (int)(u >> 52 & 0x7ff) - 1023;
}
/* c + sum a[j] b[j] over k <= SIM_ALIGNED_MOST products: all terms are cut off, towards zero, two bits below the last
 * bit that a number of f32 would have whose exponent is the largest of all terms' (of a product: the sum of its
 * factors'), then added exactly, then cut off to f32. Every bit of f16, bf16 and tf32 in
 * tests/sim/golden/golden_h100.bin shows this of mma.sync; wgmma is taken to do the same. */
static inline double sim_aligned_sum(double c, const double *a, const double *b, uint32_t k) {
    enum { LAST = 23, EXTRA_BITS = 2, LEAST = -126 };
    int largest = sim_exponent(c);
    double term[SIM_ALIGNED_MOST], plain = c;
    for (uint32_t j = 0; j < k; j++) {
        const int e = sim_exponent(a[j]) + sim_exponent(b[j]);
        largest = e > largest ? e : largest;
        plain += term[j] = a[j] * b[j];
    }
    if (!isfinite(plain)) return plain;
    if (largest < -500) return 0; /* nothing but zeros */
    const double up = ldexp(1, LAST + EXTRA_BITS - largest);
    int64_t cut = (int64_t)(c * up);
    for (uint32_t j = 0; j < k; j++) cut += (int32_t)(term[j] * up);
    const double sum = (double)cut / up;
    const int e = sim_exponent(sum), last = (e > LEAST ? e : LEAST) - LAST;
    return cut ? ldexp((double)(int64_t)ldexp(sum, -last), last) : 0;
}
#endif
