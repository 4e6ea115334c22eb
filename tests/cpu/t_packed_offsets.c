/* SPDX-License-Identifier: MIT
 * Packed offsets that fall, on every dense kernel of the CPU and of the reference: an offset counts as at least the
 * largest one before it, so that results are those of the offsets that never fall, in the same bits on 1 to 4 threads,
 * and equal what a calculation by hand gives. And the rows of no sequence: left alone, or empty rows. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas, THREADS = 4, PATTERN = 0xa7 };
static attn_ctx *ctxs[ISAS][THREADS];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < ISAS; i++)
        for (int t = 0; t < THREADS; t++) {
            attn_ctx_options o = {.size = sizeof o, .threads = t + 1, .cpu_isa = i ? isas[i] : "c"};
            if (attn_ctx_create(&o, &ctxs[i][t])) return -1;
        }
    return 0;
}
static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < ISAS; i++)
        for (int t = 0; t < THREADS; t++) attn_ctx_release(ctxs[i][t]);
    return 0;
}

/* Offsets as given and as they count; both axes have them. */
static const struct list {
    int32_t batch, given[5], counts[5];
    int64_t bound, total;
} lists[] = {
    {3, {0, 5, 3, 9}, {0, 5, 5, 9}, 9, 11},
    {4, {0, 5, -1, -1, 9}, {0, 5, 5, 5, 9}, 9, 11},
    {3, {0, 2000, 0, 2000}, {0, 2000, 2000, 2000}, 2000, 2003},
};
enum { LISTS = sizeof lists / sizeof *lists };

static int is_output(const struct ref_try *t, int32_t role) {
    return t->t[role].data && role >= (t->given.op == ATTN_OP_SDPA_BWD ? ATTN_ROLE_DQ : ATTN_ROLE_OUT);
}

/* 0 if this processor has no such kernel. Outputs are wiped first. */
static int run(struct ref_try *t, const int32_t *offsets, int32_t batch, int isa, int threads) {
    char pattern[32];
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    snprintf(pattern, sizeof pattern, "*_%s_*", isas[isa]);
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = pattern};
    attn_status status = attn_plan_create(ctxs[isa][threads - 1], ATTN_DEVICE_CPU, &t->given, &o, &plan);
    if (status == ATTN_E_NO_KERNEL) return 0;
    if (status) fail_msg("plan: %s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    unsigned char *ws = aligned_alloc(64, info.workspace_bytes + 64);
    assert_non_null(ws);
    memset(ws, 0xff, info.workspace_bytes + 64);
    t->args.workspace = ws, t->args.workspace_bytes = info.workspace_bytes;
    for (int32_t b = 0; b <= batch; b++) {
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, offsets[b]);
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_K, b, offsets[b]);
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (is_output(t, role)) memset(t->t[role].data, PATTERN, t->t[role].bytes);
    status = attn_execute(plan, &t->args);
    if (status) fail_msg("execute: %s", attn_last_error());
    free(ws);
    t->args.workspace = NULL, t->args.workspace_bytes = 0;
    attn_plan_release(plan);
    return 1;
}

static void open_problem(struct ref_try *t, const struct list *l, const char *features) {
    attn_problem p;
    char text[200];
    snprintf(text, sizeof text, "sdpa_fwd b=%d hq=2 hk=1 sq=%d total_q=%d total_k=%d d=8 packed %s", (int)l->batch,
             (int)l->bound, (int)l->total, (int)l->total, features);
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    ref_try_open(t, &p);
}

/* All outputs in the bits of the sound offsets on one thread. */
static int check(struct ref_try *t, const struct list *l, int isa) {
    unsigned char *want[ATTN_ROLE_COUNT] = {NULL};
    if (!run(t, l->counts, l->batch, isa, 1)) return 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!is_output(t, role)) continue;
        want[role] = malloc(t->t[role].bytes);
        assert_non_null(want[role]);
        memcpy(want[role], t->t[role].data, t->t[role].bytes);
    }
    for (int threads = 1; threads <= THREADS; threads++) {
        run(t, l->given, l->batch, isa, threads);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
            if (want[role] && memcmp(want[role], t->t[role].data, t->t[role].bytes))
                fail_msg("%s, %d threads, offsets 0 %d %d ..: %s is not that of the offsets as they count", isas[isa],
                         threads, (int)l->given[1], (int)l->given[2], attn_role_name(role));
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) free(want[role]);
    return 1;
}

static void bits(void **state) {
    static const char *const kinds[] = {"f32 causal", "bf16", "f64 bottom_right causal sink", "f16 left=3"};
    int runs = 0;
    (void)state;
    for (int l = 0; l < LISTS; l++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (int isa = 0; isa < ISAS; isa++) {
                struct ref_try t, back;
                if (isa == 0 && lists[l].total > 100) continue; /* the reference takes its time */
                open_problem(&t, &lists[l], kinds[k]);
                for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(&t, role, 7, 2);
                ref_random(&t, ATTN_ROLE_SINK, 7, 1);
                runs += check(&t, &lists[l], isa);
                ref_try_open_next(&back, &t, ATTN_OP_SDPA_BWD, ATTN_DETERMINISTIC);
                ref_random(&back, ATTN_ROLE_DOUT, 9, 2);
                runs += check(&back, &lists[l], isa);
                ref_try_close(&back);
                ref_try_close(&t);
            }
    printf("%d kernels and problems\n", runs);
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want)))) fail_msg("%g, should be %g", got, want);
}

/* Queries of 0 give every key of a sequence of n the probability 1 / n. Values are their row's number, so that an
 * output row is the mean of its sequence's numbers, lse is ln n, and dv is what an all-ones dout adds up to: 2, by
 * query heads. */
static void values(void **state) {
    (void)state;
    for (int l = 0; l < LISTS; l++)
        for (int isa = 0; isa < ISAS; isa++) {
            const struct list *const list = &lists[l];
            struct ref_try t, back;
            if (isa == 0 && list->total > 100) continue;
            open_problem(&t, list, "f32");
            for (int64_t i = 0; i < t.n[ATTN_ROLE_V]; i++) ref_set(&t, ATTN_ROLE_V, i, (double)(i / 8));
            const int runs = run(&t, list->given, list->batch, isa, 2);
            ref_try_open_next(&back, &t, ATTN_OP_SDPA_BWD, 0);
            ref_fill(&back, ATTN_ROLE_DOUT, 1);
            if (runs) assert_true(run(&back, list->given, list->batch, isa, 2));
            for (int64_t row = 0; row < list->total && runs; row++) {
                int32_t b = 0;
                while (b < list->batch && row >= list->counts[b + 1]) b++;
                if (b == list->batch) { /* of no sequence */
                    assert_true(ref_untouched(&t, ATTN_ROLE_LSE, row) && ref_untouched(&t, ATTN_ROLE_OUT, 8 * row));
                    assert_true(ref_untouched(&back, ATTN_ROLE_DQ, 8 * row));
                    assert_true(ref_untouched(&back, ATTN_ROLE_DV, 8 * row));
                    continue;
                }
                const double first = list->counts[b], n = list->counts[b + 1] - first;
                for (int64_t h = 0; h < 2; h++) {
                    const int64_t cell = h * list->total + row;
                    near(ref_get(&t, ATTN_ROLE_LSE, cell), log(n));
                    near(ref_get(&t, ATTN_ROLE_OUT, 8 * cell), first + (n - 1) / 2);
                    near(ref_get(&back, ATTN_ROLE_DQ, 8 * cell), 0); /* of keys that are 0 */
                }
                near(ref_get(&back, ATTN_ROLE_DV, 8 * row), 2);
            }
            ref_try_close(&back);
            ref_try_close(&t);
        }
}

/* Lengths beside the offsets: the smaller counts. Rows behind a length are empty rows of their sequence, keys behind
 * one have no gradient. Queries of 0 and values that are their row's number, as above. */
static void lengths(void **state) {
    enum { SEQUENCES = 3, ROWS = 20, FIRST = 1 };
    static const int32_t offsets[SEQUENCES + 1] = {FIRST, 8, 8, 19}, nq[SEQUENCES] = {4, 3, 40},
                                             nk[SEQUENCES] = {5, 2, 6}, queries[SEQUENCES] = {4, 0, 11},
                                             keys[SEQUENCES] = {5, 0, 6};
    static const struct list list = {SEQUENCES, {0}, {0}, 12, ROWS};
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        struct ref_try t, back;
        open_problem(&t, &list, "f32 seqlens_q seqlens_k");
        for (int64_t i = 0; i < t.n[ATTN_ROLE_V]; i++) ref_set(&t, ATTN_ROLE_V, i, (double)(i / 8));
        for (int b = 0; b < SEQUENCES; b++) {
            ref_set_int(&t, ATTN_ROLE_SEQLENS_Q, b, nq[b]);
            ref_set_int(&t, ATTN_ROLE_SEQLENS_K, b, nk[b]);
        }
        const int runs = run(&t, offsets, SEQUENCES, isa, 2);
        ref_try_open_next(&back, &t, ATTN_OP_SDPA_BWD, 0);
        ref_fill(&back, ATTN_ROLE_DOUT, 1);
        if (runs) assert_true(run(&back, offsets, SEQUENCES, isa, 2));
        for (int b = 0; b < SEQUENCES && runs; b++)
            for (int32_t row = offsets[b]; row < offsets[b + 1]; row++) {
                const int inside = row - offsets[b] < queries[b], key = row - offsets[b] < keys[b];
                for (int64_t h = 0; h < 2; h++) {
                    const double lse = ref_get(&t, ATTN_ROLE_LSE, h * ROWS + row);
                    if (inside) near(lse, log(keys[b]));
                    assert_true(inside || lse == -(double)INFINITY);
                    near(ref_get(&t, ATTN_ROLE_OUT, 8 * (h * ROWS + row)),
                         inside ? offsets[b] + (keys[b] - 1) / 2.0 : 0);
                    near(ref_get(&back, ATTN_ROLE_DQ, 8 * (h * ROWS + row)), 0);
                }
                near(ref_get(&back, ATTN_ROLE_DV, 8 * row), key ? 2.0 * queries[b] / keys[b] : 0);
            }
        const int32_t nobody[] = {0, 19};
        for (int x = 0; x < 2 && runs; x++) {
            assert_true(ref_untouched(&t, ATTN_ROLE_LSE, nobody[x]));
            assert_true(ref_untouched(&back, ATTN_ROLE_DV, 8 * nobody[x]));
        }
        ref_try_close(&back);
        ref_try_close(&t);
    }
}

/* Rows that an execution leaves alone become empty rows with ATTN_FILL_PADDING; all others keep their bits. */
static int fills(struct ref_try *t, struct ref_try *filled, const struct list *l, int isa) {
    const double empty = t->given.flags & ATTN_LSE_EMPTY_PLUS_INF ? (double)INFINITY : -(double)INFINITY;
    if (!run(t, l->given, l->batch, isa, 1)) return 0;
    for (int threads = 1; threads <= THREADS; threads++) {
        int64_t left = 0;
        assert_true(run(filled, l->given, l->batch, isa, threads));
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
            for (int64_t i = 0; is_output(t, role) && i < t->n[role]; i++) {
                const int lse = role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED,
                          alone = ref_untouched(t, role, i);
                const double want = !alone ? ref_get(t, role, i) : lse ? empty : 0, got = ref_get(filled, role, i);
                left += alone;
                if (memcmp(&want, &got, sizeof got))
                    fail_msg("%s, %d threads: %s[%d] is %g, should be %g", isas[isa], threads, attn_role_name(role),
                             (int)i, got, want);
            }
        assert_true(left > 0);
    }
    return 1;
}

static void padding(void **state) {
    static const struct list wide_lists[] = {
        {2, {2, 8, 9}, {2, 8, 9}, 4, 12}, /* rows before, cut, behind */
        {2, {5, 5, 5}, {5, 5, 5}, 1, 7},  /* of no sequence, all of them */
        {0, {3}, {3}, 4, 6},              /* no sequence */
    };
    static const char *const kinds[] = {"f32 causal", "bf16 lse_empty_plus_inf", "f64 sink lse_with_sink", "f16"};
    int runs = 0;
    (void)state;
    for (size_t l = 0; l < 2 + sizeof wide_lists / sizeof *wide_lists; l++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (int isa = 0; isa < ISAS; isa++) {
                const struct list *const list = l < 2 ? &lists[l] : &wide_lists[l - 2];
                struct ref_try t[2], back[2];
                for (int fill = 0; fill < 2; fill++) {
                    char text[100];
                    snprintf(text, sizeof text, "%s%s", kinds[k], fill ? " fill_padding" : "");
                    open_problem(&t[fill], list, text);
                    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(&t[fill], role, 7, 2);
                    ref_random(&t[fill], ATTN_ROLE_SINK, 7, 1);
                }
                runs += fills(&t[0], &t[1], list, isa);
                for (int fill = 0; fill < 2; fill++) {
                    ref_try_open_next(&back[fill], &t[0], ATTN_OP_SDPA_BWD, fill ? ATTN_FILL_PADDING : 0);
                    ref_random(&back[fill], ATTN_ROLE_DOUT, 9, 2);
                }
                runs += fills(&back[0], &back[1], list, isa);
                for (int fill = 0; fill < 2; fill++) ref_try_close(&back[fill]), ref_try_close(&t[fill]);
            }
    printf("%d kernels and problems\n", runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits), cmocka_unit_test(values), cmocka_unit_test(lengths),
                                       cmocka_unit_test(padding)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
