/* SPDX-License-Identifier: MIT
 * JOINED as an input of a sparse case: made of the case's lists by the operator mla_join of the CPU, which other cases
 * compare with the tester's own construction. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* A function of problem and seed: 0, or a limit over which some or all groups are left apart. */
int64_t attn_cli_check_union_limit(const struct check_case *c) {
    const int64_t slots = c->p.group * c->p.topk, keys = 2 * c->p.seq_k + 1, bits = (int64_t)(c->seed >> 20);
    return bits & 1 ? 1 + (bits >> 1) % (slots < keys ? slots : keys) : 0;
}

int attn_cli_check_joined_input(struct check_case *c, attn_ctx *ctx, char *why, size_t why_bytes) {
    struct check_tensor *t = &c->t[ATTN_ROLE_JOINED];
    attn_args args = ATTN_ARGS_INIT;
    if (t->use != ATTN_USE_IN || t->n == 0) return 0;
    args.indices = &c->t[ATTN_ROLE_INDICES].view, args.joined = &t->view;
    if (check_has(c, ATTN_TOPK_LENGTH)) args.topk_length = &c->t[ATTN_ROLE_TOPK_LENGTH].view;
    attn_status status = attn_cli_make_joined(ctx, &c->p, attn_cli_check_union_limit(c), &args);
    void *typed = status ? NULL : malloc((size_t)t->n * sizeof(int32_t));
    if (!typed) {
        snprintf(why, why_bytes, "the lists of the case were not joined: %s",
                 status ? attn_last_error() : "out of memory");
        return -1;
    }
    attn_cli_check_load(t, typed);
    attn_cli_check_widen(t->val, typed, ATTN_I32, t->n);
    free(typed);
    memcpy(t->copy, t->map, t->use_bytes);
    return 0;
}
