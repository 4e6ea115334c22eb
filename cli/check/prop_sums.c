/* SPDX-License-Identifier: MIT
 * Sums of n terms that are alike, n to 2^20: each addition would be rounded the same way, so that long sums keep their
 * bounds only if they are formed in parts. */
#include "prop.h"

#include <math.h>
#include <stdlib.h>

/* 1 to 2^most, all sizes alike. */
static int64_t draw_count(struct prop_run *r, int most) {
    const int bits = (int)prop_below(r, most + 1);
    const int64_t n = (INT64_C(1) << bits) + prop_below(r, INT64_C(1) << bits);
    return n < INT64_C(1) << most ? n : INT64_C(1) << most;
}
static int most_bits(const struct prop_run *r) {
    enum { CPU = 20, DEVICE = 12 }; /* the device may be simulated */
    return r->session->device.type == ATTN_DEVICE_TYPE_CPU ? CPU : DEVICE;
}

static void put_all(struct attn_cli_tensors *set, int32_t role, double x) {
    const int64_t n = attn_cli_prop_count(set, role);
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    if (!values) exit(ATTN_CLI_ERROR);
    for (int64_t i = 0; i < n; i++) values[i] = x;
    attn_cli_prop_put(set, role, values);
    free(values);
}

/* Each number of the role is `want` within the bound of docs/numerics.md and one rounding. */
static int all_are(struct prop_run *r, const struct attn_cli_tensors *set, int32_t role, int64_t cols, int64_t end,
                   double want) {
    const struct attn_cli_tolerance t = attn_cli_tolerance(r->kernel->op, role, r->kernel->dtype);
    double *x = attn_cli_prop_get(set, role);
    int got = PROP_PASS;
    for (int64_t i = 0; !got && i < attn_cli_prop_count(set, role); i++) {
        if (i % cols >= end) continue;
        if (!(fabs(x[i] - want) <= t.bound * fabs(want)))
            got = attn_cli_prop_failed(r, "%s[%lld] is %.9g, expected %.9g within %.2g of it", attn_role_name(role),
                                       (long long)i, x[i], want, t.bound);
    }
    free(x);
    return got;
}

/* Keys of equal weight with one value, and a bound of their number that may be far above it. */
static int equal_values(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    p.batch = 1, p.heads_q = p.heads_k = 1;
    p.dim_qk = p.dim_v = 1 + prop_below(r, 16);
    const int64_t n = draw_count(r, most_bits(r));
    p.seq_q = prop_below(r, 2) ? 1 : 1 + prop_below(r, n > 4096 ? 8 : 70);
    p.seq_k = n;
    if (prop_below(r, 2)) p.flags |= ATTN_SEQLENS_K;
    if ((p.flags & ATTN_SEQLENS_K) && n < INT64_C(1) << (most_bits(r) - 3)) p.seq_k = 8 * n;
    struct attn_cli_tensors set;
    if (attn_cli_prop_make(r, &set, &p, r->seed)) return PROP_FAIL;
    put_all(&set, ATTN_ROLE_Q, 0);
    put_all(&set, ATTN_ROLE_V, 0.1);
    if (p.flags & ATTN_SEQLENS_K) put_all(&set, ATTN_ROLE_SEQLENS_K, (double)n);
    double *v = attn_cli_prop_get(&set, ATTN_ROLE_V);
    int got = attn_cli_prop_execute(r, &set, NULL);
    if (!got) got = all_are(r, &set, ATTN_ROLE_OUT, p.dim_v, p.dim_v, v[0]);
    free(v);
    attn_cli_tensors_destroy(&set);
    return got;
}

/* Queries that all name one row, with the whole of their weight. */
static int one_row(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    p.batch = 1, p.heads_q = prop_below(r, 2) ? 1 : 4;
    p.topk = p.seq_k = 1;
    p.dim_qk = 512;
    p.dkv_dtype = ATTN_F32;
    p.seq_q = draw_count(r, most_bits(r) < 20 ? 8 : 12);
    struct attn_cli_tensors set;
    if (attn_cli_prop_make(r, &set, &p, r->seed)) return PROP_FAIL;
    put_all(&set, ATTN_ROLE_Q, 0);
    put_all(&set, ATTN_ROLE_LSE, 0);
    put_all(&set, ATTN_ROLE_KV, 0.1);
    put_all(&set, ATTN_ROLE_OUT, 0.1);
    put_all(&set, ATTN_ROLE_DOUT, 0.1);
    put_all(&set, ATTN_ROLE_INDICES, 0);
    double *dout = attn_cli_prop_get(&set, ATTN_ROLE_DOUT);
    int got = attn_cli_prop_execute(r, &set, NULL);
    if (!got) got = all_are(r, &set, ATTN_ROLE_DKV, p.dim_qk, p.dim_v, dout[0] * (double)(p.seq_q * p.heads_q));
    free(dout);
    attn_cli_tensors_destroy(&set);
    return got;
}

const struct prop attn_cli_props_sums[] = {
    {"sums of equal values", ATTN_OP_SDPA_FWD, equal_values, 0},
    {"sums of equal gradients", ATTN_OP_MLA_BWD, one_row, 0},
    {0},
};
