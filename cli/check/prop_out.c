/* SPDX-License-Identifier: MIT
 * Properties of what a forward writes beside out in its dtype: out in f32, and results over parts of the keys, which
 * attn_merge joins. */
#include "prop.h"

#include <math.h>
#include <stdlib.h>

/* Rounded to the dtype, out in f32 is the out of the same problem in that dtype. */
static int out_in_f32(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r), q;
    const int32_t rounded = p.dtype == ATTN_E4M3 ? ATTN_BF16 : p.dtype;
    if (!check_half_dtype(rounded)) return PROP_SKIP;
    if (prop_below(r, 2)) p.flags |= ATTN_CAUSAL;
    if (prop_below(r, 2)) p.flags |= ATTN_LSE_BASE_2;
    q = p;
    q.out_dtype = ATTN_F32;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    double *a = attn_cli_prop_get(&x, ATTN_ROLE_OUT), *b = attn_cli_prop_get(&y, ATTN_ROLE_OUT);
    for (int64_t i = 0; !got && i < attn_cli_prop_count(&x, ATTN_ROLE_OUT); i++) {
        const double unit = attn_cli_check_spacing(a[i], rounded);
        if (!(fabs(a[i] - b[i]) <= 0.501 * unit + 1e-6 * fabs(b[i]))) /* both round the last bits of a sum */
            got = attn_cli_prop_failed(r, "out[%lld] is %.9g in f32, and %.9g otherwise", (long long)i, b[i], a[i]);
    }
    free(a), free(b);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* Keys j0 .. j1 of the problem. */
static int run_part(struct prop_run *r, const struct attn_cli_tensors *x, struct attn_cli_tensors *part, int64_t j0,
                    int64_t j1) {
    attn_problem p = x->problem;
    p.seq_k = j1 - j0;
    if (attn_cli_prop_make(r, part, &p, r->seed)) return PROP_FAIL;
    attn_tensor view[3] = {x->tensor[ATTN_ROLE_Q], x->tensor[ATTN_ROLE_K], x->tensor[ATTN_ROLE_V]};
    for (int k = 1; k < 3; k++) {
        view[k].shape[2] = p.seq_k;
        view[k].data = (char *)view[k].data + (size_t)(j0 * view[k].strides[2]) * attn_dtype_bytes(p.dtype);
        view[k].bytes = 0;
    }
    part->args.q = &view[0], part->args.k = &view[1], part->args.v = &view[2];
    return attn_cli_prop_execute(r, part, NULL);
}

/* Parts of the keys by themselves, merged on the CPU, are all of them at once. */
static int parts_merge(struct prop_run *r) {
    enum { MOST = 4 };
    attn_problem p = attn_cli_prop_problem(r);
    if (prop_below(r, 2)) p.flags |= ATTN_LSE_BASE_2;
    if (prop_below(r, 2)) p.softcap = 30;
    if (prop_below(r, 3) == 0) p.seq_k = 300 + prop_below(r, 900);
    if (check_half_dtype(p.dtype) && prop_below(r, 2)) p.out_dtype = ATTN_F32;
    struct attn_cli_tensors x, part[MOST];
    const attn_tensor *out[MOST], *lse[MOST];
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    int got = attn_cli_prop_execute(r, &x, NULL), n = 0;
    for (int64_t j = 0; !got && j < p.seq_k && n < MOST; n++) {
        const int64_t left = p.seq_k - j, take = n == MOST - 1 || left == 1 ? left : 1 + prop_below(r, left);
        got = run_part(r, &x, &part[n], j, j + take);
        out[n] = &part[n].tensor[ATTN_ROLE_OUT], lse[n] = &part[n].tensor[ATTN_ROLE_LSE];
        j += take;
        if (got == PROP_FAIL) break;
    }
    int64_t rows = p.batch * p.heads_q * p.seq_q;
    if (!got) {
        const attn_merge_args a = {.size = sizeof a, /* into the first part itself */
                                   .n_parts = n,
                                   .out_parts = out,
                                   .lse_parts = lse,
                                   .out = out[0],
                                   .lse = lse[0],
                                   .flags = p.flags & ATTN_LSE_BASE_2};
        if (attn_merge(r->session->many, ATTN_DEVICE_CPU, &a))
            got = attn_cli_prop_failed(r, "attn_merge: %s", attn_last_error());
    }
    if (!got) {
        double *o = attn_cli_prop_get(&x, ATTN_ROLE_OUT), *l = attn_cli_prop_get(&x, ATTN_ROLE_LSE);
        double *mo = attn_cli_prop_get(&part[0], ATTN_ROLE_OUT), *ml = attn_cli_prop_get(&part[0], ATTN_ROLE_LSE);
        got = attn_cli_prop_rows_equal(r, "merged parts", o, mo, rows, p.dim_v, attn_cli_prop_tolerance(r)) ||
              attn_cli_prop_lse_equal(r, "merged parts", l, ml, rows, 0);
        free(o), free(l), free(mo), free(ml);
    }
    for (int i = 0; i < n; i++) attn_cli_tensors_destroy(&part[i]);
    attn_cli_tensors_destroy(&x);
    return got;
}

const struct prop attn_cli_props_out[] = {
    {"out in f32 rounds to out", ATTN_OP_SDPA_FWD, out_in_f32, ATTN_F16},
    {"out in f32 rounds to out", ATTN_OP_SDPA_FWD, out_in_f32, ATTN_BF16},
    {"out in f32 rounds to out", ATTN_OP_SDPA_FWD, out_in_f32, ATTN_E4M3},
    {"out in f32 rounds to out", ATTN_OP_MLA_FWD, out_in_f32, ATTN_F16},
    {"out in f32 rounds to out", ATTN_OP_MLA_FWD, out_in_f32, ATTN_BF16},
    {"parts of the keys merge to the whole", ATTN_OP_SDPA_FWD, parts_merge, 0},
    {0},
};
