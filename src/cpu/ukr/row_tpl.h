/* SPDX-License-Identifier: MIT
 * Row operations of struct attn_ukr, written once over the vector layer and included for f32 and f64 by every ukr_*.c.
 * The includer defines REAL, VEC, V(op) (vector layer), LANES, F(name) (function name) and the EXP_* constants.
 * No include guard on purpose. */

/* e^x = 2^n (1 + q): Cody-Waite reduction by ln 2 in two parts, q = r + r^2 P(r) with P the minimax polynomial of
 * (e^r - 1 - r) / r^2 for the relative error of e^r. Needs EXP_LOW <= x <= EXP_HIGH; EXP_LOW gives power 0. NaN passes.
 */
static inline __attribute__((always_inline)) VEC F(exp_parts)(VEC x, VEC *power) {
    static const REAL c[] = EXP_POLY;
    const VEC magic = V(set)(EXP_MAGIC);
    VEC t = V(fma)(x, V(set)(EXP_LOG2E), magic), n = t - magic;
    VEC r = V(nfma)(n, V(set)(EXP_LN2_HI), x);
    r = V(nfma)(n, V(set)(EXP_LN2_LO), r);
    VEC p = V(set)(c[sizeof c / sizeof c[0] - 1]);
    for (int i = (int)(sizeof c / sizeof c[0]) - 2; i >= 0; i--) p = V(fma)(p, r, V(set)(c[i]));
    *power = V(exp2i)(t);
    return V(fma)(r * r, p, r);
}
#ifdef VEC_SCALES
/* e^x = 2^n (1 + r P(r)) with P minimax for the relative error, where one instruction multiplies by 2^n whatever n is.
 * One that rounds would take the time of two. f32 takes ln 2 in one part: another 2e-9 |n| of the result. Each step for
 * all of x at once: what waits in the processor's queue for the step before is then other work. */
static inline __attribute__((always_inline)) void F(exp_many)(int many, VEC *x) {
    static const REAL c[] = EXP_SCALED_POLY;
    VEC n[EXP_MANY], p[EXP_MANY];
    UNROLL for (int i = 0; i < many; i++) x[i] = V(max)(V(set)(EXP_SCALED_LOW), x[i]); /* NaN passes */
    UNROLL for (int i = 0; i < many; i++) n[i] = V(fma)(x[i], V(set)(EXP_LOG2E), V(set)(EXP_MAGIC)) - V(set)(EXP_MAGIC);
    UNROLL for (int i = 0; i < many; i++) x[i] = V(nfma)(n[i], V(set)(EXP_LN2), x[i]);
    if (EXP_LN2_REST > 0) {
        UNROLL for (int i = 0; i < many; i++) x[i] = V(nfma)(n[i], V(set)(EXP_LN2_REST), x[i]);
    }
    UNROLL for (int i = 0; i < many; i++) p[i] = V(set)(c[sizeof c / sizeof c[0] - 1]);
    UNROLL for (int k = (int)(sizeof c / sizeof c[0]) - 2; k >= 0; k--) {
        UNROLL for (int i = 0; i < many; i++) p[i] = V(fma)(p[i], x[i], V(set)(c[k]));
    }
    UNROLL for (int i = 0; i < many; i++) p[i] = V(fma)(p[i], x[i], V(set)(1));
    UNROLL for (int i = 0; i < many; i++) x[i] = V(scale2)(p[i], n[i]);
}
#else
static inline __attribute__((always_inline)) void F(exp_many)(int many, VEC *x) {
    for (int i = 0; i < many; i++) {
        VEC power, q;
        x[i] = V(min)(V(set)(EXP_HIGH), V(max)(V(set)(EXP_LOW), x[i]));
        q = F(exp_parts)(x[i], &power); /* inf from n = 128 (f64: 1024) on: (1 + q) * inf, not fma(inf, q, inf) */
        x[i] = (q + V(set)(1)) * power;
    }
}
#endif

/* V(max) gives the second operand if one is NaN: what was largest stays. */
static REAL F(max)(const REAL *s, int64_t n) {
    const VEC low = V(set)((REAL)-__builtin_inf());
    VEC high[4] = {low, low, low, low};
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        UNROLL for (int i = 0; i < 4; i++) high[i] = V(max)(V(load)(s + j + i * LANES), high[i]);
    }
    for (; j < n; j += LANES) {
        if (n - j >= LANES) {
            high[0] = V(max)(V(load)(s + j), high[0]);
        } else {
            V(tail) tail = V(tail_of)(n - j);
            high[0] = V(max)(V(fill_tail)(V(load_tail)(s + j, tail), tail, low), high[0]);
        }
    }
    return V(largest)(V(max)(V(max)(high[0], high[1]), V(max)(high[2], high[3])));
}

static REAL F(exp)(REAL *s, int64_t n, REAL max) {
    const VEC m = V(set)(max), zero = V(set)(0);
    VEC sum[2] = {zero, zero}, x[EXP_MANY];
    int64_t j = 0;
    for (; j + EXP_MANY * LANES <= n; j += EXP_MANY * LANES) {
        UNROLL for (int i = 0; i < EXP_MANY; i++) x[i] = V(load)(s + j + i * LANES) - m;
        F(exp_many)(EXP_MANY, x);
        UNROLL for (int i = 0; i < EXP_MANY; i++) V(store)(s + j + i * LANES, x[i]);
        UNROLL for (int i = 0; i < EXP_MANY; i++) sum[i % 2] += x[i];
    }
    for (; j < n; j += LANES) {
        if (n - j >= LANES) {
            x[0] = V(load)(s + j) - m;
            F(exp_many)(1, x);
            V(store)(s + j, x[0]);
        } else {
            V(tail) tail = V(tail_of)(n - j);
            x[0] = V(load_tail)(s + j, tail) - m;
            F(exp_many)(1, x);
            V(store_tail)(s + j, tail, x[0]);
            x[0] = V(fill_tail)(x[0], tail, zero);
        }
        /* the same sum as a longer row that ends in zeros: odd vectors have a sum of their own */
        if (j % (2 * LANES)) {
            sum[1] += x[0];
        } else {
            sum[0] += x[0];
        }
    }
    return V(sum)(sum[0] + sum[1]);
}

/* tanh|x| = -e / (2 + e) with e = expm1(-2|x|) keeps its relative accuracy near 0; 1 - tanh^2 = 4 (1 + e) / (2 + e)^2
 * keeps it where tanh saturates. */
static inline __attribute__((always_inline)) VEC F(tanh_vec)(VEC x, VEC *derivative) {
    const VEC one = V(set)(1), two = V(set)(2);
    VEC power, q, e, y = V(max)(V(set)(EXP_LOW), V(abs)(x) * V(set)(-2));
    q = F(exp_parts)(y, &power);
    e = V(fma)(power, q, power - one);
    VEC r = V(inverse)(two + e);
    *derivative = V(set)(4) * V(fma)(power, q, power) * (r * r);
    return V(sign_of)(-e * r, x);
}
static void F(softcap)(REAL *s, REAL *d, int64_t n, REAL cap) {
    const VEC c = V(set)(cap), inverse = V(set)(1 / cap);
    for (int64_t j = 0; j < n; j += LANES) {
        VEC der;
        if (n - j >= LANES) {
            V(store)(s + j, c * F(tanh_vec)(V(load)(s + j) * inverse, &der));
            if (d) V(store)(d + j, der);
        } else {
            V(tail) m = V(tail_of)(n - j);
            V(store_tail)(s + j, m, c * F(tanh_vec)(V(load_tail)(s + j, m) * inverse, &der));
            if (d) V(store_tail)(d + j, m, der);
        }
    }
}

/* EACH1(y, expression of a, the vector of y at j) and EACH2 (also b of x): whole vectors, then a masked tail. */
#define EACH1(y, ...)                                                                                                  \
    for (int64_t j = 0; j < n; j += LANES) {                                                                           \
        if (n - j >= LANES) {                                                                                          \
            VEC a = V(load)((y) + j);                                                                                  \
            V(store)((y) + j, (__VA_ARGS__));                                                                          \
        } else {                                                                                                       \
            V(tail) tail = V(tail_of)(n - j);                                                                          \
            VEC a = V(load_tail)((y) + j, tail);                                                                       \
            V(store_tail)((y) + j, tail, (__VA_ARGS__));                                                               \
        }                                                                                                              \
    }
#define EACH2(y, x, ...)                                                                                               \
    for (int64_t j = 0; j < n; j += LANES) {                                                                           \
        if (n - j >= LANES) {                                                                                          \
            VEC a = V(load)((y) + j), b = V(load)((x) + j);                                                            \
            V(store)((y) + j, (__VA_ARGS__));                                                                          \
        } else {                                                                                                       \
            V(tail) tail = V(tail_of)(n - j);                                                                          \
            VEC a = V(load_tail)((y) + j, tail);                                                                       \
            VEC b = V(load_tail)((x) + j, tail);                                                                       \
            V(store_tail)((y) + j, tail, (__VA_ARGS__));                                                               \
        }                                                                                                              \
    }

static void F(dsoftmax)(const REAL *p, REAL *dp, int64_t n, REAL delta) {
    const VEC d = V(set)(delta);
    EACH2(dp, p, V(where_nonzero)(b, b * (a - d)))
}
/* x becomes e^(x - less). offset: EXP2_ONE_STEP is less in units of ln 2, and the argument of the power of 2 one
 * multiply-add; but not for rows of large scores, where the rounding of offset would show. */
static inline __attribute__((always_inline)) void F(exp_minus)(int one_step, int many, VEC *x, VEC less, VEC offset) {
#ifdef EXP2_ONE_STEP
    if (one_step) {
        EXP2_ONE_STEP(many, x, offset);
        return;
    }
#endif
    (void)one_step, (void)offset;
    UNROLL for (int i = 0; i < many; i++) x[i] -= less;
    F(exp_many)(many, x);
}
static inline __attribute__((always_inline)) void F(exp_lse_row)(int one_step, int64_t n, REAL *s, REAL *dp, REAL lse,
                                                                 REAL delta) {
    const VEC m = V(set)(lse), offset = V(set)(lse * (REAL)EXP_LOG2E), d = V(set)(delta);
    VEC x[EXP_MANY];
    int64_t j = 0;
    for (; j + EXP_MANY * LANES <= n; j += EXP_MANY * LANES) {
        UNROLL for (int i = 0; i < EXP_MANY; i++) x[i] = V(load)(s + j + i * LANES);
        F(exp_minus)(one_step, EXP_MANY, x, m, offset);
        UNROLL for (int i = 0; i < EXP_MANY; i++) {
            V(store)(s + j + i * LANES, x[i]);
            if (!dp) continue;
            REAL *to = dp + j + i * LANES;
            V(store)(to, V(where_nonzero)(x[i], x[i] * (V(load)(to) - d)));
        }
    }
    for (; j < n; j += LANES) {
        V(tail) tail = V(tail_of)(n - j < LANES ? n - j : LANES);
        x[0] = V(load_tail)(s + j, tail);
        F(exp_minus)(one_step, 1, x, m, offset);
        V(store_tail)(s + j, tail, x[0]);
        if (dp) V(store_tail)(dp + j, tail, V(where_nonzero)(x[0], x[0] * (V(load_tail)(dp + j, tail) - d)));
    }
}
static inline int F(one_step)(REAL lse) { return (lse < 512 && lse > -512) || lse > (REAL)1e30; }
static void F(exp_lse)(REAL *s, int64_t n, REAL lse) {
    if (F(one_step)(lse)) {
        F(exp_lse_row)(1, n, s, NULL, lse, 0);
    } else {
        F(exp_lse_row)(0, n, s, NULL, lse, 0);
    }
}
static void F(score_bwd)(int64_t rows, int64_t n, REAL *s, REAL *dp, int64_t ld, const REAL *lse, const REAL *delta) {
    for (int64_t r = 0; r < rows; r++, s += ld, dp += ld) {
        if (F(one_step)(lse[r])) {
            F(exp_lse_row)(1, n, s, dp, lse[r], delta[r]);
        } else {
            F(exp_lse_row)(0, n, s, dp, lse[r], delta[r]);
        }
    }
}
static void F(scale)(REAL *y, int64_t n, REAL factor) {
    const VEC f = V(set)(factor);
    EACH1(y, a * f)
}
static void F(mul)(REAL *y, const REAL *x, int64_t n) { EACH2(y, x, V(where_nonzero)(a, a * b)) }
static void F(add)(REAL *y, const REAL *x, int64_t n) { EACH2(y, x, a + b) }

static void F(alibi)(REAL *s, int64_t n, REAL slope, REAL first, int distance, REAL nearest) {
    REAL steps[LANES];
    for (int i = 0; i < LANES; i++) steps[i] = (REAL)i;
    const VEC k = V(set)(distance ? -slope : slope), step = V(load)(steps), base = V(set)(nearest);
    if (distance) {
        EACH1(s, V(fma)(k, V(abs)(V(set)(first + (REAL)j) + step) - base, a))
    } else {
        EACH1(s, V(fma)(k, V(set)(first + (REAL)j) + step, a))
    }
}

static REAL F(dot)(const REAL *x, const REAL *y, int64_t n) {
    VEC s0 = V(set)(0), s1 = s0;
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        s0 = V(fma)(V(load)(x + j), V(load)(y + j), s0);
        s1 = V(fma)(V(load)(x + j + LANES), V(load)(y + j + LANES), s1);
    }
    for (; j + LANES <= n; j += LANES) s0 = V(fma)(V(load)(x + j), V(load)(y + j), s0);
    if (j < n) {
        V(tail) m = V(tail_of)(n - j);
        s1 = V(fma)(V(load_tail)(x + j, m), V(load_tail)(y + j, m), s1);
    }
    return V(sum)(s0 + s1);
}

/* left to the compiler's vectoriser: the flags are bytes */
static void F(hide)(REAL *s, const uint8_t *keep, int64_t n) {
    for (int64_t j = 0; j < n; j++) s[j] = keep[j] ? s[j] : (REAL)-__builtin_inf();
}

/* x * 0 is 0 for finite x and NaN else, and NaN stays in a sum */
static int F(finite)(const REAL *x, int64_t n) {
    const VEC zero = V(set)(0);
    VEC s0 = zero, s1 = zero;
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        s0 = V(fma)(V(load)(x + j), zero, s0);
        s1 = V(fma)(V(load)(x + j + LANES), zero, s1);
    }
    for (; j + LANES <= n; j += LANES) s0 = V(fma)(V(load)(x + j), zero, s0);
    if (j < n) s1 = V(fma)(V(load_tail)(x + j, V(tail_of)(n - j)), zero, s1);
    return !V(any_nan)(s0, s1);
}

#undef EACH1
#undef EACH2
