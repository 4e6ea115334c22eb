/* SPDX-License-Identifier: MIT
 * Splits f32 operands of dense attention in two f16 each for the kernels with .f16x2 = 1 (layout and error:
 * kernels/sm80/sdpa_wide_f16x2.h). Every chip. A CTA owns KP_F16X2_ROWS rows of one head of one tensor.
 *
 *   s = 14 - exponent of the block's largest number     hi = f16(x 2^s)     lo = f16(x 2^s - hi)     unit = 2^-s
 *
 * APART: a head's hi stand by themselves, all of its lo after them; else eight columns of hi and of lo by turns.
 * A block with infinities, NaN, numbers beyond 2^100, or rows whose largest numbers differ by more than 2^15 flags its
 * key head. Rows past a sequence are not read. Shared memory: two numbers. */
#include "kernels/device/flag.h"
#include "kernels/device/number.h"
#include "kernels/device/sequence.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_wide.h"

constexpr int THREADS = CFG_THREADS, ACROSS = 16, DOWN = THREADS / ACROSS, ROWS = KP_F16X2_ROWS,
              DOWN_STEPS = ROWS / DOWN, APART = CFG_APART;

/* Four columns of a row, as far as there are `n`. */
static __device__ __forceinline__ float4 load_columns(const float *from, int whole, int n) {
    if (whole && n >= 4) return *(const float4 *)from;
    float4 x = {0, 0, 0, 0};
    if (n > 0) x.x = from[0];
    if (n > 1) x.y = from[1];
    if (n > 2) x.z = from[2];
    if (n > 3) x.w = from[3];
    return x;
}
static __device__ __forceinline__ uint32_t size_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }
static __device__ __forceinline__ uint32_t larger_size(float4 x) {
    return max(max(size_of(x.x), size_of(x.y)), max(size_of(x.z), size_of(x.w)));
}

/* Columns c .. c + 3 of a row: half of the hi piece and half of the lo piece of their eight columns. distance: from hi
 * to lo, APART. */
static __device__ __forceinline__ void store_f16x2(uint32_t *row, int c, float4 x, float up, int64_t distance) {
    const float y[4] = {x.x * up, x.y * up, x.z * up, x.w * up};
    const uint32_t h0 = pack16(KP_F16, y[0], y[1]), h1 = pack16(KP_F16, y[2], y[3]);
    uint32_t *const to = APART ? row + c / 2 : row + (c & -8) + (c & 4) / 2;
    *(uint2 *)to = make_uint2(h0, h1);
    *(uint2 *)(to + (APART ? distance : 4)) =
        make_uint2(pack16(KP_F16, y[0] - unpack16(KP_F16, h0), y[1] - unpack16(KP_F16, h0 >> 16)),
                   pack16(KP_F16, y[2] - unpack16(KP_F16, h1), y[3] - unpack16(KP_F16, h1 >> 16)));
}

/* HELD: pieces of a row that a thread keeps between the two looks at it; 0: any width, read twice. */
template <int HELD>
static __device__ __forceinline__ void split_block(const struct kp_sdpa_f16x2_job *p, const struct kp_f16x2_tensor *t,
                                                   int64_t block) {
    const int tile = (int)(block % t->blocks), head = (int)(block / t->blocks % t->heads);
    const int b = (int)(block / t->blocks / t->heads), row0 = tile * ROWS;
    const struct sequence s = sequence_of(&p->in, b);
    const int64_t first = t->of_keys ? s.k0 : s.q0;
    const int n = min((t->of_keys ? s.sk : s.sq) - row0, ROWS), whole = t->from.chunk == 16;
    const int r0 = (int)threadIdx.x / ACROSS, c0 = (int)threadIdx.x % ACROSS * 4;
    const float *from = (const float *)t->from.data + b * t->from.batch + head * t->from.head;
    const uint32_t base = shared_base();
    if (n <= 0) return;
    __syncthreads();
    if (threadIdx.x == 0) shared_store32(base, 0), shared_store32(base + 4, 0xffffffffu);
    __syncthreads();
    uint32_t largest = 0, least = 0xffffffffu; /* bits of sizes order as integers, NaN last */
    float4 kept[DOWN_STEPS][HELD + 1];
    from += (first + row0) * t->from.row;
    if (HELD) {
#pragma unroll
        for (int y = 0; y < DOWN_STEPS; y++)
#pragma unroll
            for (int x = 0; x < HELD; x++) {
                const int r = r0 + y * DOWN, c = c0 + x * 4 * ACROSS;
                kept[y][x] = load_columns(from + r * t->from.row + c, whole, r < n ? t->width - c : 0);
            }
    }
#pragma unroll
    for (int y = 0; y < DOWN_STEPS; y++) { /* all lanes meet at the shuffles */
        const int r = r0 + y * DOWN;
        uint32_t row = 0;
        if (HELD) {
#pragma unroll
            for (int x = 0; x < HELD; x++) row = max(row, larger_size(kept[y][x]));
        } else {
            for (int c = c0; c < t->width && r < n; c += 4 * ACROSS)
                row = max(row, larger_size(load_columns(from + r * t->from.row + c, whole, t->width - c)));
        }
#pragma unroll
        for (int d = 1; d < ACROSS; d *= 2) row = max(row, __shfl_xor_sync(~0u, row, d));
        largest = max(largest, row);
        if (row) least = min(least, row);
    }
    largest = max(largest, __shfl_xor_sync(~0u, largest, ACROSS)),
    least = min(least, __shfl_xor_sync(~0u, least, ACROSS));
    if (threadIdx.x % 32 == 0) shared_max32(base, largest), shared_min32(base + 4, least);
    __syncthreads();
    largest = shared_load32(base), least = shared_load32(base + 4);
    const int e = (int)(largest >> 23) - 127,
              odd = largest && (e > 100 || e < -100 || e - ((int)(least >> 23) - 127) > 15);
    const int shift = largest && !odd ? 14 - e : 0;
    const float up = __uint_as_float((uint32_t)(127 + shift) << 23);
    if (threadIdx.x == 0) {
        ((float *)t->unit)[block] = __uint_as_float((uint32_t)(127 - shift) << 23);
        if (odd) raise_flag((int32_t *)p->flags + b * p->in.heads_k + head / (t->heads / p->in.heads_k));
    }
    uint32_t *to = (uint32_t *)t->to.data + b * t->to.batch + head * t->to.head + (first + row0) * t->to.row;
#pragma unroll
    for (int y = 0; y < DOWN_STEPS; y++) {
        const int r = r0 + y * DOWN;
        if (r >= n) continue;
        if (HELD) {
#pragma unroll
            for (int x = 0; x < HELD; x++) {
                const int c = c0 + x * 4 * ACROSS;
                if ((c & -8) < t->width) store_f16x2(to + r * t->to.row, c, kept[y][x], up, t->to.head / 2);
            }
        } else {
            for (int c = c0; (c & -8) < t->width; c += 4 * ACROSS)
                store_f16x2(to + r * t->to.row, c, load_columns(from + r * t->from.row + c, whole, t->width - c), up,
                            t->to.head / 2);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_f16x2_job p) {
    for (int64_t block = blockIdx.x; block < p.n_blocks; block += gridDim.x) {
        int64_t rest = block;
        int x = 0;
        while (x + 1 < p.n_tensors && rest >= p.tensor[x].n_blocks) rest -= p.tensor[x++].n_blocks;
        const struct kp_f16x2_tensor *t = &p.tensor[x];
        if (t->width <= 64)
            split_block<1>(&p, t, rest);
        else if (APART || t->width <= 128) /* what the rows that read it take */
            split_block<2>(&p, t, rest);
        else
            split_block<0>(&p, t, rest);
    }
}
