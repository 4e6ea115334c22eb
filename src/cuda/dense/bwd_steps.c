/* SPDX-License-Identifier: MIT
 * See bwd_steps.h. The device's side: kernels/smxx/sdpa_bwd_prepare.cu, sdpa_bwd_convert.cu, sdpa_bwd_sums.cu,
 * kernels/sm80/sdpa_bwd_bias.cu. */
#include "cuda/dense/bwd_steps.h"

#include "core/problem.h"
#include "cuda/dense/dout.h"

#include <inttypes.h>

static const char sums_symbol[] = "attn_sdpa_bwd_smxx_sums";

/* What differs with the type: f16 has a factor for dS, made of bounds that prepare finds, undone by convert too. */
struct steps_of_type {
    const char *prepare, *convert[2], *early_convert, *bias; /* convert: by attn_cuda_bwd_main.fours */
    size_t params_bytes;                                     /* of prepare, main and convert */
    int scaled;
};
static const struct steps_of_type *steps_of(const attn_problem *p) {
    static const struct steps_of_type bf16 = {
        "attn_sdpa_bwd_smxx_prepare", {"attn_sdpa_bwd_smxx_convert", "attn_sdpa_bwd_smxx_convert_fours"},
        "attn_sdpa_bwd_sm90_convert", "attn_sdpa_bwd_bias_sm80_bf16",
        sizeof(struct kp_sdpa_bwd),   0};
    static const struct steps_of_type f16 = {
        "attn_sdpa_bwd_smxx_prepare_f16",  {"attn_sdpa_bwd_smxx_convert_f16", "attn_sdpa_bwd_smxx_convert_fours_f16"},
        "attn_sdpa_bwd_sm90_convert_f16",  "attn_sdpa_bwd_bias_sm80_f16",
        sizeof(struct kp_sdpa_bwd_scaled), 1};
    return p->dtype == ATTN_F16 ? &f16 : &bf16;
}

static int begins_early(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m) {
    return m->early && attn_cuda_limits_of(dev)->early_launch;
}
static const char *convert_of(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                              const attn_problem *p) {
    return begins_early(dev, m) ? steps_of(p)->early_convert : steps_of(p)->convert[m->fours];
}

static int wants_bias(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_MASK | ATTN_GRAD_ALIBI); }
static int wants_sums(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_SINK | ATTN_GRAD_ALIBI); }

static int64_t take(int64_t *end, int64_t numbers) {
    const int64_t offset = *end;
    *end += attn_cuda_blocks(numbers, 64) * 64 * 4;
    return offset;
}

static struct attn_cuda_bwd_geometry lay_out(const struct attn_cuda_bwd_main *c, const struct attn_cuda_limits *l,
                                             const attn_problem *p) {
    struct attn_cuda_bwd_geometry g = {0};
    if (p->batch <= 0 || p->heads_q <= 0) return g;
    const int64_t heads = p->batch * p->heads_k, group = p->heads_q / p->heads_k;
    g.key_tiles = attn_cuda_blocks(p->seq_k, c->keys);
    g.row_tiles = attn_cuda_blocks(p->seq_q, c->rows);
    g.bias_tiles = attn_cuda_blocks(p->seq_q, KP_SDPA_BWD_BIAS_TILE);
    g.work_tiles = heads * g.key_tiles;
    /* Packed sequences begin at multiples of the tile height, see first_stat_row() of the device's side. */
    g.stat_rows = attn_core_has(p, ATTN_PACKED) ? (attn_cuda_blocks(p->total_q, c->rows) + p->batch + 1) * c->rows
                                                : p->batch * g.row_tiles * c->rows;
    /* Heads dealt together share half of the second-level cache; in order, all: a CTA waits for the key tile before. */
    const int64_t bytes = group * p->seq_q * (2 * (p->dim_qk + p->dim_v) + 4 * c->dim) + 1,
                  fit = l->l2_bytes / 2 / bytes;
    g.section = c->ordered ? attn_cuda_lesser(heads, INT32_MAX) : attn_cuda_section(heads, 1, fit);

    const int64_t rows = p->heads_q * g.stat_rows;
    int64_t *end = &g.offset.end;
    g.offset.lse = take(end, rows);
    g.offset.shift = take(end, rows);
    g.offset.share = take(end, c->full ? rows : 0);
    g.offset.dsink = take(end, attn_core_has(p, ATTN_GRAD_SINK) ? rows : 0);
    g.offset.dalibi = take(end, attn_core_has(p, ATTN_GRAD_ALIBI) ? p->batch * p->heads_q * g.bias_tiles : 0);
    g.offset.turns_bytes = c->ordered ? (rows / c->rows + 1) * 4 : 0;
    g.offset.turns = take(end, g.offset.turns_bytes / 4);
    g.offset.dq = take(end, rows * c->dim);
    if (!steps_of(p)->scaled) return g;
    g.bound_tiles = attn_cuda_blocks(p->seq_k, c->rows);
    g.offset.row_bounds = take(end, 2 * p->batch * p->heads_q * g.row_tiles);
    g.offset.key_bounds = take(end, heads * g.bound_tiles);
    g.offset.undo = take(end, heads);
    return g;
}

int attn_cuda_bwd_refuse(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m, const attn_problem *p,
                         struct attn_text *why) {
    if (attn_cuda_sdpa_refuse(p, m->dim, m->dim_v, why) ||
        attn_cuda_refuse_image(dev, m->symbol, m->shared_bytes, why) ||
        attn_cuda_refuse_image(dev, steps_of(p)->prepare, 0, why) ||
        attn_cuda_refuse_image(dev, convert_of(dev, m, p), 0, why) || attn_cuda_padding_refuse(dev, p, why) ||
        attn_cuda_dout_refuse(dev, why) || (wants_sums(p) && attn_cuda_refuse_image(dev, sums_symbol, 0, why)) ||
        (wants_bias(p) && attn_cuda_refuse_image(dev, steps_of(p)->bias, KP_SDPA_BWD_BIAS_SHARED_BYTES, why)))
        return 1;
    /* below 2^28 each, and rows of the workspace are far fewer than 2^62 */
    const int64_t key_tiles = p->batch * p->heads_k * attn_cuda_blocks(p->seq_k, m->keys);
    const double numbers = (double)p->batch * (double)p->heads_q * (double)p->seq_q * 1024;
    if (key_tiles <= INT32_MAX / 2 && numbers <= 1e17) return 0; /* a pair of CTAs each */
    attn_text_add(why, "%" PRId64 " key tiles or a workspace of %g numbers are too many", key_tiles, numbers);
    return 1;
}

static uint64_t dout_offset(const struct attn_cuda_bwd_geometry *g) { return (uint64_t)g->offset.end; }

uint64_t attn_cuda_bwd_workspace(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                 const attn_problem *p) {
    const struct attn_cuda_bwd_geometry g = lay_out(m, attn_cuda_limits_of(dev), p);
    return dout_offset(&g) + ATTN_CORE_DOUT_BYTES;
}

attn_status attn_cuda_bwd_prepare(struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                  const attn_problem *p) {
    const struct {
        const char *symbol;
        int64_t bytes;
        int wanted;
    } images[] = {
        {m->symbol, m->shared_bytes, 1},
        {steps_of(p)->prepare, 0, 1},
        {convert_of(dev, m, p), 0, 1},
        {sums_symbol, 1024, wants_sums(p)},
        {steps_of(p)->bias, KP_SDPA_BWD_BIAS_SHARED_BYTES, wants_bias(p)},
    };
    attn_status status = attn_cuda_padding_prepare(dev, p);
    if (!status) status = attn_cuda_dout_prepare(dev);
    for (size_t i = 0; i < sizeof images / sizeof *images && !status; i++)
        if (images[i].wanted)
            status = attn_cuda_variant_load(dev, attn_cuda_variant_find(images[i].symbol), (uint32_t)images[i].bytes);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

static void set_outputs(struct kp_sdpa_bwd *kp, const struct attn_cuda_bwd_geometry *g, const attn_problem *p,
                        const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    attn_cuda_sdpa_gradients(kp, p, args);
    kp->stat_lse = base + (uint64_t)g->offset.lse;
    kp->stat_shift = base + (uint64_t)g->offset.shift;
    kp->dsink_row = kp->dsink ? base + (uint64_t)g->offset.dsink : 0;
    kp->dalibi_tile = kp->dalibi ? base + (uint64_t)g->offset.dalibi : 0;
    kp->dq_sum = kp->dq.data ? base + (uint64_t)g->offset.dq : 0;
}

static void set_workspace(struct kp_sdpa_bwd *kp, const struct attn_cuda_bwd_geometry *g,
                          const struct attn_cuda_bwd_main *m, const attn_problem *p, const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    kp->stat_g = m->full ? base + (uint64_t)g->offset.share : 0;
    kp->turns = m->ordered && kp->dq_sum && g->row_tiles > 0 ? base + (uint64_t)g->offset.turns : 0;
    if (kp->dmask.data && p->seq_q > 0 && p->seq_k > 0)
        kp->mask_tiles = (kp->dmask.batch ? p->batch : 1) * (kp->dmask.head ? p->heads_q : 1) *
                         (kp->dmask.row ? g->bias_tiles : 1) *
                         (kp->dmask.column ? attn_cuda_blocks(p->seq_k, KP_SDPA_BWD_BIAS_TILE) : 1);
    kp->alibi_tiles = kp->dalibi ? p->batch * p->heads_q * g->bias_tiles : 0;
}

static void set_bounds(struct kp_sdpa_bwd_scaled *kp, const struct attn_cuda_bwd_geometry *g, const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    kp->row_bounds = base + (uint64_t)g->offset.row_bounds;
    kp->key_bounds = base + (uint64_t)g->offset.key_bounds;
    kp->undo = base + (uint64_t)g->offset.undo;
}

static void set_geometry(struct kp_sdpa_bwd *kp, const struct attn_cuda_bwd_geometry *g,
                         const struct attn_cuda_bwd_main *m) {
    kp->stat_rows = g->stat_rows;
    kp->rows = m->rows;
    kp->dim = m->dim;
    kp->stat_log2 = !m->full;
    kp->row_warps = m->row_warps;
    kp->dim_warps = m->dim_warps;
    kp->key_tiles = (int32_t)g->key_tiles;
    kp->row_tiles = (int32_t)g->row_tiles;
    kp->bias_tiles = (int32_t)g->bias_tiles;
    kp->section = (int32_t)g->section;
}

static uint32_t grid_of(int64_t ctas) { return (uint32_t)attn_cuda_lesser(ctas < 0 ? 0 : ctas, INT32_MAX); }

static struct attn_cuda_work step(const struct attn_core_device *dev, const char *symbol, size_t params_bytes,
                                  int64_t ctas, int64_t threads, int64_t shared_bytes) {
    return (struct attn_cuda_work){
        .variant = attn_cuda_variant_of(dev, symbol),
        .params_bytes = params_bytes,
        .grid = {
            .x = grid_of(ctas), .y = 1, .z = 1, .threads = (uint32_t)threads, .shared_bytes = (uint32_t)shared_bytes}};
}

void attn_cuda_bwd_write_prepared(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                  const attn_problem *p, struct attn_cuda_bwd_prepared *prepared) {
    const struct attn_cuda_bwd_geometry g = lay_out(m, attn_cuda_limits_of(dev), p);
    const struct steps_of_type *type = steps_of(p);
    const int64_t row_tiles = p->batch * p->heads_q * g.row_tiles, key_tiles = p->batch * p->heads_k * g.bound_tiles;
    const size_t bytes = sizeof prepared->kp.bwd;
    struct attn_cuda_work *work = prepared->work;
    prepared->g = g;
    attn_cuda_sdpa_numbers(&prepared->kp.bwd.in, p);
    set_geometry(&prepared->kp.bwd, &g, m);
    prepared->kp.bound_tiles = (int32_t)g.bound_tiles;
    work[ATTN_CUDA_BWD_PREPARE] = step(dev, type->prepare, type->params_bytes, row_tiles + key_tiles, 256, 0);
    const int32_t ctas = m->ctas > 1 ? m->ctas : 1;
    work[ATTN_CUDA_BWD_MAIN] =
        step(dev, m->symbol, type->params_bytes, g.work_tiles * ctas, m->threads, m->shared_bytes);
    work[ATTN_CUDA_BWD_MAIN].grid.cluster = (uint32_t)ctas;
    work[ATTN_CUDA_BWD_MAIN].grid.early = (uint8_t)begins_early(dev, m);
    work[ATTN_CUDA_BWD_CONVERT] = step(dev, convert_of(dev, m, p), type->params_bytes, row_tiles, 256, 0);
    work[ATTN_CUDA_BWD_CONVERT].grid.early = (uint8_t)begins_early(dev, m);
    if (wants_bias(p)) work[ATTN_CUDA_BWD_BIAS] = step(dev, type->bias, bytes, 0, 128, KP_SDPA_BWD_BIAS_SHARED_BYTES);
    if (wants_sums(p)) work[ATTN_CUDA_BWD_SUMS] = step(dev, sums_symbol, bytes, 0, 256, 1024);
}

attn_status attn_cuda_bwd_launch(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                 const attn_problem *p, const struct attn_cuda_bwd_prepared *prepared,
                                 const attn_args *args, const struct attn_cuda_bwd_extra *extra) {
    const struct attn_cuda_bwd_geometry *g = &prepared->g;
    struct kp_sdpa_bwd_scaled all = prepared->kp;
    struct kp_sdpa_bwd *kp = &all.bwd;
    struct attn_cuda_work work[ATTN_CUDA_BWD_STEPS];
    int32_t n = 0;
    struct attn_core_dout room;
    if (p->heads_q <= 0) return ATTN_OK;
    attn_status status = attn_cuda_dout(dev, dout_offset(g), &args, &room);
    if (status) return status;
    attn_cuda_sdpa_tensors(&kp->in, p, args);
    set_outputs(kp, g, p, args);
    set_workspace(kp, g, m, p, args);
    if (steps_of(p)->scaled) set_bounds(&all, g, args);
    status = attn_cuda_padding(dev, p, kp, args->stream);
    if (status) return status;
    const int wanted[ATTN_CUDA_BWD_STEPS] = {[ATTN_CUDA_BWD_PREPARE] = 1,
                                             [ATTN_CUDA_BWD_MAIN] = kp->dq.data || kp->dk.data || kp->dv.data,
                                             [ATTN_CUDA_BWD_CONVERT] = kp->dq.data != 0,
                                             [ATTN_CUDA_BWD_BIAS] = wants_bias(p),
                                             [ATTN_CUDA_BWD_SUMS] = wants_sums(p)};
    for (int32_t i = 0; i < ATTN_CUDA_BWD_STEPS; i++) {
        if (!wanted[i]) continue;
        work[n] = prepared->work[i];
        work[n].params = &all;
        if (i == ATTN_CUDA_BWD_BIAS) work[n].grid.x = grid_of(kp->mask_tiles + kp->alibi_tiles);
        if (i == ATTN_CUDA_BWD_SUMS)
            work[n].grid.x = grid_of(p->heads_q * (kp->dalibi && kp->dalibi_per_batch ? 1 + p->batch : 2));
        if (i == ATTN_CUDA_BWD_MAIN && extra && work[n].grid.x > 0) {
            status = extra->write(dev, m, p, &all, extra->room);
            if (status) return status;
            work[n].params = extra->room;
            work[n].params_bytes = extra->bytes;
        }
        n += work[n].grid.x > 0;
    }
    return attn_cuda_launch_all(dev, work, n, args->stream);
}
