/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward with rows of 16 bits a number: sorts the slots of chunks of queries by the kv row
 * they name, in two steps through shared memory, where a counter for each row fits there. Memory is written in whole
 * lines: single slots where they go take three times as long. A variant for each step:
 *
 *   ORDER  a CTA takes a block of queries of a chunk: its slots in the order of their rows --> runs; where each row's
 *          begin in it --> begins[block][row]
 *   MERGE  a CTA takes `merge_rows` rows of a chunk: of all its blocks the piece of the run --> slots, keys. What
 *          stands before these rows is the sum of where they begin in each block
 *
 * ORDER counts places up by shared atomics, a round of slots of one query at a time. A query names a row once, as a
 * rule; places then are those of the slots' order, and the run ascends. A block whose run does not, because a round
 * names a row twice, is counted again, warp by warp and lane by lane. So the order is that of the slots, and the lists
 * alone give it. Slots that are not valid are left out; the sorted list ends with as many keys B * SK.
 *
 * Shared memory: KP_MLA_SLOTS_ORDER_SHARED, KP_MLA_SLOTS_MERGE_SHARED. */
#include "kernels/device/grid.h"
#include "kernels/device/slots.h"
#include "kernels/device/block_scan.h"
#include "kernels/params/mla_rows.h"

constexpr int STEP = CFG_STEP, THREADS = CFG_THREADS, WARPS = THREADS / 32;
constexpr uint32_t EACH = 4, ROUND = EACH * THREADS; /* slots of a thread, of a CTA */

static __device__ __forceinline__ uint32_t rows_of(const struct kp_mla_bwd *p) {
    return (uint32_t)(p->in.batch * p->in.seq_k);
}
static __device__ __forceinline__ uint32_t queries_of(const struct kp_mla_bwd_rows *p, uint32_t chunk) {
    return (uint32_t)min(p->chunk, p->bwd.n - chunk * p->chunk);
}
/* begins [chunk][block][row]; of row `rows`, which there is not: how many slots of the block are valid */
static __device__ __forceinline__ uint16_t *begins_of(const struct kp_mla_bwd_rows *p, uint32_t chunk, uint32_t block) {
    return (uint16_t *)p->bwd.counts + ((uint64_t)chunk * (uint32_t)p->bwd.sort_blocks + block) *
                                           KP_MLA_SLOTS_COUNTERS(rows_of(&p->bwd));
}

/* Exclusive prefix sum over x[0 .. n - 1] by the CTA; returns the total. n is rounded up to whole vectors
 * of 4, the numbers after it being 0. Barriers at its start and end. */
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
    uint32_t offset = warps.before + to_here - sum;
    for (uint32_t i = from; i < end; i++) {
        const uint4 own = v[i];
        v[i] = make_uint4(offset, offset + own.x, offset + own.x + own.y, offset + own.x + own.y + own.z);
        offset += own.x + own.y + own.z + own.w;
    }
    __syncthreads();
    return warps.all;
}

/* ------------------------------------------------------------------ order -------------------------- */

/* What a CTA takes: queries of a chunk. */
struct block {
    uint32_t chunk, index, query, end;
};
/* A query's list; row: the first of its batch entry's, of all. */
struct __align__(8) source {
    const int32_t *idx;
    uint32_t n, keys, row;
};
constexpr uint32_t SOURCES = 64;
/* Those of queries from .. from + SOURCES - 1 of the chunk, in shared memory. Barriers at its start and end. */
static __device__ __forceinline__ void find_sources(const struct kp_mla_bwd_rows *p, const struct block *b,
                                                    uint32_t from, struct source *sources) {
    __syncthreads();
    const uint32_t query = from + threadIdx.x;
    if (threadIdx.x < SOURCES) {
        struct source x = {0, 0, 0, 0};
        if (query < b->end) {
            const uint32_t flat = (uint32_t)(p->bwd.first + b->chunk * p->chunk) + query;
            const uint32_t entry = flat / (uint32_t)p->bwd.in.seq_q;
            const struct slots s = slots_of(&p->bwd.in, entry, flat - entry * (uint32_t)p->bwd.in.seq_q);
            x = {s.idx, (uint32_t)s.n, s.keys, entry * (uint32_t)p->bwd.in.seq_k};
        }
        sources[threadIdx.x] = x;
    }
    __syncthreads();
}
/* A block's rounds: up to ROUND slots of one query each, `query` of the block. */
struct round {
    uint32_t query, slot;
};
/* Slots of a round: idx[u] of 4 neighbours. Where not valid, -1. */
struct entries {
    int32_t idx[EACH];
    uint32_t first; /* row of source << 16 | number of the first of them in the block */
};
/* The round's entries; r becomes the next round. */
static __device__ __forceinline__ void load_entries(const struct kp_mla_bwd_rows *p, const struct block *b,
                                                    struct round *r, struct source *sources, struct entries *e) {
    const uint32_t topk = (uint32_t)p->bwd.in.topk, t = r->slot + EACH * threadIdx.x;
    if (r->slot == 0 && r->query % SOURCES == 0) find_sources(p, b, b->query + r->query, sources);
    const struct source s = sources[r->query % SOURCES];
    e->first = s.row << 16 | (r->query * topk + t);
    if (t + EACH <= s.n && ((uint64_t)s.idx & 15) == 0) {
        const int4 x = __ldcs((const int4 *)(s.idx + t));
        e->idx[0] = x.x, e->idx[1] = x.y, e->idx[2] = x.z, e->idx[3] = x.w;
    } else {
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++) e->idx[u] = t + u < s.n ? s.idx[t + u] : -1;
    }
#pragma unroll
    for (uint32_t u = 0; u < EACH; u++)
        if ((uint32_t)e->idx[u] >= s.keys) e->idx[u] = -1;
    r->slot += ROUND;
    if (r->slot >= topk) r->slot = 0, r->query++;
}
constexpr uint32_t NONE = ~0u;

/* The counter at `address` of shared memory, if there is a slot; place_next: what it was. Without branches. */
static __device__ __forceinline__ void count_slot(uint32_t address, int there) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p red.shared.add.u32 [%0], 1; }" ::"r"(address), "r"(there)
                 : "memory");
}
static __device__ __forceinline__ uint32_t place_next(uint32_t address, int there) {
    uint32_t was = 0;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p atom.shared.add.u32 %0, [%1], 1; }"
                 : "+r"(was)
                 : "r"(address), "r"(there)
                 : "memory");
    return was;
}

/* A round's slots, whatever rows they name, warp by warp and lane by lane. place: of the next slot of each row. */
static __device__ __forceinline__ void order_round(const struct entries *e, uint32_t *place, uint32_t *ordered) {
    const uint32_t lane = threadIdx.x & 31, first = __shfl_sync(~0u, e->first, 0) + lane;
    uint32_t row[EACH]; /* of the slot 32 u + lane after the warp's first */
#pragma unroll
    for (uint32_t u = 0; u < EACH; u++) {
        row[u] = NONE;
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            const int32_t idx = __shfl_sync(~0u, e->idx[k], (int)((32 * u + lane) / EACH));
            if (lane % EACH == k && idx >= 0) row[u] = (first >> 16) + (uint32_t)idx;
        }
    }
#pragma unroll 1
    for (uint32_t w = 0; w < WARPS; w++) {
        __syncthreads();
        if (w != threadIdx.x / 32) continue;
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++) {
            const uint32_t equal = __match_any_sync(~0u, row[u]), before = __popc(equal & ((1u << lane) - 1));
            const uint32_t to = row[u] != NONE ? place[row[u]] + before : 0;
            __syncwarp();
            if (row[u] != NONE) ordered[to] = row[u] << 16 | ((first & 0xffff) + 32 * u);
            if (row[u] != NONE && before == 0) place[row[u]] = to + (uint32_t)__popc(equal);
            __syncwarp();
        }
    }
}

/* The n slots in `ordered`, whole vectors of them, to `run`. Returned: some thread's are not in ascending order. */
static __device__ __forceinline__ int store_run(const uint32_t *ordered, uint32_t n, uint32_t *run, int vectors) {
    int wrong = 0;
    for (uint32_t i = EACH * threadIdx.x; i < (n + 127) / 128 * 128; i += ROUND) { /* whole warps */
        const uint4 x = i < n ? *(const uint4 *)(ordered + i) : make_uint4(NONE, NONE, NONE, NONE);
        uint32_t next_slot = __shfl_down_sync(~0u, x.x, 1);
        if ((threadIdx.x & 31) == 31) next_slot = i + EACH < n ? ordered[i + EACH] : NONE;
        if (i + EACH <= n) wrong |= x.x >= x.y || x.y >= x.z || x.z >= x.w || x.w >= next_slot;
        if (vectors && i + EACH <= n) {
            *(uint4 *)(run + i) = x;
        } else {
            if (i < n) run[i] = x.x;
            if (i + 1 < n) run[i + 1] = x.y, wrong |= x.x >= x.y;
            if (i + 2 < n) run[i + 2] = x.z, wrong |= x.y >= x.z;
            if (i + 3 < n) run[i + 3] = x.w;
        }
    }
    return __syncthreads_or(wrong);
}

/* Block `own` of all chunks'. x: a counter a row, and then the block's slots. */
static __device__ __forceinline__ void order_block(const struct kp_mla_bwd_rows *p, uint32_t own, uint32_t *x) {
    const uint32_t rows = rows_of(&p->bwd), counters = KP_MLA_SLOTS_COUNTERS(rows), topk = (uint32_t)p->bwd.in.topk;
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks;
    __shared__ struct source sources[SOURCES];
    struct block b;
    b.chunk = own / blocks, b.index = own - b.chunk * blocks;
    b.query = min(queries_of(p, b.chunk), b.index * (uint32_t)p->block);
    b.end = min(queries_of(p, b.chunk), b.query + (uint32_t)p->block);
    uint32_t *ordered = x + counters;
    const uint32_t counter = (uint32_t)__cvta_generic_to_shared(x);
    const uint32_t n_rounds = (b.end - b.query) * ((topk + ROUND - 1) / ROUND);
    struct round r = {0, 0};
    struct entries next;
    load_entries(p, &b, &r, sources, &next);
    for (uint32_t i = 4 * threadIdx.x; i < counters; i += 4 * THREADS) *(uint4 *)(x + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = 0; k < n_rounds; k++) {
        const struct entries now = next;
        load_entries(p, &b, &r, sources, &next);
        const uint32_t to = counter + 4 * (now.first >> 16);
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++) count_slot(to + 4 * (uint32_t)now.idx[u], now.idx[u] >= 0);
    }
    r = {0, 0};
    load_entries(p, &b, &r, sources, &next);
    const uint32_t n = scan_all(x, counters);
    uint4 *begins = (uint4 *)begins_of(p, b.chunk, b.index);
    for (uint32_t i = threadIdx.x; i < counters / 8; i += THREADS) {
        const uint4 lo = ((const uint4 *)x)[2 * i], hi = ((const uint4 *)x)[2 * i + 1];
        begins[i] = make_uint4(lo.x | lo.y << 16, lo.z | lo.w << 16, hi.x | hi.y << 16, hi.z | hi.w << 16);
    }
    if (threadIdx.x < (0u - n) % 4) ordered[n + threadIdx.x] = NONE; /* up to a whole vector */
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = 0; k < n_rounds; k++) {
        const struct entries now = next;
        uint32_t to_place[EACH];
        load_entries(p, &b, &r, sources, &next);
        const uint32_t to = counter + 4 * (now.first >> 16);
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++) to_place[u] = place_next(to + 4 * (uint32_t)now.idx[u], now.idx[u] >= 0);
        __syncthreads(); /* the next round's places come after these */
#pragma unroll
        for (uint32_t u = 0; u < EACH; u++)
            if (now.idx[u] >= 0) ordered[to_place[u]] = ((uint32_t)now.idx[u] << 16) + now.first + u;
    }
    __syncthreads();
    uint32_t *run = (uint32_t *)p->runs + b.chunk * p->list + b.query * topk;
    if (!store_run(ordered, n, run, topk % 4 == 0)) return;
    r = {0, 0}; /* counters stand where their rows end */
#pragma unroll 1
    for (uint32_t k = 0; k < n_rounds; k++) {
        load_entries(p, &b, &r, sources, &next);
        for (uint32_t u = 0; u < EACH; u++)
            if (next.idx[u] >= 0) atomicSub(&x[(next.first >> 16) + (uint32_t)next.idx[u]], 1u);
    }
    r = {0, 0};
#pragma unroll 1
    for (uint32_t k = 0; k < n_rounds; k++) {
        load_entries(p, &b, &r, sources, &next);
        order_round(&next, x, ordered);
    }
    __syncthreads();
    store_run(ordered, n, run, topk % 4 == 0);
}

/* ------------------------------------------------------------------ merge -------------------------- */

/* What a CTA takes: `merge_rows` rows of a chunk. */
struct task {
    uint32_t chunk, row, rows;
};
static __device__ __forceinline__ struct task task_of(const struct kp_mla_bwd_rows *p, uint32_t own) {
    const uint32_t all = rows_of(&p->bwd), each = (uint32_t)p->merge_rows, tasks = (all + each - 1) / each;
    const uint32_t chunk = own / tasks, row = (own - chunk * tasks) * each;
    return {chunk, row, min(each, all - row)};
}

/* The last of start[0 .. n] that is not after `place`. */
static __device__ __forceinline__ uint32_t last_start(const uint32_t *start, uint32_t n, uint32_t place) {
    uint32_t x = 0;
    for (uint32_t step = 1u << (31 - __clz((int)n)); step > 0; step /= 2)
        if (x + step <= n && start[x + step] <= place) x += step;
    return x;
}
/* Of rows row .. row + rows - 1 and all blocks: start[x], where row + x begins among the slots of these rows, and
 * start[rows], how many there are; to[x][block], what is to be added to a place in the block's run so that it is one
 * among these slots; *first: the slots of all rows before. */
static __device__ __forceinline__ void find_offsets(const struct kp_mla_bwd_rows *p, const struct task *t,
                                                   uint32_t *start, uint32_t *to, uint32_t pitch, uint32_t *first) {
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, counters = KP_MLA_SLOTS_COUNTERS(rows_of(&p->bwd));
    const uint32_t lane = threadIdx.x & 31, rows = t->rows;
    const uint16_t *begins = begins_of(p, t->chunk, 0) + t->row;
    const uint32_t step_block = THREADS / rows, step_row = THREADS % rows;
    uint32_t block = threadIdx.x / rows, x = threadIdx.x % rows;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < rows * blocks; i += THREADS) {
        const uint16_t *begin = begins + block * counters + x; /* below 2^32: the cache holds them all */
        to[x * pitch + block] = (uint32_t)(begin[1] - begin[0]) << 16 | begin[0];
        block += step_block, x += step_row;
        if (x >= rows) x -= rows, block++;
    }
    if (threadIdx.x < 3) start[rows + threadIdx.x] = 0;
    __syncthreads();
    /* a warp a row, a lane some neighbouring blocks, an odd number for the banks */
    const uint32_t each = (blocks + 31) / 32 | 1, from = min(blocks, lane * each), end = min(blocks, from + each);
    for (uint32_t y = threadIdx.x / 32; y < rows; y += WARPS) {
        uint32_t *own = to + y * pitch, sum = 0, begun = 0;
#pragma unroll 4
        for (uint32_t k = from; k < end; k++) sum += own[k] >> 16, begun += own[k] & 0xffff;
        const uint32_t to_here = sum_to_lane(sum);
        uint32_t offset = to_here - sum;
#pragma unroll 4
        for (uint32_t k = from; k < end; k++) {
            const uint32_t z = own[k];
            own[k] = offset - (z & 0xffff);
            offset += z >> 16;
        }
        if (lane == 31) start[y] = to_here;
        if (y > 0) continue;
        begun = sum_to_lane(begun);
        if (lane == 31) *first = begun;
    }
    const uint32_t n = scan_all(start, rows);
    if (threadIdx.x == 0) start[rows] = n;
    for (uint32_t y = threadIdx.x / 32; y < rows; y += WARPS) {
        const uint32_t before = start[y];
#pragma unroll 4
        for (uint32_t k = lane; k < blocks; k += 32) to[y * pitch + k] += before;
    }
    __syncthreads();
}

constexpr uint32_t ROUNDS = 4; /* slots of a lane that are loaded at once; most pieces have no more */

/* The pieces of all blocks, a warp one after the other, to their places in `target`. */
static __device__ __forceinline__ void place_pieces(const struct kp_mla_bwd_rows *p, const struct task *t,
                                                    const uint32_t *to, uint32_t pitch, uint32_t *target) {
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t slots_of_block = (uint32_t)p->block * (uint32_t)p->bwd.in.topk;
    const uint32_t *runs = (const uint32_t *)p->runs + t->chunk * p->list;
    /* where its pieces begin and end is loaded for 32 of them at once */
#pragma unroll 1
    for (uint32_t first_block = warp; first_block < blocks; first_block += 32 * WARPS) {
        const uint16_t *begins = begins_of(p, t->chunk, min(blocks - 1, first_block + lane * WARPS)) + t->row;
        const uint32_t piece = first_block + lane * WARPS < blocks ? begins[0] | (uint32_t)begins[t->rows] << 16 : 0;
#pragma unroll 1
        for (uint32_t y = 0; y < 32 && first_block + y * WARPS < blocks; y++) {
            const uint32_t block = first_block + y * WARPS, base = block * slots_of_block, *run = runs + base;
            const uint32_t own = __shfl_sync(~0u, piece, (int)y), end = own >> 16;
            const uint32_t *own_to = to + (int32_t)(block - t->row * pitch);
#pragma unroll 1
            for (uint32_t i = (own & 0xffff) + lane; i < end; i += 32 * ROUNDS) {
                uint32_t e[ROUNDS];
#pragma unroll
                for (uint32_t v = 0; v < ROUNDS; v++)
                    if (i + 32 * v < end) e[v] = run[i + 32 * v];
#pragma unroll
                for (uint32_t v = 0; v < ROUNDS; v++)
                    if (i + 32 * v < end) target[own_to[(e[v] >> 16) * pitch] + i + 32 * v] = base + (e[v] & 0xffff);
            }
        }
    }
}

/* The list of these rows, of which row + x begins at start[x]: keys and, where they are in `region`, slots. The list's
 * place 0 stands after `skew` others in a vector, and in the region. */
static __device__ __forceinline__ void store_list(uint32_t *keys, uint32_t *slots, const uint32_t *region,
                                                  const uint32_t *start, uint32_t row, uint32_t rows, uint32_t skew) {
    const uint32_t n = start[rows];
    for (uint64_t v = 4 * threadIdx.x; v < (uint64_t)skew + n; v += 4 * THREADS) { /* places v - skew .. + 3 */
        const uint32_t i = (uint32_t)v - min((uint32_t)v, skew), head = v == 0 ? skew : 0, end = min(n - i, 4 - head);
        uint32_t x = last_start(start, rows, i), key[4];
#pragma unroll
        for (uint32_t u = 0; u < 4; u++) key[u] = row + x;
        if (x < rows && start[x + 1] < i + end) { /* rows change */
#pragma unroll
            for (uint32_t u = 1; u < 4; u++) {
                if (u < end && start[x + 1] <= i + u) x = last_start(start, rows, i + u);
                key[u] = row + x;
            }
        }
        if (head == 0 && end == 4) {
            __stcs((uint4 *)(keys + i), make_uint4(key[0], key[1], key[2], key[3]));
            if (region) __stcs((uint4 *)(slots + i), *(const uint4 *)(region + v));
        } else {
#pragma unroll
            for (uint32_t u = 0; u < 4; u++) {
                if (u >= end) continue;
                keys[i + u] = key[u];
                if (region) slots[i + u] = region[skew + i + u];
            }
        }
    }
}

/* Task `own` of all chunks'; what it is about is read anew after a barrier, for want of registers. */
static __device__ __forceinline__ void merge_rows(const struct kp_mla_bwd_rows *p, uint32_t own, uint32_t *x) {
    __shared__ uint32_t again, first; /* own; the slots of all rows before */
    const uint32_t each = (uint32_t)p->merge_rows, pitch = (uint32_t)p->bwd.sort_blocks | 1;
    uint32_t *start = x, *to = start + (each + 7) / 4 * 4, *region = to + (each * pitch + 3) / 4 * 4;
    if (threadIdx.x == 0) again = own;
    {
        const struct task t = task_of(p, own);
        find_offsets(p, &t, start, to, pitch, &first);
        const uint32_t skew = first & 3;
        if (start[t.rows] + skew <= KP_MLA_SLOTS_REGION)
            place_pieces(p, &t, to, pitch, region + skew);
        else
            place_pieces(p, &t, to, pitch, (uint32_t *)p->slots + t.chunk * p->list + first);
    }
    __syncthreads();
    const struct task t = task_of(p, again);
    const uint32_t n = start[t.rows], before = first, all_rows = rows_of(&p->bwd), last = t.row + t.rows == all_rows;
    const int64_t list = t.chunk * p->list + before;
    uint32_t *slots = (uint32_t *)p->slots + list, *keys = (uint32_t *)p->keys + list;
    store_list(keys, slots, n + (before & 3) <= KP_MLA_SLOTS_REGION ? region : 0, start, t.row, t.rows, before & 3);
    const uint32_t all = queries_of(p, t.chunk) * (uint32_t)p->bwd.in.topk;
    for (uint32_t i = n + threadIdx.x; last && before + i < all; i += THREADS)
        keys[i] = all_rows, slots[i] = 0; /* what is not valid */
}

/* CTAs, as many as the device works on at once, step by the grid's size: the next launch overlaps with them. */
extern "C" __global__ void __launch_bounds__(THREADS, 3) CFG(const __grid_constant__ struct kp_mla_bwd_rows p) {
    extern __shared__ __align__(16) uint32_t x[];
    const uint32_t each = STEP == KP_MLA_SLOTS_ORDER
                              ? (uint32_t)p.bwd.sort_blocks
                              : (rows_of(&p.bwd) + (uint32_t)p.merge_rows - 1) / (uint32_t)p.merge_rows;
    const uint32_t chunks = (uint32_t)((p.bwd.n + p.chunk - 1) / p.chunk);
    grid_release();
    if (STEP == KP_MLA_SLOTS_ORDER) {
        __shared__ uint32_t next; /* for want of registers */
        for (uint32_t own = blockIdx.x; own < chunks * each;) {
            if (threadIdx.x == 0) next = own + gridDim.x;
            order_block(&p, own, x);
            __syncthreads();
            own = next;
            __syncthreads();
        }
    } else {
        grid_wait();
        for (uint32_t own = blockIdx.x; own < chunks * each; own += gridDim.x) {
            merge_rows(&p, own, x);
            __syncthreads();
        }
    }
}
