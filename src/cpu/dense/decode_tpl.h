/* SPDX-License-Identifier: MIT
 * Few rows in one pass over their keys by struct attn_ukr_decode: a part of fwd_tpl.h, for what is f32 or pairs. No
 * include guard on purpose. */

/* Where the keys and values of a step are. Keys that do not exist or lie in no page of the pool are rows of zeros, and
 * `whole` says that there are none. */
struct T(step) {
    const void *k[ATTN_DECODE_KEYS], *v[ATTN_DECODE_KEYS];
    uint32_t valid; /* a bit each */
};
static void T(find)(const struct T(work) * w, int64_t j, int64_t stop, struct T(step) * to) {
    static const REAL zeros[512];
    const struct attn_cpu_sdpa *s = &w->f->s;
    const int64_t n = stop - j < ATTN_DECODE_KEYS ? stop - j : ATTN_DECODE_KEYS,
                  page = w->seq.pages ? s->p->page_size : n;
    const int64_t k_row = s->k.row * s->k.element_bytes, v_row = s->v.row * s->v.element_bytes;
    to->valid = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t left = w->seq.pages ? page - (j + i) % page : n, end = left < n - i ? i + left : n;
        const char *k = attn_core_kv_row(s->p, &s->k, &w->seq, w->b, w->hk, j + i),
                   *v = attn_core_kv_row(s->p, &s->v, &w->seq, w->b, w->hk, j + i);
        to->valid |= k ? (2u << (end - 1)) - (1u << i) : 0;
        for (; i < end; i++) {
            to->k[i] = k ? k : (const void *)zeros, to->v[i] = k ? v : (const void *)zeros;
            if (k) k += k_row, v += v_row;
        }
    }
    for (int64_t i = n; i < ATTN_DECODE_KEYS; i++) to->k[i] = to->v[i] = zeros;
}
static int T(finite_value)(const struct T(work) * w, const void *v) {
    const struct attn_cpu_sdpa *s = &w->f->s;
    const uint16_t exponent = s->p->dtype == ATTN_F16 ? 0x7c00 : 0x7f80, *h = v;
    if (s->p->dtype == ATTN_F32) return s->u->finite_f32(v, s->p->dim_v);
    for (int64_t c = 0; c < s->p->dim_v; c++)
        if ((h[c] & exponent) == exponent) return 0;
    return 1;
}
/* A step at j of which some row does not see some key: scores of these are -inf. What no row sees may hold anything. A
 * value that is not finite and that only some rows see is left out, and these rows are lost; where all see it, it shows
 * in their sums. */
static void T(hide)(const struct T(work) * w, int64_t r, int64_t rows, int64_t k0, int64_t j,
                    struct T(step) * this_step, float *x, uint32_t *lost) {
    static const REAL zeros[512];
    const uint32_t all = (1u << rows) - 1;
    for (int64_t i = 0; i < ATTN_DECODE_KEYS; i++) {
        uint32_t see = 0;
        for (int64_t a = 0; a < rows; a++) {
            const struct attn_cpu_sdpa_row *row = &w->row[r + a];
            const int sees = (this_step->valid >> i & 1) && j + i >= k0 && j + i >= row->lo && j + i < row->hi;
            see |= (uint32_t)sees << a;
            if (!sees) x[a * ATTN_DECODE_KEYS + i] = -INFINITY;
        }
        if (see == all || (see && T(finite_value)(w, this_step->v[i]))) continue;
        this_step->v[i] = zeros;
        *lost |= see << r;
    }
}

/* Rows r .. r+rows against keys j .. stop, in whole steps but for the last keys of all; those before k0 are none of
 * this task's. Scores are made a step ahead: while probabilities of one are waited for, products of the next are there
 * to be made. */
static void T(decode_keys)(const struct T(work) * w, const struct attn_decode *decode, int64_t r,
                           const struct attn_cpu_fwd_bounds *all, int64_t k0, int64_t j, int64_t stop, uint32_t *lost) {
    const struct attn_ukr_decode *u = w->f->steps;
    const int64_t first = all->lo_most > k0 ? all->lo_most : k0;
    const int64_t steps = attn_cpu_sdpa_blocks(stop - j, ATTN_DECODE_KEYS);
    enum { RING = 4, AHEAD = 2 }; /* steps that are prefetched, of this many more */
    struct T(step) step[RING];
    _Alignas(64) float s[2][ATTN_DECODE_ROWS * ATTN_DECODE_KEYS];
    for (int64_t t = 0; t < AHEAD && t < steps; t++) T(find)(w, j + t * ATTN_DECODE_KEYS, all->hi, &step[t]);
    for (int64_t t = 0; t <= steps; t++, j += ATTN_DECODE_KEYS) {
        struct T(step) *now = &step[t % RING], *upcoming = &step[(t + AHEAD) % RING];
        const int within = j + AHEAD * ATTN_DECODE_KEYS < all->hi,
                  prefetches = within && w->f->prefetches; /* maybe of the next task */
        if (within) T(find)(w, j + AHEAD * ATTN_DECODE_KEYS, all->hi, upcoming);
        if (t < steps) {
            u->scores(decode, now->k, prefetches ? upcoming->k : NULL, s[t % 2]);
            if (j < first || j + ATTN_DECODE_KEYS > all->hi_least || now->valid != (1u << ATTN_DECODE_KEYS) - 1)
                T(hide)(w, r, decode->rows, k0, j, now, s[t % 2], lost);
        }
        if (t > 0) u->add_pv(decode, step[(t - 1) % RING].v, prefetches ? upcoming->v : NULL, s[(t - 1) % 2]);
    }
}

/* A task's rows in one pass; what that cannot finish goes through run_keys. Keys that are read more than once go in
 * blocks. */
static void T(run_steps)(struct T(work) * w, int64_t n_rows, int64_t k0, int64_t k1) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t depth = f->s.p->dim_qk, width = f->s.p->dim_v;
    const double unit = PAIRS ? f->s.p->scale : 1;
    const struct attn_cpu_fwd_bounds all = attn_cpu_fwd_see(w->row, n_rows);
    const int64_t begin = (all.lo > k0 ? all.lo : k0) / ATTN_DECODE_KEYS * ATTN_DECODE_KEYS,
                  stop = all.hi < k1 ? all.hi : k1, block = n_rows <= ATTN_DECODE_ROWS ? stop - begin : f->block_keys;
    _Alignas(64) float l[MOST_DECODE_ROWS * ATTN_DECODE_KEYS];
    _Alignas(64) float l_rounded[PAIRS ? MOST_DECODE_ROWS * ATTN_DECODE_ROUNDED : 1];
    uint32_t lost = 0;
    memset(l, 0, (size_t)(n_rows * ATTN_DECODE_KEYS) * sizeof *l);
    memset(l_rounded, 0, PAIRS ? (size_t)(n_rows * ATTN_DECODE_ROUNDED) * sizeof *l_rounded : 0);
    for (int64_t j = begin; j < stop; j += block)
        for (int64_t r = 0; r < n_rows; r += ATTN_DECODE_ROWS) {
            const struct attn_decode decode = {.rows = n_rows - r < ATTN_DECODE_ROWS ? n_rows - r : ATTN_DECODE_ROWS,
                                               .depth = depth,
                                               .width = width,
                                               .keys = ATTN_DECODE_KEYS,
                                               .q = w->q + r * f->ldq,
                                               .ldq = f->ldq,
                                               .factor = (float)(unit * LOG2_E),
                                               .m = w->m + r,
                                               .l = l + r * ATTN_DECODE_KEYS,
                                               .o = w->o + r * f->ldv,
                                               .ldo = f->ldv,
                                               .l_rounded = PAIRS ? l_rounded + r * ATTN_DECODE_ROUNDED : NULL};
            T(decode_keys)(w, &decode, r, &all, k0, j, stop - j < block ? stop : j + block, &lost);
        }
    for (int64_t r = 0; r < n_rows; r++) {
        struct T(work) one = *w;
        one.row += r, one.q += r * f->ldq, one.m += r, one.l += r, one.o += r * f->ldv;
        if (PAIRS) one.l_rounded += r;
        for (int i = 0; i < ATTN_DECODE_KEYS; i++) *one.l += l[r * ATTN_DECODE_KEYS + i];
        for (int i = 0; PAIRS && i < ATTN_DECODE_ROUNDED; i++) *one.l_rounded += l_rounded[r * ATTN_DECODE_ROUNDED + i];
        *one.m = (REAL)((double)*one.m * (unit / f->s.unit));
        if (!(lost >> r & 1) && isfinite(*one.l) && f->s.u->R(finite)(one.o, width)) continue;
        *one.m = (REAL)-INFINITY, *one.l = 0;
        if (PAIRS) *one.l_rounded = 0;
        memset(one.o, 0, (size_t)f->ldv * sizeof *one.o);
        T(run_keys)(&one, 1, k0, k1);
    }
}
