/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu: how its producers pace the CTAs alike where slots come in order of rows, for sums
 * that the second-level cache does not hold. */
#ifndef ATTN_SM90_MLA_BWD_CTA_PACING_H
#define ATTN_SM90_MLA_BWD_CTA_PACING_H
#include "kernels/device/cta_counters.h"
#include "kernels/sm90/mla_bwd/plan.h"

/* All CTAs go through the rows together, so that few are in the cache at a time: a segment of rows is a
 * checkpoint, and a CTA goes on when all have come to the one APART before its own. Not for ever: CTAs need not run at
 * the same time, and a CTA that has polled PATIENCE times in vain waits no more. At CHECKPOINTS_AT: checkpoints
 * reached; first row; whether to wait. One thread does all of it. */
constexpr uint32_t APART = 2, PATIENCE = 1000;

static __device__ __forceinline__ void reach(const struct kp_mla_bwd *p, uint32_t shared, uint32_t end) {
    uint32_t reached = shared_load32(shared + CHECKPOINTS_AT);
#pragma unroll 1
    for (; reached < end; reached++) count_one(p->checkpoints + 4 * (uint64_t)reached);
    shared_store32(shared + CHECKPOINTS_AT, reached);
}
static __device__ __forceinline__ void begin_pacing(uint32_t shared) {
    shared_store32(shared + CHECKPOINTS_AT, 0);
    shared_store32(shared + CHECKPOINTS_AT + 8, 1);
}
/* At tile t, whose first slot names `row`. */
static __device__ __forceinline__ void pace(const struct kp_mla_bwd *p, uint32_t shared, int t, int32_t row) {
    if (t == 0) shared_store32(shared + CHECKPOINTS_AT + 4, (uint32_t)row);
    const uint32_t far = (uint32_t)abs(row - (int32_t)shared_load32(shared + CHECKPOINTS_AT + 4)) >> p->segment_shift;
    const uint32_t segments = (uint32_t)p->segments, round = shared_load32(shared + WORK_AT + 56);
    const uint32_t checkpoint = round * segments + min(far, segments - 1);
    reach(p, shared, checkpoint + 1);
    if (checkpoint < APART || !shared_load32(shared + CHECKPOINTS_AT + 8)) return;
    const uint32_t others = checkpoint - APART;
    const uint32_t all = min(gridDim.x, (uint32_t)p->work_tiles * CTAS - others / segments * gridDim.x);
    uint32_t left = PATIENCE;
#pragma unroll 1
    while (count_seen(p->checkpoints + 4 * (uint64_t)others) < all && left) left--;
    if (!left) shared_store32(shared + CHECKPOINTS_AT + 8, 0);
}
/* No CTA waits for one that has no more work tiles. */
static __device__ __forceinline__ void end_pacing(const struct kp_mla_bwd *p, uint32_t shared) {
    if (has_work(p, 0)) reach(p, shared, (shared_load32(shared + WORK_AT + 56) + 1) * (uint32_t)p->segments);
}
#endif
