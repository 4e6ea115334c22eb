/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Hopper, a third schedule, after specialized.cu (formulas, work tiles, key tiles there) and
 * lockstep.cu: two warpgroups by turns, a tile apart. One forms S, P and dS of a tile and then brings its dKV to
 * memory; the other does the same with the tile after it, so that what leaves the multiprocessor does so all the time,
 * and the products of the next tile overlap with it. CTAS = 2: a work tile is 128 heads, 64 in each CTA of a cluster,
 * and the owners of a tile in both CTAs sum most of its dKV before it goes to memory (pingpong_reduce_partial.h).
 * Deterministic: dKV of a slot is stored, not added (pingpong_store_rows.h; pairs sum all of it,
 * pingpong_reduce_full.h, and the last CTAs of a launch take no work tiles but sum what the launch before has stored,
 * overlapped_sum.h).
 *
 * Launched by src/cuda/sparse/mla_bwd_sm90.c, and over joined lists (JOINED: an entry is a key and a bit for each query
 * of a group; docs/joined_lists.md) by mla_bwd_joined_sm90.c.
 *
 * Where dKV is added, not stored, and queries are apart, producers also form the row statistics (struct kp_mla_row:
 * lse, the sink's remainder g, the shift of dP) of the next work tile, `states` in the code (row_stats_prefetch.h).
 *
 *   producer   q, dout --> Q, dO (slice x when both have released the last work tile's)   kv rows by index --> K(n + 1)
 *   a   |S^T, dP^T(n) |P, dS(n)| dQ(n)|dKV(n), to memory ........................|dQ(n + 1)|S^T, dP^T(n + 2) ...
 *   b    dKV(n - 1) ............|dQ(n)|S^T, dP^T(n + 1)|P, dS(n + 1)| dQ(n + 1)|dKV(n + 1) ......................
 *
 * Who owns a tile, warpgroup n % 2 of the n-th tile of the CTA, whatever work tile it belongs to: S^T and dP^T are one
 * product m64n128 of a slice of K and the slices of Q and dO that stand side by side; P^T and dS^T are rounded where
 * they stand and are operands A of its dKV, of all columns; dS also goes to shared memory, for both. dQ of all tiles is
 * shared by columns, 256 w .. 256 w + 255 and 512 + 32 w .. 543 + 32 w, in registers for the work tile. K is let go of
 * when both have done dQ, and gathered anew while the owner's dKV, which does not need it, goes on.
 *
 * Roles (384 threads, 1 CTA an SM): warpgroups 0 and 1, 240 registers: dQ 144, S^T and dP^T 64, or sums and operands of
 * dKV 32 each; 2: producers, 24.
 * Shared memory: as lockstep.cu, but that slices of Q and dO stand by turns, and that P has no place: the
 * stages, what the other CTA sends, have it; deterministic, CTAS = 1: P^T, which only its own warp reads again.
 * Barriers: arrivals --> who waits
 *   Q_FULL               PRODUCERS --> the owner of the first tile; others have waited for K_FULL after it
 *   Q_FREE [slice]       8 warps, the last dKV of each that reads it being done --> producers
 *   K_FULL [pair]        PRODUCERS --> the tile's owner
 *   K_FREE [4]           4 warps of w, dQ being done with slices 4 w, 4 w + 1, then with the next two --> producers
 *   DS_FULL              4 warps of the owner: dS is written --> 0, 1
 *   MOST_FULL            deterministic: 4 producer warps, the largest |Q| and |dO| being stored --> owners of the
 *                        first two tiles
 *   DS_FREE              FREES_DS: 4 producer warps, what they had in the place of dS being read --> the tile's owner
 *   K_PREFETCHED         PREFETCH_FIRST: PRODUCERS, all of a tile's K being asked for --> the owner of the tile before
 *   STAGE_ORDER [y]      CTAS = 2: 4 warps, the tile's last message of stage y being taken --> the next tile's owner;
 *                        deterministic: one for both stages
 *   STAGE_FULL [y]       4 warps, and the bytes that the other CTA sends --> the owner
 *   STAGE_FREE [y]       the other CTA's 4 warps: read, may be filled again --> the owner
 *   named 1, 2           a warpgroup: its work tile
 *   named 4              producers: theirs
 * Phases: a tile, for Q a work tile with a slot at least, for the stages four a tile. dS is written again after K_FULL
 * of all of the next tile, so after all warps' K_FREE, before which they have read it; the kv rows of its slots and
 * the mask of tile n, place n % 2, are read by its owner before its K_FREE of n and rewritten when K of n + 1 has
 * been asked for, which is after all K_FREE of n. A warpgroup without a tile of a work tile lets go of its Q when
 * it sees dS of it. */
#include "kernels/device/grid.h"
#include "kernels/sm90/mla_bwd/pingpong_cells.h"
#include "kernels/sm90/mla_bwd/producers.h"
#if CFG_CTAS == 2 && CFG_DETERMINISTIC
#include "kernels/sm90/mla_bwd/overlapped_sum.h"
#include "kernels/sm90/mla_bwd/pingpong_reduce_full.h"
#elif CFG_DETERMINISTIC
#include "kernels/sm90/mla_bwd/pingpong_store_rows.h"
#elif CFG_CTAS == 2
#include "kernels/sm90/mla_bwd/pingpong_reduce_partial.h"
#else
#include "kernels/sm90/mla_bwd/pingpong_scatter_add.h"
#endif
#ifdef CFG_JOINED
#include "kernels/sm90/mla_bwd/joined_cells.h"
#endif

/* dQ += dS K of a tile; two groups, of 128 columns each. */
template <int W>
static __device__ __forceinline__ void add_dq(uint32_t shared, float q[128], float rope[16], const uint32_t ds[16]) {
    const uint64_t k = slice_desc(shared + K_AT + W * 4 * SLICE, SLICE);
    const uint64_t k8 = slice_desc(shared + K_AT + 8 * SLICE + W * 64, SLICE);
    wgmma_hold(q, 128);
    wgmma_hold(rope, 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma_rs_n128<TYPE, 1>(q, ds + 4 * kk, desc_step(k, kk * 2048), 1);
    wgmma_commit();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        wgmma_rs_n128<TYPE, 1>(q + 64, ds + 4 * kk, desc_step(k, 2 * SLICE + kk * 2048), 1);
        if (SLICES > 8) wgmma_rs_n32<TYPE, 1>(rope, ds + 4 * kk, desc_step(k8, kk * 2048), 1);
    }
    wgmma_commit();
}
/* Slices 4 W, 4 W + 1 (y = 0) or the next two and slice 8 are read by the warp, as is all that came before. */
template <int W> static __device__ __forceinline__ void free_keys(uint32_t shared, int y) {
    if (lane_of() == 0) mbar_arrive(shared + K_FREE + 16 * W + 8 * y);
}

#if CFG_DETERMINISTIC
/* The rest of own_tile: K is let go of, rows get their powers of two, meanwhile, and are stored. */
template <int W>
static __device__ __forceinline__ void finish_rows(const struct kp_mla_bwd *p, uint32_t shared, float q[128],
                                                   float rope[16], struct tile *t, int i, int tiles, uint32_t parity) {
    const uint32_t sums = shared + SUMS_AT + 16 * W, buf = parity & 1;
    const int last = i + 2 >= tiles;
    struct scatter_dst to;
    if (PREFETCH_FIRST) t->n = buf ^ 1; /* phase n + 1 */
    if (i < 2) mbar_wait(shared + MOST_FULL, parity >> 1);
    load_own(shared, t);
    begin_rows(p, &to, shared, buf);
    __syncwarp(); /* dS, kv rows and mask are read by all lanes */
    bound_rows(&to, t, 0, shared, sums, i, buf, CTAS == 1);
    wgmma_wait(1);
    free_keys<W>(shared, 0);
    bound_rows(&to, t, 1, shared, sums, i, buf, CTAS == 1);
    wgmma_wait(0);
    wgmma_hold(q, 128);
    wgmma_hold(rope, 16);
    free_keys<W>(shared, 1);
    find_dst(p, &to, shared, sums, i, buf, rank_of());
#ifdef CFG_NEAR
    int32_t over;
    find_lines(&to, &over);
    float a[32];
    multiply_slice<0>(a, t, 0);
    do_slices<0>(shared, a, t, last, [&](const float *d, uint32_t column) { store_lines(d, &to, over, column); });
#else
    float a[16], b[16];
#if CFG_CTAS == 2
    start_exchange(a, t, 0);
    do_exchange<W, 0>(shared, a, b, t, &to, last, buf, i);
#else
    start_row(a, t, 0);
    do_rows<0>(shared, a, b, t, &to, last);
#endif
#endif
}
#else
/* dKV: the products of the first unit; all units, last: of the tiles that the warpgroup owns. */
static __device__ __forceinline__ void start_first(float *a, const struct tile *t) {
#if CFG_CTAS == 2
    multiply<0>(a, t, 0, 0);
#else
    multiply<0>(a, t, 0, 0);
#endif
}
static __device__ __forceinline__ void do_units(uint32_t shared, float *a, const struct tile *t,
                                                const struct scatter_dst *to, int last, uint32_t tile) {
#if CFG_CTAS == 2
    do_all_interleaved(shared, a, t, to, last, tile);
#else
    do_all_added(shared, a, t, to, last);
#endif
}
#endif

/* Tile i of the work tile's `tiles`, which this warpgroup owns. parity: bit 0 of tiles, bit 1 of work tiles. */
template <int W>
static __device__ __forceinline__ void own_tile(const struct kp_mla_bwd *p, uint32_t shared, float q[128],
                                                float rope[16], int i, int tiles, uint32_t parity) {
    struct tile t;
#if defined CFG_JOINED && CFG_CTAS == 1
    {
        float y[64];
        uint4 last_states[2];
        score_both(shared, y, parity, i == 0, last_states);
        form_joined(shared, p, y, parity & 1, &t, last_states);
    }
#else
    float dist[2];
    const uint32_t valid = [&] {
        float y[64];
        uint4 last_states[2];
        score_both(shared, y, parity, i == 0, last_states);
#ifdef CFG_JOINED
        flag_exact_path(shared, y);
        const uint32_t bits = entries_of_query(shared, parity & 1);
#else
        const uint32_t bits = valid_slots(shared, parity & 1);
#endif
        form_cells(shared, p, y, bits, &t, dist, last_states);
        return bits;
    }();
#endif
    publish_ds(shared, t.ds, parity);
    mbar_wait(shared + DS_FULL, parity & 1);
#ifdef CFG_JOINED
#if CFG_CTAS == 1
    if (p->part_dist) leave_dist_of_group<W>(p, shared, parity & 1);
#endif
    if (takes_exact_path(shared)) {
#if CFG_CTAS == 2
        if (p->part_dist) leave_dist(dist, valid, dist_of_entries<W>(shared, parity & 1));
#endif
        add_dq_exactly<W>(p, shared, parity & 1, q, rope);
        add_dkv_exactly(p, shared, shared + SUMS_AT + 16 * W, parity & 1, t.probs);
#if CFG_CTAS == 2
        struct scatter_dst to;
        find_dst(p, &to, shared, shared + SUMS_AT + 16 * W, i, parity & 1, rank_of());
        __syncwarp();
        free_keys<W>(shared, 0);
        free_keys<W>(shared, 1);
        do_all_silently(shared, &to, i + 2 >= tiles, parity & 1);
#else
        free_keys<W>(shared, 0);
        free_keys<W>(shared, 1);
        if (i + 2 >= tiles && lane_of() < SLICES) mbar_arrive(shared + Q_FREE + 8 * (uint32_t)lane_of());
#endif
        return;
    }
#endif
    uint32_t ds[16];
    load_transposed(ds, shared + DS_AT);
    add_dq<W>(shared, q, rope, ds);
#if defined CFG_JOINED && CFG_CTAS == 2
    if (p->part_dist) leave_dist(dist, valid, dist_of_entries<W>(shared, parity & 1));
#elif !defined CFG_JOINED
    if (p->part_dist) leave_dist(dist, valid, kept(shared + ROWS_AT + 32 * W + 16) + 256 * (uint32_t)i);
#endif
    t.o = slice_desc(shared + DOUT_AT, SLICE);
    t.q = slice_desc(shared + Q_AT, SLICE);
#if CFG_DETERMINISTIC
    finish_rows<W>(p, shared, q, rope, &t, i, tiles, parity);
#else
    struct scatter_dst to;
    find_dst(p, &to, shared, shared + SUMS_AT + 16 * W, i, parity & 1, rank_of());
    float a[16];
    start_first(a, &t);
    __syncwarp(); /* dS, kv rows and mask are read by all lanes */
    wgmma_wait(2);
    free_keys<W>(shared, 0);
    wgmma_wait(1);
    wgmma_hold(q, 128);
    wgmma_hold(rope, 16);
    free_keys<W>(shared, 1);
    do_units(shared, a, &t, &to, i + 2 >= tiles, parity & 1);
#endif
}
/* A tile that the other warpgroup owns. */
template <int W>
static __device__ __forceinline__ void other_tile(const struct kp_mla_bwd *p, uint32_t shared, float q[128],
                                                  float rope[16], int tiles, uint32_t parity) {
    mbar_wait(shared + DS_FULL, parity & 1);
#ifdef CFG_JOINED
    if (takes_exact_path(shared)) {
        add_dq_exactly<W>(p, shared, parity & 1, q, rope);
        __syncwarp();
        if (tiles == 1 && lane_of() < SLICES) mbar_arrive(shared + Q_FREE + 8 * (uint32_t)lane_of());
        free_keys<W>(shared, 0);
        free_keys<W>(shared, 1);
        return;
    }
#endif
    uint32_t ds[16];
    load_transposed(ds, shared + DS_AT);
    add_dq<W>(shared, q, rope, ds);
    __syncwarp();
    if (tiles == 1 && lane_of() < SLICES) mbar_arrive(shared + Q_FREE + 8 * (uint32_t)lane_of());
    wgmma_wait(1);
    free_keys<W>(shared, 0);
    wgmma_wait(0);
    wgmma_hold(q, 128);
    wgmma_hold(rope, 16);
    free_keys<W>(shared, 1);
}

template <int W> static __device__ __forceinline__ void consume(const struct kp_mla_bwd *p, uint32_t shared) {
    if (PREFETCH_FIRST) mbar_wait(shared + K_PREFETCHED, 0); /* of the first tile: no other wait covers it */
    uint32_t parity = 0;                           /* bit 0: of tiles, bit 1: of work tiles with slots */
    for (uint32_t work = 0; has_work(p, work); work++) {
        keep_work_of<W>(p, work_tile_index(p, work), shared);
        const int tiles = (int)shared_load32(shared + ROWS_AT + 32 * W + 12);
        float q[128], rope[16];
#pragma unroll
        for (int x = 0; x < 128; x++) q[x] = 0;
#pragma unroll
        for (int x = 0; x < 16; x++) rope[x] = 0;
#pragma unroll 1
        for (int i = 0; i < tiles; i++, parity ^= 1) {
            if ((parity & 1) == W)
                own_tile<W>(p, shared, q, rope, i, tiles, parity);
            else
                other_tile<W>(p, shared, q, rope, tiles, parity);
        }
        if (tiles) parity ^= 2;
        if (p->dq.data) {
            store_dq<W>(shared, p, q, 1, 32, 256 * W);
            if (SLICES > 8) store_dq<W>(shared, p, rope, 1, 4, 512 + 32 * W);
        }
    }
}

static __device__ __forceinline__ void run_work_tiles(const struct kp_mla_bwd *p, uint32_t shared) {
    if (threadIdx.x == 0) {
        mbar_init(shared + Q_FULL, PRODUCERS);
        for (uint32_t x = 0; x < SLICES; x++) mbar_init(shared + Q_FREE + 8 * x, 8);
        for (uint32_t x = 0; x < (SLICES + 1) / 2; x++) mbar_init(shared + K_FULL + 8 * x, PRODUCERS);
        for (uint32_t x = 0; x < 4; x++) mbar_init(shared + K_FREE + 8 * x, 4);
        mbar_init(shared + DS_FULL, 4);
        if (STORED_ROWS) mbar_init(shared + MOST_FULL, PRODUCERS / 32);
        if (FREES_DS) mbar_init(shared + DS_FREE, PRODUCERS / 32);
        if (PREFETCH_FIRST) mbar_init(shared + K_PREFETCHED, PRODUCERS);
#if CFG_CTAS == 2
        init_stages(shared);
#endif
        mbar_init_fence();
    }
    __syncthreads();
#if CFG_CTAS == 2
    cluster_sync();
#endif
    if (CTAS == 1) {
        if (!(p->steps & KP_MLA_BWD_NO_GRID_WAIT)) grid_wait();
        grid_release();
    }
    switch (threadIdx.x >> 7) {
    case 0:
        registers_more<240>();
        consume<0>(p, shared);
        break;
    case 1:
        registers_more<240>();
        consume<1>(p, shared);
        break;
    default: registers_fewer<24>(); produce_tiles(p, shared);
    }
#if CFG_CTAS == 2
    cluster_sync();
#endif
    if (CTAS == 1) grid_wait(); /* its dependents thereby depend on the launch before */
}

#if CFG_CTAS == 2 && CFG_DETERMINISTIC
/* Launches with an overlapped sum begin early, and work tiles wait for nothing: launch i + 1 begins when all CTAs of i
 * have ended or released it, its summing CTAs after the end of launch i - 1, and its rows go to the buffer that this
 * one's summing CTAs have read. */
extern "C" __global__ void __launch_bounds__(KP_MLA_BWD_SM90_EVEN_THREADS, 1)
    CFG(const __grid_constant__ struct kp_mla_bwd_rows p) {
    const uint32_t shared = shared_base();
    if (blockIdx.x < (uint32_t)p.bwd.workers) {
        grid_release();
        run_work_tiles(&p.bwd, shared);
    } else {
        grid_wait();
        grid_release();
        sum_overlapped(&p, shared);
    }
}
#else
#ifdef CFG_JOINED
using params = struct kp_mla_bwd_joined;
#else
using params = struct kp_mla_bwd;
#endif
extern "C" __global__ void __launch_bounds__(KP_MLA_BWD_SM90_EVEN_THREADS, 1)
    CFG(const __grid_constant__ params p) {
    run_work_tiles((const struct kp_mla_bwd *)&p, shared_base());
}
#endif
