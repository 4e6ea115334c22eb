/* SPDX-License-Identifier: MIT
 * Which bound each output must meet: that of its role (shared/tolerance.c), and what data of a case adds. Where a bound
 * has a reason, it stands in docs/numerics.md. */
#include "check.h"

#include <math.h>

#define U32 0x1p-24
#define U64 0x1p-53

/* Whether a query's heads are one, and so their errors: they have the same slots. */
static bool same_heads(const struct check_case *c) {
    const struct check_tensor *q = &c->t[ATTN_ROLE_Q];
    return q->broadcast[q->view.rank - 2];
}

/* 0 times an infinity: NaN on GPUs in 16 bits, anything elsewhere (docs/semantics.md). */
bool attn_cli_check_leaves_out(const struct check_case *c, int32_t role) {
    return attn_cli_check_infinite(c) && c->p.softcap > 0 && (role == ATTN_ROLE_DQ || role == ATTN_ROLE_DK);
}

struct check_bound attn_cli_check_bound(const struct check_case *c, int32_t role, int32_t dtype, bool against_plain) {
    bool backward = check_backward(&c->p), half = check_half_dtype(dtype), wide = dtype == ATTN_F64;
    struct check_bound b = {.dtype = c->t[role].view.dtype, .unit = dtype, .cosine = -1};
    if (against_plain) b.dtype = wide ? ATTN_F64 : ATTN_F32;
    b.eps = 4 * (wide ? U64 : U32);
    b.tiny = b.dtype == ATTN_F16 ? 0x1p-24 : wide ? 0x1p-500 : 0x1p-100;
    b.inf_or_nan = (c->modes & CHECK_INF_DOUT) && role != ATTN_ROLE_DV && role != ATTN_ROLE_DSINK;
    b.inf_or_nan |= attn_cli_check_leaves_out(c, role);
    const struct attn_cli_tolerance t = attn_cli_tolerance(c->p.op, role, dtype);
    b.absolute = t.absolute;
    if (t.absolute) {
        b.abs = t.bound;
        if (dtype == ATTN_E4M3) b.abs *= fmax(1, (double)c->p.dim_qk / 128); /* steps of a sum that is cut off */
        if (!against_plain) b.slack = t.slack;
        return b;
    }
    b.tol = t.bound;
    if (role == ATTN_ROLE_DIST) {
        b.zero_exact = true;
        return b;
    }
    if (dtype == ATTN_E4M3) b.score_tol = 0x1p-10, b.tol += 0x1p-18 * (double)c->p.seq_k;
    if (half) {
        b.score_tol = 8 * U32;
        b.factor = backward ? 3 : 2;
        if (dtype == ATTN_BF16 && !check_dense(&c->p) && !same_heads(c) &&
            (role == ATTN_ROLE_OUT || role == ATTN_ROLE_DQ || role == ATTN_ROLE_DKV))
            b.cosine = backward ? 1e-5 : 7e-6;
    }
    return b;
}
