/* SPDX-License-Identifier: MIT
 * Random dense problems: every feature with every other, sizes that are odd, empty, long or lopsided, each small enough
 * for a reference that is straight loops. What must be hit is listed in cover.c. */
#include "check.h"

#include <string.h>

static int64_t below(struct attn_cli_rng *r, int64_t n) { return attn_cli_rng_below(r, n); }
static bool chance(struct attn_cli_rng *r, int64_t percent) { return below(r, 100) < percent; }
#define PICK(r, table) ((table)[below((r), (int64_t)(sizeof(table) / sizeof *(table)))])

static void choose_dims(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t dims[] = {1, 8, 32, 40, 64, 72, 80, 96, 128, 160, 192, 224, 256, 320, 512};
    p->dim_qk = PICK(r, dims);
    p->dim_v = chance(r, 65) ? p->dim_qk : PICK(r, dims);
    if (chance(r, 10)) p->dim_qk = 1 + below(r, 150); /* no multiple of anything */
    if (chance(r, 10)) p->dim_v = 1 + below(r, 150);
    if (chance(r, 2)) p->dim_qk = 0;
    if (chance(r, 2)) p->dim_v = 0;
}

static void choose_heads(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t heads[] = {1, 2, 3, 4, 4, 6, 8, 8, 12, 16};
    p->heads_q = PICK(r, heads);
    switch (below(r, 4)) {
    case 0: p->heads_k = 1; break;
    case 1: p->heads_k = p->heads_q % 4 ? 1 : p->heads_q / 4; break;
    case 2: p->heads_k = p->heads_q % 2 ? p->heads_q : p->heads_q / 2; break;
    default: p->heads_k = p->heads_q; break;
    }
    p->batch = 1 + (chance(r, 50) ? below(r, 3) : 0);
    if (chance(r, 1)) p->batch = 0;
}

static int64_t odd_length(struct attn_cli_rng *r, int64_t most) {
    static const int64_t edges[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 95, 96, 97, 127, 128, 129};
    int64_t n = chance(r, 45) ? PICK(r, edges) : 1 + below(r, most);
    return n < most ? n : most;
}

static void choose_lengths(struct attn_cli_rng *r, attn_problem *p) {
    switch (below(r, 8)) {
    case 0: /* decode */
    case 1:
        p->seq_q = 1 + below(r, 4);
        p->seq_k = chance(r, 30) ? 512 + below(r, 1489) : odd_length(r, 400);
        break;
    case 2: p->seq_q = 1 + below(r, 40), p->seq_k = p->seq_q + below(r, 90); break;
    case 3: p->seq_k = 1 + below(r, 40), p->seq_q = p->seq_k + below(r, 90); break;
    case 4: p->seq_q = p->seq_k = odd_length(r, 130); break;
    default: p->seq_q = odd_length(r, 130), p->seq_k = odd_length(r, 200); break;
    }
    if (chance(r, 2)) p->seq_q = 0;
    if (chance(r, 2)) p->seq_k = 0;
}

static void shrink(struct attn_cli_rng *r, attn_problem *p) {
    double budget = chance(r, 75) ? 2.5e6 : chance(r, 80) ? 5e6 : 1.2e7;
    for (;;) {
        double work = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k *
                      (double)(p->dim_qk + p->dim_v);
        if (work <= budget) return;
        if (p->batch > 1 && chance(r, 50))
            p->batch--;
        else if (p->heads_q >= 2 * p->heads_k && p->heads_q % (2 * p->heads_k) == 0 && chance(r, 50))
            p->heads_q /= 2;
        else if (p->heads_k > 1 && p->heads_k % 2 == 0 && p->heads_q % 2 == 0 && chance(r, 50))
            p->heads_k /= 2, p->heads_q /= 2;
        else if (p->seq_q > 8 && (p->seq_k < 64 || chance(r, 60)))
            p->seq_q -= 1 + p->seq_q / 5;
        else if (p->seq_k > 8)
            p->seq_k -= 1 + p->seq_k / 5;
        else
            return;
    }
}

static void choose_visibility(struct attn_cli_rng *r, attn_problem *p) {
    if (chance(r, 40)) p->flags |= ATTN_CAUSAL;
    if (chance(r, 40)) p->flags |= ATTN_BOTTOM_RIGHT;
    static const int64_t sides[] = {0, 1, 3, 7, 16, 31, 64, 100, -1, -3, -17};
    static const int64_t extremes[] = {INT64_MAX, INT64_MIN, INT64_MAX / 2, 1000000007, -1000000007};
    if (chance(r, 28)) {
        p->flags |= ATTN_WINDOW_LEFT;
        p->window_left = chance(r, 93) ? PICK(r, sides) : PICK(r, extremes);
    }
    if (chance(r, 22)) {
        p->flags |= ATTN_WINDOW_RIGHT;
        p->window_right = chance(r, 93) ? PICK(r, sides) : PICK(r, extremes);
    }
}

static void choose_scores(struct attn_cli_rng *r, attn_problem *p) {
    static const double scales[] = {0, -0.125, 0.5, 1.0, 0.01, -0.7}, caps[] = {30, 30, 50, 1.5, 0.4};
    static const int32_t masks[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BOOL};
    if (chance(r, 35)) {
        p->flags |= ATTN_SCALE;
        p->scale = PICK(r, scales);
    }
    if (chance(r, 25)) p->softcap = PICK(r, caps);
    if (chance(r, 30)) p->alibi = chance(r, 50) ? ATTN_ALIBI_LINEAR : ATTN_ALIBI_DISTANCE;
    if (chance(r, 35)) p->mask_dtype = PICK(r, masks);
    if (chance(r, 22)) p->flags |= ATTN_SINK;
    if ((p->flags & ATTN_SINK) && chance(r, 45)) p->flags |= ATTN_LSE_WITH_SINK;
    if (chance(r, 22)) p->flags |= ATTN_LSE_BASE_2;
    if (chance(r, 20)) p->flags |= ATTN_LSE_EMPTY_PLUS_INF;
}

/* Lengths beside offsets. */
static const uint64_t packed_lengths[7] = {
    [1] = ATTN_SEQLENS_Q, [3] = ATTN_SEQLENS_K, [5] = ATTN_SEQLENS_Q | ATTN_SEQLENS_K};

/* Queries of packed sequences on paged keys, as inference engines call. No draw: numbers of a seed stay. */
static void pack_queries(attn_problem *p) {
    p->flags |= ATTN_PACKED;
    if (!p->batch) p->batch = 1;
    p->total_q =
        p->seq_q * p->batch - (p->n_pages * 7 + p->max_pages) % (p->seq_q * (p->batch - 1) + 1) + p->n_pages % 4;
    if (p->max_pages % 2) p->flags |= ATTN_FILL_PADDING;
    if (!p->mask_dtype && p->n_pages % 7 == 0) p->seq_q = INT64_C(1) << 20; /* a bound that no sequence can reach */
}

static void choose_storage(struct attn_cli_rng *r, attn_problem *p) {
    static const int64_t pages[] = {1, 2, 5, 16, 16, 64, 256};
    if (p->op == ATTN_OP_SDPA_FWD && chance(r, 14)) {
        p->flags |= ATTN_PAGED | ATTN_SEQLENS_K;
        p->page_size = PICK(r, pages);
        p->max_pages = (p->seq_k + p->page_size - 1) / p->page_size + below(r, 3);
        p->n_pages = 1 + below(r, p->max_pages * (p->batch ? p->batch : 1) + 3);
        if (chance(r, 3)) p->n_pages = 0;
        if (chance(r, 40)) p->flags |= ATTN_SEQLENS_Q;
        if ((p->n_pages + p->max_pages) % 5 < 2) pack_queries(p);
    } else if (chance(r, 16)) {
        p->flags |= ATTN_PACKED;
        p->batch = 1 + below(r, 4);
        shrink(r, p);
        p->total_q = p->seq_q * p->batch - below(r, p->seq_q * (p->batch - 1) + 1) + below(r, 4);
        p->total_k = p->seq_k * p->batch - below(r, p->seq_k * (p->batch - 1) + 1) + below(r, 4);
        if (chance(r, 3)) p->total_k = 0;
        if ((p->total_q + p->total_k) % 2) p->flags |= ATTN_FILL_PADDING; /* no draw: numbers of a seed stay */
        p->flags |= packed_lengths[p->total_q % 7];
        /* bounds that no sequence can reach: neither time nor results follow them */
        if (!p->mask_dtype && chance(r, 15)) p->seq_q = INT64_C(1) << (20 + below(r, 10));
        if (!p->mask_dtype && chance(r, 15)) p->seq_k = INT64_C(1) << (20 + below(r, 10));
    } else {
        if (chance(r, 16)) p->flags |= ATTN_SEQLENS_Q;
        if (chance(r, 20)) p->flags |= ATTN_SEQLENS_K;
    }
}

/* No draw: numbers of a seed stay. */
static void choose_results(attn_problem *p) {
    if ((check_half_dtype(p->dtype) || p->dtype == ATTN_E4M3) && (p->seq_q + p->seq_k + p->dim_v) % 4 == 1)
        p->out_dtype = ATTN_F32;
    if ((3 * p->seq_q + p->seq_k + p->heads_q) % 6 == 2) p->flags |= ATTN_MAX_LOGITS;
}

static void choose_gradients(struct attn_cli_rng *r, attn_problem *p) {
    if (chance(r, 35)) p->flags |= ATTN_DLSE;
    if (p->mask_dtype && p->mask_dtype != ATTN_BOOL && chance(r, 65)) p->flags |= ATTN_GRAD_MASK;
    if (p->alibi && chance(r, 65)) p->flags |= ATTN_GRAD_ALIBI;
    if ((p->flags & ATTN_SINK) && chance(r, 65)) p->flags |= ATTN_GRAD_SINK;
}

void attn_cli_check_gen_dense(struct attn_cli_rng *r, int32_t op, int32_t dtype, attn_problem *p) {
    *p = (attn_problem)ATTN_PROBLEM_INIT;
    p->op = op;
    p->dtype = dtype;
    choose_dims(r, p);
    choose_heads(r, p);
    choose_lengths(r, p);
    shrink(r, p);
    choose_visibility(r, p);
    choose_scores(r, p);
    choose_storage(r, p);
    if (op == ATTN_OP_SDPA_BWD)
        choose_gradients(r, p);
    else
        choose_results(p);
    if (chance(r, 25)) p->flags |= ATTN_DETERMINISTIC;
    if (chance(r, 20)) p->align_bytes = chance(r, 70) ? 16 : 128;
}
