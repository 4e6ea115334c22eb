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
#define KERNEL(name, first, last) ".visible .entry " name "(.param .u64 out, .param .u64 in)\n{\n.reg .b32 t, a;\n" \
    ".reg .b64 p, o, x;\nmov.u32 t, %tid.x;\nmul.wide.u32 x, t, 4;\nld.param.u64 p, [in];\nld.param.u64 o, [out];\n" \
    "add.u64 p, p, x;\nadd.u64 o, o, x;\n" first "ld.global.u32 a, [p];\nadd.u32 a, a, 1;\nst.global.u32 [o], a;\n" \
    last "ret;\n}\n"
/* clang-format on */
static const char ptx[] = ".version 8.1\n.target sm_90\n.address_size 64\n" KERNEL("k", "", "")
    KERNEL("waits", "griddepcontrol.wait;\n", "") KERNEL("waits_late", "", "griddepcontrol.wait;\n");

static int (*fill)(uint64_t, unsigned, size_t, void *), (*down_later)(void *, uint64_t, size_t, void *),
    (*up_later)(uint64_t, const void *, size_t, void *), (*both_later)(uint64_t, uint64_t, size_t, void *),
    (*new_stream)(void **, unsigned), (*wait_for)(void *), (*query)(void *), (*new_event)(void **, unsigned),
    (*record)(void *, void *), (*wait_event)(void *, void *, unsigned), (*event_wait)(void *), (*begin)(void *, int),
    (*end)(void *, void **), (*instantiate)(void **, void *, unsigned long long), (*replay)(void *, void *);
static const struct {
    const char *name;
    void *at;
} names[] = {{"cuMemsetD32Async", &fill},         {"cuMemcpyDtoHAsync_v2", &down_later},
             {"cuMemcpyHtoDAsync_v2", &up_later}, {"cuMemcpyDtoDAsync_v2", &both_later},
             {"cuStreamCreate", &new_stream},     {"cuStreamSynchronize", &wait_for},
             {"cuStreamQuery", &query},           {"cuEventCreate", &new_event},
             {"cuEventRecord", &record},          {"cuStreamWaitEvent", &wait_event},
             {"cuEventSynchronize", &event_wait}, {"cuStreamBeginCapture_v2", &begin},
             {"cuStreamEndCapture", &end},        {"cuGraphInstantiateWithFlags", &instantiate},
             {"cuGraphLaunch", &replay}};

enum { WORDS = 64, BYTES = 4 * WORDS, BLOCKING = 0, FREE = 1 };
static void *kernel, *waits, *waits_late;
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
};

static int one(const char *driver, int i) {
    void *module, *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    uint64_t n = 0;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "h100", 1);
    if (kernel_open_driver(driver)) return -1;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        void *at = dlsym(library, names[k].name);
        if (!at) return -1;
        memcpy(names[k].at, &at, sizeof at);
    }
    if (cu.load(&module, ptx, 0, NULL, NULL) || cu.function(&kernel, module, "k") ||
        cu.function(&waits, module, "waits") || cu.function(&waits_late, module, "waits_late"))
        return -1;
    if (kernel_upload(&x, host, BYTES) || kernel_upload(&y, host, BYTES) || kernel_upload(&z, host, BYTES) ||
        new_stream(&s, FREE) || new_stream(&t, FREE) || new_event(&e, 0))
        return -1;
    cases[i].program();
    int r = cu.synchronize();
    const char *text = cu.report(&n, 0), *want = cases[i].finding, *other = cases[i].other;
    if (want ? n && strstr(text, want) && (!other || strstr(text, other)) : !r && !n && !failed_call) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

int main(int argc, char **argv) {
    static const char *const policies[] = {"eager", "late", "random"}, *const seeds[] = {"1", "2", "3"};
    const int n = (int)(sizeof cases / sizeof *cases);
    int failed = 0;
    if (argc < 2) return 2;
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 5; p++) {
            setenv("ATTNSIM_POLICY", policies[p < 2 ? p : 2], 1), setenv("ATTNSIM_SEED", seeds[p < 2 ? 0 : p - 2], 1);
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                int r = one(argv[1], i);
                if (r < 0) printf("FAIL %s: the driver\n", cases[i].name);
                fflush(stdout);
                _exit(r != 0);
            }
            int status = 1;
            if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) failed++;
        }
    printf("%d programs under three policies, %d runs failed\n", n, failed);
    return failed != 0;
}
