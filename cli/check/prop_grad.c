/* SPDX-License-Identifier: MIT
 * Gradients against finite differences of the forward: <dout, F(x + hd) - F(x - hd)> + <dlse, ...> = 2h <dx, d> for
 * every differentiable input. In f64 (sparse operators: f32) with the forward of the ref kernels. Also: gradients are
 * linear in (dout, dlse), which holds in every dtype; in f16 also where dS itself would leave the type's range. */
#include "prop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int32_t input, gradient;
} pairs[] = {
    {ATTN_ROLE_Q, ATTN_ROLE_DQ},       {ATTN_ROLE_K, ATTN_ROLE_DK},       {ATTN_ROLE_V, ATTN_ROLE_DV},
    {ATTN_ROLE_KV, ATTN_ROLE_DKV},     {ATTN_ROLE_MASK, ATTN_ROLE_DMASK}, {ATTN_ROLE_ALIBI, ATTN_ROLE_DALIBI},
    {ATTN_ROLE_SINK, ATTN_ROLE_DSINK},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static attn_problem forward_of(const attn_problem *p) {
    attn_problem f = *p;
    f.op = check_dense(p) ? ATTN_OP_SDPA_FWD : ATTN_OP_MLA_FWD;
    f.flags &= ~(ATTN_DLSE | ATTN_GRAD_MASK | ATTN_GRAD_ALIBI | ATTN_GRAD_SINK);
    f.dkv_dtype = 0;
    return f;
}

/* <dout, out> + <dlse, lse>, over rows that are not empty. */
static double weigh(const struct attn_cli_tensors *fwd, const double *dout, const double *dlse) {
    double *out = attn_cli_prop_get(fwd, ATTN_ROLE_OUT), *lse = attn_cli_prop_get(fwd, ATTN_ROLE_LSE), sum = 0;
    int64_t n = attn_cli_prop_count(fwd, ATTN_ROLE_OUT), rows = attn_cli_prop_count(fwd, ATTN_ROLE_LSE);
    for (int64_t x = 0; x < n; x++) sum += out[x] * dout[x];
    for (int64_t x = 0; dlse && x < rows; x++)
        if (isfinite(lse[x])) sum += lse[x] * dlse[x];
    free(out), free(lse);
    return sum;
}

static void add_features(struct prop_run *r, attn_problem *p) {
    bool dense = check_dense(p);
    if (prop_below(r, 2)) p->flags |= ATTN_LSE_BASE_2;
    if (prop_below(r, 2)) p->flags |= ATTN_DLSE;
    if (prop_below(r, 2)) p->flags |= ATTN_SINK | ATTN_GRAD_SINK;
    if (!dense) {
        p->dkv_dtype = ATTN_F32;
        if (prop_below(r, 2)) p->flags |= ATTN_TOPK_LENGTH;
        return;
    }
    if ((p->flags & ATTN_SINK) && prop_below(r, 2)) p->flags |= ATTN_LSE_WITH_SINK;
    if (prop_below(r, 2)) p->softcap = prop_below(r, 2) ? 30 : 1.5;
    if (prop_below(r, 2)) p->flags |= ATTN_CAUSAL | (prop_below(r, 2) ? ATTN_BOTTOM_RIGHT : 0);
    if (prop_below(r, 2)) {
        p->mask_dtype = ATTN_F32;
        p->flags |= ATTN_GRAD_MASK;
    }
    if (prop_below(r, 2)) {
        p->alibi = 1 + (int32_t)prop_below(r, 2);
        p->flags |= ATTN_GRAD_ALIBI;
    }
    if (prop_below(r, 3) == 0) p->flags |= ATTN_SEQLENS_K;
    if (prop_below(r, 3) == 0) p->flags |= ATTN_SEQLENS_Q;
}

/* Move every differentiable input by +-h times a direction, as far as its storage can say; *dot collects <dx, move>. */
static void move_inputs(struct prop_run *r, struct attn_cli_tensors *plus, struct attn_cli_tensors *minus,
                        const struct attn_cli_tensors *bwd, double h, double *dot, double *size) {
    for (int k = 0; k < N_PAIRS; k++) {
        int32_t role = pairs[k].input;
        if (!bwd->use[role] || !bwd->use[pairs[k].gradient]) continue;
        int64_t n = attn_cli_prop_count(bwd, role);
        double *x = attn_cli_prop_get(bwd, role), *up = attn_cli_prop_get(bwd, role),
               *down = attn_cli_prop_get(bwd, role);
        double *grad = attn_cli_prop_get(bwd, pairs[k].gradient), part = 0;
        for (int64_t i = 0; i < n; i++) {
            double d = attn_cli_rng_normal(&r->rng) * h;
            up[i] = x[i] + d;
            down[i] = x[i] - d;
        }
        attn_cli_prop_put(plus, role, up);
        attn_cli_prop_put(minus, role, down);
        free(up), free(down);
        up = attn_cli_prop_get(plus, role), down = attn_cli_prop_get(minus, role);
        for (int64_t i = 0; i < n; i++) {
            if (!isfinite(x[i])) continue;
            part += grad[i] * (up[i] - down[i]);
            *size += (grad[i] * (up[i] - down[i])) * (grad[i] * (up[i] - down[i]));
        }
        *dot += part;
        free(x), free(up), free(down), free(grad);
    }
}

static int finite_differences(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p);
    bool wide = p.dtype == ATTN_F64;
    double h = wide ? 1e-5 : 2e-3, dot = 0, size = 0;
    struct attn_cli_tensors bwd, plus, minus;
    if (attn_cli_prop_make(r, &bwd, &p, r->seed)) return PROP_FAIL;
    attn_problem f = forward_of(&p);
    int got = attn_cli_prop_execute(r, &bwd, NULL);
    if (got || attn_cli_prop_make(r, &plus, &f, r->seed)) {
        attn_cli_tensors_destroy(&bwd);
        return got ? got : PROP_FAIL;
    }
    if (attn_cli_prop_make(r, &minus, &f, r->seed)) {
        attn_cli_tensors_destroy(&bwd), attn_cli_tensors_destroy(&plus);
        return PROP_FAIL;
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) /* also lengths and indices */
        if (bwd.use[role] == ATTN_USE_IN && plus.use[role] == ATTN_USE_IN) {
            memcpy(plus.memory[role], bwd.memory[role], (size_t)bwd.tensor[role].bytes);
            memcpy(minus.memory[role], bwd.memory[role], (size_t)bwd.tensor[role].bytes);
        }
    move_inputs(r, &plus, &minus, &bwd, h, &dot, &size);
    const char *forward = check_dense(&p) ? "attn_sdpa_fwd_ref_*" : "attn_mla_fwd_ref_*";
    got = attn_cli_prop_execute(r, &plus, forward);
    if (!got) got = attn_cli_prop_execute(r, &minus, forward);
    if (!got) {
        double *dout = attn_cli_prop_get(&bwd, ATTN_ROLE_DOUT),
               *dlse = p.flags & ATTN_DLSE ? attn_cli_prop_get(&bwd, ATTN_ROLE_DLSE) : NULL;
        double change = weigh(&plus, dout, dlse) - weigh(&minus, dout, dlse), scale = sqrt(size);
        double tol = wide ? 1e-6 : 1e-2; /* h^2 of the central difference, and 1/h times the rounding of the forward */
        if (!(fabs(change - dot) <= tol * scale + (wide ? 1e-12 : 1e-5)))
            got = attn_cli_prop_failed(r, "<dout, F(x+hd) - F(x-hd)> = %.12g, but <dx, 2hd> = %.12g (sizes %.3g)",
                                       change, dot, scale);
        free(dout), free(dlse);
    }
    attn_cli_tensors_destroy(&bwd), attn_cli_tensors_destroy(&plus), attn_cli_tensors_destroy(&minus);
    return got;
}

/* `factor` times the incoming gradient gives `factor` times the gradients. */
static int times(struct prop_run *r, double factor, double tolerance) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p);
    const bool fixed = r->kernel->deterministic;
    if (fixed) p.flags |= ATTN_DETERMINISTIC;
    struct attn_cli_tensors x;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    int got = attn_cli_prop_execute(r, &x, NULL);
    double *first[N_PAIRS] = {0};
    for (int k = 0; !got && k < N_PAIRS; k++)
        if (x.use[pairs[k].gradient]) first[k] = attn_cli_prop_get(&x, pairs[k].gradient);
    static const int32_t incoming[] = {ATTN_ROLE_DOUT, ATTN_ROLE_DLSE};
    for (int k = 0; !got && k < 2; k++) {
        if (!x.use[incoming[k]]) continue;
        double *d = attn_cli_prop_get(&x, incoming[k]);
        for (int64_t i = 0; i < attn_cli_prop_count(&x, incoming[k]); i++) d[i] *= factor;
        attn_cli_prop_put(&x, incoming[k], d);
        free(d);
    }
    if (!got) got = attn_cli_prop_execute(r, &x, NULL);
    for (int k = 0; !got && k < N_PAIRS; k++) {
        /* dv and dkv are linear in dout as well; f16 may leave its normal range, where a power of 2 does round */
        if (!first[k]) continue;
        double *second = attn_cli_prop_get(&x, pairs[k].gradient);
        int64_t n = attn_cli_prop_count(&x, pairs[k].gradient),
                cols = x.tensor[pairs[k].gradient].shape[x.tensor[pairs[k].gradient].rank - 1];
        const bool half = x.tensor[pairs[k].gradient].dtype == ATTN_F16;
        for (int64_t i = 0; i < n; i++) { /* in units of the smaller ones, whose denormals err by a spacing of theirs */
            if (half && fabs(first[k][i] * factor) > 6e4) first[k][i] = second[i] = 0; /* past the output's type */
            *(factor > 1 ? &second[i] : &first[k][i]) *= factor > 1 ? 1 / factor : factor;
        }
        got = attn_cli_prop_rows_equal(r, attn_role_name(pairs[k].gradient), first[k], second, n / cols, cols,
                                       tolerance / (fixed && factor == 2 ? 16 : 1));
        free(second);
    }
    for (int k = 0; k < N_PAIRS; k++) free(first[k]);
    attn_cli_tensors_destroy(&x);
    return got;
}

/* Exactly, where sums have a fixed order: a factor of 2 rounds nothing. */
static int twice(struct prop_run *r) { return times(r, 2, attn_cli_prop_tolerance(r)); }
/* |dS| of more than 65504; of less than 2^-14 almost everywhere. */
static int large(struct prop_run *r) { return times(r, 0x1p9, attn_cli_prop_tolerance(r)); }
static int small(struct prop_run *r) { return times(r, 0x1p-12, attn_cli_prop_tolerance(r)); }

const struct prop attn_cli_props_grad[] = {
    {"gradients equal finite differences", ATTN_OP_SDPA_BWD, finite_differences, ATTN_F64},
    {"gradients equal finite differences", ATTN_OP_MLA_BWD, finite_differences, ATTN_F32},
    {"gradients are linear", ATTN_OP_SDPA_BWD, twice, 0},
    {"gradients are linear", ATTN_OP_MLA_BWD, twice, 0},
    {"gradients of a large dout", ATTN_OP_SDPA_BWD, large, ATTN_F16},
    {"gradients of a large dout", ATTN_OP_MLA_BWD, large, ATTN_F16},
    {"gradients of a small dout", ATTN_OP_SDPA_BWD, small, ATTN_F16},
    {"gradients of a small dout", ATTN_OP_MLA_BWD, small, ATTN_F16},
    {0},
};
