/* SPDX-License-Identifier: MIT
 * Dense forward on CUDA, the host's side: kernel rows from kernels/variants/sdpa_fwd_sm80.def and sdpa_fwd_sm90.def,
 * what each refuses, how a problem is dealt to CTAs, and the parameters of a launch. The device's side:
 * kernels/sm80/sdpa_fwd.cu. */
#include "core/problem.h"
#include "cuda/dense/sdpa.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_LENGTH = ATTN_CUDA_MAX_LENGTH, FAR = ATTN_CUDA_FAR };
enum { ALL = 1, PAGES = 2 }; /* kp_sdpa_fwd_config.full: every feature; pages alone */

/* How a problem is dealt to CTAs: a function of problem and device alone, so that workspace and launch agree. */
struct geometry {
    int64_t pack, row_tiles, heads, splits, section, work_tiles; /* heads: tile heads of all batch entries */
    int64_t rows, part_row;                                      /* of a split's results */
};

static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

static int ctas_that_fit(const struct kp_sdpa_fwd_config *c, const struct attn_cuda_limits *l, int64_t bytes) {
    const int64_t fit = l->shared_per_sm / (bytes + 1024); /* the system keeps 1 KiB of each CTA's */
    return fit < 1 ? 1 : fit < c->ctas ? (int)fit : c->ctas;
}
static int ctas_per_sm(const struct kp_sdpa_fwd_config *c, const struct attn_cuda_limits *l) {
    return ctas_that_fit(c, l, KP_SDPA_SHARED_BYTES(*c));
}
static int64_t shared_bytes(const struct kp_sdpa_fwd_config *c, int64_t pitch) {
    return KP_SDPA_SHARED_BYTES(*c) + 16 * c->m_tiles * c->row_warps * c->col_warps * pitch;
}

/* Bytes of a row of a mask's cells in shared memory: with what it is padded, eight rows lie in different banks.
 * 0 where there is no mask, where its place would cost a CTA of the multiprocessor, or where rows have cells of several
 * heads. */
static int64_t mask_pitch(const struct kp_sdpa_fwd_config *c, const struct attn_cuda_limits *l, const attn_problem *p,
                          int64_t pack) {
    const int64_t bytes = p->mask_dtype == ATTN_BOOL  ? 80
                          : p->mask_dtype == ATTN_F32 ? 4 * c->keys + 32
                                                      : 2 * c->keys + 16;
    const int64_t all = shared_bytes(c, bytes);
    if (c->full != ALL || !p->mask_dtype || pack != 1 || all > l->shared_per_block) return 0;
    return ctas_that_fit(c, l, all) == ctas_per_sm(c, l) ? bytes : 0;
}

/* Key tiles that the longest row tile walks, at most. */
static int64_t key_tiles(const struct kp_sdpa_fwd_config *c, const attn_problem *p, int64_t pack) {
    int64_t keys = p->seq_k, queries = KP_SDPA_ROWS(*c) / pack + 1;
    if (p->window_left < FAR && p->window_right < FAR && p->window_left + p->window_right + queries < keys)
        keys = p->window_left + p->window_right + queries;
    if (!attn_core_has(p, ATTN_BOTTOM_RIGHT) && p->window_right < FAR)
        keys = attn_cuda_lesser(keys, p->seq_q + p->window_right);
    return keys <= 0 ? 1 : blocks(keys, c->keys) + 1;
}

/* Few queries of sequences whose lengths only the device knows: shares of SHARE_TILES key tiles or more, the same for
 * all sequences (find_work of sdpa_fwd_work.h): CTAs that become free take what is left evenly. */
enum { SHARE_TILES = 8, SHARES_PER_SM = 16 };
static int lengths_differ(const attn_problem *p) {
    return p->batch > 1 && (attn_core_has(p, ATTN_SEQLENS_K) || attn_core_has(p, ATTN_PACKED)) && p->window_left >= FAR;
}
static int64_t split_lengths(int64_t key_tiles, int64_t tiles, int64_t n_sms) {
    const int64_t shares = attn_cuda_lesser(SHARES_PER_SM * n_sms / tiles, key_tiles / SHARE_TILES);
    return shares < 1 ? 1 : attn_cuda_lesser(shares, KP_SDPA_MAX_SPLITS);
}

/* Seconds: a key tile of a CTA that has a multiprocessor to itself, at 0.7 of the rate of full ones, low tiles no
 * faster than high ones (their warps wait as long for each other); the merge's traffic. Measured on an H200. */
static double peak_of(const struct kp_sdpa_fwd_config *c) { return 2048 * 1.7e9 * (c->full == ALL ? 0.35 : 0.6); }
static double tile_seconds(const struct kp_sdpa_fwd_config *c) {
    const int rows = KP_SDPA_ROWS(*c) > 128 ? KP_SDPA_ROWS(*c) : 128;
    return 2.0 * rows * c->keys * (c->dim + c->dim_v) / (0.7 * peak_of(c));
}
static double merge_seconds(const attn_problem *p, double splits) {
    const double rows = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    return splits * rows * 4 * ((double)p->dim_v + 2) / 1.4e12;
}

/* The number of splits with the shortest critical path, in key tiles: rounds of CTAs times (tiles of a split + start
 * and end of a CTA), plus the merge, whose traffic grows with the splits and, of many rows, is most of it. The
 * few-query rows wait for memory, and CTAs side by side on a multiprocessor share its rate: there a round has one CTA
 * of each, but on pages two, for the time that it takes to find them. */
static int64_t choose_splits(const struct kp_sdpa_fwd_config *c, const attn_problem *p, int64_t tiles, int64_t pack,
                             int64_t n_sms, int64_t ctas) {
    const int64_t capacity = n_sms * (c->key_warps > 1 && c->full != PAGES ? 1 : ctas);
    const int64_t n = key_tiles(c, p, pack),
                  most = attn_cuda_lesser(attn_cuda_lesser(n / 2, KP_SDPA_MAX_SPLITS), 2 * capacity / tiles + 1);
    int64_t best = 1, rounds = 1, room = capacity - tiles; /* of CTAs; room: what the last one has left */
    const double share = 0.1 + (c->key_warps > 1 ? 0 : merge_seconds(p, 1) / tile_seconds(c));
    double least = (double)(n + 2);
    if (c->key_warps > 1 && lengths_differ(p)) return split_lengths(n, tiles, n_sms);
    if (tiles >= capacity) return 1;
    for (int64_t s = 2; s <= most; s++) { /* of every execution: one division, of 32 bits (n < 2^28) */
        room -= tiles;
        if (room < 0) room += capacity, rounds++;
        const uint32_t each = ((uint32_t)n + (uint32_t)s - 1) / (uint32_t)s;
        const double cost = (double)(rounds * (each + 2)) + 3 + share * (double)s;
        if (cost < least) least = cost, best = s;
    }
    return best;
}

static struct geometry lay_out(const struct kp_sdpa_fwd_config *c, const struct attn_cuda_limits *l,
                               const attn_problem *p) {
    struct geometry g = {.pack = 1, .splits = 1};
    const int64_t tile = KP_SDPA_ROWS(*c), group = p->heads_q / p->heads_k;
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    if (p->seq_q <= MAX_LENGTH / group && blocks(p->seq_q * group, tile) < group * blocks(p->seq_q, tile))
        g.pack = group;
    g.row_tiles = blocks(p->seq_q * g.pack, tile);
    g.heads = p->batch * (g.pack == 1 ? p->heads_q : p->heads_k);
    g.splits = choose_splits(c, p, g.row_tiles * g.heads, g.pack, l->n_sms, ctas_per_sm(c, l));
    /* Heads dealt together share half of the second-level cache; those of a group share their keys. */
    const int64_t bytes = 2 * p->seq_k * (p->dim_qk + p->dim_v) + 1, fit = l->l2_bytes / 2 / bytes;
    g.section = attn_cuda_section(g.heads, g.pack == 1 ? group : 1, fit);
    g.work_tiles = g.row_tiles * g.splits * g.heads;
    g.rows = p->batch * p->heads_q * p->seq_q;
    g.part_row = (p->dim_v + 3) / 4 * 4;
    return g;
}

/* ------------------------------------------------------------------ what a row refuses ------------- */

static int refuse_features(const struct kp_sdpa_fwd_config *c, const attn_problem *p, struct attn_text *why) {
    const double unit = fabs(p->scale);
    const int paged = attn_core_has(p, ATTN_PAGED);
    const char *missing = p->softcap > 0               ? "softcap"
                          : p->alibi                   ? "ALiBi"
                          : p->mask_dtype              ? "a mask"
                          : paged && c->full != PAGES  ? "pages"
                          : !paged && c->full == PAGES ? "keys that are not on pages"
                          : unit < 1e-30               ? "a scale of 0"
                                                       : NULL;
    if (c->full == ALL) return 0;
    if (missing) attn_text_add(why, "has no code for %s: the _full variants do", missing);
    if (missing || !paged || (p->page_size & (p->page_size - 1)) == 0) return missing != NULL;
    attn_text_add(why, "page_size is %" PRId64 ", no power of two", p->page_size);
    return 1;
}

/* Work tiles are counted in 31 bits. Heads in a common tile only make them fewer, and key splits end long before. */
static int refuse_size(const struct kp_sdpa_fwd_config *c, const attn_problem *p, struct attn_text *why) {
    const double work_tiles = (double)p->batch * (double)p->heads_q * (double)blocks(p->seq_q, KP_SDPA_ROWS(*c));
    if (work_tiles > INT32_MAX) attn_text_add(why, "is dealt in %.0f tiles, at most %d", work_tiles, INT32_MAX);
    return work_tiles > INT32_MAX;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_sdpa_fwd_config *c = k->impl;
    return !attn_cuda_sdpa_refuse(p, c->dim, c->dim_v, why) && !refuse_features(c, p, why) && !refuse_size(c, p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_SDPA_SHARED_BYTES(*c), why) &&
           !attn_cuda_refuse_image(dev, attn_cuda_sdpa_merge_symbol(dev, c->dtype), 0, why) &&
           !attn_cuda_padding_refuse(dev, p, why);
}

/* ------------------------------------------------------------------ estimate, workspace ------------ */

/* Rates are fractions of the 1024 multiply-adds a cycle of mma.sync at 1.7 GHz, the padding to the variant's dims
 * counted; no kernel is faster than its longest CTA. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_sdpa_fwd_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct geometry g = lay_out(c, l, p);
    const double rows = (double)p->seq_q * (double)(p->heads_k > 0 ? p->heads_q / p->heads_k : 1);
    const int few = c->key_warps > 1;
    const double dims = (double)(p->dim_qk + p->dim_v), padding = dims > 0 ? (c->dim + c->dim_v) / dims : 1;
    const double all = amount->flops * padding / (peak_of(c) * l->n_sms),
                 one = few && rows <= KP_SDPA_ROWS(*c) ? 0 /* waits for memory */
                                                       : (double)blocks(key_tiles(c, p, g.pack) - 1, g.splits) *
                                                             tile_seconds(c) * padding * (c->full == ALL ? 1.2 : 1);
    const double compute = all > one ? all : one, memory = amount->bytes / (2e10 * l->n_sms);
    /* Warps along the keys read a tile's keys once and pay off where one tile holds all queries of a key head. Tall
     * tiles have half the traffic of the others. */
    const double fit = few ? (rows <= KP_SDPA_ROWS(*c) ? 0.9 : 4) : c->row_warps > 4 && rows > 64 ? 0.95 : 1;
    const double early = c->early && l->early_launch && g.splits > 1 ? 0.98 : 1; /* the merge stands by */
    const double merge = g.splits > 1 ? 2e-6 + merge_seconds(p, (double)g.splits) : 0;
    return 4e-6 + (compute > memory ? compute : memory) * (1 + 1e-4 * c->dim) * fit * early + merge;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k->impl, attn_cuda_limits_of(dev), p);
    return g.splits > 1 ? (uint64_t)(g.splits * g.rows * (g.part_row + 2)) * sizeof(float) : 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_sdpa_fwd_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct geometry g = lay_out(c, l, p);
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol),
                                                (uint32_t)shared_bytes(c, mask_pitch(c, l, p, g.pack)));
    if (!status) status = attn_cuda_padding_prepare(dev, p);
    if (status || g.splits <= 1) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_sdpa_merge_symbol(dev, c->dtype)), 0);
}

/* ------------------------------------------------------------------ launch ------------------------- */

static void set_geometry(struct kp_sdpa_fwd *kp, const struct geometry *g) {
    const int32_t heads_q = kp->in.heads_q, heads_k = kp->in.heads_k;
    const int64_t tile_heads = g->pack == 1 ? heads_q : heads_k, last = (g->heads - 1) / g->section;
    kp->work_tiles = g->work_tiles;
    kp->pack = (int32_t)g->pack;
    kp->row_tiles = (int32_t)g->row_tiles;
    kp->splits = (int32_t)g->splits;
    kp->section = (int32_t)g->section;
    kp->part_row = (int32_t)g->part_row;
    kp->tile_heads = (int32_t)tile_heads;
    kp->section_tiles = (int32_t)(g->row_tiles * g->splits * g->section);
    kp->last_section = (int32_t)last;
    kp->last_size = (int32_t)(g->heads - last * g->section);
    kp->by_section_tiles = attn_cuda_divisor(kp->section_tiles);
    kp->by_section = attn_cuda_divisor(g->section);
    kp->by_last = attn_cuda_divisor(kp->last_size);
    kp->by_splits = attn_cuda_divisor(g->splits);
    kp->by_heads = attn_cuda_divisor(tile_heads);
    kp->by_pack = attn_cuda_divisor(g->pack);
    kp->by_group = attn_cuda_divisor(g->pack == 1 ? heads_q / heads_k : 1);
}

/* A launch without its tensors: kept by the plan. The parameters' part_* are offsets into the workspace. */
struct prepared_launch {
    struct kp_sdpa_fwd kp;
    struct attn_cuda_work work[2];
    int32_t n; /* of work */
};

static void write_prepared(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                           void *out) {
    const struct kp_sdpa_fwd_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    struct prepared_launch *prepared = out;
    struct kp_sdpa_fwd *kp = &prepared->kp;
    attn_cuda_sdpa_numbers(&kp->in, p);
    if (g.work_tiles == 0) return;
    set_geometry(kp, &g);
    const struct attn_cuda_grid grid = {.x = (uint32_t)g.work_tiles,
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)KP_SDPA_THREADS(*c),
                                        .shared_bytes = (uint32_t)shared_bytes(c, 0)};
    prepared->work[0] = (struct attn_cuda_work){attn_cuda_variant_of(dev, c->symbol), NULL, sizeof *kp, grid};
    prepared->n = 1;
    if (g.splits <= 1) return;
    kp->part_m = (uint64_t)(g.splits * g.rows * g.part_row) * sizeof(float);
    kp->part_l = kp->part_m + (uint64_t)(g.splits * g.rows) * sizeof(float);
    prepared->work[1] = attn_cuda_sdpa_merge(dev, c->dtype, kp);
    prepared->n = 2;
}

static attn_status launch_prepared(const struct attn_kernel *k, const struct attn_core_device *dev,
                                   const attn_problem *p, const void *from, const attn_args *args) {
    const struct prepared_launch *prepared = from;
    if (prepared->n == 0 && !attn_core_has(p, ATTN_FILL_PADDING)) return ATTN_OK;
    struct kp_sdpa_fwd kp = prepared->kp;
    struct attn_cuda_work work[2];
    attn_cuda_sdpa_tensors(&kp.in, p, args);
    attn_cuda_sdpa_results(&kp, p, args);
    const attn_status padded = attn_cuda_padding(dev, p, &kp, args->stream);
    if (padded || prepared->n == 0) return padded;
    if (prepared->n > 1) {
        kp.part_o = (uint64_t)(uintptr_t)args->workspace;
        kp.part_m += kp.part_o;
        kp.part_l += kp.part_o;
    }
    for (int32_t i = 0; i < prepared->n; i++) {
        work[i] = prepared->work[i];
        work[i].params = &kp;
    }
    if (kp.in.mask.column == 1 && kp.in.mask.chunk == 16) { /* its strides are known only now */
        const struct kp_sdpa_fwd_config *c = k->impl;
        kp.mask_pitch = (int32_t)mask_pitch(c, attn_cuda_limits_of(dev), p, kp.pack);
        work[0].grid.shared_bytes = (uint32_t)shared_bytes(c, kp.mask_pitch);
    }
    return attn_cuda_launch_all(dev, work, prepared->n, args->stream);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct prepared_launch prepared = {0};
    write_prepared(k, dev, p, &prepared);
    return launch_prepared(k, dev, p, &prepared, args);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* Two passes over the table of variants: the configurations, then the rows that point at them. A line's first key is
 * .dtype, a member of both. */
#define CONFIG(chip, tail, ...)                                                                                        \
    static const struct kp_sdpa_fwd_config config_##chip##_##tail = {.symbol = "attn_sdpa_fwd_" #chip "_" #tail,       \
                                                                     __VA_ARGS__};
#define VARIANT(tail, source, ...) CONFIG(sm80, tail, __VA_ARGS__)
#include "kernels/variants/sdpa_fwd_sm80.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm90, tail, __VA_ARGS__)
#include "kernels/variants/sdpa_fwd_sm90.def"
#undef VARIANT

#define ROW(chip, tail, feature, dtype_of_line)                                                                        \
    {.name = "attn_sdpa_fwd_" #chip "_" #tail,                                                                         \
     .arch = #chip,                                                                                                    \
     .summary = "D and DV to the number in the name, any strides; softcap, ALiBi, mask: _full; pages: _full, _paged",  \
     .op = ATTN_OP_SDPA_FWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .out_f32 = 1,                                                                                                     \
     .max_logits = 1,                                                                                                  \
     .features = (feature),                                                                                            \
     .impl = &config_##chip##_##tail,                                                                                  \
     .workspace = workspace,                                                                                           \
     ATTN_CUDA_PREPARED},
const struct attn_kernel attn_cuda_sdpa_fwd_rows[] = {
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm80.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm90, tail, ATTN_CUDA_SM90A, dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm90.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_fwd_rows = sizeof attn_cuda_sdpa_fwd_rows / sizeof attn_cuda_sdpa_fwd_rows[0];
