/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: the warp that starts all copies into the CTA, and the warp that lists where a tile's gradients
 * go. */
#ifndef ATTN_SM100_MLA_BWD_LOADS_H
#define ATTN_SM100_MLA_BWD_LOADS_H

/* Scores: this CTA's 32 slots, all columns. Copy c: rows 4 (c % 8).., columns 64 (c / 8).. */
static __device__ __forceinline__ void gather_keys(const struct kp_mla_bwd_sm100 *p, uint32_t to, uint32_t barrier,
                                                   int rows) {
#pragma unroll
    for (int c0 = 0; c0 < 8 * SLICES; c0 += 32) {
        const int c = c0 + lane_of(), group = c % 8, slice = c / 8;
        const int4 row = four_rows(rows, group);
        if (c < 8 * SLICES) tensor_gather4(to + slice * K_SLICE + group * 512, &p->kv, barrier, slice * 64, row);
    }
}
/* dQ: all 64 slots (lane: slots lane and 32 + lane), this CTA's columns. */
static __device__ __forceinline__ void gather_columns(const struct kp_mla_bwd_sm100 *p, uint32_t to, uint32_t barrier,
                                                      int rank, int rows0, int rows1) {
#pragma unroll
    for (int c0 = 0; c0 < 16 * (ROPE ? 5 : 4); c0 += 32) {
        const int c = c0 + lane_of(), group = c % 16, slice = c / 16;
        const int4 low = four_rows(rows0, group % 8), high = four_rows(rows1, group % 8);
        const int4 row = group < 8 ? low : high;
        if (slice < 4)
            tensor_gather4(to + slice * KT_SLICE + group * 512, &p->kv, barrier, rank * HALF_V + slice * 64, row);
        else if (ROPE && slice == 4)
            tensor_gather4(to + KT_ROPE + group * 256, &p->rope, barrier, DIM_V + rank * HALF_ROPE, row);
    }
}

/* Stacked: `slices` slices of a CTA's rows of Q and dO, 64 columns each from `column` on and, the last, of rope, which
 * dO does not have: zeros. A copy brings 16 heads. */
static __device__ __forceinline__ void load_rows(const struct kp_mla_bwd_sm100 *p, const struct work *w, uint32_t to,
                                                 uint32_t full, int rank, int slices, int column) {
    const int2 box = box_of_rows(&p->bwd, w, rank);
    if (lane_of() == 0) mbar_expect(full, (uint32_t)slices * Q_SLICE);
    __syncwarp();
    for (int c = lane_of(); c < 4 * slices; c += 32) {
        const int slice = c / 4, x = ROPE && slice == slices - 1 ? DIM_V : column + 64 * slice;
        tensor_copy4(to + (uint32_t)c * (Q_SLICE / 4), c & 1 ? &p->dout : &p->q, full, x, box.x + c / 2 % 2 * 16, box.y,
                     (int)w->b);
    }
    __syncwarp();
}
/* Q and dO of this CTA's heads, and the other CTA's heads in this CTA's columns. Lanes start a slice each. */
static __device__ __forceinline__ void load_heads(const struct kp_mla_bwd_sm100 *p, const struct work *w, uint32_t base,
                                                  int rank) {
    const uint32_t full = at_barrier(base, Q_FULL), lane = (uint32_t)lane_of();
    const int2 own = box_of_rows(&p->bwd, w, rank);
    const int b = (int)w->b;
    if (STACKED) {
        load_rows(p, w, base + AT_Q, full, rank, SLICES, 0);
        return;
    }
    if (lane == 0) mbar_expect(full, (SLICES + SLICES_V) * Q_SLICE);
    __syncwarp();
    if (lane < SLICES)
        tensor_copy4(base + AT_Q + lane * Q_SLICE, &p->q, full, (int)lane * 64, own.x, own.y, b);
    else if (lane < SLICES + SLICES_V)
        tensor_copy4(base + AT_DOUT + (lane - SLICES) * Q_SLICE, &p->dout, full, (int)(lane - SLICES) * 64, own.x,
                     own.y, b);
    __syncwarp();
}
static __device__ __forceinline__ void load_other_heads(const struct kp_mla_bwd_sm100 *p, const struct work *w,
                                                        uint32_t base, int rank) {
    const uint32_t full = at_barrier(base, OTHER_FULL);
    const int2 other = box_of_rows(&p->bwd, w, 1 - rank);
    const int lane = lane_of(), b = (int)w->b;
    if (STACKED) {
        load_rows(p, w, base + AT_OTHER_Q, full, 1 - rank, ROPE ? 5 : 4, rank * HALF_V);
        return;
    }
    if (lane == 0) mbar_expect(full, (ROPE ? 9 : 8) * Q_SLICE);
    __syncwarp();
    if (lane < 4)
        tensor_copy4(base + AT_OTHER_Q + lane * Q_SLICE, &p->q, full, rank * HALF_V + lane * 64, other.x, other.y, b);
    else if (lane < 8)
        tensor_copy4(base + AT_OTHER_DOUT + (lane - 4) * Q_SLICE, &p->dout, full, rank * HALF_V + (lane - 4) * 64,
                     other.x, other.y, b);
    else if (ROPE && lane == 8)
        tensor_copy4(base + AT_OTHER_ROPE, &p->q, full, DIM_V, other.x, other.y, b);
    __syncwarp();
}

/* Stacked: K for dQ^T of a tile, asked for after K for the scores of the next tile, which are started before. */
static __device__ __forceinline__ void load_columns(const struct kp_mla_bwd_sm100 *p, const struct work *w,
                                                    uint32_t base, int rank, int t, int64_t row0, uint32_t *nth) {
    const uint32_t full = at_barrier(base, KT_FULL);
    const int low = row_of_slot(&p->bwd, w, t, lane_of(), row0, -1),
              high = row_of_slot(&p->bwd, w, t, 32 + lane_of(), row0, -1);
    await(base, KT_EMPTY, (*nth)++ - 1);
    if (rank == 0 && lane_of() == 0) mbar_expect(full, 2 * STAGE);
    __syncwarp();
    gather_columns(p, base + AT_KT, pair_leader(full), rank, low, high);
}

/* The warp of copies. Stages of K are counted over both passes of all work tiles. */
static __device__ __forceinline__ void run_copies(const struct kp_mla_bwd_sm100 *p, uint32_t base, int rank) {
    const int lane = lane_of(), with_dq = p->bwd.dq.data != 0;
    uint32_t stage = 0, n = 0, done = 0; /* stages, work tiles, phases of PDS_EMPTY before this work tile */
    uint32_t columns = 0;                /* tiles of K for dQ^T */
    struct work w;
    for (int64_t x = first_work(); next_work(&p->bwd, &w, x); x += work_step(), n++) {
        const int64_t row0 = w.b * p->kv_rows;
        const int ds_row = (int)(blockIdx.x * p->tiles) * CTA_HEADS;
        await(base, Q_EMPTY, n - 1);
        load_heads(p, &w, base, rank);
        for (uint32_t k = 1; k <= STAGES && k <= stage; k++)
            await(base, K_EMPTY + (stage - k) % STAGES, (stage - k) / STAGES);
        load_other_heads(p, &w, base, rank);
        await(base, OTHER_EMPTY, n);
        for (int t = 0; t < w.tiles; t++, stage++) {
            const uint32_t full = at_barrier(base, K_FULL + stage % STAGES);
            const int rows = row_of_slot(&p->bwd, &w, t, rank * CTA_KEYS + lane, row0, -1);
            await(base, K_EMPTY + stage % STAGES, stage / STAGES - 1);
            if (rank == 0 && lane == 0) mbar_expect(full, 2 * STAGE);
            __syncwarp();
            gather_keys(p, base + AT_K + stage % STAGES * STAGE, pair_leader(full), rows);
            if (STACKED && with_dq && t > 0) load_columns(p, &w, base, rank, t - 1, row0, &columns);
        }
        done += (uint32_t)w.tiles;
        if (STACKED && with_dq) load_columns(p, &w, base, rank, w.tiles - 1, row0, &columns);
        if (STACKED || !with_dq) continue;
        await(base, DS_STORED, n);
        await(base, PDS_EMPTY, done - 1);
        if (JOINED) await(base, ODD_FULL, n);
        const struct rounds rounds = rounds_of_dq(&w, JOINED && shared_load32(base + AT_ODD_WORK));
        for (int r = rounds.from; r < rounds.until; r++) {
            const int2 tiles = tiles_of_round(&p->bwd, &w, r);
            for (int t = tiles.x; t < tiles.y; t++, stage++) {
                const uint32_t full = at_barrier(base, K_FULL + stage % STAGES);
                const int rows0 = row_of_slot(&p->bwd, &w, t, lane, row0, rounds.whole ? -1 : r),
                          rows1 = row_of_slot(&p->bwd, &w, t, 32 + lane, row0, rounds.whole ? -1 : r);
                await(base, K_EMPTY + stage % STAGES, stage / STAGES - 1);
                if (rank == 0 && lane == 0) mbar_expect(full, 2 * (STAGE + DS_STAGE));
                __syncwarp();
                gather_columns(p, base + AT_K + stage % STAGES * STAGE, pair_leader(full), rank, rows0, rows1);
                if (lane == 0)
                    tensor_copy2(base + AT_P + stage % STAGES * DS_STAGE, &p->ds, pair_leader(full), 0,
                                 ds_row + t * CTA_HEADS);
                __syncwarp();
            }
        }
        done++;
    }
}

/* The warp of scatter lists: of each tile 64 offsets in elements, from the batch entry's sums or its stored rows, and
 * which slots are valid. */
static __device__ __forceinline__ void run_scatter_list(const struct kp_mla_bwd *p, uint32_t base) {
    const int lane = lane_of();
    uint32_t tile = 0;
    struct work w;
    for (int64_t x = first_work(); next_work(p, &w, x); x += work_step())
        for (int t = 0; t < w.tiles; t++, tile++) {
            const uint32_t scatter = base + AT_SCATTER + tile % SCATTER_STAGES * SCATTER_STAGE;
            int rows[2];
#pragma unroll
            for (int k = 0; k < 2; k++) rows[k] = row_of_slot(p, &w, t, 32 * k + lane, 0, -1);
            if (STORED_ROWS) list_entries(p, &w, t, rows);
            if (WORDS)
                await_pair(base, SCATTER_EMPTY + tile % SCATTER_STAGES, tile / SCATTER_STAGES - 1);
            else
                await(base, SCATTER_EMPTY + tile % SCATTER_STAGES, tile / SCATTER_STAGES - 1);
            uint32_t valid[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int64_t offset = STORED_ROWS ? ((int64_t)t * KEYS + 32 * k + lane) * DIM : rows[k] * p->sum.row;
                valid[k] = __ballot_sync(~0u, rows[k] >= 0);
                shared_store32x2(scatter + 8 * (32 * k + lane), (uint32_t)offset,
                                 rows[k] >= 0 ? (uint32_t)(offset >> 32) : NOWHERE);
            }
            if (lane < 2 * QUERIES)
                shared_store32(scatter + SCATTER_BITS + 4 * lane, bits_of_tile(p, &w, t, lane, valid));
            __syncwarp();
            if (lane == 0) mbar_arrive(at_barrier(base, SCATTER_FULL + tile % SCATTER_STAGES));
        }
}
#endif
