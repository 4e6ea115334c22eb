/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA: the order of its kernels and the layout of the workspace, whatever the main kernel. The
 * steps are named at struct kp_mla_bwd. */
#include "core/problem.h"
#include "cuda/cuda_mla_bwd.h"

#include <inttypes.h>

_Static_assert(KP_DIST_SUM == ATTN_DIST_SUM && KP_DIST_MEAN == ATTN_DIST_MEAN && KP_DIST_L1 == ATTN_DIST_L1,
               "kernels/kparams_mla.h repeats attn.h");

enum { THREADS = 256, WARPS = THREADS / 32, SCAN_THREADS = 1024, DIGIT_BITS = 8 };
enum { PREPARE, FINISH_DKV, FINISH_DIST, FINISH_DSINK, SORT_COUNT, SORT_SCAN, SORT_SCATTER, SUM, N_STEPS };
static const char *const symbols[N_STEPS] = {
    [PREPARE] = "attn_mla_bwd_prepare_smxx_any",       [FINISH_DKV] = "attn_mla_bwd_finish_smxx_dkv",
    [FINISH_DIST] = "attn_mla_bwd_finish_smxx_dist",   [FINISH_DSINK] = "attn_mla_bwd_finish_smxx_dsink",
    [SORT_COUNT] = "attn_mla_bwd_sort_smxx_count",     [SORT_SCAN] = "attn_mla_bwd_sort_smxx_scan",
    [SORT_SCATTER] = "attn_mla_bwd_sort_smxx_scatter", [SUM] = "attn_mla_bwd_sum_smxx_any",
};
/* A slot is a uint32 within the queries that are sorted together. */
static const int64_t MAX_SORTED = INT64_C(1) << 31;

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t blocks(int64_t n, int64_t size) { return n / size + (n % size != 0); }

/* ------------------------------------------------------------------ workspace ---------------------- */

/* A function of main kernel, device and problem alone, so that workspace and launch agree. Offsets in bytes. */
struct geometry {
    int64_t queries, head_blocks;
    int64_t chunk; /* queries of a launch of the main kernel */
    int64_t sort_blocks;
    uint64_t rows, sum, part_dist, pairs, keys[2], slots[2], counts, end;
};

static int64_t dist_blocks(const struct attn_cuda_mla_bwd_main *m, const struct geometry *g) {
    return g->head_blocks * (m->dist_blocks > 1 ? m->dist_blocks : 1);
}

static uint64_t take(struct geometry *g, int wanted, int64_t n, int64_t bytes) {
    const uint64_t at = g->end;
    if (wanted) g->end += ((uint64_t)n * (uint64_t)bytes + 255) / 256 * 256;
    return at;
}

static struct geometry lay_out(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                               const attn_problem *p) {
    struct geometry g = {.queries = p->batch * p->seq_q, .head_blocks = blocks(p->heads_q, m->head_block)};
    const int has_keys = p->seq_k > 0;
    if (g.queries <= 0 || p->heads_q <= 0) return (struct geometry){0};
    g.chunk = g.queries;
    if (m->pairs) {
        /* Rows of slots may take this share of the memory. Whole rounds of CTAs, where there are several. */
        const int64_t row = (int64_t)sizeof(float) * p->dim_qk * p->topk * g.head_blocks;
        const int64_t round =
            blocks(attn_cuda_limits_of(dev)->n_sms, g.head_blocks * (m->cluster > 1 ? m->cluster : 1));
        g.chunk = lesser((int64_t)(dev->memory_bytes / 32) / row, MAX_SORTED / p->topk - 1);
        if (g.chunk > round) g.chunk -= g.chunk % round;
        g.chunk = g.chunk < 1 ? 1 : lesser(g.chunk, g.queries);
        g.sort_blocks = blocks(g.chunk * p->topk, KP_MLA_SORT_BLOCK);
    }
    g.rows = take(&g, 1, g.queries * p->heads_q, sizeof(struct kp_mla_row));
    g.sum = take(&g, has_keys && p->dkv_dtype != ATTN_F32, p->batch * p->seq_k * p->dim_qk, sizeof(float));
    g.part_dist = take(&g, attn_core_has(p, ATTN_WITH_DIST), dist_blocks(m, &g) * g.queries * p->topk, sizeof(float));
    g.pairs = take(&g, m->pairs && has_keys, g.chunk * g.head_blocks * p->topk * p->dim_qk, sizeof(float));
    for (int x = 0; x < 2; x++) {
        g.keys[x] = take(&g, m->pairs && has_keys, g.chunk * p->topk, sizeof(uint32_t));
        g.slots[x] = take(&g, m->pairs && has_keys, g.chunk * p->topk, sizeof(uint32_t));
    }
    g.counts = take(&g, m->pairs && has_keys, g.sort_blocks << DIGIT_BITS, sizeof(uint32_t));
    return g;
}

uint64_t attn_cuda_mla_bwd_workspace(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p) {
    return lay_out(m, dev, p).end;
}

int attn_cuda_mla_bwd_refuse(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             const attn_problem *p, struct attn_text *why) {
    if (attn_cuda_mla_refuse(p, why)) return 1;
    if (attn_cuda_refuse_image(dev, m->symbol, m->shared_bytes, why)) return 1;
    for (int x = 0; x < N_STEPS; x++)
        if ((x < SORT_COUNT || m->pairs) && attn_cuda_refuse_image(dev, symbols[x], 0, why)) return 1;
    if (!m->pairs) return 0;
    if (p->batch > 0 && p->seq_k > (int64_t)(UINT32_MAX - 1) / p->batch) {
        attn_text_add(why, "%" PRId64 " batch entries of %" PRId64 " keys are more rows than its sort counts, 2^32 - 2",
                      p->batch, p->seq_k);
        return 1;
    }
    return 0;
}

attn_status attn_cuda_mla_bwd_prepare(const struct attn_cuda_mla_bwd_main *m, struct attn_core_device *dev) {
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(m->symbol), (uint32_t)m->shared_bytes);
    for (int x = 0; x < N_STEPS && !status; x++)
        if (x < SORT_COUNT || m->pairs) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbols[x]), 0);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

struct run {
    const struct attn_cuda_mla_bwd_main *m;
    const struct attn_core_device *dev;
    const attn_problem *p;
    const attn_args *args;
    struct geometry g;
    struct kp_mla_bwd kp;
};

static attn_status queue(const struct run *r, const char *symbol, int64_t ctas, int64_t threads, int64_t shared,
                         int64_t cluster) {
    if (ctas <= 0) return ATTN_OK;
    const struct attn_cuda_grid grid = {.x = (uint32_t)lesser(ctas, INT32_MAX / 64 * 64),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)threads,
                                        .cluster = (uint32_t)cluster,
                                        .shared_bytes = (uint32_t)shared};
    return attn_cuda_launch(r->dev, attn_cuda_variant_find(symbol), &grid, &r->kp, sizeof r->kp, r->args->stream);
}
static attn_status queue_step(const struct run *r, int step, int64_t ctas) {
    return queue(r, symbols[step], ctas, step == SORT_SCAN ? SCAN_THREADS : THREADS, 0, 0);
}

static attn_status queue_main(const struct run *r) {
    const int64_t items = r->kp.n * r->g.head_blocks, cluster = r->m->cluster > 1 ? r->m->cluster : 1;
    int64_t ctas = r->m->ctas ? lesser(items * cluster, (int64_t)attn_cuda_limits_of(r->dev)->n_sms * r->m->ctas)
                              : items * cluster;
    ctas -= ctas % cluster;
    return queue(r, r->m->symbol, ctas < cluster ? cluster : ctas, r->m->threads, r->m->shared_bytes, cluster);
}

/* Sort the chunk's slots by kv row, and add the rows they left. */
static attn_status queue_sum(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp;
    const uint64_t most = (uint64_t)(r->p->batch * r->p->seq_k); /* the key of an invalid slot */
    kp->sort_blocks = (int32_t)blocks(kp->n * r->p->topk, KP_MLA_SORT_BLOCK);
    kp->from = -1;
    for (kp->digit = 0; kp->digit == 0 || most >> kp->digit; kp->digit += DIGIT_BITS) {
        attn_status status = queue_step(r, SORT_COUNT, kp->sort_blocks);
        if (!status) status = queue_step(r, SORT_SCAN, 1);
        if (!status) status = queue_step(r, SORT_SCATTER, kp->sort_blocks);
        if (status) return status;
        kp->from = (kp->from + 1) & 1;
    }
    return queue_step(r, SUM, blocks(r->p->batch * r->p->seq_k, WARPS));
}

/* dkv is summed in itself where it is f32, else in the workspace. */
static void set_sum(struct run *r, uint64_t workspace) {
    struct kp_mla_bwd *kp = &r->kp;
    const attn_problem *p = r->p;
    if (!kp->dkv.data || p->seq_k <= 0) {
        kp->dkv = (struct kp_view){0};
        return;
    }
    kp->sum = kp->dkv;
    /* Without queries nothing is added: dkv is zeroed, or left alone. */
    if (r->g.queries > 0 && p->dkv_dtype != ATTN_F32)
        kp->sum = (struct kp_view){.data = workspace + r->g.sum,
                                   .batch = p->seq_k * p->dim_qk,
                                   .row = p->dim_qk,
                                   .column = 1,
                                   .dtype = KP_F32,
                                   .chunk = 16};
    if (kp->sum.data != kp->dkv.data || !attn_core_has(p, ATTN_ACCUMULATE)) kp->steps |= KP_MLA_BWD_ZERO;
    if (attn_core_has(p, ATTN_ACCUMULATE)) kp->steps |= KP_MLA_BWD_ACCUMULATE;
}

static void set_parameters(struct run *r) {
    struct kp_mla_bwd *kp = &r->kp;
    const attn_problem *p = r->p;
    const uint64_t workspace = (uint64_t)(uintptr_t)r->args->workspace;
    attn_cuda_mla_inputs(&kp->in, p, r->args);
    kp->out = attn_cuda_view(p, r->args, ATTN_ROLE_OUT);
    kp->dout = attn_cuda_view(p, r->args, ATTN_ROLE_DOUT);
    kp->lse = attn_cuda_view(p, r->args, ATTN_ROLE_LSE);
    kp->dlse = attn_cuda_view(p, r->args, ATTN_ROLE_DLSE);
    kp->dq = attn_cuda_view(p, r->args, ATTN_ROLE_DQ);
    kp->dkv = attn_cuda_view(p, r->args, ATTN_ROLE_DKV);
    kp->dist = attn_cuda_view(p, r->args, ATTN_ROLE_DIST);
    kp->dsink = attn_cuda_address(r->args->dsink);
    if (r->args->dsink) kp->dsink_head = r->args->dsink->strides[0];
    set_sum(r, workspace);
    kp->rows = workspace + r->g.rows;
    if (kp->dist.data) kp->part_dist = workspace + r->g.part_dist;
    if (r->m->pairs && kp->dkv.data) {
        kp->pairs = workspace + r->g.pairs;
        for (int x = 0; x < 2; x++) kp->keys[x] = workspace + r->g.keys[x], kp->slots[x] = workspace + r->g.slots[x];
        kp->counts = workspace + r->g.counts;
    }
    kp->head_block = r->m->head_block;
    kp->head_blocks = (int32_t)r->g.head_blocks;
    kp->dist_blocks = (int32_t)dist_blocks(r->m, &r->g);
    kp->dist_norm = p->dist_norm;
}

attn_status attn_cuda_mla_bwd_launch(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p, const attn_args *args) {
    struct run r = {.m = m, .dev = dev, .p = p, .args = args, .g = lay_out(m, dev, p)};
    struct kp_mla_bwd *kp = &r.kp;
    if (p->heads_q <= 0) return ATTN_OK;
    set_parameters(&r);
    const int64_t rows = r.g.queries * p->heads_q, keys = kp->dkv.data ? p->batch * p->seq_k : 0;
    attn_status status = queue_step(&r, PREPARE, blocks(rows + (kp->steps & KP_MLA_BWD_ZERO ? keys : 0), WARPS));
    for (; kp->first < r.g.queries && !status; kp->first += kp->n) {
        kp->n = lesser(r.g.chunk, r.g.queries - kp->first);
        if (kp->dq.data || kp->dkv.data || kp->part_dist) status = queue_main(&r);
        if (!status && kp->pairs) status = queue_sum(&r);
    }
    if (!status && keys && kp->sum.data != kp->dkv.data) status = queue_step(&r, FINISH_DKV, blocks(keys, WARPS));
    if (!status && kp->part_dist) status = queue_step(&r, FINISH_DIST, blocks(r.g.queries, WARPS));
    if (!status && kp->dsink) status = queue_step(&r, FINISH_DSINK, p->heads_q);
    return status;
}
