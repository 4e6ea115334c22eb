/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: from accumulators to results: warps along the keys join, rows are divided by their sums, rounded
 * and written with their lse, or a split's share goes to the workspace. Included once; the rules stand there. */
#ifndef ATTN_SM80_SDPA_FWD_STORE_H
#define ATTN_SM80_SDPA_FWD_STORE_H
#include "kernels/device/largest_score.h"
#include "kernels/sm80/sdpa_fwd_work.h"

static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Warps along the keys: the first one gets the sums of all; the others return 0. The parts lie in the ring, whose tiles
 * all have been read. */
static __device__ __forceinline__ int merge_keys(uint32_t base, struct statistics *st, float rO[M_TILES][N_O][4],
                                                 float unit) {
    constexpr int PART = 16 * 32 * (M_TILES * (N_O + 1)); /* bytes of a warp: 16 of each lane side by side */
    static_assert((KEY_WARPS - 1) * PART <= SLOTS * SLOT, "the ring holds the parts");
    const int part = warp_key_of();
    uint32_t address = base + RING + (part - 1) * PART + 16 * lane_of();
    __syncthreads();
    if (part > 0) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++) {
            shared_store128(address, make_uint4(__float_as_uint(st->m[x][0]), __float_as_uint(st->m[x][1]),
                                                __float_as_uint(st->l[x][0]), __float_as_uint(st->l[x][1])));
            address += 512;
#pragma unroll
            for (int n = 0; n < N_O; n++, address += 512)
                shared_store128(address, make_uint4(__float_as_uint(rO[x][n][0]), __float_as_uint(rO[x][n][1]),
                                                    __float_as_uint(rO[x][n][2]), __float_as_uint(rO[x][n][3])));
        }
    }
    __syncthreads();
    if (part > 0) return 0;
    address = base + RING + 16 * lane_of();
#pragma unroll 1
    for (int y = 1; y < KEY_WARPS; y++) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++) {
            const uint4 s = shared_load128(address);
            const float m[2] = {__uint_as_float(s.x), __uint_as_float(s.y)},
                        l[2] = {__uint_as_float(s.z), __uint_as_float(s.w)};
            float mine[2], other[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float m_new = fmaxf(st->m[x][r], m[r]);
                mine[r] =
                    exp2_fast(fmaxf((st->m[x][r] - m_new) * unit, LEAST)); /* of two empty parts: 2^LEAST times 0 */
                other[r] = exp2_fast(fmaxf((m[r] - m_new) * unit, LEAST));
                st->m[x][r] = m_new;
                st->l[x][r] = st->l[x][r] * mine[r] + l[r] * other[r];
            }
            address += 512;
#pragma unroll
            for (int n = 0; n < N_O; n++, address += 512) {
                const uint4 o = shared_load128(address);
                rO[x][n][0] = rO[x][n][0] * mine[0] + __uint_as_float(o.x) * other[0];
                rO[x][n][1] = rO[x][n][1] * mine[0] + __uint_as_float(o.y) * other[0];
                rO[x][n][2] = rO[x][n][2] * mine[1] + __uint_as_float(o.z) * other[1];
                rO[x][n][3] = rO[x][n][3] * mine[1] + __uint_as_float(o.w) * other[1];
            }
        }
    }
    return 1;
}

/* Which of its rows in the workspace a split's share is. */
static __device__ __forceinline__ int64_t share_at(const struct kp_sdpa_fwd *p, const struct work *w, int row,
                                                   int64_t rows) {
    return w->split * rows + ((int64_t)w->b * p->in.heads_q + head_of(p, w, row)) * p->in.seq_q + query_of(p, row);
}

/* A split's share of a row: unnormalised O, the maximum in natural units, the sum. An empty share writes no O. */
static __device__ __forceinline__ void store_partial(const struct kp_sdpa_fwd *p, const struct work *w, int row,
                                                     float natural, float l, const float rO[N_O][4], int r) {
    const int t = lane_of() & 3, col0 = warp_col_of() * COLS + 2 * t;
    const int64_t rows = (int64_t)p->in.batch * p->in.heads_q * p->in.seq_q;
    const int64_t share = share_at(p, w, row, rows);
    if (row >= w->n_rows) return;
    if (t == 0 && warp_col_of() == 0) ((float *)p->part_m)[share] = natural, ((float *)p->part_l)[share] = l;
    if (l == 0) return;
    float *o = (float *)p->part_o + share * p->part_row;
#pragma unroll
    for (int n = 0; n < N_O; n++)
        if (col0 + 8 * n < p->part_row) *(float2 *)(o + col0 + 8 * n) = make_float2(rO[n][2 * r], rO[n][2 * r + 1]);
}
static __device__ __forceinline__ void store_partials(const struct kp_sdpa_fwd *p, const struct work *w,
                                                      const struct statistics *st, const float rO[M_TILES][N_O][4],
                                                      float unit) {
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = w->row0 + warp_row_of() * WARP_ROWS + 16 * x + 8 * r + (lane_of() >> 2);
            store_partial(p, w, row, FULL ? st->m[x][r] : st->m[x][r] * unit * LN2, quad_sum(st->l[x][r]), rO[x], r);
        }
}

#ifdef CFG_EARLY
/* Warps along the keys whose sums are a split's share: each joins and stores its part of the columns, so that none does
 * it for all (0.3 us at the end of a CTA). The parts lie in the ring, whose tiles all have been read. */
static __device__ __forceinline__ void merge_partials(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                      const struct statistics *st, const float rO[M_TILES][N_O][4],
                                                      float unit) {
    constexpr int PART = 16 * 32 * (N_O + 1),
                  MINE = N_O / KEY_WARPS; /* bytes of a warp; tiles of 8 columns it stores */
    static_assert(M_TILES == 1 && ROW_WARPS * COL_WARPS == 1 && N_O % KEY_WARPS == 0, "warps differ in keys alone");
    static_assert(KEY_WARPS * PART <= SLOTS * SLOT, "the ring holds the parts");
    const int part = warp_key_of(), t = lane_of() & 3, col0 = part * (8 * MINE) + 2 * t;
    const int64_t rows = (int64_t)p->in.batch * p->in.heads_q * p->in.seq_q;
    const uint32_t parts = base + RING + 16 * lane_of(), own = parts + part * PART;
    float m_new[2] = {-INF, -INF}, m[KEY_WARPS][2], l[KEY_WARPS][2], sum[2] = {0, 0}, o[MINE][4];
    __syncthreads();
    shared_store128(own, make_uint4(__float_as_uint(st->m[0][0]), __float_as_uint(st->m[0][1]),
                                    __float_as_uint(quad_sum(st->l[0][0])), __float_as_uint(quad_sum(st->l[0][1]))));
#pragma unroll
    for (int n = 0; n < N_O; n++)
        shared_store128(own + 512 * (n + 1), make_uint4(__float_as_uint(rO[0][n][0]), __float_as_uint(rO[0][n][1]),
                                                        __float_as_uint(rO[0][n][2]), __float_as_uint(rO[0][n][3])));
    __syncthreads();
#pragma unroll
    for (int y = 0; y < KEY_WARPS; y++) {
        const uint4 s = shared_load128(parts + y * PART);
        m[y][0] = __uint_as_float(s.x), m[y][1] = __uint_as_float(s.y);
        l[y][0] = __uint_as_float(s.z), l[y][1] = __uint_as_float(s.w);
        m_new[0] = fmaxf(m_new[0], m[y][0]), m_new[1] = fmaxf(m_new[1], m[y][1]);
    }
#pragma unroll
    for (int n = 0; n < MINE; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
#pragma unroll
    for (int y = 0; y < KEY_WARPS; y++) {
        float weight[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            weight[r] = exp2_fast(fmaxf((m[y][r] - m_new[r]) * unit, LEAST)); /* of empty parts: 2^LEAST times 0 */
            sum[r] += l[y][r] * weight[r];
        }
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            const uint4 x = shared_load128(parts + y * PART + 512 * (1 + part * MINE + n));
            o[n][0] += __uint_as_float(x.x) * weight[0];
            o[n][1] += __uint_as_float(x.y) * weight[0];
            o[n][2] += __uint_as_float(x.z) * weight[1];
            o[n][3] += __uint_as_float(x.w) * weight[1];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = w->row0 + 8 * r + (lane_of() >> 2);
        if (row >= w->n_rows) continue;
        const int64_t to = share_at(p, w, row, rows);
        if (t == 0 && part == 0)
            ((float *)p->part_m)[to] = FULL ? m_new[r] : m_new[r] * unit * LN2, ((float *)p->part_l)[to] = sum[r];
        if (sum[r] == 0) continue;
        float *q = (float *)p->part_o + to * p->part_row + col0;
#pragma unroll
        for (int n = 0; n < MINE; n++)
            if (col0 + 8 * n < p->part_row) *(float2 *)(q + 8 * n) = make_float2(o[n][2 * r], o[n][2 * r + 1]);
    }
}
#endif

/* Row 0 of the tile's flat rows -> element index of its first column; rows follow at v->row unless heads are packed. */
static __device__ __forceinline__ int64_t row_at(const struct kp_sdpa_fwd *p, const struct work *w,
                                                 const struct kp_view *v, int row) {
    const int i = query_of(p, row);
    return w->b * v->batch + (w->head * p->pack + row - i * p->pack) * v->head + (w->seq.q0 + i) * v->row;
}

/* A lane for each of the warp's rows: the factor that divides it by its sum, negative for a row of zeroes; its lse. */
static __device__ __forceinline__ float finish_row(const struct kp_sdpa_fwd *p, const struct work *w, int row, float m,
                                                   float l, float unit) {
    const int inside = row < w->n_rows, empty = !inside || l == 0;
    const float natural = FULL ? m : m * unit * LN2;
    float sink = -INF, sum = l;
    if (p->in.sink && inside) {
        sink = ((const float *)p->in.sink)[head_of(p, w, row) * p->in.sink_head];
        sum += exp2_fast((sink - natural) * LOG2E);
    }
    if (warp_col_of() == 0 && row < w->seq.rows * p->pack && (p->lse.data || p->lse_rounded.data)) {
        const float lse = outer_lse(p->in.flags, empty ? -INF : natural + log2f(l) * LN2, sink);
        store_lse(&p->lse, row_at(p, w, &p->lse, row), lse);
        store_lse(&p->lse_rounded, row_at(p, w, &p->lse_rounded, row), lse);
    }
    if (p->max_logits.data && warp_col_of() == 0 && row < w->seq.rows * p->pack)
        ((float *)p->max_logits.data)[row_at(p, w, &p->max_logits, row)] = largest_score(natural, l, empty);
    return empty ? -1.f : 1 / sum;
}

/* The warp's rows and columns from shared memory to the tensor, 16 bytes a lane where it allows that. */
static __device__ __forceinline__ void store_rows(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base) {
    constexpr int CHUNKS = COLS / 8, ACROSS = CHUNKS % 32 == 0   ? 32
                                              : CHUNKS % 16 == 0 ? 16
                                              : CHUNKS % 8 == 0  ? 8
                                              : CHUNKS % 4 == 0  ? 4
                                                                 : 2;
    constexpr int DOWN = 32 / ACROSS;
    const int r0 = lane_of() / ACROSS, c0 = warp_col_of() * CHUNKS + lane_of() % ACROSS,
              row0 = warp_row_of() * WARP_ROWS;
    const int n = w->seq.rows * p->pack - w->row0 - row0; /* rows that exist, from the warp's first on */
    static_assert(WARP_ROWS % DOWN == 0, "whole passes");
    if (p->pack == 1 && p->out.chunk == 16 && p->in.dim_v == DIM_V) {
        uint16_t *to = (uint16_t *)p->out.data + row_at(p, w, &p->out, w->row0 + row0 + r0) + 8 * c0;
        const int64_t step = DOWN * p->out.row;
#pragma unroll 8
        for (int r = 0; r < WARP_ROWS; r += DOWN, to += step)
#pragma unroll
            for (int c = 0; c < CHUNKS; c += ACROSS) {
                const uint4 a = shared_load128(base + tile_at(PITCH, row0 + r + r0, c0 + c));
                if (r + r0 < n) *(uint4 *)(to + 8 * c) = a;
            }
        return;
    }
#pragma unroll 1
    for (int r = r0; r < WARP_ROWS; r += DOWN)
#pragma unroll 1
        for (int c = c0; c < (warp_col_of() + 1) * CHUNKS; c += ACROSS) {
            const int left = p->in.dim_v - 8 * c;
            if (r >= n || left <= 0) continue;
            const uint4 a = shared_load128(base + tile_at(PITCH, row0 + r, c));
            uint16_t *to = (uint16_t *)p->out.data + row_at(p, w, &p->out, w->row0 + row0 + r) + 8 * c;
            if (p->out.chunk == 16 && left >= 8) {
                *(uint4 *)to = a;
                continue;
            }
            const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
        }
}

/* f32 results of the warp's rows, from its registers: a quad's pairs of columns are 32 bytes side by side. */
static __device__ __forceinline__ void store_rows_f32(const struct kp_sdpa_fwd *p, const struct work *w,
                                                      const float inverse[M_TILES][2],
                                                      const float rO[M_TILES][N_O][4]) {
    const int row0 = w->row0 + warp_row_of() * WARP_ROWS + (lane_of() >> 2),
              col0 = warp_col_of() * COLS + 2 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row0 + 16 * x + 8 * r;
            const float y = inverse[x][r];
            if (row >= w->seq.rows * p->pack) continue;
            float *to = (float *)p->out.data + row_at(p, w, &p->out, row) + col0;
#pragma unroll
            for (int n = 0; n < N_O; n++) {
                const float a = y < 0 ? 0 : rO[x][n][2 * r] * y, b = y < 0 ? 0 : rO[x][n][2 * r + 1] * y;
                const int left = p->in.dim_v - col0 - 8 * n;
                if (p->out.chunk == 16 && left > 1) {
                    *(float2 *)(to + 8 * n) = make_float2(a, b);
                    continue;
                }
                if (left > 0) to[8 * n] = a;
                if (left > 1) to[8 * n + 1] = b;
            }
        }
}

/* Divide, round and write the warp's rows. Its rows of the Q tile, which no other warp reads any more, take first the
 * rows' statistics (a column warp's own columns of the first row do), then their factors, then the output. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                   const struct statistics *st, const float rO[M_TILES][N_O][4],
                                                   float unit) {
    const int g = lane_of() >> 2, t = lane_of() & 3, row0 = warp_row_of() * WARP_ROWS;
    const uint32_t own = base + row0 * PITCH + warp_col_of() * (2 * COLS);
    static_assert(COL_WARPS == 1 || 2 * COLS >= 8 * WARP_ROWS, "statistics fit the warp's own columns");
    float inverse[M_TILES][2];
    __syncwarp(); /* all lanes have taken their part of Q: with K and V in one ring item no barrier stands in between */
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float l = quad_sum(st->l[x][r]);
            if (t != 0) continue;
            shared_store32(own + 8 * (16 * x + 8 * r + g), __float_as_uint(st->m[x][r]));
            shared_store32(own + 8 * (16 * x + 8 * r + g) + 4, __float_as_uint(l));
        }
    __syncwarp();
    if (lane_of() < WARP_ROWS) {
        const float2 s = shared_load_pair(own + 8 * lane_of());
        const float y = finish_row(p, w, w->row0 + row0 + lane_of(), s.x, s.y, unit);
        shared_store32(own + 8 * lane_of(), __float_as_uint(y));
    }
    __syncwarp();
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) inverse[x][r] = __uint_as_float(shared_load32(own + 8 * (16 * x + 8 * r + g)));
    __syncwarp();
    if (p->out.dtype == KP_F32) {
        store_rows_f32(p, w, inverse, rO);
        return;
    }
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float y = inverse[x][r];
#pragma unroll
            for (int n = 0; n < N_O; n++) {
                const float a = y < 0 ? 0 : rO[x][n][2 * r] * y, b = y < 0 ? 0 : rO[x][n][2 * r + 1] * y;
                shared_store32(base + tile_at(PITCH, row0 + 16 * x + 8 * r + g, warp_col_of() * (COLS / 8) + n) + 4 * t,
                               pack16(TYPE, a, b));
            }
        }
    __syncwarp();
    store_rows(p, w, base);
}
#endif
