/* SPDX-License-Identifier: MIT
 * The reference answer of a case: the library's ref kernel of the same operator on the same values, widened to f64 (the
 * sparse operators: f32, in which ref kernels still sum in double), with row-major tensors. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

int32_t attn_cli_check_oracle_dtype(const attn_problem *p) {
    return check_dense(p) ? ATTN_F64 : check_join(p) ? ATTN_I32 : ATTN_F32;
}

/* The case's problem as the ref kernel gets it. */
static attn_problem widened(const attn_problem *p) {
    attn_problem w = *p;
    w.dtype = attn_cli_check_oracle_dtype(p);
    w.dkv_dtype = w.out_dtype = 0;
    w.align_bytes = 0;
    w.flags &= ~ATTN_DETERMINISTIC;
    return w;
}

struct execution {
    attn_plan *plan;
    attn_args args;
    attn_tensor tensor[ATTN_ROLE_COUNT];
    void *typed[ATTN_ROLE_COUNT];
};
static attn_status execute(void *arg) {
    struct execution *e = arg;
    return attn_execute(e->plan, &e->args);
}

static attn_status hand_over(const struct check_case *c, const attn_problem *wide, struct execution *e, int32_t role) {
    const struct check_tensor *from = &c->t[role];
    attn_tensor expected;
    int32_t use;
    attn_status st = attn_role_tensor(wide, role, &use, &expected);
    if (st || use == ATTN_USE_NONE) return st; /* scales are in the values */
    size_t bytes = (size_t)from->n * attn_dtype_bytes(expected.dtype);
    e->typed[role] = malloc(bytes + 64);
    if (!e->typed[role]) return ATTN_E_MEMORY;
    if (from->use == ATTN_USE_OUT || from->use == ATTN_USE_OUT_OPTIONAL)
        memset(e->typed[role], 0xff, bytes);
    else
        attn_cli_check_narrow(e->typed[role], expected.dtype, from->val, from->n);
    st = attn_tensor_contiguous(&e->tensor[role], e->typed[role], expected.dtype, from->view.rank, from->view.shape);
    return st ? st : attn_args_set(&e->args, role, &e->tensor[role]);
}

static attn_status run(struct check_case *c, const attn_problem *wide, struct execution *e) {
    attn_status st = ATTN_OK;
    for (int32_t role = 0; !st && role < ATTN_ROLE_COUNT; role++)
        if (c->t[role].use != ATTN_USE_NONE) st = hand_over(c, wide, e, role);
    if (st) return st;
    char repro[1024];
    attn_cli_check_repro(c, "*_ref_*", repro, sizeof repro);
    if (attn_cli_check_guarded(execute, e, repro, &st)) return ATTN_E_DEVICE_FAULT;
    for (int32_t role = 0; !st && role < ATTN_ROLE_COUNT; role++)
        if (c->want[role].want) {
            attn_cli_check_widen(c->want[role].want, e->typed[role], e->tensor[role].dtype, c->t[role].n);
            if (role == ATTN_ROLE_DMASK) attn_cli_check_fold(&c->t[role], c->want[role].want, false);
        }
    return st;
}

void attn_cli_check_case_oracle(struct check_case *c, attn_ctx *ctx, char *why, size_t why_bytes) {
    attn_problem wide = widened(&c->p);
    attn_plan_options options = {
        .size = sizeof options, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .backend = ATTN_BACKEND_REF};
    attn_plan_info info = {.size = sizeof info};
    struct execution e = {.args = ATTN_ARGS_INIT};
    attn_status st = attn_plan_create(ctx, ATTN_DEVICE_CPU, &wide, &options, &e.plan);
    *why = 0;
    if (!st) st = attn_plan_get_info(e.plan, &info);
    if (!st) {
        int no_memory = 0;
        e.args.workspace = attn_cli_workspace(&info, &no_memory);
        e.args.workspace_bytes = info.workspace_bytes;
        st = no_memory ? ATTN_E_MEMORY : run(c, &wide, &e);
        free(e.args.workspace);
    }
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) free(e.typed[role]);
    attn_plan_release(e.plan);
    if (!st) return;
    c->oracle_failed = true;
    snprintf(why, why_bytes, "the ref kernel gave no answer: %s: %s", attn_status_name(st),
             st == ATTN_E_DEVICE_FAULT ? "stopped by a signal" : attn_last_error());
    attn_cli_check_case_want_plain(c);
}
