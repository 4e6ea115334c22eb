/* SPDX-License-Identifier: MIT
 * Dense attention forward of f32 on Hopper: wgmma and tensor maps (TMA) on operands that kernels/smxx/sdpa_f16x2.cu has
 * split in two f16 each; causal, windows, GQA, sinks, lengths, packed sequences. Persistent: a CTA takes tiles of 128
 * query rows of one head, 64 a compute warpgroup, and loops over the keys that they see, the last tile first.
 *
 *   S = Q K^T      P = 2^(unit S - m), unit = scale log2(e) and the powers of two of both blocks
 *   l += rowsum P      O += P V      at the end     out = O / l,  lse = ln 2 (m + log2 l)
 *
 *   Q, K, V as hi and lo --TMA, 128-byte swizzle--> slices of 64 columns in shared memory
 *   Qhi Klo, Qlo Khi, Qhi Khi --wgmma--> S (f32 registers) --exponentials--> P hi, lo (f16 registers, A operands)
 *   Plo Vhi, Phi Vlo, Phi Vhi --wgmma--> a sum (f32 registers) --f32 FMA--> O (f32 registers) --> out
 *
 * The tensor core cuts its sums off: the small products come first, and a sum of P V has 64 keys, which share a power
 * of two; O adds them rounded to nearest.
 *
 *   a compute warpgroup, key tile n:     TURN     S(n)      issued; the turn is passed on
 *                                        P(n)               under the other one's products
 *                                        O += P(n) V(n)     in parts of 64 keys and COLS columns, SUMS under way
 *
 * Roles: warpgroups 0 and 1 compute, 232 registers. The last one has 40: warp 0 copies and says what is to be done,
 * warp 1 writes rows that see no key. Shared memory: Q, Q_TILES tiles; a ring of slots, four a key tile: K lo, K hi, V
 * of 64 keys, V of the next 64; mbarriers; struct work of each tile of Q.
 *   mbarrier (arrivals)                                    phase
 *   Q_FULL (1 + bytes), Q_FREE (a compute warp each)       tiles of Q / Q_TILES
 *   FULL (1 + bytes), FREE (a compute warp each)           slots taken / SLOTS
 *   named: TURN + warpgroup (256), VALUES_CLEARED (compute warpgroups)
 *
 * Heads that pairs of f16 cannot hold are flagged and belong to a kernel of tf32; all numbers here are finite, but for
 * rows of the workspace that no sequence has: those of V are cleared in shared memory (has_tail).
 * Figures: docs/kernels/sdpa_fwd_f16x2_sm90.md. */
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_fwd_f16x2/loads.h"
#include "kernels/sm90/sdpa_fwd_f16x2/softmax.h"

struct state {
    uint32_t shared, q_tile; /* number of the tile of Q at work, of all the CTA's */
    struct ring ring;        /* slot that is read next */
    int wg;                  /* warpgroup */
    float o[N_O];            /* 64 x DIM_V: see wgmma.h */
    struct rows rows;
};

static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(c->shared + barrier);
}
static __device__ __forceinline__ uint32_t work_place(const struct state *c) {
    return c->shared + WORK + WORK_BYTES * (c->q_tile % WORKS);
}

/* What a warp knows of the tile of rows at work, in shared memory, since registers are few. */
struct range {
    int inner0, inner1; /* key tiles inner0 <= n < inner1 hide no key from any of the warpgroup's rows */
    int first_block;    /* of the key head, on the list of powers of two */
    float unit;         /* log2 units of a product, but for the power of two of its keys */
};
static __device__ __forceinline__ uint32_t range_place(const struct state *c) {
    return c->shared + RANGES + (uint32_t)recompute((int)threadIdx.x) / 32 * 16;
}
static __device__ __forceinline__ void keep_range(const struct state *c, struct range x) {
    __syncwarp();
    if (lane_of() == 0)
        shared_store128(range_place(c), make_uint4(x.inner0, x.inner1, x.first_block, __float_as_uint(x.unit)));
    __syncwarp();
}
static __device__ __forceinline__ struct range recall_range(const struct state *c) {
    const uint4 x = shared_load128(range_place(c));
    return {(int)x.x, (int)x.y, (int)x.z, __uint_as_float(x.w)};
}

/* Wait for the ring's slot x places on (x: a constant): its address. */
static __device__ __forceinline__ struct ring slot_after(const struct state *c, int x) {
    struct ring r = c->ring;
#pragma unroll
    for (int y = 0; y < x; y++) next_slot(&r);
    return r;
}
static __device__ __forceinline__ uint32_t take(const struct state *c, int x) {
    const struct ring r = slot_after(c, x);
    mbar_wait(c->shared + FULL + 8 * r.slot, r.phase);
    return c->shared + RING + r.slot * SLOT_BYTES;
}
static __device__ __forceinline__ void release(struct state *c) {
    arrive_warp(c, FREE + 8 * c->ring.slot);
    next_slot(&c->ring);
}

/* ------------------------------------------------------------------ products ----------------------- */

/* s (+)= Q K^T of one half each. */
static __device__ __forceinline__ void multiply_scores(float s[N_S], uint64_t q, uint64_t k, int accumulate) {
#pragma unroll
    for (int x = 0; x < DIM / 64; x++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n128<KP_F16, 0, 0>(s, desc_step(q, x * Q_SLICE + 32 * kk), desc_step(k, x * K_SLICE + 32 * kk),
                                        accumulate || x + kk > 0);
}
/* S of the next key tile, whose slots of K are free then. */
static __device__ __forceinline__ void form_scores(struct state *c, float s[N_S]) {
    const uint32_t queries = c->shared + c->q_tile % Q_TILES * Q_BYTES + 8192 * (uint32_t)c->wg;
    const uint64_t q = uniform_desc(slice_desc(queries, 0)), lo = uniform_desc(slice_desc(take(c, 0), 0));
    wgmma_hold(s, N_S);
    wgmma_fence();
    multiply_scores(s, q, lo, 0);
    wgmma_commit();
    const uint64_t hi = uniform_desc(slice_desc(take(c, 1), 0));
    wgmma_fence();
    multiply_scores(s, desc_step(q, Q_HALF), hi, 1);
    multiply_scores(s, q, hi, 1);
    wgmma_commit();
    named_arrive(TURN + (c->wg ^ 1), CONSUMERS);
    wgmma_wait(1);
    release(c);
    wgmma_wait(0);
    wgmma_hold(s, N_S);
    release(c);
}

/* Start sum (+)= P V of 64 keys, hi or lo of either. */
static __device__ __forceinline__ void multiply_values(float sum[COLS / 2], const uint32_t p[], uint64_t v,
                                                       int accumulate) {
#pragma unroll
    for (int kk = 0; kk < BLOCK / 16; kk++) {
        if (COLS == 64)
            wgmma_rs_n64<KP_F16, 1>(sum, p + 4 * kk, desc_step(v, 2048 * kk), accumulate || kk > 0);
        else
            wgmma_rs_n128<KP_F16, 1>(sum, p + 4 * kk, desc_step(v, 2048 * kk), accumulate || kk > 0);
    }
}
/* Start part x of P V. */
static __device__ __forceinline__ void start_part(const struct state *c, float sum[COLS / 2], int x,
                                                  const uint32_t hi[N_P], const uint32_t lo[N_P], int slots_before) {
    const int block = x / ACROSS;
    const uint32_t slot = take(c, slots_before);
    const uint64_t v = uniform_desc(slice_desc(slot + x % ACROSS * (COLS / 64) * V_SLICE, V_SLICE));
    wgmma_hold(sum, COLS / 2);
    wgmma_fence();
    multiply_values(sum, lo + block * BLOCK / 4, v, 0);
    multiply_values(sum, hi + block * BLOCK / 4, desc_step(v, V_HALF), 1);
    multiply_values(sum, hi + block * BLOCK / 4, v, 1);
    wgmma_commit();
}
/* Powers of two of key tile n's blocks, of `all` of a tensor. */
static __device__ __forceinline__ void load_units(const struct state *c, float units[BLOCKS], uint64_t all, int n) {
    const int first = (int)shared_load32(range_place(c) + 8),
              last = ((int)shared_load32(work_place(c) + 20) - 1) / BLOCK; /* sk */
#pragma unroll
    for (int y = 0; y < BLOCKS; y++)
        units[y] = *(const float *)address_of(all, (uint32_t)(first + min(n * BLOCKS + y, last)), 4);
}

/* O = O growth + P V of key tile n, block after block; the slots of V are free then. */
static __device__ __forceinline__ void add_values(struct state *c, const uint32_t hi[N_P], const uint32_t lo[N_P],
                                                  const float growth[2], uint64_t all_units, int n) {
    float sum[SUMS][COLS / 2], units[BLOCKS];
#pragma unroll
    for (int x = 0; x < SUMS; x++) start_part(c, sum[x], x, hi, lo, x / ACROSS);
    load_units(c, units, all_units, n);
#pragma unroll
    for (int x = 0; x < PARTS; x++) {
        const int block = x / ACROSS;
        wgmma_wait(x + SUMS <= PARTS ? SUMS - 1 : PARTS - 1 - x);
        wgmma_hold(sum[x % SUMS], COLS / 2);
        float *const o = c->o + x % ACROSS * (COLS / 2);
        if (x % ACROSS == ACROSS - 1) release(c);
#pragma unroll
        for (int y = 0; y < COLS / 2; y++)
            o[y] = __fmaf_rn(sum[x % SUMS][y], units[block], block == 0 ? o[y] * growth[y >> 1 & 1] : o[y]);
        /* of the blocks before that of part x + SUMS, those up to part x have been released */
        if (x + SUMS < PARTS) start_part(c, sum[x % SUMS], x + SUMS, hi, lo, (x + SUMS) / ACROSS - (x + 1) / ACROSS);
    }
}

/* ------------------------------------------------------------------ a tile of rows ----------------- */

/* Scores of key tile n that the thread's rows do not see. */
static __device__ __forceinline__ void hide(const struct kp_sdpa_fwd *p, const struct state *c, float s[N_S], int n) {
    const struct work work = recall_work(work_place(c)), *w = &work;
    const int first = n * KEYS + lane_of() % 4 * 2, i = w->row0 + 64 * c->wg + 16 * warp_of() + lane_of() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) hide_keys(s, r, first_key(p, w, i + 8 * r) - first, end_key(p, w, i + 8 * r) - first);
}

/* The first key tile, n, holds the end of the sequence's keys: all compute warpgroups clear the rows of V past it. */
static __device__ __forceinline__ void clear_tail(const struct state *c, int valid) {
    struct ring r = slot_after(c, 2);
#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++, next_slot(&r)) {
        const uint32_t values = c->shared + RING + r.slot * SLOT_BYTES;
        mbar_wait(c->shared + FULL + 8 * r.slot, r.phase);
        const int keep = min(max(valid - block * BLOCK, 0), BLOCK);
        /* rows of 128 bytes: of each slice of hi and lo */
#pragma unroll 1
        for (int y = (int)threadIdx.x; y < (BLOCK - keep) * (2 * DIM_V / 8); y += CONSUMERS) {
            const int row = keep + y / (2 * DIM_V / 8), chunk = y % (2 * DIM_V / 8);
            shared_store128(values + chunk / 8 * V_SLICE + row * 128 + chunk % 8 * 16, make_uint4(0, 0, 0, 0));
        }
    }
    async_fence();
    named_sync(VALUES_CLEARED, CONSUMERS);
}

/* O of the tile of rows at work. */
static __device__ __forceinline__ void loop_keys(const struct kp_sdpa_fwd_f16x2 *kp, struct state *c) {
    const struct kp_sdpa_fwd *p = &kp->maps.fwd;
    const struct work work = recall_work(work_place(c)), *w = &work;
    const int upper = w->row0 + 64 * c->wg, last = w->first + w->n_tiles - 1;
    const int first_block_q = (w->b * p->in.heads_q + w->head) * kp->blocks_q;
    struct range range;
    range.first_block = (w->b * p->in.heads_k + divided(w->head, p->by_group)) * kp->blocks_k;
    range.unit = p->in.scale_log2 * ((const float *)kp->unit_q)[first_block_q + min(upper, w->seq.sq - 1) / BLOCK];
    range.inner0 = (first_key(p, w, upper + 63) + KEYS - 1) / KEYS; /* rows past the end are not looked at */
    range.inner1 = max(end_key(p, w, upper), 0) / KEYS;
    keep_range(c, range);
    c->rows.m[0] = c->rows.m[1] = -INF, c->rows.l[0] = c->rows.l[1] = 0;
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] = 0;
    if (has_tail(p, w) && (last + 1) * KEYS > w->seq.sk) clear_tail(c, w->seq.sk - last * KEYS);
#pragma unroll 1
    for (int n = last; n >= (int)shared_load32(work_place(c) + 4); n--) {
        float s[N_S], units[BLOCKS], growth[2];
        uint32_t hi[N_P], lo[N_P];
        load_units(c, units, kp->unit_k, n);
        named_sync(TURN + c->wg, CONSUMERS);
        form_scores(c, s);
        if (n == (int)shared_load32(work_place(c) + 4)) arrive_warp(c, Q_FREE + 8 * (c->q_tile % Q_TILES));
        if (p->in.scale < 0) {
            asm volatile("nanosleep.u32 1;" ::: "memory"); /* seldom: ptxas does not predicate it */
#pragma unroll
            for (int x = 0; x < N_S; x++) s[x] = -s[x];
        }
        const struct range range = recall_range(c);
        if (n < range.inner0 || n >= range.inner1) hide(p, c, s, n);
        /* not 0, by which a hidden score is NaN */
#pragma unroll
        for (int y = 0; y < BLOCKS; y++) units[y] = fmaxf(range.unit * units[y], 0x1p-126f);
        softmax(s, units, &c->rows, growth, hi, lo);
        add_values(c, hi, lo, growth, kp->unit_v, n);
    }
}

/* Divide and write the warpgroup's rows. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, const struct state *c) {
    const struct work work = recall_work(work_place(c)), *w = &work;
    const int t = lane_of() & 3, i = w->row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2);
    const int pairs = p->out.chunk == 16; /* two columns are aligned to 8 bytes */
    const float lowered = exp2_fast(-LIFT);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float f = finish_row(p, w, i + 8 * r, c->rows.m[r] + LIFT, quad_sum(c->rows.l[r]) * lowered, t == 0);
        const float factor = f * lowered;
        float *const to = (float *)p->out.data + row_at(w, &p->out, i + 8 * r) + 2 * t;
        if (i + 8 * r >= w->seq.rows) continue;
#pragma unroll
        for (int j = 0; j < N_O / 4; j++) {
            const float a = f < 0 ? 0 : c->o[4 * j + 2 * r] * factor, b = f < 0 ? 0 : c->o[4 * j + 2 * r + 1] * factor;
            const int left = p->in.dim_v - 8 * j - 2 * t;
            if (left > 1 && pairs) {
                *(float2 *)(to + 8 * j) = make_float2(a, b);
                continue;
            }
            if (left > 0) to[8 * j] = a;
            if (left > 1) to[8 * j + 1] = b;
        }
    }
}

static __device__ __forceinline__ void consume(const struct kp_sdpa_fwd_f16x2 *kp, uint32_t shared) {
    struct state c;
    c.shared = shared, c.ring.slot = c.ring.phase = 0;
    c.wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (c.wg == GROUPS - 1) named_arrive(TURN, CONSUMERS);
#pragma unroll 1
    for (c.q_tile = 0;; c.q_tile++) {
        mbar_wait(shared + Q_FULL + 8 * (c.q_tile % Q_TILES), c.q_tile / Q_TILES & 1);
        if ((int)shared_load32(work_place(&c)) < 0) break;
        loop_keys(kp, &c);
        finish_rows(&kp->maps.fwd, &c);
    }
    if (c.wg == 0) named_sync(TURN, CONSUMERS);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_fwd_f16x2 kp) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        for (int x = 0; x < Q_TILES; x++)
            mbar_init(shared + Q_FULL + 8 * x, 1), mbar_init(shared + Q_FREE + 8 * x, 4 * GROUPS);
        for (int x = 0; x < SLOTS; x++)
            mbar_init(shared + FULL + 8 * x, 1), mbar_init(shared + FREE + 8 * x, 4 * GROUPS);
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_fewer<40>();
        if (threadIdx.x < CONSUMERS + 32)
            produce(&kp, shared);
        else if (threadIdx.x < CONSUMERS + 64)
            fill_empty(&kp.maps);
    } else {
        registers_more<232>();
        consume(&kp, shared);
    }
}
