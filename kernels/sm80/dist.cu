/* SPDX-License-Identifier: MIT
 * Attention distribution on mma.sync: f16 and bf16, every chip from sm_80 on, D = 576 or 512. One CTA owns a query (or
 * a share of its slots) and all of its heads, HEADS at a time, and walks the slots, KEYS at a time.
 *
 *   a[t] = factor sum_h 2^(scale log2(e) q_h.k_t - lse_h log2(e)), 0 at invalid slots; rows with an infinite lse add
 * nothing
 *
 *   global q --cp.async--> both stages --ldmatrix--> registers, all of it --A--+
 *   global kv -gather----> stage -------ldmatrix--------------------------B----+-mma-> partial S --exchange--> S
 *                                                                                                              | 2^
 *   a[t] <-- sum over the blocks of 16 heads, in order <-- shared <-- sum over 16 heads, a fixed tree <--------+
 *
 * There is no output tile to hold, so that Q fits in registers once: each warp keeps its heads' share of the columns
 * (mla_score.h), and only key rows are read from shared memory again, by every head warp.
 *
 * Per key tile one barrier of the CTA, when the tile has arrived and the tile before is used up, and one among the
 * warps of an exchange. The sums of a tile are added up and written after the next tile's barrier. With more than HEADS
 * heads the walk is repeated: each thread adds to the elements that it has written itself. Bit-equal from run to run.
 *
 * Shared memory (bytes; HEADS = 128, KEYS = 64, D = 576):
 *        0  stage 0, stage 1     KEYS x 2 D each; first of all they take Q        147,456
 *           exchange             EXCHANGE                                          32,768
 *           sums of 16 heads     2 tiles x HEADS / 16 x KEYS f32                    4,096
 *           valid flags          2 x KEYS                                             128
 *
 * Rows that no valid slot names are never read. KP_DIST_L1 is a second pass: kernels/smxx/dist_norm.cu. Registers and
 * figures: docs/kernels/dist_sm80.md. */
#include "kernels/sm80/mla_score.h"

constexpr int EXCHANGE_AT = 2 * TILE, GROUPS = HEADS / 16, SUMS = EXCHANGE_AT + EXCHANGE,
              VALID = SUMS + 2 * GROUPS * KEYS * 4;

static_assert(HELD == STEPS && HEADS * PITCH <= 2 * TILE, "Q goes through the stages to registers");
static_assert(VALID + 2 * KEYS == KP_DIST_SHARED(CONFIG), "the host asks for this much shared memory");
static_assert(KEYS <= THREADS, "a thread per slot of the tile");

/* What the whole CTA knows of its work tile. */
struct work {
    int64_t b, i;
    int first, n_slots; /* its slots */
    int n_tiles;        /* tiles with slots below topk_length; the others are zero */
};

/* lse in base 2 of rows g, g + 8 of the warp's own heads; +inf: the row adds nothing. */
struct rows {
    float lse2[2];
};

static __device__ __forceinline__ struct rows rows_of(const struct kp_dist *p, const struct work *w, int64_t h0) {
    struct rows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t h = h0 + own_head_of() + 8 * r + (lane_of() >> 2);
        float lse = INF;
        if (h < p->in.heads_q)
            lse = load_number((const void *)p->lse.data, w->b * p->lse.batch + h * p->lse.head + w->i * p->lse.row,
                              p->lse.dtype);
        rows.lse2[r] = lse == -INF ? INF : p->in.flags & KP_LSE_BASE_2 ? lse : lse * LOG2E;
    }
    return rows;
}

/* One step of a sum over lanes that differ in bit d: with more than one number, each lane keeps half of them. */
static __device__ __forceinline__ constexpr int half_of(int n) { return n > 1 ? n / 2 : 1; }
template <int N> static __device__ __forceinline__ void fold(float *v, int lane, int d) {
#pragma unroll
    for (int x = 0; x < half_of(N); x++) {
        const float high = v[N > 1 ? x + N / 2 : x], keep = lane & d ? high : v[x], give = lane & d ? v[x] : high;
        v[x] = keep + __shfl_xor_sync(~0u, give, d);
    }
}

/* Probabilities of the own fragments, summed over the warp's own 16 heads, to sums[own heads / 16][key]. */
static __device__ __forceinline__ void sum_heads(const struct kp_dist *p, uint32_t sums, uint32_t valid,
                                                 const float rT[OWN][4], const struct rows *rows) {
    const int lane = lane_of(), t2 = 2 * (lane & 3);
    float v[2 * OWN];
#pragma unroll
    for (int f = 0; f < OWN; f++) {
        const uint32_t two = shared_load16(valid + own_key_of() + 8 * f + t2);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int exists = e ? two >> 8 : two & 0xff;
            float y[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float x = exp2_fast(__fmaf_rn(rT[f][2 * r + e], p->in.scale_log2, -rows->lse2[r]));
                y[r] = exists && rows->lse2[r] != INF ? x : 0;
            }
            v[2 * f + e] = y[0] + y[1];
        }
    }
    constexpr int N1 = half_of(2 * OWN), N2 = half_of(N1), N3 = half_of(N2);
    fold<2 * OWN>(v, lane, 16);
    fold<N1>(v, lane, 8);
    fold<N2>(v, lane, 4);
    int first = 0; /* index of the lane's first number */
    first += lane & 16 && 2 * OWN > 1 ? N1 : 0;
    first += lane & 8 && N1 > 1 ? N2 : 0;
    first += lane & 4 && N2 > 1 ? N3 : 0;
#pragma unroll
    for (int x = 0; x < N3; x++) {
        const int key = own_key_of() + (first + x) / 2 * 8 + t2 + (first + x) % 2;
        shared_store32(sums + (own_head_of() / 16 * KEYS + key) * 4, __float_as_uint(v[x]));
    }
}

/* A thread per slot of tile n: the sum over all heads of the block. */
static __device__ __forceinline__ void emit(const struct kp_dist *p, const struct work *w, uint32_t base, int n,
                                            int is_first) {
    const int key = thread_of(), t = n * KEYS + key;
    if (key >= KEYS || t >= w->n_slots) return;
    const uint32_t sums = base + SUMS + ((n & 1) * GROUPS * KEYS + key) * 4;
    float sum = 0;
#pragma unroll
    for (int x = 0; x < GROUPS; x++) sum += __uint_as_float(shared_load32(sums + x * KEYS * 4));
    float *to = (float *)p->dist.data + w->b * p->dist.batch + w->i * p->dist.row + w->first + t;
    *to = is_first ? sum * p->factor : *to + sum * p->factor;
}

static __device__ __forceinline__ void sum_slots(const struct kp_dist *p, const struct work *w, const struct gather *g,
                                                 int64_t h0) {
    const uint32_t base = shared_base();
    uint32_t rQ[M_TILES][HELD][4];
    int found[GATHERED];
    find_rows(g, w->first, KEYS, THREADS, (int)threadIdx.x, found);
    load_queries(&p->in, w->b, w->i, h0, base, base);
    copy_commit();
    const struct rows rows = rows_of(p, w, h0);
    copy_wait(0);
    __syncthreads();
    hold_queries(rQ, base);
    __syncthreads();
    gather_rows(&p->in, g, base, base + VALID, DIM, KEYS, THREADS, (int)threadIdx.x, found);
    copy_commit();
    find_rows(g, w->first + KEYS, KEYS, THREADS, (int)threadIdx.x, found);
#pragma unroll 1
    for (int n = 0; n < w->n_tiles; n++) {
        const int stage = n & 1;
        float rT[OWN][4];
        copy_wait(0);
        __syncthreads();
        if (n + 1 < w->n_tiles) {
            const int thread = thread_of();
            gather_rows(&p->in, g, base + (1 - stage) * TILE, base + VALID + (1 - stage) * KEYS, DIM, KEYS, THREADS,
                        thread, found);
            find_rows(g, w->first + (n + 2) * KEYS, KEYS, THREADS, thread, found);
        }
        copy_commit();
        if (n > 0) emit(p, w, base, n - 1, h0 == 0);
        {
            float rS[M_TILES][N_S][4];
            score_tile(rS, rQ, base, base + stage * TILE);
            exchange_sums(rT, rS, base + EXCHANGE_AT);
        }
        sum_heads(p, base + SUMS + stage * GROUPS * KEYS * 4, base + VALID + stage * KEYS, rT, &rows);
    }
    __syncthreads();
    emit(p, w, base, w->n_tiles - 1, h0 == 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_dist p) {
    for (int64_t index = blockIdx.x; index < p.work_tiles; index += gridDim.x) {
        struct work w;
        const int64_t query = index / p.splits;
        w.i = query % p.in.seq_q;
        w.b = query / p.in.seq_q;
        struct gather g = gather_of(&p.in, w.b, w.i);
        const int tiles = (p.in.topk + KEYS - 1) / KEYS, share = (tiles + p.splits - 1) / p.splits;
        w.first = (int)(index % p.splits) * share * KEYS;
        w.n_slots = min(p.in.topk - w.first, share * KEYS); /* may be negative */
        w.n_tiles = (max(min(g.slots.n - w.first, w.n_slots), 0) + KEYS - 1) / KEYS;
        if (w.n_tiles > 0)
            for (int block = 0; block < p.blocks; block++) sum_slots(&p, &w, &g, (int64_t)block * HEADS);
        float *to = (float *)p.dist.data + w.b * p.dist.batch + w.i * p.dist.row + w.first;
        for (int t = w.n_tiles * KEYS + (int)threadIdx.x; t < w.n_slots; t += THREADS) to[t] = 0;
    }
}
