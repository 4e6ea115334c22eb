/* SPDX-License-Identifier: MIT
 * Few queries on many keys (Dao et al., flash decoding 2023): the keys are split so that one (batch, key head) can
 * occupy several threads, each split leaves (m, l, o), and this file merges them. All query heads of a group read their
 * keys and values once. The split depends on the problem alone. */
#include "cpu/dense/fwd.h"

#include <math.h>

enum {
    MOST_ROWS = 64,    /* flat rows above which merging partial results costs more than splitting saves */
    SPLIT_KEYS = 1024, /* a multiple of every key block */
    MOST_SPLITS = 64,  /* of keys that are not very many */
    MOST_KEYS = 4096   /* of a split: sums of more numbers that are alike lose f32's bound */
};

int64_t attn_cpu_decode_split(const struct attn_cpu_sdpa *s) {
    const int64_t sk = s->p->seq_k;
    if (s->flat > MOST_ROWS || sk <= SPLIT_KEYS) return sk > 0 ? sk : 1;
    const int64_t split = attn_cpu_sdpa_up(attn_cpu_sdpa_blocks(sk, MOST_SPLITS), SPLIT_KEYS);
    return split < MOST_KEYS ? split : MOST_KEYS;
}

/* The sums of split t. */
#define PART_O(REAL, f, partials, t, r)                                                                                \
    ((REAL *)(void *)((partials) + (t) * (f)->partial_bytes + (f)->partial_o) + (r) * (f)->ldv)
#define MERGE(REAL, T)                                                                                                 \
    static void merge_row_##T(const struct attn_cpu_fwd *f, char *partials, int64_t r, double *m, double *l) {         \
        *m = -INFINITY, *l = 0;                                                                                        \
        for (int64_t t = 0; t < f->splits; t++) {                                                                      \
            const double high = (double)((REAL *)(void *)(partials + t * f->partial_bytes))[r];                        \
            if (isnan(high)) *m = high;                                                                                \
            if (high > *m) *m = high;                                                                                  \
        }                                                                                                              \
        if (!(*m > -INFINITY)) return; /* NaN or empty */                                                              \
        for (int64_t t = 0; t < f->splits; t++) {                                                                      \
            char *part = partials + t * f->partial_bytes;                                                              \
            const double high = (double)((REAL *)(void *)part)[r], factor = exp((high - *m) * f->s.unit);              \
            REAL *from = PART_O(REAL, f, partials, t, r);                                                              \
            *l += (double)((REAL *)(void *)(part + f->partial_l))[r] * factor;                                         \
            f->s.u->scale_##T(from, f->ldv, (REAL)factor);                                                             \
        }                                                                                                              \
        /* neighbours first: many parts that are alike, one by one, would all be rounded the same way */               \
        for (int64_t step = 1; step < f->splits; step *= 2)                                                            \
            for (int64_t t = 0; t + step < f->splits; t += 2 * step)                                                   \
                f->s.u->add_##T(PART_O(REAL, f, partials, t, r), PART_O(REAL, f, partials, t + step, r), f->ldv);      \
    }
MERGE(float, f32)
MERGE(double, f64)

void attn_cpu_decode_merge(void *arg, int32_t worker) {
    struct attn_cpu_fwd *f = arg;
    const attn_problem *p = f->s.p;
    (void)worker;
    for (int64_t head; (head = attn_cpu_next(&f->next)) < p->batch * p->heads_k;) {
        const int64_t b = head / p->heads_k, hk = head % p->heads_k;
        char *partials = f->partials + head * f->splits * f->partial_bytes;
        struct attn_core_seq seq;
        attn_cpu_sdpa_seq(&f->s, b, &seq);
        const int64_t n_valid = seq.sq * f->s.group;
        for (int64_t r = 0; r < n_valid; r++) {
            struct attn_cpu_sdpa_row row;
            double m, l;
            attn_cpu_sdpa_row(&f->s, &seq, b, hk * f->s.group + r % f->s.group, r / f->s.group, &row);
            if (f->real == 8) {
                merge_row_f64(f, partials, r, &m, &l);
                attn_cpu_fwd_finish_f64(f, &seq, b, &row, m * f->s.unit, l,
                                        (double *)(void *)(partials + f->partial_o) + r * f->ldv);
            } else {
                merge_row_f32(f, partials, r, &m, &l);
                attn_cpu_fwd_finish_f32(f, &seq, b, &row, m * f->s.unit, l,
                                        (float *)(void *)(partials + f->partial_o) + r * f->ldv);
            }
        }
        attn_cpu_fwd_empty(f, &seq, b, hk, n_valid, f->s.flat);
    }
}
