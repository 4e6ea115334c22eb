/* SPDX-License-Identifier: MIT
 * The softcap fused into the exponential's argument x in the forward on AMX (fwd.c, fwd_rowmajor.c), from products s:
 *
 *     x = s P(s^2) - offset for scores up to 0.4 of the cap, P of degree 3 (error 1e-7; for a table degree 2, 6.3e-6)
 *     with scale, cap and factor in its coefficients. A step with a larger score is repeated exactly: no branch
 *     in the common case, and which formula a score takes depends on that score alone. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_SOFTCAP_H
#define ATTN_CPU_AMX_DENSE_FWD_SOFTCAP_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/softcap_vec.h"

enum { CAP_HIDDEN = 0x7fc00001 /* a hidden score's bits: a NaN that no product of bf16 is */ };

struct capped {
    v32 factor;
    const struct attn_softcap *cap;
    int n_coefs;
    float c[ATTN_SOFTCAP_NEAR_COEFS];
    __m512i near, beyond; /* near: what makes squares beyond negative as integers */
};
/* factor: in parts, and of bf16_accuracy, where arguments go to a table. */
static inline __attribute__((always_inline)) void set_up_capped(struct capped *e, int bf16_accuracy, float factor,
                                                                const struct attn_fwd_score_mod *f) {
    e->factor = v32_set(factor);
    e->cap = &f->cap;
    e->n_coefs = bf16_accuracy ? ATTN_SOFTCAP_BF16_COEFS : ATTN_SOFTCAP_NEAR_COEFS;
    for (int k = 0; k < e->n_coefs; k++)
        e->c[k] =
            (float)(attn_softcap_near(bf16_accuracy, k, (double)f->cap.cap, (double)f->cap.scale) * (double)factor);
    const v32 most = v32_set(f->cap.most * (float)ATTN_SOFTCAP_NEAR);
    e->near = _mm512_sub_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(most));
}
/* Some score of the step was beyond, hidden or a NaN. */
static inline int is_beyond_cap(const struct capped *e) { return _mm512_movepi32_mask(e->beyond); }
static inline __attribute__((always_inline)) void cap_exactly(const struct capped *e, const v32 *s, const v32 *z,
                                                              const v32 *offset, v32 *x) {
    const __m512i hidden = _mm512_set1_epi32(CAP_HIDDEN);
    v32 y[SOFTCAP_MANY];
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) y[i] = s[i];
    softcap_many(y, e->cap);
    UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) {
        const __mmask16 beyond = _mm512_movepi32_mask(_mm512_add_epi32(_mm512_castps_si512(z[i]), e->near)),
                        not_seen = _mm512_cmpeq_epi32_mask(_mm512_castps_si512(s[i]), hidden);
        x[i] = _mm512_mask_mov_ps(x[i], beyond, _mm512_fmsub_ps(y[i], e->factor, offset[i]));
        x[i] = _mm512_mask_mov_ps(x[i], not_seen, v32_set(-__builtin_inff()));
    }
}
/* Four vectors. kept: NULL, or who gets 0 instead. */
static inline __attribute__((always_inline)) void
capped_arguments(struct capped *e, int exactly, const v32 *s, const v32 *offset, const __mmask16 *visible, v32 *x) {
    enum { MANY = SOFTCAP_MANY };
    v32 t[MANY], p[MANY];
    UNROLL for (int i = 0; i < MANY; i++) t[i] = s[i] * s[i];
    UNROLL for (int i = 0; i < MANY; i++) p[i] =
        v32_fma(t[i], v32_set(e->c[e->n_coefs - 1]), v32_set(e->c[e->n_coefs - 2]));
    UNROLL for (int k = e->n_coefs - 3; k >= 0; k--) {
        UNROLL for (int i = 0; i < MANY; i++) p[i] = v32_fma(p[i], t[i], v32_set(e->c[k]));
    }
    UNROLL for (int i = 0; i < MANY; i++) {
        x[i] =
            visible ? _mm512_maskz_fmsub_ps(visible[i], s[i], p[i], offset[i]) : _mm512_fmsub_ps(s[i], p[i], offset[i]);
    }
    UNROLL for (int i = 0; i < MANY; i += 2) e->beyond =
        _mm512_ternarylogic_epi32(e->beyond, _mm512_add_epi32(_mm512_castps_si512(t[i]), e->near),
                                  _mm512_add_epi32(_mm512_castps_si512(t[i + 1]), e->near), 0xfe);
    if (exactly) {
        cap_exactly(e, s, t, offset, x);
        UNROLL for (int i = 0; visible && i < MANY; i++) x[i] = _mm512_maskz_mov_ps(visible[i], x[i]);
    }
}
#endif
