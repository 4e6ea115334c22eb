/* SPDX-License-Identifier: MIT
 * The problem inside the library: struct copy by the size rule, checks, and the normalised form that kernels read. */
#ifndef ATTN_CORE_PROBLEM_H
#define ATTN_CORE_PROBLEM_H
#include "attn.h"

/* Stands for "no bound" in a normalised window; sums of a few of them with any extent do not overflow. */
#define ATTN_UNBOUNDED (INT64_MAX / 8)

/* Copy a caller's versioned struct: shorter = zero tail, longer = tail must be zero. `known` is our sizeof. */
attn_status attn_core_struct_copy(void *dst, size_t known, const void *src, const char *what);

/* Check (attn_problem_check) and normalise: *out has
 *   scale filled in; k_stride >= 1 (sparse); dkv_dtype filled in; out_dtype 0 where it is dtype (e4m3: bf16);
 *   softcap 0 or > 0;
 *   window_left, window_right in [-ATTN_UNBOUNDED, ATTN_UNBOUNDED], ATTN_UNBOUNDED where no bound;
 *   causal turned into window_right = 0 (sdpa);
 *   packed without a mask: seq_q and seq_k at most the totals (or 1). Flags stay as the caller set them. */
attn_status attn_core_problem_normalise(const attn_problem *in, attn_problem *out);

/* The problem's meaning as a struct to compare: normalised, unread fields zero, flags that a value stands for cleared.
 * Does not check; fails only on a bad struct size. Not for kernels: they read the normalised form. */
attn_status attn_core_problem_meaning(const attn_problem *in, attn_problem *out);

/* attn_problem_flops and attn_problem_bytes of a problem that is normalised: without another check. */
double attn_core_flops(const attn_problem *normalised);
double attn_core_bytes(const attn_problem *normalised);

const char *attn_core_op_name(int32_t op); /* "sdpa_fwd"; "?" if unknown */

/* Every flag: its constant, its word in a problem text ("" = implied by a value), and the operators that define it. */
struct attn_core_flag {
    uint64_t bit;
    const char *name, *word;
    uint32_t ops; /* 1 << ATTN_OP_* */
};
extern const struct attn_core_flag attn_core_flags[];
extern const int32_t attn_core_n_flags;

static inline int attn_core_has(const attn_problem *p, uint64_t flag) { return (p->flags & flag) != 0; }
/* dtype of out without out_dtype: the problem's, but e4m3 is one of inputs alone. */
static inline int32_t attn_core_plain_dtype(const attn_problem *p) {
    return p->dtype == ATTN_E4M3 ? ATTN_BF16 : p->dtype;
}
static inline int attn_core_is_scale(int32_t role) {
    return role == ATTN_ROLE_Q_SCALE || role == ATTN_ROLE_K_SCALE || role == ATTN_ROLE_V_SCALE;
}

/* Keys [*j0, *j1) that rule 5 (causal, windows) leaves visible to query i of a sequence of sq queries and sk keys. Both
 * lie in 0 .. sk, however far away a window is, and grow with i. */
static inline void attn_core_key_range(const attn_problem *p, int64_t sq, int64_t sk, int64_t i, int64_t *j0,
                                       int64_t *j1) {
    int64_t diagonal = i + (attn_core_has(p, ATTN_BOTTOM_RIGHT) ? sk - sq : 0);
    int64_t lo = diagonal - p->window_left, hi = diagonal + p->window_right;
    *j0 = lo < 0 ? 0 : lo < sk ? lo : sk;
    *j1 = hi >= sk ? sk : hi + 1;
    if (*j1 < *j0) *j1 = *j0;
}
/* Queries [*i0, *i1) that see key j: the inverse of the above. */
static inline void attn_core_query_range(const attn_problem *p, int64_t sq, int64_t sk, int64_t j, int64_t *i0,
                                         int64_t *i1) {
    int64_t diagonal = j - (attn_core_has(p, ATTN_BOTTOM_RIGHT) ? sk - sq : 0);
    int64_t lo = diagonal - p->window_right, hi = diagonal + p->window_left;
    *i0 = lo < 0 ? 0 : lo < sq ? lo : sq;
    *i1 = hi >= sq ? sq : hi + 1;
    if (*i1 < *i0) *i1 = *i0;
}
#endif
