/* SPDX-License-Identifier: MIT
 * Packed rows of no sequence as empty rows (ATTN_FILL_PADDING): what the kernels of a dense operator leave alone, and
 * nothing else, so that the order of the two does not matter. Every chip, every dtype. A CTA owns ROWS rows in a row of
 * the queries' or of the keys' axis: its first threads find out which of them are padding, then all write these, in
 * every head.
 *
 * An offset counts as at least the largest one before it. Row r is therefore of the sequence that ends at the first
 * offset above r and begins at the largest one before that. It is padding where no offset is above r, where the very
 * first is, and past the sequence's bound. Shared memory: a bit for each row. */
#include "kernels/params/sdpa.h"

constexpr int THREADS = CFG_THREADS, ROWS = CFG_ROWS;
static_assert(ROWS % 32 == 0 && ROWS <= THREADS, "whole warps find padding");

#if CFG_BACKWARD
typedef struct kp_sdpa_bwd parameters;
#else
typedef struct kp_sdpa_fwd parameters;
#endif

static __device__ __forceinline__ int is_padding(const int32_t *cu, int batch, int64_t row, int64_t bound) {
    int first = 0, ended = 0, padding = 1;
#pragma unroll 8
    for (int b = 0; b <= batch; b++) {
        const int start = cu[b];
        if (!ended && start > row) ended = 1, padding = b == 0 || row - first >= bound;
        if (!ended) first = max(first, start);
    }
    return padding;
}

static __device__ __forceinline__ void store_element(char *to, int bytes, uint64_t x) {
    if (bytes == 8) *(uint64_t *)to = x;
    if (bytes == 4) *(uint32_t *)to = (uint32_t)x;
    if (bytes == 2) *(uint16_t *)to = (uint16_t)x;
}

/* The marked rows among row0 .. row0 + ROWS - 1 of a tensor, by pieces of 16 bytes where it allows them. */
static __device__ __forceinline__ void fill_rows(const struct kp_view *v, int heads, int width, uint64_t x,
                                                 int64_t row0, const uint32_t *padding) {
    const int bytes = v->dtype == KP_F64 ? 8 : v->dtype == KP_F32 ? 4 : 2;
    const int step = x == 0 && v->chunk == 16 ? 16 / bytes : 1, pieces = (width + step - 1) / step;
    if (!v->data) return;
#pragma unroll 1
    for (int h = 0; h < heads; h++)
#pragma unroll 1 /* stores alone: nothing waits for them */
        for (int y = (int)threadIdx.x; y < ROWS * pieces; y += THREADS) {
            const int r = y / pieces, c = y % pieces * step;
            if (!(padding[r / 32] >> r % 32 & 1)) continue;
            char *to = (char *)v->data + (h * v->head + (row0 + r) * v->row + c) * bytes;
            if (step > 1 && c + step <= width) {
                *(uint4 *)to = make_uint4(0, 0, 0, 0);
                continue;
            }
#pragma unroll 1
            for (int e = 0; e < step && c + e < width; e++) store_element(to + e * bytes, bytes, x);
        }
}

#if CFG_BACKWARD
static __device__ __forceinline__ void fill_all(const struct kp_sdpa_bwd *p, int of_keys, int64_t row0,
                                                const uint32_t *padding) {
#pragma unroll 1
    for (int t = of_keys ? 0 : 2; t < (of_keys ? 2 : 3); t++)
        fill_rows(t == 0 ? &p->dk : t == 1 ? &p->dv : &p->dq, of_keys ? p->in.heads_k : p->in.heads_q,
                  t == 1 ? p->in.dim_v : p->in.dim_qk, 0, row0, padding);
}
#else
/* The lse of an empty row, in its type. */
static __device__ __forceinline__ uint64_t empty_lse(int type, int plus) {
    const int bits = type == KP_F64 ? 64 : type == KP_F32 ? 32 : 16;
    const uint64_t infinity = type == KP_F64    ? 0x7ffull << 52
                              : type == KP_F32  ? 0xffull << 23
                              : type == KP_BF16 ? 0xffull << 7
                                                : 0x1full << 10;
    return infinity | (plus ? 0 : 1ull << (bits - 1));
}

static __device__ __forceinline__ void fill_all(const struct kp_sdpa_fwd *p, int, int64_t row0,
                                                const uint32_t *padding) {
    const int heads = p->in.heads_q, plus = (p->in.flags & KP_LSE_EMPTY_PLUS_INF) != 0;
#pragma unroll 1
    for (int t = 0; t < 4; t++) {
        const struct kp_view *v = t == 0 ? &p->out : t == 1 ? &p->lse : t == 2 ? &p->lse_rounded : &p->max_logits;
        fill_rows(v, heads, t ? 1 : p->in.dim_v, t ? empty_lse(v->dtype, plus && t < 3) : 0, row0, padding);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ parameters p) {
    __shared__ uint32_t padding[ROWS / 32];
    const int64_t blocks_q = (p.in.total_q + ROWS - 1) / ROWS,
                  blocks_k = CFG_BACKWARD ? (p.in.total_k + ROWS - 1) / ROWS : 0;
    for (int64_t x = blockIdx.x; x < blocks_q + blocks_k; x += gridDim.x) {
        const int of_keys = x >= blocks_q;
        const int64_t row0 = (of_keys ? x - blocks_q : x) * ROWS, row = row0 + threadIdx.x;
        if (threadIdx.x < ROWS) {
            const int32_t *cu = (const int32_t *)(of_keys ? p.in.cu_seqlens_k : p.in.cu_seqlens_q);
            const int mine = row < (of_keys ? p.in.total_k : p.in.total_q) &&
                             is_padding(cu, p.in.batch, row, of_keys ? p.in.seq_k : p.in.seq_q);
            const uint32_t bits = __ballot_sync(~0u, mine);
            if (threadIdx.x % 32 == 0) padding[threadIdx.x / 32] = bits;
        }
        __syncthreads();
        uint32_t any = 0;
#pragma unroll
        for (int w = 0; w < ROWS / 32; w++) any |= padding[w];
        if (any) fill_all(&p, of_keys, row0, padding);
        __syncthreads();
    }
}
