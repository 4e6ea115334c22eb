/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the thread that starts all products. Per tile of keys: P V of the first tile of Q and its next
 * Q K^T (OWN_P: in the other order), then both of the second tile of Q; softmax of one overlaps with products of the
 * other. */
#ifndef ATTN_SM100_SDPA_FWD_PRODUCTS_H
#define ATTN_SM100_SDPA_FWD_PRODUCTS_H
#include "kernels/sm100/sdpa_fwd/layout.h"

/* Two slices of V are one operand where they never lie at the ring's end and start. */
constexpr int PAIRED = SLICES_V == 2 && SLICES_K % 2 == 0 && RING % 2 == 0;
constexpr int COLUMNS = PAIRED || PAIR ? 128 : 64;           /* of O in a product */
constexpr uint64_t ROW_SLICE = tc_operand(128, 1024, 16);    /* Q, K: numbers of a row along k */
constexpr uint64_t KEY_SLICE = tc_operand(128, 1024, SLICE); /* V: a row is a value of k */
constexpr uint32_t SHAPE_S = tc_shape(CTAS * HALF, KEYS, 0, TYPE), SHAPE_O = tc_shape(CTAS * HALF, COLUMNS, 1, TYPE);

/* A work tile as this thread sees it. */
struct job {
    struct work work;
    struct span span[2];
    uint32_t number;
};
struct products {
    uint32_t base, tm;
    uint32_t k, v;       /* slices: of K whose scores come next, of V that is multiplied next */
    uint32_t scores[2];  /* tiles of S started, of each tile of Q */
    uint32_t tiles[2];   /* tiles of P multiplied by V */
    uint32_t outputs[2]; /* sums O begun */
    uint32_t tails;      /* work tiles whose V was cleared */
};

static __device__ __forceinline__ int take_job(const struct kp_sdpa_fwd *p, const struct products *c, uint32_t n,
                                               struct job *job) {
    const int taken = take_work(c->base, n, &job->work);
    if (!taken) return 0;
    mbar_arrive(at_barrier(c->base, WORK_EMPTY + n % 2));
    job->number = n;
    job->span[0] = span_of(p, &job->work, 0), job->span[1] = span_of(p, &job->work, 1);
    return 1;
}

static __device__ __forceinline__ void free_slices(const struct products *c, uint32_t slice, int slices) {
#pragma unroll
    for (int x = 0; x < slices; x++) {
        await_slice(c->base, SLICE_FULL, slice + x); /* nobody may have read it: windows that no row sees */
        tc_commit(at_barrier(c->base, SLICE_EMPTY + (slice + x) % RING));
    }
}

/* S = Q K^T of a tile of Q (half) and a tile of keys, whose slices are the next ones. */
static __device__ __forceinline__ void start_scores(struct products *c, const struct job *job, int half, int tile) {
    const uint32_t stage = 2 * (job->number % Q_STAGES) + half;
    if (tile == last_tile(&job->work)) await(c->base, Q_FULL + stage, job->number / Q_STAGES);
    if (in_span(&job->span[half], tile)) {
        const uint64_t q = tc_operand_at(ROW_SLICE, c->base + AT_Q + stage * Q_BYTES);
        if (OWN_P) await(c->base, S_EMPTY + half, c->scores[half]++ - 1);
#pragma unroll
        for (int x = 0; x < SLICES_K; x++) {
            const uint64_t k = tc_operand_at(ROW_SLICE, ring_slice(c->base, c->k + x));
            await_slice(c->base, SLICE_FULL, c->k + x);
            if (x == 0) tc_after();
#pragma unroll
            for (int y = 0; y < 4; y++)
                tc_multiply(c->tm + TM_S + half * KEYS, q + x * (SLICE / 16) + 2 * y, k + 2 * y, SHAPE_S, x + y > 0);
        }
        tc_commit(at_barrier(c->base, S_FULL + half));
    }
    if (half == 0) return;
    free_slices(c, c->k, SLICES_K);
    c->k += SLICES;
    if (tile == job->work.first) tc_commit(at_barrier(c->base, Q_EMPTY + job->number % Q_STAGES));
}

/* V of keys 16 y .. and the columns of slice x; of a pair, 64 of each CTA, a slice has half of the keys. */
static __device__ __forceinline__ uint64_t values_at(const struct products *c, int x, int y) {
    if (PAIR) return tc_operand_at(KEY_SLICE, ring_slice(c->base, c->v + y / 4)) + y % 4 * (2048 / 16);
    return tc_operand_at(KEY_SLICE, ring_slice(c->base, c->v + x)) + y * (2048 / 16);
}
/* 16 keys of P V, keys 16 y .. */
static __device__ __forceinline__ void multiply_values(const struct products *c, int half, int y, int add) {
    const uint32_t p = c->tm + TM_P + half * STEP_P + 8 * y, o = c->tm + TM_O + half * STEP_O;
#pragma unroll
    for (int x = 0; x < DIM_V / COLUMNS; x++)
        tc_multiply_cells(o + x * COLUMNS, p, values_at(c, x, y), SHAPE_O, add | (y > 0));
}
/* O (+)= P V of a tile of Q and a tile of keys. */
static __device__ __forceinline__ void start_values(struct products *c, const struct kp_sdpa_fwd *p,
                                                    const struct job *job, int half, int tile) {
    const struct span *s = &job->span[half];
    if (in_span(s, tile)) {
        const int add = tile != s->first + s->n - 1;
        const uint32_t t = c->tiles[half]++;
        if (!add) await_warps(c->base, O_EMPTY + half, c->outputs[half]++ - 1);
        if (tile == last_tile(&job->work) && clears_tail(p, &job->work)) await_warps(c->base, V_CLEARED, c->tails);
#pragma unroll
        for (int x = 0; x < SLICES_V; x++) await_slice(c->base, SLICE_FULL, c->v + x);
        await_warps(c->base, P_FULL + half, t);
        tc_after();
#pragma unroll
        for (int y = 0; y < EARLY_KEYS / 16; y++) multiply_values(c, half, y, add);
        await_warps(c->base, P_REST + half, t);
        tc_after();
#pragma unroll
        for (int y = EARLY_KEYS / 16; y < KEYS / 16; y++) multiply_values(c, half, y, add);
        if (OWN_P) tc_commit(at_barrier(c->base, P_EMPTY + half));
        if (tile == s->first) tc_commit(at_barrier(c->base, O_FULL + half));
    }
    if (half == 0) return;
    free_slices(c, c->v, SLICES_V);
    c->v += SLICES;
}

/* One thread, of the even CTA of a pair. Where a work tile ends, the next one's first Q K^T stands in the place of this
 * one's next. */
static __device__ __forceinline__ void run_products(const struct kp_sdpa_fwd *p, uint32_t base) {
    const uint32_t tm = shared_load32(base + AT_SLOT);
    struct products c = {base, tm, 0, SLICES_K, {0, 0}, {0, 0}, {0, 0}, 0};
    struct job job, next;
    int more_work = take_job(p, &c, 0, &job);
    if (more_work)
        for (int half = 0; half < 2; half++) start_scores(&c, &job, half, last_tile(&job.work));
    while (more_work) {
#pragma unroll 1
        for (int tile = last_tile(&job.work); tile >= job.work.first; tile--) {
            const int ends = tile == job.work.first;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (!OWN_P) start_values(&c, p, &job, half, tile);
                if (ends && half == 0) more_work = take_job(p, &c, job.number + 1, &next);
                if (!ends)
                    start_scores(&c, &job, half, tile - 1);
                else if (more_work)
                    start_scores(&c, &next, half, last_tile(&next.work));
                if (OWN_P) start_values(&c, p, &job, half, tile);
            }
        }
        c.tails += clears_tail(p, &job.work);
        job = next;
    }
}
#endif
