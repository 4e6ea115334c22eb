/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: four warps that take dQ of each step from tensor memory and add it to the sums of all CTAs of
 * the head in memory, in the order in which kernels/smxx/sdpa_bwd_convert.cu reads them (fours). */
#ifndef ATTN_SM100_SDPA_BWD_SUMS_H
#define ATTN_SM100_SDPA_BWD_SUMS_H
#include "kernels/device/reduce.h"
#include "kernels/device/turns.h"
#include "kernels/sm100/sdpa_bwd/layout.h"

/* The warp's 32 queries: fragments of 16 queries and 8 columns, x[m] of queries 16 m..; of fragment n x[m][4 n].. */
constexpr int DQ_COLUMNS = DIM / CTAS;
struct fragments {
    uint32_t x[2][DQ_COLUMNS / 2];
};
static __device__ __forceinline__ void load_dq(struct fragments *f, uint32_t cells) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
        tc_load_16x64(f->x[m], cells + (16u << 16) * m);
        if (DQ_COLUMNS > 64) tc_load_16x32(f->x[m] + DQ_COLUMNS / 2 - 16, cells + 64 + (16u << 16) * m);
    }
    tc_wait_loads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int c = 0; c < DQ_COLUMNS / 2; c++) asm volatile("" : "+r"(f->x[m][c])); /* read after the wait */
}
/* to: the warp's part of the tile, the lane's four numbers of a fragment. */
static __device__ __forceinline__ void add_dq(float *to, const struct fragments *f) {
#pragma unroll
    for (int n = 0; n < DQ_COLUMNS / 8; n++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const uint32_t *y = f->x[m] + 4 * n;
            const float x[4] = {__uint_as_float(y[0]), __uint_as_float(y[1]), __uint_as_float(y[2]),
                                __uint_as_float(y[3])};
            reduce_add4(to + (n * 2 + m) * 128, x);
        }
}

/* Where in a tile's sums the warp's fragments begin: 32 queries; of a pair, half of the columns. */
static __device__ __forceinline__ int part_of_dq(void) {
    const int quarter = warp_of() % 4;
    return PAIR ? (2 * rank_of() + quarter % 2) * (32 * DIM) + quarter / 2 * (32 * DQ_COLUMNS) : quarter * (32 * DIM);
}

/* In order: the key tiles before this one, from the first that sees a row of the tile, have added theirs. */
static __device__ __forceinline__ void enter_turn(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                  int32_t *turn) {
    const int first = max(s.i0 + w->off - p->in.window_left, 0) / KEYS;
    if (threadIdx.x == 32 * WARP_SUMS) wait_turn(turn, CTAS * (w->key_tile - first));
    named_sync(SUMS, 128);
}
/* The fence of one thread after a barrier covers the sums of all. */
static __device__ __forceinline__ void leave_turn(int32_t *turn) {
    named_sync(SUMS, 128);
    if (threadIdx.x == 32 * WARP_SUMS) pass_turn(turn);
}

/* What the CTA works on is read again where it is needed: the fragments occupy the registers. */
static __device__ __forceinline__ void run_sums(const struct kp_sdpa_bwd *p, uint32_t base) {
    struct work w = recall_work(base);
    struct step s = first_step(p, &w);
#pragma unroll 1
    for (uint32_t t = 0; t < (uint32_t)steps_of(base); t++) {
        struct fragments f;
        await(base, DQ_FULL, t);
        tc_after();
        if (p->dq_sum) {
            load_dq(&f, shared_load32(base + AT_SLOT) + quarter_of() + TM_DQ);
            tc_before();
        }
        tell_products(base, DQ_EMPTY);
        w = recall_work(base);
        if (p->dq_sum) {
            const int64_t row = s.head * p->stat_rows + w.stat0 + s.i0;
            int32_t *turn = (int32_t *)p->turns + row / ROWS;
            if (p->turns) enter_turn(p, &w, s, turn);
            add_dq((float *)p->dq_sum + row * DIM + part_of_dq() + 4 * lane_of(), &f);
            if (p->turns) leave_turn(turn);
        }
        s = step_after(&w, s);
    }
}
#endif
