/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: dKV from tensor memory to the rows that slots name, and dQ at the end, by four warps. */
#ifndef ATTN_SM100_MLA_BWD_GRADIENTS_H
#define ATTN_SM100_MLA_BWD_GRADIENTS_H

/* A sum of products, f16: without its power of two. */
static __device__ __forceinline__ float scaled(uint32_t word, float down) {
    return SCALED ? __uint_as_float(word) * down : __uint_as_float(word);
}

/* Of key `key`, a thread's four neighbouring columns. again: deterministic, the thread has stored them in an earlier
 * round of the tile. */
static __device__ __forceinline__ void add_key(float *to, uint32_t low, uint32_t high, uint32_t again, float a, float b,
                                               float c, float d) {
    const float x[4] = {a, b, c, d};
    float *cursor = to + (int64_t)((uint64_t)high << 32 | low);
    if (STORED_ROWS) store4(cursor, x, high != NOWHERE && !again);
    if (!STORED_ROWS || JOINED) reduce_add4(cursor, x, high != NOWHERE && (!STORED_ROWS || again));
}

/* N keys from `scatter` on, of 32 lanes: lane 8 k + r has column 4 r + k (operands.h), so that thread r x 4 + .. gets
 * four neighbours out of two loads of 16 lanes. x: lanes 0..15, y: lanes 16..31. on: a bit for each key, those that
 * take something. stored: those that an earlier round has stored. down: undoes the power of two. */
template <int N>
static __device__ __forceinline__ void add_keys(float *to, uint32_t scatter, uint64_t on, uint64_t stored,
                                                const uint32_t *x, const uint32_t *y, float down) {
    on >>= 2 * (lane_of() & 3), stored >>= 2 * (lane_of() & 3);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const uint4 offsets = shared_load128(scatter + 8 * (8 * n + 2 * (lane_of() & 3)));
#pragma unroll
        for (int e = 0; e < 2; e++)
            add_key(to, e ? offsets.z : offsets.x, on >> (8 * n + e) & 1 ? e ? offsets.w : offsets.y : NOWHERE,
                    STORED_ROWS && JOINED ? stored >> (8 * n + e) & 1 : 0, scaled(x[4 * n + e], down),
                    scaled(x[4 * n + 2 + e], down), scaled(y[4 * n + e], down), scaled(y[4 * n + 2 + e], down));
    }
}

static __device__ __forceinline__ void release_sum(uint32_t base, uint32_t sum) {
    tc_wait_loads();
    tc_before();
    tell_read(base, 0, SUM_EMPTY + sum % 2);
}

/* A tile's dKV, as far as a round has summed it. on: entries that take something; stored: those of earlier rounds. */
static __device__ __forceinline__ void add_round(const struct kp_mla_bwd *p, uint32_t base, uint32_t tm, int rank,
                                                 uint32_t scatter, float *to, uint64_t on, uint64_t stored, float down,
                                                 uint32_t *sum) {
    const int quarter = warp_of() % 4;
    const uint32_t lanes = (uint32_t)quarter << 21;
#pragma unroll 1
    for (int u = 0; u < 2; u++, ++*sum) {
        const uint32_t cells = tm + lanes + TM_SUM + *sum % 2 * 64;
        uint32_t x[32], y[32];
        await(base, SUM_FULL + *sum % 2, *sum / 2);
        tc_after();
        tc_load_16x64(x, cells);
        tc_load_16x64(y, cells + (16u << 16));
        release_sum(base, *sum);
        add_keys<KEYS>(to + rank * HALF_V + 128 * u + 32 * quarter, scatter, on, stored, x, y, down);
    }
    if (ROPE) { /* lanes 64 g ..: keys of half g */
        const uint32_t cells = tm + lanes + TM_SUM + *sum % 2 * 64;
        uint32_t x[16], y[16];
        await(base, SUM_FULL + *sum % 2, *sum / 2);
        tc_after();
        tc_load_16x32(x, cells);
        tc_load_16x32(y, cells + (16u << 16));
        release_sum(base, *sum);
        if (quarter % 2 == 0)
            add_keys<CTA_KEYS>(to + DIM_V + rank * HALF_ROPE, scatter + 8 * CTA_KEYS * (quarter / 2),
                               on >> CTA_KEYS * (quarter / 2), stored >> CTA_KEYS * (quarter / 2), x, y, down);
        ++*sum;
    }
}

/* All tiles of a work tile. Returns their words as one. */
static __device__ __forceinline__ uint32_t run_gradients(const struct kp_mla_bwd *p, const struct work *w,
                                                         uint32_t base, uint32_t tm, int rank, uint32_t tile,
                                                         uint32_t *sum) {
    const int wanted = p->dkv.data != 0;
    uint32_t words = 0;
    float *to = STORED_ROWS ? (float *)p->stored_rows + w->number * rows_of_work(p) * DIM
                            : (float *)p->sum.data + w->b * p->sum.batch;
    to += lane_of() / 4 * 4;
#pragma unroll 1
    for (int t = 0; t < w->tiles; t++, tile++) {
        const uint32_t scatter = base + AT_SCATTER + tile % SCATTER_STAGES * SCATTER_STAGE;
        await(base, SCATTER_FULL + tile % SCATTER_STAGES, tile / SCATTER_STAGES);
        if (WORDS) await_ds(base, tile);
        const uint32_t word = WORDS ? word_of_tile(base, tile) : 0;
        const struct rounds rounds = rounds_of_tile(p, w, t, word & WORD_ODD);
        words = fold_words(words, word);
        const float down = power_of_two(-exponent_of(words));
        uint64_t stored = 0;
#pragma unroll 1
        for (int r = rounds.from; wanted && r < rounds.until; r++) {
            const uint64_t on = rounds.whole ? ~UINT64_C(0) : shared_load64(scatter + SCATTER_BITS + 8 * r);
            add_round(p, base, tm, rank, scatter, to, on, stored, down, sum);
            if (STORED_ROWS && JOINED) stored |= on;
        }
        if (WORDS) {
            __syncwarp();
            if (lane_of() == 0) free_scatter_of_both(base, tile);
        } else {
            tell_read(base, -1, SCATTER_EMPTY + tile % SCATTER_STAGES);
        }
    }
    if (JOINED && p->dq.data && threadIdx.x == 128) { /* for the second pass's copies, which have read the last one */
        shared_store32(base + AT_ODD_WORK, words & WORD_ODD);
        mbar_arrive(at_barrier(base, ODD_FULL));
    }
    return words;
}

/* 32 columns of the thread's head. */
static __device__ __forceinline__ void store_dq(uint16_t *to, const uint32_t x[32], int exists, int empty, float down) {
    if (!exists) return;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t y[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[e] = empty ? 0 : pack16(TYPE, scaled(x[8 * c + 2 * e], down), scaled(x[8 * c + 2 * e + 1], down));
        ((uint4 *)to)[c] = make_uint4(y[0], y[1], y[2], y[3]);
    }
}

/* Stacked: of dQ^T a thread's column d, 32 heads; bits of those that exist, and of those that are not empty. */
static __device__ __forceinline__ void store_dq_column(uint16_t *to, int64_t step, const uint32_t x[32], uint32_t exist,
                                                       uint32_t alive, float down) {
#pragma unroll
    for (int h = 0; h < 32; h++, to += step)
        if (exist >> h & 1) *to = alive >> h & 1 ? (uint16_t)pack16(TYPE, scaled(x[h], down), 0) : (uint16_t)0;
}
static __device__ __forceinline__ void run_dq_columns(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                      uint32_t tm, int rank, uint32_t nth, float down) {
    const int quarter = warp_of() % 4, lane = lane_of();
    const uint32_t cells = tm + ((uint32_t)quarter << 21) + TM_DQ;
    const struct alive alive = alive_of(p, w);
    const uint32_t low = __ballot_sync(~0u, state_of_row(p, w, lane) >= 0),
                   high = __ballot_sync(~0u, state_of_row(p, w, 32 + lane) >= 0);
    uint32_t x[32];
    await(base, DQ_FULL, nth);
    tc_after();
#pragma unroll 1
    for (int c = 0; c < (ROPE ? 5 : 4); c++) {
        const int rope = c == 4, upper = rope ? quarter / 2 : c % 2;
        const int column = rope ? DIM_V + rank * HALF_ROPE : rank * HALF_V + c / 2 * 128 + quarter * 32;
        tc_load32(x, cells + 32 * c);
        tc_wait_loads();
        if (!rope || quarter % 2 == 0)
            store_dq_column(dq_of_row(p, w, 32 * upper) + column + lane, p->dq.head, x, upper ? high : low,
                            upper ? alive.word[1] : alive.word[0], down);
    }
    tc_before();
}

/* dQ of a work tile: lanes 64 g + h: head h, columns of half g. query >= 0: that of the group alone. */
static __device__ __forceinline__ void run_dq(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                              uint32_t tm, int rank, uint32_t nth, int query, float down) {
    const int quarter = warp_of() % 4, half = quarter / 2;
    const int row = rank * CTA_HEADS + quarter % 2 * 32 + lane_of();
    const int64_t state = state_of_row(p, w, row);
    const int exists = state >= 0 && (query < 0 || query_of_row(p, row) == query);
    const uint32_t cells = tm + ((uint32_t)quarter << 21) + TM_DQ;
    await(base, DQ_FULL, nth);
    tc_after();
    const int empty = exists && ((const struct kp_mla_row *)p->row_stats)[state].lse2 == INF;
    uint16_t *to = dq_of_row(p, w, row);
#pragma unroll 1
    for (int c = 0; c < HALF_V + (ROPE ? HALF_ROPE : 0); c += 32) {
        uint32_t x[32];
        tc_load32(x, cells + c);
        tc_wait_loads();
        store_dq(to + (c < HALF_V ? half * HALF_V + c : DIM_V + half * HALF_ROPE), x, exists, empty, down);
    }
    tc_before();
}
static __device__ __forceinline__ void run_rounds_of_dq(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                        uint32_t tm, int rank, uint32_t words, uint32_t *round) {
    const struct rounds rounds = rounds_of_dq(w, words & WORD_ODD);
    const float down = power_of_two(-exponent_of(words));
#pragma unroll 1
    for (int r = rounds.from; r < rounds.until; r++, ++*round) {
        if (STACKED)
            run_dq_columns(p, w, base, tm, rank, *round, down);
        else
            run_dq(p, w, base, tm, rank, *round, rounds.whole ? -1 : r, down);
        if (JOINED) tell_read(base, 0, DQ_EMPTY);
    }
}
#endif
