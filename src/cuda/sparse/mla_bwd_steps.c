/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA: the order of its kernels and the layout of the workspace, whatever the main kernel. The
 * steps are named at struct kp_mla_bwd. Called by mla_bwd.c (sm_80), mla_bwd_sm90.c and mla_bwd_sm100.c, which say what
 * their main kernel is; rows over joined lists have their own order, in mla_bwd_joined.c. */
#include "core/problem.h"
#include "cuda/sparse/mla_bwd.h"
#include "cuda/sparse/mla_bwd_symbols.h"
#include "kernels/params/mla_ranges.h"
#include "kernels/params/mla_rows.h"
#include "kernels/params/mla_sm100.h"

#include <inttypes.h>
#include <stddef.h>

_Static_assert(KP_DIST_SUM == ATTN_DIST_SUM && KP_DIST_MEAN == ATTN_DIST_MEAN && KP_DIST_L1 == ATTN_DIST_L1,
               "kernels/params/mla.h repeats attn.h");

enum { THREADS = 256, WARPS = THREADS / 32, SLOTS_THREADS = 512, SLOTS_CTAS = 2, DIGIT_BITS = 8 };
/* Buffers of slots' gradients when sums overlap the next chunk; most chunks of a group; least slots of a segment. */
enum { STORED_BUFFERS = 3, MAX_GROUP = 16, LEAST_SEGMENT = 64, OVERLAPPED_WARPS = KP_MLA_ROWS_OVERLAPPED_WARPS };
/* A slot is a uint32 within the queries that are sorted together. */
static const int64_t MAX_SORTED = INT64_C(1) << 31;

/* Bytes of lists that are ordered together; most splits of a work tile; chunks whose slots are sorted together, since a
 * chunk has too few to fill the device in each of six launches. */
static const int64_t LIST_BYTES = INT64_C(64) << 20, MAX_PARTS = 64, SORTED_TOGETHER = 4;

/* The most shared memory of a step; MERGE's with one block. */
static int step_shared(int x) {
    return x == SLOTS_ORDER   ? KP_MLA_SLOTS_ORDER_SHARED(KP_MLA_SLOTS_ROWS)
           : x == SLOTS_MERGE ? KP_MLA_SLOTS_MERGE_SHARED(KP_MLA_SLOTS_PIECES, 1)
                              : 0;
}

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t blocks(int64_t n, int64_t size) { return n / size + (n % size != 0); }

/* ------------------------------------------------------------------ workspace ---------------------- */

/* A function of main kernel, device and problem alone, so that workspace and launch agree. Offsets in bytes. */
struct geometry {
    int64_t queries, head_blocks;
    int64_t chunk; /* queries of a launch of the main kernel */
    int64_t sort_blocks;
    int64_t block, merge_rows; /* struct kp_mla_bwd_rows.block, merge_rows; 0: slots are sorted digit by digit */
    int64_t group, list;   /* chunks whose slots are sorted together; places from the list of one to that of the next */
    int64_t in_flight;     /* queries that the device works on at once */
    int64_t listed;        /* queries whose index lists one launch of RANGES orders */
    int32_t shift, ranges; /* struct kp_mla_bwd_ranges; 0 ranges: lists are taken as they are */
    int64_t n_checkpoints; /* struct kp_mla_bwd.checkpoints; 0: CTAs are not kept together */
    int32_t segment_shift, segments;
    /* Queries before the first whose work tile is split; splits of a work tile; struct kp_mla_bwd.part_slots. */
    int64_t whole, parts, part_slots;
    int overlapped; /* stored rows of a chunk are summed while the next one is computed */
    uint64_t row_stats, sum, part_dist, part_dq, stored_rows[STORED_BUFFERS], overlapped_parts, keys[2], slots[2],
        counts, scanned, totals, parts_of_rows, ds, lists, lengths, positions, checkpoints, end;
};

static int64_t dist_blocks(const struct attn_cuda_mla_bwd_main *m, const struct geometry *g) {
    return g->head_blocks * (m->dist_blocks > 1 ? m->dist_blocks : 1);
}

/* dkv is summed in itself where it is f32 and its columns stand in their order. */
static int has_separate_sum(const struct attn_cuda_mla_bwd_main *m, const attn_problem *p) {
    return m->permuted || p->dkv_dtype != ATTN_F32;
}

static uint64_t take(struct geometry *g, int wanted, int64_t n, int64_t bytes) {
    const uint64_t offset = g->end;
    if (wanted) g->end += ((uint64_t)n * (uint64_t)bytes + 255) / 256 * 256;
    return offset;
}

/* Additions to rows all over a table that the second-level cache does not hold are slow (docs/kernels/mla_bwd_sm90.md).
 * Slots ordered by ranges of rows help where the queries that are worked on at once name at least every second row.
 * Multiprocessors that share the cached rows should keep together: main kernels that can (m->together) wait for each
 * other a few segments of rows apart; others keep together by themselves, those ahead having to wait for memory, and
 * where the table is so large that they do not, each round is a launch. */
static void choose_ranges(struct geometry *g, const struct attn_cuda_mla_bwd_main *m,
                          const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const int64_t row = (int64_t)sizeof(float) * p->dim_qk, cache = l->l2_bytes;
    const int64_t tile_ctas = g->head_blocks * (m->cluster > 1 ? m->cluster : 1);
    g->listed = g->queries;
    if (m->stored_bytes || p->topk <= 0 || p->seq_k <= cache / 2 / row) return;
    g->in_flight = l->n_sms > tile_ctas ? l->n_sms / tile_ctas : 1;
    if (2 * lesser(g->in_flight, p->seq_q) * p->topk < p->seq_k) return;
    while (row << (g->shift + 1) <= cache / 64 || (p->seq_k - 1) >> g->shift >= KP_MLA_RANGES_MOST) g->shift++;
    g->ranges = (int32_t)((p->seq_k - 1) >> g->shift) + 1;
    if (!m->together && p->seq_k > 2 * cache / row) g->chunk = lesser(g->queries, g->in_flight);
    const int64_t pairs_of_rounds = LIST_BYTES / (int64_t)sizeof(int32_t) / p->topk / (2 * g->in_flight);
    g->listed = lesser(g->queries, pairs_of_rounds > 0 ? pairs_of_rounds * 2 * g->in_flight : 2 * g->in_flight);
    if (!m->together) return;
    while (row << (g->segment_shift + 1) <= cache / 8) g->segment_shift++;
    g->segments = (int32_t)((p->seq_k - 1) >> g->segment_shift) + 1;
    g->n_checkpoints = blocks(g->listed * g->head_blocks, attn_cuda_mla_bwd_clusters(m, l->n_sms)) * g->segments;
}

/* Work tiles of the last round, if it is not full, and of a problem without a full round are split; dq of the parts is
 * summed afterwards. Costs are in key tiles of 7 us: 0.017 of one for each split's start and 147 KB of dq. */
static void choose_parts(struct geometry *g, const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                         const attn_problem *p) {
    const int64_t capacity = attn_cuda_mla_bwd_clusters(m, attn_cuda_limits_of(dev)->n_sms);
    g->whole = g->queries;
    if (!m->parts || p->topk <= 0) return;
    const int64_t whole = g->queries * g->head_blocks / capacity * capacity / g->head_blocks;
    const int64_t rest = (g->queries - whole) * g->head_blocks, tiles = blocks(p->topk, 64);
    const int64_t parts = attn_cuda_mla_splits(rest, tiles, capacity, MAX_PARTS, 1, 0.017 * (double)rest);
    if (rest <= 0 || parts < 2) return;
    if (g->overlapped) return;
    if (m->stored_bytes && whole / g->chunk != (g->queries - 1) / g->chunk) return; /* rows of several chunks */
    g->whole = whole;
    g->part_slots = 64 * blocks(tiles, parts);
    g->parts = blocks(64 * tiles, g->part_slots);
}

/* Of the row that a slot leaves. */
static int64_t row_bytes(const struct attn_cuda_mla_bwd_main *m, const attn_problem *p) {
    return m->stored_bytes == 2 ? KP_MLA_ROWS_BYTES(p->dim_qk) : (int64_t)m->stored_bytes * p->dim_qk;
}

/* Stored rows may take 1/16 of the memory, those of f32 1/32. Whole rounds of CTAs, where there are several. Overlapped
 * sums have three buffers of rows: one is written, one summed, and the writer waits for no sum to end. */
static void choose_chunk(struct geometry *g, const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                         const attn_problem *p) {
    const int64_t row = row_bytes(m, p) * p->topk * g->head_blocks;
    const int64_t round = blocks(attn_cuda_limits_of(dev)->n_sms, g->head_blocks * (m->cluster > 1 ? m->cluster : 1));
    g->chunk = lesser((int64_t)(dev->memory_bytes / (m->stored_bytes == 2 ? 16 : 32)) / row, MAX_SORTED / p->topk - 1);
    const int64_t limit = attn_cuda_limits_of(dev)->chunk_limit;
    if (limit > 0) g->chunk = lesser(g->chunk, STORED_BUFFERS * limit);
    const int64_t all = g->chunk;
    int64_t overlapped_chunk = 0;
    if (m->sum_time > 0 && limit > 0)
        overlapped_chunk = all / STORED_BUFFERS;
    else if (m->sum_time > 0)
        overlapped_chunk = attn_cuda_mla_bwd_chunk(m, attn_cuda_limits_of(dev)->n_sms, g->queries, g->head_blocks,
                                                   blocks(p->topk, 64), all / STORED_BUFFERS);
    g->overlapped = overlapped_chunk > 0;
    if (g->overlapped)
        g->chunk = overlapped_chunk;
    else if (g->chunk > round)
        g->chunk -= g->chunk % round;
    g->chunk = g->chunk < 1 ? 1 : lesser(g->chunk, g->queries);
    g->sort_blocks = blocks(g->chunk * p->topk, KP_MLA_SORT_BLOCK);
    g->group = m->stored_bytes == 2 ? lesser(blocks(g->queries, g->chunk), blocks(SORTED_TOGETHER * all, g->chunk)) : 1;
    g->group = lesser(g->group, g->overlapped ? MAX_GROUP : SORTED_TOGETHER);
    g->list = (g->chunk * p->topk + 3) / 4 * 4; /* whole vectors */
}

/* Whether slots are sorted through shared memory: where it has room for a counter a kv row, and the second-level cache
 * for those of all blocks. Blocks fill the device twice, unless that makes them too large. */
static void choose_slot_blocks(struct geometry *g, const struct attn_cuda_mla_bwd_main *m,
                               const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const int64_t rows = p->batch * p->seq_k, most = KP_MLA_SLOTS_BLOCK;
    if (m->stored_bytes != 2 || rows <= 0 || rows > KP_MLA_SLOTS_ROWS || p->topk > most) return;
    const int64_t wave = blocks(2 * l->n_sms, g->group);
    const int64_t block = lesser(blocks(g->chunk, wave), most / p->topk), n = blocks(g->chunk, block);
    if (n > KP_MLA_SLOTS_PIECES || 2 * rows * n * g->group > l->l2_bytes) return;
    g->block = block;
    g->sort_blocks = n;
    const int64_t slots =
        blocks(g->chunk * p->topk, rows); /* of a row; the region holds more, for lists that scatter */
    g->merge_rows = lesser(lesser(KP_MLA_SLOTS_PIECES / n, rows), KP_MLA_SLOTS_REGION * 39 / 40 / slots);
    if (g->merge_rows < 1) g->merge_rows = 1;
}

/* CTAs of ROWS_SUM for a chunk of that many queries. */
static int64_t sum_ctas(const attn_problem *p, int64_t queries) {
    return blocks(queries * p->topk, (int64_t)KP_MLA_ROWS_TEAMS(p->dim_qk) * KP_MLA_ROWS_SEGMENT);
}

/* Sums that the summing CTAs of a launch leave, at most. */
static int64_t overlapped_parts(const struct attn_core_device *dev) {
    return 2 * OVERLAPPED_WARPS * attn_cuda_limits_of(dev)->n_sms;
}

static struct geometry lay_out(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                               const attn_problem *p) {
    struct geometry g = {.queries = p->batch * p->seq_q, .head_blocks = blocks(p->heads_q, m->head_block)};
    const int has_keys = p->seq_k > 0;
    if (g.queries <= 0 || p->heads_q <= 0) return (struct geometry){0};
    g.chunk = g.queries;
    if (m->stored_bytes) choose_chunk(&g, m, dev, p);
    choose_slot_blocks(&g, m, dev, p);
    choose_ranges(&g, m, dev, p);
    choose_parts(&g, m, dev, p);
    g.row_stats = take(&g, 1, g.queries * p->heads_q, sizeof(struct kp_mla_row));
    g.sum = take(&g, has_keys && has_separate_sum(m, p), p->batch * p->seq_k * p->dim_qk, sizeof(float));
    g.part_dist = take(&g, attn_core_has(p, ATTN_WITH_DIST), dist_blocks(m, &g) * g.queries * p->topk, sizeof(float));
    for (int x = 0; x < STORED_BUFFERS; x++)
        g.stored_rows[x] = take(&g, m->stored_bytes && has_keys && (x == 0 || g.overlapped),
                                g.chunk * g.head_blocks * p->topk, row_bytes(m, p));
    g.overlapped_parts = take(&g, g.overlapped && has_keys, g.group * overlapped_parts(dev) * p->dim_qk, sizeof(float));
    for (int x = 0; x < 2; x++) {
        g.keys[x] = take(&g, m->stored_bytes && has_keys, g.group * g.list, sizeof(uint32_t));
        if (x == 0 || !g.block) g.slots[x] = take(&g, m->stored_bytes && has_keys, g.group * g.list, sizeof(uint32_t));
    }
    const int64_t rows = p->batch * p->seq_k, counters = g.block ? KP_MLA_SLOTS_COUNTERS(rows) / 2 : 1 << DIGIT_BITS;
    g.counts = take(&g, m->stored_bytes && has_keys, g.group * g.sort_blocks * counters, sizeof(uint32_t));
    g.scanned =
        take(&g, m->stored_bytes == 2 && has_keys && !g.block, g.group * g.sort_blocks * counters, sizeof(uint32_t));
    g.totals = take(&g, m->stored_bytes == 2 && has_keys && !g.block, g.group * counters, sizeof(uint32_t));
    g.parts_of_rows = take(&g, m->stored_bytes == 2 && has_keys, 2 * sum_ctas(p, g.chunk) * p->dim_qk, sizeof(float));
    g.part_dq = take(&g, g.parts > 0, (g.queries - g.whole) * g.head_blocks * g.parts * m->head_block * p->dim_qk,
                     sizeof(float));
    g.ds = take(&g, m->maps, attn_cuda_mla_bwd_ctas(m, dev, g.queries * g.head_blocks) * blocks(p->topk, KP_SM100_KEYS),
                KP_SM100_STORED_DS(m->head_block));
    g.lists = take(&g, g.ranges, g.listed * p->topk, sizeof(int32_t));
    g.lengths = take(&g, g.ranges, g.listed, sizeof(int32_t));
    g.checkpoints = take(&g, g.n_checkpoints > 0, g.n_checkpoints, sizeof(uint32_t));
    g.positions = take(&g, g.ranges && attn_core_has(p, ATTN_WITH_DIST), g.queries * p->topk, sizeof(int32_t));
    return g;
}

uint64_t attn_cuda_mla_bwd_workspace(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p) {
    return lay_out(m, dev, p).end + ATTN_CORE_DOUT_BYTES;
}

int attn_cuda_mla_bwd_refuse(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             const attn_problem *p, struct attn_text *why) {
    if (attn_cuda_mla_refuse(p, why)) return 1;
    if (attn_cuda_refuse_image(dev, m->symbol, m->shared_bytes, why) || attn_cuda_dout_refuse(dev, why)) return 1;
    for (int x = 0; x < N_STEPS; x++)
        if (has_step(m, x) && attn_cuda_refuse_image(dev, symbols[x], step_shared(x), why)) return 1;
    if (!m->stored_bytes) return 0;
    if (p->batch > 0 && p->seq_k > (int64_t)(UINT32_MAX - 1) / p->batch) {
        attn_text_add(why, "%" PRId64 " batch entries of %" PRId64 " keys are more rows than its sort counts, 2^32 - 2",
                      p->batch, p->seq_k);
        return 1;
    }
    return 0;
}

attn_status attn_cuda_mla_bwd_prepare(const struct attn_cuda_mla_bwd_main *m, struct attn_core_device *dev) {
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(m->symbol), (uint32_t)m->shared_bytes);
    if (!status) status = attn_cuda_dout_prepare(dev);
    for (int x = 0; x < N_STEPS && !status; x++)
        if (has_step(m, x))
            status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbols[x]), (uint32_t)step_shared(x));
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

struct run {
    const struct attn_cuda_mla_bwd_main *m;
    const struct attn_core_device *dev;
    const attn_problem *p;
    const attn_args *args;
    struct geometry g;
    union { /* kp: of every step; ranges: of RANGES, FINISH_DKV, FINISH_DIST and FINISH_DSINK */
        struct kp_mla_bwd kp;
        struct kp_mla_bwd_ranges ranges;
    };
    struct kp_mla_cycles cycles; /* of PREPARE */
    int64_t all, unprepared;     /* rows and zeroes of PREPARE; how many of its last are left, to overlap with a sort */
    int sorted;                  /* which of kp.keys, kp.slots hold the sorted lists of the group of chunks */
    /* Overlapped sums: the chunk whose rows are to be summed, n == 0: none; what summing CTAs left of others. */
    struct kp_mla_bwd_rows left;
    struct {
        uint64_t keys, parts;
        int64_t n, segment;
    } summed[MAX_GROUP];
    int n_summed;
    struct kp_mla_bwd_rows pending; /* the chunk of which ROWS_SUM has left parts, n == 0: there is none */
};
_Static_assert(offsetof(struct kp_mla_bwd_ranges, bwd) == 0, "kp is ranges.bwd");

static uint64_t workspace_of(const struct run *r) { return (uint64_t)(uintptr_t)r->args->workspace; }
/* Whether all launches of the main kernel begin early; clusters are slower so (mla_bwd_sm90_experiments.md). */
static int begins_early(const struct run *r) { return (r->m->stored_bytes == 2 || r->m->ahead) && r->m->cluster <= 1; }

/* early: the kernel waits by itself for the one before, or has no need to. */
static attn_status queue(const struct run *r, const char *symbol, int64_t ctas, int64_t threads, int64_t shared,
                         int64_t cluster, int early, const void *params, size_t params_bytes) {
    if (ctas <= 0) return ATTN_OK;
    const struct attn_cuda_grid grid = {.early = (uint8_t)(early && attn_cuda_limits_of(r->dev)->early_launch),
                                        .x = (uint32_t)lesser(ctas, INT32_MAX / 64 * 64),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)threads,
                                        .cluster = (uint32_t)cluster,
                                        .shared_bytes = (uint32_t)shared};
    return attn_cuda_launch(r->dev, attn_cuda_variant_of(r->dev, symbol), &grid, params, params_bytes, r->args->stream);
}
static attn_status queue_step(const struct run *r, int step, int64_t ctas) {
    const int has_ranges = step >= RANGES && step <= FINISH_DSINK;
    return queue(r, symbols[step], ctas, THREADS, 0, 0, 0, &r->ranges, has_ranges ? sizeof r->ranges : sizeof r->kp);
}

/* The next n of the first step's rows and zeroes; early: overlaps with the kernel before. */
static attn_status queue_prepare(struct run *r, int64_t n, int early) {
    struct kp_mla_bwd kp = r->kp;
    const int step = r->m->stored_bytes == 2 ? PREPARE_OVERLAPPED : PREPARE,
              rows = step == PREPARE ? 1 : KP_MLA_BWD_PREPARED;
    kp.first = r->all - r->unprepared, kp.n = lesser(n, r->unprepared);
    kp.cycles = r->cycles;
    r->unprepared -= kp.n;
    return queue(r, symbols[step], blocks(kp.n, rows * WARPS), THREADS, 0, 0, early, &kp, sizeof kp);
}
/* A launch of n work tiles, and of CTAs that sum the rows that are left. */
static attn_status queue_overlapped(struct run *r, const struct kp_mla_bwd *kp, int64_t work_tiles, int64_t ctas) {
    const int64_t n_sms = attn_cuda_limits_of(r->dev)->n_sms, parts = r->n_summed * overlapped_parts(r->dev);
    struct kp_mla_bwd_rows rows = r->left;
    int64_t summing_ctas = 0;
    if (rows.n > 0 && r->n_summed < MAX_GROUP) {
        attn_cuda_mla_bwd_workers(r->m, n_sms, work_tiles, rows.n / r->p->topk * r->g.head_blocks, &ctas);
        summing_ctas = n_sms - ctas;
        if (r->m->cluster > 1) summing_ctas -= summing_ctas % r->m->cluster; /* they come in clusters, too */
    }
    rows.bwd = *kp, rows.bwd.workers = (int32_t)ctas;
    if (summing_ctas > 0) {
        rows.parts = workspace_of(r) + r->g.overlapped_parts;
        rows.parts += (uint64_t)(parts * r->p->dim_qk) * sizeof(float);
        const int64_t segment = blocks(rows.n, summing_ctas * OVERLAPPED_WARPS);
        rows.segment = segment < LEAST_SEGMENT ? LEAST_SEGMENT : segment;
        r->summed[r->n_summed].keys = rows.keys, r->summed[r->n_summed].parts = rows.parts;
        r->summed[r->n_summed].n = rows.n, r->summed[r->n_summed].segment = rows.segment;
        r->n_summed++, r->left.n = 0;
    }
    return queue(r, r->m->symbol, ctas + summing_ctas, r->m->threads, r->m->shared_bytes, r->m->cluster,
                 summing_ctas > 0, &rows, sizeof rows);
}

/* first_listed: the first query of those whose lists have been ordered. */
static attn_status queue_main(struct run *r, int64_t first_listed) {
    struct kp_mla_bwd kp = r->kp;
    if (kp.parts > 0 && !kp.stored_rows) kp.checkpoints = 0; /* their rows are few */
    if (kp.parts > 0 && !r->m->stored_bytes && kp.first > first_listed && begins_early(r))
        kp.steps |= KP_MLA_BWD_NO_GRID_WAIT;
    const int64_t work_tiles = kp.n * r->g.head_blocks * (kp.parts > 0 ? kp.parts : 1);
    const int64_t ctas = attn_cuda_mla_bwd_ctas(r->m, r->dev, work_tiles);
    kp.work_tiles = (int32_t)lesser(work_tiles, INT32_MAX);
    if (kp.parts <= 0) kp.ahead = (int32_t)r->cycles.heads;
    if (r->g.ranges) {
        const uint64_t before = (uint64_t)first_listed * sizeof(int32_t), topk = (uint64_t)r->p->topk;
        kp.in.indices.data = r->ranges.list - before * topk;
        kp.in.indices.batch = r->p->seq_q * r->p->topk, kp.in.indices.row = r->p->topk;
        kp.in.topk_length.data = r->ranges.lengths - before;
        kp.in.topk_length.batch = r->p->seq_q, kp.in.topk_length.row = 1;
    }
    if (r->m->maps)
        return attn_cuda_mla_bwd_mapped(r->m, r->dev, &kp, workspace_of(r) + r->g.ds, ctas, r->args->stream);
    if (r->m->sum_time > 0) return queue_overlapped(r, &kp, work_tiles, ctas);
    return queue(r, r->m->symbol, ctas, r->m->threads, r->m->shared_bytes, r->m->cluster, begins_early(r), &kp,
                 sizeof kp);
}

/* Its dq, a warp for 128 columns. */
static attn_status queue_finish_dq(const struct run *r) {
    if (!r->kp.dq.data) return ATTN_OK;
    return queue_step(r, FINISH_DQ, blocks(r->kp.n * r->p->heads_q * blocks(r->p->dim_qk, 128), WARPS));
}

/* A team for each segment: of a CTA of ROWS_SUM, or of a summing CTA of the main kernel. */
static attn_status queue_fixup(const struct run *r, int early, const struct kp_mla_bwd_rows *rows) {
    return queue(r, symbols[ROWS_FIXUP], blocks(blocks(rows->n, rows->segment), KP_MLA_ROWS_TEAMS(r->p->dim_qk)),
                 KP_MLA_ROWS_THREADS, 0, 0, early, rows, sizeof *rows);
}
/* What ROWS_SUM has left in parts; early: as SMs become free of the next chunk's work tiles. */
static attn_status queue_fixup_of_chunk(struct run *r, int early) {
    const struct kp_mla_bwd_rows rows = r->pending;
    r->pending.n = 0;
    return rows.n > 0 ? queue_fixup(r, early, &rows) : ATTN_OK;
}

/* Rows of 16 bits a number: the chunk's whole work tiles, then the split ones, overlapped with the last chunk's fixup:
 * none of them needs the launch before, and SMs become free of whole work tiles one by one. */
static attn_status queue_rows_of_work_tiles(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp;
    const struct kp_mla_bwd chunk = *kp;
    const uint64_t slots = (uint64_t)(r->g.head_blocks * r->p->topk), row = 2 * (uint64_t)r->p->dim_qk;
    attn_status status = ATTN_OK;
    if (kp->stored_rows) kp->units = kp->stored_rows + (uint64_t)kp->n * slots * row;
    kp->n = lesser(chunk.n, r->g.whole > kp->first ? r->g.whole - kp->first : 0);
    if (kp->n > 0) status = queue_main(r, 0);
    if (kp->n > 0 && begins_early(r)) kp->steps |= KP_MLA_BWD_NO_GRID_WAIT;
    const int in_parts = kp->n < chunk.n;
    if (!status && in_parts) {
        const uint64_t before = (uint64_t)kp->n * slots;
        kp->first += kp->n, kp->n = chunk.n - kp->n;
        if (kp->stored_rows) kp->stored_rows += before * row, kp->units += before;
        kp->parts = (int32_t)r->g.parts, kp->part_slots = (int32_t)r->g.part_slots;
        kp->part_dq = workspace_of(r) + r->g.part_dq;
        status = queue_main(r, 0);
    }
    if (!status) status = queue_fixup_of_chunk(r, begins_early(r));
    if (!status && in_parts) status = queue_finish_dq(r);
    *kp = chunk;
    return status;
}

/* ---- rows of 16 bits a number ---- */

static attn_status queue_rows(const struct run *r, int step, int64_t ctas, const struct kp_mla_bwd_rows *rows) {
    return queue(r, symbols[step], ctas, step < ROWS_SUM ? THREADS : KP_MLA_ROWS_THREADS, 0, 0, 0, rows, sizeof *rows);
}

static struct kp_mla_bwd_rows rows_of(const struct run *r) {
    const uint64_t workspace = workspace_of(r);
    return (struct kp_mla_bwd_rows){.bwd = r->kp,
                                    .scanned = workspace + r->g.scanned,
                                    .totals = workspace + r->g.totals,
                                    .rows = r->kp.stored_rows,
                                    .parts = workspace + r->g.parts_of_rows,
                                    .segment = KP_MLA_ROWS_TEAMS(r->p->dim_qk) * KP_MLA_ROWS_SEGMENT,
                                    .n = r->kp.n * r->p->topk,
                                    .chunk = r->g.chunk,
                                    .list = r->g.list};
}

/* What queue_sort_of_rows does, through shared memory. */
static attn_status queue_merge_of_slots(struct run *r, struct kp_mla_bwd_rows *rows, int64_t chunks) {
    const int64_t key_rows = r->p->batch * r->p->seq_k, n_blocks = r->g.sort_blocks, merge_rows = r->g.merge_rows;
    const int64_t order = KP_MLA_SLOTS_ORDER_SHARED(key_rows), merge = KP_MLA_SLOTS_MERGE_SHARED(merge_rows, n_blocks);
    rows->block = (int32_t)r->g.block, rows->merge_rows = (int32_t)merge_rows;
    rows->keys = r->kp.keys[0], rows->slots = r->kp.slots[0], rows->runs = r->kp.keys[1];
    r->sorted = 0;
    const int64_t at_once = SLOTS_CTAS * attn_cuda_limits_of(r->dev)->n_sms;
    attn_status status = queue(r, symbols[SLOTS_ORDER], lesser(chunks * n_blocks, at_once), SLOTS_THREADS, order, 0, 0,
                               rows, sizeof *rows);
    if (!status) status = queue_prepare(r, r->all / 2 / KP_MLA_BWD_PREPARED * KP_MLA_BWD_PREPARED, 1);
    if (!status)
        status = queue(r, symbols[SLOTS_MERGE], lesser(chunks * blocks(key_rows, merge_rows), at_once), SLOTS_THREADS,
                       merge, 0, 1, rows, sizeof *rows);
    return status ? status : queue_prepare(r, r->all, 1);
}

/* Sort the slots of queries kp.first .. end - 1, chunk by chunk, but for what comes after a group of chunks. */
static attn_status queue_sort_of_rows(struct run *r, int64_t end) {
    const uint64_t most = (uint64_t)(r->p->batch * r->p->seq_k); /* the key of an invalid slot */
    struct kp_mla_bwd_rows rows = rows_of(r);
    struct kp_mla_bwd *kp = &rows.bwd;
    attn_status status = ATTN_OK;
    kp->n = lesser(r->g.group * r->g.chunk, end - kp->first);
    kp->sort_blocks = (int32_t)r->g.sort_blocks;
    kp->from = -1;
    const int64_t chunks = blocks(kp->n, r->g.chunk);
    if (r->g.block) return queue_merge_of_slots(r, &rows, chunks);
    for (kp->digit = 0; !status && (kp->digit == 0 || most >> kp->digit); kp->digit += DIGIT_BITS) {
        status = queue_rows(r, ROWS_COUNT, chunks * kp->sort_blocks, &rows);
        if (!status) status = queue_rows(r, ROWS_SCAN, chunks << DIGIT_BITS, &rows);
        if (!status) status = queue_rows(r, ROWS_SCATTER, chunks * kp->sort_blocks, &rows);
        kp->from = (kp->from + 1) & 1;
    }
    r->sorted = kp->from;
    return status;
}
/* Add the rows that a chunk's slots left, if that is not done. */
static attn_status queue_sum_of_rows(struct run *r) {
    const struct kp_mla_bwd_rows rows = r->left;
    r->left.n = 0;
    if (rows.n <= 0) return ATTN_OK;
    r->pending = rows;
    return queue_rows(r, ROWS_SUM, blocks(rows.n, rows.segment), &rows);
}
/* Chunk `x` of its group has stored its rows; the rows before it are being summed, or still to be. */
static attn_status leave_rows(struct run *r, int64_t x) {
    attn_status status = queue_sum_of_rows(r);
    const uint64_t offset = (uint64_t)(x * r->g.list) * sizeof(uint32_t);
    r->left = rows_of(r);
    r->left.keys = r->kp.keys[r->sorted] + offset, r->left.slots = r->kp.slots[r->sorted] + offset;
    return status || r->g.overlapped ? status : queue_sum_of_rows(r);
}
/* The end of a group of chunks: its last rows, and what summing CTAs left. */
static attn_status queue_end_of_group(struct run *r) {
    struct kp_mla_bwd_rows rows = r->left;
    attn_status status = queue_sum_of_rows(r);
    if (!status) status = queue_fixup_of_chunk(r, 0);
    for (int x = 0; x < r->n_summed && !status; x++) {
        rows.keys = r->summed[x].keys, rows.parts = r->summed[x].parts;
        rows.n = r->summed[x].n, rows.segment = r->summed[x].segment;
        status = queue_fixup(r, 0, &rows);
    }
    r->n_summed = 0;
    return status;
}

static void set_sum(struct run *r, uint64_t workspace) {
    struct kp_mla_bwd *kp = &r->kp;
    const attn_problem *p = r->p;
    if (!kp->dkv.data || p->seq_k <= 0) {
        kp->dkv = (struct kp_view){0};
        return;
    }
    kp->sum = kp->dkv;
    /* Without queries nothing is added: dkv is zeroed, or left alone. */
    if (r->g.queries > 0 && has_separate_sum(r->m, p)) {
        if (r->m->permuted) kp->steps |= KP_MLA_BWD_PERMUTED;
        kp->sum = (struct kp_view){.data = workspace + r->g.sum,
                                   .batch = p->seq_k * p->dim_qk,
                                   .row = p->dim_qk,
                                   .column = 1,
                                   .dtype = KP_F32,
                                   .chunk = 16};
    }
    if (kp->sum.data != kp->dkv.data || !attn_core_has(p, ATTN_ACCUMULATE)) kp->steps |= KP_MLA_BWD_ZERO;
    if (attn_core_has(p, ATTN_ACCUMULATE)) kp->steps |= KP_MLA_BWD_ACCUMULATE;
}

static void set_parameters(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp;
    const attn_problem *p = r->p;
    const uint64_t workspace = workspace_of(r);
    attn_cuda_mla_bwd_tensors(kp, p, r->args);
    set_sum(r, workspace);
    kp->row_stats = workspace + r->g.row_stats;
    if (kp->dist.data) kp->part_dist = workspace + r->g.part_dist;
    if (r->m->stored_bytes && kp->dkv.data) {
        kp->stored_rows = workspace + r->g.stored_rows[0];
        for (int x = 0; x < 2; x++) kp->keys[x] = workspace + r->g.keys[x], kp->slots[x] = workspace + r->g.slots[x];
        kp->counts = workspace + r->g.counts;
    }
    if (r->g.parts && r->m->stored_bytes != 2) kp->part_dq = workspace + r->g.part_dq;
    r->ranges.list = workspace + r->g.lists;
    r->ranges.lengths = workspace + r->g.lengths;
    if (r->g.ranges && kp->dist.data) r->ranges.positions = workspace + r->g.positions;
    if (r->g.n_checkpoints) {
        kp->checkpoints = workspace + r->g.checkpoints;
        kp->segment_shift = r->g.segment_shift, kp->segments = r->g.segments;
    }
    r->ranges.n_checkpoints = r->g.n_checkpoints;
    r->ranges.wave = r->g.in_flight;
    r->ranges.shift = r->g.shift;
    r->ranges.ranges = r->g.ranges;
    kp->head_block = r->m->head_block;
    kp->head_blocks = (int32_t)r->g.head_blocks;
    kp->dist_blocks = (int32_t)dist_blocks(r->m, &r->g);
    kp->dist_norm = p->dist_norm;
}

/* Queries begin .. end - 1, whose lists are ordered together. */
static attn_status queue_queries(struct run *r, int64_t begin, int64_t end) {
    struct kp_mla_bwd *kp = &r->kp;
    attn_status status = ATTN_OK;
    kp->first = begin, kp->n = end - begin;
    if (r->g.ranges) status = queue_step(r, RANGES, kp->n);
    for (; kp->first < end && !status; kp->first += kp->n) {
        const int rows16 = r->m->stored_bytes == 2, stores_rows = rows16 && kp->stored_rows,
                  whole = rows16 || kp->first < r->g.whole;
        const int64_t stop = whole && !rows16 ? lesser(end, r->g.whole) : end;
        kp->n = whole ? lesser(r->g.chunk, stop - kp->first) : stop - kp->first;
        kp->parts = whole ? 0 : (int32_t)r->g.parts;
        kp->part_slots = whole ? 0 : (int32_t)r->g.part_slots;
        const int64_t chunk = r->g.chunk ? (kp->first - begin) / r->g.chunk : 0;
        if (stores_rows && chunk % r->g.group == 0) {
            status = queue_end_of_group(r);
            if (!status) status = queue_sort_of_rows(r, end);
        }
        if (stores_rows && r->g.overlapped)
            kp->stored_rows = workspace_of(r) + r->g.stored_rows[chunk % STORED_BUFFERS];
        if (!status) status = rows16 ? queue_rows_of_work_tiles(r) : queue_main(r, begin);
        if (!status && !whole) status = queue_finish_dq(r);
        if (!status && kp->stored_rows)
            status =
                stores_rows ? leave_rows(r, chunk % r->g.group) : attn_cuda_mla_bwd_sum(r->dev, kp, r->args->stream);
    }
    return status ? status : queue_end_of_group(r);
}

attn_status attn_cuda_mla_bwd_launch(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p, const attn_args *args) {
    struct run r = {.m = m, .dev = dev, .p = p, .args = args, .g = lay_out(m, dev, p)};
    struct kp_mla_bwd *kp = &r.kp;
    if (p->heads_q <= 0) return ATTN_OK;
    struct attn_core_dout room;
    attn_status status = attn_cuda_dout(dev, r.g.end, &r.args, &room);
    set_parameters(&r);
    attn_cuda_mla_bwd_ahead(m, dev, kp, r.g.chunk >= r.g.listed ? r.g.listed : 0, r.g.whole, &r.cycles);
    const int64_t key_rows = kp->dkv.data ? p->batch * p->seq_k : 0;
    r.all = r.unprepared = r.cycles.rows + (kp->steps & KP_MLA_BWD_ZERO ? key_rows : 0);
    if (!status && (!kp->stored_rows || !r.g.block))
        status = queue_prepare(&r, r.all, 0); /* others overlap it with their sort */
    if (kp->dq.data || kp->dkv.data || kp->part_dist)
        for (int64_t begin = 0; begin < r.g.queries && !status; begin += r.g.listed)
            status = queue_queries(&r, begin, lesser(begin + r.g.listed, r.g.queries));
    if (!status && key_rows && kp->sum.data != kp->dkv.data)
        status = queue_step(&r, FINISH_DKV, blocks(key_rows, WARPS));
    if (!status && kp->part_dist) status = queue_step(&r, FINISH_DIST, blocks(r.g.queries, WARPS));
    if (!status && kp->dsink) status = queue_step(&r, FINISH_DSINK, p->heads_q);
    return status;
}
