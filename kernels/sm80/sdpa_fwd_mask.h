/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: what full variants add to their scores from a mask. Included once; the rules stand in
 * sdpa_fwd.cu.
 *
 * Where rows of the mask are aligned (kp_sdpa_fwd.mask_pitch), a warp copies the cells of its own rows to shared memory
 * a key tile ahead, 16 bytes at a time, and needs no barrier for it but the ring's:
 *
 *   global mask, warp's rows x KEYS --cp.async--> shared, mask_pitch bytes a row --ldmatrix or ld--> added to S
 *
 * Read where it stands, a lane's two cells of a row are 2 to 8 bytes of a line, so that a load of the warp touches
 * eight lines; the first-level cache looks at one line a cycle, and a tile of 16 x 64 cells keeps it as long as half of
 * the tile's products take.
 * Pitches (host: mask_pitch of src/cuda/dense/fwd.c) are such that the eight rows of a load are in different
 * banks. */
#ifndef ATTN_SM80_SDPA_FWD_MASK_H
#define ATTN_SM80_SDPA_FWD_MASK_H
#include "kernels/device/mma.h"
#include "kernels/sm80/sdpa_fwd_scores.h"

constexpr int MASK = RING_END + KP_SDPA_FLAG_BYTES;
static_assert(!FULL || KEY_WARPS == 1, "a warp's cells are those of all keys of the tile");

/* Are cells of the tile in shared memory? */
static __device__ __forceinline__ int is_copied(const struct kp_sdpa_fwd *p, int n_keys, int j0) {
    return FULL && p->mask_pitch && j0 + KEYS <= n_keys;
}
static __device__ __forceinline__ uint32_t copied_rows(const struct kp_sdpa_fwd *p, uint32_t base) {
    return base + MASK + (thread_of() >> 5) * WARP_ROWS * p->mask_pitch;
}

/* Start the copy of the warp's cells of the tile at j0. Rows past the sequence copy those of its last. */
static __device__ __forceinline__ void copy_mask(const struct kp_sdpa_fwd *p, uint32_t base, const struct work *w,
                                                 int j0) {
    const int dtype = p->in.mask.dtype, size = dtype == KP_BOOL ? 0 : dtype == KP_F32 ? 2 : 1; /* log2 of bytes */
    const int across = (KEYS > 32 ? 2 : 1) + size, down = 32 >> across; /* lanes side by side on a row, log2; rows */
    const int c = lane_of() & ((1 << across) - 1), r0 = lane_of() >> across,
              first = w->row0 + warp_row_of() * WARP_ROWS;
    const char *from =
        (const char *)p->in.mask.data + 16 * c + ((w->b * p->in.mask.batch + w->head * p->in.mask.head + j0) << size);
    const uint32_t to = copied_rows(p, base) + 16 * c;
    if (16 * c >= KEYS << size) return;
#pragma unroll 4
    for (int r = r0; r < WARP_ROWS; r += down)
        copy_async16_whole(to + r * p->mask_pitch, from + (min(first + r, w->n_rows - 1) * p->in.mask.row << size));
}
/* The same in a later key tile. */
static __device__ __forceinline__ void copy_mask_again(const struct kp_sdpa_fwd *p, uint32_t base, int j0) {
    const uint4 kept = recall_rows(base);
    struct work w = recall_place(base);
    w.row0 = (int)kept.x, w.n_rows = (int)kept.y;
    copy_mask(p, base, &w, j0);
}

/* Add two neighbouring cells to their scores s[0] and s[1], by what the mask holds; a false one hides. */
static __device__ __forceinline__ void add_floats(float *s, const float2 &cells) { s[0] += cells.x, s[1] += cells.y; }
template <typename word> static __device__ __forceinline__ void add_bools(float *s, word cells) {
    if (!(cells & 0xff)) s[0] = -INF;
    if (!(cells >> 8)) s[1] = -INF;
}
static __device__ __forceinline__ void add_pair16(float *s, int dtype, uint32_t cells) {
    s[0] += unpack16(dtype, cells & 0xffff), s[1] += unpack16(dtype, cells >> 16);
}

/* Add the copied cells. */
static __device__ __forceinline__ void add_copied(const struct kp_sdpa_fwd *p, uint32_t base,
                                                  float rS[M_TILES][N_S][4]) {
    const int lane = lane_of(), g = lane >> 2, t = lane & 3, dtype = p->in.mask.dtype, pitch = p->mask_pitch;
    const uint32_t rows = copied_rows(p, base);
    if (dtype == KP_F32) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int n = 0; n < N_S; n++)
                    add_floats(&rS[x][n][2 * r],
                               shared_load_pair(rows + (16 * x + 8 * r + g) * pitch + 8 * t + 32 * n));
    } else if (dtype == KP_BOOL) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int n = 0; n < N_S; n++)
                    add_bools(&rS[x][n][2 * r], shared_load16(rows + (16 * x + 8 * r + g) * pitch + 2 * t + 8 * n));
    } else {
#pragma unroll
        for (int x = 0; x < M_TILES; x++) {
            const uint32_t address = rows + (16 * x + (lane & 15)) * pitch + (lane >> 4) * 16;
#pragma unroll
            for (int n = 0; n < N_S; n += 2) {
                uint32_t cell[4]; /* two rows of tile n, two of n + 1: as S lies in the lanes */
                load_matrix4(cell, address + 16 * n);
#pragma unroll
                for (int y = 0; y < 4; y++) add_pair16(&rS[x][n + (y >> 1)][2 * (y & 1)], dtype, cell[y]);
            }
        }
    }
    __syncwarp(); /* the next copy may overwrite them */
}

/* Add the mask; a false cell hides. Cells of hidden keys may lie outside the tensor and are not read: `all` says that
 * the warp's rows see the whole tile. Then a lane's two neighbouring cells are one load where alignment allows it. */
static __device__ __forceinline__ void add_mask(const struct kp_sdpa_fwd *p, uint32_t base, int j0, int all,
                                                float rS[M_TILES][N_S][4]) {
    const int t2 = 2 * (lane_of() & 3) + key_of_warp(), dtype = p->in.mask.dtype;
    const int pairs = all && p->in.mask.column == 1 && p->in.mask.chunk >= (dtype == KP_F32 ? 16 : 4);
    const uint4 kept = recall_rows(base);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint64_t element =
                (uint64_t)(cells_of(p, base, row_of(kept, x, r), (int)kept.y) + (int64_t)(j0 + t2) * p->in.mask.column);
            if (pairs && dtype == KP_F32) {
                const float2 *cell = (const float2 *)(p->in.mask.data + 4 * element);
#pragma unroll
                for (int n = 0; n < N_S; n++) add_floats(&rS[x][n][2 * r], cell[4 * n]);
            } else if (pairs && dtype == KP_BOOL) {
                const uint16_t *cell = (const uint16_t *)(p->in.mask.data + element);
#pragma unroll
                for (int n = 0; n < N_S; n++) add_bools(&rS[x][n][2 * r], cell[4 * n]);
            } else if (pairs) {
                const uint32_t *cell = (const uint32_t *)(p->in.mask.data + 2 * element);
#pragma unroll
                for (int n = 0; n < N_S; n++) add_pair16(&rS[x][n][2 * r], dtype, cell[4 * n]);
            } else {
                int lo, hi;
                visible_keys(p, kept, x, r, j0, &lo, &hi);
#pragma unroll
                for (int n = 0; n < N_S; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (8 * n + t2 + e >= lo && 8 * n + t2 + e < hi) {
                            const float cell = mask_cell(p, (int64_t)element + (8 * n + e) * p->in.mask.column);
                            float *y = &rS[x][n][2 * r + e];
                            *y = dtype != KP_BOOL ? *y + cell : cell == 0 ? *y : -INF; /* hides a NaN, too */
                        }
            }
        }
}

/* Full variants: raw products to scores in natural units, in the order of the contract's five steps, but for what
 * windows and lengths hide. copied: is_copied of the tile. */
static __device__ __forceinline__ void finish_scores(const struct kp_sdpa_fwd *p, uint32_t base, int j0, int all,
                                                     int copied, float rS[M_TILES][N_S][4]) {
    const int t2 = 2 * (lane_of() & 3) + key_of_warp();
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rS[x][n][e] *= p->in.scale;
    if (p->in.softcap > 0) cap_scores(p, rS);
    if (p->in.alibi_form) {
        const uint4 kept = recall_rows(base);
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int lo, hi;
                visible_keys(p, kept, x, r, j0, &lo, &hi);
                const int diagonal = lo + p->in.window_left - t2; /* the diagonal, relative to the lane's first key */
                const float slope = slope_of(p, base, row_of(kept, x, r), (int)kept.y);
#pragma unroll
                for (int n = 0; n < N_S; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float d = (float)(8 * n + e - diagonal);
                        rS[x][n][2 * r + e] += slope * (p->in.alibi_form == 1 ? d : -fabsf(d));
                    }
            }
    }
    if (copied)
        add_copied(p, base, rS);
    else if (p->in.mask.data)
        add_mask(p, base, j0, all, rS);
    if (p->in.block_table) { /* keys of pages outside the pool */
#pragma unroll
        for (int n = 0; n < N_S; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!shared_load8(base + BAD_PAGE + (j0 / KEYS & 1) * 64 + 8 * n + t2 + e)) continue;
#pragma unroll
                for (int x = 0; x < M_TILES; x++) rS[x][n][e] = rS[x][n][2 + e] = -INF;
            }
    }
}
#endif
