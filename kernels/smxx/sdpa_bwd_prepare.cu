/* SPDX-License-Identifier: MIT
 * Dense backward, before the main kernel: statistics of every query row, and zeroes where dQ is summed and where turns
 * are counted. 16-bit types, every chip. One CTA owns a tile of rows of a head; a group of lanes owns a row. f16:
 * bounds of dS, too, for which more tiles stand for rows of V.
 *
 *   D = sum_c out dout     g = 1 / (1 + exp(sink - lse)), 1 without a sink or if lse includes it
 *   shift = g D - dlse     dsink_row = -p_sink D (+ p_sink dlse if lse includes the sink)
 *
 * With P' = exp(s - lse): P = g P' and dS = P' (g dP - shift). Main kernels without g (stat_log2) get a lse that
 * includes the sink, so that P' is P and shift is D: they have no dlse where lse excludes the sink. An empty row
 * (lse = +inf or -inf) gets lse = +inf, shift = 0 and is not read further; a row past its sequence gets PAST_END. A row
 * whose lse is finite and whose q is not has seen no key: lse is its sink's, and the row counts as empty, too. With
 * softcap it may have seen keys: the last bit of its shift is 1, and 0 of all others (sdpa_bwd_infinite.h). Shared
 * memory: none, or 64 bytes. */
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/sdpa_bwd_rows.h"

constexpr int THREADS = CFG_THREADS, SCALED = CFG_SCALED;
constexpr int TYPE = SCALED ? KP_F16 : KP_BF16; /* of q, v, out and dout */
constexpr int AT_ONCE = 2; /* rows of a group of lanes whose loads are under way together */

/* Largest numbers of a tile: ||dout row||^2 (or of V) and |shift|. */
struct most {
    float squares, shift;
};

/* Sum of the squares of 8 elements. */
static __device__ __forceinline__ float squares_of(uint4 a) {
    const uint32_t word[4] = {a.x, a.y, a.z, a.w};
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float lo = unpack16(TYPE, word[e] & 0xffff), hi = unpack16(TYPE, word[e] >> 16);
        sum += lo * lo + hi * hi;
    }
    return sum;
}

/* Sum of products of 8 elements of two rows; `squares`: of v, added up. */
static __device__ __forceinline__ float dot_words(uint4 u, uint4 v, float *squares) {
    const uint32_t p[4] = {u.x, u.y, u.z, u.w}, q[4] = {v.x, v.y, v.z, v.w};
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum += unpack16(TYPE, p[e] & 0xffff) * unpack16(TYPE, q[e] & 0xffff) +
               unpack16(TYPE, p[e] >> 16) * unpack16(TYPE, q[e] >> 16);
    if (SCALED) *squares += squares_of(v);
    return sum;
}
/* The same of elements in memory, as far as there are `n`. */
static __device__ __forceinline__ float dot_chunk(const struct kp_view *x, const struct kp_view *y, int64_t x_at,
                                                  int64_t y_at, int n, float *squares) {
    const uint16_t *a = (const uint16_t *)x->data + x_at, *b = (const uint16_t *)y->data + y_at;
    float sum = 0;
    if (x->chunk == 16 && y->chunk == 16 && n >= 8)
        return dot_words(*(const uint4 *)a, *(const uint4 *)b, squares);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (e < n) sum += unpack16(TYPE, a[e]) * unpack16(TYPE, b[e]);
        if (SCALED && e < n) *squares += unpack16(TYPE, b[e]) * unpack16(TYPE, b[e]);
    }
    return sum;
}

static __device__ __forceinline__ float row_number(const struct kp_view *v, int b, int h, int64_t i) {
    return v->data ? ((const float *)v->data)[b * v->batch + h * v->head + i * v->row] : 0;
}

static __device__ __forceinline__ int64_t row_place(const struct kp_view *v, int b, int h, int64_t row) {
    return b * v->batch + h * v->head + row * v->row;
}

/* log(e^x + e^y), x finite or NaN. y of +inf: a number that makes every P 0, though the row is no empty one: 0
 * times a NaN of V is NaN. */
static __device__ __forceinline__ float log_sum(float x, float y) {
    const float sum = fmaxf(x, y) + log1pf(expf(-fabsf(x - y)));
    return sum == INF ? PAST_END / 16 : sum;
}

/* Of a row from that element on: are the lane's elements finite? */
static __device__ __forceinline__ int row_is_finite(const struct kp_view *v, int64_t first, int width, int lanes,
                                                    int c) {
    const uint16_t *row = (const uint16_t *)v->data + first;
    uint32_t bad = 0;
#pragma unroll 1
    for (int x = 8 * c; x < width; x += 8 * lanes) {
        if (v->chunk == 16 && x + 8 <= width) {
            const uint4 a = *(const uint4 *)(row + x);
            bad |= not_finite16(TYPE, a.x) | not_finite16(TYPE, a.y) | not_finite16(TYPE, a.z) |
                   not_finite16(TYPE, a.w);
        } else
#pragma unroll 1
            for (int y = x; y < min(x + 8, width); y++) bad |= not_finite16(TYPE, row[y]);
    }
    return !bad;
}

/* What is read of a row at once, whether it turns out to be empty or not: lse, and 8 elements of out and dout a lane
 * where they are 16 bytes in a row. */
struct first_words {
    float lse;
    uint4 out, dout;
};
static __device__ __forceinline__ struct first_words
first_words_of(const struct kp_sdpa_bwd *p, const struct sequence *s, int b, int h, int i, int c, int whole) {
    const int inside = i < s->sq;
    const int64_t row = s->q0 + i;
    struct first_words w;
    w.lse = inside ? row_number(&p->lse, b, h, row) : INF;
    w.out = w.dout = make_uint4(0, 0, 0, 0);
    if (inside && whole) {
        w.out = *(const uint4 *)((const uint16_t *)p->out.data + row_place(&p->out, b, h, row) + 8 * c);
        w.dout = *(const uint4 *)((const uint16_t *)p->dout.data + row_place(&p->dout, b, h, row) + 8 * c);
    }
    return w;
}

/* `lanes` lanes side by side, lane `c` of them; one of them stores. */
static __device__ __forceinline__ void prepare_row(const struct kp_sdpa_bwd *p, const struct sequence *s, int b, int h,
                                                   int i, int64_t stat_row, int lanes, int c, int stores, int whole,
                                                   const struct first_words *first, struct most *most) {
    const int inside = i < s->sq;
    const int64_t row = s->q0 + i;
    float given = first->lse;
    const int alive = inside && fabsf(given) != INF;
    const int64_t q_row = row_place(&p->in.q, b, h, row);
    int sees = alive, marked = 0;
    if (p->in.softcap > 0) {
        marked = alive && given == given && !row_is_finite(&p->in.q, q_row, p->in.dim_qk, lanes, c);
        for (int d = 1; d < lanes; d *= 2) marked |= __shfl_xor_sync(~0u, marked, d);
    } else if (p->in.flags & KP_LSE_WITH_SINK) {
        sees = alive && (given != given || row_is_finite(&p->in.q, q_row, p->in.dim_qk, lanes, c));
        for (int d = 1; d < lanes; d *= 2) sees &= __shfl_xor_sync(~0u, sees, d);
    }
    float dot = 0, squares = 0;
    if (alive && whole) dot = dot_words(first->out, first->dout, &squares);
    if (alive)
        for (int x = 8 * c + (whole ? 8 * lanes : 0); x < p->in.dim_v; x += 8 * lanes)
            dot += dot_chunk(&p->out, &p->dout, row_place(&p->out, b, h, row) + x, row_place(&p->dout, b, h, row) + x,
                             p->in.dim_v - x, &squares);
    for (int d = 1; d < lanes; d *= 2) dot += __shfl_xor_sync(~0u, dot, d);
    if (SCALED) {
        for (int d = 1; d < lanes; d *= 2) squares += __shfl_xor_sync(~0u, squares, d);
        most->squares = fmaxf(most->squares, if_finite(squares));
    }
    if (!stores) return;

    const int base2 = (p->in.flags & KP_LSE_BASE_2) != 0, includes = (p->in.flags & KP_LSE_WITH_SINK) != 0;
    const float sink = p->in.sink ? ((const float *)p->in.sink)[h * p->in.sink_head] : -INF;
    const float natural = base2 ? given * LN2 : given;
    const float dlse = alive ? row_number(&p->dlse, b, h, row) * (base2 ? LOG2E : 1) : 0;
    const int excludes = p->in.sink && !includes;
    const float share = !excludes || p->stat_log2 ? 1 : 1 / (1 + expf(sink - natural));
    const float p_sink = includes ? expf(sink - natural) : 1 / (1 + expf(natural - sink));
    if (excludes && p->stat_log2) given = log_sum(natural, sink) * (base2 ? LOG2E : 1);
    const float lse = p->stat_log2 ? (base2 ? given : given * LOG2E) : natural;
    ((float *)p->stat_lse)[stat_row] = !inside ? PAST_END : sees ? lse : INF;
    const float shift = sees ? share * dot - dlse : 0;
    uint32_t shift_bits = __float_as_uint(shift);
    if (p->in.softcap > 0) shift_bits = (shift_bits & ~1u) | (uint32_t)marked;
    ((uint32_t *)p->stat_shift)[stat_row] = shift_bits;
    if (SCALED) most->shift = fmaxf(most->shift, if_finite(fabsf(shift)));
    if (p->stat_g) ((float *)p->stat_g)[stat_row] = sees ? share : 1;
    /* a sink of -inf is none: it has no share in what is not finite */
    const int has_sink = alive && p->in.sink && !(sink == -INF && given == given);
    if (p->dsink_row) ((float *)p->dsink_row)[stat_row] = has_sink ? p_sink * ((includes ? dlse : 0) - dot) : 0;
}

/* All threads: the largest numbers of the CTA. */
static __device__ __forceinline__ struct most cta_most(struct most x, struct most *share) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        x.squares = fmaxf(x.squares, __shfl_xor_sync(~0u, x.squares, d));
        x.shift = fmaxf(x.shift, __shfl_xor_sync(~0u, x.shift, d));
    }
    __syncthreads(); /* the last ones have been read */
    if (threadIdx.x % 32 == 0) share[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++)
        x.squares = fmaxf(x.squares, share[w].squares), x.shift = fmaxf(x.shift, share[w].shift);
    return x;
}

/* Tile x of the keys: its longest row of V. Loads of two rows a lane are under way at once where 16 bytes of each lane
 * are a row. */
static __device__ __forceinline__ void bound_keys(const struct kp_sdpa_bwd *p, int64_t x, int lanes,
                                                  struct most *share) {
    const struct kp_sdpa_bwd_scaled *scaled = scaled_of(p);
    const struct kp_view *v = &p->in.v;
    const int j0 = (int)(x % scaled->bound_tiles) * p->rows, lane = (int)threadIdx.x % 32;
    const int h = (int)(x / scaled->bound_tiles % p->in.heads_k), b = (int)(x / scaled->bound_tiles / p->in.heads_k);
    const struct sequence s = sequence_of(&p->in, b);
    const int whole = v->chunk == 16 && p->in.dim_v == 8 * lanes, step = THREADS / lanes, c0 = 8 * (lane % lanes);
    if (j0 >= s.sk) return; /* nobody asks */
    struct most most = {0, 0};
    const int64_t head = b * v->batch + h * v->head;
    for (int r0 = (int)threadIdx.x / 32 * (32 / lanes); r0 < p->rows; r0 += 2 * step) {
        float squares[2] = {0, 0};
        int64_t element[2];
#pragma unroll
        for (int u = 0; u < 2; u++)
            element[u] = head + (s.k0 + min(j0 + r0 + u * step + lane / lanes, s.sk - 1)) * v->row;
        if (whole) {
            uint4 row[2];
#pragma unroll
            for (int u = 0; u < 2; u++) row[u] = *(const uint4 *)((const uint16_t *)v->data + element[u] + c0);
#pragma unroll
            for (int u = 0; u < 2; u++) squares[u] = squares_of(row[u]);
        } else {
            for (int c = c0; c < p->in.dim_v; c += 8 * lanes)
#pragma unroll
                for (int u = 0; u < 2; u++)
                    dot_chunk(v, v, element[u] + c, element[u] + c, p->in.dim_v - c, &squares[u]);
        }
#pragma unroll
        for (int u = 0; u < 2; u++) {
            for (int d = 1; d < lanes; d *= 2) squares[u] += __shfl_xor_sync(~0u, squares[u], d);
            most.squares = fmaxf(most.squares, if_finite(squares[u]));
        }
    }
    most = cta_most(most, share);
    if (threadIdx.x == 0) ((float *)scaled->key_bounds)[x] = most.squares;
}

/* A fourth CTA of an SM would have spills. */
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    CFG(const __grid_constant__ struct sdpa_bwd_parameters<SCALED> all) {
    const struct kp_sdpa_bwd &p = all.bwd;
    const int64_t tiles = (int64_t)p.in.batch * p.in.heads_q * p.row_tiles;
    int lanes = 1;
    while (lanes < 32 && 8 * lanes < p.in.dim_v) lanes *= 2;
    __shared__ struct most share[SCALED ? THREADS / 32 : 1];
    if constexpr (SCALED) {
        const int64_t key_tiles = (int64_t)p.in.batch * p.in.heads_k * scaled_of(&p)->bound_tiles;
        for (int64_t x = (int64_t)blockIdx.x - tiles; x < key_tiles; x += gridDim.x)
            if (x >= 0) bound_keys(&p, x, lanes, share);
    }
    int32_t *turns = (int32_t *)p.turns;     /* of tiles, then the ticket */
    const int log2_rows = __ffs(p.rows) - 1; /* a power of two */
    if (turns && blockIdx.x == 0 && threadIdx.x == 0) turns[p.in.heads_q * p.stat_rows >> log2_rows] = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int i0 = (int)(tile % p.row_tiles) * p.rows, h = (int)(tile / p.row_tiles % p.in.heads_q);
        const int b = (int)(tile / p.row_tiles / p.in.heads_q);
        const struct sequence s = sequence_of(&p.in, b);
        struct most most = {0, 0};
        if constexpr (SCALED) { /* of heads that no main CTA comes to */
            const int group = p.in.heads_q / p.in.heads_k;
            if (i0 == 0 && h % group == 0 && threadIdx.x == 0)
                ((float *)scaled_of(&p)->undo)[(int64_t)b * p.in.heads_k + h / group] = 1;
        }
        if (i0 >= s.sq) continue; /* no main CTA comes here */
        const int64_t stat_row = h * p.stat_rows + first_stat_row(&p, &s, b) + i0;
        if (turns && threadIdx.x == 0) turns[stat_row >> log2_rows] = 0;
        if (p.dq_sum) {
            float4 *to = (float4 *)((float *)p.dq_sum + stat_row * p.dim);
            for (int x = (int)threadIdx.x; x < p.rows * p.dim / 4; x += THREADS) to[x] = make_float4(0, 0, 0, 0);
        }
        const int lane = (int)threadIdx.x % 32; /* past the last row it is read again, not stored */
        const int whole = p.out.chunk == 16 && p.dout.chunk == 16 && p.in.dim_v >= 8 * (lane % lanes) + 8;
        for (int r0 = (int)threadIdx.x / 32 * (32 / lanes); r0 < p.rows; r0 += AT_ONCE * THREADS / lanes) {
            struct first_words first[AT_ONCE];
            int r[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                r[u] = min(r0 + u * THREADS / lanes + lane / lanes, p.rows - 1);
                first[u] = first_words_of(&p, &s, b, h, i0 + r[u], lane % lanes, whole);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                prepare_row(&p, &s, b, h, i0 + r[u], stat_row + r[u], lanes, lane % lanes,
                            lane % lanes == 0 && r[u] == r0 + u * THREADS / lanes + lane / lanes, whole, &first[u],
                            &most);
        }
        if constexpr (SCALED) {
            most = cta_most(most, share);
            if (threadIdx.x == 0) ((float2 *)scaled_of(&p)->row_bounds)[tile] = make_float2(most.squares, most.shift);
        }
    }
}
