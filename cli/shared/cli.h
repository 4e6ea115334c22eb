/* SPDX-License-Identifier: MIT
 * What the commands of `attn` share: command table, exit codes, error texts, common options, clock, random numbers and
 * the tensors of a problem. Sees attn.h only; nothing here is part of the library. */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H
#include "attn.h"

#include <getopt.h>
#include <stdio.h>

/* ---- commands ---------------------------------------------------------------------------------------------- */

enum {
    ATTN_CLI_OK = 0,
    ATTN_CLI_FAILED = 1,  /* a check failed                       */
    ATTN_CLI_USAGE = 2,   /* the command line is wrong            */
    ATTN_CLI_ERROR = 3,   /* the library or a file failed         */
    ATTN_CLI_SKIPPED = 77 /* nothing here can run what was asked */
};

/* A command receives argv[0] = its own name ("run") and getopt_long's optind = 1; it returns an exit code. It lets
 * getopt print nothing (opterr is 0) and reports a bad option by attn_cli_bad_option. */
struct attn_cli_command {
    const char *name;
    const char *summary; /* one line for `attn --help` */
    int (*run)(int argc, char **argv);
};
extern const struct attn_cli_command attn_cli_commands[]; /* ends with name == NULL */

int attn_cli_run(int argc, char **argv);
int attn_cli_plan(int argc, char **argv);
int attn_cli_list(int argc, char **argv);
int attn_cli_env(int argc, char **argv);
int attn_cli_bench(int argc, char **argv);
int attn_cli_check(int argc, char **argv); /* check/command.c */
int attn_cli_dist(int argc, char **argv);  /* commands/dist.c */
int attn_cli_demo(int argc, char **argv);  /* commands/demo.c */
int attn_cli_version(int argc, char **argv);
int attn_cli_help(int argc, char **argv);

/* Commit of the build as given by the build system, "" if it gave none. */
const char *attn_cli_commit(void);

/* ---- messages ---------------------------------------------------------------------------------------------- */

/* Print "attn CMD: text" on stderr and return the exit code, so that a command can `return attn_cli_die(...)`.
 *   die     3: a file or something else outside the command line failed
 *   usage   2: with a line that points at --help
 *   library 3: text, then ": " and attn_last_error(); the status name in brackets */
int attn_cli_die(const char *cmd, const char *format, ...) __attribute__((format(printf, 2, 3)));
int attn_cli_usage(const char *cmd, const char *format, ...) __attribute__((format(printf, 2, 3)));
int attn_cli_library(const char *cmd, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "attn CMD: warning: text" on stderr. */
void attn_cli_warn(const char *cmd, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For getopt_long's '?' and ':' (the option string starts with ":"): says which option is unknown or lacks its value.
 */
int attn_cli_bad_option(const char *cmd, int opt, char **argv);

/* Escape sequence for an SGR code ("1", "31", "0") if the stream is a terminal and NO_COLOR is unset; else "". */
int attn_cli_coloured(FILE *stream);
const char *attn_cli_sgr(FILE *stream, const char *code);
/* One line that overwrites itself on stderr; nothing unless stderr is a terminal. An end call clears it. */
void attn_cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void attn_cli_progress_end(void);
int attn_cli_columns(FILE *stream); /* terminal width, 80 if unknown */

double attn_cli_seconds(void); /* monotonic */

/* Numbers from the command line: whole string, within [low, high]; 0 on success, else -1. */
int attn_cli_int(const char *text, int64_t low, int64_t high, int64_t *out);
int attn_cli_double(const char *text, double low, double high, double *out);
/* "cpu", "cuda" or "cuda:N". 0 on success, else -1. */
int attn_cli_device(const char *text, attn_device *out);
void attn_cli_device_text(attn_device device, char *buf, size_t bytes);
const char *attn_cli_op_name(int32_t op);                  /* "sdpa_fwd"; "?" */
const char *attn_cli_backend_name(int32_t backend);        /* "any", "ref", "cpu", "cuda"; "?" */
int attn_cli_match(const char *pattern, const char *name); /* glob with * and ? */
/* After attn_kernel_supports refused `kernel`: the reason without the kernel's name in front. */
const char *attn_cli_refusal(const char *kernel);

/* data.c: path of a file that comes with the program, as in "cases/dense.txt". 0 if it can be read; else -1, and the
 * path is where an installed program has it. */
int attn_cli_data(const char *name, char *path, size_t bytes);

/* tolerance.c: of an output of a problem of dtype `dtype`. absolute: of each element, plus `slack` times its size (a
 * rounding to a narrow dtype may fall either way); else of ||got - want|| / ||want|| of a row. */
struct attn_cli_tolerance {
    double bound, slack;
    int absolute;
};
struct attn_cli_tolerance attn_cli_tolerance(int32_t op, int32_t role, int32_t dtype);

/* ---- options that several commands take ---------------------------------------------------------------------- */

/* struct option table entries and the codes that getopt_long returns for them:
 *     static const struct option options[] = {ATTN_CLI_COMMON_OPTIONS, {"json", no_argument, NULL, 'j'}, {0}};
 *     while ((c = getopt_long(argc, argv, ":hj", options, NULL)) != -1)
 *         if ((r = attn_cli_common_option("plan", c, optarg, &common)) < 0) return ATTN_CLI_USAGE;
 *         else if (r == 0) switch (c) { ... default: return attn_cli_bad_option("plan", c, argv); }        */
struct attn_cli_common {
    int32_t threads;
    int32_t backend;
    int strict, apart;
    attn_device device;
    const char *cpu_isa;
    const char *kernel;
};
enum {
    ATTN_CLI_OPT_THREADS = 0x1000,
    ATTN_CLI_OPT_ISA,
    ATTN_CLI_OPT_DEVICE,
    ATTN_CLI_OPT_KERNEL,
    ATTN_CLI_OPT_BACKEND,
    ATTN_CLI_OPT_STRICT,
    ATTN_CLI_OPT_APART,
    ATTN_CLI_OPT_PRIVATE /* first code that a command may use for its own long options */
};
#define ATTN_CLI_COMMON_OPTIONS                                                                                        \
    {"threads", required_argument, NULL, ATTN_CLI_OPT_THREADS},                                                        \
        {"cpu-isa", required_argument, NULL, ATTN_CLI_OPT_ISA},                                                        \
        {"device", required_argument, NULL, ATTN_CLI_OPT_DEVICE},                                                      \
        {"kernel", required_argument, NULL, ATTN_CLI_OPT_KERNEL},                                                      \
        {"backend", required_argument, NULL, ATTN_CLI_OPT_BACKEND},                                                    \
        {"strict", no_argument, NULL, ATTN_CLI_OPT_STRICT}, {                                                          \
        "apart", no_argument, NULL, ATTN_CLI_OPT_APART                                                                 \
    }
#define ATTN_CLI_COMMON_HELP                                                                                           \
    "      --threads N       CPU threads (default: ATTN_THREADS, else all processors)\n"                               \
    "      --cpu-isa NAME    cap on CPU features: c, avx2, avx512, avx512bf16, amx\n"                                  \
    "      --device DEV      cpu (default), cuda:0, ...\n"                                                             \
    "      --kernel PATTERN  preferred kernels, * and ? allowed\n"                                                     \
    "      --backend NAME    preferred backend: ref, cpu, cuda\n"                                                      \
    "      --strict          an unmet --kernel or --backend is an error\n"                                             \
    "      --apart           no kernel that joins the index lists of neighbouring queries\n"

/* 1: the option was one of these and is stored; 0: not one of these; -1: bad value, message printed. */
int attn_cli_common_option(const char *cmd, int opt, const char *value, struct attn_cli_common *common);
/* --driver: contexts made from now on open this library as CUDA's driver; "sim": the PTX simulator beside the command,
 * with the build's PTX where it is there. 0, or -1. */
int attn_cli_driver(const char *name);
/* --policy: of a list with commas the word of this turn, `eager`, `late`, `random` or `random:SEED`, becomes the
 * simulator's policy, and its seed, or else the given one, the simulator's seed; a turn < 0 reads the list alone. 0;
 * -1: it is no such list. */
int attn_cli_policy(const char *list, int turn, const char *seed);
/* Context for these options; prints the reason and returns an exit code on failure, 0 on success. */
int attn_cli_ctx(const char *cmd, const struct attn_cli_common *common, attn_ctx **out);
attn_plan_options attn_cli_plan_options(const struct attn_cli_common *common);
/* --outputs: roles by name, separated by commas. Whether a list has a role; 0, or an exit code after printing which
 * word is no role or, where there is a problem, none that it writes. */
int attn_cli_lists(const char *list, int32_t role);
int attn_cli_outputs(const char *cmd, const char *list, const attn_problem *problem);
/* Parse and check a problem text; 0, or an exit code after printing (text faults 2, others 3). */
int attn_cli_problem(const char *cmd, const char *text, attn_problem *out);
/* attn_problem_format into malloc'ed memory; NULL on failure. */
char *attn_cli_problem_text(const attn_problem *problem);

/* ---- random numbers (xoshiro256++ seeded by splitmix64): the same on every machine ---------------------------- */

struct attn_cli_rng {
    uint64_t s[4];
};
void attn_cli_rng_seed(struct attn_cli_rng *rng, uint64_t seed);
uint64_t attn_cli_rng_u64(struct attn_cli_rng *rng);
double attn_cli_rng_uniform(struct attn_cli_rng *rng);           /* [0, 1) */
int64_t attn_cli_rng_below(struct attn_cli_rng *rng, int64_t n); /* 0 .. n-1, without bias; 0 if n < 1 */
double attn_cli_rng_normal(struct attn_cli_rng *rng);            /* mean 0, variance 1 */

/* ---- the tensors of a problem ---------------------------------------------------------------------------------- */

/* One contiguous CPU tensor per role that the problem uses (ATTN_USE_* in use[]); args points at tensor[].
 * The struct must not move between create and destroy, since args refers to it. */
struct attn_cli_tensors {
    attn_problem problem;
    attn_tensor tensor[ATTN_ROLE_COUNT];
    int32_t use[ATTN_ROLE_COUNT];
    void *memory[ATTN_ROLE_COUNT]; /* owned; 64-byte aligned */
    attn_args args;
};
/* Allocate by attn_role_tensor; every byte 0xff (outputs start as NaN). On failure nothing is kept; ATTN_E_MEMORY if
 * memory ran out. */
attn_status attn_cli_tensors_create(struct attn_cli_tensors *set, const attn_problem *problem);
/* The same, but roles in the bit set `skip` get use[] and tensor[] only: no memory, no place in args. */
attn_status attn_cli_tensors_create_except(struct attn_cli_tensors *set, const attn_problem *problem, uint64_t skip);
void attn_cli_tensors_destroy(struct attn_cli_tensors *set);
/* Fill one input role with sensible random data: normal values, additive masks with some -inf, boolean masks with some
 * holes, ALiBi slopes 2^(-8(h+1)/HQ), lengths and cu_seqlens that fit, block tables of distinct pages where there are
 * enough, distinct admissible indices (-1 after them where there are fewer than TOPK). Each role draws from its own
 * stream of `seed`, so that leaving one out does not change the others. OUT, LSE and JOINED as inputs are not random:
 * see attn_cli_tensors_forward. Returns ATTN_OK, or ATTN_E_MEMORY. */
attn_status attn_cli_tensors_fill_role(struct attn_cli_tensors *set, int32_t role, uint64_t seed);
/* All inputs (and what is read and written) except OUT, LSE and JOINED. */
attn_status attn_cli_tensors_fill(struct attn_cli_tensors *set, uint64_t seed);
/* overlap.c: --overlap. Lists of the problem's sparse queries that share a part J of their keys with the query before,
 * `random` ones, or the `prefix` of the keys. No part of a problem: a plan does not see it. */
enum { ATTN_CLI_OVERLAP_NONE, ATTN_CLI_OVERLAP_RANDOM, ATTN_CLI_OVERLAP_PREFIX, ATTN_CLI_OVERLAP_WALK };
struct attn_cli_overlap {
    int kind;
    double j;      /* of a walk */
    char text[24]; /* as given */
};
int attn_cli_overlap_parse(const char *text, struct attn_cli_overlap *out); /* 0, or -1 */
/* Row-major indices [B,SQ,TOPK]: distinct admissible keys in random order, -1 after them where there are too few. A
 * stream of its own: nothing else that the seed gives changes. ATTN_OK or ATTN_E_MEMORY. */
attn_status attn_cli_overlap_fill(const struct attn_cli_overlap *overlap, const attn_problem *p, int32_t *indices,
                                  uint64_t seed);
struct attn_cli_overlap_measured {
    double j;               /* mean over neighbours of one batch; -1: no two of them have a key */
    double union_length[4]; /* mean length of the unions of 2, 4, 8, 16 lists, as multisets */
};
/* Of valid slots alone. length: topk_length, row-major, or NULL. */
attn_status attn_cli_overlap_measure(const attn_problem *p, const int32_t *indices, const int32_t *length,
                                     struct attn_cli_overlap_measured *out);
/* joined.c: the problem of mla_join for the lists of a sparse problem; its execution on host tensors, from args'
 * indices and topk_length to joined, in groups of p->group. */
attn_problem attn_cli_joined_problem(const attn_problem *p, int64_t group, int64_t union_limit);
attn_status attn_cli_make_joined(attn_ctx *ctx, const attn_problem *p, int64_t union_limit, const attn_args *args);
/* The set's JOINED from its lists, if it is an input that the set has memory for. */
attn_status attn_cli_tensors_joined(attn_ctx *ctx, struct attn_cli_tensors *set);
/* Groups of a plan that joins lists, and the entries of those not left apart: from the headers of args' joined, or of
 * lists that are made here of the same indices, as the plan's kernel makes them for itself, or mla_join for others. */
struct attn_cli_joined_count {
    int64_t group, groups, apart; /* group 0: none is joined */
    int64_t most;                 /* entries of the longest union */
    double mean;
};
attn_status attn_cli_joined_count(attn_ctx *ctx, const attn_problem *p, const attn_args *args,
                                  const attn_plan_info *info, struct attn_cli_joined_count *out);
/* In JSON (docs/json.md), and in words. */
void attn_cli_joined_json(const struct attn_cli_joined_count *c, char *buf, size_t bytes);
void attn_cli_joined_text(const struct attn_cli_joined_count *c, char *buf, size_t bytes);
/* For operators that read JOINED: attn_cli_tensors_joined. For those that read OUT or LSE: run the matching forward
 * (CPU) on the set's inputs and store its out and lse. Nothing to do for other operators. */
attn_status attn_cli_tensors_forward(attn_ctx *ctx, struct attn_cli_tensors *set);
/* The same, computed by a device; by the CPU if the device has no kernel for it. */
attn_status attn_cli_tensors_forward_on(attn_ctx *ctx, attn_device device, struct attn_cli_tensors *set);
/* Lengths at their bounds (seqlens SQ and SK, topk_length TOPK), so that the work done equals attn_problem_flops. */
void attn_cli_tensors_full_lengths(struct attn_cli_tensors *set);
/* Aligned memory of the workspace of a plan (NULL if it needs none, *failed tells); free with free(). */
void *attn_cli_workspace(const attn_plan_info *info, int *failed);
/* device.c: execute a plan on tensors in host memory; for a GPU's plan they are copied there and the outputs back.
 * *seconds (may be NULL): of the execution alone. args->workspace is ignored. */
attn_status attn_cli_execute(attn_ctx *ctx, const attn_plan *plan, const attn_args *args, double *seconds);
/* Value of one element as double, any dtype (the helper's own conversion, via attn_convert for halves). */
double attn_cli_load(const void *data, int32_t dtype, int64_t index);
void attn_cli_store(void *data, int32_t dtype, int64_t index, double value);
#endif
