/* SPDX-License-Identifier: MIT
 * A test of the checks: faults planted into a right kernel (pipeline_ptx.h) must be found under every policy, each by a
 * finding of the right kind at the right line; the kernel as it is gives none and the right numbers. Each run is a
 * process of its own, since some faults end the context. */
#include "pipeline_ptx.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct edit {
    const char *find, *put;
};
static const struct mutant {
    const char *name;
    struct edit edits[3];
    const char *kind, *marks; /* marks: of lines, one of which the finding must name */
} mutants[] = {
    {"barrier of the loop dropped",
     {{"bar.sync 0; //@BARRIER", "//@BARRIER"}},
     "race uninitialised async",
     "LOAD_A LOAD_B COPY_A COPY_B"},
    {"barrier before the wait",
     {{"cp.async.wait_group 1; //@WAIT\nbar.sync 0; //@BARRIER",
       "bar.sync 0; //@BARRIER\ncp.async.wait_group 1; //@WAIT"}},
     "race async",
     "LOAD_A LOAD_B"},
    {"wait for one group too few", {{"wait_group 1; //@WAIT", "wait_group 2; //@WAIT"}}, "async", "LOAD_A LOAD_B"},
    {"wait dropped", {{"cp.async.wait_group 1; //@WAIT", "//@WAIT"}}, "async", "LOAD_A LOAD_B"},
    {"commit ahead of the loop dropped",
     {{"cp.async.commit_group; //@FIRST_COMMIT", "//@FIRST_COMMIT"}},
     "async",
     "LOAD_A LOAD_B"},
    {"commit of the loop only where copies are",
     {{"NO_COPY:\ncp.async.commit_group; //@COMMIT", "cp.async.commit_group; //@COMMIT\nNO_COPY:"}},
     "async",
     "LOAD_A LOAD_B"},
    {"stage filled again before it was read",
     {{"bar.sync 0; //@BARRIER", "//@BARRIER"}, {"NO_COPY:\n", "NO_COPY:\nbar.sync 0;\n"}},
     "race async",
     "COPY_A COPY_B LOAD_A LOAD_B"},
    {"two stages for three",
     {{"add.u32 r5, base, 31104;", "add.u32 r5, base, 20736;"}},
     "async",
     "LOAD_A LOAD_B COPY_A"},
    {"stage counter without its wrap", {{"@last mov.u32 next, base; //@WRAP", "//@WRAP"}}, "out of bounds", "COPY_A"},
    {"rows of A behind the last",
     {{"selp.b32 size, 16, 0, row_ok; //@GUARD_A", "mov.u32 size, 16; //@GUARD_A"},
      {"selp.b32 r0, row, 0, row_ok; //@CLAMP_A", "mov.u32 r0, row; //@CLAMP_A"}},
     "out of bounds",
     "FIRST_A COPY_A"},
    {"rows of the result behind the last",
     {{"setp.lt.u32 row_ok, r6, 61;\n@row_ok st.global.v2.f32 [x+256]",
       "setp.lt.u32 row_ok, r6, 64;\n@row_ok st.global.v2.f32 [x+256]"}},
     "out of bounds",
     "STORE_LOW"},
    {"threads without a part of B copy",
     {{"setp.lt.u32 b_ok, tid, 64; //@GUARD_B", "setp.lt.u32 b_ok, tid, 72; //@GUARD_B"}},
     "out of bounds race async",
     "FIRST_B COPY_B LOAD_A LOAD_B FIRST_A COPY_A"},
    {"row stride of ldmatrix",
     {{"mul.lo.u32 read_a, r3, 144; //@STRIDE", "mul.lo.u32 read_a, r3, 128; //@STRIDE"}},
     "uninitialised",
     "LOAD_A"},
    {"row stride of ldmatrix too large",
     {{"mul.lo.u32 read_a, r3, 144; //@STRIDE", "mul.lo.u32 read_a, r3, 160; //@STRIDE"}},
     "uninitialised async out of bounds race",
     "LOAD_A"},
    {"columns behind the tile",
     {{"setp.lt.u32 low, column, 128;", "setp.lt.u32 low, column, 160;"}},
     "uninitialised",
     "LOAD_A LOAD_B"},
    {"ldmatrix row off by 8 bytes",
     {{"add.u32 read_a, read_a, r4;", "add.u32 read_a, read_a, r4;\nadd.u32 read_a, read_a, 8;"}},
     "misaligned",
     "LOAD_A"},
    {"cp.async destination off by 4 bytes",
     {{"add.u32 into_a, into_a, u;", "add.u32 into_a, into_a, u;\nadd.u32 into_a, into_a, 4;"}},
     "misaligned",
     "FIRST_A"},
    {"cp.async source off by 8 bytes",
     {{"add.u64 pb, pb, x;\nmov.f32", "add.u64 pb, pb, x;\nadd.u64 pb, pb, 8;\nmov.f32"},
      {"cvt.u64.u32 x, r2;\nadd.u64 pb, pb, x;", "cvt.u64.u32 x, r2;\nadd.u64 pb, pb, x;\nadd.u64 pb, pb, 8;"}},
     "misaligned",
     "FIRST_B"},
    {"vector store off by 4 bytes",
     {{"@row_ok st.global.v2.f32 [x], {c0, c1}; //@STORE", "@row_ok st.global.v2.f32 [x+4], {c0, c1}; //@STORE"}},
     "misaligned",
     "STORE"},
    {"vector store one wider",
     {{"@row_ok st.global.v2.f32 [x], {c0, c1}; //@STORE", "@row_ok st.global.v4.f32 [x], {c0, c1, c2, c3}; //@STORE"}},
     "misaligned out of bounds",
     "STORE"},
    {"stage out of shared memory",
     {{"add.u32 next, next, 10368;\nadd.u32 t, t, 1;", "add.u32 next, next, 31104;\nadd.u32 t, t, 1;"}},
     "out of bounds",
     "FIRST_A"},
    {"value of the reduction never stored",
     {{"@first st.shared.f32 [r11], big; //@KEEP", "//@KEEP"}},
     "uninitialised",
     "TAKE"},
    {"barrier of the reduction dropped",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "//@LAST_BARRIER"}},
     "race uninitialised",
     "TAKE KEEP"},
    {"all warps store to one place",
     {{"add.u32 r11, r11, r12; //@PLACE", "mov.u32 r11, r12; //@PLACE"}},
     "race",
     "KEEP"},
    {"barrier of the warp dropped", {{"bar.warp.sync -1; //@WARP_BARRIER", "//@WARP_BARRIER"}}, "race", "NEIGHBOUR"},
    {"member mask of the shuffle too small",
     {{"r8, 31, -1; //@SHUFFLE", "r8, 31, 0xffff; //@SHUFFLE"}},
     "divergence",
     "SHUFFLE"},
    {"shuffle by half of the warp",
     {{"FOLD:\n", "setp.lt.u32 low, lane, 16;\nFOLD:\n"},
      {"shfl.sync.bfly.b32 r10, r9, r8, 31, -1; //@SHUFFLE",
       "@low shfl.sync.bfly.b32 r10, r9, r8, 31, -1; //@SHUFFLE"}},
     "divergence deadlock",
     "SHUFFLE"},
    {"ldmatrix by part of the warp",
     {{"STEP:\n", "setp.lt.u32 low, lane, 24;\nSTEP:\n"},
      {"ldmatrix.sync.aligned.m8n8.x2", "@low ldmatrix.sync.aligned.m8n8.x2"}},
     "divergence",
     "LOAD_B"},
    {"barrier counts a warp too few",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "bar.sync 1, 96; //@LAST_BARRIER"}},
     "deadlock race uninitialised",
     "LAST_BARRIER TAKE"},
    {"barrier counts a warp too many",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "bar.sync 1, 160; //@LAST_BARRIER"}},
     "barrier deadlock",
     "LAST_BARRIER"},
    {"barrier by some of the warps",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "setp.lt.u32 low, warp, 3;\n@low bar.sync 1, 128; //@LAST_BARRIER"}},
     "deadlock race",
     "LAST_BARRIER KEEP TAKE"},
    {"barrier by some of the lanes",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "@first bar.sync 1, 128; //@LAST_BARRIER"}},
     "divergence",
     "LAST_BARRIER"},
    {"warps at differing barriers",
     {{"bar.sync 1, 128; //@LAST_BARRIER", "add.u32 r13, warp, 1;\nbar.sync r13, 128; //@LAST_BARRIER"}},
     "deadlock",
     "LAST_BARRIER"},
    {"loop without an end",
     {{"add.u32 t, t, 1; //@COUNT", "//@COUNT"}, {"setp.lt.u32 more, t, 4;", "setp.lt.u32 more, t, 0;"}},
     "endless uninitialised race",
     "WAIT BARRIER LOAD_A LOAD_B COMMIT COUNT"},
    {"kernel that traps", {{"DONE:\n", "trap; //@TRAP\nDONE:\n"}}, "trap", "TRAP"},
    {"result into freed memory",
     {{"st.global.f32 [po+1952], c0;", "st.global.f32 [po+1952], c0;"}},
     "use after free",
     "STORE STORE_LOW"},
};
enum { N_MUTANTS = sizeof mutants / sizeof *mutants };
static const char *const policies[] = {"eager", "late", "random"};

/* ---- a run in a process of its own ---- */

struct launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned n_attributes;
};
static int16_t a[PIPELINE_ROWS][PIPELINE_K], b[PIPELINE_N][PIPELINE_K];
static float want[PIPELINE_ROWS * PIPELINE_N + 1], got[PIPELINE_ROWS * PIPELINE_N + 1];

static void make_numbers(void) { /* whole numbers, so that sums are exact */
    static const int16_t values[] = {0, 0x3f80, (int16_t)0xbf80, 0x4000, (int16_t)0xc000};
    static const float numbers[] = {0, 1, -1, 2, -2};
    uint32_t s = 1;
    static uint8_t ia[PIPELINE_ROWS][PIPELINE_K], ib[PIPELINE_N][PIPELINE_K];
    for (int r = 0; r < PIPELINE_ROWS; r++)
        for (int k = 0; k < PIPELINE_K; k++)
            s = s * 1664525 + 1013904223, ia[r][k] = (uint8_t)(s >> 24) % 5, a[r][k] = values[ia[r][k]];
    for (int r = 0; r < PIPELINE_N; r++)
        for (int k = 0; k < PIPELINE_K; k++)
            s = s * 1664525 + 1013904223, ib[r][k] = (uint8_t)(s >> 24) % 5, b[r][k] = values[ib[r][k]];
    float top = 0;
    for (int r = 0; r < PIPELINE_ROWS; r++)
        for (int n = 0; n < PIPELINE_N; n++) {
            float sum = 0;
            for (int k = 0; k < PIPELINE_K; k++) sum += numbers[ia[r][k]] * numbers[ib[n][k]];
            want[r * PIPELINE_N + n] = sum;
            if (sum > top || -sum > top) top = sum > 0 ? sum : -sum;
        }
    want[PIPELINE_ROWS * PIPELINE_N] = top;
}

static void *call(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) fprintf(stderr, "no %s\n", name), _exit(3);
    return symbol;
}
#define CALL(name, ...) (int (*)(__VA_ARGS__)) call(library, name)
/* The launch's result into *result; the report. */
static const char *run(const char *ptx, int free_first, int *result) {
    void *library = dlopen(ATTN_TEST_SIM, RTLD_NOW | RTLD_LOCAL), *context = NULL, *module = NULL, *k = NULL;
    if (!library) return NULL;
    int (*init)(unsigned) = CALL("cuInit", unsigned);
    int (*retain)(void **, int) = CALL("cuDevicePrimaryCtxRetain", void **, int);
    int (*push)(void *) = CALL("cuCtxPushCurrent_v2", void *);
    int (*alloc)(uint64_t *, size_t) = CALL("cuMemAlloc_v2", uint64_t *, size_t);
    int (*freed)(uint64_t) = CALL("cuMemFree_v2", uint64_t);
    int (*up)(uint64_t, const void *, size_t) = CALL("cuMemcpyHtoD_v2", uint64_t, const void *, size_t);
    int (*down)(void *, uint64_t, size_t) = CALL("cuMemcpyDtoH_v2", void *, uint64_t, size_t);
    int (*load)(void **, const void *) = CALL("cuModuleLoadData", void **, const void *);
    int (*function)(void **, void *, const char *) = CALL("cuModuleGetFunction", void **, void *, const char *);
    int (*launch)(const struct launch *, void *, void **, void **) =
        CALL("cuLaunchKernelEx", const struct launch *, void *, void **, void **);
    const char *(*report)(uint64_t *, int) = (const char *(*)(uint64_t *, int))call(library, "attnsim_report");
    uint64_t pa = 0, pb = 0, po = 0;
    if (init(0) || retain(&context, 0) || push(context) || alloc(&pa, sizeof a) || alloc(&pb, sizeof b) ||
        alloc(&po, sizeof got) || up(pa, a, sizeof a) || up(pb, b, sizeof b) || load(&module, ptx) ||
        function(&k, module, "k"))
        return NULL;
    if (free_first) freed(po);
    struct launch c = {.grid = {1, 1, 1}, .block = {128, 1, 1}};
    void *params[] = {&pa, &pb, &po};
    *result = launch(&c, k, params, NULL);
    if (!*result) *result = down(got, po, sizeof got);
    return report(NULL, 0);
}

/* ---- judging ---- */

static int line_of(const char *ptx, const char *mark, size_t n) {
    char text[64];
    int line = 1;
    snprintf(text, sizeof text, "//@%.*s\n", (int)n, mark);
    const char *comment = strstr(ptx, text);
    if (!comment) return -1;
    for (const char *p = ptx; p < comment; p++) line += *p == '\n';
    return line;
}
static int among(const char *words, const char *word, size_t n) { /* kinds may have blanks: "out of bounds" */
    for (const char *kind = words; (kind = strstr(kind, "")) && *kind; kind++)
        if (!strncmp(kind, word, n) && (kind == words || kind[-1] == ' ') && (!kind[n] || kind[n] == ' ')) return 1;
    return 0;
}
/* 1 if a finding of one of the kinds stands at one of the marks. */
static int is_told(const struct mutant *m, const char *ptx, const char *report) {
    for (const char *finding = report; (finding = strstr(finding, "attnsim: ")) != NULL;) {
        finding += 9;
        const char *colon = strchr(finding, ':'), *end = strstr(finding, "\nattnsim: ");
        if (!colon) break;
        if (!end) end = finding + strlen(finding);
        const char *place = NULL; /* the last "line" of the finding is its own */
        for (const char *p = finding; (p = strstr(p, ", line ")) != NULL && p < end; p++) place = p + 7;
        if (!place || !among(m->kind, finding, (size_t)(colon - finding))) continue;
        for (const char *mark = m->marks; *mark;) {
            size_t n = strcspn(mark, " ");
            if (line_of(ptx, mark, n) == atoi(place)) return 1;
            mark += n + (mark[n] == ' ');
        }
    }
    return 0;
}

static void apply(const struct mutant *m, char *ptx, size_t bytes) {
    snprintf(ptx, bytes, "%s", pipeline_ptx);
    for (int i = 0; i < 3 && m->edits[i].find; i++) {
        char copy[12000];
        char *found = strstr(ptx, m->edits[i].find);
        if (!found) continue; /* of two edits one suffices to plant it: see below */
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(found - ptx), ptx, m->edits[i].put,
                 found + strlen(m->edits[i].find));
        snprintf(ptx, bytes, "%s", copy);
    }
}

static int child(const struct mutant *m, const char *policy) { /* 0: as it should be */
    char ptx[12000];
    int result = 0;
    setenv("ATTNSIM_POLICY", policy, 1);
    setenv("ATTNSIM_QUIET", "1", 1);
    setenv("ATTNSIM_MAX_INSTRUCTIONS", "200000", 1);
    if (m)
        apply(m, ptx, sizeof ptx);
    else
        snprintf(ptx, sizeof ptx, "%s", pipeline_ptx);
    if (m && !strcmp(ptx, pipeline_ptx) && strcmp(m->kind, "use after free")) {
        printf("  %s: nothing was changed\n", m->name);
        return 1;
    }
    const char *report = run(ptx, m && !strcmp(m->kind, "use after free"), &result);
    if (!report) {
        printf("  %s, %s: no launch\n", m ? m->name : "the kernel as it is", policy);
        return 1;
    }
    if (!m) {
        int wrong = 0;
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) wrong += !(want[i] == got[i]);
        if (!result && !report[0] && !wrong) return 0;
        printf("  the kernel as it is, %s: result %d, %d wrong numbers\n%s\n", policy, result, wrong, report);
        return 1;
    }
    if (result && is_told(m, ptx, report)) return 0;
    printf("  %s, %s: result %d, expected %s at", m->name, policy, result, m->kind);
    for (const char *mark = m->marks; *mark;) {
        size_t n = strcspn(mark, " ");
        printf(" %.*s (line %d)", (int)n, mark, line_of(ptx, mark, n));
        mark += n + (mark[n] == ' ');
    }
    printf("\n%s\n", report);
    return 1;
}

static int in_a_process(const struct mutant *m, const char *policy) {
    fflush(NULL);
    pid_t pid = fork();
    int status = -1;
    if (!pid) {
        int r = child(m, policy);
        fflush(NULL);
        _exit(r);
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

static void right_kernel(void **state) {
    (void)state;
    for (int p = 0; p < 3; p++) assert_int_equal(in_a_process(NULL, policies[p]), 0);
}
static void planted_faults(void **state) {
    (void)state;
    int missed = 0;
    for (int i = 0; i < N_MUTANTS; i++)
        for (int p = 0; p < 3; p++) missed += in_a_process(&mutants[i], policies[p]) != 0;
    print_message("%d planted faults, 3 policies, %d missed\n", (int)N_MUTANTS, missed);
    assert_int_equal(missed, 0);
}

int main(void) {
    make_numbers();
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_kernel), cmocka_unit_test(planted_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
