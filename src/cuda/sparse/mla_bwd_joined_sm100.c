/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Blackwell over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/mla_bwd_joined_sm100.def, and the order of their steps. The device's side:
 * kernels/sm100/mla_bwd/mla_bwd.cu with group.h. */
#include "core/problem.h"
#include "cuda/sparse/mla_bwd_joined.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

#include <inttypes.h>

enum { WARPS = ATTN_CUDA_MLA_BWD_JOINED_WARPS, N_STEPS = ATTN_CUDA_MLA_BWD_JOINED_STEPS };
static const char *const *const symbols = attn_cuda_mla_bwd_joined_symbols;

/* Rows that heads of all queries of a group have in the eyes of mla_joined.h, so that a query has 16 of a work tile's
 * 128 at least: products take 16 at a time, and those of values that are not finite a query's alone. */
static int64_t rows_of(const attn_problem *p) {
    return p->heads_q <= 4 ? KP_SM100_HEADS / 4 : p->heads_q <= 8 ? KP_SM100_HEADS / 2 : KP_SM100_HEADS;
}
static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    (void)k;
    return attn_cuda_mla_joined_group(p, rows_of(p));
}

/* A function of device and problem alone. Offsets in bytes. */
struct geometry {
    int64_t group, groups;
    int64_t listed;      /* groups that are joined at a time */
    int64_t ctas, tiles; /* of a launch, at most; of a group, at most */
    int64_t entries;     /* of a group, at most */
    int64_t group_rows;  /* deterministic: rows that its entries may leave; else 0 */
    int64_t dist_blocks; /* parts of a query's heads over which the main kernel sums P' */
    uint64_t joined, row_stats, sum, part_dist, ds, end;
    uint64_t stored_rows, lists, lengths, keys[2], slots[2], counts; /* deterministic */
};

static uint64_t take(struct geometry *g, int wanted, int64_t n, int64_t bytes) {
    const uint64_t place = g->end;
    if (wanted) g->end += ((uint64_t)n * (uint64_t)bytes + 255) / 256 * 256;
    return place;
}

/* Stored rows may take 1/32 of the memory, as in mla_bwd_steps.c, and their places are counted in 31 bits. Whole rounds
 * of pairs, where there are several. */
static void choose_chunk(struct geometry *g, const struct attn_core_device *dev, const attn_problem *p, int64_t pairs) {
    const int64_t limit = attn_cuda_limits_of(dev)->chunk_limit, row = (int64_t)sizeof(float) * p->dim_qk;
    int64_t fit = attn_cuda_lesser((int64_t)(dev->memory_bytes / 32) / row, INT32_MAX) / g->group_rows;
    if (limit > 0) fit = attn_cuda_lesser(fit, limit);
    if (fit > pairs) fit -= fit % pairs;
    g->listed = attn_cuda_lesser(g->listed, fit > 0 ? fit : 1);
}

static struct geometry lay_out(const struct kp_mla_bwd_joined_sm100_config *c, const struct attn_core_device *dev,
                               const attn_problem *p) {
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, rows_of(p))};
    const int has_stored_rows = c->deterministic && p->seq_k > 0;
    const int64_t pairs = attn_cuda_limits_of(dev)->n_sms / 2;
    if (!g.group || p->batch <= 0 || pairs <= 0) return (struct geometry){0};
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.listed = attn_cuda_mla_joined_listed(p, rows_of(p), pairs);
    g.tiles = g.group * attn_cuda_blocks(p->topk, KP_SM100_KEYS); /* left apart; else no more */
    g.group_rows = has_stored_rows ? g.tiles * KP_SM100_KEYS : 0;
    if (has_stored_rows) choose_chunk(&g, dev, p, pairs);
    g.ctas = 2 * attn_cuda_lesser(pairs, g.listed);
    g.entries = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    g.dist_blocks = g.group == 2 ? 2 : 1; /* a warp's heads; of a query at most */
    g.joined = take(&g, 1, (int64_t)attn_cuda_mla_joined_bytes(dev, p, rows_of(p), g.listed), 1);
    g.row_stats = take(&g, 1, p->batch * p->seq_q * p->heads_q, sizeof(struct kp_mla_row));
    g.sum = take(&g, p->dkv_dtype != ATTN_F32, p->batch * p->seq_k * p->dim_qk, sizeof(float));
    g.part_dist =
        take(&g, attn_core_has(p, ATTN_WITH_DIST), g.dist_blocks * g.listed * g.group * g.entries, sizeof(float));
    g.ds = take(&g, 1, g.ctas * g.tiles, KP_SM100_DS(KP_SM100_HEADS));
    g.stored_rows = take(&g, has_stored_rows, g.listed * g.group_rows * p->dim_qk, sizeof(float));
    g.lists = take(&g, has_stored_rows, g.listed * g.group_rows, sizeof(int32_t));
    g.lengths = take(&g, has_stored_rows, g.listed, sizeof(int32_t));
    for (int x = 0; x < 2; x++) {
        g.keys[x] = take(&g, has_stored_rows, g.listed * g.group_rows, sizeof(uint32_t));
        g.slots[x] = take(&g, has_stored_rows, g.listed * g.group_rows, sizeof(uint32_t));
    }
    g.counts =
        take(&g, has_stored_rows, 256 * attn_cuda_blocks(g.listed * g.group_rows, KP_MLA_SORT_BLOCK), sizeof(uint32_t));
    return g;
}

static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_DOUT, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

static int refuses_size(const struct kp_mla_bwd_joined_sm100_config *c, const struct attn_core_device *dev,
                        const attn_problem *p, struct attn_text *why) {
    const struct geometry g = lay_out(c, dev, p);
    if (attn_cuda_limits_of(dev)->n_sms < 2)
        attn_text_add(why, "takes 2 multiprocessors at a time, may use %d", attn_cuda_limits_of(dev)->n_sms);
    else if (g.ctas * g.tiles > INT32_MAX / KP_SM100_HEADS)
        attn_text_add(why, "topk %" PRId64 ": counts the rows of dS of all multiprocessors in 31 bits", p->topk);
    else if (c->deterministic && p->batch > 0 && p->seq_k > (int64_t)(UINT32_MAX - 1) / p->batch)
        attn_text_add(why, "%" PRId64 " batch entries of %" PRId64 " keys are more rows than its sort counts, 2^32 - 2",
                      p->batch, p->seq_k);
    else
        return 0;
    return 1;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_bwd_joined_sm100_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    if (attn_cuda_mla_refuse(p, why)) return 0;
    if (p->group > KP_MLA_BWD_JOINED_SM100_GROUP) {
        attn_text_add(why, "group is %" PRId64 ", at most %d", p->group, KP_MLA_BWD_JOINED_SM100_GROUP);
        return 0;
    }
    if (attn_cuda_mla_joined_refuse(dev, p, rows_of(p), why) || refuses_size(c, dev, p, why)) return 0;
    for (int x = 0; x < N_STEPS; x++)
        if (attn_cuda_refuse_image(dev, symbols[x], 0, why)) return 0;
    for (int x = 0; c->deterministic && x < ATTN_CUDA_MLA_BWD_SUM_STEPS; x++)
        if (attn_cuda_refuse_image(dev, attn_cuda_mla_bwd_sum_symbols[x], 0, why)) return 0;
    return !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_BWD_SM100_SHARED(c->dim, KP_SM100_HEADS), why) &&
           !attn_cuda_dout_refuse(dev, why);
}

/* Counted, not timed: as in mla_bwd_sm100.c, a tile of entries costing what one of slots of 128 heads does. Queries of
 * 33 heads or more have rows that fill 64 without neighbours, whose tiles cost less: joining pays from J = 0.2 on. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_bwd_joined_sm100_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    if (!g.groups) return 1e-6;
    const double tiles = (p->heads_q <= 32 ? attn_cuda_mla_joined_entries(p, g.group)
                                           : attn_cuda_mla_joined_entries_of_pair(p)) /
                             KP_SM100_KEYS +
                         0.5,
                 clock = 1.85e9;
    const double pairs = attn_cuda_limits_of(dev)->n_sms / 2,
                 rounds = (double)g.groups < pairs ? 1 : (double)g.groups / pairs;
    const double rows = (double)g.groups * tiles * KP_SM100_KEYS * c->dim * 4 / (1e10 * 2 * pairs);
    return 2e-5 + attn_cuda_mla_joined_time(dev, p, rows_of(p)) +
           rounds * (tiles * 5600 * c->dim / 576 + 12000) / clock + (c->deterministic ? 2 * rows : 0);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    return lay_out(k->impl, dev, p).end + ATTN_CORE_DOUT_BYTES;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_bwd_joined_sm100_config *c = k->impl;
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol),
                                                (uint32_t)KP_MLA_BWD_SM100_SHARED(c->dim, KP_SM100_HEADS));
    if (!status) status = attn_cuda_dout_prepare(dev);
    if (!status) status = attn_cuda_mla_joined_prepare(dev, p, rows_of(p));
    for (int x = 0; x < N_STEPS && !status; x++)
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbols[x]), 0);
    for (int x = 0; c->deterministic && x < ATTN_CUDA_MLA_BWD_SUM_STEPS && !status; x++)
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_mla_bwd_sum_symbols[x]), 0);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

struct run {
    const struct kp_mla_bwd_joined_sm100_config *c;
    const struct attn_core_device *dev;
    const attn_problem *p;
    const attn_args *args;
    struct geometry g;
    struct kp_mla_bwd_joined kp; /* of all steps */
};

static uint64_t workspace_of(const struct run *r) { return (uint64_t)(uintptr_t)r->args->workspace; }

/* dkv is summed in itself where it is f32. */
static void set_sum(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp.bwd;
    if (r->p->seq_k <= 0) kp->dkv = (struct kp_view){0};
    if (!kp->dkv.data) return;
    kp->sum = kp->dkv;
    if (r->p->dkv_dtype != ATTN_F32)
        kp->sum = (struct kp_view){.data = workspace_of(r) + r->g.sum,
                                   .batch = r->p->seq_k * r->p->dim_qk,
                                   .row = r->p->dim_qk,
                                   .column = 1,
                                   .dtype = KP_F32,
                                   .chunk = 16};
    const int accumulate = attn_core_has(r->p, ATTN_ACCUMULATE);
    if (kp->sum.data != kp->dkv.data || !accumulate) kp->steps |= KP_MLA_BWD_ZERO;
    if (accumulate) kp->steps |= KP_MLA_BWD_ACCUMULATE;
}

static void set_parameters(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp.bwd;
    attn_cuda_mla_bwd_tensors(kp, r->p, r->args);
    set_sum(r);
    kp->row_stats = workspace_of(r) + r->g.row_stats;
    if (r->g.group_rows && kp->dkv.data) kp->stored_rows = workspace_of(r) + r->g.stored_rows;
    if (kp->dist.data) kp->part_dist = workspace_of(r) + r->g.part_dist;
    kp->head_block = (int32_t)r->p->heads_q;
    kp->head_blocks = 1;
    kp->dist_blocks = (int32_t)r->g.dist_blocks;
    kp->dist_norm = r->p->dist_norm;
}

static attn_status queue_main(const struct run *r) {
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(r->g.ctas, 2 * r->kp.bwd.n),
        .y = 1,
        .z = 1,
        .threads = KP_SM100_THREADS,
        .cluster = 2,
        .shared_bytes = (uint32_t)KP_MLA_BWD_SM100_SHARED(r->c->dim, KP_SM100_HEADS),
    };
    struct kp_mla_bwd_sm100 maps;
    attn_status status = attn_cuda_mla_bwd_maps(r->dev, &r->kp.bwd, workspace_of(r) + r->g.ds, r->g.ctas, r->g.tiles,
                                                r->g.group / 2, KP_SM100_HEADS, &maps);
    if (status) return status;
    maps.joined = r->kp.joined;
    if (r->kp.bwd.stored_rows) maps.lists = workspace_of(r) + r->g.lists, maps.lengths = workspace_of(r) + r->g.lengths;
    return attn_cuda_launch(r->dev, attn_cuda_variant_of(r->dev, r->c->symbol), &grid, &maps, sizeof maps,
                            r->args->stream);
}

/* Deterministic: adds the rows that the entries of these groups left, in the groups' order, by the steps that add the
 * slots of queries: a group is a query, and the list that the main kernel wrote is its indices. */
static attn_status queue_sum(const struct run *r) {
    struct kp_mla_bwd kp = r->kp.bwd;
    const uint64_t before = (uint64_t)kp.first * sizeof(int32_t);
    kp.in.topk = (int32_t)r->g.group_rows;
    kp.in.seq_q = r->g.groups / kp.in.batch;
    kp.in.flags &= ~(uint32_t)KP_MLA_CAUSAL;
    kp.in.indices = (struct kp_view){.data = workspace_of(r) + r->g.lists - before * (uint64_t)r->g.group_rows,
                                     .batch = kp.in.seq_q * r->g.group_rows,
                                     .row = r->g.group_rows};
    kp.in.topk_length =
        (struct kp_view){.data = workspace_of(r) + r->g.lengths - before, .batch = kp.in.seq_q, .row = 1};
    for (int x = 0; x < 2; x++) {
        kp.keys[x] = workspace_of(r) + r->g.keys[x];
        kp.slots[x] = workspace_of(r) + r->g.slots[x];
    }
    kp.counts = workspace_of(r) + r->g.counts;
    return attn_cuda_mla_bwd_sum(r->dev, &kp, r->args->stream);
}

/* Groups first .. first + n - 1, which are joined together. */
static attn_status queue_groups(void *run, int64_t first, int64_t n) {
    struct run *r = run;
    attn_status status = attn_cuda_mla_joined_queue(r->dev, r->p, r->args, rows_of(r->p), workspace_of(r) + r->g.joined,
                                                    first, first + n, &r->kp.joined);
    r->kp.bwd.first = first, r->kp.bwd.n = n;
    for (r->kp.joined.shift = 0; r->g.group << r->kp.joined.shift < KP_SM100_HEADS;) r->kp.joined.shift++;
    if (!status) status = queue_main(r);
    if (!status && r->kp.bwd.stored_rows) status = queue_sum(r);
    if (status || !r->kp.bwd.part_dist) return status;
    return attn_cuda_mla_bwd_joined_step(r->dev, r->args, symbols[ATTN_CUDA_MLA_BWD_JOINED_DIST],
                                         attn_cuda_blocks(n * r->g.group, WARPS), &r->kp, sizeof r->kp);
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
    static const struct kp_mla_bwd_joined_sm100_config config_##tail = {.symbol = "attn_mla_bwd_joined_sm100_" #tail,  \
                                                                        __VA_ARGS__};
#include "kernels/variants/mla_bwd_joined_sm100.def"
#undef VARIANT

/* A line begins with .dtype and .deterministic, members of both. */
#define VARIANT(tail, source, dtype_of_line, deterministic_of_line, ...)                                               \
    {.name = "attn_mla_bwd_joined_sm100_" #tail,                                                                       \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D as in the name, to 64 heads; joins lists of neighbouring "       \
                "queries, 128 rows; _det: bit-equal dkv",                                                              \
     dtype_of_line,                                                                                                    \
     deterministic_of_line,                                                                                            \
     ATTN_CUDA_MLA_BWD_JOINED_ROW,                                                                                     \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_mla_bwd_joined_sm100_rows[] = {
#include "kernels/variants/mla_bwd_joined_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_bwd_joined_sm100_rows =
    sizeof attn_cuda_mla_bwd_joined_sm100_rows / sizeof attn_cuda_mla_bwd_joined_sm100_rows[0];
