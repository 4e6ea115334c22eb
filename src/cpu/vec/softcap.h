/* SPDX-License-Identifier: MIT
 * cap tanh(s * scale / cap) of products s: what the strips with queries across the lanes share. */
#ifndef ATTN_CPU_VEC_SOFTCAP_H
#define ATTN_CPU_VEC_SOFTCAP_H

enum { ATTN_SOFTCAP_COEFS = 5 };
/* Up to half of the cap it is s P(s^2) with scale and cap in the coefficients, beyond that exact to the last bits by
 * exponential and quotient. Which of the two a product gets depends on it and on the problem alone. */
struct attn_softcap {
    float scale, cap, to_log2; /* to_log2: -2 log2(e) / cap */
    float most;                /* s^2 up to which it is the polynomial */
    float c[ATTN_SOFTCAP_COEFS];
};

/* tanh(t) / t by t^2 <= 1/4, minimax, relative: 1.3e-8. */
static inline double attn_softcap_coef(int k, double cap, double scale) {
    static const double c[ATTN_SOFTCAP_COEFS] = {0x1.ffffff8f3adb5p-1, -0x1.5554a434e7887p-2, 0x1.10e4380f9f57fp-3,
                                                 -0x1.b20fda9008728p-5, 0x1.18bd6d447f1cfp-6};
    const double square = scale / cap * (scale / cap);
    double coef = c[k] * scale;
    for (; k > 0; k--) coef *= square;
    return coef < 0 ? -coef : coef;
}
/* The same by t^2 <= 0.16 (ATTN_SOFTCAP_NEAR of what `most` says), times the scale: 1e-7; bf16_accuracy: 6.3e-6. */
enum { ATTN_SOFTCAP_NEAR_COEFS = 4, ATTN_SOFTCAP_BF16_COEFS = 3 };
#define ATTN_SOFTCAP_NEAR 0.64
static inline double attn_softcap_near(int bf16_accuracy, int k, double cap, double scale) {
    static const double c[2][ATTN_SOFTCAP_NEAR_COEFS] = {
        {0x1.fffffcb555dffp-1, -0x1.55502ab3b1568p-2, 0x1.0fca237d4715bp-3, -0x1.858f228c44deap-5},
        {0x1.ffff2e63e5949p-1, -0x1.549bdb3b23be6p-2, 0x1.f0c10f84fa9fbp-4}};
    const double square = scale / cap * (scale / cap);
    double coef = c[bf16_accuracy][k] * scale;
    for (; k > 0; k--) coef *= square;
    return coef;
}
/* Whether f32 holds the coefficients and the squares; else this is no way to a score. cap > 0. */
static inline int attn_softcap_fits(double cap, double scale) {
    const double last = attn_softcap_coef(ATTN_SOFTCAP_COEFS - 1, cap, scale), first = attn_softcap_coef(0, cap, scale);
    return last > 0x1p-124 && last < 0x1p124 && first > 0x1p-60 && first < 0x1p60 && cap > 0x1p-60 && cap < 0x1p60;
}
static inline struct attn_softcap attn_softcap_of(double cap, double scale) {
    struct attn_softcap f = {(float)scale, (float)cap, (float)(-2 * 1.44269504088896340736 / cap), 0, {0}};
    f.most = (float)(0.25 * (cap / scale) * (cap / scale));
    for (int k = 0; k < ATTN_SOFTCAP_COEFS; k++)
        f.c[k] = (float)(((k % 2 == 0) == (scale > 0) ? 1 : -1) * attn_softcap_coef(k, cap, scale));
    return f;
}
#endif
