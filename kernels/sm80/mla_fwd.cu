/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on mma.sync: f16 and bf16, every chip from sm_80 on, D = 576 or 512, values = the first 512
 * columns of a key's row. One CTA owns a block of HEADS query heads of one query and walks the query's slots, KEYS at a
 * time.
 *
 *   t = scale log2(e) q.k, -inf at invalid slots     p = 2^(t - m)     l = sum p     O = sum p v
 *   m is the maximum as of the last time that it had grown by more than 8 (a factor 2^8 in p, far from any overflow);
 *   only then are l and O rescaled (FlashAttention-4, section 3).        out = O / (l + 2^(sink - m))   lse = m + log2
 * l
 *
 *   global q --cp.async--> shared --ldmatrix--> A ---+
 *   global kv -gather----> stage  --ldmatrix--> B ---+-mma-> partial S (f32) --exchange--> S --2^--> P (16 bit, shared)
 *      rows that slots name  |                                                                        |
 *                            +------ldmatrix.trans--> B ---+-mma-> O (f32, 512 / WARPS columns a warp)|
 *                                                          +-- A <--ldmatrix--------------------------+
 *
 * Scores are formed by the warp grid of mla_score.h; O by all warps side by side: each holds all heads of the block and
 * 512 / WARPS columns, so that a value row is read from shared memory once.
 *
 * Per key tile: one barrier when the tile has arrived and the tile before is used up (then the next gather starts, into
 * the other stage), one among the warps of an exchange, one when P is written. The last one also carries the vote
 * whether some row's maximum has grown; then, rarely, P is written again under the new maximum.
 *
 * Shared memory (bytes; HEADS = 64, KEYS = 64, D = 576, held = 4 of 18 steps):
 *        0  Q without the held columns   HEADS x KEPT_PITCH          57,344
 *           stage 0, stage 1             KEYS x 2 D each            147,456
 *           exchange                     EXCHANGE                    16,384
 *           P                            HEADS x 2 KEYS               8,192
 *           statistics: per row and owner maximum, sum; m, factor     1,536
 *           valid flags of both stages                                  128
 *   Stage 1 first takes the held part of Q; stage 0 at the end takes the output tile.
 *
 * Rows that no valid slot names are never read. A NaN in a row that a slot names makes the scores of all heads NaN.
 * Splits write (O, m, l, maximum) to the workspace; kernels/smxx/mla_combine.cu merges them. Registers and figures:
 * docs/kernels/mla_fwd_sm80.md. */
#include "kernels/sm80/mla_score.h"

constexpr int DIM_V = 512, COLS = DIM_V / WARPS, N_O = COLS / 8, M_ALL = HEADS / 16, P_PITCH = 2 * KEYS;
constexpr int OWNERS = KEYS / (8 * OWN); /* warps that own a part of a row of scores */
constexpr int STAGE = HEADS * KEPT_PITCH, EXCHANGE_AT = STAGE + 2 * TILE, P_AT = EXCHANGE_AT + EXCHANGE;
constexpr int LARGEST = P_AT + HEADS * P_PITCH, SUMS = LARGEST + OWNERS * HEADS * 4, M_AT = SUMS + OWNERS * HEADS * 4,
              FACTOR = M_AT + HEADS * 4, VALID = FACTOR + HEADS * 4;
constexpr float SLACK = 8, LEAST = -126; /* log2 units: postponed growth of a maximum; smallest factor of a rescale */

static_assert(COLS % 16 == 0 && (COLS % 64 == 0 || 64 % COLS == 0), "columns of a warp start where XOR steps work");
static_assert(HEADS * PITCH <= TILE && HEADS * 2 * DIM_V <= TILE, "Q and the output tile fit a stage");
static_assert(VALID + 2 * KEYS == KP_MLA_FWD_SHARED(CONFIG), "the host asks for this much shared memory");
static_assert(HEADS <= THREADS, "a thread per row");

struct work {
    int64_t b, i, h0;
    int split;
    int first, n_tiles; /* key tiles */
};

/* Per row g, g + 8 of the warp's own 16 heads; l and largest cover the lane's own keys until the end. Units of log2. */
struct statistics {
    float m[2], l[2], largest[2];
};

/* ------------------------------------------------------------------ softmax ------------------------ */

static __device__ __forceinline__ float quad_max_nan(float x) {
    x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* P = 2^(t - m) of the warp's own fragments to shared memory; sum: of the lane's, not rounded. */
static __device__ __forceinline__ void write_p(uint32_t base, const float rT[OWN][4], const float m[2], float sum[2]) {
    const int lane = lane_of(), row = own_head_of() + (lane >> 2), c0 = own_key_of() / 8;
    const float low[2] = {m[0] == -INF ? 0 : m[0], m[1] == -INF ? 0 : m[1]};
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int f = 0; f < OWN; f++) {
        float p[4];
#pragma unroll
        for (int e = 0; e < 4; e++) p[e] = exp2_fast(rT[f][e] - low[e >> 1]);
        sum[0] += p[0] + p[1];
        sum[1] += p[2] + p[3];
        const uint32_t probs = base + P_AT + 4 * (lane & 3);
        shared_store32(probs + tile_at(P_PITCH, row, c0 + f), pack16(TYPE, p[0], p[1]));
        shared_store32(probs + tile_at(P_PITCH, row + 8, c0 + f), pack16(TYPE, p[2], p[3]));
    }
}

/* Largest score of row `row` so far, from the owners' notes. */
static __device__ __forceinline__ float largest_of(uint32_t base, int row) {
    float largest = __uint_as_float(shared_load32(base + LARGEST + row * 4));
#pragma unroll
    for (int x = 1; x < OWNERS; x++)
        largest = max_nan(largest, __uint_as_float(shared_load32(base + LARGEST + (x * HEADS + row) * 4)));
    return largest;
}
static __device__ __forceinline__ void store_largest(uint32_t base, const struct statistics *st) {
    const int lane = lane_of(), row = own_head_of() + (lane >> 2), owner = own_key_of() / (8 * OWN);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float largest = quad_max_nan(st->largest[r]);
        if ((lane & 3) == 0)
            shared_store32(base + LARGEST + (owner * HEADS + row + 8 * r) * 4, __float_as_uint(largest));
    }
}

/* Some maximum has grown: take the new ones, write P again, rescale l and O. */
static __device__ __forceinline__ void rescale(uint32_t base, const float rT[OWN][4], struct statistics *st,
                                               float sum[2], float rO[M_ALL][N_O][4]) {
    const int lane = lane_of(), row = own_head_of() + (lane >> 2);
    store_largest(base, st);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float largest = largest_of(base, row + 8 * r);
        /* at least 2^LEAST: the product adds nothing to l >= 1, but an infinity stays one */
        const float factor = exp2_fast(fmaxf(st->m[r] - largest, LEAST));
        st->m[r] = largest;
        st->l[r] *= factor;
        if ((lane & 3) == 0 && own_key_of() == 0)
            shared_store32(base + FACTOR + (row + 8 * r) * 4, __float_as_uint(factor));
    }
    write_p(base, rT, st->m, sum);
    __syncthreads();
#pragma unroll
    for (int x = 0; x < M_ALL; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float factor = __uint_as_float(shared_load32(base + FACTOR + (16 * x + 8 * r + (lane >> 2)) * 4));
#pragma unroll
            for (int n = 0; n < N_O; n++) rO[x][n][2 * r] *= factor, rO[x][n][2 * r + 1] *= factor;
        }
}

/* Scores of the own fragments -> P in shared memory, complete for all threads. */
static __device__ __forceinline__ void softmax_tile(const struct kp_mla_fwd *p, uint32_t base, float rT[OWN][4],
                                                    uint32_t valid, struct statistics *st, float rO[M_ALL][N_O][4]) {
    float sum[2];
#pragma unroll
    for (int f = 0; f < OWN; f++)
#pragma unroll
        for (int e = 0; e < 4; e++) rT[f][e] *= p->in.scale_log2;
    hide_slots(rT, valid);
#pragma unroll
    for (int f = 0; f < OWN; f++)
#pragma unroll
        for (int e = 0; e < 4; e++) st->largest[e >> 1] = max_nan(st->largest[e >> 1], rT[f][e]);
    /* NaN votes, too; so do rows whose slots were all invalid so far */
    const int grown = !(st->largest[0] - st->m[0] <= SLACK) || !(st->largest[1] - st->m[1] <= SLACK);
    write_p(base, rT, st->m, sum);
    if (__syncthreads_or(grown)) rescale(base, rT, st, sum, rO);
    st->l[0] += sum[0];
    st->l[1] += sum[1];
}

/* rO += P V, V = the tile's first 512 columns. */
static __device__ __forceinline__ void add_pv(uint32_t base, uint32_t tile, float rO[M_ALL][N_O][4]) {
    const int lane = lane_of(), col0 = warp_of() * COLS;
    const uint32_t a_lane = base + P_AT + tile_at(P_PITCH, lane % 16, lane / 16);
    /* a warp's first column may stand inside a swizzle period: XOR, as every step */
    const uint32_t v_lane = tile_at(PITCH, lane % 16, lane / 16) + tile + col0 / 64 * 128;
    const uint32_t v0 = v_lane ^ (uint32_t)(col0 % 64 * 2);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[M_ALL][4];
#pragma unroll
        for (int x = 0; x < M_ALL; x++) load_matrix4(a[x], tile_step(a_lane, P_PITCH, 2 * k) + x * 16 * P_PITCH);
#pragma unroll
        for (int n = 0; n < N_O; n += 2) {
            uint32_t v[4];
            load_matrix4_trans(v, tile_step(v0, PITCH, n) + k * 16 * PITCH);
#pragma unroll
            for (int x = 0; x < M_ALL; x++) {
                mma_m16n8k16(TYPE, rO[x][n], a[x], v[0], v[1]);
                mma_m16n8k16(TYPE, rO[x][n + 1], a[x], v[2], v[3]);
            }
        }
    }
}

/* ------------------------------------------------------------------ results ------------------------ */

static __device__ __forceinline__ int64_t head_at(const struct kp_view *v, const struct work *w, int64_t h) {
    return w->b * v->batch + h * v->head + w->i * v->row;
}

/* A thread per row: statistics of all owners to lse and max_logits, and the factor of the row's O. */
static __device__ __forceinline__ void finish_statistics(const struct kp_mla_fwd *p, const struct work *w,
                                                         uint32_t base) {
    const int row = (int)threadIdx.x;
    if (row >= HEADS) return;
    const int64_t h = w->h0 + row;
    const float m = __uint_as_float(shared_load32(base + M_AT + row * 4)), largest = largest_of(base, row);
    float l = 0;
#pragma unroll
    for (int x = 0; x < OWNERS; x++) l += __uint_as_float(shared_load32(base + SUMS + (x * HEADS + row) * 4));
    if (p->splits > 1) {
        if (h >= p->in.heads_q) return;
        const int64_t rows = p->in.batch * p->in.seq_q * p->in.heads_q,
                      share = w->split * rows + (w->b * p->in.seq_q + w->i) * p->in.heads_q + h;
        ((float *)p->part_m)[share] = m;
        ((float *)p->part_l)[share] = l;
        ((float *)p->part_max_logits)[share] = largest;
        return;
    }
    const int empty = l == 0;
    const float sink = p->in.sink && h < p->in.heads_q ? ((const float *)p->in.sink)[h * p->in.sink_head] : -INF;
    const float inverse = 1 / (l + exp2_fast(sink * LOG2E - m));
    shared_store32(base + FACTOR + row * 4, __float_as_uint(empty ? 0 : inverse));
    if (h >= p->in.heads_q) return;
    store_lse(&p->lse, head_at(&p->lse, w, h), lse_in_form(p->in.flags, empty ? -INF : (m + log2f(l)) * LN2));
    store_lse(&p->max_logits, head_at(&p->max_logits, w, h), largest * LN2);
}

/* Unnormalised O of a split. */
static __device__ __forceinline__ void store_partial(const struct kp_mla_fwd *p, const struct work *w,
                                                     const float rO[M_ALL][N_O][4]) {
    const int lane = lane_of();
    const int64_t rows = p->in.batch * p->in.seq_q * p->in.heads_q,
                  row0 = w->split * rows + (w->b * p->in.seq_q + w->i) * p->in.heads_q;
#pragma unroll
    for (int x = 0; x < M_ALL; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t h = w->h0 + 16 * x + 8 * r + (lane >> 2);
            if (h >= p->in.heads_q) continue;
            float *o = (float *)p->part_o + (row0 + h) * DIM_V + warp_of() * COLS + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < N_O; n++) *(float2 *)(o + 8 * n) = make_float2(rO[x][n][2 * r], rO[x][n][2 * r + 1]);
        }
}

/* Scaled, rounded O through stage 0 to the tensor, 16 bytes a lane where it allows that. */
static __device__ __forceinline__ void store_out(const struct kp_mla_fwd *p, const struct work *w, uint32_t base,
                                                 const float rO[M_ALL][N_O][4]) {
    const int lane = lane_of(), c0 = warp_of() * (COLS / 8);
#pragma unroll
    for (int x = 0; x < M_ALL; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 16 * x + 8 * r + (lane >> 2);
            const float factor = __uint_as_float(shared_load32(base + FACTOR + row * 4));
#pragma unroll
            for (int n = 0; n < N_O; n++) {
                /* factor 0: an empty row, or one whose sink takes all */
                const float y0 = factor == 0 ? 0 : rO[x][n][2 * r] * factor,
                            y1 = factor == 0 ? 0 : rO[x][n][2 * r + 1] * factor;
                shared_store32(base + STAGE + tile_at(2 * DIM_V, row, c0 + n) + 4 * (lane & 3), pack16(TYPE, y0, y1));
            }
        }
    __syncthreads();
#pragma unroll 4
    for (int x = (int)threadIdx.x; x < HEADS * (DIM_V / 8); x += THREADS) {
        const int row = x / (DIM_V / 8), c = x % (DIM_V / 8);
        if (w->h0 + row >= p->in.heads_q) break;
        const uint4 y = shared_load128(base + STAGE + tile_at(2 * DIM_V, row, c));
        uint16_t *to = (uint16_t *)p->out.data + head_at(&p->out, w, w->h0 + row) + 8 * c;
        if (p->out.chunk == 16) {
            *(uint4 *)to = y;
            continue;
        }
        const uint32_t word[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 8; e++) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
    }
}

/* ------------------------------------------------------------------ one work tile ------------------ */

static __device__ __forceinline__ void find_work(const struct kp_mla_fwd *p, int64_t index, struct work *w) {
    const int64_t row = index / p->blocks, query = row / p->splits;
    w->h0 = index % p->blocks * HEADS;
    w->split = (int)(row % p->splits);
    w->i = query % p->in.seq_q;
    w->b = query / p->in.seq_q;
}

static __device__ __forceinline__ void run_tile(const struct kp_mla_fwd *p, struct work *w) {
    const uint32_t base = shared_base();
    const struct gather g = gather_of(&p->in, w->b, w->i);
    const int tiles = (g.slots.n + KEYS - 1) / KEYS, share = (tiles + p->splits - 1) / p->splits;
    const int first = w->split * share, n_tiles = max(min(tiles - first, share), 0);
    float rO[M_ALL][N_O][4];
    struct statistics st = {{-INF, -INF}, {0, 0}, {-INF, -INF}};
#pragma unroll
    for (int x = 0; x < M_ALL; x++)
#pragma unroll
        for (int n = 0; n < N_O; n++) rO[x][n][0] = rO[x][n][1] = rO[x][n][2] = rO[x][n][3] = 0;

    if (n_tiles > 0) {
        uint32_t rQ[M_TILES][HELD > 0 ? HELD : 1][4];
        int rows[GATHERED];
        find_rows(&g, first * KEYS, KEYS, THREADS, (int)threadIdx.x, rows);
        load_queries(&p->in, w->b, w->i, w->h0, base, base + STAGE + TILE);
        gather_rows(&p->in, &g, base + STAGE, base + VALID, DIM, KEYS, THREADS, (int)threadIdx.x, rows);
        copy_commit();
        find_rows(&g, (first + 1) * KEYS, KEYS, THREADS, (int)threadIdx.x, rows);
        copy_wait(0);
        __syncthreads();
        hold_queries(rQ, base + STAGE + TILE);
#pragma unroll 1
        for (int n = 0; n < n_tiles; n++) {
            const int stage = n & 1;
            float rT[OWN][4];
            copy_wait(0);
            __syncthreads();
            if (n + 1 < n_tiles) {
                const int thread = thread_of();
                gather_rows(&p->in, &g, base + STAGE + (1 - stage) * TILE, base + VALID + (1 - stage) * KEYS, DIM, KEYS,
                            THREADS, thread, rows);
                find_rows(&g, (first + n + 2) * KEYS, KEYS, THREADS, thread, rows);
            }
            copy_commit();
            {
                float rS[M_TILES][N_S][4];
                score_tile(rS, rQ, base, base + STAGE + stage * TILE);
                exchange_sums(rT, rS, base + EXCHANGE_AT);
            }
            softmax_tile(p, base, rT, base + VALID + stage * KEYS, &st, rO);
            add_pv(base, base + STAGE + stage * TILE, rO);
        }
    }
    {
        const int lane = lane_of(), row = own_head_of() + (lane >> 2), owner = own_key_of() / (8 * OWN);
        store_largest(base, &st);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float l = quad_sum(st.l[r]);
            if ((lane & 3) != 0) continue;
            shared_store32(base + SUMS + (owner * HEADS + row + 8 * r) * 4, __float_as_uint(l));
            if (owner == 0) shared_store32(base + M_AT + (row + 8 * r) * 4, __float_as_uint(st.m[r]));
        }
    }
    __syncthreads();
    finish_statistics(p, w, base);
    if (p->splits > 1) {
        store_partial(p, w, rO);
        return;
    }
    __syncthreads();
    store_out(p, w, base, rO);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_mla_fwd p) {
    for (int64_t index = blockIdx.x; index < p.work_tiles; index += gridDim.x) {
        struct work w;
        find_work(&p, index, &w);
        run_tile(&p, &w);
        __syncthreads(); /* the next tile's copies overwrite the output tile and the statistics */
    }
}
