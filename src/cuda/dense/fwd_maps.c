/* SPDX-License-Identifier: MIT
 * Dense forward that reads by tensor maps, on Hopper's wgmma and Blackwell's tcgen05, the host's side: kernel rows from
 * kernels/variants/sdpa_fwd_wgmma_sm90.def and sdpa_fwd_sm100.def, how a problem is dealt to CTAs, and the maps of a
 * launch. The device's side: kernels/sm90/sdpa_fwd/sdpa_fwd.cu, kernels/sm100/sdpa_fwd/sdpa_fwd.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/backend/driver.h"
#include "cuda/dense/sdpa_map.h"
#include "kernels/params/sdpa_sm100.h"
#include "kernels/params/sdpa_sm90.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ what a row is ------------------ */

/* Of a kernel row: rows of a tile of a CTA or a pair, and of a box of q; keys of a tile, of a box of k; CTAs that share
 * a tile; what is estimated of an SM a second, FLOPs of the products and bytes of memory; seconds at the ends of the
 * walk over the keys. */
struct shape {
    const char *symbol;
    int32_t dim, dim_v, rows, box, keys, key_box, ctas;
    uint32_t threads, shared_bytes;
    double flops, bytes, start;
};

static struct shape shape_of(const struct attn_kernel *k) {
    if (k->features == ATTN_CUDA_SM100A) {
        const struct kp_sdpa_fwd_sm100_config *c = k->impl;
        const int32_t ctas = 1 + c->pair;
        return (struct shape){c->symbol, c->dim, c->dim_v, KP_SDPA_FWD_SM100_ROWS * ctas, KP_SDPA_FWD_SM100_ROWS / 2,
                              KP_SDPA_FWD_SM100_KEYS, KP_SDPA_FWD_SM100_KEYS / ctas, ctas, KP_SDPA_FWD_SM100_THREADS,
                              (uint32_t)KP_SDPA_FWD_SM100_SHARED(c->dim, c->q_stages, c->slices, c->pair),
                              /* counted, not timed: 0.75 of the tensor unit, 0.79 of it in a pair, whose timeline is
                               * 0.95 of the other's, half of it at D 64 (exponentials) */
                              8192 * 1.85e9 *
                                  (c->dim == 64 ? 0.5
                                   : c->pair    ? 0.79
                                                : 0.75),
                              4.5e10, 5e-6};
    }
    const struct kp_sdpa_fwd_sm90_config *c = k->impl;
    return (struct shape){c->symbol,
                          c->dim,
                          c->dim_v,
                          KP_SDPA_SM90_ROWS(*c),
                          KP_SDPA_SM90_ROWS(*c),
                          c->keys,
                          c->keys,
                          1,
                          (uint32_t)KP_SDPA_SM90_THREADS(*c),
                          (uint32_t)KP_SDPA_SM90_SHARED(*c),
                          4096 * 1.7e9 * (c->score_mod ? 0.5 : 0.6),
                          2e10,
                          7e-6};
}

/* ------------------------------------------------------------------ what a row refuses ------------- */

static int has_score_mod(const struct attn_kernel *k) {
    return k->features == ATTN_CUDA_SM100A ? ((const struct kp_sdpa_fwd_sm100_config *)k->impl)->score_mod
                                           : ((const struct kp_sdpa_fwd_sm90_config *)k->impl)->score_mod;
}

/* The cap's polynomial has coefficients of about (scale / softcap)^6. */
static int refuse_softcap(const attn_problem *p, struct attn_text *why) {
    const double a = p->softcap > 0 ? fabs(p->scale) / p->softcap : 1;
    const int refused = a < 1e-6 || a > 1e6;
    if (refused) attn_text_add(why, "caps where scale / softcap is 1e-6 to 1e6, which is %g: the sm80 rows do", a);
    return refused;
}

/* Rows for softcap on Blackwell have no code for scores without one. */
static int refuse_uncapped(const struct attn_kernel *k, const attn_problem *p, struct attn_text *why) {
    const int refused = k->features == ATTN_CUDA_SM100A && has_score_mod(k) && !(p->softcap > 0);
    if (refused) attn_text_add(why, "serves softcap alone: the row without _mod does");
    return refused;
}

static int refuse_features(const struct attn_kernel *k, const attn_problem *p, struct attn_text *why) {
    const int modifies = has_score_mod(k), caps_alone = k->features == ATTN_CUDA_SM100A;
    const char *missing = p->softcap > 0 && !modifies             ? "softcap"
                          : p->alibi && (!modifies || caps_alone) ? "ALiBi"
                          : p->mask_dtype                         ? "a mask"
                          : attn_core_has(p, ATTN_PAGED)          ? "pages"
                          : fabs(p->scale) < 1e-30                ? "a scale of 0"
                          : p->dim_qk < 1 || p->dim_v < 1         ? "a head dim of 0"
                                                                  : NULL;
    if (missing) attn_text_add(why, "has no code for %s: the sm80 rows do", missing);
    return missing != NULL || refuse_softcap(p, why);
}

int attn_cuda_sdpa_fwd_refuse_size(int64_t rows, const attn_problem *p, struct attn_text *why) {
    const double tiles = (double)p->batch * (double)p->heads_q * (double)attn_cuda_blocks(p->seq_q, rows);
    if (tiles > INT32_MAX) attn_text_add(why, "is dealt in %.0f tiles, at most %d", tiles, INT32_MAX);
    if (p->total_q > INT32_MAX || p->total_k > INT32_MAX) {
        attn_text_add(why, "counts packed rows in 31 bits");
        return 1;
    }
    return tiles > INT32_MAX;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct shape shape = shape_of(k), *c = &shape;
    return !attn_cuda_sdpa_refuse(p, c->dim, c->dim_v, why) && !refuse_uncapped(k, p, why) &&
           !refuse_features(k, p, why) && !attn_cuda_sdpa_fwd_refuse_size(c->rows, p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, c->shared_bytes, why) && !attn_cuda_refuse_tensor_maps(dev, why) &&
           !attn_cuda_padding_refuse(dev, p, why);
}

int attn_cuda_sdpa_fwd_refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role,
                                       struct attn_text *why) {
    const attn_tensor *tensors[] = {args->q, args->k, args->v};
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    (void)p;
    for (int i = 0; i < 3; i++)
        if (attn_cuda_refuse_axes(tensors[i], why)) {
            *role = roles[i];
            return 1;
        }
    return 0;
}

/* ------------------------------------------------------------------ estimate ----------------------- */

/* Tiles whose lengths differ are dealt in pairs where there are many heads: few of them are read at a time then, and
 * their keys stay in the second-level cache. */
enum { FEW_HEADS = 24 };

double attn_cuda_sdpa_fwd_clocks(const attn_problem *p, const struct attn_cuda_limits *l,
                                 const struct attn_cuda_row_clocks *row) {
    const int64_t n = attn_cuda_blocks(p->seq_q, row->rows), most = 64;
    const int even = p->window_left >= ATTN_CUDA_FAR && p->window_right >= ATTN_CUDA_FAR;
    const double heads = (double)p->batch * (double)p->heads_q;
    const double rounds = row->pairs && !even && heads > FEW_HEADS ? 2 * ceil(ceil((double)n / 2) * heads / l->n_sms)
                                                                   : ceil((double)n * heads / l->n_sms);
    const double shift = attn_core_has(p, ATTN_BOTTOM_RIGHT) ? (double)(p->seq_k - p->seq_q) : 0;
    double sum = 0, longest = 0;
    const int64_t looked_at = attn_cuda_lesser(n, most);
    for (int64_t i = 0; i < looked_at; i++) {
        const double upper = floor((double)i * (double)n / (double)looked_at) * (double)row->rows,
                     lower = fmin(upper + (double)row->rows, (double)p->seq_q) - 1;
        const double j0 = p->window_left < ATTN_CUDA_FAR ? upper + shift - (double)p->window_left : 0;
        const double j1 = p->window_right < ATTN_CUDA_FAR ? lower + shift + (double)p->window_right + 1 : INFINITY;
        const double keys =
            ceil(fmin(j1, (double)p->seq_k) / (double)row->keys) - floor(fmax(j0, 0) / (double)row->keys);
        const double clocks = row->ends + row->step * fmax(keys, 0);
        sum += clocks, longest = fmax(longest, clocks);
    }
    return looked_at > 0 ? fmax(sum / (double)looked_at * rounds, longest) : 1;
}

static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct shape shape = shape_of(k), *c = &shape;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    /* D 64: the tiles of three warpgroups are the measure of those of two. */
    const int small = k->features == ATTN_CUDA_SM90A && c->dim == 64 && c->rows == 128 && !has_score_mod(k);
    const double dims = (double)(p->dim_qk + p->dim_v), rows = small ? 192 : c->rows;
    const double units = fmax(l->n_sms / c->ctas, 1), rate = c->flops * c->ctas; /* that take tiles: CTAs, or pairs */
    const double ratio =
        small ? attn_cuda_sdpa_fwd_clocks(p, l, &(struct attn_cuda_row_clocks){128, 128, 2900, 2150, 0}) /
                    attn_cuda_sdpa_fwd_clocks(p, l, &(struct attn_cuda_row_clocks){192, 128, 3700, 2730, 0})
              : 1;
    const double row_tiles = (double)attn_cuda_blocks(p->seq_q, (int64_t)rows);
    const double tiles = row_tiles * (double)p->batch * (double)p->heads_q, rounds = ceil(tiles / units);
    const double padded =
        amount->flops * (c->dim + c->dim_v) / dims * (p->seq_q > 0 ? row_tiles * rows / (double)p->seq_q : 1);
    const double idle = tiles > 0 ? rounds * units / tiles : 1;
    const double keys =
        (double)attn_cuda_lesser(p->seq_k, p->window_left < ATTN_CUDA_FAR && p->window_right < ATTN_CUDA_FAR
                                               ? p->window_left + p->window_right + (int64_t)rows
                                               : p->seq_k);
    const double whole = ceil(keys / c->keys) * c->keys; /* the last key tile is none the shorter for its keys */
    const double longest = (has_score_mod(k) ? 1.4 : 1) * 2 * rows * whole * (c->dim + c->dim_v) / rate,
                 all = padded * idle / (rate * units);
    /* Pairs take long full rows alone: under a diagonal their 512 rows have more hidden keys and fewer lengths to deal,
     * and of 256 rows each of the two CTAs has a single tile of Q, whose softmax no products hide. */
    const int even = p->window_left >= ATTN_CUDA_FAR && p->window_right >= ATTN_CUDA_FAR;
    const double unfit = c->ctas > 1 && (!even || p->seq_q <= KP_SDPA_FWD_SM100_ROWS) ? 1.2 : 1;
    const double compute = unfit * (longest > all ? longest : all), memory = amount->bytes / (c->bytes * l->n_sms);
    return c->start + (compute > memory ? compute : memory) * (1 + 1e-4 * c->dim) * ratio;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k, (void)dev, (void)p;
    return 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct shape shape = shape_of(k), *c = &shape;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), c->shared_bytes));
    return attn_cuda_padding_prepare(dev, p);
}

/* ------------------------------------------------------------------ launch ------------------------- */

int64_t attn_cuda_sdpa_fwd_deal(int64_t rows, int counts_packed, const attn_problem *p, struct kp_sdpa_fwd_maps *maps) {
    struct kp_sdpa_fwd *kp = &maps->fwd;
    const int64_t row_tiles = attn_cuda_blocks(p->seq_q, rows), heads = p->batch * p->heads_q,
                  group = p->heads_q / p->heads_k, half = attn_cuda_blocks(row_tiles, 2);
    const int even = p->window_left >= ATTN_CUDA_FAR && p->window_right >= ATTN_CUDA_FAR;
    const int64_t section = even ? group : heads, last = (heads - 1) / section;
    const int packed = attn_core_has(p, ATTN_PACKED) && counts_packed;
    maps->pairs = (!even || packed) && heads > FEW_HEADS;
    maps->half_tiles = (int32_t)half;
    maps->by_half = attn_cuda_divisor(half);
    kp->pack = kp->splits = 1;
    kp->row_tiles = (int32_t)row_tiles;
    kp->section = (int32_t)section;
    kp->tile_heads = (int32_t)p->heads_q;
    kp->section_tiles = (int32_t)attn_cuda_lesser(row_tiles * section, INT32_MAX);
    kp->last_section = (int32_t)last;
    kp->last_size = (int32_t)(heads - last * section);
    kp->by_section_tiles = attn_cuda_divisor(kp->section_tiles);
    kp->by_section = attn_cuda_divisor(section);
    kp->by_last = attn_cuda_divisor(kp->last_size);
    kp->by_heads = attn_cuda_divisor(p->heads_q);
    kp->by_group = attn_cuda_divisor(group);
    return kp->work_tiles = heads * (maps->pairs ? half : row_tiles);
}

/* A launch without its tensors: kept by the plan. */
struct prepared_launch {
    struct kp_sdpa_fwd fwd;
    int32_t pairs, half_tiles;
    struct kp_divisor by_half;
    const struct attn_cuda_variant *variant;
    struct attn_cuda_grid grid; /* x 0: nothing to launch */
};

static void write_prepared(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                           void *out) {
    const struct shape shape = shape_of(k), *c = &shape;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    struct prepared_launch *prepared = out;
    memset(prepared, 0, sizeof *prepared);
    struct kp_sdpa_fwd_maps kp = {0};
    attn_cuda_sdpa_numbers(&kp.fwd.in, p);
    prepared->fwd = kp.fwd;
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return;
    attn_cuda_sdpa_fwd_deal(c->rows, c->box == c->rows, p, &kp); /* sm90 counts pairs of packed tiles */
    prepared->fwd = kp.fwd, prepared->pairs = kp.pairs, prepared->half_tiles = kp.half_tiles,
    prepared->by_half = kp.by_half;
    prepared->variant = attn_cuda_variant_of(dev, c->symbol);
    const int64_t tiles = attn_cuda_lesser(prepared->fwd.work_tiles, l->n_sms / c->ctas > 1 ? l->n_sms / c->ctas : 1);
    prepared->grid = (struct attn_cuda_grid){.x = (uint32_t)(tiles * c->ctas),
                                             .y = 1,
                                             .z = 1,
                                             .threads = c->threads,
                                             .cluster = (uint32_t)c->ctas,
                                             .shared_bytes = c->shared_bytes};
}

static attn_status launch_prepared(const struct attn_kernel *k, const struct attn_core_device *dev,
                                   const attn_problem *p, const void *from, const attn_args *args) {
    const struct shape shape = shape_of(k), *c = &shape;
    const struct prepared_launch *prepared = from;
    if (prepared->grid.x == 0 && !attn_core_has(p, ATTN_FILL_PADDING)) return ATTN_OK;
    struct kp_sdpa_fwd_maps kp = {.fwd = prepared->fwd,
                                  .pairs = prepared->pairs,
                                  .half_tiles = prepared->half_tiles,
                                  .by_half = prepared->by_half};
    struct kp_sdpa *in = &kp.fwd.in;
    const int packed = attn_core_has(p, ATTN_PACKED);
    const int64_t rows_q = packed ? p->total_q : p->seq_q, rows_k = packed ? p->total_k : p->seq_k,
                  batch = packed ? 1 : p->batch;
    attn_cuda_sdpa_tensors(in, p, args);
    attn_cuda_sdpa_results(&kp.fwd, p, args);
    TRY(attn_cuda_padding(dev, p, &kp.fwd, args->stream));
    if (prepared->grid.x == 0) return ATTN_OK;
    TRY(attn_cuda_sdpa_map(dev, "q", &in->q, p->dim_qk, rows_q, p->heads_q, batch, (uint32_t)c->box, &kp.q));
    TRY(attn_cuda_sdpa_map(dev, "k", &in->k, p->dim_qk, rows_k, p->heads_k, batch, (uint32_t)c->key_box, &kp.k));
    TRY(attn_cuda_sdpa_map(dev, "v", &in->v, p->dim_v, rows_k, p->heads_k, batch, (uint32_t)c->key_box, &kp.v));
    return attn_cuda_launch(dev, prepared->variant, &prepared->grid, &kp, sizeof kp, args->stream);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct prepared_launch prepared;
    write_prepared(k, dev, p, &prepared);
    return launch_prepared(k, dev, p, &prepared, args);
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_fwd_sm90_config config_##tail = {.symbol = "attn_sdpa_fwd_wgmma_sm90_" #tail,          \
                                                                 __VA_ARGS__};
#include "kernels/variants/sdpa_fwd_wgmma_sm90.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_fwd_sm100_config config_sm100_##tail = {.symbol = "attn_sdpa_fwd_sm100_" #tail,        \
                                                                        __VA_ARGS__};
#include "kernels/variants/sdpa_fwd_sm100.def"
#undef VARIANT

#define ROW(stem, tail, architecture, words, lacks, f32, feature, config, dtype_of_line)                               \
    {.name = "attn_sdpa_fwd_" stem #tail,                                                                              \
     .arch = architecture,                                                                                             \
     .summary = words "D and DV to the numbers in the name; " lacks "no mask, pages",                                  \
     .op = ATTN_OP_SDPA_FWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .out_f32 = f32,                                                                                                   \
     .max_logits = 1,                                                                                                  \
     .alignment_bytes = 16,                                                                                            \
     .refuses_strides = attn_cuda_sdpa_fwd_refuses_strides,                                                            \
     .features = feature,                                                                                              \
     .impl = &config,                                                                                                  \
     .workspace = workspace,                                                                                           \
     ATTN_CUDA_PREPARED},
const struct attn_kernel attn_cuda_sdpa_fwd_maps_rows[] = {
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW("sm100_", tail, "sm100", "simulated, not yet run on silicon; ", "softcap: _mod rows; no ALiBi; ", 0,           \
        ATTN_CUDA_SM100A, config_sm100_##tail, dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm100.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW("wgmma_sm90_", tail, "sm90", "wgmma; ", "softcap, ALiBi: _mod rows; ", 1, ATTN_CUDA_SM90A, config_##tail,      \
        dtype_of_line)
#include "kernels/variants/sdpa_fwd_wgmma_sm90.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_fwd_maps_rows =
    sizeof attn_cuda_sdpa_fwd_maps_rows / sizeof attn_cuda_sdpa_fwd_maps_rows[0];
