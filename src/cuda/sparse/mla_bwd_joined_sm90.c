/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Hopper over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/mla_bwd_joined_sm90.def, and the order of their steps, which are those of mla_bwd_steps.c without
 * what lists of single queries need. The device's side: kernels/sm90/mla_bwd/pingpong.cu, f16: mla_bwd/lockstep.cu. */
#include "core/problem.h"
#include "cuda/sparse/mla_bwd_joined.h"
#include "kernels/params/mla_ranges.h"
#include "kernels/params/mla_sm90.h"

#include <inttypes.h>

enum { WARPS = ATTN_CUDA_MLA_BWD_JOINED_WARPS };
/* Steps of its own, after those that it shares. */
enum { FINISH_DIST = ATTN_CUDA_MLA_BWD_JOINED_DIST, CHECKPOINTS = ATTN_CUDA_MLA_BWD_JOINED_STEPS, FINISH_DQ, N_STEPS };
static const char *symbol_of(int step) {
    if (step == CHECKPOINTS) return "attn_mla_bwd_ranges_smxx_any";
    return step == FINISH_DQ ? "attn_mla_bwd_finish_smxx_joined_dq" : attn_cuda_mla_bwd_joined_symbols[step];
}
/* Parts of a work tile, at most. */
static const int64_t MAX_PARTS = 64;

/* A function of device and problem alone. Offsets in bytes. */
struct geometry {
    int64_t tile_rows;                              /* of a work tile */
    int64_t group, groups, head_block, head_blocks; /* a CTA has head_block heads of each query that it has */
    int64_t at_once, listed; /* work tiles of a round; groups that are joined at a time, whole rounds */
    int64_t entries;         /* of a group, at most */
    int64_t n_checkpoints;   /* struct kp_mla_bwd.checkpoints; 0: CTAs are not kept together */
    int32_t segment_shift, segments;
    int64_t whole, parts;                        /* groups whose work tiles are whole; parts of the others' */
    struct attn_cuda_mla_bwd_joined_rows stored; /* deterministic */
    uint64_t part_dq, joined, row_stats, sum, part_dist, counters, stored_rows, end;
};

/* Parts of a query's sums for dist: lockstep.cu forms them warp by warp, and a query of 32 rows has two warps. */
static int64_t dist_parts(const struct kp_mla_bwd_joined_sm90_config *c, const struct geometry *g) {
    return c->even == 1 && g->head_block == 32 ? 2 * g->head_blocks : g->head_blocks;
}

static uint64_t take(struct geometry *g, int wanted, int64_t n, int64_t bytes) {
    const uint64_t place = g->end;
    if (wanted) g->end += ((uint64_t)n * (uint64_t)bytes + 255) / 256 * 256;
    return place;
}

/* Sums of kv rows that the second-level cache does not hold: entries come in order of rows, so CTAs that keep together
 * add to a window of them (mla_bwd_steps.c). */
static void choose_checkpoints(struct geometry *g, const struct attn_core_device *dev, const attn_problem *p) {
    const int64_t row = (int64_t)sizeof(float) * p->dim_qk, cache = attn_cuda_limits_of(dev)->l2_bytes;
    if (p->seq_k <= cache / 2 / row) return;
    while (row << (g->segment_shift + 1) <= cache / 8) g->segment_shift++;
    g->segments = (int32_t)((p->seq_k - 1) >> g->segment_shift) + 1;
    g->n_checkpoints = attn_cuda_blocks(g->listed * g->head_blocks, g->at_once) * g->segments;
}

/* The last round of work tiles, if it is not full, is cut in parts, whose dq are added up (mla_bwd_steps.c). */
static void choose_parts(struct geometry *g, const attn_problem *p) {
    const int64_t tiles = (int64_t)(attn_cuda_mla_joined_entries(p, g->group) / 64) + 1;
    g->whole = g->groups * g->head_blocks / g->at_once * g->at_once / g->head_blocks;
    const int64_t rest = (g->groups - g->whole) * g->head_blocks;
    g->parts = attn_cuda_mla_splits(rest, tiles, g->at_once, MAX_PARTS, 1, 0.017 * (double)rest);
    if (rest <= 0 || g->parts < 2) g->whole = g->groups, g->parts = 0;
}

static struct geometry lay_out(const struct kp_mla_bwd_joined_sm90_config *c, const struct attn_core_device *dev,
                               const attn_problem *p) {
    struct geometry g = {.tile_rows = 64 * c->ctas, .group = attn_cuda_mla_joined_group(p, 64 * c->ctas)};
    if (!g.group || p->batch <= 0) return (struct geometry){0};
    const int64_t queries = p->batch * p->seq_q;
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.head_block = g.tile_rows / g.group;
    g.head_blocks = attn_cuda_blocks(p->heads_q, g.head_block);
    g.at_once = attn_cuda_limits_of(dev)->n_sms / c->ctas;
    if (!g.at_once) return (struct geometry){0}; /* refused: supports() */
    g.listed = attn_cuda_mla_joined_listed(p, g.tile_rows, attn_cuda_blocks(g.at_once, g.head_blocks));
    g.entries = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    g.whole = g.groups;
    if (c->deterministic)
        g.stored =
            attn_cuda_mla_bwd_joined_rows_of(dev, p, g.group, g.listed, attn_cuda_blocks(g.at_once, g.head_blocks));
    else
        choose_checkpoints(&g, dev, p), choose_parts(&g, p);
    g.joined = take(&g, 1, (int64_t)attn_cuda_mla_joined_bytes(dev, p, g.tile_rows, g.listed), 1);
    g.row_stats = take(&g, 1, queries * p->heads_q, sizeof(struct kp_mla_row));
    g.sum = take(&g, 1, p->batch * p->seq_k * p->dim_qk, sizeof(float));
    g.part_dist =
        take(&g, attn_core_has(p, ATTN_WITH_DIST), dist_parts(c, &g) * g.listed * g.group * g.entries, sizeof(float));
    g.counters = take(&g, 1, g.n_checkpoints, sizeof(uint32_t));
    g.stored_rows = take(&g, 1, (int64_t)g.stored.bytes, 1);
    g.part_dq = take(&g, 1, (g.groups - g.whole) * g.head_blocks * g.parts * g.tile_rows * p->dim_qk, sizeof(float));
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_bwd_joined_sm90_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_mla_refuse(p, why)) return 0;
    if (attn_cuda_mla_joined_refuse(dev, p, 64 * c->ctas, why)) return 0;
    if (p->heads_q <= 32 * (c->ctas - 1)) {
        attn_text_add(why, "heads_q is %" PRId64 ", fewer than this variant is for", p->heads_q);
        return 0;
    }
    if (attn_cuda_limits_of(dev)->n_sms < c->ctas) {
        attn_text_add(why, "takes %d multiprocessors at a time, may use %d", c->ctas, attn_cuda_limits_of(dev)->n_sms);
        return 0;
    }
    if (p->batch * p->seq_q > INT32_MAX / ((int64_t)p->heads_q + 1)) {
        attn_text_add(why, "counts queries and heads in 31 bits");
        return 0;
    }
    for (int x = 0; x < N_STEPS; x++)
        if (attn_cuda_refuse_image(dev, symbol_of(x), 0, why)) return 0;
    if (c->deterministic && attn_cuda_mla_bwd_joined_rows_refuse(dev, p, why)) return 0;
    return !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_BWD_SM90_SHARED(c->dim), why) &&
           !attn_cuda_dout_refuse(dev, why);
}

/* Entries of a group's list, for estimates. Queries of 33 heads or more fill tiles without neighbours, and joining pays
 * from J = 0.8 on (docs/kernels/mla_bwd_joined_sm90.md). So with deterministic pairs of queries in bf16, whose tiles
 * take longer than those of queries apart, which the third schedule has. */
static double entries_of(const struct kp_mla_bwd_joined_sm90_config *c, const attn_problem *p, int64_t group) {
    const int fills_tiles = c->ctas > 1 || (c->deterministic && c->dtype != KP_F16 && group <= 2);
    return fills_tiles ? attn_cuda_mla_joined_entries_of_pair(p) : attn_cuda_mla_joined_entries(p, group);
}

/* Rounds of groups over the multiprocessors; tiles take as long as in mla_bwd_sm90.c. The first step reads out and dout
 * of all rows. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_bwd_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    if (!g.groups) return 1e-6;
    const double tiles = entries_of(c, p, g.group) / 64 + 0.5;
    const double rounds = (double)attn_cuda_blocks(g.groups * g.head_blocks, g.at_once);
    const double read = 2048 * (double)p->batch * (double)p->seq_q * (double)p->heads_q / 2.5e12;
    const double alone = g.n_checkpoints ? 7.45e-6 : 6.8e-6, pair = g.n_checkpoints ? 6.1e-6 : 5.7e-6;
    const double lockstep = g.n_checkpoints ? 7.5e-6 : 7.3e-6; /* mla_bwd_sm90.c; not timed over joined lists */
    const double stored = 10.5e-6;                             /* likewise */
    const double tile = (c->deterministic ? stored
                         : c->even == 1   ? lockstep
                         : c->ctas == 2   ? pair
                                          : alone) *
                        c->dim / 576;
    return 2e-5 + read + attn_cuda_mla_joined_time(dev, p, g.tile_rows) + rounds * (12e-6 + tiles * tile);
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    const struct kp_mla_bwd_joined_sm90_config *c = k->impl;
    return attn_cuda_mla_joined_group(p, 64 * c->ctas);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    return lay_out(k->impl, dev, p).end + ATTN_CORE_DOUT_BYTES;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_bwd_joined_sm90_config *c = k->impl;
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_BWD_SM90_SHARED(c->dim));
    if (!status) status = attn_cuda_dout_prepare(dev);
    if (!status) status = attn_cuda_mla_joined_prepare(dev, p, 64 * c->ctas);
    if (!status && c->deterministic) status = attn_cuda_mla_bwd_joined_rows_prepare(dev);
    for (int x = 0; x < N_STEPS && !status; x++)
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbol_of(x)), 0);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

struct run {
    const struct kp_mla_bwd_joined_sm90_config *c;
    const struct attn_core_device *dev;
    const attn_problem *p;
    const attn_args *args;
    struct geometry g;
    struct kp_mla_bwd_joined kp; /* of all steps */
};

static attn_status queue_step(const struct run *r, int step, int64_t ctas, const void *params, size_t bytes) {
    return attn_cuda_mla_bwd_joined_step(r->dev, r->args, symbol_of(step), ctas, params, bytes);
}

static void set_parameters(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp.bwd;
    const attn_problem *p = r->p;
    const uint64_t memory = (uint64_t)(uintptr_t)r->args->workspace;
    attn_cuda_mla_bwd_tensors(kp, p, r->args);
    if (p->seq_k <= 0) kp->dkv = (struct kp_view){0};
    if (kp->dkv.data) {
        kp->sum = (struct kp_view){.data = memory + r->g.sum,
                                   .batch = p->seq_k * p->dim_qk,
                                   .row = p->dim_qk,
                                   .column = 1,
                                   .dtype = KP_F32,
                                   .chunk = 16};
        kp->steps = KP_MLA_BWD_ZERO;
        if (!r->c->deterministic) kp->steps |= KP_MLA_BWD_PERMUTED;
        if (attn_core_has(p, ATTN_ACCUMULATE)) kp->steps |= KP_MLA_BWD_ACCUMULATE;
    }
    kp->row_stats = memory + r->g.row_stats;
    if (kp->dist.data) kp->part_dist = memory + r->g.part_dist;
    kp->segment_shift = r->g.segment_shift, kp->segments = r->g.segments;
    kp->head_block = (int32_t)r->g.head_block;
    kp->head_blocks = (int32_t)r->g.head_blocks;
    kp->dist_blocks = (int32_t)dist_parts(r->c, &r->g);
    kp->dist_norm = p->dist_norm;
}

/* Work tiles of groups first .. first + n - 1; parts: of each, 0 if they are whole. */
static attn_status queue_main(struct run *r, int64_t first, int64_t n, int64_t parts) {
    struct kp_mla_bwd *kp = &r->kp.bwd;
    if (n <= 0) return ATTN_OK;
    kp->first = first, kp->n = n;
    kp->parts = (int32_t)parts;
    const int64_t work_tiles = n * r->g.head_blocks * (parts ? parts : 1);
    kp->work_tiles = (int32_t)work_tiles;
    kp->part_dq = (uint64_t)(uintptr_t)r->args->workspace + r->g.part_dq; /* prepare alone has another use of it */
    const int pairs = r->c->ctas == 2;                                    /* clusters do not begin early */
    const struct attn_cuda_grid grid = {.early = (uint8_t)(!pairs && attn_cuda_limits_of(r->dev)->early_launch),
                                        .x = (uint32_t)(r->c->ctas * attn_cuda_lesser(r->g.at_once, work_tiles)),
                                        .y = 1,
                                        .z = 1,
                                        .cluster = pairs ? 2 : 0,
                                        .threads = KP_MLA_BWD_SM90_EVEN_THREADS,
                                        .shared_bytes = (uint32_t)KP_MLA_BWD_SM90_SHARED(r->c->dim)};
    attn_status status = attn_cuda_launch(r->dev, attn_cuda_variant_of(r->dev, r->c->symbol), &grid, &r->kp,
                                          sizeof r->kp, r->args->stream);
    if (status || !parts || !kp->dq.data) return status;
    const int64_t rows = n * r->g.head_blocks * r->g.tile_rows, pieces = attn_cuda_blocks(r->p->dim_qk, 128);
    return queue_step(r, FINISH_DQ, attn_cuda_blocks(rows * pieces, WARPS), &r->kp, sizeof r->kp);
}

/* Deterministic: groups first .. first + n - 1, which are joined, chunk by chunk. */
static attn_status queue_chunks(struct run *r, int64_t first, int64_t n) {
    struct kp_mla_bwd *kp = &r->kp.bwd;
    const uint64_t memory = (uint64_t)(uintptr_t)r->args->workspace + r->g.stored_rows;
    attn_status status = ATTN_OK;
    kp->group_rows = (int32_t)r->g.stored.rows;
    for (const int64_t end = first + n; first < end && !status; first += n) {
        n = attn_cuda_lesser(r->g.stored.chunk, end - first);
        kp->stored_rows = memory + r->g.stored.stored_rows;
        kp->units = kp->stored_rows + (uint64_t)(n * r->g.stored.rows * 2 * r->p->dim_qk);
        status = queue_main(r, first, n, 0);
        if (!status && kp->part_dist)
            status = queue_step(r, FINISH_DIST, attn_cuda_blocks(n * r->g.group, WARPS), &r->kp, sizeof r->kp);
        if (!status && kp->dkv.data)
            status = attn_cuda_mla_bwd_joined_rows_sum(r->dev, r->p, r->args, &r->g.stored, &r->kp, memory);
    }
    return status;
}

/* Groups first .. first + n - 1, which are joined together: first the whole work tiles, then those in parts, which need
 * nothing of the launch before. */
static attn_status queue_groups(void *run, int64_t first, int64_t n) {
    struct run *r = run;
    struct kp_mla_bwd *kp = &r->kp.bwd;
    const uint64_t memory = (uint64_t)(uintptr_t)r->args->workspace;
    const int64_t whole = attn_cuda_lesser(n, r->g.whole > first ? r->g.whole - first : 0);
    attn_status status = attn_cuda_mla_joined_queue(r->dev, r->p, r->args, r->g.tile_rows, memory + r->g.joined, first,
                                                    first + n, &r->kp.joined);
    if (kp->dist.data) kp->part_dist = memory + r->g.part_dist;
    if (r->c->deterministic) return status ? status : queue_chunks(r, first, n);
    if (!status && r->g.n_checkpoints && whole) {
        struct kp_mla_bwd_ranges zeroes = {.bwd = *kp, .n_checkpoints = r->g.n_checkpoints};
        zeroes.bwd.checkpoints = memory + r->g.counters;
        zeroes.bwd.n = 0; /* no lists to order */
        status = queue_step(r, CHECKPOINTS, attn_cuda_lesser(r->g.n_checkpoints, 64), &zeroes, sizeof zeroes);
    }
    kp->checkpoints = r->g.n_checkpoints ? memory + r->g.counters : 0;
    if (!status) status = queue_main(r, first, whole, 0);
    if (!status && kp->part_dist && whole)
        status = queue_step(r, FINISH_DIST, attn_cuda_blocks(whole * r->g.group, WARPS), &r->kp, sizeof r->kp);
    kp->checkpoints = 0;
    if (whole && !kp->part_dist && r->c->ctas == 1) kp->steps |= KP_MLA_BWD_NO_GRID_WAIT;
    if (!status) status = queue_main(r, first + whole, n - whole, r->g.parts);
    kp->steps &= ~(uint32_t)KP_MLA_BWD_NO_GRID_WAIT;
    if (status || !kp->part_dist || n == whole) return status;
    return queue_step(r, FINISH_DIST, attn_cuda_blocks((n - whole) * r->g.group, WARPS), &r->kp, sizeof r->kp);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct run r = {.c = k->impl, .dev = dev, .p = p, .args = args, .g = lay_out(k->impl, dev, p)};
    struct attn_core_dout room;
    const attn_status status = attn_cuda_dout(dev, r.g.end, &r.args, &room);
    set_parameters(&r);
    if (status) return status;
    return attn_cuda_mla_bwd_joined_queue(dev, p, r.args, &r.kp, r.g.groups, r.g.listed, queue_groups, &r);
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_bwd_joined_sm90_config config_##tail = {.symbol = "attn_mla_bwd_joined_sm90_" #tail,    \
                                                                       __VA_ARGS__};
#include "kernels/variants/mla_bwd_joined_sm90.def"
#undef VARIANT

/* A line begins with .dtype and .deterministic, members of both. */
#define VARIANT(tail, source, dtype_of_line, deterministic_of_line, ...)                                               \
    {.name = "attn_mla_bwd_joined_sm90_" #tail,                                                                        \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, to 32 heads, h64: 33 to 64; joins the lists of neighbouring queries",     \
     dtype_of_line,                                                                                                    \
     deterministic_of_line,                                                                                            \
     ATTN_CUDA_MLA_BWD_JOINED_ROW,                                                                                     \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_mla_bwd_joined_sm90_rows[] = {
#include "kernels/variants/mla_bwd_joined_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_bwd_joined_sm90_rows =
    sizeof attn_cuda_mla_bwd_joined_sm90_rows / sizeof attn_cuda_mla_bwd_joined_sm90_rows[0];
