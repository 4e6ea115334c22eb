/* SPDX-License-Identifier: MIT
 * Tensors beyond 2^31 elements: 70,000 queries of 64 or 256 heads. They repeat 35 queries again and again, so that the
 * outputs of every repetition must be those of a problem of 35 queries, and what is summed over queries must be
 * queries / 35 times as large. Needs about 50 GB of device memory; GPU_TEST_QUERIES (a multiple of 35) asks for fewer,
 * GPU_TEST_KERNEL for other rows than the first that serves and the one that a plan takes. Also fewer queries, whose
 * lists name nothing but one row. */
#include "gpu/gpu_rig.h"

#include <stdlib.h>
#include <string.h>

enum { PERIOD = 35, PIECE = 64 << 20 /* bytes looked at together */ };
static struct gpu_rig rig;
static int64_t all_queries = 70000, n_queries; /* wanted; of the problem at hand */

/* most: queries, where fewer will do (0: all); every slot of theirs names row 0, and what is summed so often in f32 is
 * compared in 16 bits. */
static const struct form {
    const char *text;
    int64_t most;
} forms[] = {
    {"sdpa_fwd hq=256 hk=2 sq=%lld sk=48 d=128 bf16", 0},
    {"sdpa_bwd hq=256 hk=2 sq=%lld sk=48 d=128 bf16", 0},
    {"mla_fwd hq=64 sq=%lld sk=512 d=576 topk=64 bf16", 0},
    {"mla_bwd hq=64 sq=%lld sk=512 d=576 topk=64 bf16 dkv=f32 with_dist", 0},
    {"mla_bwd hq=64 sq=%lld sk=512 d=576 topk=64 bf16 dkv=f32 deterministic", 0},
    {"mla_bwd hq=128 sq=%lld sk=512 d=576 topk=64 bf16 dkv=f32", 0},
    {"mla_bwd hq=128 sq=%lld sk=512 d=576 topk=64 bf16 dkv=f32 deterministic", 0},
    {"mla_bwd hq=64 sq=%lld sk=512 d=576 topk=64 bf16", 700},
    {"mla_bwd hq=64 sq=%lld sk=512 d=576 topk=64 bf16 deterministic", 700},
    {"mla_bwd hq=128 sq=%lld sk=512 d=576 topk=64 bf16", 700},
    {"mla_bwd hq=128 sq=%lld sk=512 d=576 topk=64 bf16 deterministic", 700},
    {"dist hq=64 sq=%lld sk=512 d=576 topk=64 bf16", 0},
};

/* A tensor of the small problem beside the large one's: `outer` blocks, in each some bytes of the period. */
struct match {
    const attn_tensor *little;
    attn_tensor large;
    int64_t outer, block; /* block: bytes of PERIOD queries; outer 0: no queries in it, the shapes are equal */
};

static void problem_of(const char *form, int64_t queries, attn_problem *p) {
    char text[200], number[24];
    const char *mark = strstr(form, "%lld");
    snprintf(number, sizeof number, "%lld", (long long)queries);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - form), form, number, mark + 4);
    if (attn_problem_parse(text, p) || attn_problem_check(p)) fail_msg("%s: %s", text, attn_last_error());
}

static void *at_byte(const attn_tensor *t, int64_t offset) { return (char *)t->data + offset; }

static void copy(const struct gpu_case *c, attn_device to_device, void *to, const void *from, int64_t bytes) {
    if (attn_memory_copy(rig.ctx, to_device, to, rig.device, from, (size_t)bytes))
        fail_msg("%s: %s", c->text, attn_last_error());
}

/* Memory of the device; one with less is not a failure. */
static void *room(const struct gpu_case *c, uint64_t bytes) {
    void *memory = NULL;
    attn_status status = attn_memory_alloc(rig.ctx, rig.device, (size_t)bytes, &memory);
    if (status == ATTN_E_MEMORY) {
        print_message("skipped: %s\n", attn_last_error());
        skip();
    }
    if (status) fail_msg("%s: %s", c->text, attn_last_error());
    return memory;
}

static struct match match_of(const struct gpu_case *c, const attn_problem *large, int32_t role) {
    struct match m = {.little = &c->side.tensor[role]};
    int32_t use;
    assert_int_equal(attn_role_tensor(large, role, &use, &m.large), ATTN_OK);
    int64_t outer = 1, inner = (int64_t)attn_dtype_bytes(m.large.dtype);
    for (int32_t a = 0; a < m.large.rank; a++) {
        if (m.large.shape[a] == m.little->shape[a]) {
            *(m.outer ? &inner : &outer) *= m.large.shape[a];
            continue;
        }
        assert_int_equal(m.little->shape[a], PERIOD);
        m.outer = outer;
    }
    m.block = PERIOD * inner;
    return m;
}

/* Fills the large tensor with repetitions of the small one, doubling what is there. */
static void repeat(const struct gpu_case *c, const struct match *m) {
    if (!m->outer) {
        copy(c, rig.device, m->large.data, m->little->data, (int64_t)m->little->bytes);
        return;
    }
    const int64_t all = n_queries / PERIOD * m->block;
    for (int64_t o = 0; o < m->outer; o++) {
        char *to = at_byte(&m->large, o * all);
        copy(c, rig.device, to, at_byte(m->little, o * m->block), m->block);
        for (int64_t have = m->block; have < all; have *= 2)
            copy(c, rig.device, to + have, to, have < all - have ? have : all - have);
    }
}

static void judge(const struct gpu_case *c, int32_t role, double far, int64_t repetition) {
    const int32_t dtype = c->side.tensor[role].dtype;
    if (!(far <= gpu_allowed(dtype)))
        fail_msg("%s: %s of repetition %lld is %.3g away, allowed %.3g", c->text, attn_role_name(role),
                 (long long)repetition, far, gpu_allowed(dtype));
}

/* Each repetition of an output with queries against the small problem's. */
static void compare_repetitions(const struct gpu_case *c, int32_t role, const struct match *m,
                                const unsigned char *want) {
    const int64_t n = n_queries / PERIOD, piece = PIECE / m->block > 0 ? PIECE / m->block : 1,
                  elements = m->block / (int64_t)attn_dtype_bytes(m->large.dtype);
    unsigned char *got = malloc((size_t)(piece * m->block));
    assert_non_null(got);
    for (int64_t o = 0; o < m->outer; o++)
        for (int64_t r = 0; r < n; r += piece) {
            const int64_t count = n - r < piece ? n - r : piece;
            copy(c, ATTN_DEVICE_CPU, got, at_byte(&m->large, (o * n + r) * m->block), count * m->block);
            for (int64_t k = 0; k < count; k++)
                if (memcmp(got + k * m->block, want + o * m->block, (size_t)m->block))
                    judge(c, role, gpu_distance(m->large.dtype, elements, want + o * m->block, got + k * m->block),
                          r + k);
        }
    free(got);
}

/* A sum over queries: queries / 35 times the small problem's. */
static void compare_sum(const struct gpu_case *c, int32_t role, const struct match *m, unsigned char *want) {
    const int64_t elements = (int64_t)(m->large.bytes / attn_dtype_bytes(m->large.dtype));
    unsigned char *got = malloc((size_t)m->large.bytes);
    assert_non_null(got);
    copy(c, ATTN_DEVICE_CPU, got, m->large.data, (int64_t)m->large.bytes);
    for (int64_t i = 0; i < elements; i++)
        attn_cli_store(want, m->large.dtype, i, attn_cli_load(want, m->large.dtype, i) * (double)(n_queries / PERIOD));
    judge(c, role, gpu_distance(m->large.dtype, elements, want, got), 0);
    free(got);
}

/* Runs the case, whose outputs are on the device then, and the large problem by the same row; compares. */
static void grow(struct gpu_case *c, const attn_problem *large) {
    struct match match[ATTN_ROLE_COUNT] = {0};
    attn_args args = ATTN_ARGS_INIT;
    attn_plan *plan;
    attn_plan_info info = {.size = sizeof info};
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = c->info.kernel};
    if (attn_plan_create(rig.ctx, rig.device, large, &only, &plan) || attn_plan_get_info(plan, &info))
        fail_msg("%s: %s", c->text, attn_last_error());
    int64_t largest = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct match *m = &match[role];
        if (!attn_args_at(&c->side.args, role)) continue;
        *m = match_of(c, large, role);
        m->large.device = rig.device;
        m->large.data = room(c, m->large.bytes);
        repeat(c, m); /* outputs: NaN so far */
        assert_int_equal(attn_args_set(&args, role, &m->large), ATTN_OK);
        const int64_t n = (int64_t)(m->large.bytes / attn_dtype_bytes(m->large.dtype));
        if (n > largest) largest = n;
    }
    void *workspace = room(c, info.workspace_bytes);
    args.workspace_bytes = info.workspace_bytes;
    args.workspace = workspace;
    if (attn_execute(plan, &args) || attn_device_synchronize(rig.ctx, rig.device))
        fail_msg("%s: %s", c->text, attn_last_error());
    gpu_execute(c, &c->side, NULL);
    unsigned char *outputs = gpu_outputs(c, &c->side), *want = outputs;
    gpu_assert_written(c, outputs);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!match[role].little || c->host.use[role] < ATTN_USE_OUT) continue;
        if (match[role].outer)
            compare_repetitions(c, role, &match[role], want);
        else
            compare_sum(c, role, &match[role], want);
        want += match[role].little->bytes;
    }
    print_message("%s: the largest tensor has %lld elements\n", c->text, (long long)largest);
    free(outputs);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        attn_memory_free(rig.ctx, rig.device, match[role].large.data, (size_t)match[role].large.bytes);
    attn_memory_free(rig.ctx, rig.device, workspace, (size_t)info.workspace_bytes);
    attn_plan_release(plan);
}

/* Every slot names row 0. */
static void name_one_row(struct gpu_case *c) {
    attn_tensor *indices = &c->host.tensor[ATTN_ROLE_INDICES];
    memset(indices->data, 0, (size_t)indices->bytes);
    if (attn_cli_tensors_forward(rig.ctx, &c->host)) fail_msg("%s: %s", c->text, attn_last_error());
    gpu_side_free(c, &c->side);
    gpu_side_make(c, &c->side);
}

/* The row that a plan takes for the problem; "" if the device has none for it. */
static void planned(const attn_problem *p, char name[sizeof((attn_plan_info *)0)->kernel]) {
    const attn_plan_options any = {.size = sizeof any, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING};
    attn_plan_info info = {.size = sizeof info};
    attn_plan *plan;
    name[0] = 0;
    if (attn_plan_create(rig.ctx, rig.device, p, &any, &plan)) return;
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    memcpy(name, info.kernel, sizeof info.kernel);
    attn_plan_release(plan);
}

/* The rows that serve both problems: all that the pattern names, or the first and the one that a plan takes. */
static int serve(const struct form *form, const char *pattern) {
    attn_problem large;
    char best[sizeof((attn_plan_info *)0)->kernel];
    int done = 0;
    n_queries = form->most && form->most < all_queries ? form->most : all_queries;
    problem_of(form->text, n_queries, &large);
    planned(&large, best);
    for (int32_t i = 0, n = attn_kernel_count(rig.ctx); i < n; i++) {
        struct gpu_case c = {.rig = &rig, .kernel.size = sizeof c.kernel};
        assert_int_equal(attn_kernel_get_info(rig.ctx, i, &c.kernel), ATTN_OK);
        const int wanted = pattern ? attn_cli_match(pattern, c.kernel.name) : !done || !strcmp(best, c.kernel.name);
        if (c.kernel.backend != ATTN_BACKEND_CUDA || !wanted) continue;
        problem_of(form->text, PERIOD, &c.problem);
        if (attn_kernel_supports(rig.ctx, rig.device, i, &c.problem) ||
            attn_kernel_supports(rig.ctx, rig.device, i, &large))
            continue;
        gpu_case_open(&c);
        if (form->most) name_one_row(&c);
        grow(&c, &large);
        gpu_case_close(&c);
        done++;
    }
    return done;
}

static void long_problems_repeat_short_ones(void **state) {
    (void)state;
    const char *pattern = getenv("GPU_TEST_KERNEL"), *queries = getenv("GPU_TEST_QUERIES");
    int done = 0;
    if (queries) assert_int_equal(attn_cli_int(queries, PERIOD, 1 << 24, &all_queries), 0);
    all_queries = all_queries / PERIOD * PERIOD;
    if (pattern && !strcmp(pattern, "*")) pattern = NULL;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) done += serve(&forms[f], pattern);
    if (!done) skip();
}

int main(void) {
    int code = gpu_rig_open(&rig);
    if (code) return code;
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_problems_repeat_short_ones)};
    code = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_rig_close(&rig);
    return code;
}
