/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: four warps that stand between the two CTAs and O: they send partial scores, bring P of both CTAs'
 * keys to O's offset, rescale O, and store it. A thread has one head. */
#ifndef ATTN_SM100_MLA_FWD_CORRECTION_H
#define ATTN_SM100_MLA_FWD_CORRECTION_H
#include "kernels/sm100/mla_fwd/work.h"

/* This CTA's columns of the scores of the other's keys. */
static __device__ __forceinline__ void send_scores(uint32_t base, uint32_t tm, int rank, uint32_t tile) {
    const uint32_t other = (uint32_t)(1 - rank);
    uint32_t x[CTA_KEYS];
    await(base, S_FULL + tile % 2, tile / 2);
    tc_after();
    tc_load32(x, tm + quarter_of() + cells_of_keys(tile, 1 - rank));
    const uint32_t there = cluster_address(base + AT_S + tile % 2 * SCORES + (uint32_t)head_of() * 16, other);
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 4; c++)
        cluster_store128(there + c * HEADS * 16, make_uint4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]));
    tell_written(base, 1 - rank, OTHER_S_FULL + tile % 2);
}

static __device__ __forceinline__ void scale_p(uint32_t p[CTA_KEYS / 2], float factor) {
    const uint32_t both = pack16(TYPE, factor, factor);
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 2; c++)
        p[c] = TYPE == KP_F16 ? multiply_f16x2(p[c], both) : multiply_bf16x2(p[c], both);
}
/* O has all tiles up to `tile`. */
static __device__ __forceinline__ void await_output(uint32_t base, uint32_t tile) {
    await(base, O_FULL + tile % 2, tile / 2);
}

/* P of all keys of a tile, relative to the offset of O, which follows those of both CTAs' keys. */
static __device__ __forceinline__ void merge_p(uint32_t base, uint32_t tm, int rank, uint32_t tile, int first,
                                               float *offset) {
    const uint32_t stage = tile % 2, head = (uint32_t)head_of(), lanes = tm + quarter_of();
    const uint32_t offsets = base + AT_OFFSETS + stage * 2 * HEADS * 4 + head * 4,
                   from = base + AT_P + stage * PROBABILITIES + head * 16;
    uint32_t own[CTA_KEYS / 2], other[CTA_KEYS / 2];
    await(base, OWN_P_FULL + stage, tile / 2);
    tc_after();
    tc_load16(own, lanes + cells_of_keys(tile, rank));
    await_other(base, OTHER_P_FULL + stage, tile / 2);
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 8; c++) {
        const uint4 y = shared_load128(from + c * HEADS * 16);
        other[4 * c] = y.x, other[4 * c + 1] = y.y, other[4 * c + 2] = y.z, other[4 * c + 3] = y.w;
    }
    const float own_offset = __uint_as_float(shared_load32(offsets)),
                other_offset = __uint_as_float(shared_load32(offsets + HEADS * 4));
    tc_wait_loads();
    const float most = fmaxf(own_offset, other_offset), before = *offset;
    const int grows = most > before + THRESHOLD;
    if (grows) *offset = most;
    await(base, O_FULL + stage, tile / 2 - 1); /* done, as S is; but no phase goes by unseen */
    if (!first && __any_sync(~0u, grows)) {
        await_output(base, tile - 1);
        tc_after();
        rescale_columns(lanes + TM_O, HALF_V, grows ? factor_of(before, most) : 1);
    }
    scale_p(own, factor_of(own_offset, *offset));
    scale_p(other, factor_of(other_offset, *offset));
    const uint32_t to = lanes + cells_of_keys(tile, 1 - rank);
    tc_store16(to + (uint32_t)rank * (CTA_KEYS / 2), own);
    tc_store16(to + (uint32_t)(1 - rank) * (CTA_KEYS / 2), other);
    tc_wait_stores();
    tc_before();
    tell_own(base, P_FULL + stage);
}

#if !CFG_JOINED
/* Of a part of the slots: O as it is, this CTA's columns, and what merging needs (kernels/smxx/mla_combine.cu). */
static __device__ __forceinline__ void store_part(const struct kp_mla_fwd_sm100 *p, const struct work *w,
                                                  uint32_t cells, int rank, const struct sums *row) {
    const int exists = head_of() < w->heads;
    const int64_t rows = p->in.batch * p->in.seq_q * p->in.heads_q,
                  place = w->part * rows + (w->b * p->in.seq_q + w->i) * p->in.heads_q + w->head0 + head_of();
    if (rank == 0 && exists) store_part_sums(p, place, row);
    store_part_columns((float *)p->part_o + place * DIM_V + rank * HALF_V, cells, HALF_V, exists);
    tc_before();
}
#endif

/* Out of the work tile, this CTA's columns; the even CTA stores lse and max_logits. */
static __device__ __forceinline__ void finish(const struct kp_mla_fwd_sm100 *p, const struct work *w, uint32_t base,
                                              uint32_t tm, int rank, uint32_t tile, uint32_t n, float offset) {
    const int h = head_of_row(p, w);
    const int64_t i = query_of_row(p, w);
    int exists = row_exists(p, w);
    const uint32_t place = base + AT_SUMS + n % 2 * SUMS + (uint32_t)head_of() * 16, cells = tm + quarter_of() + TM_O;
    await_other(base, SUMS_FULL, n);
    if (JOINED && comes_again(base, n)) exists = 0;
    const struct sums own = load_sums(place), other = load_sums(place + HEADS * 16);
    const float sum = own.sum * factor_of(own.offset, offset) + other.sum * factor_of(other.offset, offset);
    const struct sums row = {offset, sum, max_nan(own.largest, other.largest)};
    await_output(base, tile);
    tc_after();
#if !CFG_JOINED
    if (p->splits > 1) {
        store_part(p, w, cells, rank, &row);
        return;
    }
#endif
    const float factor = finish_row(p, w->b, i, h, &row, exists, rank == 0);
    uint16_t *to = (uint16_t *)p->out.data + w->b * p->out.batch + i * p->out.row + h * p->out.head + rank * HALF_V;
    store_columns(to, cells, HALF_V, factor, sum == 0, exists);
    tc_before();
}

static __device__ __forceinline__ void run_correction(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm,
                                                      int rank) {
    uint32_t stage = 0, tile = 0, n = 0;
    cursor x = start_cursor(base, 0);
    struct work w, next;
    int more_work = next_work(p, &next, x);
    if (more_work) bring_queries(base, tm, stage, 0);
    while (more_work) {
        float offset = -INF;
        w = next;
        send_scores(base, tm, rank, tile);
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++) {
            if (t + 1 < w.tiles) send_scores(base, tm, rank, tile + 1);
            merge_p(base, tm, rank, tile, t == 0, &offset);
        }
        stage += 2 + (uint32_t)w.tiles;
        x = step_cursor(x);
        more_work = next_work(p, &next, x);
        if (more_work) bring_queries(base, tm, stage, 0); /* its first scores are made under what follows */
        finish(p, &w, base, tm, rank, tile - 1, n++, offset);
    }
}
#endif
