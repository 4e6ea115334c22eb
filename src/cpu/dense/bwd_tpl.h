/* SPDX-License-Identifier: MIT
 * Phases of the dense backward for one kind of operands; included by bwd.c for each. No include guard on purpose.
 * The includer defines REAL, T(name) for what belongs to the kind and R(name) for what belongs to REAL. */

/* Statistics of ROWS query rows of one head. */
static void T(phase_rows)(struct attn_cpu_bwd *w, int64_t task, char *scratch) {
    const attn_problem *p = w->s.p;
    const int64_t blocks = attn_cpu_sdpa_blocks(p->seq_q, ROWS), i0 = task % blocks * ROWS;
    const int64_t h = task / blocks % p->heads_q, b = task / blocks / p->heads_q;
    REAL *out = (REAL *)(void *)(scratch + w->offsets.dout), *dout = out + w->ldv;
    const double sink = attn_cpu_ref_sink(p, w->s.args, h);
    struct attn_core_seq seq;
    int simple = 1;
    attn_cpu_sdpa_seq(&w->s, b, &seq);
    for (int64_t i = i0; i < i0 + ROWS && i < seq.sq; i++) {
        const int64_t row_q = seq.q0 + i;
        double dlse = 0, dot = 0, lse = attn_num_load(attn_view_row(&w->lse, b, h, row_q), w->lse.dtype, 0);
        if (w->dlse.data) dlse = attn_num_load(attn_view_row(&w->dlse, b, h, row_q), w->dlse.dtype, 0);
        if (p->dim_v > 0 && !isinf(lse)) {
            R(attn_cpu_sdpa_load)(&w->s, out, attn_view_row(&w->out, b, h, row_q), p->dtype, p->dim_v, 1);
            R(attn_cpu_sdpa_load)(&w->s, dout, attn_view_row(&w->dout, b, h, row_q), p->dtype, p->dim_v, 1);
            double part[8] = {0}; /* in double: the error of this sum is a whole row's */
            int64_t c = 0;
            for (; c + 8 <= p->dim_v; c += 8)
                for (int64_t x = 0; x < 8; x++) part[x] += (double)out[c + x] * (double)dout[c + x];
            for (; c < p->dim_v; c++) dot += (double)out[c] * (double)dout[c];
            for (int64_t x = 0; x < 8; x++) dot += part[x];
        }
        const struct attn_cpu_ref_grad row = attn_cpu_ref_grad(p, lse, dlse, dot, sink);
        *attn_cpu_bwd_stat(w, &seq, b, h, i) = (struct attn_cpu_bwd_row){.lse = row.alive ? row.lse : INFINITY,
                                                                         .g = row.g,
                                                                         .shift = row.shift,
                                                                         .dsink = row.dsink,
                                                                         .offset = (float)(row.lse / w->s.unit)};
        if (!w->amx.end || !row.alive || isinf(row.lse)) continue;
        if (w->amx.scored)
            attn_cpu_bwd_stat(w, &seq, b, h, i)->offset = attn_cpu_bwd_amx_score_max(w, &seq, b, h, i, row.lse);
        simple &= attn_cpu_bwd_amx_simple(w, attn_cpu_bwd_stat(w, &seq, b, h, i), attn_view_row(&w->s.q, b, h, row_q),
                                          attn_view_row(&w->dout, b, h, row_q));
    }
    if (w->amx.end) w->unfit_rows[task] = (uint8_t)!simple;
}

/* Slopes: sum of dS times the ALiBi factor, into the row's statistics. */
static void T(add_dalibi)(const struct T(attn_cpu_tile) * t) {
    const struct attn_cpu_bwd *w = t->w;
    for (int64_t r = 0; r < t->n_rows; r++) {
        const REAL *ds = t->ds + r * w->lds;
        double sum = 0;
        for (int64_t j = 0; j < t->n_keys; j++)
            sum += (double)ds[j] * attn_cpu_sdpa_alibi_factor(&w->s, &t->row[r], t->j0 + j);
        t->stat[r]->dalibi += sum;
    }
}

static void T(write_rows)(const struct attn_cpu_bwd *w, const struct attn_view *view, int64_t b, int64_t h, int64_t row,
                          const REAL *from, int64_t width, double factor) {
    if (width == 0) return;
    char *to = attn_view_row(view, b, h, row);
    if (from) {
        R(attn_cpu_sdpa_store)(&w->s, to, w->s.p->dtype, from, width, factor);
    } else {
        memset(to, 0, (size_t)width * (size_t)view->element_bytes);
    }
}

/* dk and dv of the loaded keys; those past the sequence's keys get 0. */
static void T(write_keys)(const struct T(attn_cpu_tile) * t, const REAL *dk, const REAL *dv) {
    const struct attn_cpu_bwd *w = t->w;
    for (int64_t j = 0; j < w->tile && t->j0 + j < t->seq.sk_rows; j++) {
        const int64_t row = t->seq.k0 + t->j0 + j;
        const int exists = j < t->n_keys;
        if (w->want_dk) T(write_rows)
        (w, &w->dk, t->b, t->hk, row, exists ? dk + j * w->ldd : NULL, w->s.p->dim_qk, w->s.remaining_scale);
        if (w->want_dv) T(write_rows)(w, &w->dv, t->b, t->hk, row, exists ? dv + j * w->ldv : NULL, w->s.p->dim_v, 1);
    }
}

/* dq of flat rows f0 .. f0+n; those past the sequence's queries get 0. */
static void T(write_queries)(const struct T(attn_cpu_tile) * t, const REAL *dq, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = t->w;
    for (int64_t f = f0; f < f0 + n; f++) {
        const int64_t i = f / w->s.group, h = t->hk * w->s.group + f % w->s.group;
        if (i >= t->seq.sq_rows) return;
        T(write_rows)
        (w, &w->dq, t->b, h, t->seq.q0 + i, i < t->seq.sq ? dq + (f - f0) * w->ldd : NULL, w->s.p->dim_qk,
         w->s.p->scale);
    }
}

/* The rows of a tile, as another one has them. Adding to dk and dv takes out of them what is not finite. */
static void T(same_rows)(struct T(attn_cpu_tile) * t, struct T(attn_cpu_tile) * loaded, int64_t f) {
    const struct attn_cpu_bwd *w = t->w;
    if (loaded->bad_rows) T(attn_cpu_tile_rows)(loaded, t->hk * w->s.group, w->s.group, f, loaded->n_rows);
    t->n_rows = loaded->n_rows;
    t->lo = loaded->lo, t->hi = loaded->hi;
    t->simple = loaded->simple, t->bad_rows = loaded->bad_rows;
}

/* dk and dv of `keys` keys go to the sums of earlier parts, and begin anew. */
static void T(end_part)(const struct attn_cpu_bwd *w, REAL *sums, REAL *dk, REAL *dv, int64_t keys) {
    const int64_t n_dk = keys * w->ldd, n_dv = keys * w->ldv;
    w->s.u->R(add)(sums, dk, n_dk);
    w->s.u->R(add)(sums + w->slots * w->tile * w->ldd, dv, n_dv);
    memset(dk, 0, (size_t)n_dk * sizeof *dk);
    memset(dv, 0, (size_t)n_dv * sizeof *dv);
}

/* All rows that see the keys from j0 on, some tiles of them, go by: rows are loaded once for all tiles. dq:
 * accumulators of every flat row, or NULL. sums: of parts of PART_TILES tiles of rows, or NULL: many numbers that are
 * alike, added one by one, would all be rounded the same way. */
static void T(run_keys)(struct T(attn_cpu_tile) * t, int64_t j0, REAL *dk, REAL *dv, REAL *dq, REAL *sums) {
    const struct attn_cpu_bwd *w = t->w;
    const attn_problem *p = w->s.p;
    const int64_t keys = t->seq.sk - j0 < w->slots * w->tile ? t->seq.sk - j0 : w->slots * w->tile;
    const int64_t tiles = keys > 0 ? attn_cpu_sdpa_blocks(keys, w->tile) : 0;
    int64_t first = 0, last = 0, unused;
    for (int64_t x = 0; x < w->slots; x++) {
        t[x].j0 = j0 + x * w->tile;
        t[x].n_keys = x >= tiles ? 0 : keys - x * w->tile < w->tile ? keys - x * w->tile : w->tile;
    }
    if (tiles == 0) return;
    memset(dk, 0, (size_t)(keys * w->ldd) * sizeof *dk);
    memset(dv, 0, (size_t)(keys * w->ldv) * sizeof *dv);
    /* both ends of the visible queries grow with j */
    attn_core_query_range(p, t->seq.sq, t->seq.sk, j0, &first, &unused);
    attn_core_query_range(p, t->seq.sq, t->seq.sk, j0 + keys - 1, &unused, &last);
    if (first >= last) return;
    if (sums) memset(sums, 0, (size_t)(w->slots * w->tile * (w->ldd + w->ldv)) * sizeof *sums);
    for (int64_t x = 0; x < tiles; x++) T(attn_cpu_tile_keys)(&t[x], t[x].j0, t[x].n_keys);
    const int64_t end = t->seq.sq * w->s.group, stop = last * w->s.group < end ? last * w->s.group : end;
    int64_t in_part = 0;
    for (int64_t f = first * w->s.group / w->tile * w->tile; f < stop; f += w->tile) {
        if (sums && in_part++ == PART_TILES) T(end_part)(w, sums, dk, dv, keys), in_part = 1;
        T(attn_cpu_tile_rows)(t, t->hk * w->s.group, w->s.group, f, end - f < w->tile ? end - f : w->tile);
        for (int64_t x = 0; x < tiles; x++) {
            struct T(attn_cpu_tile) *s = &t[x];
            if (t->lo >= s->j0 + s->n_keys || t->hi <= s->j0) continue;
            if (x) T(same_rows)(s, t, f);
            T(attn_cpu_tile_compute)(s);
            if (w->want_dv) T(attn_cpu_tile_add_dv)(s, dv + x * w->tile * w->ldv);
            if (dq && attn_core_has(p, ATTN_GRAD_ALIBI)) T(add_dalibi)(s);
            T(attn_cpu_tile_chain)(s);
            if (dq) T(attn_cpu_tile_add_dq)(s, dq + f * w->ldd);
            if (w->want_dk) T(attn_cpu_tile_add_dk)(s, dk + x * w->tile * w->ldd);
        }
    }
    if (!sums) return;
    w->s.u->R(add)(dk, sums, keys * w->ldd);
    w->s.u->R(add)(dv, sums + w->slots * w->tile * w->ldd, keys * w->ldv);
}

/* The keys of a block; dq as above. */
static void T(run_block)(struct T(attn_cpu_tile) * t, int64_t block, REAL *dq, char *scratch) {
    const struct attn_cpu_bwd *w = t->w;
    REAL *dk = (REAL *)(void *)(scratch + w->offsets.dk), *dv = (REAL *)(void *)(scratch + w->offsets.dv);
    REAL *sums = w->in_parts ? (REAL *)(void *)(scratch + w->offsets.sums) : NULL;
    if (w->amx.end && attn_cpu_bwd_amx_keys(w, &t->seq, t->b, t->hk, block, (float *)(void *)dq, scratch)) return;
    for (int64_t j0 = block * w->keys; j0 < (block + 1) * w->keys && j0 < t->seq.sk_rows; j0 += w->slots * w->tile) {
        T(run_keys)(t, j0, dk, dv, dq, sums);
        for (int64_t x = 0; x < w->slots; x++)
            T(write_keys)(&t[x], dk + x * w->tile * w->ldd, dv + x * w->tile * w->ldv);
    }
}

/* Tiles of a worker for one (batch, key head), which share everything but their keys. */
static void T(begin_keys)(struct T(attn_cpu_tile) * t, const struct attn_cpu_bwd *w, int64_t head, char *scratch) {
    for (int64_t x = 0; x < w->slots; x++) {
        T(attn_cpu_tile_init)(&t[x], w, scratch, 0);
        T(attn_cpu_tile_head)(&t[x], head / w->s.p->heads_k, head % w->s.p->heads_k);
        t[x].k += x * w->tile * w->ldd;
        t[x].kt += x * w->tile * w->s.p->dim_qk;
        t[x].vt += x * w->tile * w->s.p->dim_v;
        t[x].bad_k.raw = (REAL *)t[x].bad_k.raw + x * w->tile * w->ldd;
        t[x].bad_k.row += x * w->tile;
    }
}

static void T(phase_keys)(struct attn_cpu_bwd *w, int64_t task, char *scratch) {
    struct T(attn_cpu_tile) t[KEY_SLOTS];
    T(begin_keys)(t, w, task / w->key_blocks, scratch);
    T(run_block)(t, task % w->key_blocks, NULL, scratch);
}

/* Keys and queries of a whole (batch, key head). */
static void T(phase_fused)(struct attn_cpu_bwd *w, int64_t task, char *scratch) {
    struct T(attn_cpu_tile) t[KEY_SLOTS];
    REAL *dq = (REAL *)(void *)(scratch + w->offsets.dq);
    T(begin_keys)(t, w, task, scratch);
    memset(dq, 0, (size_t)(attn_cpu_sdpa_up(t->seq.sq * w->s.group, 32) * w->ldd) * sizeof *dq);
    for (int64_t block = 0; block < w->key_blocks; block++) T(run_block)(t, block, dq, scratch);
    T(write_queries)(t, dq, 0, w->s.flat);
}

static void T(phase_queries)(struct attn_cpu_bwd *w, int64_t task, char *scratch) {
    const attn_problem *p = w->s.p;
    const int64_t head = task / w->row_blocks, f0 = (w->row_blocks - 1 - task % w->row_blocks) * w->rows;
    REAL *dq = (REAL *)(void *)(scratch + w->offsets.dq);
    struct T(attn_cpu_tile) t[ATTN_CPU_TILE_SLOTS];
    int64_t lo = INT64_MAX, hi = 0, slots = 0;
    memset(dq, 0, (size_t)(w->rows * w->ldd) * sizeof *dq);
    if (w->amx.end) {
        T(attn_cpu_tile_init)(&t[0], w, scratch, 0);
        T(attn_cpu_tile_head)(&t[0], head / p->heads_k, head % p->heads_k);
        if (attn_cpu_bwd_amx_queries(w, &t[0].seq, t[0].b, t[0].hk, f0, (float *)(void *)dq, scratch)) {
            T(write_queries)(&t[0], dq, f0, w->s.flat - f0 < w->rows ? w->s.flat - f0 : w->rows);
            return;
        }
    }
    for (int64_t f = f0; f < f0 + w->rows || slots == 0; f += w->tile, slots++) {
        struct T(attn_cpu_tile) *s = &t[slots];
        T(attn_cpu_tile_init)(s, w, scratch, (int)slots);
        T(attn_cpu_tile_head)(s, head / p->heads_k, head % p->heads_k);
        int64_t n = s->seq.sq * w->s.group - f;
        T(attn_cpu_tile_rows)(s, s->hk * w->s.group, w->s.group, f, n < 0 ? 0 : n > w->tile ? w->tile : n);
        if (s->lo == s->hi) continue;
        if (s->lo < lo) lo = s->lo;
        if (s->hi > hi) hi = s->hi;
    }
    for (int64_t j0 = lo < hi ? lo / w->tile * w->tile : hi; j0 < hi; j0 += w->tile) {
        const int64_t left = t[0].seq.sk - j0;
        T(attn_cpu_tile_keys)(&t[0], j0, left < w->tile ? left : w->tile);
        for (int64_t s = 0; s < slots; s++) {
            if (t[s].lo >= j0 + w->tile || t[s].hi <= j0) continue;
            if (s) T(attn_cpu_tile_same_keys)(&t[s], &t[0]);
            T(attn_cpu_tile_compute)(&t[s]);
            if (attn_core_has(p, ATTN_GRAD_ALIBI)) T(add_dalibi)(&t[s]);
            if (!w->want_dq) continue;
            T(attn_cpu_tile_chain)(&t[s]);
            T(attn_cpu_tile_add_dq)(&t[s], dq + s * w->tile * w->ldd);
        }
    }
    if (w->want_dq) T(write_queries)(&t[0], dq, f0, w->s.flat - f0 < w->rows ? w->s.flat - f0 : w->rows);
}
