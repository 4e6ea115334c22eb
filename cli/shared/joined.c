/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md) of a problem's index lists: the tensor JOINED of a problem with a group, made by
 * mla_join on the CPU, and what its headers say. */
#include "shared/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 0, FLAGS = 1, APART = 1 }; /* words of a group's header, and a flag */

attn_problem attn_cli_joined_problem(const attn_problem *p, int64_t group, int64_t union_limit) {
    attn_problem made = ATTN_PROBLEM_INIT;
    made.op = ATTN_OP_MLA_JOIN, made.dtype = ATTN_I32;
    made.flags = p->flags & (ATTN_CAUSAL | ATTN_TOPK_LENGTH);
    made.batch = p->batch, made.seq_q = p->seq_q, made.seq_k = p->seq_k, made.topk = p->topk;
    made.q_start = p->q_start, made.k_stride = p->k_stride;
    made.group = group, made.union_limit = union_limit;
    return made;
}

attn_status attn_cli_make_joined(attn_ctx *ctx, const attn_problem *p, int64_t union_limit, const attn_args *args) {
    const attn_problem made = attn_cli_joined_problem(p, p->group, union_limit);
    attn_args own = ATTN_ARGS_INIT;
    own.indices = args->indices, own.topk_length = args->topk_length, own.joined = args->joined;
    return attn_run(ctx, ATTN_DEVICE_CPU, &made, &own);
}

attn_status attn_cli_tensors_joined(attn_ctx *ctx, struct attn_cli_tensors *set) {
    if (set->use[ATTN_ROLE_JOINED] != ATTN_USE_IN || !set->memory[ATTN_ROLE_JOINED]) return ATTN_OK;
    return attn_cli_make_joined(ctx, &set->problem, 0, &set->args);
}

static void count(const attn_tensor *t, struct attn_cli_joined_count *out) {
    const int64_t batch = t->rank == 3 ? t->shape[0] : 1, groups = t->shape[t->rank - 2];
    double sum = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t g = 0; g < groups; g++) {
            const int32_t *word = (const int32_t *)t->data + (t->rank == 3 && batch > 1 ? b * t->strides[0] : 0) +
                                  (groups > 1 ? g * t->strides[t->rank - 2] : 0);
            out->groups++;
            if (word[FLAGS] & APART) {
                out->apart++;
                continue;
            }
            sum += word[ENTRIES];
            if (word[ENTRIES] > out->most) out->most = word[ENTRIES];
        }
    if (out->groups > out->apart) out->mean = sum / (double)(out->groups - out->apart);
}

attn_status attn_cli_joined_count(attn_ctx *ctx, const attn_problem *p, const attn_args *args,
                                  const attn_plan_info *info, struct attn_cli_joined_count *out) {
    const int makes = p->op == ATTN_OP_MLA_JOIN;
    const int64_t group = makes ? p->group : info->group;
    *out = (struct attn_cli_joined_count){.group = group};
    if (!group) return ATTN_OK;
    if (p->group && !makes) {
        count(args->joined, out);
        return ATTN_OK;
    }
    attn_problem with = *p;
    attn_tensor joined;
    int32_t use;
    with.group = group;
    attn_status status = attn_role_tensor(&with, ATTN_ROLE_JOINED, &use, &joined);
    if (status) return status;
    attn_args own = *args;
    own.joined = &joined;
    joined.data = malloc((size_t)joined.bytes + 1);
    status = joined.data ? attn_cli_make_joined(ctx, &with, makes ? p->union_limit : info->union_limit, &own)
                         : ATTN_E_MEMORY;
    if (!status) count(&joined, out);
    free(joined.data);
    return status;
}

void attn_cli_joined_json(const struct attn_cli_joined_count *c, char *buf, size_t bytes) {
    char mean[32] = "null";
    if (c->groups > c->apart) snprintf(mean, sizeof mean, "%.1f", c->mean);
    snprintf(buf, bytes,
             "{\"group\":%" PRId64 ",\"groups\":%" PRId64 ",\"apart\":%" PRId64
             ",\"entries_mean\":%s,\"entries_most\":%" PRId64 "}",
             c->group, c->groups, c->apart, mean, c->most);
}

void attn_cli_joined_text(const struct attn_cli_joined_count *c, char *buf, size_t bytes) {
    int n = snprintf(buf, bytes, "%" PRId64 " of %" PRId64 " groups of %" PRId64 " queries joined",
                     c->groups - c->apart, c->groups, c->group);
    if (c->groups > c->apart && n < (int)bytes)
        snprintf(buf + n, bytes - (size_t)n, ", unions of %.1f entries, at most %" PRId64, c->mean, c->most);
}
