/* SPDX-License-Identifier: MIT
 * Joined lists on CUDA, the host's side: kernel rows from kernels/variants/mla_join_sm80.def and mla_join_sm90.def, and
 * the parameters of a launch. The device's side: kernels/sm80/mla_join.cu. */
#include "kernels/params/mla_join.h"
#include "core/joined.h"
#include "core/problem.h"
#include "cuda/sparse/mla_joined.h"

#include <inttypes.h>

enum { SYSTEM_BYTES = 1024 };

/* A function of problem and device alone. */
struct geometry {
    int64_t total, words, shared, ctas;
    int32_t table, log2_parts;
};

/* Two CTAs an SM where a range of all keys would leave room for one. */
static struct geometry lay_out(const struct kp_mla_join_config *c, const struct attn_cuda_limits *l,
                               const attn_problem *p) {
    struct geometry g = {.total = p->batch * attn_core_joined_layout(p).groups};
    const int64_t half = l->shared_per_sm / 2 - SYSTEM_BYTES;
    const int64_t most = attn_cuda_lesser(l->shared_per_block, half) - KP_MLA_JOIN_STATIC - KP_MLA_JOIN_STAGE;
    const int64_t word = KP_MLA_JOIN_WORD(c->group), table = KP_MLA_JOIN_TABLE(c->group);
    const int64_t wide = word > table ? word : table;
    const int64_t all = (attn_cuda_blocks(p->seq_k < 1 ? 1 : p->seq_k, 32) + 3) / 4 * 4;
    g.table = p->seq_k <= KP_MLA_JOIN_TABLE_KEYS && all * wide <= most;
    /* where words are as wide as a table's, the kernel takes a range of all keys to have a table */
    g.words = g.table ? all : attn_cuda_lesser(most / word / 4 * 4, word == wide ? all - 4 : all);
    g.shared = KP_MLA_JOIN_STAGE + g.words * (g.table ? wide : word);
    while (g.log2_parts < 2 && g.words << g.log2_parts < c->threads) g.log2_parts++;
    const int64_t per_sm = l->shared_per_sm / (g.shared + KP_MLA_JOIN_STATIC + SYSTEM_BYTES);
    g.ctas = l->n_sms * attn_cuda_lesser(per_sm < 1 ? 1 : per_sm, c->ctas);
    g.ctas = attn_cuda_lesser(g.ctas, g.total);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_join_config *c = k->impl;
    if (p->group != c->group) {
        attn_text_add(why, "group is %" PRId64 ", this variant is for %" PRId32, p->group, c->group);
        return 0;
    }
    if (p->seq_k > INT64_C(1) << 31) { /* an index is int32 */
        attn_text_add(why, "seq_k is %" PRId64 ", at most %" PRId64, p->seq_k, INT64_C(1) << 31);
        return 0;
    }
    if (c->early && !attn_cuda_limits_of(dev)->early_launch) {
        attn_text_add(why, "begins while the kernel before it ends, which needs driver 12.3");
        return 0;
    }
    return !attn_cuda_refuse_image(dev, c->symbol, lay_out(c, attn_cuda_limits_of(dev), p).shared, why);
}

/* 24 clocks of an SM for 32 slots, as measured on an H200; a range of keys for each group; see the kernel's page. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_mla_join_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    if (g.total == 0) return 1e-6;
    const double slots = (double)p->batch * (double)p->seq_q * (double)p->topk,
                 ranges = (double)p->seq_k / (32.0 * (double)g.words);
    const double clocks = slots * 24 / 32 * (ranges > 1 ? ranges : 1) / attn_cuda_limits_of(dev)->n_sms;
    const double traffic = amount->bytes / 3e12;
    return (c->early ? 2e-6 : 4e-6) + (clocks / 1.7e9 > traffic ? clocks / 1.7e9 : traffic);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k->impl, attn_cuda_limits_of(dev), p);
    return (uint64_t)(g.ctas * p->group * p->topk) * sizeof(uint16_t);
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_join_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)g.shared);
}

attn_status attn_cuda_mla_join_queue(const struct attn_kernel *k, const struct attn_core_device *dev,
                                     const attn_problem *p, const struct attn_cuda_mla_join_part *part, void *stream) {
    const struct kp_mla_join_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    const struct attn_core_joined l = attn_core_joined_layout(p);
    if (part->until <= part->from) return ATTN_OK;
    const struct kp_mla_join kp = {.in = *part->in,
                                   .joined = part->joined,
                                   .uses = part->uses,
                                   .union_limit = p->union_limit,
                                   .groups = l.groups,
                                   .from = part->from,
                                   .until = part->until,
                                   .keys = (int32_t)l.keys,
                                   .bits = (int32_t)l.bits,
                                   .slots = part->no_slots ? 0 : (int32_t)l.slots,
                                   .slots_row = (int32_t)l.slots_row,
                                   .words = (int32_t)g.words,
                                   .table = g.table,
                                   .log2_parts = g.log2_parts,
                                   .four = 4};
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(g.ctas, part->until - part->from),
                                        .y = 1,
                                        .z = 1,
                                        .early = (uint8_t)c->early,
                                        .threads = (uint32_t)c->threads,
                                        .shared_bytes = (uint32_t)g.shared};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, stream);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct kp_mla in;
    attn_cuda_mla_inputs(&in, p, args);
    const struct attn_cuda_mla_join_part part = {.in = &in,
                                                 .joined = attn_cuda_view(p, args, ATTN_ROLE_JOINED),
                                                 .uses = (uint64_t)(uintptr_t)args->workspace,
                                                 .until = lay_out(k->impl, attn_cuda_limits_of(dev), p).total};
    return attn_cuda_mla_join_queue(k, dev, p, &part, args->stream);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* As in dense/fwd.c: first the configurations, then the rows that point at them. */
#define CONFIG(arch, tail, ...)                                                                                        \
    static const struct kp_mla_join_config config_##arch##_##tail = {.symbol = "attn_mla_join_" #arch "_" #tail,       \
                                                                     __VA_ARGS__};
#define ROW(word, what, tail)                                                                                          \
    {.name = "attn_mla_join_" #word "_" #tail,                                                                         \
     .arch = #word,                                                                                                    \
     .summary = "groups as in the name, any indices and strides",                                                      \
     .op = ATTN_OP_MLA_JOIN,                                                                                           \
     .dtype = ATTN_I32,                                                                                                \
     ATTN_CUDA_ROW(ATTN_I32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = what,                                                                                                 \
     .impl = &config_##word##_##tail,                                                                                  \
     .workspace = workspace},

#define VARIANT(tail, source, ...) CONFIG(sm80, tail, __VA_ARGS__)
#include "kernels/variants/mla_join_sm80.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm90, tail, __VA_ARGS__)
#include "kernels/variants/mla_join_sm90.def"
#undef VARIANT

const struct attn_kernel attn_cuda_mla_join_rows[] = {
#define VARIANT(tail, source, ...) ROW(sm90, ATTN_CUDA_SM90A, tail)
#include "kernels/variants/mla_join_sm90.def"
#undef VARIANT
#define VARIANT(tail, source, ...) ROW(sm80, ATTN_CUDA_SM80, tail)
#include "kernels/variants/mla_join_sm80.def"
#undef VARIANT
};
const int32_t attn_cuda_n_mla_join_rows = sizeof attn_cuda_mla_join_rows / sizeof attn_cuda_mla_join_rows[0];

const struct attn_kernel *attn_cuda_mla_join_row(const struct attn_core_device *dev, int64_t group) {
    for (int32_t i = 0; i < attn_cuda_n_mla_join_rows; i++) {
        const struct attn_kernel *k = &attn_cuda_mla_join_rows[i];
        const struct kp_mla_join_config *c = k->impl;
        if (c->group != group || (k->features & ~dev->features)) continue;
        if (!c->early || (attn_cuda_limits_of(dev)->early_launch && attn_cuda_variant_find(c->symbol))) return k;
    }
    return NULL;
}
