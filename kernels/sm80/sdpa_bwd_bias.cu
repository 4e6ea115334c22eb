/* SPDX-License-Identifier: MIT
 * Dense backward: gradients of an additive mask and of ALiBi slopes. f16 and bf16, every chip from sm_80 on, any D and
 * DV to 512. Off the fast path: it forms S and dP once more, so that whoever writes a number owns it and adds in a
 * fixed order.
 *
 *   dmask cell = sum of dS over what the mask's axes of stride 0 stand for      dalibi = sum of dS (j - i - off)
 *
 * Work tiles: first those of dmask (64 queries x 64 keys; an axis that is summed counts as one), then row tiles of
 * every head for dalibi. A CTA adds up dS of all tiles that belong to its work tile in registers, 2 x 2 warps of
 * 32 x 32 cells.
 *
 *   global K, Q (64 columns at a time) --cp.async--> shared --ldmatrix--> mma --> S^T
 *   global V, dO                       --cp.async--> shared --ldmatrix--> mma --> dP^T     dS^T: sdpa_bwd_cells.h
 *
 * Shared memory: two stages of (64 keys | 64 rows) x 128 bytes, which the sums of a work tile replace at the end | lse,
 * shift, share: f32 of 64 rows | what the cells' header calls bad keys, unused. */
#include "kernels/device/mma.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/device/tile_copy.h"

constexpr int TYPE = CFG_DTYPE, TILE = KP_SDPA_BWD_BIAS_TILE, THREADS = 128, PITCH = 128, STAGE = 2 * TILE * PITCH;
constexpr int S_M = 2, S_N = 4;
constexpr int LSE = 2 * STAGE, SHIFT = LSE + 4 * TILE, SHARE = SHIFT + 4 * TILE, BAD_KEYS = SHARE + 4 * TILE,
              BAD_ROWS = BAD_KEYS;
static_assert(BAD_KEYS + 16 == KP_SDPA_BWD_BIAS_SHARED_BYTES, "the host asks for as much");

static __device__ __forceinline__ int thread_of(void) { return (int)threadIdx.x; }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }

#include "kernels/sm80/sdpa_bwd_cells.h"
#include "kernels/sm80/sdpa_bwd_columns.h"

/* A tile of one head. */
struct place {
    struct sequence seq;
    int b, head, off, i0, j0;
    int64_t stat0;
};

/* ------------------------------------------------------------------ products ----------------------- */

static __device__ __forceinline__ void load_columns(uint32_t to, const struct kp_view *v, int64_t element, int exist,
                                                    int width) {
    copy_tile(to, PITCH, TILE, 64, THREADS, thread_of(), (const char *)v->data + 2 * element, 2 * v->row, exist, width,
              v->chunk);
}

/* rX = keys rows^T over `width` columns, 64 at a time. */
static __device__ __forceinline__ void cell_product(const struct place *w, uint32_t base, const struct kp_view *keys,
                                                    const struct kp_view *rows, int head_k, int width, struct part part,
                                                    float rX[S_M][S_N][4]) {
    const int64_t key_at = w->b * keys->batch + head_k * keys->head + (w->seq.k0 + w->j0) * keys->row;
    const int64_t row_at = w->b * rows->batch + w->head * rows->head + (w->seq.q0 + w->i0) * rows->row;
    const int lane = lane_of();
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++) rX[x][n][0] = rX[x][n][1] = rX[x][n][2] = rX[x][n][3] = 0;
#pragma unroll 1
    for (int c = -64, stage = 0; c < width; c += 64, stage ^= 1) {
        if (c + 64 < width) {
            const uint32_t to = base + (stage ^ 1) * STAGE;
            load_columns(to, keys, key_at + c + 64, w->seq.sk - w->j0, width - c - 64);
            load_columns(to + TILE * PITCH, rows, row_at + c + 64, w->seq.sq - w->i0, width - c - 64);
        }
        copy_commit();
        if (c < 0) continue;
        copy_wait(1);
        __syncthreads();
        const uint32_t a_lane = base + stage * STAGE + tile_at(PITCH, part.key + lane % 16, lane / 16);
        const uint32_t b_lane =
            base + stage * STAGE + TILE * PITCH + tile_at(PITCH, part.row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < 4; k++) columns_product(rX, a_lane, b_lane, k);
        __syncthreads();
    }
    copy_wait(0);
}

/* rD = dS of the warp's part of a tile; not for a tile that nobody sees. */
static __device__ __forceinline__ void tile_gradient(const struct kp_sdpa_bwd *p, const struct place *w, uint32_t base,
                                                     struct part part, float rD[S_M][S_N][4]) {
    float rS[S_M][S_N][4];
    const int head_k = w->head / (p->in.heads_q / p->in.heads_k);
    __syncthreads(); /* the statistics of the tile before have been read */
    if (thread_of() < TILE) {
        const int i = w->i0 + thread_of();
        const int64_t stat_row = w->head * p->stat_rows + w->stat0 + i;
        const float lse = i < w->seq.sq ? ((const float *)p->stat_lse)[stat_row] : PAST_END,
                    shift = i < w->seq.sq ? ((const float *)p->stat_shift)[stat_row] : 0,
                    share = i < w->seq.sq ? ((const float *)p->stat_g)[stat_row] : 0;
        shared_store32(base + LSE + 4 * thread_of(), __float_as_uint(lse));
        shared_store32(base + SHIFT + 4 * thread_of(), __float_as_uint(shift));
        shared_store32(base + SHARE + 4 * thread_of(), __float_as_uint(share));
    }
    __syncthreads();
    cell_product(w, base, &p->in.k, &p->in.q, head_k, p->in.dim_qk, part, rS);
    cell_product(w, base, &p->in.v, &p->dout, head_k, p->in.dim_v, part, rD);
    part.j += w->j0, part.i += w->i0;
    const struct bias bias = bias_of(&p->in, w->b, w->head);
    full_cells<0>(&p->in, base, part, w->off, w->seq.sk, 0, &bias, 1, rS, rD);
}

static __device__ __forceinline__ int any_visible(const struct kp_sdpa_bwd *p, const struct place *w) {
    const int at_min = w->i0 + w->off, at_max = min(w->i0 + TILE, w->seq.sq) - 1 + w->off;
    return p->in.window_right >= -p->in.window_left && w->i0 < w->seq.sq && w->j0 < w->seq.sk &&
           w->j0 <= at_max + p->in.window_right && min(w->j0 + TILE, w->seq.sk) - 1 >= at_min - p->in.window_left;
}

static __device__ __forceinline__ void enter_sequence(const struct kp_sdpa_bwd *p, struct place *w, int b) {
    w->b = b;
    w->seq = sequence_of(&p->in, b);
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->stat0 = first_stat_row(p, &w->seq, b);
}

static __device__ __forceinline__ struct part part_of_warp(void) {
    struct part x;
    x.key = x.j = warp_of() % 2 * 32, x.row = x.i = warp_of() / 2 * 32;
    return x;
}

/* ------------------------------------------------------------------ dmask -------------------------- */

static __device__ __forceinline__ uint32_t cell_at(int key, int row) {
    return (uint32_t)((row * (TILE + 1) + key) * 4);
}

static __device__ __forceinline__ float cell_sum(uint32_t base, int key0, int key1, int row0, int row1) {
    float sum = 0;
    for (int r = row0; r < row1; r++)
        for (int k = key0; k < key1; k++) sum += __uint_as_float(shared_load32(base + cell_at(k, r)));
    return sum;
}

static __device__ __forceinline__ void run_mask_tile(const struct kp_sdpa_bwd *p, int64_t index, uint32_t base) {
    const struct kp_view *v = &p->dmask;
    const int sum_b = v->batch == 0, sum_h = v->head == 0, sum_i = v->row == 0, sum_j = v->column == 0;
    const int n_i = sum_i ? 1 : (p->in.seq_q + TILE - 1) / TILE, n_j = sum_j ? 1 : (p->in.seq_k + TILE - 1) / TILE;
    const int tj = (int)(index % n_j), ti = (int)(index / n_j % n_i);
    const int64_t rest = index / n_j / n_i;
    const int th = sum_h ? 0 : (int)(rest % p->in.heads_q), tb = sum_b ? 0 : (int)(sum_h ? rest : rest / p->in.heads_q);
    const struct part part = part_of_warp();
    float sum[S_M][S_N][4];
    struct place w;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++) sum[x][n][0] = sum[x][n][1] = sum[x][n][2] = sum[x][n][3] = 0;
#pragma unroll 1
    for (int b = tb; b < (sum_b ? p->in.batch : tb + 1); b++) {
        enter_sequence(p, &w, b);
#pragma unroll 1
        for (w.head = th; w.head < (sum_h ? p->in.heads_q : th + 1); w.head++)
#pragma unroll 1
            for (w.i0 = ti * TILE; w.i0 < (sum_i ? w.seq.sq : ti * TILE + 1); w.i0 += TILE)
#pragma unroll 1
                for (w.j0 = tj * TILE; w.j0 < (sum_j ? w.seq.sk : tj * TILE + 1); w.j0 += TILE) {
                    float rD[S_M][S_N][4];
                    if (!any_visible(p, &w)) continue;
                    tile_gradient(p, &w, base, part, rD);
#pragma unroll
                    for (int x = 0; x < S_M; x++)
#pragma unroll
                        for (int n = 0; n < S_N; n++)
#pragma unroll
                            for (int c = 0; c < 4; c++) sum[x][n][c] += rD[x][n][c];
                }
    }
    __syncthreads();
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                shared_store32(base + cell_at(part.key + 16 * x + c / 2 * 8 + (lane_of() >> 2),
                                              part.row + 8 * n + 2 * (lane_of() & 3) + c % 2),
                               __float_as_uint(sum[x][n][c]));
    __syncthreads();
    const int rows = sum_i ? 1 : min(p->in.seq_q - ti * TILE, TILE),
              keys = sum_j ? 1 : min(p->in.seq_k - tj * TILE, TILE);
    float *to =
        (float *)v->data + tb * v->batch + th * v->head + (int64_t)ti * TILE * v->row + (int64_t)tj * TILE * v->column;
    for (int x = thread_of(); x < rows * keys; x += THREADS) {
        const int r = x / keys, k = x % keys;
        to[r * v->row + (int64_t)k * v->column] =
            cell_sum(base, sum_j ? 0 : k, sum_j ? TILE : k + 1, sum_i ? 0 : r, sum_i ? TILE : r + 1);
    }
    __syncthreads();
}

/* ------------------------------------------------------------------ dalibi ------------------------- */

static __device__ __forceinline__ void run_alibi_tile(const struct kp_sdpa_bwd *p, int64_t index, uint32_t base) {
    const struct part part = part_of_warp();
    struct place w;
    float sum = 0;
    enter_sequence(p, &w, (int)(index / p->bias_tiles / p->in.heads_q));
    w.head = (int)(index / p->bias_tiles % p->in.heads_q);
    w.i0 = (int)(index % p->bias_tiles) * TILE;
    if (w.i0 >= w.seq.sq) return;
#pragma unroll 1
    for (w.j0 = 0; w.j0 < w.seq.sk; w.j0 += TILE) {
        float rD[S_M][S_N][4];
        if (!any_visible(p, &w)) continue;
        tile_gradient(p, &w, base, part, rD);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int n = 0; n < S_N; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float d = (float)(w.j0 + part.j + 16 * x + c / 2 * 8 + (lane_of() >> 2) - w.i0 - part.i -
                                            8 * n - 2 * (lane_of() & 3) - c % 2 - w.off);
                    sum += rD[x][n][c] * (p->in.alibi_form == 1 ? d : -fabsf(d));
                }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    __syncthreads();
    if (lane_of() == 0) shared_store32(base + 4 * warp_of(), __float_as_uint(sum));
    __syncthreads();
    if (thread_of() == 0) {
        float all = 0;
#pragma unroll
        for (int x = 0; x < THREADS / 32; x++) all += __uint_as_float(shared_load32(base + 4 * x));
        ((float *)p->dalibi_tile)[index] = all;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) CFG(const __grid_constant__ struct kp_sdpa_bwd p) {
    for (int64_t index = blockIdx.x; index < p.mask_tiles + p.alibi_tiles; index += gridDim.x)
        if (index < p.mask_tiles)
            run_mask_tile(&p, index, shared_base());
        else
            run_alibi_tile(&p, index - p.mask_tiles, shared_base());
}
