/* SPDX-License-Identifier: MIT
 * A test of the simulator, not of the library: a product of a pair of CTAs on sm_100 whose rows of A are gathered, and
 * a switch for each thing that can be forgotten.
 *
 *   o[r] = a[index[r]] b^T for 256 rows r and 128 columns; each CTA fetches its 128 rows, four at a time, and its 64
 *   columns of B, and tells the barrier of CTA 0, whose warp 4 starts the products for both; warps 0 to 3 of each write
 *   the rows of their CTA
 *
 * a [any x 64 tiles], b [128 x 64 tiles] bf16, index [256], o [256 x 128] f32; one cluster of two CTAs.
 * Shared memory of each: A 2 x 16384, B 2 x 8192, barriers.   Tensor memory of each: D 0..127
 * FULL [2] of CTA 0 (1 + bytes of both)  EMPTY [2] of both (commit)  DONE of both (commit)
 *
 * mutant: 0 is right; others leave out or spoil what stands at the mark @n. */
#include "tests/sim/blackwell_tcgen05.h"

enum { A_AT = 0, B_AT = 32768, BARRIERS = 49152, SLOT = 49280, A_TILE = 16384, B_TILE = 8192 };
enum { FULL = 0, EMPTY = 16, DONE = 32, COLUMNS = 128 };

WORDS uint32_t rank_of(void) {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
WORDS void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
WORDS uint32_t in_first(uint32_t address) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(address));
    return there;
}
WORDS void gather(uint32_t to, const tensor_map *map, uint32_t barrier, int column, int4 row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4"
                 ".mbarrier::complete_tx::bytes.cta_group::2 [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row.x),
                 "r"(row.y), "r"(row.z), "r"(row.w)
                 : "memory");
}
WORDS void fetch_far(uint32_t to, const tensor_map *map, uint32_t barrier, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
                 "[%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}
WORDS void commit_both(uint32_t barrier, int mask) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                     barrier),
                 "h"((short)mask)
                 : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192, 1)
    blackwell_pair(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b, const int *index,
                   float *o, int tiles, int mutant) {
    const uint32_t s = shared_base(), bar = s + BARRIERS, rank = rank_of();
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 4) {
        if (mutant == 15)
            alloc<1>(s + SLOT, COLUMNS);
        else
            alloc<2>(s + SLOT, mutant == 16 ? 64 : COLUMNS);                               // @15
    }
    if (thread == 0) {
        for (int i = 0; i <= DONE; i += 8) mbar_init(bar + i, 1);
        mbar_init_fence();
    }
    before();
    if (mutant == 12)
        __syncthreads();
    else
        cluster_sync();
    after();
    const uint32_t cells = shared_load32(s + SLOT), far = in_first(bar);
    if (thread == 160) {
        for (int j = 0; j < tiles; j++) {
            const uint32_t st = j & 1, full = (mutant == 14 ? bar : far) + FULL + 8 * st;
            if (j >= 2 && mutant != 2) mbar_wait(bar + EMPTY + 8 * st, (j / 2 & 1) ^ 1);   // @8
            if (rank == 0)
                expect(bar + FULL + 8 * st, 2 * (A_TILE + B_TILE) - (mutant == 6 ? A_TILE : 0)); // @2
            for (int i = 0; i < 32; i++) {
                int4 row = ((const int4 *)index)[rank * 32 + i];
                if (mutant == 10) row = make_int4(row.y, row.x, row.z, row.w);
                gather(s + A_AT + st * A_TILE + i * 512, &a, full, j * 64, row);           // @2 @12
            }
            fetch_far(s + B_AT + st * B_TILE, &b, full, j * 64, mutant == 18 ? 0 : rank * 64); // @2
        }
    } else if (thread == 128 && (rank == 0 || mutant == 19)) {
        const uint32_t shape = shape_of(mutant == 20 ? 128 : 256, 128, 0);
        for (int j = 0; j < tiles; j++) {
            const uint32_t st = j & 1;
            if (mutant != 1) mbar_wait(bar + FULL + 8 * st, mutant == 7 ? (j / 2 & 1) ^ 1 : j / 2 & 1); // @19
            after();
            const uint64_t ad = desc(s + A_AT + st * A_TILE, 16), bd = desc(s + B_AT + st * B_TILE, 16);
            for (int e = 0; e < 4; e++)
                product<2>(cells, ad + 2 * e + (mutant == 11 ? (uint64_t)64 << 32 : 0), bd + 2 * e, shape, j + e); // @1 @7 @11 @16
            commit_both(bar + EMPTY + 8 * st, mutant == 8 ? 1 : 3);
        }
        commit_both(bar + DONE, 3);
    }
    if (warp < 4) {
        const uint32_t lanes = cells + ((mutant == 17 ? warp ^ 1 : warp) << 21);
        if (mutant != 3) mbar_wait(bar + DONE, 0);
        if (mutant != 4) after();
        for (int i = 0; i < 128; i += 16) {
            uint32_t word[16];
            load16(word, lanes + i);                                                       // @3 @4 @17
            if (mutant != 5) wait_loads();
            for (int e = 0; e < 16; e++) o[(rank * 128 + thread) * 128 + i + e] = __uint_as_float(word[e]); // @5
        }
        before();
    }
    __syncthreads();
    if (mutant == 13) {
        if (rank == 1) return;
    } else {
        cluster_sync();
    }
    if (warp == 4 && !(mutant == 9 && rank == 1)) dealloc<2>(cells, mutant == 16 ? 64 : COLUMNS);
}
