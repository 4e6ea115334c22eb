/* SPDX-License-Identifier: MIT
 * Sparse MLA backward over joined lists, deterministic on Hopper: the rows of 16 bits a number that the main kernel
 * stores for the entries of a chunk of groups, sorted by the row of kv that they name and added up in that order
 * (kernels/sm90/mla_bwd/sum_rows.cu). To these kernels a group is a query, and its stored rows are slots. */
#include "cuda/sparse/mla_bwd_joined.h"
#include "kernels/params/mla_rows.h"

#include <inttypes.h>

enum { LIST, COUNT, SCAN, SCATTER, SUM, FIXUP, N_STEPS, DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };
static const char *const symbols[N_STEPS] = {"attn_mla_bwd_joined_list_smxx_any", "attn_mla_bwd_rows_sm90_count",
                                             "attn_mla_bwd_rows_sm90_scan",       "attn_mla_bwd_rows_sm90_scatter",
                                             "attn_mla_bwd_rows_sm90_walk",       "attn_mla_bwd_rows_sm90_join"};

static uint64_t take(struct attn_cuda_mla_bwd_joined_rows *g, int64_t n, int64_t bytes) {
    const uint64_t place = g->bytes;
    g->bytes += ((uint64_t)n * (uint64_t)bytes + 255) / 256 * 256;
    return place;
}

static int64_t sort_blocks(int64_t n) { return attn_cuda_blocks(n, KP_MLA_SORT_BLOCK); }
static int64_t segment_of(const attn_problem *p) { return (int64_t)KP_MLA_ROWS_TEAMS(p->dim_qk) * KP_MLA_ROWS_SEGMENT; }

/* Stored rows take 1/16 of the memory at most, as those of queries apart (mla_bwd_steps.c), in whole rounds. */
struct attn_cuda_mla_bwd_joined_rows attn_cuda_mla_bwd_joined_rows_of(const struct attn_core_device *dev,
                                                                      const attn_problem *p, int64_t group,
                                                                      int64_t listed, int64_t round) {
    struct attn_cuda_mla_bwd_joined_rows g = {.rows = attn_cuda_blocks(group * p->topk, 128) * 128};
    /* of a group left apart; those that the operator joins itself never are */
    if (p->group && g.rows < group * attn_cuda_blocks(p->topk, 64) * 64)
        g.rows = group * attn_cuda_blocks(p->topk, 64) * 64;
    const int64_t bytes = KP_MLA_ROWS_BYTES(p->dim_qk), limit = attn_cuda_limits_of(dev)->chunk_limit;
    g.chunk = attn_cuda_lesser((int64_t)(dev->memory_bytes / 16) / bytes, INT32_MAX) / g.rows;
    if (limit > 0) g.chunk = attn_cuda_lesser(g.chunk, limit);
    if (g.chunk > round) g.chunk -= g.chunk % round;
    g.chunk = g.chunk < 1 ? 1 : attn_cuda_lesser(g.chunk, listed);
    const int64_t n = g.chunk * g.rows;
    g.stored_rows = take(&g, n, bytes);
    g.list = take(&g, n, sizeof(int32_t));
    g.lengths = take(&g, g.chunk, sizeof(int32_t));
    for (int x = 0; x < 2; x++) {
        g.keys[x] = take(&g, n, sizeof(uint32_t));
        g.slots[x] = take(&g, n, sizeof(uint32_t));
    }
    g.counts = take(&g, DIGITS * sort_blocks(n), sizeof(uint32_t));
    g.scanned = take(&g, DIGITS * sort_blocks(n), sizeof(uint32_t));
    g.totals = take(&g, DIGITS, sizeof(uint32_t));
    g.parts = take(&g, 2 * attn_cuda_blocks(n, segment_of(p)) * p->dim_qk, sizeof(float));
    return g;
}

int attn_cuda_mla_bwd_joined_rows_refuse(const struct attn_core_device *dev, const attn_problem *p,
                                         struct attn_text *why) {
    if (p->batch > 0 && p->seq_k > (int64_t)(UINT32_MAX - 1) / p->batch) {
        attn_text_add(why, "%" PRId64 " batch entries of %" PRId64 " keys are more rows than its sort counts, 2^32 - 2",
                      p->batch, p->seq_k);
        return 1;
    }
    for (int x = 0; x < N_STEPS; x++)
        if (attn_cuda_refuse_image(dev, symbols[x], 0, why)) return 1;
    return 0;
}

attn_status attn_cuda_mla_bwd_joined_rows_prepare(struct attn_core_device *dev) {
    attn_status status = ATTN_OK;
    for (int x = 0; x < N_STEPS && !status; x++)
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbols[x]), 0);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

static attn_status queue(const struct attn_core_device *dev, const attn_args *args, int step, int64_t ctas,
                         const void *params, size_t bytes) {
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX),
                                        .y = 1,
                                        .z = 1,
                                        .threads = step < SUM ? 256 : KP_MLA_ROWS_THREADS};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, symbols[step]), &grid, params, bytes, args->stream);
}

/* The chunk as one of queries: its lists in the workspace at `memory`, all of their numbers valid but -1. */
static struct kp_mla_bwd_rows params_of(const attn_problem *p, const struct attn_cuda_mla_bwd_joined_rows *g,
                                        const struct kp_mla_bwd_joined *kp, uint64_t memory) {
    const int64_t n = kp->bwd.n, groups = kp->joined.groups;
    const uint64_t before = (uint64_t)kp->bwd.first * sizeof(int32_t);
    struct kp_mla_bwd_rows rows = {.bwd = kp->bwd,
                                   .scanned = memory + g->scanned,
                                   .totals = memory + g->totals,
                                   .rows = memory + g->stored_rows,
                                   .parts = memory + g->parts,
                                   .segment = segment_of(p),
                                   .n = n * g->rows,
                                   .chunk = n,
                                   .list = n * g->rows};
    struct kp_mla *in = &rows.bwd.in;
    in->seq_q = groups, in->topk = (int32_t)g->rows;
    in->flags &= ~(uint32_t)KP_MLA_CAUSAL;
    in->indices.data = memory + g->list - before * (uint64_t)g->rows;
    in->indices.batch = groups * g->rows, in->indices.row = g->rows;
    in->topk_length = (struct kp_view){.data = memory + g->lengths - before, .batch = groups, .row = 1};
    rows.bwd.stored_rows = memory + g->stored_rows;
    for (int x = 0; x < 2; x++) rows.bwd.keys[x] = memory + g->keys[x], rows.bwd.slots[x] = memory + g->slots[x];
    rows.bwd.counts = memory + g->counts;
    rows.bwd.sort_blocks = (int32_t)sort_blocks(rows.n);
    rows.bwd.head_blocks = 1;
    return rows;
}

attn_status attn_cuda_mla_bwd_joined_rows_sum(const struct attn_core_device *dev, const attn_problem *p,
                                              const attn_args *args, const struct attn_cuda_mla_bwd_joined_rows *g,
                                              const struct kp_mla_bwd_joined *kp, uint64_t memory) {
    const uint64_t most = (uint64_t)(p->batch * p->seq_k); /* the key of an invalid slot */
    const struct kp_mla_bwd_joined_list list = {.in = kp->bwd.in,
                                                .joined = kp->joined,
                                                .first = kp->bwd.first,
                                                .n = kp->bwd.n,
                                                .rows = g->rows,
                                                .list = memory + g->list,
                                                .lengths = memory + g->lengths};
    struct kp_mla_bwd_rows rows = params_of(p, g, kp, memory);
    attn_status status = queue(dev, args, LIST, list.n, &list, sizeof list);
    rows.bwd.from = -1;
    for (rows.bwd.digit = 0; !status && (rows.bwd.digit == 0 || most >> rows.bwd.digit); rows.bwd.digit += DIGIT_BITS) {
        status = queue(dev, args, COUNT, rows.bwd.sort_blocks, &rows, sizeof rows);
        if (!status) status = queue(dev, args, SCAN, DIGITS, &rows, sizeof rows);
        if (!status) status = queue(dev, args, SCATTER, rows.bwd.sort_blocks, &rows, sizeof rows);
        rows.bwd.from = (rows.bwd.from + 1) & 1;
    }
    const int sorted = rows.bwd.from;
    rows.keys = rows.bwd.keys[sorted], rows.slots = rows.bwd.slots[sorted];
    const int64_t segments = attn_cuda_blocks(rows.n, segment_of(p));
    if (!status) status = queue(dev, args, SUM, segments, &rows, sizeof rows);
    if (status) return status;
    return queue(dev, args, FIXUP, attn_cuda_blocks(segments, KP_MLA_ROWS_TEAMS(p->dim_qk)), &rows, sizeof rows);
}
