/* SPDX-License-Identifier: MIT
 * Random sparse problems: mla_fwd, mla_bwd and dist. What must be hit is listed in cover.c. */
#include "check.h"

static int64_t below(struct attn_cli_rng *r, int64_t n) { return attn_cli_rng_below(r, n); }
static bool chance(struct attn_cli_rng *r, int64_t percent) { return below(r, 100) < percent; }
#define PICK(r, table) ((table)[below((r), (int64_t)(sizeof(table) / sizeof *(table)))])

static void choose_sizes(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t heads[] = {1, 1, 7, 7, 16, 16, 64, 64, 128, 128, 3, 33, 192};
    static const int64_t slots[] = {1, 2, 7, 31, 63, 64, 65, 66, 100, 127, 128, 129, 200, 300};
    p->heads_q = PICK(r, heads);
    p->heads_k = 1;
    p->topk = chance(r, 70) ? PICK(r, slots) : chance(r, 85) ? 1 + below(r, 400) : 1 + below(r, 2048);
    p->batch = chance(r, 30) ? 2 + below(r, 2) : 1;
    p->seq_q = 1 + below(r, 12);
    p->seq_k = chance(r, 75) ? 1 + below(r, 80) : 1 + below(r, 500);
    if (chance(r, 2)) p->seq_k = 0;
    if (chance(r, 2)) p->seq_q = 0;
    if (chance(r, 1)) p->batch = 0;
    p->dim_qk = chance(r, 60) ? 576 : 512;
    p->dim_v = 512;
    double budget = chance(r, 75) ? 3e6 : chance(r, 80) ? 8e6 : 2.5e7;
    while ((double)p->batch * (double)p->seq_q * (double)p->heads_q * (double)p->topk * (double)(p->dim_qk + p->dim_v) >
           budget) {
        if (p->batch > 1 && chance(r, 50))
            p->batch--;
        else if (p->seq_q > 2 || (p->seq_q == 2 && chance(r, 50)))
            p->seq_q--;
        else if (p->topk > 70 && chance(r, 50))
            p->topk -= 1 + p->topk / 4;
        else if (p->heads_q > 16 && chance(r, 20))
            p->heads_q = 16;
        else if (p->topk > 7 && chance(r, 30))
            p->topk -= 1 + p->topk / 4;
        else if (p->topk <= 7 && p->heads_q <= 16)
            break;
    }
}

/* Joined lists as an input: of as many queries as share 64 rows, or half or twice as many. No draw: numbers of a seed
 * stay. */
static void choose_group(attn_problem *p) {
    const int64_t sum = p->seq_q + p->seq_k + p->topk;
    if (sum % 3) return;
    p->group = 16;
    while (p->group > 2 && p->group * p->heads_q > 64) p->group /= 2;
    if (sum % 9 == 3 && p->group > 2) p->group /= 2;
    if (sum % 27 == 6 && p->group < 16) p->group *= 2;
}

void attn_cli_check_gen_sparse(struct attn_cli_rng *r, int32_t op, int32_t dtype, attn_problem *p) {
    static const double scales[] = {0, -0.05, 0.1, 0.3, 0.01};
    *p = (attn_problem)ATTN_PROBLEM_INIT;
    p->op = op;
    p->dtype = dtype;
    choose_sizes(r, p);
    if (chance(r, 50)) {
        p->flags |= ATTN_CAUSAL;
        p->k_stride = chance(r, 40) ? 4 : chance(r, 50) ? 1 : below(r, 6);
        p->q_start = chance(r, 30) ? 0 : below(r, 2 * (p->seq_k + 1) * (p->k_stride > 1 ? p->k_stride : 1));
    }
    if (chance(r, 35)) {
        p->flags |= ATTN_SCALE;
        p->scale = PICK(r, scales);
    }
    if (chance(r, 45)) p->flags |= ATTN_TOPK_LENGTH;
    if (chance(r, 40)) p->flags |= ATTN_LSE_BASE_2;
    if (chance(r, 20)) p->flags |= ATTN_LSE_EMPTY_PLUS_INF;
    if (op != ATTN_OP_DIST && chance(r, 35)) p->flags |= ATTN_SINK;
    if (op == ATTN_OP_MLA_BWD) {
        if (chance(r, 40)) p->flags |= ATTN_DLSE;
        if (chance(r, 40)) p->flags |= ATTN_ACCUMULATE;
        if (chance(r, 40)) p->flags |= ATTN_WITH_DIST;
        if ((p->flags & ATTN_SINK) && chance(r, 65)) p->flags |= ATTN_GRAD_SINK;
        if (chance(r, 50)) p->dkv_dtype = ATTN_F32;
    }
    if (op == ATTN_OP_MLA_FWD && check_half_dtype(dtype) && (p->seq_q + p->seq_k + p->topk) % 4 == 1)
        p->out_dtype = ATTN_F32; /* no draw: numbers of a seed stay */
    if (op == ATTN_OP_DIST || (p->flags & ATTN_WITH_DIST)) p->dist_norm = (int32_t)below(r, ATTN_DIST_COUNT_);
    if (chance(r, 35)) p->flags |= ATTN_DETERMINISTIC;
    if (chance(r, 20)) p->align_bytes = chance(r, 70) ? 16 : 128;
    choose_group(p);
}

/* Few heads and more queries, so that neighbours fill tiles together: what rows for joined lists take, also where the
 * lists come with the problem. */
void attn_cli_check_gen_vary(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t heads[] = {1, 2, 4, 5, 8, 8, 12, 16, 17, 24, 31, 32, 32, 48, 64};
    if (check_dense(p) || check_join(p) || chance(r, 30)) return;
    p->heads_q = PICK(r, heads);
    if (p->seq_q) p->seq_q = 1 + below(r, 30);
    p->group = chance(r, 60) ? 0 : INT64_C(2) << below(r, 4);
    const double row = (double)(p->batch * p->heads_q) * (double)(p->dim_qk + p->dim_v);
    while ((double)p->seq_q * (double)p->topk * row > 1.2e7) {
        if (p->topk > 70)
            p->topk -= p->topk / 4;
        else if (p->seq_q > 3)
            p->seq_q -= p->seq_q / 4;
        else
            break;
    }
}
