/* SPDX-License-Identifier: MIT
 * Work of a problem: floating-point operations by the usual count, and least memory traffic. Not a time estimate:
 * kernels make their own. */
#include "attn.h"

#include "core/joined.h"
#include "core/plan.h"
#include "core/problem.h"

/* Sum over 0 <= i < n of min(max(i + c, 0), cap), exactly: an arithmetic series between two flat parts. 128 bits, as a
 * narrow window is the small difference of two sums near 2^96. */
__extension__ typedef __int128 wide;
static wide clamped_sum(int64_t n, int64_t c, int64_t cap) {
    int64_t rise = -c, full = cap - c; /* first i with i + c >= 0, first i with i + c >= cap */
    rise = rise < 0 ? 0 : rise > n ? n : rise;
    full = full < rise ? rise : full > n ? n : full;
    wide m = full - rise;
    return m * ((wide)rise + c) + m * (m - 1) / 2 + (wide)(n - full) * cap;
}

/* Query-key pairs of one head that rule 5 leaves visible: the sum of attn_core_key_range over the queries. */
static double visible_pairs(const attn_problem *p) {
    int64_t sq = p->seq_q, sk = p->seq_k, off = attn_core_has(p, ATTN_BOTTOM_RIGHT) ? sk - sq : 0;
    if (p->window_left + p->window_right < 0) return 0; /* the ends cross: no key */
    return (double)(clamped_sum(sq, off + p->window_right + 1, sk) - clamped_sum(sq, off - p->window_left, sk));
}

/* Packed lengths are bounded by SQ and SK each and by the totals together: sum sq*sk <= min(B*SQ*SK, TOTALQ*SK,
 * SQ*TOTALK). */
static double sequences(const attn_problem *p) {
    double n = (double)p->batch;
    if (!attn_core_has(p, ATTN_PACKED) || !p->seq_q || !p->seq_k) return n;
    double by_q = (double)p->total_q / (double)p->seq_q, by_k = (double)p->total_k / (double)p->seq_k;
    n = by_q < n ? by_q : n;
    return by_k < n && !attn_core_has(p, ATTN_PAGED) ? by_k : n;
}

double attn_core_flops(const attn_problem *p) {
    double d = (double)p->dim_qk, dv = (double)p->dim_v, heads = (double)p->heads_q;
    double slots = (double)p->batch * (double)p->seq_q * heads * (double)p->topk;
    switch (p->op) {
    case ATTN_OP_SDPA_FWD: return sequences(p) * heads * visible_pairs(p) * 2 * (d + dv);
    case ATTN_OP_SDPA_BWD: return sequences(p) * heads * visible_pairs(p) * 2 * (3 * d + 2 * dv);
    case ATTN_OP_MLA_FWD: return slots * 2 * (d + dv);
    case ATTN_OP_MLA_BWD: return slots * 2 * (3 * d + 2 * dv);
    case ATTN_OP_DIST: return slots * 2 * d;
    default: return 0;
    }
}

/* Of joined lists as short as one list: what is longer is left unwritten. */
static double joined_bytes(const attn_problem *p) {
    const struct attn_core_joined l = attn_core_joined_layout(p);
    const double queries = (double)p->batch * (double)p->seq_q, groups = (double)p->batch * (double)l.groups;
    const double blocks = (double)((p->topk + ATTN_JOINED_BLOCK - 1) / ATTN_JOINED_BLOCK);
    return 4 * (groups * (ATTN_JOINED_HEADER + blocks * (ATTN_JOINED_BLOCK + 2 * (double)p->group)) +
                queries * (double)l.slots_row);
}

double attn_core_bytes(const attn_problem *p) {
    double sum = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct attn_core_role r;
        attn_core_role_get(p, role, &r);
        /* Second copies and side results that few callers ask for are not part of the least traffic. */
        if (r.use == ATTN_USE_NONE || role == ATTN_ROLE_LSE_ROUNDED || role == ATTN_ROLE_MAX_LOGITS) continue;
        if (role == ATTN_ROLE_JOINED) { /* what attention reads of it restates the lists */
            if (p->op == ATTN_OP_MLA_JOIN) sum += joined_bytes(p);
            continue;
        }
        double bytes = (double)attn_dtype_bytes(r.dtype);
        for (int32_t a = 0; a < r.rank; a++) bytes *= (double)r.shape[a];
        if (attn_core_has(p, ATTN_PAGED) && (role == ATTN_ROLE_K || role == ATTN_ROLE_V)) {
            /* A pool holds other sequences' pages too: at most SK rows per sequence are read. */
            double pool = (double)p->n_pages * (double)p->page_size, read = (double)p->batch * (double)p->seq_k;
            if (read < pool) bytes *= read / pool;
        }
        sum += r.use == ATTN_USE_INOUT_OPTIONAL ? 2 * bytes : bytes;
    }
    return sum;
}

double attn_problem_flops(const attn_problem *problem) {
    attn_problem p;
    return attn_core_problem_normalise(problem, &p) ? 0 : attn_core_flops(&p);
}

double attn_problem_bytes(const attn_problem *problem) {
    attn_problem p;
    return attn_core_problem_normalise(problem, &p) ? 0 : attn_core_bytes(&p);
}
