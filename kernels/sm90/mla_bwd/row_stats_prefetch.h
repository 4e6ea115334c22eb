/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu, gradients that are added: producers form the states of the rows of the CTA's next work tile
 * (struct kp_mla_bwd.ahead), while the current one's K is under way; prepare has the others.
 *
 * A warp takes the next head of its own in each tile but a work tile's first. Its out and dout come with K, to the
 * place of dS, which nobody uses from the time when all have let go of the tile before until the owner writes it,
 * which has to have all of the tile's K and, if FREES_DS, its word. So D is summed before the last K is told, or
 * before that word; the rest of the state is formed after it. Each lane reads what it has copied itself. */
#ifndef ATTN_SM90_MLA_BWD_ROW_STATS_PREFETCH_H
#define ATTN_SM90_MLA_BWD_ROW_STATS_PREFETCH_H
#include "kernels/device/mla_row.h"
#include "kernels/sm90/mla_bwd/plan.h"

/* In the place of P' sums, which this schedule does not use: {states, heads}, {out, dout} of its first head,
 * what lanes 0 .. 2 read of it: {address or 0, stride in bytes} of lse, sink, dlse; the next head of each warp; what
 * lanes 0 .. 2 of each have read. */
constexpr uint32_t NEXT_AT = PART_AT, NEXT_HEAD = NEXT_AT + 80, GIVEN_AT = NEXT_AT + 96;
constexpr uint32_t WARPS = PRODUCERS / 32;
static_assert(WARPS == KP_MLA_BWD_SM90_AHEAD && WARPS * 2048 == SLICE, "a head of a warp, in the place of dS");
static_assert(!AHEAD || TYPE == KP_BF16, "what has a form for it");

/* One thread, of a work tile that may be none. */
static __device__ __forceinline__ void keep_next(const struct kp_mla_bwd *p, uint32_t work, uint32_t shared) {
    const uint32_t to = shared + NEXT_AT;
    uint32_t heads = 0;
    shared_store128(shared + NEXT_HEAD, make_uint4(0, 1, 2, 3));
    if (!in_parts(p) && p->ahead && has_work(p, work)) {
        const struct work_tile w = work_of(p, work_tile_index(p, work));
        heads = (uint32_t)min(max(p->in.heads_q - w.head, 0), p->ahead);
        keep4(to, (uint64_t)states_of(p, &w), heads);
        keep4(to + 16, p->out.data + 2 * (uint64_t)(w.b * p->out.batch + w.i * p->out.row + w.head * p->out.head),
              p->dout.data + 2 * (uint64_t)(w.b * p->dout.batch + w.i * p->dout.row + w.head * p->dout.head));
        keep4(to + 32, p->lse.data + 4 * (uint64_t)(w.b * p->lse.batch + w.i * p->lse.row + w.head * p->lse.head),
              4 * (uint64_t)p->lse.head);
        keep4(to + 48, p->in.sink ? p->in.sink + 4 * (uint64_t)(w.head * p->in.sink_head) : 0,
              4 * (uint64_t)p->in.sink_head);
        keep4(to + 64,
              p->dlse.data
                  ? p->dlse.data + 4 * (uint64_t)(w.b * p->dlse.batch + w.i * p->dlse.row + w.head * p->dlse.head)
                  : 0,
              4 * (uint64_t)p->dlse.head);
    } else {
        shared_store32(to + 8, 0);
    }
}

static __device__ __forceinline__ uint4 load_once(const char *address) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address));
    return x;
}

static __device__ __forceinline__ uint32_t next_head_at(uint32_t shared) {
    return shared + NEXT_HEAD + ((uint32_t)recompute((int)threadIdx.x) >> 3 & 12);
}
/* The next head of the warp. */
static __device__ __forceinline__ uint32_t next_head(uint32_t shared) { return shared_load32(next_head_at(shared)); }
static __device__ __forceinline__ int has_head(uint32_t shared) {
    return next_head(shared) < shared_load32(shared + NEXT_AT + 8);
}
/* Where the lane's 16 bytes of its out (k = 0) or dout begin; those of the next 256 columns are 512 bytes further. */
static __device__ __forceinline__ const char *piece_of(uint32_t shared, uint32_t k, int64_t stride) {
    const uint32_t lane = (uint32_t)recompute((int)threadIdx.x) & 31;
    return (const char *)kept(shared + NEXT_AT + 16 + 8 * k) + 2 * stride * next_head(shared) + 16 * lane;
}
/* What else lane 0, 1 or 2 reads of it. */
static __device__ __forceinline__ const char *given_of(uint32_t shared, uint32_t lane) {
    const uint32_t from = shared + NEXT_AT + 32 + 16 * lane;
    const char *address = (const char *)kept(from);
    return address ? address + (int64_t)kept(from + 8) * next_head(shared) : address;
}
/* It is done. sum: the lane's part of D. */
static __device__ __forceinline__ void end_head(const struct kp_mla_bwd *p, uint32_t shared, float given, float sum) {
    const uint32_t head = next_head(shared);
    mla_row_store((struct kp_mla_row *)kept(shared + NEXT_AT) + head, p->in.flags, given, sum);
    __syncwarp();
    if ((recompute((int)threadIdx.x) & 31) == 0) shared_store32(next_head_at(shared), head + WARPS);
    __syncwarp();
}

static __device__ __forceinline__ uint32_t ahead_at(uint32_t shared) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x) & (PRODUCERS - 1);
    return shared + DS_AT + (thread >> 5) * 2048 + 16 * (thread & 31);
}
static __device__ __forceinline__ uint32_t given_at(uint32_t shared) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x) & (PRODUCERS - 1);
    return shared + GIVEN_AT + 16 * (thread >> 5) + 4 * (thread & 3);
}
/* A group of copies, empty if no head is left. */
static __device__ __forceinline__ void copy_ahead(const struct kp_mla_bwd *p, uint32_t shared) {
    if (has_head(shared)) {
        const uint32_t to = ahead_at(shared), lane = (uint32_t)recompute((int)threadIdx.x) & 31;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const char *from = piece_of(shared, k, k ? p->dout.head : p->out.head);
            copy_async16_whole(to + 1024 * k, from);
            copy_async16_whole(to + 1024 * k + 512, from + 512);
        }
        if (lane < 3) {
            const char *from = given_of(shared, lane);
            copy_async4(given_at(shared), from, from ? 4 : 0);
        }
    }
    copy_commit();
}
/* The copies are there: the lane's part of D. */
static __device__ __forceinline__ float add_ahead(uint32_t shared) {
    float sum = 0;
    if (!has_head(shared)) return sum;
    const uint32_t from = ahead_at(shared);
#pragma unroll
    for (uint32_t c = 0; c < 1024; c += 512)
        sum = mla_row_add8(TYPE, TYPE, sum, shared_load128(from + c), shared_load128(from + 1024 + c));
    return sum;
}
static __device__ __forceinline__ void end_ahead(const struct kp_mla_bwd *p, uint32_t shared, float sum) {
    if (!has_head(shared)) return;
    const uint32_t lane = (uint32_t)recompute((int)threadIdx.x) & 31;
    float given = 0;
    if (lane < 3) given = __uint_as_float(shared_load32(given_at(shared)));
    if (lane == 1 && !p->in.sink) given = -INF;
    end_head(p, shared, given, sum);
}

/* FREES_DS: the warp reads nothing in the place of dS any more. */
static __device__ __forceinline__ void free_ahead(uint32_t shared) {
    __syncwarp();
    if ((recompute((int)threadIdx.x) & 31) == 0) mbar_arrive(shared + DS_FREE);
}

/* What is left after the last tile of a work tile with few tiles. */
static __device__ __forceinline__ void form_rest(const struct kp_mla_bwd *p, uint32_t shared) {
#pragma unroll 1
    while (has_head(shared)) {
        float sum = 0;
        {
            const char *x = piece_of(shared, 0, p->out.head), *y = piece_of(shared, 1, p->dout.head);
#pragma unroll
            for (int c = 0; c < 1024; c += 512) {
                sum = mla_row_add8(TYPE, TYPE, sum, load_once(x + c), load_once(y + c));
                __syncwarp(); /* not all loads at once: with fewer registers here consumers spill */
            }
        }
        const uint32_t lane = (uint32_t)recompute((int)threadIdx.x) & 31;
        float given = lane == 1 ? -INF : 0;
        if (lane < 3) {
            const char *address = given_of(shared, lane);
            if (address) given = *(const volatile float *)address;
        }
        end_head(p, shared, given, sum);
    }
}
#endif
