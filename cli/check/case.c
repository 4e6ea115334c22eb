/* SPDX-License-Identifier: MIT
 * Makes a case from (problem, seed): modes, tensors by role, layouts, values, and the tester's own answer. The answer
 * of the ref kernel is oracle.c's part. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* Random, but consistent with the problem: a mode is set only where it can show. */
void attn_cli_check_modes(struct check_case *c) {
    static const struct {
        uint32_t mode;
        int percent, side; /* side: 0 both, 1 dense, 2 sparse */
    } table[] = {
        {CHECK_UNALIGNED, 50, 0},      {CHECK_AT_PAGE_END, 40, 0},    {CHECK_NEGATIVE_STRIDE, 25, 0},
        {CHECK_PERMUTED, 40, 0},       {CHECK_PADDED, 60, 0},         {CHECK_BROADCAST, 20, 0},
        {CHECK_OUTPUT_OMITTED, 25, 0}, {CHECK_NO_BATCH_AXIS, 50, 2},  {CHECK_FAR_NEGATIVE, 7, 0},
        {CHECK_NAN_QUERY, 5, 0},       {CHECK_NAN_KEY, 4, 0},         {CHECK_HIDDEN_NAN, 30, 0},
        {CHECK_MASK_PLUS_INF, 8, 1},   {CHECK_MASK_DEAD_ROWS, 25, 1}, {CHECK_HUGE, 7, 0},
        {CHECK_EQUAL_SCORES, 4, 0},    {CHECK_SINK_PLUS_INF, 20, 0},  {CHECK_SINK_MINUS_INF, 20, 0},
        {CHECK_WILD_LENGTHS, 25, 0},   {CHECK_BAD_PAGES, 40, 1},      {CHECK_EMPTY_ROWS, 25, 2},
        {CHECK_ONE_SLOT, 20, 2},       {CHECK_TWICE, 15, 2},          {CHECK_MANY_TIMES, 12, 2},
        {CHECK_ONE_KEY, 8, 2},         {CHECK_BAD_INDICES, 60, 2},    {CHECK_LSE_PLUS_INF, 30, 0},
        {CHECK_TOPK_EDGES, 50, 2},
    };
    const attn_problem *p = &c->p;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        bool yes = attn_cli_rng_below(&c->rng, 100) < table[k].percent;
        if (yes && (table[k].side == 0 || (table[k].side == 1) == check_dense(p))) c->modes |= table[k].mode;
    }
    if (check_dense(p) && c->seed >> 3 & 1) c->modes |= CHECK_MASK_LOW; /* no draw: numbers of a seed stay */
    if (check_backward(p) && ((c->seed >> 21 & 7) == 5 || (c->seed >> 20 & 15) == 1))
        c->modes |= CHECK_BAD_DOUT | (c->seed >> 45 & 1 ? CHECK_INF_DOUT : 0); /* nor here */
    uint32_t off = 0;
    if (!p->mask_dtype) off |= CHECK_MASK_DEAD_ROWS | CHECK_MASK_PLUS_INF | CHECK_MASK_LOW;
    if (p->mask_dtype == ATTN_BOOL) off |= CHECK_MASK_PLUS_INF | CHECK_MASK_LOW;
    if (!check_has(c, ATTN_SINK)) off |= CHECK_SINK_PLUS_INF | CHECK_SINK_MINUS_INF;
    if (!check_has(c, ATTN_PAGED)) off |= CHECK_BAD_PAGES;
    if (!check_has(c, ATTN_TOPK_LENGTH)) off |= CHECK_TOPK_EDGES;
    if (!(p->flags & (ATTN_SEQLENS_Q | ATTN_SEQLENS_K | ATTN_PACKED | ATTN_TOPK_LENGTH))) off |= CHECK_WILD_LENGTHS;
    if (p->op == ATTN_OP_SDPA_FWD || p->op == ATTN_OP_MLA_FWD) off |= CHECK_LSE_PLUS_INF;
    if (p->batch != 1) off |= CHECK_NO_BATCH_AXIS;
    if (p->op == ATTN_OP_DIST) off |= CHECK_OUTPUT_OMITTED;
    if (p->align_bytes) off |= CHECK_UNALIGNED;
    /* One special kind of score at a time: together they would hide each other. */
    if (c->modes & CHECK_FAR_NEGATIVE) off |= CHECK_HUGE | CHECK_EQUAL_SCORES;
    if (c->modes & CHECK_HUGE) off |= CHECK_EQUAL_SCORES;
    /* A NaN of dout reaches every visible key, on GPUs but those whose P is 0 in 16 bits (docs/semantics.md): it is
     * drawn where no P is that small. */
    if ((c->modes & (CHECK_HUGE | CHECK_SINK_PLUS_INF)) || p->alibi || p->mask_dtype || check_has(c, ATTN_SCALE) ||
        ((c->modes & CHECK_FAR_NEGATIVE) && check_has(c, ATTN_SINK)))
        off |= CHECK_BAD_DOUT | CHECK_INF_DOUT;
    c->modes &= ~off;
}

static void shape_of_role(struct check_case *c, int32_t role) {
    attn_tensor *v = &c->t[role].view;
    bool sloped = role == ATTN_ROLE_ALIBI || role == ATTN_ROLE_DALIBI;
    if (sloped && v->rank == 1) { /* the slopes may be [HQ], [1,HQ] or [B,HQ]; their gradient has the same form */
        uint64_t form = c->seed % 3;
        if (form == 0) return;
        v->rank = 2;
        v->shape[1] = c->p.heads_q;
        v->shape[0] = form == 1 ? 1 : c->p.batch;
    }
    if ((c->modes & CHECK_NO_BATCH_AXIS) && role != ATTN_ROLE_SINK && role != ATTN_ROLE_DSINK) {
        v->rank--;
        for (int a = 0; a < v->rank; a++) v->shape[a] = v->shape[a + 1];
    }
}

static int make_tensors(struct check_case *c) {
    /* A forward that is asked for nothing but out may take a shorter way. */
    const bool alone = (c->p.op == ATTN_OP_SDPA_FWD || c->p.op == ATTN_OP_MLA_FWD) && c->seed >> 8 & 1;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_tensor *t = &c->t[role];
        if (attn_role_tensor(&c->p, role, &t->use, &t->view)) return -1;
        if (t->use == ATTN_USE_NONE) continue;
        t->given = 1;
        bool optional = t->use == ATTN_USE_OUT_OPTIONAL || t->use == ATTN_USE_INOUT_OPTIONAL;
        if (optional && (c->modes & CHECK_OUTPUT_OMITTED) && (attn_cli_rng_below(&c->rng, 3) == 0 || alone))
            t->given = 0;
        shape_of_role(c, role);
        /* Broadcast over a batch axis would join rows that are hidden in one entry with visible ones of another. */
        uint32_t forbid = role != ATTN_ROLE_MASK && role != ATTN_ROLE_DMASK && (c->modes & CHECK_HIDDEN_NAN) ? 1 : 0;
        if (attn_cli_check_place(c, role, forbid)) return -1;
    }
    return 0;
}

static int make_want(struct check_case *c, int32_t role) {
    struct check_tensor *t = &c->t[role];
    struct check_want *w = &c->want[role];
    int32_t last = t->view.rank - 1;
    bool vector = role == ATTN_ROLE_OUT || role == ATTN_ROLE_DIST || (role >= ATTN_ROLE_DQ && role <= ATTN_ROLE_DKV);
    w->rows = vector ? attn_cli_check_rows(&t->view) : t->n;
    w->cols = vector ? t->view.shape[last] : 1;
    size_t n = (size_t)(w->rows * w->cols) + 1, rows = (size_t)w->rows + 1;
    bool half = vector && role != ATTN_ROLE_DIST && check_half_dtype(c->p.dtype);
    w->want = calloc(n, sizeof *w->want);
    w->plain = calloc(n, sizeof *w->plain);
    w->half = half ? calloc(n, sizeof *w->half) : NULL;
    w->terms = calloc(rows, sizeof *w->terms);
    w->roundings = calloc(rows, sizeof *w->roundings);
    w->noise = calloc(rows, sizeof *w->noise);
    w->lost = calloc(rows, sizeof *w->lost);
    w->score = calloc(rows, sizeof *w->score);
    w->kind = calloc(rows, 1);
    return w->want && w->plain && (!half || w->half) && w->terms && w->roundings && w->noise && w->lost && w->score &&
                   w->kind
               ? 0
               : -1;
}

/* Backward operators and dist read what a forward has written: the plain forward's answer, rounded to the tensors'
 * types. */
static int make_forward_inputs(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_tensor *out = &c->t[ATTN_ROLE_OUT], *lse = &c->t[ATTN_ROLE_LSE];
    if (lse->use != ATTN_USE_IN) return 0;
    bool lent = !out->val; /* dist reads lse alone; the forward still needs room for out */
    if (lent) out->val = calloc((size_t)(p->batch * p->heads_q * p->seq_q * p->dim_v) + 1, sizeof *out->val);
    int bad =
        !out->val || (check_dense(p) ? attn_cli_check_plain_dense(c, true) : attn_cli_check_plain_sparse(c, true));
    if (lent) {
        free(out->val);
        out->val = NULL;
    }
    return bad || (!lent && attn_cli_check_store(out)) || attn_cli_check_store(lse);
}

int attn_cli_check_case_make(struct check_case *c, const attn_problem *p, uint64_t seed,
                             const struct attn_cli_overlap *overlap) {
    memset(c, 0, sizeof *c);
    c->p = *p;
    c->seed = seed;
    c->overlap = *overlap;
    attn_cli_rng_seed(&c->rng, seed ^ UINT64_C(0x636865636b));
    c->text = attn_cli_problem_text(p);
    attn_cli_check_modes(c);
    bool dense = check_dense(p);
    int bad = !c->text || make_tensors(c) || (dense ? attn_cli_check_data_dense(c) : attn_cli_check_data_sparse(c));
    bad = bad || make_forward_inputs(c);
    for (int32_t role = 0; !bad && role < ATTN_ROLE_COUNT; role++)
        if (check_is_out(c->t[role].use)) bad = make_want(c, role);
    if (!bad)
        bad = dense           ? attn_cli_check_plain_dense(c, false)
              : check_join(p) ? attn_cli_check_plain_join(c)
                              : attn_cli_check_plain_sparse(c, false);
    if (bad) {
        fprintf(stderr, "attn check: cannot make a case of \"%s\" (seed %llu)\n", c->text ? c->text : "?",
                (unsigned long long)seed);
        attn_cli_check_case_free(c);
        return -1;
    }
    attn_cli_check_case_want_plain(c);
    return 0;
}

void attn_cli_check_case_want_plain(struct check_case *c) {
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_want *w = &c->want[role];
        if (w->plain) memcpy(w->want, w->plain, (size_t)(w->rows * w->cols) * sizeof *w->want);
    }
}

void attn_cli_check_case_free(struct check_case *c) {
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_want *w = &c->want[role];
        attn_cli_check_drop(&c->t[role]);
        free(w->want), free(w->plain), free(w->half), free(w->terms), free(w->roundings), free(w->noise), free(w->lost),
            free(w->score), free(w->kind);
    }
    free(c->seq);
    free(c->text);
    memset(c, 0, sizeof *c);
}
