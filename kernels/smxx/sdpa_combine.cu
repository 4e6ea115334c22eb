/* SPDX-License-Identifier: MIT
 * Merges the key splits of a dense forward, every chip. A warp owns an output row or, of many splits, the CTA does and
 * its warps share them. Without .dtype the variant reads f32 and writes any type of 16 or 32 bits; with KP_F64 all of
 * it is f64.
 *
 *   m = max_s m_s      w_s = exp(m_s - m)      L = sum_s w_s l_s
 *   out = sum_s w_s O_s / (L + exp(sink - m))          lse = m + ln L          max_logits = m
 *
 * Input: O_s (not normalised), m_s (natural units) and l_s of every split and row, written by
 * kernels/sm80/sdpa_fwd.cu or sdpa_fwd_wide.cu. A split without visible keys has l_s = 0 and no O_s. Sums run in the
 * order of the splits or in a fixed tree: bit-equal every time. Lane t holds the weights of splits t, t + 32, ... and
 * adds up the columns of piece t (16 bytes: 4 f32, 2 f64) of a row, then of piece t + 32, ... */
#include "kernels/device/grid.h"
#include "kernels/device/number_wide.h"
#include "kernels/device/sequence.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, HELD = KP_SDPA_MAX_SPLITS / 32, LOADS = 32 / WARPS;
static_assert(WARPS == KP_SDPA_MERGE_WARPS && KP_SDPA_MERGE_ALONE <= LOADS, "the host counts CTAs by it");
constexpr num LEAST = WIDE_F64 ? (num)-700 : (num)-87; /* smallest weight is no 0: times an infinity it must stay one */

static __device__ __forceinline__ num warp_max(num x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = larger(x, shuffle_xor(x, d));
    return x;
}
static __device__ __forceinline__ num warp_sum(num x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
}

/* A variant with .early starts while the forward before it still runs: here it waits for the forward's results. */
static __device__ __forceinline__ void await_grid(void) {
#ifdef CFG_EARLY
    grid_wait();
#endif
}

/* Batch entry, head and query of a row. Keys are split where a device has room for more tiles of rows than there are
 * (src/cuda/dense), so that 32 bits count the rows. */
struct place {
    int b, h, i;
};
static __device__ __forceinline__ struct place place_of(const struct kp_sdpa_fwd *p, uint32_t row) {
    const uint32_t head = row / (uint32_t)p->in.seq_q, b = head / (uint32_t)p->in.heads_q;
    struct place found;
    found.i = (int)(row - head * (uint32_t)p->in.seq_q), found.h = (int)(head - b * (uint32_t)p->in.heads_q);
    found.b = (int)b;
    return found;
}

/* Element index of the row's first column. */
static __device__ __forceinline__ int64_t element_of(const struct kp_view *v, const struct place *place,
                                                     const struct sequence *s) {
    return place->b * v->batch + place->h * v->head + (s->q0 + place->i) * v->row;
}

static __device__ __forceinline__ void store_columns(const struct kp_sdpa_fwd *p, int64_t first, int c,
                                                     const num x[PIECE]) {
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if (c + e >= p->in.dim_v) continue;
        if (WIDE_F64 || p->out.dtype == KP_F32)
            ((num *)p->out.data)[first + c + e] = x[e];
        else
            ((uint16_t *)p->out.data)[first + c + e] = (uint16_t)pack16(p->out.dtype, (float)x[e], 0);
    }
}

/* A lane's columns of the shares part, part + parts, ... among 32 splits, whose sums are l; zeroes for an empty one. */
static __device__ __forceinline__ void load_shares(const struct kp_sdpa_fwd *p, int64_t row, int64_t rows, int c,
                                                   int part, int parts, int x, num l, struct piece share[LOADS]) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int y = part + parts * i;
        const num sum = shuffle(l, y);
        share[i] = (struct piece){{0}};
        if (sum == 0 || c >= p->part_row) continue;
        share[i] = load_piece_global((const num *)p->part_o + ((32 * x + y) * rows + row) * p->part_row + c);
    }
}

/* One row by the CTA's warps (`part` of `parts`), or by each warp one. Divergent warps must not come here. */
static __device__ __forceinline__ void merge_row(const struct kp_sdpa_fwd *p, int64_t row, int64_t rows, int part,
                                                 int parts) {
    __shared__ struct piece shares[WARPS][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int there = row < rows;
    const struct place row_place = place_of(p, there ? (uint32_t)row : 0);
    const struct sequence s = sequence_of(&p->in, row_place.b);
    const int exists = there && row_place.i < s.rows, inside = exists && row_place.i < s.sq;
    const num sink = p->in.sink && inside ? ((const float *)p->in.sink)[row_place.h * p->in.sink_head] : -INF;
    num m[HELD], l[HELD], largest = -INF, sum = 0;
    struct piece share[LOADS];
    await_grid();
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        const int split = lane + 32 * x, given = inside && split < p->splits;
        m[x] = given ? ((const num *)p->part_m)[split * rows + row] : -INF;
        l[x] = given ? ((const num *)p->part_l)[split * rows + row] : 0;
        largest = larger(largest, m[x]);
    }
    load_shares(p, row, rows, PIECE * lane, part, parts, 0, l[0], share); /* under way while the weights are formed */
    largest = warp_max(largest);
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        m[x] = l[x] == 0 ? 0 : exp_num(larger(m[x] - largest, LEAST)); /* from here on the weight */
        sum += m[x] * l[x];
    }
    sum = warp_sum(sum);

    const int empty = sum == 0;
    const num inverse = 1 / (sum + exp_num(sink - largest));
    const int64_t out = element_of(&p->out, &row_place, &s);
#pragma unroll 1
    for (int c0 = 0; c0 < p->part_row; c0 += 32 * PIECE) {
        const int c = c0 + PIECE * lane;
        num o[PIECE] = {0};
#pragma unroll
        for (int x = 0; x < HELD; x++) {
            if (32 * x >= p->splits) break;
            if (c0 > 0 || x > 0) load_shares(p, row, rows, c, part, parts, x, l[x], share);
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const num weight = shuffle(m[x], part + parts * i);
                if (weight == 0) continue; /* a split without keys, and not an infinity times a tiny weight */
#pragma unroll
                for (int e = 0; e < PIECE; e++) o[e] += weight * share[i].x[e];
            }
        }
        if (parts > 1) {
            if (c0 > 0) __syncthreads();
#pragma unroll
            for (int e = 0; e < PIECE; e++) shares[warp][lane].x[e] = o[e];
            __syncthreads();
            if (part > 0) continue;
#pragma unroll
            for (int y = 1; y < WARPS; y++)
#pragma unroll
                for (int e = 0; e < PIECE; e++) o[e] += shares[y][lane].x[e];
        }
#pragma unroll
        for (int e = 0; e < PIECE; e++) o[e] = empty ? 0 : o[e] * inverse;
        if (exists && c < p->in.dim_v) store_columns(p, out, c, o);
    }
    if (lane != 0 || part != 0 || !exists) return;
    const num lse = outer_lse_num(p->in.flags, empty ? -INF : largest + log_num(sum), sink);
    store_lse_num(&p->lse, element_of(&p->lse, &row_place, &s), lse);
    store_lse_num(&p->lse_rounded, element_of(&p->lse_rounded, &row_place, &s), lse);
    store_lse_num(&p->max_logits, element_of(&p->max_logits, &row_place, &s), largest_score_num(largest, sum, empty));
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_fwd p) {
    const int64_t rows = (int64_t)p.in.batch * p.in.heads_q * p.in.seq_q;
    const int warp = (int)threadIdx.x >> 5, parts = p.splits > KP_SDPA_MERGE_ALONE ? WARPS : 1;
    const int per_cta = WARPS / parts;
    for (int64_t first = (int64_t)blockIdx.x * per_cta; first < rows; first += (int64_t)gridDim.x * per_cta) {
        merge_row(&p, first + warp / parts, rows, warp % parts, parts);
        if (parts > 1) __syncthreads(); /* the shares have been read */
    }
}
