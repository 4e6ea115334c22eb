/* SPDX-License-Identifier: MIT
 * Order between kernels, copies and fills of streams: programs whose streams, events, graphs and waits order what they
 * do to the same bytes must be silent, the same ones without must be told. usage: t_sim_order DRIVER */
#include "kernel_mutants.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* out[i] = in[i] + 1 for 64 words. `early`: griddepcontrol.wait at its start, or in place `late` behind the accesses.
 */
/* clang-format off */
#define KERNEL(name, first, last) ".visible .entry " name "(.param .u64 out, .param .u64 in)\n{\n.reg .pred q, down, up;\n.reg .b32 t, a, n;\n" \
    ".reg .b64 p, o, x;\nmov.u32 t, %tid.x;\nsetp.eq.u32 q, t, 0;\nmul.wide.u32 x, t, 4;\nld.param.u64 p, [in];\nld.param.u64 o, [out];\n" \
    "add.u64 p, p, x;\nadd.u64 o, o, x;\n" first "ld.global.u32 a, [p];\nadd.u32 a, a, 1;\nst.global.u32 [o], a;\n" \
    last "ret;\n}\n"
/* clang-format on */
#define SPIN                                                                                                           \
    "ld.param.u64 p, [in];\nmov.u32 n, 0;\nAGAIN:\nld.relaxed.gpu.global.u32 a, [p];\nadd.u32 n, n, 1;\n"              \
    "setp.eq.u32 down, a, 0;\nsetp.lt.and.u32 down, n, 2000, down;\n@down bra AGAIN;\nsetp.gt.and.u32 up, n, 1, "      \
    "!down;\nsetp.ne.and.u32 up, a, 0, up;\nselp.u32 a, 1, 0, up;\nst.global.u32 [o], a;\nret;\n"
#define RAISE "ld.param.u64 p, [in];\nmov.u32 a, 1;\n@q st.relaxed.gpu.global.u32 [p], a;\nmov.u64 p, o;\n"
static const char ptx[] = ".version 8.1\n.target sm_90\n.address_size 64\n" KERNEL("k", "", "")
    KERNEL("waits", "griddepcontrol.wait;\n", "") KERNEL("waits_late", "", "griddepcontrol.wait;\n")
        KERNEL("waits_and_lets", "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n", "")
            KERNEL("lets_and_waits", "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n", "")
    /* Until the flag at `in` is raised, but not for ever; out[i] = 1 if it was down first and then up. */
    KERNEL("spins", SPIN, "") KERNEL("lets_and_spins", "griddepcontrol.launch_dependents;\n" SPIN, "")
        KERNEL("raises", RAISE "ret;\n", "") KERNEL("raises_and_waits", RAISE "griddepcontrol.wait;\n", "");

static int (*fill)(uint64_t, unsigned, size_t, void *), (*down_later)(void *, uint64_t, size_t, void *),
    (*up_later)(uint64_t, const void *, size_t, void *), (*both_later)(uint64_t, uint64_t, size_t, void *),
    (*new_stream)(void **, unsigned), (*wait_for)(void *), (*query)(void *), (*new_event)(void **, unsigned),
    (*record)(void *, void *), (*wait_event)(void *, void *, unsigned), (*event_wait)(void *), (*begin)(void *, int),
    (*end)(void *, void **), (*instantiate)(void **, void *, unsigned long long), (*replay)(void *, void *),
    (*alloc_later)(uint64_t *, size_t, void *), (*free_later)(uint64_t, void *);
static const struct {
    const char *name;
    void *call;
} names[] = {{"cuMemsetD32Async", &fill},         {"cuMemcpyDtoHAsync_v2", &down_later},
             {"cuMemcpyHtoDAsync_v2", &up_later}, {"cuMemcpyDtoDAsync_v2", &both_later},
             {"cuStreamCreate", &new_stream},     {"cuStreamSynchronize", &wait_for},
             {"cuStreamQuery", &query},           {"cuEventCreate", &new_event},
             {"cuEventRecord", &record},          {"cuStreamWaitEvent", &wait_event},
             {"cuEventSynchronize", &event_wait}, {"cuStreamBeginCapture_v2", &begin},
             {"cuStreamEndCapture", &end},        {"cuGraphInstantiateWithFlags", &instantiate},
             {"cuGraphLaunch", &replay},          {"cuMemAllocAsync", &alloc_later},
             {"cuMemFreeAsync", &free_later}};

enum { WORDS = 64, BYTES = 4 * WORDS, BLOCKING = 0, FREE = 1 };
static void *kernel, *waits, *waits_late, *waits_and_lets, *lets_and_waits, *spins, *lets_and_spins, *raises,
    *raises_and_waits;
static uint64_t x, y, z; /* three buffers */
static void *s, *t, *e;  /* streams that the default one does not wait for; an event */
static uint32_t host[WORDS];
static int failed_call;
#define DO(call) (failed_call |= (call) != 0)

static void run(void *function, uint64_t out, uint64_t in, void *stream, int early) {
    struct {
        int id;
        char pad[4];
        unsigned char value[64];
    } attribute = {.id = 6, .value = {1}};
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {WORDS, 1, 1}, .stream = stream};
    if (early) l.attributes = &attribute, l.n_attributes = 1;
    void *params[] = {&out, &in};
    DO(cu.launch(&l, function, params, NULL));
}

/* ---- programs ---- */

static void two_streams(void) { run(kernel, x, y, s, 0), run(kernel, x, y, t, 0); }
static void reads_of_both(void) { run(kernel, x, z, s, 0), run(kernel, y, z, t, 0); }
static void read_and_write(void) { run(kernel, x, y, s, 0), run(kernel, z, x, t, 0); }
static void write_and_read(void) { run(kernel, z, x, s, 0), run(kernel, x, y, t, 0); }
static void event_between(void) {
    run(kernel, x, y, s, 0), DO(record(e, s)), DO(wait_event(t, e, 0)), run(kernel, z, x, t, 0);
}
static void event_too_soon(void) {
    DO(record(e, s)), run(kernel, x, y, s, 0), DO(wait_event(t, e, 0)), run(kernel, z, x, t, 0);
}
static void event_unawaited(void) { run(kernel, x, y, s, 0), DO(record(e, s)), run(kernel, z, x, t, 0); }
static void host_between(void) { run(kernel, x, y, s, 0), DO(wait_for(s)), run(kernel, z, x, t, 0); }
static void event_of_host(void) {
    run(kernel, x, y, s, 0), DO(record(e, s)), DO(event_wait(e)), run(kernel, z, x, t, 0);
}
static void poll_between(void) {
    run(kernel, x, y, s, 0);
    while (query(s) == 600) {
    }
    run(kernel, z, x, t, 0);
}
static void default_between(void) {
    void *a, *b;
    DO(new_stream(&a, BLOCKING)), DO(new_stream(&b, BLOCKING));
    run(kernel, x, y, a, 0), run(kernel, z, x, NULL, 0), run(kernel, x, y, b, 0);
}
static void default_and_free(void) { run(kernel, x, y, s, 0), run(kernel, z, x, NULL, 0); }
static void one_stream(void) {
    DO(up_later(y, host, BYTES, s)), run(kernel, x, y, s, 0), run(kernel, z, x, s, 0);
    DO(both_later(y, z, BYTES, s)), DO(fill(x, 0, WORDS, s)), DO(down_later(host, y, BYTES, s));
}
static void copy_down(void) { run(kernel, x, y, s, 0), DO(down_later(host, x, BYTES, t)); }
static void copy_up(void) { run(kernel, x, y, s, 0), DO(up_later(y, host, BYTES, t)); }
static void copy_across(void) { DO(both_later(x, y, BYTES, s)), run(kernel, y, z, t, 0); }
static void filled(void) { DO(fill(x, 0, WORDS, s)), run(kernel, z, x, t, 0); }
static void filled_other(void) { DO(fill(x, 0, WORDS, s)), run(kernel, z, y, t, 0); }
static void copies_alone(void) { DO(up_later(x, host, BYTES, s)), DO(fill(x, 0, WORDS, t)); }
/* In a graph: x by one branch, z from `in` by another. */
static void branches(uint64_t in, int joined) {
    void *graph = NULL, *exec = NULL, *fork, *join;
    DO(new_event(&fork, 0)), DO(new_event(&join, 0));
    DO(begin(s, 0)), DO(fill(y, 1, WORDS, s)), DO(record(fork, s)), DO(wait_event(t, fork, 0));
    run(kernel, x, y, s, 0);
    if (joined) DO(record(fork, s)), DO(wait_event(t, fork, 0));
    run(kernel, z, in, t, 0);
    DO(record(join, t)), DO(wait_event(s, join, 0)), run(kernel, y, z, s, 0);
    DO(end(s, &graph)), DO(instantiate(&exec, graph, 0)), DO(replay(exec, s)), DO(replay(exec, s));
}
static void graph_apart(void) { branches(y, 0); }
static void graph_joined(void) { branches(x, 1); }
static void graph_race(void) { branches(x, 0); }
static void early_waits(void) { run(kernel, x, y, s, 0), run(waits, z, x, s, 1), run(waits, x, z, s, 1); }
static void early_forgets(void) { run(kernel, x, y, s, 0), run(kernel, z, x, s, 1); }
static void early_waits_late(void) { run(kernel, x, y, s, 0), run(waits_late, z, x, s, 1); }
static void early_others(void) { run(kernel, x, y, s, 0), run(waits_late, z, y, s, 1); }
static void not_early(void) { run(kernel, x, y, s, 0), run(waits_late, z, x, s, 0); }
static void early_after_fill(void) { DO(fill(x, 0, WORDS, s)), run(kernel, z, x, s, 1); }
static void early_sees_older(void) { run(kernel, x, y, s, 0), run(kernel, y, y, s, 0), run(kernel, z, x, s, 1); }
/* The third launch writes what the first one reads: the second lets it begin behind its wait for the first, or before.
 */
static void early_between(void *function) {
    run(kernel, x, y, s, 0), run(function, z, x, s, 1), run(kernel, y, y, s, 1);
}
static void early_handed_on(void) { early_between(waits_and_lets); }
static void early_let_first(void) { early_between(lets_and_waits); }
static void pool(int waits_before, int waits_after) {
    uint64_t own;
    DO(alloc_later(&own, BYTES, s)), DO(record(e, s));
    if (waits_before) DO(wait_event(t, e, 0));
    run(kernel, own, y, t, 0), DO(record(e, t));
    if (waits_after) DO(wait_event(s, e, 0));
    DO(free_later(own, s));
}
static void pool_in_order(void) { pool(1, 1); }
static void pool_too_early(void) { pool(0, 1); }
static void pool_freed_too_early(void) { pool(1, 0); }
static void pool_of_one_stream(void) {
    uint64_t own;
    DO(alloc_later(&own, BYTES, s)), DO(fill(own, 1, WORDS, s)), run(kernel, x, own, s, 0), DO(free_later(own, s));
}
static void pool_used_after(void) {
    uint64_t own;
    DO(alloc_later(&own, BYTES, s)), DO(free_later(own, s)), DO(wait_for(s)), run(kernel, own, y, s, 0);
}

static const struct {
    const char *name;
    void (*program)(void);
    const char *finding, *other; /* texts that must be told; NULL: silence */
} cases[] = {
    {"two_streams", two_streams, "race: writes", ", k (number"},
    {"reads_of_both", reads_of_both, NULL, NULL},
    {"read_and_write", read_and_write, "no stream, event or wait orders", "k (number"},
    {"write_and_read", write_and_read, "no stream, event or wait orders", "k (number"},
    {"event_between", event_between, NULL, NULL},
    {"event_too_soon", event_too_soon, "no stream, event or wait orders", NULL},
    {"event_unawaited", event_unawaited, "no stream, event or wait orders", NULL},
    {"host_between", host_between, NULL, NULL},
    {"event_of_host", event_of_host, NULL, NULL},
    {"poll_between", poll_between, NULL, NULL},
    {"default_between", default_between, NULL, NULL},
    {"default_and_free", default_and_free, "no stream, event or wait orders", NULL},
    {"one_stream", one_stream, NULL, NULL},
    {"copy_down", copy_down, "no stream, event or wait orders", "a copy"},
    {"copy_up", copy_up, "no stream, event or wait orders", "a copy"},
    {"copy_across", copy_across, "no stream, event or wait orders", "a copy"},
    {"filled", filled, "no stream, event or wait orders", "a fill"},
    {"filled_other", filled_other, NULL, NULL},
    {"copies_alone", copies_alone, "no stream, event or wait orders", "a copy"},
    {"graph_apart", graph_apart, NULL, NULL},
    {"graph_joined", graph_joined, NULL, NULL},
    {"graph_race", graph_race, "no stream, event or wait orders", NULL},
    {"early_waits", early_waits, NULL, NULL},
    {"early_forgets", early_forgets, "no stream, event or wait orders", NULL},
    {"early_waits_late", early_waits_late, "no stream, event or wait orders", NULL},
    {"early_others", early_others, NULL, NULL},
    {"not_early", not_early, NULL, NULL},
    {"early_after_fill", early_after_fill, NULL, NULL},
    {"early_sees_older", early_sees_older, NULL, NULL},
    {"early_handed_on", early_handed_on, NULL, NULL},
    {"early_let_first", early_let_first, "no stream, event or wait orders", NULL},
    {"pool_in_order", pool_in_order, NULL, NULL},
    {"pool_too_early", pool_too_early, "no stream, event or wait orders", "an allocation"},
    {"pool_freed_too_early", pool_freed_too_early, "attnsim: ", NULL}, /* a race with the free, or use after it */
    {"pool_of_one_stream", pool_of_one_stream, NULL, NULL},
    {"pool_used_after", pool_used_after, "use after free", NULL},
};

/* ---- kernels at the same time: y is the flag ---- */

static void two_at_once(void) { run(spins, x, y, s, 0), run(raises, z, y, t, 0); }
static void early_at_once(void) { run(lets_and_spins, x, y, s, 0), run(raises_and_waits, x, y, s, 1); }
static void early_not_let(void) { run(spins, x, y, s, 0), run(raises_and_waits, x, y, s, 1); }
static const struct {
    const char *name;
    void (*program)(void);
    uint32_t first, second; /* what x holds where the first kernel did not see the flag go up, and where it did */
    int possible;           /* that it does */
} meetings[] = {{"two_at_once", two_at_once, 0, 1, 1},
                {"early_at_once", early_at_once, 1, 2, 1},
                {"early_not_let", early_not_let, 1, 2, 0}};

static int start(const char *driver) {
    void *module, *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    static const struct {
        const char *name;
        void **function;
    } kernels[] = {{"k", &kernel},
                   {"waits", &waits},
                   {"waits_late", &waits_late},
                   {"waits_and_lets", &waits_and_lets},
                   {"lets_and_waits", &lets_and_waits},
                   {"spins", &spins},
                   {"lets_and_spins", &lets_and_spins},
                   {"raises", &raises},
                   {"raises_and_waits", &raises_and_waits}};
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "h100", 1);
    if (kernel_open_driver(driver)) return -1;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        void *symbol = dlsym(library, names[k].name);
        if (!symbol) return -1;
        memcpy(names[k].call, &symbol, sizeof symbol);
    }
    if (cu.load(&module, ptx, 0, NULL, NULL)) return -1;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        if (cu.function(kernels[k].function, module, kernels[k].name)) return -1;
    return kernel_upload(&x, host, BYTES) || kernel_upload(&y, host, BYTES) || kernel_upload(&z, host, BYTES) ||
                   new_stream(&s, FREE) || new_stream(&t, FREE) || new_event(&e, 0)
               ? -1
               : 0;
}
static int one(const char *driver, int i) {
    uint64_t n = 0;
    if (start(driver)) return -1;
    cases[i].program();
    int r = cu.synchronize();
    const char *text = cu.report(&n, 0), *want = cases[i].finding, *other = cases[i].other;
    if (want ? n && strstr(text, want) && (!other || strstr(text, other)) : !r && !n && !failed_call) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

/* 0: as it should be. 40 + 1 if it was right and the kernels met, 40 if they did not. */
static int meet(const char *driver, int i) {
    uint64_t n = 0;
    if (start(driver)) return -1;
    meetings[i].program();
    int r = cu.synchronize();
    const char *text = cu.report(&n, 0);
    if (!r) r = cu.down(host, x, BYTES);
    for (int k = 1; k < WORDS && !r; k++) r = host[k] != meetings[i].first && host[k] != meetings[i].second;
    if (!r && !n) return 40 + (host[0] == meetings[i].second);
    printf("FAIL %s: result %d, word %u, findings: %s\n", meetings[i].name, r, host[0], text);
    return 1;
}
static int apart(const char *driver, int (*f)(const char *, int), int i) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int r = f(driver, i);
        if (r < 0) printf("FAIL case %d: the driver\n", i);
        fflush(stdout);
        _exit(r < 0 ? 1 : r);
    }
    int status = 1;
    return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    static const char *const policies[] = {"eager", "late", "random"}, *const seeds[] = {"1", "2", "3"};
    enum { SEEDS = 24 };
    const int n = (int)(sizeof cases / sizeof *cases);
    int failed = 0;
    if (argc < 2) return 2;
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 5; p++) {
            setenv("ATTNSIM_POLICY", policies[p < 2 ? p : 2], 1), setenv("ATTNSIM_SEED", seeds[p < 2 ? 0 : p - 2], 1);
            failed += apart(argv[1], one, i) != 0;
        }
    setenv("ATTNSIM_POLICY", "random", 1), setenv("ATTNSIM_THREADS", "1", 1);
    for (int i = 0; i < (int)(sizeof meetings / sizeof *meetings); i++) {
        int met = 0;
        for (int seed = 1; seed <= SEEDS; seed++) {
            char word[16];
            snprintf(word, sizeof word, "%d", seed);
            setenv("ATTNSIM_SEED", word, 1);
            int r = apart(argv[1], meet, i);
            failed += r != 40 && r != 41;
            met += r == 41;
        }
        if ((met > 0) != meetings[i].possible) failed++;
        printf("%s: the kernels met in %d runs of %d\n", meetings[i].name, met, (int)SEEDS);
    }
    printf("%d programs under three policies, %d runs failed\n", n, failed);
    return failed != 0;
}
