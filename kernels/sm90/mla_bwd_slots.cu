/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward with rows of 16 bits a number: sorts the slots of chunks of queries by the kv row
 * they name, in two steps through shared memory, where a counter for each row fits there. Memory is written in whole
 * lines: single slots where they go take three times as long. A variant for each step:
 *
 *   ORDER  a CTA takes a block of queries of a chunk: its slots in the order of their rows --> runs; where each row's
 *          begin in it --> begins[block][row]
 *   MERGE  a CTA takes `share` rows of a chunk: of all its blocks the piece of the run --> slots, keys. What stands
 *          before these rows is the sum of where they begin in each block
 *
 * ORDER counts places up by shared atomics, a round of slots of one query at a time. A query names a row once, as a
 * rule; places then are those of the slots' order. Where a round names a row twice its slots are counted again, warp by
 * warp and lane by lane. So the order is that of the slots, and the lists alone give it. Slots that are not valid are
 * left out; the sorted list ends with as many keys B * SK.
 *
 * Shared memory: KP_MLA_SLOTS_ORDER_SHARED, KP_MLA_SLOTS_MERGE_SHARED. */
#include "kernels/device/grid.h"
#include "kernels/device/slots.h"
#include "kernels/device/sum_before.h"
#include "kernels/kparams_mla_rows.h"

constexpr int STEP = CFG_STEP, THREADS = CFG_THREADS, WARPS = THREADS / 32;
constexpr uint32_t EACH = 4, ROUND = EACH * THREADS; /* slots of a thread, of a CTA */

static __device__ __forceinline__ uint32_t rows_of(const struct kp_mla_bwd *p) {
    return (uint32_t)(p->in.batch * p->in.seq_k);
}
static __device__ __forceinline__ uint32_t queries_of(const struct kp_mla_bwd_rows *p, uint32_t chunk) {
    return (uint32_t)min(p->chunk, p->bwd.n - chunk * p->chunk);
}
/* begins [chunk][block][rows + 1]: the last is how many slots of the block are valid */
static __device__ __forceinline__ uint16_t *begins_of(const struct kp_mla_bwd_rows *p, uint32_t chunk, uint32_t block) {
    return (uint16_t *)p->bwd.counts +
           ((uint64_t)chunk * (uint32_t)p->bwd.sort_blocks + block) * (rows_of(&p->bwd) + 1);
}

/* x[0 .. n - 1] become the sums of those before, the sum of all. n is rounded up to whole vectors of 4, the numbers
 * behind being 0. Barriers at its start and end. */
static __device__ __forceinline__ uint32_t scan_all(uint32_t *x, uint32_t n) {
    __shared__ uint32_t share[WARPS];
    const uint32_t vectors = (n + 3) / 4, each = (vectors + THREADS - 1) / THREADS;
    const uint32_t from = min(vectors, threadIdx.x * each), end = min(vectors, from + each);
    uint4 *v = (uint4 *)x;
    uint32_t sum = 0;
    __syncthreads();
    for (uint32_t i = from; i < end; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    const uint32_t to_here = sum_to_lane(sum);
    const struct warp_sums warps = sum_warps(to_here, share);
    uint32_t at = warps.before + to_here - sum;
    for (uint32_t i = from; i < end; i++) {
        const uint4 own = v[i];
        v[i] = make_uint4(at, at + own.x, at + own.x + own.y, at + own.x + own.y + own.z);
        at += own.x + own.y + own.z + own.w;
    }
    __syncthreads();
    return warps.all;
}

/* ------------------------------------------------------------------ order -------------------------- */

/* What a CTA takes: queries of a chunk. */
struct block {
    uint32_t chunk, at, query, end;
};
/* Slots at .. at + ROUND - 1 of a query of the chunk. */
struct round {
    uint32_t query, at;
};
static __device__ __forceinline__ void step_on(const struct kp_mla_bwd *p, struct round *r) {
    r->at += ROUND;
    if (r->at >= (uint32_t)p->in.topk) r->at = 0, r->query++;
}
/* What was read of a round; its rows are looked at a round later. */
struct entries {
    int32_t idx[EACH];
    uint32_t keys, row; /* slots.keys; the first of the batch entry's rows, of all */
};
static __device__ __forceinline__ void load_entries(const struct kp_mla_bwd_rows *q, const struct block *x,
                                                    const struct round *r, struct entries *e) {
    const struct kp_mla_bwd *p = &q->bwd;
    if (r->query >= x->end) return;
    const uint32_t flat = (uint32_t)(p->first + x->chunk * q->chunk) + r->query, b = flat / (uint32_t)p->in.seq_q;
    const struct slots s = slots_of(&p->in, b, flat - b * (uint32_t)p->in.seq_q);
    e->keys = s.keys, e->row = b * (uint32_t)p->in.seq_k;
    const uint32_t t = r->at + threadIdx.x;
    const int32_t *idx = s.idx + t;
#pragma unroll
    for (uint32_t u = 0; u < EACH; u++) e->idx[u] = t + u * THREADS < (uint32_t)s.n ? idx[u * THREADS] : -1;
}
constexpr uint32_t NONE = ~0u;
static __device__ __forceinline__ uint32_t row_at(const struct entries *e, uint32_t u) {
    return (uint32_t)e->idx[u] < e->keys ? e->row + (uint32_t)e->idx[u] : NONE;
}

/* A round that names a row twice: places of its slots in their order. place: of the next slot of each row. */
static __device__ __forceinline__ void place_in_order(const struct entries *e, uint32_t *place, uint32_t at[EACH]) {
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t u = 0; u < EACH; u++)
        if (row_at(e, u) != NONE) atomicSub(&place[row_at(e, u)], 1u);
    __syncthreads();
#pragma unroll
    for (uint32_t u = 0; u < EACH; u++) {
        const uint32_t row = row_at(e, u), same = __match_any_sync(~0u, row);
#pragma unroll 1
        for (uint32_t w = 0; w < WARPS; w++) {
            if (w == threadIdx.x / 32) {
                if (row != NONE) at[u] = place[row] + (uint32_t)__popc(same & ((1u << lane) - 1));
                __syncwarp();
                if (row != NONE && lane == (uint32_t)__ffs((int)same) - 1) place[row] = at[u] + (uint32_t)__popc(same);
            }
            __syncthreads();
        }
    }
}

/* Block `own` of all chunks'. x: a counter a row, and then the block's slots. */
static __device__ __forceinline__ void order_block(const struct kp_mla_bwd_rows *p, uint32_t own, uint32_t *x) {
    const uint32_t rows = rows_of(&p->bwd), topk = (uint32_t)p->bwd.in.topk;
    __shared__ struct block b; /* for want of registers */
    if (threadIdx.x == 0) {
        const uint32_t blocks = (uint32_t)p->bwd.sort_blocks;
        b.chunk = own / blocks, b.at = own - b.chunk * blocks;
        b.query = min(queries_of(p, b.chunk), b.at * (uint32_t)p->block);
        b.end = min(queries_of(p, b.chunk), b.query + (uint32_t)p->block);
    }
    __syncthreads();
    uint32_t *ordered = x + (rows + 3) / 4 * 4;
    struct round r = {b.query, 0};
    struct entries next;
    load_entries(p, &b, &r, &next);
    for (uint32_t i = threadIdx.x; i < (rows + 3) / 4; i += THREADS) ((uint4 *)x)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    while (r.query < b.end) {
        const struct entries now = next;
        step_on(&p->bwd, &r);
        load_entries(p, &b, &r, &next);
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++)
            if (row_at(&now, u) != NONE) atomicAdd(&x[row_at(&now, u)], 1u);
    }
    r = {b.query, 0};
    load_entries(p, &b, &r, &next);
    const uint32_t n = scan_all(x, rows);
    uint16_t *begins = begins_of(p, b.chunk, b.at);
    for (uint32_t i = threadIdx.x; i < rows; i += THREADS) begins[i] = (uint16_t)x[i];
    if (threadIdx.x == 0) begins[rows] = (uint16_t)n;
    __syncthreads();
    while (r.query < b.end) {
        const struct entries now = next;
        const uint32_t slot = (r.query - b.query) * topk + r.at + threadIdx.x;
        uint32_t at[EACH], other = 0;
        step_on(&p->bwd, &r);
        load_entries(p, &b, &r, &next);
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++)
            at[u] = row_at(&now, u) != NONE ? atomicAdd(&x[row_at(&now, u)], 1u) : 0;
        __syncthreads();
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++)
            if (row_at(&now, u) != NONE) other |= x[row_at(&now, u)] ^ (at[u] + 1);
        if (__syncthreads_or((int)other)) place_in_order(&now, x, at);
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++)
            if (row_at(&now, u) != NONE) ordered[at[u]] = row_at(&now, u) << 16 | (slot + u * THREADS);
    }
    __syncthreads();
    uint32_t *run = (uint32_t *)p->runs + b.chunk * p->list + b.query * topk;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) run[i] = ordered[i];
}

/* ------------------------------------------------------------------ merge -------------------------- */

/* The last of start[0 .. n] that is not behind `place`. */
static __device__ __forceinline__ uint32_t last_start(const uint32_t *start, uint32_t n, uint32_t place) {
    uint32_t x = 0;
    for (uint32_t step = 1u << (31 - __clz((int)n)); step > 0; step /= 2)
        if (x + step <= n && start[x + step] <= place) x += step;
    return x;
}
/* keys[0 .. n - 1], of rows row .. row + rows - 1, of which row + x begins at start[x]. */
static __device__ __forceinline__ void fill_keys(uint32_t *keys, const uint32_t *start, uint32_t row, uint32_t rows,
                                                 uint32_t n) {
    constexpr uint32_t STRETCH = 256; /* places of a warp */
    for (uint64_t at = threadIdx.x / 32 * STRETCH; at < n; at += WARPS * STRETCH) {
        const uint32_t first = (uint32_t)at + (threadIdx.x & 31);
        uint32_t x = last_start(start, rows, first);
#pragma unroll 1
        for (uint32_t i = first; i < min(n, (uint32_t)at + STRETCH); i += 32) {
            if (x < rows && start[x + 1] <= i) x = last_start(start, rows, i);
            keys[i] = row + x;
        }
    }
}

/* Loaded at once: of so many pieces two slots a lane, which is all of most; of a longer piece's rest. */
constexpr uint32_t PIECES = 4, ROUNDS = 2, AHEAD = 8;

/* Of rows row .. row + rows - 1 and all blocks: start[x], where row + x begins among the slots of these rows, and
 * start[rows], how many there are; to[x][block], what is to be added to a place in the block's run so that it is one
 * among these slots. A warp a row. Returned: the slots of all rows before. */
static __device__ __forceinline__ uint32_t find_places(const struct kp_mla_bwd_rows *p, uint32_t chunk, uint32_t row,
                                                       uint32_t rows, uint32_t *start, uint32_t *to, uint32_t pitch) {
    __shared__ uint32_t first;
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, lane = threadIdx.x & 31;
    const uint16_t *begins = begins_of(p, chunk, 0) + row;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < rows * blocks; i += THREADS) {
        const uint32_t block = i / rows, x = i - block * rows;
        const uint16_t *at = begins + (uint64_t)block * (rows_of(&p->bwd) + 1) + x;
        to[x * pitch + block] = (uint32_t)(at[1] - at[0]) << 16 | at[0];
    }
    if (threadIdx.x < 3) start[rows + threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t x = threadIdx.x / 32; x < rows; x += WARPS) {
        uint32_t before = 0, begun = 0;
        for (uint32_t at = 0; at < blocks; at += 32) {
            const uint32_t block = at + lane, own = block < blocks ? to[x * pitch + block] : 0;
            const uint32_t sum = sum_to_lane(own >> 16);
            if (block < blocks) to[x * pitch + block] = before + sum - (own >> 16) - (own & 0xffff);
            before += __shfl_sync(~0u, sum, 31);
            begun += own & 0xffff;
        }
        if (lane == 0) start[x] = before;
        if (x > 0) continue;
        begun = sum_to_lane(begun);
        if (lane == 31) first = begun;
    }
    const uint32_t n = scan_all(start, rows);
    if (threadIdx.x == 0) start[rows] = n;
    for (uint32_t x = threadIdx.x / 32; x < rows; x += WARPS)
        for (uint32_t block = lane; block < blocks; block += 32) to[x * pitch + block] += start[x];
    __syncthreads();
    return first;
}

/* Task `own` of all chunks': `share` rows of one. */
static __device__ __forceinline__ void merge_rows(const struct kp_mla_bwd_rows *p, uint32_t own, uint32_t *x) {
    const uint32_t all_rows = rows_of(&p->bwd), each = (uint32_t)p->share, tasks = (all_rows + each - 1) / each;
    const uint32_t chunk = own / tasks, row = (own - chunk * tasks) * each;
    const uint32_t rows = min(each, all_rows - row);
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, pitch = blocks | 1;
    const uint32_t slots_of_block = (uint32_t)p->block * (uint32_t)p->bwd.in.topk;
    uint32_t *start = x, *to = start + (each + 7) / 4 * 4, *region = to + each * pitch;
    const uint32_t first = find_places(p, chunk, row, rows, start, to, pitch), n = start[rows];

    const int64_t list = chunk * p->list;
    uint32_t *slots = (uint32_t *)p->slots + list + first, *keys = (uint32_t *)p->keys + list + first;
    uint32_t *target = n <= KP_MLA_SLOTS_REGION ? region : slots;
    const uint32_t *runs = (const uint32_t *)p->runs + list;
    /* a warp some blocks at a time; where its pieces begin and end is loaded for 32 of them at once */
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const auto place = [&](uint32_t block, uint32_t i, uint32_t e) {
        target[to[((e >> 16) - row) * pitch + block] + i] = block * slots_of_block + (e & 0xffff);
    };
    for (uint32_t at = warp; at < blocks; at += 32 * WARPS) {
        const uint16_t *begins = begins_of(p, chunk, min(blocks - 1, at + lane * WARPS)) + row;
        const uint32_t piece = at + lane * WARPS < blocks ? begins[0] | (uint32_t)begins[rows] << 16 : 0;
        for (uint32_t y = 0; y < 32 && at + y * WARPS < blocks; y += PIECES) {
            uint32_t e[PIECES][ROUNDS];
#pragma unroll
            for (uint32_t u = 0; u < PIECES; u++) {
                const uint32_t own_piece = __shfl_sync(~0u, piece, (int)(y + u));
                const uint32_t *run = runs + (at + (y + u) * WARPS) * slots_of_block;
#pragma unroll
                for (uint32_t v = 0; v < ROUNDS; v++) {
                    const uint32_t i = (own_piece & 0xffff) + lane + 32 * v;
                    e[u][v] = i < own_piece >> 16 ? run[i] : NONE;
                }
            }
#pragma unroll
            for (uint32_t u = 0; u < PIECES; u++) {
                const uint32_t i = (__shfl_sync(~0u, piece, (int)(y + u)) & 0xffff) + lane;
#pragma unroll
                for (uint32_t v = 0; v < ROUNDS; v++)
                    if (e[u][v] != NONE) place(at + (y + u) * WARPS, i + 32 * v, e[u][v]);
            }
#pragma unroll 1
            for (uint32_t u = 0; u < PIECES; u++) { /* longer pieces */
                const uint32_t own_piece = __shfl_sync(~0u, piece, (int)(y + u)), last = own_piece >> 16;
                const uint32_t block = at + (y + u) * WARPS, *run = runs + block * slots_of_block;
#pragma unroll 1
                for (uint32_t i = (own_piece & 0xffff) + lane + 32 * ROUNDS; i < last; i += 32 * AHEAD) {
                    uint32_t f[AHEAD];
#pragma unroll
                    for (uint32_t w = 0; w < AHEAD; w++) f[w] = i + 32 * w < last ? run[i + 32 * w] : 0;
#pragma unroll
                    for (uint32_t w = 0; w < AHEAD; w++)
                        if (i + 32 * w < last) place(block, i + 32 * w, f[w]);
                }
            }
        }
    }
    fill_keys(keys, start, row, rows, n);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n && target == region; i += THREADS) slots[i] = region[i];
    const uint32_t all = queries_of(p, chunk) * (uint32_t)p->bwd.in.topk;
    for (uint32_t i = n + threadIdx.x; row + rows == all_rows && first + i < all; i += THREADS)
        keys[i] = all_rows, slots[i] = 0; /* what is not valid */
    __syncthreads();
}

/* CTAs, as many as the device works on at once, step by the grid's size: what is launched behind begins beside them. */
extern "C" __global__ void __launch_bounds__(THREADS, 3) CFG(const __grid_constant__ struct kp_mla_bwd_rows p) {
    extern __shared__ __align__(16) uint32_t x[];
    __shared__ uint32_t next; /* for want of registers */
    const uint32_t each = STEP == KP_MLA_SLOTS_ORDER ? (uint32_t)p.bwd.sort_blocks
                                                     : (rows_of(&p.bwd) + (uint32_t)p.share - 1) / (uint32_t)p.share;
    const uint32_t chunks = (uint32_t)((p.bwd.n + p.chunk - 1) / p.chunk);
    grid_release();
    if (STEP == KP_MLA_SLOTS_ORDER) {
        for (uint32_t own = blockIdx.x; own != NONE;) {
            if (threadIdx.x == 0) next = own + gridDim.x < chunks * each ? own + gridDim.x : NONE;
            order_block(&p, own, x);
            __syncthreads();
            own = next;
            __syncthreads();
        }
    } else {
        grid_wait();
        for (uint32_t own = blockIdx.x; own < chunks * each; own += gridDim.x) merge_rows(&p, own, x);
    }
}
