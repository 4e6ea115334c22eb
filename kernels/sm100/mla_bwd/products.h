/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: the thread that starts all products of the pair. */
#ifndef ATTN_SM100_MLA_BWD_PRODUCTS_H
#define ATTN_SM100_MLA_BWD_PRODUCTS_H

constexpr uint64_t ROWS128 = tc_operand(128, 1024, 16); /* rows of 128 bytes along k */
constexpr uint64_t KEYS64 = tc_operand(64, 512, 16);    /* P and dS: a row is a head, 32 keys along n */
constexpr uint64_t KT128 = tc_operand(128, 1024, KT_SLICE), KT64 = tc_operand(64, 512, 16); /* K: a row is a key */
constexpr uint32_t SHAPE_SCORES = tc_shape(128, KEYS, 0, TYPE), SHAPE_SUM = tc_shape(256, KEYS, 1, TYPE),
                   SHAPE_SUM_ROPE = tc_shape(128, KEYS, 1, TYPE);
constexpr uint32_t SHAPE_DQ = STACKED ? tc_shape(256, HEADS, 0, TYPE, 1) : tc_shape(128, DIM_V / 2, 1, TYPE),
                   SHAPE_DQ_ROPE =
                       STACKED ? tc_shape(128, HEADS, 0, TYPE, 1) : tc_shape(128, ROPE ? ROPE : 64, 1, TYPE);

/* D = A B^T over `slices` slices of 64 columns: S = Q K^T, dP = dO V^T; stacked: both. */
static __device__ __forceinline__ void start_scores(uint32_t cells, uint32_t heads, uint32_t keys, int slices) {
    const uint64_t a = tc_operand_at(ROWS128, heads), b = tc_operand_at(ROWS128, keys);
#pragma unroll 1
    for (int s = 0; s < slices; s++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            tc_multiply(cells, a + (uint64_t)(s * (int)(Q_SLICE / 16) + 2 * k),
                        b + (uint64_t)(s * (int)(K_SLICE / 16) + 2 * k), SHAPE_SCORES, s + k > 0);
}
/* D (+)= X^T P or X^T dS over the first 16 `steps` heads, X^T in tensor memory. */
static __device__ __forceinline__ void start_sum(uint32_t cells, uint32_t a, uint32_t shared, uint32_t shape, int add,
                                                 int steps) {
    const uint64_t b = tc_operand_at(KEYS64, shared);
#pragma unroll
    for (int k = 0; k < HEADS / 16; k++)
        if (k < steps) tc_multiply_cells(cells, a + 8 * k, b + (uint64_t)(k * 1024 / 16), shape, add | (k > 0));
}
/* The same over the heads of query r of the group alone: steps of 16 rows. */
static __device__ __forceinline__ void start_sum_of_query(uint32_t cells, uint32_t a, uint32_t shared, uint32_t shape,
                                                          int add, int r, int steps) {
    const uint64_t b = tc_operand_at(KEYS64, shared);
#pragma unroll 1
    for (int k = r * steps; k < (r + 1) * steps; k++)
        tc_multiply_cells(cells, a + 8 * (uint32_t)k, b + (uint64_t)(k * 1024 / 16), shape, add | (k > r * steps));
}
/* Stacked, f16: D = D / 2^FALL + A B^T. */
template <int FALL>
static __device__ __forceinline__ void multiply_fallen(uint32_t d, uint64_t a, uint64_t b, uint32_t shape) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, 1, 0;\n"
                 " tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p, %4;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(shape), "n"(FALL)
                 : "memory");
}
/* The first products of a tile's dQ^T, whose power of two fell by `fall`: immediates, 1 to 15. */
template <int FALL>
static __device__ __forceinline__ void start_fallen(uint32_t tm, uint64_t a, uint64_t b, uint64_t rope, int fall) {
    if constexpr (FALL > 0) {
        if (fall != FALL) return start_fallen<FALL - 1>(tm, a, b, rope, fall);
        multiply_fallen<FALL>(tm + TM_DQ, a, b, SHAPE_DQ);
        multiply_fallen<FALL>(tm + TM_DQ + 64, a + (uint64_t)(2 * KT_SLICE / 16), b, SHAPE_DQ);
        if (ROPE) multiply_fallen<FALL>(tm + TM_DQ + 128, rope, b, SHAPE_DQ_ROPE);
    }
}

/* dQ (+)= dS K over a tile of keys. Stacked: dQ^T (+)= K^T dS^T, whose M is columns d; rope has 32 of 64 rows a CTA,
 * the others being the same again, since their operand lies 0 bytes from the first. fall: of the power of two. */
static __device__ __forceinline__ void start_dq_columns(uint32_t tm, uint32_t ds, uint32_t keys, int add, int fall) {
    const uint64_t a = tc_operand_at(KT128, keys), b = tc_operand_at(ROWS128, ds),
                   rope = tc_operand_at(tc_operand(64, 512, 0), keys + KT_ROPE);
    if (SCALED && fall > 0) start_fallen<15>(tm, a, b, rope, fall);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        if (SCALED && k == 0 && fall > 0) continue;
#pragma unroll
        for (int c = 0; c < 2; c++)
            tc_multiply(tm + TM_DQ + 64 * c, a + (uint64_t)((c * 2 * (int)KT_SLICE + k * 2048) / 16), b + 2 * k,
                        SHAPE_DQ, add | (k > 0));
        if (ROPE)
            tc_multiply(tm + TM_DQ + 128, rope + (uint64_t)(k * 1024 / 16), b + 2 * k, SHAPE_DQ_ROPE, add | (k > 0));
    }
}
static __device__ __forceinline__ void start_dq(uint32_t tm, uint32_t ds, uint32_t keys, int add) {
    const uint64_t a = tc_operand_at(ROWS128, ds), b = tc_operand_at(KT128, keys),
                   rope = tc_operand_at(KT64, keys + KT_ROPE);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
        for (int c = 0; c < 2; c++)
            tc_multiply(tm + TM_DQ + 128 * c, a + 2 * k, b + (uint64_t)((c * 2 * (int)KT_SLICE + k * 2048) / 16),
                        SHAPE_DQ, add | (k > 0));
        if (ROPE)
            tc_multiply(tm + TM_DQ + 256, a + 2 * k, rope + (uint64_t)(k * 1024 / 16), SHAPE_DQ_ROPE, add | (k > 0));
    }
}

/* Counts of what has been started, over all work tiles. */
struct progress {
    uint32_t stage, tile, sum, round; /* stages of K, tiles of pass 1, accumulators of dKV, rounds of dQ */
    uint32_t words;                   /* of this work tile's tiles, as one */
};

/* S and dP of the tile whose K comes next. */
static __device__ __forceinline__ void scores_of_tile(uint32_t base, uint32_t tm, struct progress *n, uint32_t tile,
                                                      int last) {
    const uint32_t keys = base + AT_K + n->stage % STAGES * STAGE;
    await(base, K_FULL + n->stage % STAGES, n->stage / STAGES);
    await_pair(base, S_EMPTY, tile - 1);
    tc_after();
    start_scores(tm + TM_S, base + AT_Q, keys, STACKED ? SLICES_V : SLICES);
    if (STACKED && ROPE) start_scores(tm + TM_DP, base + AT_Q + SLICES_V * Q_SLICE, keys + SLICES_V * K_SLICE, 1);
    tc_commit(at_barrier(base, S_FULL));
    if (!STACKED) {
        await_pair(base, DP_EMPTY, tile - 1);
        tc_after();
        start_scores(tm + TM_DP, base + AT_DOUT, keys, SLICES_V);
        tc_commit(at_barrier(base, DP_FULL));
    }
    tc_commit(at_barrier(base, K_EMPTY + n->stage % STAGES));
    if (last) tc_commit(at_barrier(base, Q_EMPTY));
    n->stage++;
}

/* dKV^T or its rope of a tile, X^T P or X^T dS: over all rows, or over those of query r. */
static __device__ __forceinline__ void start_round(const struct kp_mla_bwd *p, const struct work *w, uint32_t to,
                                                   uint32_t a, uint32_t shared, uint32_t shape, int add,
                                                   const struct rounds *x, int r) {
    if (x->whole)
        start_sum(to, a, shared, shape, add, steps_of_rows(w));
    else
        start_sum_of_query(to, a, shared, shape, add, r, HEADS / 16 / lists_of(p)->group);
}

/* dKV^T of a tile t: 128 columns d of each CTA at a time, then the rope; of joined lists in one round or several, which
 * shows with dS. The products with P that are under way then begin anew. */
static __device__ __forceinline__ void sums_of_tile(const struct kp_mla_bwd *p, const struct work *w, int t,
                                                    uint32_t base, uint32_t tm, struct progress *n, int wanted) {
    struct rounds rounds = rounds_of_tile(p, w, t, 0);
    await_pair(base, P_FULL, n->tile);
    if (!wanted) await_ds(base, n->tile);
    int first = 1;
#pragma unroll 1
    for (int r = rounds.from; wanted && r < rounds.until; r++)
#pragma unroll 1
        for (int u = 0; u < SUMS; u++, n->sum++, first = 0) {
            const uint32_t to = tm + TM_SUM + n->sum % 2 * 64;
            const int rope = u == 2;
            await_pair(base, SUM_EMPTY + n->sum % 2, n->sum / 2 - 1);
            tc_after();
            if (!rope) start_round(p, w, to, tm + TM_OT + HEAD_COLUMNS * u, base + AT_P, SHAPE_SUM, 0, &rounds, r);
            if (first) {
                await_ds(base, n->tile);
                tc_after();
            }
            if (JOINED && first && word_of_tile(base, n->tile) & WORD_ODD) {
                rounds = rounds_of_tile(p, w, t, 1);
                start_round(p, w, to, tm + TM_OT, base + AT_P, SHAPE_SUM, 0, &rounds, r);
            }
            start_round(p, w, to, tm + (rope ? TM_ROPE : TM_QT + HEAD_COLUMNS * u), base + AT_DS,
                        rope ? SHAPE_SUM_ROPE : SHAPE_SUM, !rope, &rounds, r);
            tc_commit(at_barrier(base, SUM_FULL + n->sum % 2));
        }
    const uint32_t before = t > 0 ? n->words : 0;
    if (WORDS) n->words = fold_words(before, word_of_tile(base, n->tile));
    const int fall = t > 0 ? exponent_of(before) - exponent_of(n->words) : 0;
    if (STACKED && p->dq.data) {
        await(base, KT_FULL, n->tile);
        tc_after();
        start_dq_columns(tm, base + AT_ROWS_DS, base + AT_KT, t > 0, fall);
        tc_commit(at_barrier(base, KT_EMPTY));
    }
    tc_commit(at_barrier(base, PDS_EMPTY));
    if (WORDS) free_scatter_of_both(base, n->tile);
    n->tile++;
}

/* dQ of the work tile, round by round; each one's is read before the next begins. */
static __device__ __forceinline__ void rounds_of_pass(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                      uint32_t tm, struct progress *n) {
    const struct rounds rounds = rounds_of_dq(w, n->words & WORD_ODD);
#pragma unroll 1
    for (int r = rounds.from; r < rounds.until; r++, n->round++) {
        const int2 tiles = tiles_of_round(p, w, r);
        if (JOINED) await_pair(base, DQ_EMPTY, n->round - 1);
        for (int t = tiles.x; t < tiles.y; t++, n->stage++) {
            const uint32_t stage = n->stage % STAGES;
            await(base, K_FULL + stage, n->stage / STAGES);
            tc_after();
            start_dq(tm, base + AT_P + stage * DS_STAGE, base + AT_K + stage * STAGE, t > tiles.x);
            tc_commit(at_barrier(base, K_EMPTY + stage));
        }
        tc_commit(at_barrier(base, DQ_FULL));
    }
    tc_commit(at_barrier(base, PDS_EMPTY));
}

static __device__ __forceinline__ void run_products(const struct kp_mla_bwd *p, uint32_t base, uint32_t tm) {
    const int with_dkv = p->dkv.data != 0, with_dq = p->dq.data != 0;
    struct progress n = {0, 0, 0, 0, 0};
    uint32_t nth = 0;
    struct work w;
    for (int64_t x = first_work(); next_work(p, &w, x); x += work_step(), nth++) {
        await_pair(base, CELLS_FULL, nth);
        tc_after();
        scores_of_tile(base, tm, &n, n.tile, w.tiles == 1);
        for (int t = 0; t < w.tiles; t++) {
            if (t + 1 < w.tiles) scores_of_tile(base, tm, &n, n.tile + 1, t + 2 == w.tiles);
            sums_of_tile(p, &w, t, base, tm, &n, with_dkv);
        }
        if (STACKED && with_dq)
            tc_commit(at_barrier(base, DQ_FULL));
        else if (with_dq)
            rounds_of_pass(p, &w, base, tm, &n);
    }
}
#endif
