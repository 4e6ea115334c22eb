/* SPDX-License-Identifier: MIT
 * A test of the simulator, not of the library: attention on Hopper with everything that a fast kernel uses, small
 * enough to read, and a switch for each thing that can be forgotten. o = softmax(scale q k^T + bias) v, 64 wide, bf16.
 *
 *   cluster of 2 CTAs, 128 rows each; tiles of 64 keys: each CTA fetches half a tile and multicasts it to both
 *   warpgroup 0: warp 0 fetches Q, K, V by tensor copies, warp 1 the bias by cp.async    warpgroups 1, 2: 64 rows each
 *
 * Shared memory: Q 2 x 8192 (O takes its place), K 2 x 8192, V 2 x 8192, bias 2 x 256, barriers.
 * Q_FULL (1 arrival + bytes)   K_FULL, V_FULL [2] (1 + bytes)   BIAS_FULL [2] (32 lanes, each after its copies)
 * EMPTY [2] (4: both consumers of both CTAs, for what products have read)   BIAS_EMPTY [2] (8 warps)
 * named 1, 2: O of the warpgroup is written
 *
 * mutant: 0 is right; others leave out or spoil what stands at the mark @n. */
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/wgmma.h"

struct __align__(64) tensor_map {
    unsigned char bytes[128];
};
enum { Q_AT = 0, K_AT = 16384, V_AT = 32768, BIAS_AT = 49152, BARRIERS = 49664 };
enum { Q_FULL = 0, K_FULL = 8, V_FULL = 24, BIAS_FULL = 40, EMPTY = 56, BIAS_EMPTY = 72 };
constexpr int TYPE = KP_BF16, TILE = 8192;

static __device__ __forceinline__ uint32_t cluster_rank(void) {
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}
static __device__ __forceinline__ void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n.reg .b32 a;\nmapa.shared::cluster.u32 a, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a];\n}" ::"r"(barrier), "r"(rank)
                 : "memory");
}
static __device__ __forceinline__ void fetch(uint32_t to, const tensor_map *map, uint32_t barrier, int row, int head) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(head)
                 : "memory");
}
static __device__ __forceinline__ void fetch_both(uint32_t to, const tensor_map *map, uint32_t barrier, int row,
                                                  int head, int mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(head),
                 "h"((short)mask)
                 : "memory");
}
static __device__ __forceinline__ void give(const tensor_map *map, uint32_t from, int row, int head) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map), "r"(from), "r"(0), "r"(row), "r"(head)
                 : "memory");
}
static __device__ __forceinline__ void give_wait(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
static __device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
static __device__ __forceinline__ void copy4(uint32_t to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    hopper_attention(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                     const __grid_constant__ tensor_map v, const __grid_constant__ tensor_map o, const float *bias,
                     int n_keys, float scale, int mutant) {
    const uint32_t s = shared_base(), bar = s + BARRIERS, rank = cluster_rank();
    const int thread = threadIdx.x, group = thread / 128, tiles = n_keys / 64;
    const int head = blockIdx.y, row = blockIdx.x * 128;
    if (thread == 0) {
        mbar_init(bar + Q_FULL, 1);
        for (int i = 0; i < 16; i += 8) {
            mbar_init(bar + K_FULL + i, 1), mbar_init(bar + V_FULL + i, 1), mbar_init(bar + BIAS_FULL + i, 32);
            mbar_init(bar + EMPTY + i, mutant == 18 ? 2 : 4), mbar_init(bar + BIAS_EMPTY + i, 8);
        }
        if (mutant != 20) mbar_init_fence();
    }
    if (mutant == 15)
        __syncthreads();
    else
        cluster_sync();
    if (group == 0) {
        registers_fewer<40>();
        if (thread == 0) {
            expect(bar + Q_FULL, 2 * TILE);
            fetch(s + Q_AT, &q, bar + Q_FULL, row, head);                        // @20
            fetch(s + Q_AT + TILE, &q, bar + Q_FULL, row + 64, head);
            for (int n = 0; n < tiles; n++) {
                const uint32_t st = n & 1, parity = (n / 2 & 1) ^ 1;
                if (n >= 2 && mutant != 3) mbar_wait(bar + EMPTY + 8 * st, parity); // @5 @17 @18
                expect(bar + K_FULL + 8 * st, mutant == 4 ? TILE / 2 : mutant == 5 ? TILE + 16 : TILE); // @3
                const int mask = mutant == 24 ? 7 : 3, half = n * 64 + rank * 32;
                fetch_both(s + K_AT + st * TILE + rank * TILE / 2, &k, bar + K_FULL + 8 * st, half, head, mask); // @3 @4 @15 @24
                expect(bar + V_FULL + 8 * st, TILE);
                fetch_both(s + V_AT + st * TILE + rank * TILE / 2, &v, bar + V_FULL + 8 * st, half, head, mask); // @12 @23
            }
        } else if (thread / 32 == 1) {
            const int lane = thread % 32;
            for (int n = 0; n < tiles; n++) {
                const uint32_t st = n & 1, address = s + BIAS_AT + st * 256 + lane * 4;
                if (n >= 2) mbar_wait(bar + (mutant == 26 ? EMPTY : BIAS_EMPTY) + 8 * st, (n / 2 & 1) ^ 1);
                copy4(address, bias + n * 64 + lane);                                 // @26
                copy4(address + 128, bias + n * 64 + 32 + lane);
                if (mutant == 21)
                    mbar_arrive(bar + BIAS_FULL + 8 * st);
                else
                    mbar_arrive_copies(bar + BIAS_FULL + 8 * st);
            }
        }
    } else {
        if (mutant == 22)
            registers_more<248>();                                               // @22
        else
            registers_more<232>();
        const int warp = thread / 32 % 4, lane = thread % 32;
        const uint32_t own = s + Q_AT + (group - 1) * TILE;
        uint64_t wrong = 0;                                                      /* of K's descriptor */
        if (mutant == 13) wrong = (uint64_t)(1024 >> 4) << 32;                   /* stride 2048 */
        if (mutant == 14) wrong = (uint64_t)1 << 62;                             /* mode 2: 64 bytes */
        float out[32], top[2] = {-INF, -INF}, sum[2] = {0, 0};
        for (int i = 0; i < 32; i++) out[i] = 0;
        mbar_wait(bar + Q_FULL, 0);
        for (int n = 0; n < tiles; n++) {
            const uint32_t st = n & 1, parity = n / 2 & 1;
            float x[32];
            if (mutant != 1) mbar_wait(bar + K_FULL + 8 * st, mutant == 6 ? parity ^ 1 : parity); // @5b
            if (mutant != 10) wgmma_fence();
            const uint64_t qd = slice_desc(own, 0), kd = slice_desc(s + K_AT + st * TILE, 0) + wrong;
            for (int kk = 0; kk < 4; kk++)
                wgmma_ss_n64<TYPE, 0, 0>(x, desc_step(qd, 32 * kk), desc_step(kd, 32 * kk), kk); // @1 @4 @6 @10 @13
            if (mutant != 11) wgmma_commit();
            if (mutant != 9) wgmma_wait(0);
            wgmma_hold(x, 32);
            mbar_wait(bar + BIAS_FULL + 8 * st, parity);
            float high[2] = {top[0], top[1]}, shrink[2];
            for (int j = 0; j < 8; j++)
                for (int e = 0; e < 2; e++) {
                    uint32_t address = s + BIAS_AT + st * 256 + (8 * j + 2 * (lane & 3) + e) * 4;
                    float b = __uint_as_float(shared_load32(address)) * LOG2E;        // @21
                    for (int h = 0; h < 2; h++) {
                        float *y = &x[4 * j + 2 * h + e];
                        *y = *y * scale * LOG2E + b;                             // @9 @11
                        high[h] = fmaxf(high[h], *y);
                    }
                }
            __syncwarp();
            if (lane == 0) mbar_arrive(bar + BIAS_EMPTY + 8 * st);
            for (int h = 0; h < 2; h++) {
                high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 1));
                high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 2));
                shrink[h] = exp2_fast(top[h] - high[h]);
                top[h] = high[h];
                sum[h] *= shrink[h];
            }
            uint32_t p[16];
            for (int i = 0; i < 16; i++) {
                float a = exp2_fast(x[2 * i] - top[i & 1]), b = exp2_fast(x[2 * i + 1] - top[i & 1]);
                sum[i & 1] += a + b;
                p[i] = pack16(TYPE, a, b);
            }
            for (int i = 0; i < 32; i++) out[i] *= shrink[i >> 1 & 1];
            if (mutant != 2) mbar_wait(bar + V_FULL + 8 * st, parity);
            wgmma_fence();
            if (mutant == 12 && warp == 0 && lane < 2) arrive_at(bar + EMPTY + 8 * st, lane);
            const uint64_t vd = slice_desc(s + V_AT + st * TILE, 0);
            for (int kk = 0; kk < 4; kk++)
                wgmma_rs_n64<TYPE, 1>(out, p + 4 * kk, desc_step(vd, 2048 * kk), 1); // @2
            wgmma_commit();
            if (mutant != 23) wgmma_wait(0);
            wgmma_hold(out, 32);
            if (mutant == 17 ? warp == 0 && lane == (int)rank : mutant != 12 && warp == 0 && lane < 2)
                arrive_at(bar + EMPTY + 8 * st, lane);                           // @16
        }
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
            sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        }
        for (int i = 0; i < 4; i++) {
            const int line = warp * 16 + (lane & 7) + 8 * (lane >> 3 & 1), chunk = 2 * i + (lane >> 4);
            const float *d = out + 8 * i;
            store_matrices(own + line * 128 + ((chunk ^ (line & 7)) * 16), pack16(TYPE, d[0] / sum[0], d[1] / sum[0]),
                           pack16(TYPE, d[2] / sum[1], d[3] / sum[1]), pack16(TYPE, d[4] / sum[0], d[5] / sum[0]),
                           pack16(TYPE, d[6] / sum[1], d[7] / sum[1]));
        }
        if (mutant != 7) async_fence();
        if (mutant != 8) named_sync(group, mutant == 25 ? 256 : 128);            // @25
        if (thread % 128 == 0) {
            give(&o, own, row + 64 * (group - 1), head);                         // @7 @8
            if (mutant != 19) give_wait();
        }
    }
    if (mutant != 16) cluster_sync();
}
