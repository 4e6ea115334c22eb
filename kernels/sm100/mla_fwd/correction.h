/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: four warps between both CTAs' softmax and O: they bring P of all keys to O's offset, rescale O,
 * and store it. A thread has one head. */
#ifndef ATTN_SM100_MLA_FWD_CORRECTION_H
#define ATTN_SM100_MLA_FWD_CORRECTION_H
#include "kernels/sm100/mla_fwd/work.h"

/* P of a CTA's keys times a factor, where products read it. */
static __device__ __forceinline__ void put_p(uint32_t cells, const uint32_t p[CTA_KEYS / 2], float factor) {
    const uint32_t both = pack16(TYPE, factor, factor);
    uint32_t y[CTA_KEYS / 2];
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 2; c++)
        y[c] = TYPE == KP_F16 ? multiply_f16x2(p[c], both) : multiply_bf16x2(p[c], both);
    tc_store16(cells, y);
}
/* O has all tiles up to `tile`. */
static __device__ __forceinline__ void await_output(uint32_t base, uint32_t tile) {
    await(base, O_FULL + tile % 2, tile / 2);
}

/* The row's, as of the last tile merged: of P of this CTA's and of the other's keys, of O. */
struct offsets {
    float own, other, output;
};
/* A part of P as it came: whose offset has moved, takes it from `cells`. */
static __device__ __forceinline__ void take_offset(float *offset, uint32_t p[CTA_KEYS / 2], uint32_t cells) {
    if (p[0] & MOVED) *offset = __uint_as_float(shared_load32(cells));
    p[0] &= ~MOVED;
}

/* P of all keys of a tile, relative to the offset of O, which follows those of both CTAs' keys. P of own keys is there
 * first, and is put where it belongs while the other's is awaited, as if no offset moved; once more if one did. */
static __device__ __forceinline__ void merge_p(uint32_t base, uint32_t tm, int rank, uint32_t tile, int first,
                                               struct offsets *row) {
    const uint32_t stage = tile % 2, head = (uint32_t)head_of(), lanes = tm + quarter_of();
    const uint32_t offsets = base + AT_OFFSETS + stage * 2 * HEADS * 4 + head * 4,
                   from = base + AT_P + stage * PROBABILITIES + head * 16, to = lanes + cells_of_keys(tile, 1 - rank),
                   to_own = to + (uint32_t)rank * (CTA_KEYS / 2);
    uint32_t own[CTA_KEYS / 2], other[CTA_KEYS / 2];
    await(base, OWN_P_FULL + stage, tile / 2);
    tc_after();
    tc_load16(own, lanes + cells_of_keys(tile, rank));
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 2; c++) asm volatile("" : "+r"(own[c])); /* the compiler reads them after the wait */
    take_offset(&row->own, own, offsets);
    put_p(to_own, own, factor_of(row->own, row->output));
    await(base, O_FULL + stage, tile / 2 - 1); /* done, as S is; but no phase goes by unseen */
    await_other(base, OTHER_P_FULL + stage, tile / 2);
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 8; c++) {
        const uint4 y = shared_load128(from + c * HEADS * 16);
        other[4 * c] = y.x, other[4 * c + 1] = y.y, other[4 * c + 2] = y.z, other[4 * c + 3] = y.w;
    }
    take_offset(&row->other, other, offsets + HEADS * 4);
    const float most = fmaxf(row->own, row->other), before = row->output;
    const int grows = most > before + THRESHOLD;
    if (grows) row->output = most;
    if (__any_sync(~0u, grows)) {
        if (!first) {
            await_output(base, tile - 1);
            tc_after();
            rescale_columns(lanes + TM_O, HALF_V, grows ? factor_of(before, most) : 1);
        }
        tc_wait_stores();
        put_p(to_own, own, factor_of(row->own, row->output));
    }
    put_p(to + (uint32_t)(1 - rank) * (CTA_KEYS / 2), other, factor_of(row->other, row->output));
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
        struct offsets row = {-INF, -INF, -INF};
        w = next;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++) merge_p(base, tm, rank, tile, t == 0, &row);
        stage += 2 + (uint32_t)w.tiles;
        x = step_cursor(x);
        more_work = next_work(p, &next, x);
        if (more_work) bring_queries(base, tm, stage, 0); /* its first scores are made under what follows */
        finish(p, &w, base, tm, rank, tile - 1, n++, row.output);
    }
}
#endif
