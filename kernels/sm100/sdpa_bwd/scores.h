/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: from S^T and dP^T to P^T and dS^T, two warpgroups. A thread has a key (a lane of tensor memory)
 * and the PART queries of its warpgroup, whose lse and shift all lanes read at once. */
#ifndef ATTN_SM100_SDPA_BWD_SCORES_H
#define ATTN_SM100_SDPA_BWD_SCORES_H
#include "kernels/sm100/sdpa_bwd/loads.h"
#include "kernels/sm100/softcap.h"

/* What is seldom true of a thread's cells. */
struct hidden {
    uint32_t on[2]; /* a bit a query: it sees the key */
    int any;        /* the same for the CTA: some cell of the tile is hidden, or rows or keys are not ordinary */
    int bad_key;    /* the key was zeroed (sdpa_bwd_bad_keys.h) */
    int odd;        /* softcap: infinities in q or k are possible */
    int special;    /* enum cleaned, of the step */
};

static __device__ __forceinline__ uint32_t low_bits(int n) { return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1; }

/* The stage's flags have arrived. */
static __device__ __forceinline__ struct hidden hidden_of(const struct kp_sdpa_bwd *p, const struct work *w,
                                                          struct step s, uint32_t base, uint32_t t) {
    const int part = (int)threadIdx.x / 128, lane = (int)threadIdx.x % 128;
    const uint32_t any_bad = shared_load32(base + ANY_BAD);
    struct hidden h;
    h.special = (int)shared_load32(flags_of(base, t));
    h.any = place_of(p, w, s).hides | (int)any_bad | h.special;
    h.odd = SCORE_MOD ? (int)any_bad | h.special : 0;
    h.bad_key = any_bad ? is_bad_key(base, lane) : 0;
    const int key = w->j0 + rank_of() * CTA_KEYS + lane, i0 = s.i0 + PART * part;
    const int from = key - i0 - w->off; /* less the first query */
    const int lo = from - p->in.window_right, rows = w->seq.sq - i0;
    const int hi = key < w->seq.sk ? min(from + p->in.window_left + 1, rows) : 0;
#pragma unroll
    for (int c = 0; c < 2; c++) h.on[c] = low_bits(hi - 32 * c) & ~low_bits(lo - 32 * c);
    return h;
}

static __device__ __forceinline__ float stat_of(uint32_t stats, int e) {
    return __uint_as_float(shared_load32(stats + 4 * e));
}
/* 32 queries from `lse` on. P and dS of a zeroed key are what it stands for; hidden ones are 0. */
static __device__ __forceinline__ void hide_cells(float x[32], uint32_t on, int bad_key, uint32_t lse) {
    if (__any_sync(~0u, bad_key)) {
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] = bad_key ? bad_key_share(stat_of(lse, e)) : x[e];
    }
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] = on >> e & 1 ? x[e] : 0;
}
/* dS of empty rows: P and dO are 0, but 0 times a NaN in V of a key that they would see is none. */
static __device__ __forceinline__ void silence_cells(float x[32], uint32_t lse) {
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] = stat_of(lse, e) == INF ? 0 : x[e];
}

/* 32 columns of the thread's lane; they are read after the wait. */
static __device__ __forceinline__ void load_cells(float x[32], uint32_t cells) {
    uint32_t word[32];
    tc_load32(word, cells);
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < 32; c++) {
        asm volatile("" : "+r"(word[c]));
        x[c] = __uint_as_float(word[c]);
    }
}
static __device__ __forceinline__ void round_cells(uint32_t y[16], const float x[32]) {
#pragma unroll
    for (int c = 0; c < 16; c++) y[c] = pack16(TYPE, x[2 * c], x[2 * c + 1]);
}
static __device__ __forceinline__ float4 four_stats(uint32_t stats, int e) {
    const uint4 y = shared_load128(stats + 4 * e);
    return make_float4(__uint_as_float(y.x), __uint_as_float(y.y), __uint_as_float(y.z), __uint_as_float(y.w));
}

/* S to P, 32 queries. */
static __device__ __forceinline__ void probabilities(float x[32], uint32_t lse, float unit) {
#pragma unroll
    for (int e = 0; e < 32; e += 4) {
        const float4 y = four_stats(lse, e);
        x[e] = exp2_fast(__fmaf_rn(x[e], unit, -y.x)), x[e + 1] = exp2_fast(__fmaf_rn(x[e + 1], unit, -y.y));
        x[e + 2] = exp2_fast(__fmaf_rn(x[e + 2], unit, -y.z)), x[e + 3] = exp2_fast(__fmaf_rn(x[e + 3], unit, -y.w));
    }
}
/* The same of softcap, P rounded: P = 2^(unit t - lse), t = tanh(a s). x becomes P times the derivative of the cap,
 * 1 - t^2, which is 0 where tanh is 1. */
static __device__ __forceinline__ void capped_probabilities(const struct kp_sdpa *in, uint32_t p[16], float x[32],
                                                            uint32_t lse) {
    const float unit = in->softcap * LOG2E, a = cap_slope(in);
    uint32_t s[32];
    uint64_t t[16];
#pragma unroll
    for (int e = 0; e < 32; e++) s[e] = __float_as_uint(x[e]);
    const int far = is_far(largest_product<32>(s), a);
    if (far) cap_far<32>(s, a);
    capped_pairs<32>(t, s, far, a, 1, 0);
#pragma unroll
    for (int c = 0; c < 16; c += 2) {
        const float4 y = four_stats(lse, 2 * c);
        const float2 z = floats_of(t[c]), w = floats_of(t[c + 1]);
        const float p0 = exp2_fast(__fmaf_rn(z.x, unit, -y.x)), p1 = exp2_fast(__fmaf_rn(z.y, unit, -y.y)),
                    p2 = exp2_fast(__fmaf_rn(w.x, unit, -y.z)), p3 = exp2_fast(__fmaf_rn(w.y, unit, -y.w));
        p[c] = pack16(TYPE, p0, p1), p[c + 1] = pack16(TYPE, p2, p3);
        x[2 * c] = p0 * __fmaf_rn(-z.x, z.x, 1), x[2 * c + 1] = p1 * __fmaf_rn(-z.y, z.y, 1);
        x[2 * c + 2] = p2 * __fmaf_rn(-w.x, w.x, 1), x[2 * c + 3] = p3 * __fmaf_rn(-w.y, w.y, 1);
    }
}
/* Products of a key that is not finite, and of rows that hold infinities. */
static __device__ __forceinline__ void make_infinite(float x[32], int bad_key, uint32_t shift) {
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] = bad_key || is_marked(stat_of(shift, e)) ? infinite_like(x[e]) : x[e];
}
/* hide_cells of rounded P. */
static __device__ __forceinline__ void hide_pairs(uint32_t p[16], uint32_t on) {
#pragma unroll
    for (int c = 0; c < 16; c++) p[c] &= (on >> 2 * c & 1 ? 0xffff : 0) | (on >> (2 * c + 1) & 1 ? 0xffff0000 : 0);
}
/* dP to dS, 32 queries; pr: P, times the derivative of the cap. */
static __device__ __forceinline__ void score_gradients(float x[32], const float pr[32], uint32_t shift, float factor) {
#pragma unroll
    for (int e = 0; e < 32; e += 4) {
        const float4 y = four_stats(shift, e);
        x[e] -= y.x, x[e + 1] -= y.y, x[e + 2] -= y.z, x[e + 3] -= y.w;
    }
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] *= SCALED ? factor * pr[e] : pr[e];
}

/* dV += P^T dO of the noted rows of the part, read from memory, where P is not 0: there the key is visible. dV stands
 * still: all products of the step before are done (S is), and those of this step wait for P_FULL. */
static __device__ __forceinline__ void add_noted_rows(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                      uint32_t notes, uint32_t cells_p, uint32_t cells_dv, int part) {
#pragma unroll 1
    for (int q = 0; q < PART; q++) {
        if (!(shared_load32(notes + 4 * ((PART * part + q) >> 5)) >> (q & 31) & 1)) continue;
        const uint16_t *row = (const uint16_t *)p->dout.data + w->b * p->dout.batch + s.head * p->dout.head +
                              (w->seq.q0 + s.i0 + PART * part + q) * p->dout.row;
        uint32_t pair = tc_load1(cells_p + q / 2);
        tc_wait_loads();
        asm volatile("" : "+r"(pair));
        const float y = unpack16(TYPE, q & 1 ? pair >> 16 : pair & 0xffff);
#pragma unroll 1
        for (int c = 0; c < DIM_V; c += 32) {
            float x[32];
            uint32_t word[32];
            load_cells(x, cells_dv + c);
#pragma unroll
            for (int e = 0; e < 32; e++) {
                if (y != 0 && c + e < p->in.dim_v) x[e] += y * unpack16(TYPE, row[c + e]);
                word[e] = __float_as_uint(x[e]);
            }
            tc_store32(cells_dv + c, word);
            tc_wait_stores();
        }
    }
}
/* One warpgroup after the other. */
static __device__ __forceinline__ void add_bad_dout(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                    uint32_t base, uint32_t lanes, uint32_t t) {
    const int part = (int)threadIdx.x / 128;
    if (part == 1) {
        named_sync(MAIN, MAIN_THREADS);
        tc_after();
    }
    add_noted_rows(p, w, s, flags_of(base, t) + 16, lanes + TM_P + CELLS * part, lanes + TM_DV, part);
    if (part == 0) {
        tc_before();
        named_sync(MAIN, MAIN_THREADS);
    }
}

/* dV begins at 0, so that add_bad_dout may come before the first product; DIM_V / 2 columns a warpgroup. */
static __device__ __forceinline__ void zero_dv(uint32_t lanes, uint32_t part) {
    uint32_t zero[32];
#pragma unroll
    for (int e = 0; e < 32; e++) zero[e] = 0;
#pragma unroll
    for (int c = 0; c < DIM_V / 2; c += 32) tc_store32(lanes + TM_DV + DIM_V / 2 * part + c, zero);
    tc_wait_stores();
    tc_before();
}

/* dS of the thread's key: a line of 64 queries of operand A, whose rows run along m. Into the part's slice, or, of a
 * pair, into the CTA whose queries these are. */
static __device__ __forceinline__ void store_line(uint32_t base, uint32_t part, const uint32_t x[32]) {
    const uint32_t key = threadIdx.x % 128, rank = (uint32_t)rank_of();
    const uint32_t line = base + AT_DS + (PAIR ? rank : part) * SLICE + key * 128;
    if (PAIR && part != rank) {
        const uint32_t there = cluster_address(line, part);
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            cluster_store128(there + ((c ^ (key & 7)) << 4),
                             make_uint4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]));
        return;
    }
#pragma unroll
    for (uint32_t c = 0; c < 8; c++)
        shared_store128(line + ((c ^ (key & 7)) << 4), make_uint4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]));
}

static __device__ __forceinline__ void take_step(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                 uint32_t base, uint32_t tm, uint32_t t, float factor) {
    const uint32_t part = (uint32_t)warp_of() / 4, lanes = tm + quarter_of();
    const uint32_t cells_s = lanes + TM_S + PART * part, cells_p = lanes + TM_P + CELLS * part;
    const uint32_t lse = stats_of(base, t) + 4 * PART * part, shift = lse + 4 * ROWS;
    float pr[PART];
    uint32_t y[32];
    await_stage(base, ROWS_READY, t);
    const struct hidden h = hidden_of(p, w, s, base, t);
    await(base, S_FULL, t);
    tc_after();
    if (SERIAL) { /* dP^T comes into its place */
#pragma unroll
        for (int c = 0; c < 2; c++) load_cells(pr + 32 * c, cells_s + 32 * c);
        tc_before();
        tell_products(base, S_READ);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (!SERIAL) load_cells(pr + 32 * c, cells_s + 32 * c);
        if (SCORE_MOD) {
            if (rare(h.odd)) make_infinite(pr + 32 * c, h.bad_key, shift + 128 * c);
            capped_probabilities(&p->in, y + 16 * c, pr + 32 * c, lse + 128 * c);
            if (rare(h.any)) hide_pairs(y + 16 * c, h.on[c]);
            continue;
        }
        probabilities(pr + 32 * c, lse + 128 * c, p->in.scale * LOG2E);
        if (rare(h.any)) hide_cells(pr + 32 * c, h.on[c], h.bad_key, lse + 128 * c);
        round_cells(y + 16 * c, pr + 32 * c);
    }
    if (SERIAL) { /* dK has read dS^T of the step before */
        await(base, DK_DONE, t - 1);
        tc_after();
    }
    tc_store32(cells_p, y); /* D 64, 128: over the part's S, all of which has been read */
    tc_wait_stores();
    if (rare(h.special == DOUT_BAD)) add_bad_dout(p, w, s, base, lanes, t);
    tc_before();
    tell_products(base, P_FULL);
    await(base, DP_FULL, t);
    tc_after();
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float x[32];
        load_cells(x, lanes + TM_DP + PART * part + 32 * c);
        score_gradients(x, pr + 32 * c, shift + 128 * c, factor);
        if (rare(h.any)) {
            if (h.special) silence_cells(x, lse + 128 * c);
            hide_cells(x, h.on[c], !SCORE_MOD && h.bad_key, lse + 128 * c);
        }
        round_cells(y + 16 * c, x);
    }
    if (SERIAL) { /* dV has read P^T; dP^T, which has been waited for, came after dQ of the step before */
        await(base, DV_DONE, t);
        tc_after();
    }
    tc_store32(cells_p + TM_DS, y);
    if (!SERIAL) await(base, DQ_FULL, t - 1); /* the step before has left dS */
    store_line(base, part, y);
    tc_wait_stores();
    tc_before();
    tell_written(base, DS_FULL);
}

/* A key's row of dV or dK from tensor memory, times factor: the `width` columns that exist of the `columns` that stand
 * there. not begun: zeros. */
static __device__ __forceinline__ void store_key(const struct kp_view *v, uint16_t *to, int width, int columns,
                                                 uint32_t cells, int exists, int begun, float factor) {
#pragma unroll 1
    for (int c = 0; c < columns; c += 32) {
        float x[32];
        uint32_t y[16];
        if (begun)
            load_cells(x, cells + c);
        else
#pragma unroll
            for (int e = 0; e < 32; e++) x[e] = 0;
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] *= factor;
        round_cells(y, x);
        if (!exists) continue;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int left = width - c - 8 * e;
            if (v->chunk == 16 && left >= 8)
                *(uint4 *)(to + c + 8 * e) = make_uint4(y[4 * e], y[4 * e + 1], y[4 * e + 2], y[4 * e + 3]);
            else
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (i < left) to[c + 8 * e + i] = (uint16_t)(y[4 * e + i / 2] >> (i % 2 * 16));
        }
    }
}

/* A pair: K by columns, of both CTAs' keys. Of a key that is not finite only what stands here matters: dS, which is 0
 * or NaN, times a finite number is the same. */
static __device__ __forceinline__ void clean_key_columns(uint32_t base) {
    await(base, KEY_COLUMNS_FULL, 0);
#pragma unroll 2
    for (uint32_t x = threadIdx.x; x < KEY_COLUMNS / 16; x += MAIN_THREADS) {
        const uint32_t chunk = base + AT_KEY_COLUMNS + 16 * x;
        if (chunk_bad(chunk)) shared_store128(chunk, make_uint4(0, 0, 0, 0));
    }
}

static __device__ __forceinline__ void run_scores(const struct kp_sdpa_bwd_maps *maps, uint32_t base) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const uint32_t tm = shared_load32(base + AT_SLOT);
    const struct work w = recall_work(base);
    const int part = warp_of() / 4, begun = w.steps > 0, j0 = w.j0 + rank_of() * CTA_KEYS;
    const int j = j0 + (int)threadIdx.x % 128;
    struct step s = first_step(p, &w);
    float factor = 1;
    if (SCALED) factor = choose_factor(&maps->all, base, rank_of() == 0);
    if (begun) {
        zero_dv(tm + quarter_of(), (uint32_t)part);
        await(base, KEYS_FULL, 0);
        take_bad_keys(base, w.seq.sk - j0);
        if (SCORE_MOD && rare((int)shared_load32(base + ANY_BAD)))
            spoil_dq<0, 1>(p, &w, j0, base, (int)threadIdx.x, MAIN_THREADS);
        if (PAIR) clean_key_columns(base);
        tell_written(base, KEYS_READY);
    }
#pragma unroll 1
    for (uint32_t t = 0; t < (uint32_t)w.steps; t++, s = step_after(&w, s)) take_step(p, &w, s, base, tm, t, factor);
    if (begun) {
        await(base, GRADS_FULL, 0);
        tc_after();
    }
    const struct kp_view *v = part ? &p->dk : &p->dv;
    if (!v->data) return;
    const float undo = SCALED ? __uint_as_float(shared_load32(base + FACTORS)) : 1;
    uint16_t *to = (uint16_t *)v->data + w.b * v->batch + w.head_k * v->head + (w.seq.k0 + j) * v->row;
    store_key(v, to, part ? p->in.dim_qk : p->in.dim_v, part ? DIM : DIM_V, tm + quarter_of() + (part ? TM_DK : TM_DV),
              j < w.seq.keys, begun, part ? undo * p->in.scale : 1);
    if (SCORE_MOD && part && rare((int)shared_load32(base + ANY_MARKED))) {
        named_sync(DK_STORED, 128);
        spoil_dk<0>(p, &w, j0, (int)threadIdx.x - 128);
    }
}
#endif
