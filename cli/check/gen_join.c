/* SPDX-License-Identifier: MIT
 * Random problems of mla_join. What must be hit is listed in cover.c. */
#include "check.h"

static int64_t below(struct attn_cli_rng *r, int64_t n) { return attn_cli_rng_below(r, n); }
static bool chance(struct attn_cli_rng *r, int64_t percent) { return below(r, 100) < percent; }
#define PICK(r, table) ((table)[below((r), (int64_t)(sizeof(table) / sizeof *(table)))])

void attn_cli_check_gen_join(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t slots[] = {1, 2, 7, 31, 63, 64, 65, 66, 100, 127, 128, 129, 200, 300};
    static const int64_t far_keys[] = {1000, 5000, 40000, 300000, INT64_C(1) << 26, INT64_C(1) << 31};
    *p = (attn_problem)ATTN_PROBLEM_INIT;
    p->op = ATTN_OP_MLA_JOIN;
    p->dtype = ATTN_I32;
    p->group = INT64_C(2) << below(r, 4);
    p->topk = chance(r, 75) ? PICK(r, slots) : chance(r, 85) ? 1 + below(r, 400) : 1 + below(r, 2048);
    p->batch = chance(r, 30) ? 2 + below(r, 2) : 1;
    p->seq_q = chance(r, 50) ? p->group * (1 + below(r, 2)) : 1 + below(r, 40);
    p->seq_k = chance(r, 60) ? 1 + below(r, 300) : PICK(r, far_keys);
    if (chance(r, 2)) p->seq_k = 0;
    if (chance(r, 2)) p->seq_q = 0;
    if (chance(r, 1)) p->batch = 0;
    while (p->seq_q * p->topk > 8192 && p->seq_q > 1) p->seq_q = (p->seq_q + 1) / 2;
    if (chance(r, 50)) {
        const int64_t keys = p->seq_k < 1000 ? p->seq_k : 1000;
        p->flags |= ATTN_CAUSAL;
        p->k_stride = chance(r, 40) ? 4 : chance(r, 50) ? 1 : below(r, 6);
        p->q_start = chance(r, 30) ? 0 : below(r, 2 * (keys + 1) * (p->k_stride > 1 ? p->k_stride : 1));
    }
    if (chance(r, 45)) p->flags |= ATTN_TOPK_LENGTH;
    if (chance(r, 35)) p->flags |= ATTN_DETERMINISTIC;
    if (chance(r, 30)) p->union_limit = 1 + below(r, 2 * p->topk);
    if (chance(r, 20)) p->align_bytes = chance(r, 70) ? 16 : 128;
}
