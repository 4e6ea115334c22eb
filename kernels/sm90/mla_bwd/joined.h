/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu over joined lists (docs/joined_lists.md), included by plan.h: a work tile is a group of queries
 * and some of their heads. Row r of its 64 is head r % 2^shift of query r >> shift; slots are entries of the group's
 * list, and an entry's bits say which queries P and dS have it for. The gradient of an entry is summed over all 64 rows
 * before it goes to memory.
 *
 * CTAS = 2: a group is two queries, of which each CTA of a cluster has one: 64 of its heads and its bits of the
 * entries.
 *
 * A group that is left apart has its queries' own lists, one after the other, each in whole tiles whose entries have
 * the bit of their query alone. */
#ifndef ATTN_SM90_MLA_BWD_JOINED_H
#define ATTN_SM90_MLA_BWD_JOINED_H

/* In the place of P' sums, which this schedule does not use:
 *   ENTRY_BITS   uint32_t [2][64], bits of the entries of a tile
 *   PLACE        uint32_t [2], where the tile's first entry stands in part_dist
 *   ODD_STATES   uint32_t [2], whether a state of 32 rows is not finite
 *   EXACT        bytes [4], whether a score or dP of a warp's entries is not finite
 *   LISTS        of a group left apart, address of the first query's indices
 *   QUERIES      the same, uint32_t [16][2], slots of a query, and below which key they are valid
 *   FIRST_TILE   which of the group's tiles is the first of the part
 *   ORDER        bytes [128], where CTAs are kept together: the tile that comes at each place */
constexpr uint32_t ENTRY_BITS_AT = PART_AT, PLACE_AT = ENTRY_BITS_AT + 512, ODD_STATES_AT = PLACE_AT + 8;
constexpr uint32_t EXACT_AT = ODD_STATES_AT + 8, LISTS_AT = EXACT_AT + 8, QUERIES_AT = LISTS_AT + 8;
constexpr uint32_t FIRST_TILE_AT = QUERIES_AT + 128;
constexpr uint32_t ORDER_AT = FIRST_TILE_AT + 4, ORDERED = 128;
static_assert(ORDER_AT + ORDERED <= STATE_AT, "the place of P' sums holds it");

typedef struct work_tile work_tile;
constexpr uint32_t GROUP_AT = WORK_AT;
/* Of the work tile that producers have. */
static __device__ __forceinline__ count index_of(const struct kp_mla_bwd *p, uint32_t shared) {
    return work_tile_index(p, shared_load32(shared + GROUP_AT + 56));
}

static __device__ __forceinline__ const int32_t *words_of(const struct kp_mla_bwd *p, const work_tile *w) {
    const struct kp_mla_joined *j = joined_of(p);
    return (const int32_t *)j->data + w->b * j->batch + w->i / j->group * j->row;
}
/* Queries of the group; the last of a batch entry may have fewer than others. */
static __device__ __forceinline__ int64_t first_query_of(const work_tile *w) { return w->i - rank_of(); }
static __device__ __forceinline__ int queries_of(const struct kp_mla_bwd *p, const work_tile *w) {
    return (int)min(p->in.seq_q - first_query_of(w), (int64_t)joined_of(p)->group);
}
/* Heads of the work tile, and from bit 16 on its queries. */
static __device__ __forceinline__ uint32_t rows_of(const struct kp_mla_bwd *p, const work_tile *w) {
    const int heads = min(p->in.heads_q - w->head, 1 << joined_of(p)->shift);
    return (uint32_t)heads | (uint32_t)(CTAS == 2 ? w->i < p->in.seq_q : queries_of(p, w)) << 16;
}
static __device__ __forceinline__ int query_of(const struct kp_mla_bwd *p, int row) {
    return row >> joined_of(p)->shift;
}
static __device__ __forceinline__ int head_of(const struct kp_mla_bwd *p, int row) {
    return row & ((1 << joined_of(p)->shift) - 1);
}
/* rows: of rows_of. */
static __device__ __forceinline__ int row_exists(const struct kp_mla_bwd *p, int row, uint32_t rows) {
    return query_of(p, row) < (int)(rows >> 16) && head_of(p, row) < (int)(rows & 0xffff);
}
static __device__ __forceinline__ int64_t row_offset(const struct kp_mla_bwd *p, int row, int64_t query, int64_t head) {
    return query_of(p, row) * query + head_of(p, row) * head;
}

/* Tiles of a work tile. */
static __device__ __forceinline__ int tiles_of(const struct kp_mla_bwd *p, const work_tile *w) {
    const int32_t *words = words_of(p, w);
    if (!(words[KP_JOINED_FLAGS] & 1)) return (words[KP_JOINED_ENTRIES] + 63) / 64;
    int tiles = 0;
#pragma unroll 1
    for (int r = 0; r < queries_of(p, w); r++) tiles += (slots_of(&p->in, w->b, first_query_of(w) + r).n + 63) / 64;
    return tiles;
}

/* Of a work tile's `tiles` those of its part, as many in each as the device finds: how many; *from: the first. */
static __device__ __forceinline__ int part_of_tiles(const struct kp_mla_bwd *p, count index, int tiles, int *from) {
    *from = 0;
    if (!in_parts(p)) return tiles;
    const int share = (int)((uint32_t)(tiles + p->parts - 1) / (uint32_t)p->parts);
    *from = (int)(index % (count)p->parts) * share;
    return max(min(tiles - *from, share), 0);
}

/* One thread: of a group left apart, how many slots its queries have; all ones as the bound of keys say so. */
static __device__ __forceinline__ void keep_lists(const struct kp_mla_bwd *p, uint32_t shared) {
    const work_tile w = work_of(p, index_of(p, shared));
    const int queries = queries_of(p, &w);
    const int64_t first = first_query_of(&w);
    const uint64_t lists = p->in.indices.data + 4 * (uint64_t)(w.b * p->in.indices.batch + first * p->in.indices.row);
    uint32_t slots = 0;
    shared_store32x2(shared + LISTS_AT, (uint32_t)lists, (uint32_t)(lists >> 32));
#pragma unroll 1
    for (int r = 0; r < queries; r++) {
        const struct slots s = slots_of(&p->in, w.b, first + r);
        shared_store32x2(shared + QUERIES_AT + 8 * (uint32_t)r, (uint32_t)s.n, s.keys);
        slots += (uint32_t)(s.n + 63) & ~63u;
    }
    shared_store32x2(shared + GROUP_AT + 8, slots, ~0u);
}
/* One thread: what producers keep of the work tile, plan.h; n is that of whole tiles. */
static __device__ __forceinline__ void keep_group(const struct kp_mla_bwd *p, uint32_t k, uint32_t shared) {
    shared_store32(shared + GROUP_AT + 56, k);
    {
        const work_tile w = work_of(p, index_of(p, shared));
        keep4(shared + GROUP_AT + 32,
              p->in.q.data + 2 * (uint64_t)(w.b * p->in.q.batch + w.i * p->in.q.row + w.head * p->in.q.head),
              p->dout.data + 2 * (uint64_t)(w.b * p->dout.batch + w.i * p->dout.row + w.head * p->dout.head));
        keep4(shared + GROUP_AT + 48, (uint64_t)states_of(p, &w), k);
    }
    {
        const work_tile w = work_of(p, index_of(p, shared));
        const int32_t *words = words_of(p, &w);
        keep4(shared + GROUP_AT + 16, p->in.kv.data + 2 * (uint64_t)(w.b * p->in.kv.batch), rows_of(p, &w));
        keep4(shared + GROUP_AT, (uint64_t)words, (uint32_t)(words[KP_JOINED_ENTRIES] + 63) & ~63u);
    }
    if (((const int32_t *)kept(shared + GROUP_AT))[KP_JOINED_FLAGS] & 1) keep_lists(p, shared);
    int from;
    const int tiles = part_of_tiles(p, index_of(p, shared), (int)shared_load32(shared + GROUP_AT + 8) / 64, &from);
    shared_store32(shared + GROUP_AT + 8, 64 * (uint32_t)tiles);
    shared_store32(shared + FIRST_TILE_AT, (uint32_t)from);
}

/* Warp 0, where CTAs are kept together: tiles in order of their first keys, which begin anew with each half and use of
 * the list; every second work tile of a CTA takes them in descending order, to begin with rows that the second-level
 * cache still has. */
static __device__ __forceinline__ void order_tiles(const struct kp_mla_bwd *p, uint32_t shared) {
    const int32_t *keys = (const int32_t *)kept(shared + GROUP_AT) + joined_of(p)->keys;
    const int lane = recompute((int)threadIdx.x) & 31, n = (int)shared_load32(shared + GROUP_AT + 8) / 64;
#pragma unroll 1
    for (int tile = lane; tile < ((n + 31) & ~31); tile += 32) {
        const int32_t own = tile < n ? keys[64 * tile] : 0;
        int place = 0;
#pragma unroll 1
        for (int first = 0; first < n; first += 32) {
            const int32_t other = first + lane < n ? keys[64 * (first + lane)] : INT32_MAX;
#pragma unroll 4
            for (int x = 0; x < 32; x++) {
                const int32_t key = __shfl_sync(~0u, other, x);
                place += key < own || (key == own && first + x < tile);
            }
        }
        if (shared_load32(shared + GROUP_AT + 56) & 1) place = n - 1 - place;
        if (tile < n) shared_store8(shared + ORDER_AT + (uint32_t)place, (uint32_t)tile);
    }
    __syncwarp();
}
/* The tile that comes at place t. */
static __device__ __forceinline__ int tile_in_order(const struct kp_mla_bwd *p, uint32_t shared, int t) {
    if (STORED_ROWS || !p->checkpoints || shared_load32(shared + GROUP_AT + 8) > 64 * ORDERED) return t;
    if (t == 0) order_tiles(p, shared);
    return (int)shared_load8(shared + ORDER_AT + (uint32_t)t);
}

/* Keys and bits of entries `lane` and `lane` + 32 of tile t; -1: none. */
struct entries {
    int32_t lo, hi;
    uint32_t lo_bits, hi_bits, place;
};
static __device__ __forceinline__ struct entries joined_entries(const struct kp_mla_bwd *p, uint32_t shared, int t) {
    t = tile_in_order(p, shared, t);
    const struct kp_mla_joined *j = joined_of(p);
    const int32_t *words = (const int32_t *)kept(shared + GROUP_AT);
    const int lane = recompute((int)threadIdx.x) & 31;
    struct entries x;
    const uint32_t mine = lane < 2 * j->group ? (uint32_t)words[j->bits + 2 * j->group * t + lane] : 0;
    x.place = 64 * (uint32_t)t;
    x.lo = words[j->keys + 64 * t + lane];
    x.hi = words[j->keys + 64 * t + 32 + lane];
    x.lo_bits = x.hi_bits = 0;
#pragma unroll 1
    for (int r = 0; r < j->group; r++) {
        x.lo_bits |= (__shfl_sync(~0u, mine, 2 * r) >> lane & 1) << r;
        x.hi_bits |= (__shfl_sync(~0u, mine, 2 * r + 1) >> lane & 1) << r;
    }
    return x;
}
static __device__ __forceinline__ struct entries entries_apart(const struct kp_mla_bwd *p, uint32_t shared, int t) {
    const int lane = recompute((int)threadIdx.x) & 31;
    int r = 0;
    uint2 query = shared_load32x2(shared + QUERIES_AT);
#pragma unroll 1
    while (t >= ((int)query.x + 63) / 64) {
        t -= ((int)query.x + 63) / 64;
        r++;
        query = shared_load32x2(shared + QUERIES_AT + 8 * (uint32_t)r);
    }
    const int32_t *list = (const int32_t *)kept(shared + LISTS_AT) + r * p->in.indices.row + 64 * t + lane;
    struct entries x;
    x.place = 64 * (uint32_t)t;
    x.lo = 64 * t + lane < (int)query.x ? list[0] : -1;
    x.hi = 64 * t + lane + 32 < (int)query.x ? list[32] : -1;
    if ((uint32_t)x.lo >= query.y) x.lo = -1;
    if ((uint32_t)x.hi >= query.y) x.hi = -1;
    x.lo_bits = (uint32_t)(x.lo >= 0) << r;
    x.hi_bits = (uint32_t)(x.hi >= 0) << r;
    return x;
}
#endif
