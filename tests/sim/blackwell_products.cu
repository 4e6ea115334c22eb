/* SPDX-License-Identifier: MIT
 * A test of the simulator, not of the library: two products in a row on sm_100, o = bf16(scale a b^T) v, with the sums
 * of the first and its rounded values in tensor memory, and a switch for each thing that can be forgotten.
 *
 *   warp 5 fetches A and B, 128 x 64 each, in two stages, and V; warp 4 starts the products; warps 0 to 3 take S from
 *   tensor memory, scale, round and put it back as P, later write O
 *
 * a [128 x 64 tiles], b [128 x 64 tiles], v [128 x 64], o [128 x 64] f32; one CTA.
 * Shared memory: A 2 x 16384, B 2 x 16384, V 16384, barriers.
 * Tensor memory: S 0..127 (P 0..63 takes its place), O 128..191
 * FULL [2] (1 arrival + bytes)  EMPTY [2] (commit)  V_FULL  S_DONE (commit)  P_THERE (128)  O_DONE (commit)
 *
 * mutant: 0 is right; others leave out or spoil what stands at the mark @n. */
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"

struct __align__(64) tensor_map {
    unsigned char bytes[128];
};
enum { A_AT = 0, B_AT = 32768, V_AT = 65536, BARRIERS = 81920, SLOT = 82048 };
enum { FULL = 0, EMPTY = 16, V_FULL = 32, S_DONE = 40, P_THERE = 48, O_DONE = 56 };
constexpr int TILE = 16384, O_COLUMN = 128;

static __device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void fetch(uint32_t to, const tensor_map *map, uint32_t barrier, int column) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(0)
                 : "memory");
}
/* Rows of 128 bytes in the 128-byte swizzle, 8 rows a pattern. */
static __device__ __forceinline__ uint64_t desc(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 46 |
           (uint64_t)2 << 61;
}
static __device__ __forceinline__ void product(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}
static __device__ __forceinline__ void product_from_cells(uint32_t d, uint32_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d), "r"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}
static __device__ __forceinline__ void commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}
static __device__ __forceinline__ void before(void) { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
static __device__ __forceinline__ void after(void) { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
static __device__ __forceinline__ void wait_loads(void) { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wait_stores(void) { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void load8(uint32_t x[8], uint32_t at) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
                 : "r"(at));
}
static __device__ __forceinline__ void store4(uint32_t at, const uint32_t x[4]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(192, 1)
    blackwell_products(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                       const __grid_constant__ tensor_map v, float *o, int tiles, float scale, int mutant) {
    const uint32_t s = shared_base(), bar = s + BARRIERS;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 4) {
        const uint32_t columns = mutant == 12 ? 128 : 256;
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(s + SLOT), "r"(columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    if (thread == 0) {
        for (int i = 0; i < 16; i += 8) mbar_init(bar + FULL + i, 1), mbar_init(bar + EMPTY + i, 1);
        mbar_init(bar + V_FULL, 1), mbar_init(bar + S_DONE, 1), mbar_init(bar + O_DONE, 1);
        mbar_init(bar + P_THERE, 128);
        mbar_init_fence();
    }
    before();
    __syncthreads();
    after();
    const uint32_t cells = shared_load32(s + SLOT);
    if (thread == 160) {
        expect(bar + V_FULL, TILE);
        fetch(s + V_AT, &v, bar + V_FULL, 0);
        for (int n = 0; n < tiles; n++) {
            const uint32_t st = n & 1;
            if (n >= 2 && mutant != 2) mbar_wait(bar + EMPTY + 8 * st, (n / 2 & 1) ^ 1); // @13
            expect(bar + FULL + 8 * st, mutant == 16 ? 2 * TILE + 16 : 2 * TILE);        // @2
            fetch(s + A_AT + st * TILE, &a, bar + FULL + 8 * st, n * 64);                // @2
            fetch(s + B_AT + st * TILE, &b, bar + FULL + 8 * st, n * 64);
        }
    } else if (warp == 4 && (thread == 128 || (mutant == 15 && thread == 129))) {
        /* f32 sums, bf16, 128 x 128; the second 128 x 64 with n along the rows of V */
        const uint32_t shape = 1u << 4 | 1u << 7 | 1u << 10 | 8u << 24, first = shape | 16u << 17;
        const uint32_t second = shape | 8u << 17 | (mutant == 10 ? 0 : 1u << 16);
        for (int n = 0; n < tiles; n++) {
            const uint32_t st = n & 1;
            if (mutant != 1) mbar_wait(bar + FULL + 8 * st, n / 2 & 1);                  // @16
            after();
            const uint64_t ad = desc(s + A_AT + st * TILE);
            const uint64_t bd = desc(s + B_AT + st * TILE) + (mutant == 9 ? (uint64_t)64 << 32 : 0);
            for (int k = 0; k < 4; k++) product(cells, ad + 2 * k, bd + 2 * k, first, n + k); // @1 @9 @15
            if (mutant != 13) commit(bar + EMPTY + 8 * st);
        }
        commit(bar + S_DONE);
        mbar_wait(bar + V_FULL, 0);
        mbar_wait(bar + P_THERE, 0);
        if (mutant != 8) after();
        const uint64_t vd = desc(s + V_AT);
        for (int k = 0; k < 8; k++)
            product_from_cells(cells + O_COLUMN, cells + 8 * k, vd + 128 * k, second, k); // @6 @7 @8 @12
        commit(bar + O_DONE);
    } else if (warp < 4) {
        const uint32_t lanes = cells + ((mutant == 14 ? warp ^ 1 : warp) << 21);
        if (mutant != 3) mbar_wait(bar + S_DONE, 0);
        if (mutant != 4) after();
        for (int i = 0; i < 16; i++) {
            uint32_t x[8], p[4];
            load8(x, lanes + 8 * i);                                                     // @3 @4 @14
            if (mutant != 5) wait_loads();
            for (int k = 0; k < 4; k++)
                p[k] = pack16(KP_BF16, __uint_as_float(x[2 * k]) * scale, __uint_as_float(x[2 * k + 1]) * scale); // @5
            store4(lanes + 4 * i, p);
        }
        if (mutant != 6) wait_stores();
        if (mutant != 7) before();
        mbar_arrive(bar + P_THERE);
        mbar_wait(bar + O_DONE, 0);
        after();
        for (int i = 0; i < 8; i++) {
            uint32_t x[8];
            load8(x, lanes + O_COLUMN + 8 * i);
            wait_loads();
            for (int k = 0; k < 8; k++) o[thread * 64 + 8 * i + k] = __uint_as_float(x[k]);
        }
        if (mutant != 17) before();
    }
    __syncthreads();
    if (warp == 4 && mutant != 11)
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(cells), "r"(mutant == 12 ? 128 : 256)); // @17
}
