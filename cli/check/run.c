/* SPDX-License-Identifier: MIT
 * One kernel on one case. It is planned by name and runs three times on poisoned outputs and workspace: with 1
 * thread, and twice with many. After each run every byte that is not a result must be what it was. Then the results
 * are compared with the case's answer and with each other. A kernel that refuses the problem must say why, and
 * refuse a plan. Called by command.c for each case and kernel, and by properties that need a whole case. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WS_GUARD = 256, WS_BASE = 256, RUNS = 3 };

struct job {
    struct check_session *s;
    struct check_case *c;
    const attn_kernel_info *k;  /* the kernel under test */
    struct check_report report; /* failures of this kernel on this case */
    attn_plan *plan[2];         /* by context: 1 thread, many threads */
    attn_plan_info info[2];
    attn_args args;
    uint8_t *ws_block, *ws; /* the workspace stands between two guards */
    size_t ws_block_bytes;
    void *result[RUNS][ATTN_ROLE_COUNT]; /* row-major elements */
    char repro[1200];                    /* the command that runs this case again */
    double worst;                        /* largest error so far, in bounds of its element: above 1 it fails */
    struct check_device_copy
        device_copy[ATTN_ROLE_COUNT + 1]; /* CUDA: device copies of the tensors, then of ws_block */
    attn_tensor device_view[ATTN_ROLE_COUNT];
};

/* ---- plan -------------------------------------------------------------------------------------------------------- */

static attn_plan_options by_name(const char *name) {
    return (attn_plan_options){
        .size = sizeof(attn_plan_options), .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = name};
}

static int make_plans(struct job *j) {
    attn_ctx *ctx[2] = {j->s->one, j->s->many};
    attn_plan_options options = by_name(j->k->name);
    for (int i = 0; i < 2; i++) {
        j->info[i].size = sizeof j->info[i];
        attn_status st = attn_plan_create(ctx[i], j->s->device, &j->c->p, &options, &j->plan[i]);
        if (!st) st = attn_plan_get_info(j->plan[i], &j->info[i]);
        if (st) {
            attn_cli_check_report_fault(&j->report, "supports accepts, but no plan: %s: %s", attn_status_name(st),
                                        attn_last_error());
            return -1;
        }
        const attn_plan_info *f = &j->info[i];
        uint64_t align = f->workspace_alignment;
        if (strcmp(f->kernel, j->k->name) || f->backend != j->k->backend || f->op != j->c->p.op ||
            f->dtype != j->c->p.dtype)
            attn_cli_check_report_fault(&j->report, "asked for this kernel, the plan has %s", f->kernel);
        if (f->workspace_bytes && (align == 0 || (align & (align - 1))))
            attn_cli_check_report_fault(&j->report, "workspace alignment is %llu", (unsigned long long)align);
        if (j->k->backend != ATTN_BACKEND_REF && !(f->estimate_seconds >= 0 && f->estimate_seconds < (double)INFINITY))
            attn_cli_check_report_fault(&j->report, "the estimate is %g seconds", f->estimate_seconds);
        if (check_has(j->c, ATTN_DETERMINISTIC) && !f->deterministic)
            attn_cli_check_report_fault(&j->report, "the problem asks for a deterministic kernel, this one is not");
    }
    return 0;
}

static int make_workspace(struct job *j) {
    uint64_t most = 0, align = 1;
    for (int i = 0; i < 2; i++) {
        if (j->info[i].workspace_bytes > most) most = j->info[i].workspace_bytes;
        if (j->info[i].workspace_alignment > align) align = j->info[i].workspace_alignment;
    }
    j->ws_block_bytes = ((size_t)(most + 4 * align) + 2 * WS_GUARD + WS_BASE - 1) / WS_BASE * WS_BASE;
    j->ws_block = aligned_alloc(
        WS_BASE, j->ws_block_bytes); /* aligned as device memory is, so that offsets from it align alike */
    if (!j->ws_block) return -1;
    uint8_t *start = j->ws_block + WS_GUARD;
    start += (2 * align - (uintptr_t)start % (2 * align)) % (2 * align) + align; /* aligned as asked and no better */
    j->ws = start;
    return 0;
}

/* 0; on a CUDA device also memory there, with the views that point into it. */
static int fill_args(struct job *j) {
    j->args = (attn_args)ATTN_ARGS_INIT;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const struct check_tensor *t = &j->c->t[role];
        const attn_tensor *view = &t->view;
        if (t->use == ATTN_USE_NONE) continue;
        if (j->s->gpu) {
            if (attn_cli_check_copy_alloc(j->s->gpu, &j->device_copy[role], t->map, t->use_bytes)) return -1;
            j->device_view[role] = t->view;
            j->device_view[role].data = attn_cli_check_copy_address(&j->device_copy[role], t->view.data);
            j->device_view[role].device = j->s->device;
            view = &j->device_view[role];
        }
        if (t->given) attn_args_set(&j->args, role, view);
    }
    return j->s->gpu
               ? attn_cli_check_copy_alloc(j->s->gpu, &j->device_copy[ATTN_ROLE_COUNT], j->ws_block, j->ws_block_bytes)
               : 0;
}

static int copy_all(struct job *j, bool up) {
    for (int k = 0; j->s->gpu && k <= ATTN_ROLE_COUNT; k++) {
        int r = up ? attn_cli_check_copy_to_device(j->s->gpu, &j->device_copy[k])
                   : attn_cli_check_copy_to_host(j->s->gpu, &j->device_copy[k]);
        if (r) {
            attn_cli_check_report_fault(&j->report, "copying to or from the device: error %d of the driver", r);
            j->s->gpu_lost = true;
            return -1;
        }
    }
    return 0;
}

/* ---- run ----------------------------------------------------------------------------------------------------------
 */

struct call {
    attn_plan *plan;
    attn_args *args;
};
static attn_status execute(void *arg) {
    struct call *call = arg;
    return attn_execute(call->plan, call->args);
}

/* Fills all outputs and the workspace with sentinels (layout.c; variant 0: NaN, 1: large numbers). */
static void poison(struct job *j, int plan_index, int variant) {
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        if (check_is_out(j->c->t[role].use)) attn_cli_check_poison(&j->c->t[role], variant);
    attn_cli_check_sentinel(j->ws_block, j->ws_block_bytes, variant);
    j->args.workspace_bytes = j->info[plan_index].workspace_bytes;
    j->args.workspace = j->args.workspace_bytes ? j->ws : NULL;
    if (j->s->gpu) j->args.workspace = attn_cli_check_copy_address(&j->device_copy[ATTN_ROLE_COUNT], j->args.workspace);
    copy_all(j, true);
}

/* Wait for the device and bring everything back. */
static int collect(struct job *j) {
    const char *fault = j->s->gpu ? attn_cli_check_device_wait(j->s->gpu) : NULL;
    if (!fault) return copy_all(j, false);
    attn_cli_check_report_fault(&j->report, "the device reports %s; nothing more can run on it", fault);
    j->s->gpu_lost = true;
    return -1;
}

/* Whether a byte next to the workspace has changed. variant: of the sentinel that was there. */
static bool workspace_guard_broken(const struct job *j, int variant) {
    uint8_t want[WS_GUARD];
    const uint8_t *end = j->ws + j->args.workspace_bytes;
    for (int side = 0; side < 2; side++) {
        const uint8_t *guard = side ? end : j->ws - WS_GUARD;
        /* the pattern depends on the address and the variant, not on where the workspace begins */
        for (size_t i = 0; i < WS_GUARD; i++) {
            uintptr_t a = (uintptr_t)(guard + i);
            want[i] = variant ? (uint8_t)((a & 1) ? 0x7a : 0x11 + (a >> 1) % 0x60)
                              : (uint8_t)((a & 1) ? 0xff : 0xf1 + (a >> 1) % 15);
        }
        if (memcmp(guard, want, WS_GUARD)) return true;
    }
    return false;
}

/* One run with plan[plan_index]. 0: its elements are in result[run]. 1: refused, rightly, since tensors are not aligned
 * enough. -1: failed and reported. -2: stopped by a signal inside the kernel. */
static int run_once(struct job *j, int run, int plan_index, int variant) {
    struct call call = {j->plan[plan_index], &j->args};
    attn_status st = ATTN_OK;
    char what[400];
    if (j->s->policies) attn_cli_policy(j->s->policies, run, j->s->seed_text);
    poison(j, plan_index, variant);
    st = attn_plan_check(call.plan, call.args);
    /* A strict plan has no second kernel for tensors that lack the alignment its kernel asks for. */
    if (st == ATTN_E_ALIGNMENT && j->k->alignment_bytes > j->c->p.align_bytes) return 1;
    /* The tester's strides are valid. Only a kernel that states an alignment may refuse them. */
    if (st == ATTN_E_STRIDE && j->k->alignment_bytes > (uint32_t)attn_dtype_bytes(j->c->p.dtype)) return 1;
    if (st) {
        attn_cli_check_report_fault(&j->report, "attn_plan_check refuses: %s: %s", attn_status_name(st),
                                    attn_last_error());
        return -1;
    }
    int number = attn_cli_check_guarded(execute, &call, j->repro, &st);
    if (number) {
        attn_cli_check_report_fault(&j->report, "stopped by signal %d (%s)", number, strsignal(number));
        return -2;
    }
    if (st) {
        attn_cli_check_report_fault(&j->report, "attn_execute: %s: %s", attn_status_name(st), attn_last_error());
        return -1;
    }
    if (collect(j)) return -1;
    if (workspace_guard_broken(j, variant))
        attn_cli_check_report_fault(&j->report, "wrote outside its workspace of %llu bytes",
                                    (unsigned long long)j->args.workspace_bytes);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_tensor *t = &j->c->t[role];
        if (t->use == ATTN_USE_NONE) continue;
        if (check_is_out(t->use) && t->given) attn_cli_check_load(t, j->result[run][role]);
        if (attn_cli_check_intact(t, &j->c->want[role], what, sizeof what))
            attn_cli_check_report_fault(&j->report, "%s: %s", attn_role_name(role), what);
    }
    return 0;
}

/* A workspace that is one byte short must be refused before anything is written. */
static void try_short_workspace(struct job *j) {
    char what[400];
    if (!j->info[0].workspace_bytes) return;
    poison(j, 0, 0);
    j->args.workspace_bytes--;
    attn_status a = attn_plan_check(j->plan[0], &j->args), b = attn_execute(j->plan[0], &j->args);
    if (a != ATTN_E_WORKSPACE || b != ATTN_E_WORKSPACE)
        attn_cli_check_report_fault(&j->report, "workspace one byte short: plan_check says %s, execute %s",
                                    attn_status_name(a), attn_status_name(b));
    if (collect(j)) return;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_tensor t = j->c->t[role];
        t.given = 0; /* no byte may have changed */
        if (check_is_out(t.use) && attn_cli_check_intact(&t, &j->c->want[role], what, sizeof what))
            attn_cli_check_report_fault(&j->report, "refused execution: %s: %s", attn_role_name(role), what);
    }
}

/* ---- judge --------------------------------------------------------------------------------------------------------
 */

/* Compares the outputs of a run with the case's answer, and reports those beyond their bounds. */
static void judge(struct job *j, int run, const char *label) {
    struct check_case *c = j->c;
    /* The ref kernel that made `want` can only be judged by the tester's own answer. */
    bool against_plain = j->k->backend == ATTN_BACKEND_REF && c->p.dtype == attn_cli_check_oracle_dtype(&c->p);
    struct check_verdict all[ATTN_ROLE_COUNT] = {0};
    bool failed[ATTN_ROLE_COUNT] = {false}, any = false;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const struct check_tensor *t = &c->t[role];
        struct check_verdict *v = &all[role];
        v->role = role;
        if (!check_is_out(t->use) || !t->given || t->n == 0) continue;
        double *got = malloc((size_t)t->n * sizeof *got);
        uint8_t *wrong = calloc((size_t)t->n, 1);
        if (!got || !wrong) {
            attn_cli_check_report_fault(&j->report, "the tester ran out of memory");
            free(got), free(wrong);
            return;
        }
        attn_cli_check_widen(got, j->result[run][role], t->view.dtype, t->n);
        struct check_bound b =
            attn_cli_check_bound(c, role, check_bound_dtype(c->p.dtype, j->k->math_dtype), against_plain);
        b.lost_nan = attn_cli_check_leaves_out(c, role) && !(j->s->gpu && check_half_dtype(c->p.dtype));
        b.loses = j->s->gpu && c->p.dtype == ATTN_F16;
        const struct check_want *w = &c->want[role];
        failed[role] = attn_cli_check_compare(w, against_plain ? w->plain : w->want, got, &b, wrong, v) != 0;
        if (failed[role])
            attn_cli_check_cluster(&t->view, wrong, attn_cli_check_axes(c, role), v->cluster, sizeof v->cluster);
        any |= failed[role];
        if (!(v->worst <= j->worst)) j->worst = v->worst;
        free(got), free(wrong);
    }
    if (!any) return;
    attn_cli_check_report_fault(&j->report, "%s:", label);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (failed[role]) attn_cli_check_report_verdict(&j->report, &all[role], true);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (!failed[role] && all[role].n) attn_cli_check_report_verdict(&j->report, &all[role], false);
}

/* The first element in which two runs differ in a bit, or NULL. Rows that no kernel may write are not compared: they
 * hold the sentinel of their run. */
static const char *differs(const struct job *j, int a, int b, char *text, size_t text_bytes) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const struct check_tensor *t = &j->c->t[role];
        const struct check_want *w = &j->c->want[role];
        if (!check_is_out(t->use) || !t->given || w->cols == 0) continue;
        size_t bytes = attn_dtype_bytes(t->view.dtype);
        for (int64_t element = 0; element < t->n; element++) {
            if (w->kind[element / w->cols] == CHECK_ROW_UNWRITTEN) continue;
            if (!memcmp((char *)j->result[a][role] + (size_t)element * bytes,
                        (char *)j->result[b][role] + (size_t)element * bytes, bytes))
                continue;
            char place[100];
            attn_cli_check_place_text(&t->view, element, attn_cli_check_axes(j->c, role), place, sizeof place);
            snprintf(text, text_bytes, "%s at (%s)", attn_role_name(role), place);
            return text;
        }
    }
    return NULL;
}

/* Runs 0: 1 thread, 1 and 2: many. Deterministic: 1 equals 2, or 0 if a case runs twice and many are one; bit-stable: 0
 * equals 1. Equal runs are judged once. */
static void compare_runs(struct job *j) {
    char text[2][160];
    const int thrice = j->s->runs == 3, rerun = thrice || j->s->threads == 1;
    const char *rerun_differs = rerun ? differs(j, 1, thrice ? 2 : 0, text[0], sizeof text[0]) : NULL,
               *threads_differ = differs(j, 0, 1, text[1], sizeof text[1]);
    if (rerun_differs && j->info[1].deterministic)
        attn_cli_check_report_fault(&j->report, "claims to be deterministic, but a second run differs in %s",
                                    rerun_differs);
    if (threads_differ && j->info[1].bit_stable)
        attn_cli_check_report_fault(&j->report, "claims to be bit-stable, but 1 and %d threads differ in %s",
                                    j->s->threads, threads_differ);
    judge(j, 0, "with 1 thread");
    if (threads_differ && !j->report.printed) judge(j, 1, "with many threads");
    if (thrice && rerun_differs && !j->report.printed) judge(j, 2, "with many threads, second run");
}

/* 0: judged, or failed and reported. 1: the kernel refuses the tensors, rightly. -2: stopped by a signal inside the
 * kernel, which may have left a lock taken: its plans must not be released. */
static int run_all(struct job *j) {
    if (make_plans(j) || j->report.printed) return 0;
    if (make_workspace(j) || fill_args(j)) {
        attn_cli_check_report_fault(&j->report, "the tester could not get memory");
        return 0;
    }
    for (int run = 0; run < j->s->runs; run++)
        for (int role = 0; role < ATTN_ROLE_COUNT; role++)
            if (check_is_out(j->c->t[role].use))
                if (!(j->result[run][role] =
                          malloc((size_t)j->c->t[role].n * attn_dtype_bytes(j->c->t[role].view.dtype) + 1))) {
                    attn_cli_check_report_fault(&j->report, "the tester could not get memory");
                    return 0;
                }
    int r = run_once(j, 0, 0, 0);
    if (r == -2 || r == 1) return r;
    if (j->c->seed % 8 == 0) try_short_workspace(j);
    for (int run = 1; run < j->s->runs && r == 0; run++) r = run_once(j, run, 1, run == 1);
    if (r == 1)
        attn_cli_check_report_fault(&j->report, "a plan for many threads refuses tensors that one for 1 thread takes");
    if (r == 0) compare_runs(j);
    return r == -2 ? r : 0;
}

/* supports() has refused: the reason must be there, and a strict plan must fail as well. */
static int check_refusal(struct job *j) {
    attn_plan_options options = by_name(j->k->name);
    attn_plan *plan = NULL;
    char why[300];
    snprintf(why, sizeof why, "%s", attn_last_error());
    if (!why[0]) attn_cli_check_report_fault(&j->report, "refuses without a reason");
    if (attn_plan_create(j->s->one, j->s->device, &j->c->p, &options, &plan) == ATTN_OK)
        attn_cli_check_report_fault(&j->report, "attn_kernel_supports refuses (%s), but a strict plan takes it", why);
    attn_plan_release(plan);
    attn_cli_check_report_close(&j->report, 0);
    return j->report.n_fail ? CHECK_FAIL : CHECK_SKIP;
}

int attn_cli_check_run(struct check_session *s, struct check_case *c, int32_t index, const attn_kernel_info *k,
                       double *worst) {
    struct job j = {.s = s, .c = c, .k = k, .report = {.session = s, .c = c, .kernel = k->name}};
    attn_status st = attn_kernel_supports(s->one, s->device, index, &c->p);
    if (st) return check_refusal(&j);
    if (s->gpu && c->p.dtype == ATTN_F32 && attn_cli_check_infinite(c)) return CHECK_SKIP; /* docs/semantics.md */
    attn_cli_check_repro(c, k->name, j.repro, sizeof j.repro);
    int r = run_all(&j);
    if (r == 0 && j.plan[0]) attn_cli_check_count_joined(c, s->one, &j.info[0], &s->joined[c->p.op]);
    attn_cli_check_report_close(&j.report, j.worst);
    if (!(j.worst <= *worst)) *worst = j.worst;
    for (int run = 0; run < RUNS; run++)
        for (int role = 0; role < ATTN_ROLE_COUNT; role++) free(j.result[run][role]);
    for (int t = 0; s->gpu && t <= ATTN_ROLE_COUNT; t++) attn_cli_check_copy_free(s->gpu, &j.device_copy[t]);
    free(j.ws_block);
    if (r != -2)
        for (int i = 0; i < 2; i++)
            attn_plan_release(j.plan[i]); /* after a fault inside the kernel they are left alone */
    return r == -2 ? CHECK_CRASH : j.report.n_fail ? CHECK_FAIL : r == 1 ? CHECK_SKIP : CHECK_PASS;
}
