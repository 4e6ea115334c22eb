/* SPDX-License-Identifier: MIT
 * Products become capped scores (softcap.h), SOFTCAP_MANY vectors at a time. */
#ifndef ATTN_CPU_VEC_SOFTCAP_VEC_H
#define ATTN_CPU_VEC_SOFTCAP_VEC_H
#include "cpu/vec/softcap.h"
#include "cpu/vec/unroll.h"
#include "cpu/vec/vec.h"

enum { SOFTCAP_MANY = 4 };

/* Relative accuracy kept near 0: tanh|y| = -e / (2 + e) with e = expm1(-2|y|) = 2^n (2^r - 1) + (2^n - 1), the
 * polynomial of exp2_many without its 1. The quotient by the processor's reciprocal (2^-11 or better) and two steps of
 * Newton's: divisions of 16 lanes start every 16 cycles only. The derivative is 4 (1 + e) / (2 + e)^2: 1 - tanh^2 would
 * lose it.
 */
static inline __attribute__((always_inline)) void softcap_far(v32 *x, const struct attn_softcap *f, v32 *chain) {
    static const float c[] = {0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f};
    const v32 scale = v32_set(f->scale), cap = v32_set(f->cap), to_log2 = v32_set(f->to_log2), least = v32_set(-126),
              one = v32_set(1), two = v32_set(2);
    v32 y[SOFTCAP_MANY], r[SOFTCAP_MANY], p[SOFTCAP_MANY], q[SOFTCAP_MANY];
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) x[i] *= scale;
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) y[i] = v32_max(least, v32_abs(x[i]) * to_log2); /* a NaN passes */
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) r[i] = v32_above_floor(y[i]);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = v32_set(c[4]);
    UNROLL for (int k = 3; k >= 0; k--) {
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = v32_fma(p[i], r[i], v32_set(c[k]));
    }
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) y[i] = v32_scale_floor(one, y[i]);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) r[i] *= y[i];
    if (chain) {
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) chain[i] = v32_fma(r[i], p[i], y[i]);
    }
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = v32_fma(r[i], p[i], y[i] - one); /* e, -1 .. 0 */
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) y[i] = two + p[i];
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) q[i] = v32_reciprocal(y[i]);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) q[i] = v32_fma(q[i], v32_nfma(y[i], q[i], one), q[i]);
    if (chain) {
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) chain[i] *= v32_set(4) * q[i] * q[i];
    }
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) r[i] = p[i] * q[i];
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) r[i] = v32_fma(v32_nfma(y[i], r[i], p[i]), q[i], r[i]);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) x[i] = cap * v32_sign_of(v32_abs(r[i]), x[i]);
}

/* The largest square of the vectors tells whether one lies beyond; a NaN that is passed over stays one in the
 * polynomial, too. chain: NULL, or receives the derivatives by y = x scale. */
static inline __attribute__((always_inline)) void softcap_chain(v32 *x, const struct attn_softcap *f, v32 *chain) {
    const v32 most = v32_set(f->most), inverse = v32_set(1 / f->cap);
    v32 z[SOFTCAP_MANY], p[SOFTCAP_MANY], largest;
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) z[i] = x[i] * x[i];
    largest = z[0];
    UNROLL for (int i = 1; i < SOFTCAP_MANY; i++) largest = v32_max(z[i], largest);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = v32_set(f->c[ATTN_SOFTCAP_COEFS - 1]);
    UNROLL for (int k = ATTN_SOFTCAP_COEFS - 2; k >= 0; k--) {
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = v32_fma(p[i], z[i], v32_set(f->c[k]));
    }
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) p[i] = x[i] * p[i];
    if (chain) {
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) chain[i] = p[i] * inverse;
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) chain[i] = v32_nfma(chain[i], chain[i], v32_set(1));
    }
    if (v32_bits(v32_not_le(largest, most))) {
        v32 far[SOFTCAP_MANY];
        softcap_far(x, f, chain ? far : NULL);
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) {
            const v32_mask beyond = v32_not_le(z[i], most);
            p[i] = v32_pick(beyond, x[i], p[i]);
            if (chain) chain[i] = v32_pick(beyond, far[i], chain[i]);
        }
    }
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) x[i] = p[i];
}
static inline __attribute__((always_inline)) void softcap_many(v32 *x, const struct attn_softcap *f) {
    softcap_chain(x, f, NULL);
}
#endif
