/* SPDX-License-Identifier: MIT
 * attn-sim: runs a CUDA program in the PTX simulator. It puts the simulator's libraries before the real ones, turns its
 * options into the simulator's variables, runs the program once or under several schedules, and counts the findings. */
#include "command/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_FAULTS = 86, STATUS_USAGE = 2, STATUS_NOT_RUN = 127 };
static const char usage[] =
    "usage: attn-sim [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs a CUDA program without a GPU: its kernels are interpreted from their PTX and checked. Build the program with\n"
    "  nvcc -cudart shared -lineinfo -gencode arch=compute_90,code=compute_90 ...\n"
    "\n"
    "  --gpu NAME        a100, rtx4090, h100 (default), b200\n"
    "  --policy NAME     when asynchronous work happens: eager (default), late, random\n"
    "  --seed N          of random turns\n"
    "  --runs N          N runs: eager, late, then random with seeds 1, 2, ...\n"
    "  --sms N           multiprocessors\n"
    "  --devices N       devices\n"
    "  --threads N       host threads that interpret, default all\n"
    "  --stop            a launch with a fault fails, as the next calls do; default: only faults that end a kernel\n"
    "  --no-races        no check of order, initialisation and waits (faster)\n"
    "  --fences LEVEL    missing fences that barriers cover: off, advice (default), fault; --waits, likewise\n"
    "  --no-advice       faults alone are told\n"
    "  --report FILE     findings are appended as lines of JSON\n"
    "  --counts FILE     what each launch did, counted; -: tables on standard error\n"
    "  --coverage DIR    which instructions ran (tools/sim_coverage.py)\n"
    "  --keep-ptx DIR    the PTX of each module goes there\n"
    "  --ptx DIR         NAME.ptx there takes the place of the module whose first kernel is NAME\n"
    "\n"
    "Status: the program's own; 86 where that is 0 and faults were found. Variables and checks: docs/sim.md.\n";

struct run {
    const char *policy, *seed; /* NULL: as the environment says */
};

static int fail(const char *what, const char *name) {
    fprintf(stderr, "attn-sim: %s%s%s\n", what, name ? ": " : "", name ? name : "");
    return STATUS_USAGE;
}
/* Options with a value: the variable that takes it. */
static const struct {
    const char *option, *variable;
} values[] = {
    {"--gpu", "ATTNSIM_GPU"},       {"--policy", "ATTNSIM_POLICY"},     {"--seed", "ATTNSIM_SEED"},
    {"--sms", "ATTNSIM_SMS"},       {"--devices", "ATTNSIM_DEVICES"},   {"--threads", "ATTNSIM_THREADS"},
    {"--report", "ATTNSIM_REPORT"}, {"--counts", "ATTNSIM_COUNTS"},     {"--coverage", "ATTNSIM_COVERAGE"},
    {"--ptx", "ATTNSIM_PTX"},       {"--keep-ptx", "ATTNSIM_KEEP_PTX"}, {"--fences", "ATTNSIM_FENCES"},
    {"--waits", "ATTNSIM_WAITS"},
};
/* Values that a variable has a number for, or that must be one of several words. */
static const char *checked_value(const char *option, const char *value) {
    static const char *const levels[] = {"off", "advice", "fault"}, *const numbers[] = {"0", "1", "2"};
    static const char *const gpus[] = {"a100", "rtx4090", "h100", "b200"}, *const policies[] = {"eager", "late",
                                                                                                "random"};
    const char *const *words = !strcmp(option, "--gpu")                                    ? gpus
                               : !strcmp(option, "--policy")                               ? policies
                               : !strcmp(option, "--fences") || !strcmp(option, "--waits") ? levels
                                                                                           : NULL;
    const size_t n = words == gpus ? 4 : 3;
    for (size_t i = 0; words && i < n; i++)
        if (!strcmp(words[i], value)) return words == levels ? numbers[i] : value;
    return words ? NULL : value;
}
static int read_number(const char *text, long most, long *out) {
    char *end = NULL;
    errno = 0;
    *out = strtol(text, &end, 10);
    return errno || !*text || *end || *out < 1 || *out > most ? -1 : 0;
}

/* ARGV[1...] up to the program; its place, or 0 after an error. */
static int read_options(int argc, char **argv, long *n_runs) {
    setenv("ATTNSIM_GO_ON", "1", 0);
    setenv("ATTNSIM_LAZY", "1", 0);
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (option[0] != '-') return i;
        if (!strcmp(option, "--help") || !strcmp(option, "-h")) {
            fputs(usage, stdout);
            exit(0);
        }
        if (!strcmp(option, "--")) return i + 1;
        if (!strcmp(option, "--stop")) {
            setenv("ATTNSIM_GO_ON", "0", 1);
        } else if (!strcmp(option, "--no-races")) {
            setenv("ATTNSIM_RACES", "0", 1);
        } else if (!strcmp(option, "--no-advice")) {
            setenv("ATTNSIM_ADVICE", "0", 1), setenv("ATTNSIM_FENCES", "0", 1), setenv("ATTNSIM_WAITS", "0", 1);
        } else if (i + 1 == argc) {
            return fail("an option without its value, or none that is known", option), 0;
        } else if (!strcmp(option, "--runs")) {
            if (read_number(argv[++i], 1000, n_runs)) return fail("--runs takes 1 to 1000, not", argv[i]), 0;
        } else {
            const char *variable = NULL, *value;
            for (size_t k = 0; k < sizeof values / sizeof *values; k++)
                if (!strcmp(values[k].option, option)) variable = values[k].variable;
            if (!variable) return fail("no such option", option), 0;
            if (!(value = checked_value(option, argv[++i]))) return fail(option, "no such value"), 0;
            setenv(variable, value, 1);
        }
    }
    return fail("no program is named; attn-sim --help", NULL), 0;
}

/* In front of what the variable says. */
static void put_in_front(const char *variable, const char *first, char separator) {
    const char *rest = getenv(variable);
    const size_t n = strlen(first) + (rest ? strlen(rest) : 0) + 2;
    char *all = malloc(n);
    if (!all) abort();
    snprintf(all, n, "%s%c%s", first, rest && *rest ? separator : 0, rest ? rest : "");
    setenv(variable, all, 1);
    free(all);
}

/* Findings in a file of JSON lines, from `from` on. */
static void count_findings(const char *path, long from, long *faults, long *advice) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    *faults = *advice = 0;
    if (!f) return;
    if (!fseek(f, from, SEEK_SET))
        while (getline(&line, &room, f) > 0) {
            *faults += strstr(line, "\"class\":\"fault\"") != NULL;
            *advice += strstr(line, "\"class\":\"advice\"") != NULL;
        }
    free(line);
    fclose(f);
}
static long size_of(const char *path) {
    FILE *f = fopen(path, "r");
    const long bytes = f && !fseek(f, 0, SEEK_END) ? ftell(f) : 0;
    if (f) fclose(f);
    return bytes > 0 ? bytes : 0;
}

/* For programs of the CuTe DSL, which hand over machine code: let the compiler keep its PTX, where the driver finds it
 * (driver/cubin.c), and call the runtime through TVM FFI rather than through one that is linked into cuda.bindings. */
static void prepare_dsl(const char *folder) {
    setenv("CUTE_DSL_KEEP", "ptx,cubin", 0);
    setenv("CUTE_DSL_DUMP_DIR", folder, 0);
    setenv("CUTE_DSL_LINEINFO", "1", 0);
    setenv("CUTE_DSL_ENABLE_TVM_FFI", "1", 0);
    setenv("ATTNSIM_CUBINS", getenv("CUTE_DSL_DUMP_DIR"), 0);
}
static void remove_folder(const char *folder) {
    char path[PATH_MAX];
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path) unlink(path);
    if (d) closedir(d);
    rmdir(folder);
}

/* The status of one run, as a shell tells it. */
static int run_once(const struct run *run, char **program, const char *path) {
    const pid_t child = fork();
    int status = 0;
    if (child < 0) return fail("no process", strerror(errno)), STATUS_NOT_RUN;
    if (!child) {
        if (run->policy) setenv("ATTNSIM_POLICY", run->policy, 1);
        if (run->seed) setenv("ATTNSIM_SEED", run->seed, 1);
        execv(path, program);
        fail(path, strerror(errno));
        _exit(STATUS_NOT_RUN);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return STATUS_NOT_RUN;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    char self[PATH_MAX], library[PATH_MAX + 64], path[PATH_MAX], why[256];
    long n_runs = 0;
    const int first = read_options(argc, argv, &n_runs);
    if (!first) return STATUS_USAGE;
    if (first == argc) return fail("no program is named; attn-sim --help", NULL);
    if (find_program(argv[first], path, sizeof path)) return fail(argv[first], "no such program"), STATUS_NOT_RUN;
    if (check_program(path, why, sizeof why)) return fail(argv[first], why);

    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return fail("/proc/self/exe", strerror(errno));
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(library, sizeof library, "%s/attn-sim-libraries", self);
    put_in_front("LD_LIBRARY_PATH", library, ':');
    snprintf(library, sizeof library, "%s/attn-sim-libraries/libattn_sim_runtime.so", self);
    if (access(library, R_OK)) return fail(library, "not there: run `make sim`");
    put_in_front("LD_PRELOAD", library, ' '); /* for programs whose own search path comes first */

    char folder[] = "/tmp/attn-sim-XXXXXX", own_report[sizeof folder + 16];
    if (!mkdtemp(folder)) return fail(folder, strerror(errno));
    snprintf(own_report, sizeof own_report, "%s/report", folder);
    setenv("ATTNSIM_REPORT", own_report, !getenv("ATTNSIM_REPORT") || !*getenv("ATTNSIM_REPORT"));
    const char *report = getenv("ATTNSIM_REPORT");
    prepare_dsl(folder);
    int worst = 0;
    for (long i = 0; i < (n_runs ? n_runs : 1); i++) {
        char seed[24];
        long faults, advice;
        const long from = size_of(report);
        struct run run = {NULL, NULL};
        snprintf(seed, sizeof seed, "%ld", i - 1);
        if (n_runs) run = (struct run){i == 0 ? "eager" : i == 1 ? "late" : "random", i > 1 ? seed : NULL};
        int status = run_once(&run, argv + first, path);
        count_findings(report, from, &faults, &advice);
        if (faults || advice || n_runs)
            fprintf(stderr, "attn-sim: %s%s%s%sfaults %ld, advice %ld, status %d\n", run.policy ? run.policy : "",
                    run.seed ? " " : "", run.seed ? run.seed : "", run.policy ? ": " : "", faults, advice, status);
        if (!status && faults) status = STATUS_FAULTS;
        if (!worst) worst = status;
    }
    remove_folder(folder);
    return worst;
}
