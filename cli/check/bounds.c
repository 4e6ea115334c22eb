/* SPDX-License-Identifier: MIT
 * Which bound each output must meet: the table of docs/numerics.md in code. Where a bound has a reason, it stands
 * there. */
#include "check.h"

#include <math.h>

#define U32 0x1p-24
#define U64 0x1p-53

/* Whether a query's heads are one, and so their errors: they have the same slots. */
static bool same_heads(const struct check_case *c) {
    const struct check_tensor *q = &c->t[ATTN_ROLE_Q];
    return q->broadcast[q->view.rank - 2];
}

struct check_bound attn_cli_check_bound(const struct check_case *c, int32_t role, int32_t dtype, bool against_plain) {
    bool backward = check_backward(&c->p), half = check_half_dtype(dtype), wide = dtype == ATTN_F64;
    struct check_bound b = {.dtype = c->t[role].view.dtype, .unit = dtype, .cosine = -1};
    if (against_plain) b.dtype = wide ? ATTN_F64 : ATTN_F32;
    b.eps = 4 * (wide ? U64 : U32);
    b.tiny = b.dtype == ATTN_F16 ? 0x1p-24 : wide ? 0x1p-500 : 0x1p-100;
    switch (role) {
    case ATTN_ROLE_LSE:
    case ATTN_ROLE_LSE_ROUNDED:
    case ATTN_ROLE_MAX_LOGITS:
        b.absolute = true;
        b.abs = wide ? 1e-13 : 1e-5;
        if (role == ATTN_ROLE_LSE_ROUNDED && !against_plain)
            b.slack = dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0;
        return b;
    case ATTN_ROLE_DIST: /* f32 from products that are exact in f32, whatever the dtype of the inputs */
        b.tol = 2e-5;
        b.zero_exact = true;
        return b;
    default: break;
    }
    if (half) {
        b.tol = dtype == ATTN_F16 ? 0x1p-10 : 0x1p-7;
        b.score_tol = 8 * U32;
        b.factor = backward ? 3 : 2;
        if (dtype == ATTN_BF16 && !check_dense(&c->p) && !same_heads(c) &&
            (role == ATTN_ROLE_OUT || role == ATTN_ROLE_DQ || role == ATTN_ROLE_DKV))
            b.cosine = backward ? 1e-5 : 7e-6;
    } else if (wide) {
        b.tol = backward ? 1e-12 : 1e-13;
    } else {
        b.tol = backward ? 2e-5 : 4e-6;
    }
    return b;
}
