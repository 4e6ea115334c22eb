/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: additions of runs of f32 in shared memory to memory (bulk reductions), and their turns. PTX ISA
 * 8.0, section "cp.reduce.async.bulk". */
#ifndef ATTN_SM90_SDPA_BWD_ADD_H
#define ATTN_SM90_SDPA_BWD_ADD_H
#include "kernels/device/reduce.h"
#include "kernels/device/turns.h"
#include "kernels/sm90/sdpa_bwd/work.h"

/* `bytes`, a multiple of 16, from and to multiples of 16. */
static __device__ __forceinline__ void bulk_add(void *to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Shared memory may be written again; the sums are seen by this thread. */
static __device__ __forceinline__ void bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
static __device__ __forceinline__ void bulk_wait_all(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* Row of the sums where the step's begin. */
static __device__ __forceinline__ int64_t sums_row(const struct kp_sdpa_bwd *p, uint32_t shared, struct step s) {
    return s.head * p->stat_rows + (int64_t)shared_load64(shared + KEPT + 56) + s.i0;
}
/* In order: a step waits for the key tiles before this one, from the first that sees a row of the tile. */
static __device__ __forceinline__ void await_turn(const struct kp_sdpa_bwd *p, uint32_t shared, struct step s) {
    const struct work w = recall_work(shared);
    const int first = max(s.i0 + w.off - p->in.window_left, 0) / KEYS;
    wait_turn((const int32_t *)p->turns + sums_row(p, shared, s) / ROWS, w.key_tile - first);
    async_fence_global();
}
static __device__ __forceinline__ void pass_on(const struct kp_sdpa_bwd *p, uint32_t shared, struct step s) {
    bulk_wait_all();
    pass_turn((int32_t *)p->turns + sums_row(p, shared, s) / ROWS);
}
#endif
