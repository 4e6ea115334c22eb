/* SPDX-License-Identifier: MIT
 * Dense backward in f32 and f64: gradients of an additive mask and of ALiBi slopes; every chip from sm_80 on, any D and
 * DV. Off the fast path: it forms S and dP once more, so that whoever writes a number owns it and adds in a fixed
 * order.
 *
 *   dmask cell = sum of dS over what the mask's axes of stride 0 stand for      dalibi = sum of dS (j - i - off)
 *
 * Work tiles: first those of dmask (ROWS queries x TILE keys; an axis that is summed counts as one), then row tiles of
 * every head for dalibi. A CTA adds up dS of all tiles that belong to its work tile in registers.
 *
 *   global Q, then dO --cp.async--> chunk of ROWS --+
 *   global K, then V  --cp.async--> chunk of TILE --+-mma-> S, then dP --cells--> dS
 *
 * Shared memory: ROWS x 256 | TILE x 256 bytes; the sums of a work tile take their place at the end. */
#include "kernels/sm80/sdpa_bwd_wide.h"

constexpr int SUM_PITCH = (TILE + 1) * (int)sizeof(num);
static_assert(!OWN_KEYS && ROWS == KP_SDPA_BWD_BIAS_TILE && TILE == KP_WIDE_BIAS_KEYS(CFG_DTYPE), "as the host counts");
static_assert(ROWS * SUM_PITCH <= KP_WIDE_BIAS_SHARED_BYTES(CFG_DTYPE), "room for the sums");

/* rX = rows x keys over `width` columns, chunk by chunk. */
static __device__ __forceinline__ void cell_product(const struct place *w, const struct kp_view *rows,
                                                    const struct kp_view *keys, int head, int i0, int j0, int width,
                                                    num rX[N_X][4]) {
    const uint32_t base = shared_base();
    const int64_t size = (int64_t)sizeof(num),
                  row_at = w->b * rows->batch + head * rows->head + (w->seq.q0 + i0) * rows->row,
                  key_at = w->b * keys->batch + w->head_k * keys->head + (w->seq.k0 + j0) * keys->row;
#pragma unroll
    for (int n = 0; n < N_X; n++) rX[n][0] = rX[n][1] = rX[n][2] = rX[n][3] = 0;
#pragma unroll 1
    for (int c = 0; c < width; c += CHUNK) {
        __syncthreads(); /* what stood here has been read */
        copy_rows(base, ROWS, (const char *)rows->data + size * (row_at + c), size * rows->row, w->seq.sq - i0,
                  width - c, rows->chunk);
        copy_rows(base + ROWS * PITCH, TILE, (const char *)keys->data + size * (key_at + c), size * keys->row,
                  w->seq.sk - j0, width - c, keys->chunk);
        copy_commit();
        copy_wait(0);
        __syncthreads();
        add_scores(rX, base, base + ROWS * PITCH, width - c);
    }
}

/* rD = dS of the tile; not for one that nobody sees. */
static __device__ __forceinline__ void tile_gradient(const struct kp_sdpa_wide_bwd *k, struct place *w, int head,
                                                     int i0, int j0, num rD[N_X][4]) {
    const struct kp_sdpa *in = &k->bwd.in;
    const struct tile t = {i0 + warp_of() * 16, j0, head};
    num rS[N_X][4];
    w->head_k = head / (in->heads_q / in->heads_k);
    const struct own_numbers own = own_numbers_of(&k->bwd, w, t);
    cell_product(w, &in->q, &in->k, head, i0, j0, in->dim_qk, rS);
    cell_product(w, &k->bwd.dout, &in->v, head, i0, j0, in->dim_v, rD);
    const struct units one = {1, 1, 1, 1};
    finish_cells(k, w, t, 0, &own, 0, 0, &one, rS, rD);
}

/* ------------------------------------------------------------------ dmask -------------------------- */

static __device__ __forceinline__ uint32_t cell_at(int row, int key) {
    return shared_base() + (uint32_t)(row * SUM_PITCH + key * (int)sizeof(num));
}

static __device__ __forceinline__ void run_mask_tile(const struct kp_sdpa_wide_bwd *k, int64_t index) {
    const struct kp_sdpa *in = &k->bwd.in;
    const struct kp_view *v = &k->bwd.dmask;
    const int sum_b = v->batch == 0, sum_h = v->head == 0, sum_i = v->row == 0, sum_j = v->column == 0;
    const int n_i = sum_i ? 1 : (in->seq_q + ROWS - 1) / ROWS, n_j = sum_j ? 1 : (in->seq_k + TILE - 1) / TILE;
    const int tj = (int)(index % n_j), ti = (int)(index / n_j % n_i), lane = lane_of();
    const int64_t rest = index / n_j / n_i;
    const int th = sum_h ? 0 : (int)(rest % in->heads_q), tb = sum_b ? 0 : (int)(sum_h ? rest : rest / in->heads_q);
    num sum[N_X][4];
    struct place w;
#pragma unroll
    for (int n = 0; n < N_X; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
#pragma unroll 1
    for (int b = tb; b < (sum_b ? in->batch : tb + 1); b++) {
        enter_sequence(&k->bwd, &w, b);
        const int i_end = sum_i ? w.seq.sq : ti * ROWS + 1, j_end = sum_j ? w.seq.sk : tj * TILE + 1;
#pragma unroll 1
        for (int h = th; h < (sum_h ? in->heads_q : th + 1); h++)
#pragma unroll 1
            for (int i0 = ti * ROWS; i0 < i_end; i0 += ROWS)
#pragma unroll 1
                for (int j0 = tj * TILE; j0 < j_end; j0 += TILE) {
                    num rD[N_X][4];
                    if (in->window_right < -in->window_left || !sight(in, &w, i0, ROWS, j0, TILE)) continue;
                    tile_gradient(k, &w, h, i0, j0, rD);
#pragma unroll
                    for (int n = 0; n < N_X; n++)
#pragma unroll
                        for (int c = 0; c < 4; c++) sum[n][c] += rD[n][c];
                }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N_X; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            store_num(cell_at(warp_of() * 16 + c / 2 * 8 + (lane >> 2), 8 * n + 2 * (lane & 3) + c % 2), sum[n][c]);
    __syncthreads();
    const int rows = sum_i ? 1 : min(in->seq_q - ti * ROWS, ROWS), keys = sum_j ? 1 : min(in->seq_k - tj * TILE, TILE);
    num *to =
        (num *)v->data + tb * v->batch + th * v->head + (int64_t)ti * ROWS * v->row + (int64_t)tj * TILE * v->column;
    for (int x = thread_of(); x < rows * keys; x += THREADS) {
        const int r = x / keys, c = x % keys;
        num all = 0;
        for (int y = sum_i ? 0 : r; y < (sum_i ? ROWS : r + 1); y++)
            for (int z = sum_j ? 0 : c; z < (sum_j ? TILE : c + 1); z++) all += load_num(cell_at(y, z));
        to[r * v->row + (int64_t)c * v->column] = all;
    }
}

/* ------------------------------------------------------------------ dalibi ------------------------- */

static __device__ __forceinline__ void run_alibi_tile(const struct kp_sdpa_wide_bwd *k, int64_t index) {
    const struct kp_sdpa *in = &k->bwd.in;
    const int i0 = (int)(index % k->bwd.bias_tiles) * ROWS, head = (int)(index / k->bwd.bias_tiles % in->heads_q),
              lane = lane_of();
    struct place w;
    num sum = 0;
    enter_sequence(&k->bwd, &w, (int)(index / k->bwd.bias_tiles / in->heads_q));
    if (i0 >= w.seq.sq) return;
#pragma unroll 1
    for (int j0 = 0; j0 < w.seq.sk; j0 += TILE) {
        num rD[N_X][4];
        if (in->window_right < -in->window_left || !sight(in, &w, i0, ROWS, j0, TILE)) continue;
        tile_gradient(k, &w, head, i0, j0, rD);
#pragma unroll
        for (int n = 0; n < N_X; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int d =
                    j0 + 8 * n + 2 * (lane & 3) + c % 2 - i0 - warp_of() * 16 - c / 2 * 8 - (lane >> 2) - w.off;
                sum += rD[n][c] * (num)(in->alibi_form == 1 ? d : -abs(d));
            }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += shuffle_xor(sum, d);
    __syncthreads();
    if (lane == 0) store_num(cell_at(0, warp_of()), sum);
    __syncthreads();
    if (thread_of() == 0) {
        num all = 0;
#pragma unroll
        for (int x = 0; x < WARPS; x++) all += load_num(cell_at(0, x));
        ((num *)k->bwd.dalibi_tile)[index] = all;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_sdpa_wide_bwd p) {
    for (int64_t index = blockIdx.x; index < p.bwd.mask_tiles + p.bwd.alibi_tiles; index += gridDim.x) {
        if (index < p.bwd.mask_tiles)
            run_mask_tile(&p, index);
        else
            run_alibi_tile(&p, index - p.bwd.mask_tiles);
        __syncthreads();
    }
}
