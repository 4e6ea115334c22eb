/* SPDX-License-Identifier: MIT
 * Problems with an empty extent: every kernel that accepts one writes what docs/semantics.md says and nothing else, and
 * every kernel has an estimate for it. The random problems of `attn check` have them, too, but few. */
#define _GNU_SOURCE /* strsep */
#include "prop.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct extent {
    size_t offset, also; /* extents that are empty together */
    uint64_t flag;       /* of problems that have it; 0: all */
    bool dense;          /* of dense operators alone */
} extents[] = {
#define EXTENT(member, also, ...)                                                                                      \
    { offsetof(attn_problem, member), offsetof(attn_problem, also), __VA_ARGS__ }
    EXTENT(batch, batch, 0, false),
    EXTENT(heads_q, heads_k, 0, true),
    EXTENT(seq_q, seq_q, 0, false),
    EXTENT(seq_k, seq_k, 0, false),
    EXTENT(dim_qk, dim_qk, 0, true),
    EXTENT(dim_v, dim_v, 0, true),
    EXTENT(total_q, total_q, ATTN_PACKED, true),
    EXTENT(total_k, total_k, ATTN_PACKED, true),
    EXTENT(n_pages, n_pages, ATTN_PAGED, true),
    EXTENT(max_pages, seq_k, ATTN_PAGED, true),
};

static void set_zero(attn_problem *p, size_t offset) { memset((char *)p + offset, 0, sizeof p->batch); }

/* One extent that the problem has, in a third of the problems two. */
static void empty(struct prop_run *r, attn_problem *p) {
    for (int64_t left = prop_below(r, 3) == 0 ? 2 : 1; left > 0;) {
        const struct extent *e = &extents[prop_below(r, (int64_t)(sizeof extents / sizeof *extents))];
        if ((e->dense && !check_dense(p)) || (e->flag && !(p->flags & e->flag))) continue;
        set_zero(p, e->offset), set_zero(p, e->also);
        left--;
    }
}

struct question {
    struct prop_run *run;
    const attn_problem *problem;
    char *text; /* of attn_explain */
};
static attn_status explain(void *arg) {
    struct question *q = arg;
    const struct check_session *s = q->run->session;
    size_t needed = 0;
    attn_explain(s->one, s->device, q->problem, NULL, NULL, 0, &needed);
    q->text = malloc(needed + 1);
    return q->text ? attn_explain(s->one, s->device, q->problem, NULL, q->text, needed, NULL) : ATTN_E_MEMORY;
}

/* What every kernel of the operator says of the problem, and its estimate: without one it would never be chosen. */
static int estimates_known(struct prop_run *r, const attn_problem *p) {
    struct question q = {r, p, NULL};
    attn_status st = ATTN_OK;
    int got = PROP_PASS, number = attn_cli_check_guarded(explain, &q, r->problem, &st);
    if (number) return attn_cli_prop_failed(r, "attn_explain: stopped by signal %d (%s)", number, strsignal(number));
    if (st) got = attn_cli_prop_failed(r, "attn_explain: %s: %s", attn_status_name(st), attn_last_error());
    for (char *rest = q.text, *line; !got && (line = strsep(&rest, "\n"));)
        if (strstr(line, "est unknown") && !strstr(line, "_ref_"))
            got = attn_cli_prop_failed(r, "the estimate is not finite: %s", line);
    free(q.text);
    return got;
}

static int run_case(struct prop_run *r, const attn_problem *p) {
    struct check_case c;
    char why[300];
    double worst = 0;
    if (attn_cli_check_case_make(&c, p, r->seed, &r->session->overlap))
        return attn_cli_prop_failed(r, "the tester could not make the case");
    int got = PROP_PASS;
    if (attn_cli_check_joined_input(&c, r->session->one, why, sizeof why)) {
        got = attn_cli_prop_failed(r, "joined lists: %s", why);
    } else {
        const int run = attn_cli_check_run(r->session, &c, r->index, r->kernel, &worst);
        if (run == CHECK_FAIL || run == CHECK_CRASH) got = attn_cli_prop_failed(r, "as the lines above say");
        if (run == CHECK_SKIP) got = PROP_SKIP;
    }
    attn_cli_check_case_free(&c);
    return got;
}

static int empty_extent(struct prop_run *r) {
    const int32_t op = r->kernel->op, dtype = r->kernel->dtype;
    const bool plain = prop_below(r, 2) == 0;
    attn_problem p;
    size_t needed;
    if (op == ATTN_OP_MLA_JOIN)
        attn_cli_check_gen_join(&r->rng, &p);
    else if (plain)
        p = attn_cli_prop_problem(r);
    else if (op == ATTN_OP_SDPA_FWD || op == ATTN_OP_SDPA_BWD)
        attn_cli_check_gen_dense(&r->rng, op, dtype, &p);
    else
        attn_cli_check_gen_sparse(&r->rng, op, dtype, &p);
    empty(r, &p);
    attn_problem_format(&p, r->problem, sizeof r->problem, &needed);
    if (attn_problem_check(&p)) return attn_cli_prop_failed(r, "%s", attn_last_error()), PROP_SKIP;
    const int got = estimates_known(r, &p);
    if (got) return got;
    if (attn_kernel_supports(r->session->one, r->session->device, r->index, &p))
        return attn_cli_prop_failed(r, "%s", attn_last_error()), PROP_SKIP;
    return run_case(r, &p);
}

const struct prop attn_cli_props_empty[] = {
    {"an empty extent", ATTN_OP_SDPA_FWD, empty_extent, 0},
    {"an empty extent", ATTN_OP_SDPA_BWD, empty_extent, 0},
    {"an empty extent", ATTN_OP_MLA_FWD, empty_extent, 0},
    {"an empty extent", ATTN_OP_MLA_BWD, empty_extent, 0},
    {"an empty extent", ATTN_OP_DIST, empty_extent, 0},
    {"an empty extent", ATTN_OP_MLA_JOIN, empty_extent, 0},
    {0},
};
