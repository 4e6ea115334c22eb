/* SPDX-License-Identifier: MIT
 * Joined lists for an operator that reads them: which queries make a group, and where the problem does not hand over
 * the lists (attn_problem.group), how many groups are joined at a time in the workspace, and the launch that joins
 * them. */
#include "cuda/sparse/mla_joined.h"
#include "core/joined.h"
#include "core/problem.h"
#include "kernels/params/dist_joined.h"

#include <inttypes.h>

_Static_assert(KP_JOINED_FLAGS == ATTN_JOINED_FLAGS && ATTN_JOINED_APART == 1, "the header's words");

/* Bytes of lists that are joined at a time. */
static const int64_t LIST_BYTES = INT64_C(64) << 20;

static uint64_t round_up(uint64_t x) { return (x + 255) / 256 * 256; }

static int32_t log2_above(int64_t n) {
    int32_t shift = 0;
    while (INT64_C(1) << shift < n) shift++;
    return shift;
}

int64_t attn_cuda_mla_joined_group(const attn_problem *p, int64_t rows) {
    if (p->heads_q < 1 || p->heads_q > rows || p->topk < 1 || p->seq_q < 1) return 0;
    int64_t group = attn_cuda_lesser(rows >> log2_above(p->heads_q > 4 ? p->heads_q : 4), ATTN_JOINED_MAX_GROUP);
    if (p->group) return p->group <= group ? p->group : 0;
    while (group > 1 && (group * p->topk > ATTN_JOINED_MAX_SLOTS || group / 2 >= p->seq_q)) group /= 2;
    return group > 1 ? group : 0;
}

/* Of few heads a union never takes more tiles than its lists apart. A tile of the kernels that join takes longer, so
 * that long unions lose (measured: docs/joined_lists.md): `dist` above 5/7 of the slots, above 4/7 with tiles of 128
 * rows; the forward above 9/10, which lists that share nothing have where pairs and fours of them are a small part of
 * the keys. The backward's do not. */
int64_t attn_cuda_mla_joined_limit(const attn_problem *p, int64_t group) {
    const attn_problem lists = {.group = group, .topk = p->topk, .seq_q = p->seq_q};
    const struct attn_core_joined l = attn_core_joined_layout(&lists);
    if (p->op == ATTN_OP_DIST) return group * p->topk * (group << log2_above(p->heads_q) > 64 ? 4 : 5) / 7;
    if (p->op != ATTN_OP_MLA_FWD || group < 2 || group > 4 || p->seq_k <= 4 * p->topk) return 0;
    if (p->batch * l.groups > LIST_BYTES / (int64_t)sizeof(int32_t) / l.words) return 0; /* not joined at once */
    return group * p->topk * 9 / 10;
}

/* The problem of mla_join whose lists a group has. */
static attn_problem lists_of(const attn_problem *p, int64_t group) {
    return (attn_problem){.size = sizeof(attn_problem),
                          .op = ATTN_OP_MLA_JOIN,
                          .flags = p->flags & (ATTN_CAUSAL | ATTN_TOPK_LENGTH),
                          .dtype = ATTN_I32,
                          .batch = p->batch,
                          .seq_q = p->seq_q,
                          .seq_k = p->seq_k,
                          .topk = p->topk,
                          .q_start = p->q_start,
                          .k_stride = p->k_stride,
                          .group = group,
                          .union_limit = attn_cuda_mla_joined_limit(p, group)};
}

int64_t attn_cuda_mla_joined_groups(const attn_problem *p, int64_t group) {
    return p->batch * attn_cuda_blocks(p->seq_q, group);
}

/* Each further list adds a ninth of its keys (docs/joined_lists.md: J = 0.8 of two). */
double attn_cuda_mla_joined_entries(const attn_problem *p, int64_t group) {
    const double n = (double)p->topk * (1 + (double)(group - 1) / 9);
    return n < (double)p->seq_k ? n : (double)(p->seq_k > p->topk ? p->seq_k : p->topk);
}

double attn_cuda_mla_joined_entries_of_pair(const attn_problem *p) {
    return (double)p->topk * (p->group ? 20 / 19.0 : 2);
}

int attn_cuda_mla_joined_refuse(const struct attn_core_device *dev, const attn_problem *p, int64_t rows,
                                struct attn_text *why) {
    const int64_t group = attn_cuda_mla_joined_group(p, rows);
    if (p->heads_q > rows / 2)
        attn_text_add(why, "heads_q is %" PRId64 ", at most %" PRId64 ": heads of several queries share a tile",
                      p->heads_q, rows / 2);
    else if (p->group && !group && p->seq_q > 0)
        attn_text_add(why, "group is %" PRId64 ", too many queries of %" PRId64 " heads for a tile of %" PRId64 " rows",
                      p->group, p->heads_q, rows);
    else if (!group)
        attn_text_add(why, "has no neighbouring queries whose lists it could join, topk at most %d",
                      ATTN_JOINED_MAX_SLOTS / 2);
    else if (p->batch > INT32_MAX / (p->seq_q > 0 ? p->seq_q : 1))
        attn_text_add(why, "joins the lists of at most %" PRId32 " queries", INT32_MAX);
    else if (p->group)
        return 0;
    else {
        const attn_problem lists = lists_of(p, group);
        const struct attn_kernel *k = attn_cuda_mla_join_row(dev, group);
        if (k) return !k->supports(k, dev, &lists, why);
        attn_text_add(why, "this build joins no lists of %" PRId64 " queries", group);
    }
    return 1;
}

attn_status attn_cuda_mla_joined_prepare(struct attn_core_device *dev, const attn_problem *p, int64_t rows) {
    if (p->group) return ATTN_OK;
    const attn_problem lists = lists_of(p, attn_cuda_mla_joined_group(p, rows));
    const struct attn_kernel *k = attn_cuda_mla_join_row(dev, lists.group);
    return k->prepare(k, dev, &lists);
}

double attn_cuda_mla_joined_time(const struct attn_core_device *dev, const attn_problem *p, int64_t rows) {
    if (p->group) return 0;
    const attn_problem lists = lists_of(p, attn_cuda_mla_joined_group(p, rows));
    const struct attn_kernel *k = attn_cuda_mla_join_row(dev, lists.group);
    const double slots = (double)p->batch * (double)p->seq_q * (double)p->topk;
    const struct attn_core_amount amount = {0, 12 * slots}; /* lists read, entries, bits and slots written */
    return k->estimate(k, dev, &lists, &amount);
}

int64_t attn_cuda_mla_joined_listed(const attn_problem *p, int64_t rows, int64_t wave) {
    const attn_problem lists = lists_of(p, attn_cuda_mla_joined_group(p, rows));
    const int64_t fit = LIST_BYTES / (int64_t)sizeof(int32_t) / attn_core_joined_layout(&lists).words,
                  waves = fit / wave;
    return attn_cuda_lesser(attn_cuda_mla_joined_groups(p, lists.group), (waves > 0 ? waves : 1) * wave);
}

uint64_t attn_cuda_mla_joined_bytes(const struct attn_core_device *dev, const attn_problem *p, int64_t rows,
                                    int64_t listed) {
    if (p->group) return 0;
    const attn_problem lists = lists_of(p, attn_cuda_mla_joined_group(p, rows));
    const struct attn_kernel *k = attn_cuda_mla_join_row(dev, lists.group);
    return round_up((uint64_t)(listed * attn_core_joined_layout(&lists).words) * sizeof(int32_t)) +
           round_up(k->workspace(k, dev, &lists));
}

int attn_cuda_mla_joined_any_apart(const attn_problem *p, int64_t rows) {
    return p->group || attn_cuda_mla_joined_limit(p, attn_cuda_mla_joined_group(p, rows));
}

const char attn_cuda_mla_joined_work_symbol[] = "attn_joined_work_smxx_any";

uint64_t attn_cuda_mla_joined_work_bytes(const attn_problem *p, int64_t rows, int64_t listed, int64_t ctas) {
    if (!attn_cuda_mla_joined_any_apart(p, rows)) return 0;
    return round_up((uint64_t)KP_JOINED_WORK_WORDS(listed, attn_cuda_mla_joined_group(p, rows), ctas) *
                    sizeof(int32_t));
}

attn_status attn_cuda_mla_joined_work(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                      const struct kp_mla_joined *joined, int64_t from, int64_t until, int64_t ctas,
                                      uint64_t work) {
    const struct kp_joined_work kp = {
        .joined = *joined, .seq_q = p->seq_q, .from = from, .until = until, .ctas = ctas, .work = work};
    const struct attn_cuda_grid grid = {.x = 1, .y = 1, .z = 1, .threads = 1024};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, attn_cuda_mla_joined_work_symbol), &grid, &kp, sizeof kp,
                            args->stream);
}

/* The attention distribution is by slot; what else reads joined lists goes by entry. */
static int reads_slots(const attn_problem *p) {
    return p->op == ATTN_OP_DIST || (p->op == ATTN_OP_MLA_BWD && (p->flags & ATTN_WITH_DIST));
}

attn_status attn_cuda_mla_joined_queue(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                       int64_t rows, uint64_t workspace, int64_t from, int64_t until,
                                       struct kp_mla_joined *joined) {
    const attn_problem lists = lists_of(p, attn_cuda_mla_joined_group(p, rows));
    const struct attn_core_joined l = attn_core_joined_layout(&lists);
    const struct kp_view made = {.data = workspace - (uint64_t)(from * l.words) * sizeof(int32_t),
                                 .batch = l.groups * l.words,
                                 .row = l.words},
                         view = p->group ? attn_cuda_view(p, args, ATTN_ROLE_JOINED) : made;
    struct kp_mla in;
    *joined = (struct kp_mla_joined){.data = view.data,
                                     .batch = view.batch,
                                     .row = view.row,
                                     .groups = (int32_t)l.groups,
                                     .group = (int32_t)lists.group,
                                     .keys = (int32_t)l.keys,
                                     .bits = (int32_t)l.bits,
                                     .slots = (int32_t)l.slots,
                                     .slots_row = (int32_t)l.slots_row,
                                     .shift = log2_above(rows) - log2_above(lists.group)};
    if (p->group) return ATTN_OK;
    attn_cuda_mla_inputs(&in, p, args);
    const struct attn_cuda_mla_join_part part = {
        .in = &in,
        .joined = made,
        .uses = workspace + round_up((uint64_t)((until - from) * l.words) * sizeof(int32_t)),
        .from = from,
        .until = until,
        .no_slots = !reads_slots(p)};
    return attn_cuda_mla_join_queue(attn_cuda_mla_join_row(dev, lists.group), dev, &lists, &part, args->stream);
}
