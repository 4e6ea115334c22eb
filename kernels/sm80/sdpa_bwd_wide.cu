/* SPDX-License-Identifier: MIT
 * Dense backward in f32 and f64 on tensor cores, every chip from sm_80 on, any D and DV, every feature; the gradients
 * of q, k and v. One source, two kernels a variant: one owns keys (CFG_SIDE), one owns queries. Each forms the scores
 * anew, so that every sum has one owner and one order: no reductions across CTAs, the same bits every time. With .sums
 * the owner of keys makes dQ, too, by reductions in any order (sdpa_bwd_wide_sums.h).
 *
 *   P = exp(s - lse)     dP = dO V^T     dS = P o (dP - shift)
 *   owner of keys:  dV = P^T dO   dK = scale dS^T Q   over all queries of the group's heads, one head after the other
 *   owner of queries:  dQ = scale dS K   over all keys
 *
 *   own   K, V | Q, dO   --cp.async--> own chunks (or in the slot) --+
 *   other Q, dO | K, V   --cp.async--> ring ------------------------- +-mma-> S, dP --cells--> P, dS (registers)
 *                                       |                                                          |
 *                                       +---------------------------------------------------- mma -+
 *                                                                        dV, dK | dQ (registers) --> global
 *
 * A CTA owns 16 rows a warp and COLS columns of each gradient; wider ones are cut into slices, each a work tile that
 * forms S and dP anew. A step is one tile of the other side (and, for keys, one query head).
 *
 * Shared memory, pieces of 256 bytes of columns (sdpa_wide.h), a = chunks(D), b = chunks(DV):
 *   own chunks, if resident: (a + b) x ROWS x 256
 *   ring, staged: two tiles, (a + b) x TILE x 256 each; one barrier a step (.sums: two), the next is copied meanwhile
 *   ring, else: SLOTS slots of (TILE, + ROWS if not resident) x 256: a, b, then what the last products read again
 *   owners of keys: statistics of 4 tiles of queries (.sums: of one), 3 x TILE numbers each
 *   .sums: dS^T, hi and lo, ROWS x TILE x 4; an exponent of each warp
 * Figures: docs/kernels/sdpa_bwd_wide_sm80.md. */
#include "kernels/sm80/sdpa_bwd_wide.h"
#if defined CFG_SUMS && CFG_SUMS
#include "kernels/sm80/sdpa_bwd_wide_sums.h"
#endif

/* What all threads of the CTA know about its work tile. */
struct work {
    struct place place;
    int head, slice;    /* own: key head or query head */
    int head0;          /* own keys: first query head */
    int own0;           /* first own row */
    int first, n_tiles; /* tiles of the other side that see any of the own rows */
    int start;     /* the first of these to be visited; sums: not the same for all, or all would add to one place */
    int heads_end; /* after the last query head; head0 without a tile */
};

/* Chunks of a step, and where they lie. */
struct shape {
    int a, b;             /* chunks of D, of DV */
    int again_b, again_a; /* of the slice: dV's chunks of dO; dK's of Q or dQ's of K */
    uint32_t base, ring;  /* addresses */
    uint32_t slot, stats; /* bytes of a slot, or of a staged tile; address */
    int staged;
};

/* A step: which of the tiles, of which query head; the last was the one before head == heads_end. Found from the
 * number of a step by divisions it would cost 50 instructions. */
struct turn {
    int tile, head;
};

/* The ring as its producer sees it: the next item to copy and where it goes. */
struct feed {
    struct turn turn;
    int chunk, slot; /* chunk of the step */
};

static __device__ __forceinline__ const struct kp_view *own_a(const struct kp_sdpa_bwd *p) {
    return OWN_KEYS ? &p->in.k : &p->in.q;
}
static __device__ __forceinline__ const struct kp_view *own_b(const struct kp_sdpa_bwd *p) {
    return OWN_KEYS ? &p->in.v : &p->dout;
}
static __device__ __forceinline__ const struct kp_view *other_a(const struct kp_sdpa_bwd *p) {
    return OWN_KEYS ? &p->in.q : &p->in.k;
}
static __device__ __forceinline__ const struct kp_view *other_b(const struct kp_sdpa_bwd *p) {
    return OWN_KEYS ? &p->dout : &p->in.v;
}
/* Sums: always. */
static __device__ __forceinline__ int is_resident(const struct kp_sdpa_wide_bwd *k) { return SUMS || k->wide.resident; }
static __device__ __forceinline__ int group_of(const struct kp_sdpa_bwd *p) { return p->in.heads_q / p->in.heads_k; }

/* ------------------------------------------------------------------ work tiles --------------------- */

/* Returns 0 if the tile lies past what belongs to its sequence and nothing is to be written. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_wide_bwd *k, int64_t index, struct work *w) {
    const struct kp_sdpa_bwd *p = &k->bwd;
    const int64_t heads = OWN_KEYS ? p->in.heads_k : p->in.heads_q, all = heads * p->in.batch;
    const int64_t of_section = (int64_t)k->tiles * k->wide.slices * p->section;
    const int64_t first = index / of_section * p->section;
    const uint32_t size = (uint32_t)(all - first < p->section ? all - first : p->section);
    const uint64_t rest = (uint64_t)(index % of_section), outer = rest / size;
    const int64_t head = first + (int64_t)(rest % size);
    const int tile = (int)(outer / (uint32_t)k->wide.slices), right = p->in.window_right, left = p->in.window_left;
    struct place *place = &w->place;
    w->slice = SUMS ? 0 : (int)(outer % (uint32_t)k->wide.slices);
    w->own0 = (OWN_KEYS ? tile : k->tiles - 1 - tile) * ROWS; /* causal: the longest walks first */
    w->head = (int)(head % heads);
    w->head0 = OWN_KEYS ? w->head * group_of(p) : 0;
    enter_sequence(p, place, (int)(head / heads));
    place->head_k = OWN_KEYS ? w->head : w->head / group_of(p);
    w->first = w->n_tiles = w->start = 0;
    w->heads_end = w->head0;
    if (w->own0 >= (OWN_KEYS ? place->seq.keys : place->seq.rows)) return 0;
    if (right < -left) return 1;
    const int last = min(w->own0 + ROWS, OWN_KEYS ? place->seq.sk : place->seq.sq) - 1; /* none exists: before own0 */
    const int low = OWN_KEYS ? w->own0 - place->off - right : w->own0 + place->off - left,
              high = OWN_KEYS ? last - place->off + left + 1 : last + place->off + right + 1;
    const int x0 = max(low, 0), x1 = min(high, OWN_KEYS ? place->seq.sq : place->seq.sk);
    if (last < w->own0 || x1 <= x0) return 1;
    w->first = x0 / TILE;
    w->n_tiles = (x1 + TILE - 1) / TILE - w->first;
    w->heads_end = w->head0 + (OWN_KEYS ? group_of(p) : 1);
    if (SUMS) w->start = (int)((uint32_t)tile % (uint32_t)w->n_tiles);
    return 1;
}

static __device__ __forceinline__ struct tile tile_of(const struct work *w, struct turn turn) {
    struct tile t;
    t.own = w->own0 + warp_of() * 16;
    t.other = (w->first + turn.tile) * TILE;
    t.head = OWN_KEYS ? turn.head : w->head;
    return t;
}
static __device__ __forceinline__ struct turn first_turn(const struct work *w) {
    return (struct turn){SUMS ? w->start : 0, w->head0};
}
static __device__ __forceinline__ struct turn turn_after(const struct work *w, struct turn x) {
    x.tile = x.tile + 1 == w->n_tiles ? 0 : x.tile + 1;
    x.head += x.tile == (SUMS ? w->start : 0);
    return x;
}

static __device__ __forceinline__ struct shape shape_of(const struct kp_sdpa_wide_bwd *k, const struct work *w) {
    const struct kp_sdpa_bwd *p = &k->bwd;
    const int left_a = min(p->in.dim_qk - w->slice * COLS, COLS), left_b = min(p->in.dim_v - w->slice * COLS, COLS);
    struct shape s;
    s.a = chunks_of(p->in.dim_qk);
    s.b = chunks_of(p->in.dim_v);
    s.again_b = OWN_KEYS && p->dv.data ? chunks_of(max(left_b, 0)) : 0;
    s.again_a = !OWN_KEYS || p->dk.data ? chunks_of(max(left_a, 0)) : 0;
    s.staged = SUMS || k->wide.staged;
    s.base = shared_base();
    s.ring = s.base + (is_resident(k) ? (s.a + s.b) * ROWS * PITCH : 0);
    s.slot = (s.staged ? (s.a + s.b) * TILE : TILE + (is_resident(k) ? 0 : ROWS)) * PITCH;
    s.stats = s.ring + (s.staged ? 2 : SLOTS) * s.slot;
    return s;
}

/* ------------------------------------------------------------------ copies ------------------------- */

/* `n` chunks from `chunk` on of rows row0 on of a tensor, `exist` of them. */
static __device__ __forceinline__ void copy_chunks(const struct kp_view *v, int b, int head, int64_t row0, int exist,
                                                   int width, int chunk, int n, uint32_t to, int rows) {
    const int64_t element = b * v->batch + head * v->head + row0 * v->row + chunk * CHUNK;
    const char *from = (const char *)v->data + (int64_t)sizeof(num) * element;
    int left = stored(width) - chunk * CHUNK;
#pragma unroll 1
    for (int c = 0; c < n; c++, from += PITCH, left -= CHUNK)
        copy_rows(to + c * rows * PITCH, rows, from, (int64_t)sizeof(num) * v->row, exist, left, v->chunk);
}
static __device__ __forceinline__ void copy_own(const struct kp_sdpa_bwd *p, const struct work *w, int chunk, int n,
                                                int is_b, uint32_t to) {
    const struct place *place = &w->place;
    copy_chunks(is_b ? own_b(p) : own_a(p), place->b, w->head, (OWN_KEYS ? place->seq.k0 : place->seq.q0) + w->own0,
                (OWN_KEYS ? place->seq.sk : place->seq.sq) - w->own0, is_b ? p->in.dim_v : p->in.dim_qk, chunk, n, to,
                ROWS);
}
static __device__ __forceinline__ void copy_other(const struct kp_sdpa_bwd *p, const struct work *w, struct tile t,
                                                  int chunk, int n, int is_b, uint32_t to) {
    const struct place *place = &w->place;
    copy_chunks(is_b ? other_b(p) : other_a(p), place->b, OWN_KEYS ? t.head : place->head_k,
                (OWN_KEYS ? place->seq.q0 : place->seq.k0) + t.other,
                (OWN_KEYS ? place->seq.sq : place->seq.sk) - t.other, is_b ? p->in.dim_v : p->in.dim_qk, chunk, n, to,
                TILE);
}

static __device__ __forceinline__ uint32_t stats_at(const struct shape *s, const struct work *w, struct turn x) {
    const uint32_t step = (uint32_t)(x.head * w->n_tiles + x.tile);
    return s->stats + (SUMS ? 0 : step % KP_WIDE_STAT_TILES * (3 * STAT_BYTES));
}
static __device__ __forceinline__ void copy_stats(const struct kp_sdpa_bwd *p, const struct work *w, struct tile t,
                                                  uint32_t to) {
    const int piece = thread_of() % (STAT_BYTES / 16) * 16, kind = thread_of() / (STAT_BYTES / 16);
    const int64_t row = t.head * p->stat_rows + w->place.stat0 + t.other;
    const uint64_t from = kind == 0 ? p->stat_lse : kind == 1 ? p->stat_shift : p->stat_g;
    static_assert(3 * STAT_BYTES / 16 <= THREADS && KP_WIDE_STAT_ROWS % TILE == 0, "one pass, whole tiles");
    if (OWN_KEYS && kind < 3)
        copy_async16_whole(to + kind * STAT_BYTES + piece, (const char *)from + row * (int64_t)sizeof(num) + piece);
}

/* The next item of the ring; staged: the next tile. begins: the very first. */
static __device__ __forceinline__ void copy_slot(const struct kp_sdpa_wide_bwd *k, const struct work *w,
                                                 const struct shape *s, struct feed *feed, int begins) {
    const struct kp_sdpa_bwd *p = &k->bwd;
    if (feed->turn.head < w->heads_end) {
        const struct tile t = tile_of(w, feed->turn);
        const uint32_t to = s->ring + feed->slot * s->slot;
        int last = 1; /* item of the step */
        if (feed->chunk == 0 && (!SUMS || begins)) copy_stats(p, w, t, stats_at(s, w, feed->turn));
        if (s->staged) {
            copy_other(p, w, t, 0, s->a, 0, to);
            copy_other(p, w, t, 0, s->b, 1, to + s->a * TILE * PITCH);
            feed->slot ^= 1;
        } else {
            const int x = feed->chunk, past = x - s->a - s->b, is_b = past < 0 ? x >= s->a : past < s->again_b;
            const int chunk = past < 0 ? x - (is_b ? s->a : 0) : w->slice * CHUNKS + past - (is_b ? 0 : s->again_b);
            copy_other(p, w, t, chunk, 1, is_b, to);
            if (!is_resident(k) && past < 0) copy_own(p, w, chunk, 1, is_b, to + TILE * PITCH);
            last = ++feed->chunk == s->a + s->b + s->again_a + s->again_b;
            feed->slot = feed->slot + 1 == SLOTS ? 0 : feed->slot + 1;
        }
        if (last) feed->chunk = 0, feed->turn = turn_after(w, feed->turn);
    }
    copy_commit();
}

/* Wait for the next item, free the slot of the one before, start another copy. Returns the item's slot. turn: of this
 * step; sums copy the one after it. */
static __device__ __forceinline__ uint32_t next_slot(const struct kp_sdpa_wide_bwd *k, const struct work *w,
                                                     const struct shape *s, struct feed *feed, int *slot,
                                                     struct turn turn) {
    const uint32_t address = s->ring + *slot * s->slot;
    if (s->staged)
        copy_wait(0);
    else
        copy_wait(SLOTS - 2);
    __syncthreads();
    if (SUMS) feed->turn = turn_after(w, turn), feed->slot = *slot ^ 1; /* in fewer registers */
    copy_slot(k, w, s, feed, 0);
    *slot = *slot + 1 == (s->staged ? 2 : SLOTS) ? 0 : *slot + 1;
    return address;
}

/* ------------------------------------------------------------------ results ------------------------ */

typedef num gradient[CHUNKS][CHUNK_STRIPES][PIECE][4];

static __device__ __forceinline__ void clear(gradient x) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int s = 0; s < CHUNK_STRIPES; s++)
#pragma unroll
            for (int e = 0; e < PIECE; e++) x[c][s][e][0] = x[c][s][e][1] = x[c][s][e][2] = x[c][s][e][3] = 0;
}

/* The slice's columns of the warp's rows, times `scale`. */
static __device__ __forceinline__ void store_gradient(const struct kp_sdpa_bwd *p, const struct work *w,
                                                      const struct kp_view *v, int width, num scale, gradient x) {
    const struct place *place = &w->place;
    const int exist = OWN_KEYS ? place->seq.keys : place->seq.rows;
    const num one[2] = {1, 1};
    num *to[2];
    if (!v->data) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = w->own0 + warp_of() * 16 + 8 * r + (lane_of() >> 2);
        to[r] = row < exist ? (num *)v->data + place->b * v->batch + w->head * v->head +
                                  ((OWN_KEYS ? place->seq.k0 : place->seq.q0) + row) * v->row + w->slice * COLS
                            : 0;
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        num *const chunk[2] = {to[0] ? to[0] + c * CHUNK : 0, to[1] ? to[1] + c * CHUNK : 0};
#pragma unroll
        for (int s = 0; s < CHUNK_STRIPES; s++)
#pragma unroll
            for (int e = 0; e < PIECE; e++)
#pragma unroll
                for (int y = 0; y < 4; y++) x[c][s][e][y] *= scale;
        store_chunk(chunk, x[c], width - w->slice * COLS - c * CHUNK, one, v->chunk);
    }
}

/* ------------------------------------------------------------------ one work tile ------------------ */

static __device__ __forceinline__ struct units units_of(const struct kp_sdpa_wide_bwd *k, const struct work *w,
                                                        struct tile t) {
    const struct kp_sdpa_wide *x = &k->wide;
    const int64_t head_k = (int64_t)w->place.b * k->bwd.in.heads_k + w->place.head_k,
                  head_q = (int64_t)w->place.b * k->bwd.in.heads_q + t.head;
    const int own_end = (OWN_KEYS ? w->place.seq.sk : w->place.seq.sq) - 1, own = max(min(t.own, own_end), 0);
    const int i = OWN_KEYS ? t.other : own, j = OWN_KEYS ? own : t.other;
    const num q = block_unit(x->unit_q, head_q, x->blocks_q, i), o = block_unit(x->unit_o, head_q, x->blocks_q, i),
              key = block_unit(x->unit_k, head_k, x->blocks_k, j), v = block_unit(x->unit_v, head_k, x->blocks_k, j);
    return OWN_KEYS ? (struct units){key, v, q, o} : (struct units){q, o, key, v};
}

static __device__ __forceinline__ void run_tile(const struct kp_sdpa_wide_bwd *k, const struct work *w) {
    const struct kp_sdpa_bwd *p = &k->bwd;
    const struct shape s = shape_of(k, w);
    const num one[2] = {1, 1};
    gradient rA, rB; /* dK or dQ; dV */
    clear(rA);
    if (OWN_KEYS) clear(rB);
    struct own_numbers own;
    if (!OWN_KEYS) own = own_numbers_of(p, &w->place, tile_of(w, first_turn(w)));

    struct feed feed = {first_turn(w), 0, 0};
    int slot = 0;
    if (w->heads_end > w->head0 && is_resident(k)) {
        copy_own(p, w, 0, s.a, 0, s.base);
        copy_own(p, w, 0, s.b, 1, s.base + s.a * ROWS * PITCH);
    }
#pragma unroll
    for (int t = 0; t < SLOTS - 1; t++)
        if (t == 0 || !s.staged) copy_slot(k, w, &s, &feed, t == 0); /* the first group holds the own rows, too */

#pragma unroll 1
    for (struct turn turn = first_turn(w); turn.head < w->heads_end; turn = turn_after(w, turn)) {
        const struct tile t = tile_of(w, turn);
        const int seen = warp_sight(&p->in, &w->place, t);
        const struct units unit = units_of(k, w, t);
        num rS[N_X][4], rD[N_X][4];
        uint32_t stage = 0;
#pragma unroll
        for (int n = 0; n < N_X; n++)
            rS[n][0] = rS[n][1] = rS[n][2] = rS[n][3] = rD[n][0] = rD[n][1] = rD[n][2] = rD[n][3] = 0;
        if (s.staged) stage = next_slot(k, w, &s, &feed, &slot, turn);
#pragma unroll 1
        for (int c = 0; c < s.a; c++) {
            const uint32_t chunk = s.staged ? stage + c * TILE * PITCH : next_slot(k, w, &s, &feed, &slot, turn);
            if (seen)
                add_scores(rS, is_resident(k) ? s.base + c * ROWS * PITCH : chunk + TILE * PITCH, chunk,
                           p->in.dim_qk - c * CHUNK);
        }
#pragma unroll 1
        for (int c = 0; c < s.b; c++) {
            const uint32_t chunk =
                s.staged ? stage + (s.a + c) * TILE * PITCH : next_slot(k, w, &s, &feed, &slot, turn);
            if (seen)
                add_scores(rD, is_resident(k) ? s.base + (s.a + c) * ROWS * PITCH : chunk + TILE * PITCH, chunk,
                           p->in.dim_v - c * CHUNK);
        }
        if (seen)
            finish_cells(k, &w->place, t, stats_at(&s, w, turn), OWN_KEYS ? 0 : &own, k->wide.plain && seen == 2, 1,
                         &unit, rS, rD);
        const struct left rP = left_of_any(rS), rC = left_of_any(rD, SUMS);
#if defined CFG_SUMS && CFG_SUMS
        const uint32_t cells = s.stats + 3 * STAT_BYTES;
        if (p->dq_sum) store_cells(cells, &rC, seen, unit.own_a);
#endif
#pragma unroll
        for (int c = 0; c < CHUNKS && OWN_KEYS; c++) {
            if (c >= s.again_b) break;
            const uint32_t chunk = s.staged ? stage + (s.a + w->slice * CHUNKS + c) * TILE * PITCH
                                            : next_slot(k, w, &s, &feed, &slot, turn);
            if (seen) add_product(rB[c], &rP, chunk, p->in.dim_v - w->slice * COLS - c * CHUNK, one, unit.b);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if (c >= s.again_a) break;
            const uint32_t chunk =
                s.staged ? stage + (w->slice * CHUNKS + c) * TILE * PITCH : next_slot(k, w, &s, &feed, &slot, turn);
            if (seen) add_product(rA[c], &rC, chunk, p->in.dim_qk - w->slice * COLS - c * CHUNK, one, unit.a);
        }
#if defined CFG_SUMS && CFG_SUMS
        __syncthreads(); /* dS of all warps is there, and no one reads the statistics any more */
        const struct turn next = turn_after(w, turn);
        if (next.head < w->heads_end) copy_stats(p, w, tile_of(w, next), s.stats);
        copy_commit();
        if (p->dq_sum)
            add_rows((float *)p->dq_sum + (t.head * p->stat_rows + w->place.stat0 + t.other) * COLS, cells, s.base,
                     p->in.dim_qk);
#endif
    }
    copy_wait(0);
    store_gradient(p, w, OWN_KEYS ? &p->dk : &p->dq, p->in.dim_qk, (num)k->wide.scale, rA);
    if (OWN_KEYS) store_gradient(p, w, &p->dv, p->in.dim_v, 1, rB);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_sdpa_wide_bwd p) {
    struct work w;
    for (int64_t index = blockIdx.x; index < p.work_tiles; index += gridDim.x) {
        if (find_work(&p, index, &w) && is_mine(&p.wide, (int64_t)w.place.b * p.bwd.in.heads_k + w.place.head_k))
            run_tile(&p, &w);
        __syncthreads(); /* the next tile's copies overwrite what is still being read */
    }
}
