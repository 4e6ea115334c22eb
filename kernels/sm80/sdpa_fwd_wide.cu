/* SPDX-License-Identifier: MIT
 * Dense attention forward in f32 and f64 on tensor cores, every chip from sm_80 on, any D and DV, every feature. f32
 * multiplies split operands (three tf32 products; error analysis in sdpa_wide.h), f64 uses the f64 tensor cores.
 *
 *   s = scale Q K^T -> softcap, ALiBi, mask, window     m' = max(m, rowmax s)     p = exp(s - m')
 *   l = l exp(m - m') + rowsum p      O = O exp(m - m') + p V      at the end   out = O / l,  lse = m + ln l
 *
 *   global Q --cp.async--> own chunks (or in the slot) --+
 *   global K --cp.async--> ring slot ------------------- +-mma-> S, one chunk of D after the other
 *                                                                | softmax, in registers
 *   global V --cp.async--> ring slot ---------------------mma-- P
 *                                                          |
 *                                                          O (registers) -> global
 *
 * A CTA owns 16 query rows a warp and at most COLS value columns; wider values are cut into slices, each a work tile
 * that forms the scores anew. It walks the keys' tiles from the last to the first; a tile is ceil(D / CHUNK) ring slots
 * of K, then those of V.
 *
 * Shared memory: [own chunks: chunks(D) x ROWS x 256, if resident]  [SLOTS x PER x (TILE x 256, + ROWS x 256 if not)]
 * The ring needs no barrier but __syncthreads: before the work on slot t each thread waits for its own copies of it;
 * the barrier joins all threads and proves that all have read slot t - 1, which then takes what slot t + SLOTS - 1 is
 * to hold.
 *
 * Hidden keys have p = -0, visible ones p >= +0. Where a product is not finite, the warp repeats it by hand without the
 * hidden ones (multiply_visible): 0 times the infinity or NaN of a hidden value never counts.
 * Splits write (O, m, l) to the workspace; kernels/smxx/sdpa_combine.cu merges them. Figures:
 * docs/kernels/sdpa_fwd_wide_sm80.md. */
#include "kernels/sm80/sdpa_wide.h"

/* What all threads of the CTA know about its work tile. */
struct work {
    struct sequence seq;
    int b, head, split, slice;
    int row0, n_rows;   /* first flat row of the tile; flat rows of the sequence */
    int off;            /* diagonal offset */
    int first, n_tiles; /* key tiles, the last one first */
    int at_min, at_max; /* i + off of the tile's first and last row */
};

/* What a warp knows of its rows: i + off of the first and last; FAR, -FAR - 1 without a row inside the sequence. */
struct strip {
    int at_min, at_max;
};

/* Flat row -> query, query head. */
static __device__ __forceinline__ int query_of(const struct kp_sdpa_fwd *p, int row) {
    return p->pack == 1 ? row : (int)((uint32_t)row / (uint32_t)p->pack);
}
static __device__ __forceinline__ int head_of(const struct kp_sdpa_fwd *p, const struct work *w, int row) {
    return p->pack == 1 ? w->head : w->head * p->pack + (int)((uint32_t)row % (uint32_t)p->pack);
}
static __device__ __forceinline__ int key_head_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    return p->pack == 1 ? (int)((uint32_t)w->head / (uint32_t)(p->in.heads_q / p->in.heads_k)) : w->head;
}

/* Returns 0 if the tile lies past its sequence and nothing is to be written. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_wide_fwd *k, int64_t index, struct work *w) {
    const struct kp_sdpa_fwd *p = &k->fwd;
    const int64_t heads = p->pack == 1 ? p->in.heads_q : p->in.heads_k, all = heads * p->in.batch;
    const uint32_t shares = (uint32_t)(p->splits * k->wide.slices);
    const int64_t of_section = (int64_t)p->row_tiles * shares * p->section;
    const int64_t first = index / of_section * p->section;
    const uint32_t size = (uint32_t)(all - first < p->section ? all - first : p->section);
    const uint64_t rest = (uint64_t)(index % of_section), outer = rest / size;
    const int64_t head = first + (int64_t)(rest % size);
    const int share = (int)(outer % shares);
    w->split = share / k->wide.slices;
    w->slice = share % k->wide.slices;
    w->row0 = (p->row_tiles - 1 - (int)(outer / shares)) * ROWS;
    w->b = (int)(head / heads);
    w->head = (int)(head % heads);
    w->seq = sequence_of(&p->in, w->b);
    w->n_rows = w->seq.sq * p->pack;
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->first = w->n_tiles = 0;
    w->at_min = w->at_max = 0;
    if (w->row0 >= w->seq.rows * p->pack) return 0;
    if (w->row0 >= w->n_rows) return 1;
    w->at_min = query_of(p, w->row0) + w->off;
    w->at_max = query_of(p, min(w->row0 + ROWS, w->n_rows) - 1) + w->off;
    const int j0 = max(w->at_min - p->in.window_left, 0), j1 = min(w->at_max + p->in.window_right + 1, w->seq.sk);
    if (j1 <= j0) return 1;
    const int tile0 = j0 / TILE, n = (j1 + TILE - 1) / TILE - tile0, part = (n + p->splits - 1) / p->splits;
    w->first = tile0 + w->split * part;
    w->n_tiles = max(min(n - w->split * part, part), 0);
    return 1;
}

static __device__ __forceinline__ struct strip strip_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    struct strip s;
    const int row = w->row0 + warp_of() * 16;
    s.at_min = row < w->n_rows ? query_of(p, row) + w->off : FAR;
    s.at_max = row < w->n_rows ? query_of(p, min(row + 16, w->n_rows) - 1) + w->off : -FAR - 1;
    return s;
}

/* ------------------------------------------------------------------ copies ------------------------- */

/* The ring as its producer sees it: the next item to copy and where it goes. */
struct feed {
    int tile, chunk; /* key tile, counted from the last; K chunks come first, then the slice's V chunks */
    int slot;
};
struct shape {
    int k_chunks, v_chunks; /* of the problem; of the slice */
    uint32_t ring, part;    /* address of the first slot; bytes of a chunk in a slot */
    const char *k, *v;      /* key 0 of the sequence and head, pages apart; v: of the slice */
};

static __device__ __forceinline__ int is_paged(const struct kp_sdpa *p) { return !F16X2 && p->block_table != 0; }

static __device__ __forceinline__ int page_of(const struct kp_sdpa *p, int b, int j) {
    const int page = ((const int32_t *)p->block_table + b * p->table_batch)[(uint32_t)j / (uint32_t)p->page_size];
    return page >= 0 && page < p->n_pages ? page : -1;
}

/* One chunk of the own rows: flat rows from w->row0 on. */
static __device__ __forceinline__ void copy_queries(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t to,
                                                    int chunk) {
    const char *q = (const char *)p->in.q.data +
                    (int64_t)sizeof(num) * (w->b * p->in.q.batch + w->seq.q0 * p->in.q.row + chunk * CHUNK);
    const int bytes = piece_bytes(stored(p->in.dim_qk) - chunk * CHUNK);
#pragma unroll 2
    for (int r = thread_of() >> 4; r < ROWS; r += THREADS / 16) {
        const int row = w->row0 + r;
        const char *from =
            q + (int64_t)sizeof(num) * (head_of(p, w, row) * p->in.q.head + query_of(p, row) * p->in.q.row);
        copy_row(to, r, from, row < w->n_rows ? bytes : 0, p->in.q.chunk);
    }
}

/* Where the item's keys or values begin, pages apart. */
static __device__ __forceinline__ const char *source_of(const struct kp_sdpa_fwd *p, const struct work *w,
                                                        const struct kp_view *v, int column) {
    const int64_t element = key_head_of(p, w) * v->head + column;
    return (const char *)v->data +
           (int64_t)sizeof(num) * (is_paged(&p->in) ? element : element + w->b * v->batch + w->seq.k0 * v->row);
}

/* One chunk of the feed's tile: of K, then of V. */
static __device__ __forceinline__ void copy_chunk(const struct kp_sdpa_wide_fwd *k, const struct work *w,
                                                  const struct shape *shape, int j0, int is_v, int chunk, uint32_t to) {
    const struct kp_sdpa *in = &k->fwd.in;
    const struct kp_view *v = is_v ? &in->v : &in->k;
    const int columns = stored(is_v ? in->dim_v - w->slice * COLS : in->dim_qk) - chunk * CHUNK;
    const char *head = (is_v ? shape->v : shape->k) + chunk * PITCH;
    if (is_paged(in)) {
        const int bytes = piece_bytes(columns);
#pragma unroll 1
        for (int r = thread_of() >> 4; r < TILE; r += THREADS / 16) {
            const int j = j0 + r, page = j < w->seq.sk ? page_of(in, w->b, j) : -1;
            const int64_t element = page < 0 ? 0 : page * v->batch + (uint32_t)j % (uint32_t)in->page_size * v->row;
            copy_row(to, r, head + (int64_t)sizeof(num) * element, page < 0 ? 0 : bytes, v->chunk);
        }
    } else {
        const int64_t row = (int64_t)sizeof(num) * v->row;
        copy_rows(to, TILE, head + j0 * row, row, w->seq.sk - j0, columns, v->chunk);
    }
    if (!k->wide.resident && !is_v) copy_queries(&k->fwd, w, to + TILE * PITCH, chunk);
}

/* An item is PER chunks of K, or of V. */
static __device__ __forceinline__ void copy_slot(const struct kp_sdpa_wide_fwd *k, const struct work *w,
                                                 const struct shape *shape, struct feed *feed) {
    if (feed->tile < w->n_tiles) {
        const int is_v = feed->chunk >= shape->k_chunks, first = is_v ? feed->chunk - shape->k_chunks : feed->chunk;
        const int j0 = (w->first + w->n_tiles - 1 - feed->tile) * TILE,
                  n = min((is_v ? shape->v_chunks : shape->k_chunks) - first, PER);
        const uint32_t slot = shape->ring + feed->slot * PER * shape->part;
#pragma unroll
        for (int x = 0; x < PER; x++)
            if (x < n) copy_chunk(k, w, shape, j0, is_v, first + x, slot + x * shape->part);
        feed->chunk += n;
        if (feed->chunk == shape->k_chunks + shape->v_chunks) feed->chunk = 0, feed->tile++;
        feed->slot = feed->slot + 1 == SLOTS ? 0 : feed->slot + 1;
    }
    copy_commit();
}

/* Wait for the next item, free the slot of the one before, start another copy. Returns the item's slot. */
static __device__ __forceinline__ uint32_t next_slot(const struct kp_sdpa_wide_fwd *k, const struct work *w,
                                                     const struct shape *shape, struct feed *feed, int *slot) {
    const uint32_t address = shape->ring + *slot * PER * shape->part;
    copy_wait(SLOTS - 2);
    __syncthreads();
    copy_slot(k, w, shape, feed);
    *slot = *slot + 1 == SLOTS ? 0 : *slot + 1;
    return address;
}

/* ------------------------------------------------------------------ scores and softmax ------------- */

struct statistics {
    num m[2], l[2]; /* rows g and g + 8; l per lane until the end */
};
/* f16x2: probabilities are exp(s - m) 2^15, so that small ones keep their bits; l and O have the factor, too. */
constexpr num RAISE = F16X2 ? (num)(15 * LN2_F64) : 0;

/* f16x2: powers of two of the own rows. */
struct units {
    float row[2]; /* rows g and g + 8 */
};

/* Raw products to scores in natural units; -inf = hidden. */
static __device__ __forceinline__ void finish_scores(const struct kp_sdpa_wide_fwd *k, const struct work *w, int j0,
                                                     num rS[N_X][4]) {
    const struct kp_sdpa_fwd *p = &k->fwd;
    const int lane = lane_of(), t2 = 2 * (lane & 3);
    num unused;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = w->row0 + warp_of() * 16 + 8 * r + (lane >> 2), inside = row < w->n_rows;
        const int i = query_of(p, row), diagonal = i + w->off, h = head_of(p, w, row);
        const int lo = diagonal - p->in.window_left,
                  hi = inside ? min(diagonal + p->in.window_right + 1, w->seq.sk) : -FAR;
        const num slope = inside ? slope_of(&p->in, w->b, h) : 0;
        const int64_t cells = w->b * p->in.mask.batch + h * p->in.mask.head + i * p->in.mask.row;
#pragma unroll
        for (int n = 0; n < N_X; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = j0 + 8 * n + t2 + e;
                int visible = j >= lo && j < hi;
                if (is_paged(&p->in) && visible) visible = page_of(&p->in, w->b, j) >= 0;
                num y = -INF;
                if (visible)
                    y = score_of(&p->in, &k->wide, rS[n][2 * r + e], j - diagonal, slope,
                                 cells + (int64_t)j * p->in.mask.column, &unused);
                rS[n][2 * r + e] = y;
            }
    }
}

/* The same where scores are products alone: one branch for all cells, and no more than a comparison for each. */
static __device__ __forceinline__ void hide_scores(const struct kp_sdpa_wide_fwd *k, const struct work *w, int j0,
                                                   num rS[N_X][4]) {
    const struct kp_sdpa_fwd *p = &k->fwd;
    const int lane = lane_of(), t2 = 2 * (lane & 3);
    const num scale = (num)k->wide.scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = w->row0 + warp_of() * 16 + 8 * r + (lane >> 2), diagonal = query_of(p, row) + w->off - j0 - t2;
        const int lo = diagonal - p->in.window_left,
                  hi = row < w->n_rows ? min(diagonal + p->in.window_right + 1, w->seq.sk - j0 - t2) : -FAR;
#pragma unroll
        for (int n = 0; n < N_X; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = 8 * n + e;
                rS[n][2 * r + e] = j >= lo && j < hi ? rS[n][2 * r + e] * scale : -INF;
            }
    }
}

/* Scores to probabilities, -0 where hidden; factor: what earlier sums of the row are to be multiplied with. NaN scores
 * pass by the maximum (max returns the other operand) and make l NaN. A factor is never 0: times an infinity of O it
 * must stay one. */
static __device__ __forceinline__ void online_softmax(num rS[N_X][4], struct statistics *st, num factor[2]) {
    constexpr num LEAST = WIDE_F64 ? (num)-700 : (num)-87;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        num m = larger(rS[0][2 * r], rS[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < N_X; n++) m = larger(m, larger(rS[n][2 * r], rS[n][2 * r + 1]));
        m = larger(st->m[r], quad_larger(m));
        factor[r] = m == st->m[r] ? 1 : exp_num(larger(st->m[r] - m, LEAST));
        st->m[r] = m;
        const num low = m == -INF ? 0 : m - RAISE;
        num sum = 0;
#pragma unroll
        for (int n = 0; n < N_X; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const num y = rS[n][2 * r + e], x = exp_num(y - low);
                sum += x;
                rS[n][2 * r + e] = y == -INF ? (num)-0.0 : x;
            }
        st->l[r] = st->l[r] * factor[r] + sum;
    }
}

/* ------------------------------------------------------------------ results ------------------------ */

/* Flat row -> element index of its first column. */
static __device__ __forceinline__ int64_t row_at(const struct kp_sdpa_fwd *p, const struct work *w,
                                                 const struct kp_view *v, int row) {
    return w->b * v->batch + head_of(p, w, row) * v->head + (w->seq.q0 + query_of(p, row)) * v->row;
}

static __device__ __forceinline__ void store_results(const struct kp_sdpa_wide_fwd *k, const struct work *w,
                                                     const struct statistics *st,
                                                     const num rO[CHUNKS][CHUNK_STRIPES][PIECE][4]) {
    const struct kp_sdpa_fwd *p = &k->fwd;
    const int lane = lane_of(), writes_row = (lane & 3) == 0 && w->slice == 0, column = w->slice * COLS;
    num *to[2], factor[2];
    int width = p->in.dim_v, unit = p->out.chunk;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = w->row0 + warp_of() * 16 + 8 * r + (lane >> 2), inside = row < w->n_rows;
        const num l = quad_total(st->l[r]), m = st->m[r] - RAISE;
        if (!F16X2 && p->splits > 1) { /* a split's share: O, maximum and sum; an empty one writes no O */
            const int64_t rows = (int64_t)p->in.batch * p->in.heads_q * p->in.seq_q;
            const int64_t share =
                w->split * rows + ((int64_t)w->b * p->in.heads_q + head_of(p, w, row)) * p->in.seq_q + query_of(p, row);
            if (writes_row && inside) ((num *)p->part_m)[share] = m, ((num *)p->part_l)[share] = l;
            to[r] = inside && l != 0 ? (num *)p->part_o + share * p->part_row : 0;
            factor[r] = 1;
            width = p->part_row, unit = 16;
            continue;
        }
        const int empty = !inside || l == 0, exists = row < w->seq.rows * p->pack;
        num sink = -INF;
        if (p->in.sink && inside) sink = ((const float *)p->in.sink)[head_of(p, w, row) * p->in.sink_head];
        factor[r] = empty ? -1 : 1 / (l + exp_num(sink - m)); /* 0 where the sink takes all: NaN stay NaN */
        to[r] = exists ? (num *)p->out.data + row_at(p, w, &p->out, row) : 0;
        if (writes_row && exists && p->max_logits.data)
            ((num *)p->max_logits.data)[row_at(p, w, &p->max_logits, row)] = largest_score_num(st->m[r], l, empty);
        if (!writes_row || !exists || !(p->lse.data || p->lse_rounded.data)) continue;
        const num natural = empty ? -INF : m + log_num(l);
        const num lse = outer_lse_num(p->in.flags, natural, sink);
        store_lse_num(&p->lse, row_at(p, w, &p->lse, row), lse);
        store_lse_num(&p->lse_rounded, row_at(p, w, &p->lse_rounded, row), lse);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        num *const chunk[2] = {to[0] ? to[0] + column + c * CHUNK : 0, to[1] ? to[1] + column + c * CHUNK : 0};
        store_chunk(chunk, rO[c], width - column - c * CHUNK, factor, unit);
    }
}

/* ------------------------------------------------------------------ one work tile ------------------ */

static __device__ __forceinline__ void run_tile(const struct kp_sdpa_wide_fwd *k, const struct work *w) {
    const struct kp_sdpa_fwd *p = &k->fwd;
    const struct strip strip = strip_of(p, w);
    const uint32_t base = shared_base();
    struct shape shape;
    shape.k_chunks = chunks_of(p->in.dim_qk);
    shape.v_chunks = chunks_of(max(min(p->in.dim_v - w->slice * COLS, COLS), 0));
    shape.ring = base + (k->wide.resident ? shape.k_chunks * ROWS * PITCH : 0);
    shape.part = (TILE + (k->wide.resident ? 0 : ROWS)) * PITCH;
    shape.k = source_of(p, w, &p->in.k, 0);
    shape.v = source_of(p, w, &p->in.v, w->slice * COLS);

    num rO[CHUNKS][CHUNK_STRIPES][PIECE][4];
    struct statistics st;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int s = 0; s < CHUNK_STRIPES; s++)
#pragma unroll
            for (int e = 0; e < PIECE; e++) rO[c][s][e][0] = rO[c][s][e][1] = rO[c][s][e][2] = rO[c][s][e][3] = 0;
    st.m[0] = st.m[1] = -INF;
    st.l[0] = st.l[1] = 0;

    struct units units;
    const int64_t key_head = (int64_t)w->b * p->in.heads_k + key_head_of(p, w);
#pragma unroll
    for (int r = 0; r < 2 && F16X2; r++) {
        const int row = min(w->row0 + warp_of() * 16 + 8 * r + (lane_of() >> 2), max(w->n_rows - 1, 0));
        units.row[r] = block_unit(k->wide.unit_q, (int64_t)w->b * p->in.heads_q + head_of(p, w, row), k->wide.blocks_q,
                                  query_of(p, row));
    }

    struct feed feed = {0, 0, 0};
    int slot = 0;
    if (shape.k_chunks + shape.v_chunks == 0) feed.tile = w->n_tiles; /* D = DV = 0: nothing to copy */
    if (w->n_tiles > 0 && k->wide.resident)
        for (int c = 0; c < shape.k_chunks; c++) copy_queries(p, w, base + c * ROWS * PITCH, c);
#pragma unroll
    for (int t = 0; t < SLOTS - 1; t++) copy_slot(k, w, &shape, &feed); /* the first group holds Q, too */

#pragma unroll 1
    for (int tile = 0; tile < w->n_tiles; tile++) {
        const int j0 = (w->first + w->n_tiles - 1 - tile) * TILE;
        const int active = j0 <= strip.at_max + p->in.window_right && j0 + TILE > strip.at_min - p->in.window_left;
        const int inner = k->wide.plain && j0 + TILE <= w->seq.sk &&
                          j0 + TILE - 1 <= strip.at_min + p->in.window_right && j0 >= strip.at_max - p->in.window_left;
        const float k_unit = block_unit(k->wide.unit_k, key_head, k->wide.blocks_k, j0),
                    v_unit = block_unit(k->wide.unit_v, key_head, k->wide.blocks_k, j0);
        uint32_t chunk = 0; /* the chunk to work on */
        num rS[N_X][4], factor[2];
#pragma unroll
        for (int n = 0; n < N_X; n++) rS[n][0] = rS[n][1] = rS[n][2] = rS[n][3] = 0;
#pragma unroll 1
        for (int c = 0; c < shape.k_chunks; c++) {
            chunk = c % PER == 0 ? next_slot(k, w, &shape, &feed, &slot) : chunk + shape.part;
            const uint32_t own = k->wide.resident ? base + c * ROWS * PITCH : chunk + TILE * PITCH;
            if (active) add_scores(rS, own, chunk, p->in.dim_qk - c * CHUNK);
        }
        if (active) {
            lower_rows(rS, units.row, k_unit);
            if (inner) {
                const num scale = (num)k->wide.scale;
#pragma unroll
                for (int n = 0; n < N_X; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) rS[n][e] *= scale;
            } else if (k->wide.plain) {
                hide_scores(k, w, j0, rS);
            } else {
                finish_scores(k, w, j0, rS);
            }
            online_softmax(rS, &st, factor);
        }
        const struct left rP = left_of(rS);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if (c >= shape.v_chunks) break;
            chunk = c % PER == 0 ? next_slot(k, w, &shape, &feed, &slot) : chunk + shape.part;
            if (active) add_product(rO[c], &rP, chunk, p->in.dim_v - w->slice * COLS - c * CHUNK, factor, v_unit);
        }
    }
    copy_wait(0);
    store_results(k, w, &st, rO);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_sdpa_wide_fwd p) {
    struct work w;
    for (int64_t index = blockIdx.x; index < p.fwd.work_tiles; index += gridDim.x) {
        if (find_work(&p, index, &w) && is_mine(&p.wide, (int64_t)w.b * p.fwd.in.heads_k + key_head_of(&p.fwd, &w)))
            run_tile(&p, &w);
        __syncthreads(); /* the next tile's copies overwrite what is still being read */
    }
}
