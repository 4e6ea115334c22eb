/* SPDX-License-Identifier: MIT
 * Dense kernels of the CPU backend against the reference kernels, through the public API: random combinations of every
 * feature and layout on every instruction set that the processor has, poison in hidden and in visible places, and equal
 * bits for 1, 2 and 3 threads. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas };
static attn_ctx *ctxs[ISAS][3]; /* by isa and threads - 1 */

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < ISAS; i++)
        for (int t = 0; t < 3; t++) {
            attn_ctx_options o = {.size = sizeof o, .threads = t + 1, .cpu_isa = isas[i]};
            if (attn_ctx_create(&o, &ctxs[i][t])) return -1;
        }
    return 0;
}
static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < ISAS; i++)
        for (int t = 0; t < 3; t++) attn_ctx_release(ctxs[i][t]);
    return 0;
}

/* Runs through the API with a kernel of that architecture; 0 if this processor has none. */
static int run(struct ref_try *t, attn_ctx *ctx, const char *arch) {
    char pattern[64];
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    snprintf(pattern, sizeof pattern, "*_%s_*", arch);
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = pattern};
    attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &t->given, &o, &plan);
    if (status == ATTN_E_NO_KERNEL) return 0;
    if (status) fail_msg("plan: %s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    assert_string_equal(info.arch, arch);
    assert_true(info.deterministic && info.bit_stable && info.workspace_bytes % 64 == 0);
    unsigned char *ws = aligned_alloc(64, info.workspace_bytes + 64);
    assert_non_null(ws);
    memset(ws, 0xff, info.workspace_bytes + 64); /* NaN everywhere */
    t->args.workspace = ws;
    t->args.workspace_bytes = info.workspace_bytes;
    status = attn_execute(plan, &t->args);
    if (status) fail_msg("execute: %s", attn_last_error());
    for (int i = 0; i < 64; i++) assert_int_equal(ws[info.workspace_bytes + (uint64_t)i], 0xff);
    free(ws);
    t->args.workspace = NULL;
    t->args.workspace_bytes = 0;
    attn_plan_release(plan);
    return 1;
}

/* ------------------------------------------------------------------ random cases ------------------- */

static uint64_t seed_state;
static int64_t below(int64_t n) { return (int64_t)(ref_next_random(&seed_state) % (uint64_t)n); }
static int chance(int percent) { return below(100) < percent; }
#define PICK(...)                                                                                                      \
    ((const int64_t[]){__VA_ARGS__})[below((int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))]

static void make_paged(attn_problem *p) {
    p->flags |= ATTN_PAGED | ATTN_SEQLENS_K;
    p->page_size = PICK(1, 3, 16, 32, 48);
    p->max_pages = p->seq_k / p->page_size + 1;
    p->n_pages = p->max_pages * p->batch + below(3);
    p->total_k = 0;
}

static attn_problem random_problem(int backward) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD;
    p.dtype = (int32_t)PICK(ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64);
    p.batch = 1 + below(2);
    p.heads_k = 1 + below(2);
    p.heads_q = p.heads_k * PICK(1, 1, 2, 3, 5);
    p.seq_q = PICK(1, 1, 2, 3, 7, 16, 17, 40, 64, 97, 130);
    p.seq_k = PICK(0, 1, 2, 15, 31, 32, 33, 64, 100, 129, 257, 300);
    p.dim_qk = PICK(0, 1, 2, 3, 8, 15, 16, 17, 32, 40, 64, 64, 80, 128, 130, 192);
    p.dim_v = chance(50) ? p.dim_qk : PICK(0, 1, 5, 16, 24, 64, 96, 128, 144);
    if (chance(8)) p.seq_q = PICK(1, 2, 5, 12, 31), p.seq_k = PICK(1025, 2048, 2500, 5000); /* keys are split */
    if (chance(5)) p.dim_qk = PICK(256, 257, 511, 512), p.dim_v = PICK(256, 300, 512);
    if (chance(40)) p.flags |= ATTN_CAUSAL;
    if (chance(30)) p.flags |= ATTN_BOTTOM_RIGHT;
    if (chance(25)) p.flags |= ATTN_WINDOW_LEFT, p.window_left = PICK(0, 1, 5, 33, 64, 100, -1, -3, INT64_MAX);
    if (chance(20)) p.flags |= ATTN_WINDOW_RIGHT, p.window_right = PICK(0, 1, 5, 33, 64, 100, -1, -20, INT64_MIN);
    if (chance(20)) p.flags |= ATTN_SCALE, p.scale = (double[]){0, -0.5, 1, 0.3, 1e-20}[below(5)];
    if (chance(25)) p.softcap = (double[]){0.5, 2, 30, 50}[below(4)];
    if (chance(25)) p.alibi = 1 + (int32_t)below(2);
    if (chance(30)) p.mask_dtype = (int32_t)PICK(ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BOOL);
    if (chance(25)) p.flags |= ATTN_SINK;
    if ((p.flags & ATTN_SINK) && chance(50)) p.flags |= ATTN_LSE_WITH_SINK;
    if (chance(20)) p.flags |= ATTN_LSE_BASE_2;
    if (chance(20)) p.flags |= ATTN_LSE_EMPTY_PLUS_INF;
    if (chance(20)) {
        p.flags |= ATTN_PACKED;
        p.batch = 1 + below(4);
        p.total_q = p.seq_q * p.batch / 2 + below(20);
        p.total_k = p.seq_k * p.batch / 2 + below(20);
        if (chance(30)) p.flags |= ATTN_SEQLENS_Q;
        if (chance(30)) p.flags |= ATTN_SEQLENS_K;
        if (!backward && chance(30)) make_paged(&p);
    } else {
        if (chance(20)) p.flags |= ATTN_SEQLENS_Q;
        if (chance(20)) p.flags |= ATTN_SEQLENS_K;
        if (!backward && chance(15)) make_paged(&p);
    }
    return p;
}

static void fill_inputs(struct ref_try *t, uint64_t seed) {
    const attn_problem *p = &t->given;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!t->n[role] || t->t[role].dtype == ATTN_I32) continue;
        if (role == ATTN_ROLE_Q || role == ATTN_ROLE_K || role == ATTN_ROLE_V) {
            if (chance(40)) ref_permute(t, role);
            ref_random(t, role, seed, 2);
        }
        if (role == ATTN_ROLE_ALIBI || role == ATTN_ROLE_SINK)
            ref_random(t, role, seed, role == ATTN_ROLE_SINK ? 3 : 0.5);
        if (role == ATTN_ROLE_MASK) {
            for (int32_t axis = 0; axis < 4; axis++)
                if (chance(35)) ref_broadcast(t, role, axis);
            ref_random(t, role, seed, 2);
            for (int64_t i = 0; i < t->n[role]; i++) {
                uint64_t s = seed + (uint64_t)i;
                if (ref_next_random(&s) % 4 == 0) ref_set(t, role, i, p->mask_dtype == ATTN_BOOL ? 0 : -INFINITY);
            }
        }
    }
    if (p->flags & ATTN_SEQLENS_Q)
        for (int64_t b = 0; b < p->batch; b++)
            ref_set_int(t, ATTN_ROLE_SEQLENS_Q, b, (int32_t)(below(p->seq_q + 3) - 1));
    if (p->flags & ATTN_SEQLENS_K)
        for (int64_t b = 0; b < p->batch; b++)
            ref_set_int(t, ATTN_ROLE_SEQLENS_K, b, (int32_t)(below(p->seq_k + 3) - 1));
    if (p->flags & ATTN_PACKED) {
        int64_t at_q = below(3), at_k = below(3);
        for (int64_t b = 0; b <= p->batch; b++) {
            ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, (int32_t)at_q);
            if (t->n[ATTN_ROLE_CU_SEQLENS_K]) ref_set_int(t, ATTN_ROLE_CU_SEQLENS_K, b, (int32_t)at_k);
            at_q += below(p->seq_q + 1), at_k += below(p->seq_k + 1);
        }
    }
    if (p->flags & ATTN_PAGED)
        for (int64_t i = 0; i < t->n[ATTN_ROLE_BLOCK_TABLE]; i++)
            ref_set_int(t, ATTN_ROLE_BLOCK_TABLE, i, chance(10) ? -1 : (int32_t)below(p->n_pages + 1));
}

/* A few NaN and infinities in q, k, v and dout. */
static void nonfinite(struct ref_try *t) {
    const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_DOUT};
    for (int r = 0; r < 4; r++)
        for (int n = 0; n < 2 && t->n[roles[r]] && chance(60); n++)
            ref_set(t, roles[r], below(t->n[roles[r]]), chance(70) ? (double)NAN : (double)INFINITY);
}

/* ------------------------------------------------------------------ comparison --------------------- */

static double bound_of(int32_t dtype, int backward) {
    switch (dtype) {
    case ATTN_F16: return backward ? 4e-3 : 1e-3;
    case ATTN_BF16: return backward ? 3e-2 : 8e-3;
    case ATTN_F64: return backward ? 1e-12 : 1e-13;
    default: return backward ? 2e-5 : 4e-6;
    }
}

/* Rows by their norm, with the tensor's own size as the floor of a row: a sum that cancels has no digits of its own. */
static void compare(const struct ref_try *got, const struct ref_try *want, int32_t role, double bound,
                    const char *what) {
    const int64_t n = got->n[role];
    if (!n || !attn_args_at(&got->args, role)) return;
    const attn_tensor *x = &got->t[role];
    int64_t width =
        x->rank == 4 || (x->rank == 3 && (role == ATTN_ROLE_OUT || role >= ATTN_ROLE_DQ)) ? x->shape[x->rank - 1] : 1;
    if (x->rank <= 2) width = n;
    double all = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = ref_get(want, role, i);
        if (isfinite(w)) all += w * w, finite++;
    }
    const double typical = finite ? sqrt(all / (double)finite * (double)width) : 0;
    for (int64_t i = 0; i < n; i += width) {
        double error = 0, norm = 0;
        for (int64_t c = 0; c < width; c++) {
            double w = ref_get(want, role, i + c), g = ref_get(got, role, i + c);
            if (ref_untouched(want, role, i + c) && ref_untouched(got, role, i + c)) continue;
            if (!isfinite(w) || !isfinite(g)) {
                if ((isnan(w) && isnan(g)) || w == g) continue;
                if (!isfinite(w) && !isfinite(g) && role != ATTN_ROLE_LSE)
                    continue; /* inf or NaN by the order of sums */
                fail_msg("%s: %s[%lld] is %g, should be %g", what, attn_role_name(role), (long long)(i + c), g, w);
            }
            error += (g - w) * (g - w), norm += w * w;
        }
        if (!(sqrt(error) <= bound * (sqrt(norm) + typical) + 1e-300))
            fail_msg("%s: %s row %lld: error %g, norm %g, typical %g, bound %g", what, attn_role_name(role),
                     (long long)(i / width), sqrt(error), sqrt(norm), typical, bound);
    }
}

static void text_of(const attn_problem *p, int64_t number, const char *isa, char *buf, size_t bytes) {
    char text[512];
    attn_problem_format(p, text, sizeof text, NULL);
    snprintf(buf, bytes, "case %lld, %s: %s", (long long)number, isa, text);
}

static void wipe(struct ref_try *t, int32_t first) {
    for (int32_t role = first; role < ATTN_ROLE_COUNT; role++)
        if (t->t[role].data && (role < ATTN_ROLE_DOUT || role > ATTN_ROLE_DLSE))
            memset(t->t[role].data, 0xa7, t->t[role].bytes);
}

/* The same inputs on every instruction set and thread count. */
static void check(struct ref_try *want, int32_t first_output, double bound, int64_t number, int *runs) {
    char what[700];
    struct ref_try got = *want;
    for (int32_t role = first_output; role < ATTN_ROLE_COUNT; role++) {
        if (!want->t[role].data) continue;
        if (role == ATTN_ROLE_DOUT || role == ATTN_ROLE_DLSE) continue;
        got.t[role].data = malloc(want->t[role].bytes + 1);
        assert_non_null(got.t[role].data);
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (attn_args_at(&want->args, role)) attn_args_set(&got.args, role, &got.t[role]);
    const char *only = getenv("T_SDPA_CPU_ISA");
    for (int isa = 0; isa < ISAS; isa++) {
        if (only && strcmp(only, isas[isa])) continue;
        struct ref_try bits = got;
        for (int threads = 0; threads < 3; threads++) {
            text_of(&want->given, number, isas[isa], what, sizeof what);
            wipe(&got, first_output);
            if (!run(&got, ctxs[isa][threads], isas[isa])) break;
            ++*runs;
            if (threads == 0) {
                for (int32_t role = first_output; role < ATTN_ROLE_COUNT; role++) {
                    int scalar = role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED;
                    double b = role == ATTN_ROLE_LSE ? (want->given.dtype == ATTN_F64 ? 1e-13 : 1e-5) : bound;
                    if (role >= first_output && (role < ATTN_ROLE_DOUT || role > ATTN_ROLE_DLSE))
                        compare(&got, want, role, scalar ? b * 2 : b, what);
                    if (!got.t[role].data || (role >= ATTN_ROLE_DOUT && role <= ATTN_ROLE_DLSE)) continue;
                    bits.t[role].data = malloc(got.t[role].bytes + 1);
                    memcpy(bits.t[role].data, got.t[role].data, got.t[role].bytes);
                }
                continue;
            }
            for (int32_t role = first_output; role < ATTN_ROLE_COUNT; role++)
                if (got.t[role].data && memcmp(bits.t[role].data, got.t[role].data, got.t[role].bytes))
                    fail_msg("%s: %s differs between 1 and %d threads", what, attn_role_name(role), threads + 1);
        }
        for (int32_t role = first_output; role < ATTN_ROLE_COUNT; role++)
            if (bits.t[role].data != got.t[role].data) free(bits.t[role].data);
    }
    for (int32_t role = first_output; role < ATTN_ROLE_COUNT; role++)
        if (got.t[role].data != want->t[role].data) free(got.t[role].data);
}

static int64_t cases(int64_t most) {
    const char *n = getenv("T_SDPA_CPU_CASES");
    return n ? atoll(n) : most;
}

static void test_forward(void **state) {
    int runs = 0;
    (void)state;
    for (int64_t number = 0; number < cases(240); number++) {
        seed_state = (uint64_t)number * 77 + 5;
        attn_problem p = random_problem(0);
        struct ref_try want;
        ref_try_open(&want, &p);
        fill_inputs(&want, (uint64_t)number);
        if (chance(30)) nonfinite(&want);
        if (chance(30)) ref_drop(&want, ATTN_ROLE_LSE_ROUNDED);
        if (chance(10)) ref_drop(&want, ATTN_ROLE_LSE);
        assert_true(run(&want, ctxs[0][0], "ref"));
        check(&want, ATTN_ROLE_OUT, bound_of(p.dtype, 0), number, &runs);
        ref_try_close(&want);
    }
    printf("%d runs\n", runs);
}

/* Finite numbers that are meant to hide keys, down to the lowest of bf16: no exponential's range may end before them.
 */
static void test_finite_masks(void **state) {
    static const double hides[] = {-1e4, -65504, -1e5, -1.3e5, -2e5, -1e9, -3.3e38};
    static const char *const problems[] = {"sdpa_fwd hq=2 sq=140 d=64 bf16 mask=f32",
                                           "sdpa_fwd hq=2 sq=140 d=128 bf16 mask=bf16",
                                           "sdpa_fwd hq=2 sq=140 d=32 bf16 mask=f32",
                                           "sdpa_fwd hq=2 sq=140 d=64 bf16 mask=bf16 softcap=30 alibi=linear",
                                           "sdpa_fwd hq=2 sq=140 d=64 f16 mask=f32",
                                           "sdpa_fwd hq=2 sq=140 d=64 f32 mask=f32 alibi=distance",
                                           "sdpa_fwd hq=2 sq=3 sk=140 d=64 bf16 mask=f32"};
    int runs = 0;
    (void)state;
    for (size_t n = 0; n < sizeof problems / sizeof *problems * 2; n++)
        for (size_t hide = 0; hide < sizeof hides / sizeof *hides; hide++) {
            attn_problem p;
            struct ref_try want;
            assert_int_equal(attn_problem_parse(problems[n / 2], &p), ATTN_OK);
            ref_try_open(&want, &p);
            for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(&want, role, n, 2);
            ref_random(&want, ATTN_ROLE_ALIBI, n, 0.5);
            ref_random(&want, ATTN_ROLE_MASK, n, 2);
            for (int64_t i = 0; i < want.n[ATTN_ROLE_MASK]; i++) {
                uint64_t s = n + (uint64_t)i;
                if (i % p.seq_k && ref_next_random(&s) % 2) ref_set(&want, ATTN_ROLE_MASK, i, hides[hide]);
            }
            ref_drop(&want, ATTN_ROLE_LSE_ROUNDED);
            if (n % 2) ref_drop(&want, ATTN_ROLE_LSE);
            assert_true(run(&want, ctxs[0][0], "ref"));
            check(&want, ATTN_ROLE_OUT, bound_of(p.dtype, 0), (int64_t)hide, &runs);
            ref_try_close(&want);
        }
    printf("%d runs\n", runs);
}

static void test_backward(void **state) {
    int runs = 0;
    (void)state;
    for (int64_t number = 0; number < cases(240); number++) {
        seed_state = (uint64_t)number * 99 + 11;
        attn_problem p = random_problem(1);
        struct ref_try forward, want;
        ref_try_open(&forward, &p);
        fill_inputs(&forward, (uint64_t)number);
        const int has_nonfinite = chance(30);
        if (has_nonfinite) nonfinite(&forward);
        assert_true(run(&forward, ctxs[0][0], "ref"));
        uint64_t features = chance(30) ? ATTN_DLSE : 0;
        if (p.mask_dtype && p.mask_dtype != ATTN_BOOL && chance(60)) features |= ATTN_GRAD_MASK;
        if (p.alibi && chance(60)) features |= ATTN_GRAD_ALIBI;
        if ((p.flags & ATTN_SINK) && chance(60)) features |= ATTN_GRAD_SINK;
        ref_try_open_next(&want, &forward, ATTN_OP_SDPA_BWD, features);
        ref_random(&want, ATTN_ROLE_DOUT, (uint64_t)number, 2);
        if (features & ATTN_DLSE) ref_random(&want, ATTN_ROLE_DLSE, (uint64_t)number, 1);
        if (has_nonfinite && chance(50)) nonfinite(&want);
        if (features & ATTN_GRAD_MASK)
            for (int32_t axis = 0; axis < 4;
                 axis++) /* over all keys dS sums to dlse: to nothing but rounding without it */
                if (chance(40) && (axis < 3 || (features & ATTN_DLSE))) ref_broadcast(&want, ATTN_ROLE_DMASK, axis);
        for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DV; role++) {
            if (chance(30)) ref_permute(&want, role);
            if (chance(12)) ref_drop(&want, role);
        }
        assert_true(run(&want, ctxs[0][0], "ref"));
        check(&want, ATTN_ROLE_DOUT + 2, bound_of(p.dtype, 1), number, &runs);
        ref_try_close(&want);
        ref_try_close(&forward);
    }
    printf("%d runs\n", runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward), cmocka_unit_test(test_finite_masks),
                                       cmocka_unit_test(test_backward)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
