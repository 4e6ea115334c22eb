/* SPDX-License-Identifier: MIT
 * What the groups were that kernels have joined in the cases of a run: a check that meets a feature in groups left
 * apart alone says nothing of joined ones. */
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[CHECK_JOINED_KINDS] = {"duplicates", "invalid", "topk_length",
                                                      "k_stride",   "q_nan",   "kv_nan"};

static bool finite_row(const double *row, int64_t n) {
    double sum = 0;
    for (int64_t x = 0; x < n; x++) sum += row[x] * 0;
    return sum == 0;
}

/* Adds the kinds of query i. */
static void kinds_of(const struct check_case *c, int64_t b, int64_t i, int32_t *uses, bool kinds[CHECK_JOINED_KINDS]) {
    const attn_problem *p = &c->p;
    const int64_t row = b * p->seq_q + i, wide = p->heads_q * p->dim_qk;
    int64_t slots = p->topk;
    if (check_has(c, ATTN_TOPK_LENGTH)) {
        const double length = c->t[ATTN_ROLE_TOPK_LENGTH].val[row];
        if (length < (double)slots) slots = length < 0 ? 0 : (int64_t)length, kinds[2] = true;
    }
    memset(uses, 0, (size_t)p->seq_k * sizeof *uses);
    for (int64_t t = 0, key; t < slots; t++) {
        const double index = c->t[ATTN_ROLE_INDICES].val[row * p->topk + t];
        const bool exists = index >= 0 && index < (double)p->seq_k;
        if (!exists) kinds[1] = true;
        if (attn_cli_check_slot(c, b, i, t, &key)) {
            if (uses[key]++) kinds[0] = true;
            if (!finite_row(c->t[ATTN_ROLE_KV].val + (b * p->seq_k + key) * p->dim_qk, p->dim_qk)) kinds[5] = true;
        } else if (exists && p->k_stride > 1) {
            kinds[3] = true;
        }
    }
    if (!finite_row(c->t[ATTN_ROLE_Q].val + row * wide, wide)) kinds[4] = true;
}

/* The case's lists as the plan joins them, or as they are given. */
static int32_t *make_lists(const struct check_case *c, attn_ctx *ctx, const attn_plan_info *info, int64_t *words) {
    attn_problem p = c->p;
    attn_tensor t;
    attn_args args = ATTN_ARGS_INIT;
    int32_t use;
    p.group = info->group;
    if (attn_role_tensor(&p, ATTN_ROLE_JOINED, &use, &t)) return NULL;
    *words = t.shape[t.rank - 1];
    t.data = malloc((size_t)t.bytes + 1);
    args.indices = &c->t[ATTN_ROLE_INDICES].view, args.joined = &t;
    if (check_has(c, ATTN_TOPK_LENGTH)) args.topk_length = &c->t[ATTN_ROLE_TOPK_LENGTH].view;
    const int64_t limit = c->p.group ? attn_cli_check_union_limit(c) : info->union_limit;
    if (t.data && !attn_cli_make_joined(ctx, &p, limit, &args)) return t.data;
    free(t.data);
    return NULL;
}

void attn_cli_check_count_joined(const struct check_case *c, attn_ctx *ctx, const attn_plan_info *info,
                                 struct check_joined *to) {
    const attn_problem *p = &c->p;
    if (!info->group || p->batch < 1 || p->seq_q < 1) return;
    const int64_t groups = (p->seq_q + info->group - 1) / info->group;
    int64_t words = 0;
    int32_t *uses = malloc(((size_t)p->seq_k + 1) * sizeof *uses),
            *lists = uses ? make_lists(c, ctx, info, &words) : NULL;
    for (int64_t n = 0; lists && n < p->batch * groups; n++) {
        bool kinds[CHECK_JOINED_KINDS] = {false};
        const int64_t first = n % groups * info->group;
        if (lists[n * words + 1] & 1) {
            to->apart++;
            continue;
        }
        to->joined++;
        for (int64_t i = first; i < first + info->group && i < p->seq_q; i++) kinds_of(c, n / groups, i, uses, kinds);
        for (int k = 0; k < CHECK_JOINED_KINDS; k++) to->with[k] += kinds[k];
    }
    free(lists);
    free(uses);
}

void attn_cli_check_print_joined(const struct check_joined *j, int32_t op, bool json) {
    if (!j->joined && !j->apart) return;
    printf(json ? "{\"type\":\"joined\",\"op\":\"%s\",\"joined\":%" PRId64 ",\"apart\":%" PRId64
                : "%s: %" PRId64 " groups joined, %" PRId64 " left apart; joined with",
           attn_cli_op_name(op), j->joined, j->apart);
    for (int k = 0; k < CHECK_JOINED_KINDS; k++)
        printf(json ? ",\"%s\":%" PRId64 : " %s %" PRId64, names[k], j->with[k]);
    printf(json ? "}\n" : "\n");
}
