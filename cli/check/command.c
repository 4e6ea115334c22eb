/* SPDX-License-Identifier: MIT
 * `attn check`: every registered kernel on random problems against the ref kernels, within the bounds of
 * docs/numerics.md. A new kernel is tested with no further edit. `--properties` runs what needs no reference instead.
 */
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: attn check [options]\n"
    "Compare every kernel with the ref kernels on random problems.\n\n"
    "      --repeat N        problems per operator and dtype (default 50)\n"
    "      --seed S          first of the random numbers (default 1)\n"
    "      --kernel PATTERN  only kernels of this name, * and ? allowed\n"
    "      --backend NAME    only ref, cpu or cuda kernels\n"
    "      --op NAME         only one operator: sdpa_fwd, sdpa_bwd, mla_fwd, mla_bwd, dist,\n"
    "                        mla_join\n"
    "      --dtype NAME      only one dtype: f32, f16, bf16, f64, i32, e4m3\n"
    "      --device DEV      cpu (default), cuda:0, ...\n"
    "      --driver PATH     CUDA driver library; sim: the PTX simulator beside this command\n"
    "      --policy NAME     of sim, when asynchronous work ends: eager, late, random or random:SEED;\n"
    "                        of a list with commas each run of a case takes the next\n"
    "      --trace-barriers FILE  of sim, a line for each event at a barrier of CTA 0\n"
    "      --problem TEXT    exactly this problem, with the data that --seed gives; of several each\n"
    "                        has the --seed, --policy and --overlap that stand before the next\n"
    "      --overlap J       lists of sparse queries share J of their keys with the query before:\n"
    "                        0 to 1, random, or prefix\n"
    "      --properties[=P]  properties that need no reference; P: of this name, * and ? allowed\n"
    "      --threads N       threads of the second and third run of a case (default 3)\n"
    "      --runs N          runs of a case: 3 (default), or 2, without the third\n"
    "      --cpu-isa NAME    cap on CPU features: c, avx2, avx512, avx512bf16, amx\n"
    "      --coverage        print which listed values the problems have hit\n"
    "      --timeout S       end the run when one case takes longer (default 120)\n"
    "      --list            kernels that would be tested\n"
    "      --json            JSON Lines\n"
    "  -v, --verbose         one line per case\n"
    "  -h, --help\n\n"
    "Exit code: 0 all passed, 1 failures, 77 nothing to run.\n";

/* A problem of the command line, and how it is to be run. */
struct given {
    const char *text, *policies;
    uint64_t seed;
    struct attn_cli_overlap overlap;
    attn_problem problem;
};

struct command {
    struct check_session session;
    struct check_filter filter;
    struct given *given;
    int n_given;
    int64_t repeat, threads, runs, timeout;
    uint64_t seed;
    bool coverage, list, properties, own_sums;
    attn_kernel_info *kernels;
    struct tally {
        bool tested;
        int64_t passed, failed, skipped;
        double worst;
        char refusal[240];
    } * tally;
    int32_t n_kernels, n_tested;
    int64_t oracle_failures;
    int64_t n_cases[ATTN_OP_COUNT_];
};

static bool names_kernel(const struct command *m, const attn_kernel_info *k) {
    bool on_device = (k->backend == ATTN_BACKEND_CUDA) == (m->session.device.type == ATTN_DEVICE_TYPE_CUDA);
    return on_device && (!m->filter.pattern || attn_cli_match(m->filter.pattern, k->name)) &&
           (!m->filter.backend || k->backend == m->filter.backend) && (!m->filter.op || k->op == m->filter.op) &&
           (!m->filter.dtype || k->dtype == m->filter.dtype);
}

static bool is_given(const struct command *m, int32_t op, int32_t dtype) {
    for (int n = 0; n < m->n_given; n++)
        if (m->given[n].problem.op == op && m->given[n].problem.dtype == dtype) return true;
    return m->n_given == 0;
}

static int choose_kernels(struct command *m) {
    m->n_kernels = attn_kernel_count(m->session.one);
    m->kernels = calloc((size_t)m->n_kernels + 1, sizeof *m->kernels);
    m->tally = calloc((size_t)m->n_kernels + 1, sizeof *m->tally);
    if (!m->kernels || !m->tally) return attn_cli_die("check", "out of memory");
    for (int32_t i = 0; i < m->n_kernels; i++) {
        m->kernels[i].size = sizeof m->kernels[i];
        attn_status st = attn_kernel_get_info(m->session.one, i, &m->kernels[i]);
        if (st) return attn_cli_library("check", st, "kernel %d", (int)i);
        m->tally[i].tested = names_kernel(m, &m->kernels[i]) && is_given(m, m->kernels[i].op, m->kernels[i].dtype);
        m->n_tested += m->tally[i].tested;
    }
    return 0;
}

static int open_contexts(struct command *m) {
    attn_ctx **out[2] = {&m->session.one, &m->session.many};
    for (int i = 0; i < 2; i++) {
        attn_ctx_options o = {.size = sizeof o, .threads = i ? (int32_t)m->threads : 1, .cpu_isa = m->session.isa};
        attn_status st = attn_ctx_create(&o, out[i]);
        if (st) return attn_cli_library("check", st, "no context");
    }
    return 0;
}

/* After a fault inside a kernel its context is in an unknown state: it is left alone and another is used. */
static void renew_contexts(struct command *m) {
    if (open_contexts(m)) exit(ATTN_CLI_ERROR);
}

static bool wants(const struct command *m, int32_t op, int32_t dtype) {
    for (int32_t i = 0; i < m->n_kernels; i++)
        if (m->tally[i].tested && m->kernels[i].op == op && m->kernels[i].dtype == dtype) return true;
    return false;
}

/* Compares the ref kernel's answer, by which all kernels are judged, with the tester's own. If they disagree, the case
 * counts as a failure, and the tester's own answer judges the kernels. */
static void judge_oracle(struct command *m, struct check_case *c, const char *why) {
    struct check_report r = {.session = &m->session,
                             .c = c,
                             .kernel = check_dense(&c->p)  ? "*_ref_f64*"
                                       : check_join(&c->p) ? "*_ref_i32*"
                                                           : "*_ref_f32*"};
    if (c->oracle_failed) attn_cli_check_report_fault(&r, "%s", why);
    struct check_verdict v[ATTN_ROLE_COUNT] = {0};
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !c->oracle_failed; role++) {
        const struct check_want *w = &c->want[role];
        if (!w->want || c->t[role].n == 0) continue;
        uint8_t *wrong = calloc((size_t)c->t[role].n, 1);
        struct check_bound b = attn_cli_check_bound(c, role, attn_cli_check_oracle_dtype(&c->p), true);
        v[role].role = role;
        if (wrong && attn_cli_check_compare(w, w->plain, w->want, &b, wrong, &v[role])) {
            attn_cli_check_cluster(&c->t[role].view, wrong, attn_cli_check_axes(c, role), v[role].cluster,
                                   sizeof v[role].cluster);
            if (!r.printed)
                attn_cli_check_report_fault(
                    &r, "the ref kernel, on inputs widened from %s, and the tester's own formula disagree:",
                    attn_dtype_name(c->p.dtype));
            attn_cli_check_report_verdict(&r, &v[role], true);
        }
        free(wrong);
    }
    attn_cli_check_report_close(&r, 0);
    if (r.n_fail) attn_cli_check_case_want_plain(c); /* the kernels are still worth testing */
    m->oracle_failures += r.n_fail > 0;
}

/* One case: made, answered, and run by each kernel of its operator and dtype. false: all of them refuse it. */
static bool test_case(struct command *m, const attn_problem *p, uint64_t seed) {
    struct check_case c;
    char why[700];
    if (attn_cli_check_case_make(&c, p, seed, &m->session.overlap)) {
        m->oracle_failures++;
        return true;
    }
    if (attn_cli_check_joined_input(&c, m->session.one, why, sizeof why)) {
        struct check_report r = {.session = &m->session, .c = &c, .kernel = "attn_mla_join_*"};
        attn_cli_check_report_fault(&r, "%s", why);
        attn_cli_check_report_close(&r, 0);
        m->oracle_failures++;
        attn_cli_check_case_free(&c);
        return true;
    }
    attn_cli_check_case_oracle(&c, m->session.one, why, sizeof why);
    judge_oracle(m, &c, why);
    if (c.oracle_failed) renew_contexts(m);
    bool accepted = false, taken = false;
    for (int32_t i = 0; i < m->n_kernels; i++) {
        struct tally *t = &m->tally[i];
        if (!t->tested || m->kernels[i].op != p->op || m->kernels[i].dtype != p->dtype || m->session.gpu_lost) continue;
        double start = attn_cli_seconds(), worst = 0;
        /* in the simulator, sums that nothing orders are faults of a kernel that claims equal bits */
        setenv("ATTNSIM_ORDERED_SUMS", m->kernels[i].deterministic ? "1" : "0", m->own_sums);
        int r = attn_cli_check_run(&m->session, &c, i, &m->kernels[i], &worst);
        if (r == CHECK_PASS)
            t->passed++;
        else if (r == CHECK_SKIP)
            t->skipped++;
        else
            t->failed++;
        if (r == CHECK_SKIP) snprintf(t->refusal, sizeof t->refusal, "%s", attn_last_error());
        if (!(worst <= t->worst)) t->worst = worst;
        if (r == CHECK_CRASH) renew_contexts(m);
        if (r != CHECK_SKIP && m->kernels[i].backend != ATTN_BACKEND_REF) accepted = true;
        taken |= r != CHECK_SKIP;
        if (m->session.verbose && !m->session.json)
            printf("%-5s %-40s %5.1f ms  %.2f of bound  seed %" PRIu64 "  %s\n",
                   r == CHECK_PASS   ? "ok"
                   : r == CHECK_SKIP ? "skip"
                                     : "FAIL",
                   m->kernels[i].name, (attn_cli_seconds() - start) * 1e3, worst, seed, c.text);
    }
    attn_cli_check_cover_case(&c, accepted);
    m->n_cases[p->op]++;
    attn_cli_check_case_free(&c);
    return taken;
}

static uint64_t case_seed(uint64_t seed, int32_t op, int32_t dtype, int64_t repeat) {
    struct attn_cli_rng r;
    attn_cli_rng_seed(&r, seed * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(op * 16 + dtype) * UINT64_C(1000003) +
                              (uint64_t)repeat);
    const uint64_t bits = attn_cli_rng_u64(&r);
    return bits >> 16 | (bits & 1) << 48; /* short enough to type; those from 46 on choose kinds of data */
}

/* ---- random problems -----------------------------------------------------------------------------------------------
 */

static void draw(struct attn_cli_rng *r, int32_t op, int32_t dtype, attn_problem *p) {
    if (op == ATTN_OP_SDPA_FWD || op == ATTN_OP_SDPA_BWD)
        attn_cli_check_gen_dense(r, op, dtype, p);
    else if (op == ATTN_OP_MLA_JOIN)
        attn_cli_check_gen_join(r, p);
    else
        attn_cli_check_gen_sparse(r, op, dtype, p);
}

/* The row that problem n of an operator and dtype shall fit: each that `--kernel` names and the device can run in turn,
 * but for the last of eight problems, which stays as drawn, so that refusals are tried, too. -1: none. */
static int32_t row_to_fit(const struct command *m, int32_t op, int32_t dtype, int64_t n) {
    int32_t rows = 0, left = -1;
    if (!m->filter.pattern || !strcmp(m->filter.pattern, "*") || n % 8 == 7) return -1;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < m->n_kernels; i++) {
            const attn_kernel_info *k = &m->kernels[i];
            if (!m->tally[i].tested || k->op != op || k->dtype != dtype || !k->usable) continue;
            if (left-- == 0) return i;
            rows += pass == 0;
        }
        left = rows ? (int32_t)((n - n / 8) % rows) : -1;
    }
    return -1;
}

/* A problem that the library takes and, unless none of many draws is one, the row does. Few draws fit rows that ask for
 * few heads, neighbours or one size of a head: further draws get sizes of more kinds. Returns 0, or -1: not even the
 * library takes one. */
static int draw_problem(const struct command *m, struct attn_cli_rng *r, int32_t op, int32_t dtype, int32_t row,
                        attn_problem *p) {
    enum { DRAWS = 50, DRAWS_FOR_ROW = 3000 };
    const uint32_t aligned = row < 0 ? 0 : m->kernels[row].alignment_bytes;
    attn_problem other;
    int tries = 0;
    do { /* the generator may combine what the operator does not allow: the library decides */
        draw(r, op, dtype, p);
        if (++tries > DRAWS) return -1;
    } while (attn_problem_check(p));
    if (row < 0 || !attn_kernel_supports(m->session.one, m->session.device, row, p)) return 0;
    for (tries = 0; tries < DRAWS_FOR_ROW; tries++) {
        draw(r, op, dtype, &other);
        attn_cli_check_gen_vary(r, &other);
        if (attn_cli_rng_below(r, 4) && other.align_bytes < aligned) other.align_bytes = aligned;
        if (attn_problem_check(&other)) continue;
        if (attn_kernel_supports(m->session.one, m->session.device, row, &other)) continue;
        *p = other;
        break;
    }
    return 0;
}

static void test_random(struct command *m) {
    for (int64_t n = 0; n < m->repeat; n++)
        for (int32_t op = 1; op < ATTN_OP_COUNT_; op++)
            for (int32_t dtype = ATTN_F32; dtype < ATTN_DTYPE_COUNT_; dtype++) {
                if (!wants(m, op, dtype) || m->session.gpu_lost) continue;
                const int32_t row = row_to_fit(m, op, dtype, n);
                uint64_t seed = case_seed(m->seed, op, dtype, n);
                struct attn_cli_rng r;
                attn_problem p;
                attn_cli_rng_seed(&r, seed);
                if (draw_problem(m, &r, op, dtype, row, &p)) {
                    printf("FAIL every generated problem of %s is refused: %s\n", attn_cli_op_name(op),
                           attn_last_error());
                    m->oracle_failures++;
                    continue;
                }
                if (!m->session.json)
                    attn_cli_progress("%" PRId64 "/%" PRId64 " %s %s", n + 1, m->repeat, attn_cli_op_name(op),
                                      attn_dtype_name(dtype));
                if (test_case(m, &p, seed) || row < 0 || m->kernels[row].alignment_bytes <= p.align_bytes) continue;
                p.align_bytes = m->kernels[row].alignment_bytes; /* it may have been its tensors that were refused */
                if (!attn_problem_check(&p)) test_case(m, &p, seed);
            }
    attn_cli_progress_end();
}

static void print_seconds(const struct given *g, double seconds) {
    printf("{\"type\":\"problem\",\"seconds\":%.3f,\"problem\":", seconds);
    attn_cli_check_json_text(g->text);
    printf("}\n");
}
/* The problems of the command line. Of several, the log has the processor's seconds that each took. */
static void test_given(struct command *m) {
    for (int n = 0; n < m->n_given; n++) {
        const struct given *g = &m->given[n];
        const clock_t start = clock();
        m->session.policies = g->policies, m->session.overlap = g->overlap;
        for (int64_t k = 0; k < m->repeat && !m->session.gpu_lost; k++)
            (void)test_case(m, &g->problem, g->seed + (uint64_t)k);
        if (m->session.json && m->n_given > 1) print_seconds(g, (double)(clock() - start) / CLOCKS_PER_SEC);
    }
}

static void print_kernel(const struct command *m, int32_t i) {
    const struct tally *t = &m->tally[i];
    const char *result = t->failed ? "FAIL" : t->passed ? "ok" : "skip";
    if (m->session.json) {
        printf("{\"type\":\"kernel\",\"kernel\":\"%s\",\"result\":\"%s\",\"passed\":%" PRId64 ",\"failed\":%" PRId64
               ",\"skipped\":%" PRId64 ",\"worst\":%.4g,\"refusal\":",
               m->kernels[i].name, result, t->passed, t->failed, t->skipped, isfinite(t->worst) ? t->worst : 1e30);
        attn_cli_check_json_text(t->refusal);
        printf("}\n");
        return;
    }
    printf("%s%-4s%s  %-40s %5" PRId64 " passed %4" PRId64 " failed %4" PRId64 " refused   worst %.2f of its bound\n",
           attn_cli_sgr(stdout, t->failed   ? "1;31"
                                : t->passed ? "32"
                                            : "33"),
           result, attn_cli_sgr(stdout, "0"), m->kernels[i].name, t->passed, t->failed, t->skipped, t->worst);
    if (!t->passed && !t->failed)
        printf("      accepted nothing: %s\n", t->refusal[0] ? t->refusal : "no case was made for it");
}

static int finish(struct command *m) {
    int64_t passed = 0, failed = m->oracle_failures, skipped = 0;
    bool ops[ATTN_OP_COUNT_] = {false};
    for (int32_t i = 0; i < m->n_kernels; i++) {
        if (!m->tally[i].tested) continue;
        print_kernel(m, i);
        passed += m->tally[i].passed, failed += m->tally[i].failed, skipped += m->tally[i].skipped;
        ops[m->kernels[i].op] = true;
    }
    for (int32_t op = 0; op < ATTN_OP_COUNT_; op++)
        attn_cli_check_print_joined(&m->session.joined[op], op, m->session.json);
    bool demand = m->repeat >= 200 && !m->n_given && !m->filter.dtype;
    if ((m->coverage || demand) && !m->session.json) {
        int missing = attn_cli_check_cover_print(m->coverage, ops, demand);
        if (demand) failed += missing;
    }
    if (m->session.json)
        printf("{\"type\":\"summary\",\"passed\":%" PRId64 ",\"failed\":%" PRId64 ",\"skipped\":%" PRId64 "}\n", passed,
               failed, skipped);
    else
        printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n", passed, failed, skipped);
    return failed ? ATTN_CLI_FAILED : passed ? ATTN_CLI_OK : ATTN_CLI_SKIPPED;
}

/* ---- command line ---------------------------------------------------------------------------------------------------
 */

static int32_t dtype_named(const char *name) {
    for (int32_t d = ATTN_F32; d < ATTN_DTYPE_COUNT_; d++)
        if (d != ATTN_I64 && d != ATTN_BOOL && !strcmp(attn_dtype_name(d), name)) return d;
    return 0;
}
static int32_t op_named(const char *name) {
    for (int32_t op = 1; op < ATTN_OP_COUNT_; op++)
        if (!strcmp(attn_cli_op_name(op), name)) return op;
    return 0;
}
static int32_t backend_named(const char *name) {
    for (int32_t b = ATTN_BACKEND_REF; b < ATTN_BACKEND_COUNT_; b++)
        if (!strcmp(attn_cli_backend_name(b), name)) return b;
    return 0;
}

/* The simulator appends; a run begins with an empty file. */
static int choose_trace(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f || fclose(f)) return -1;
    return setenv("ATTNSIM_TRACE", path, 1);
}

/* What stands before the next problem holds for the last one. */
static void close_given(struct command *m, int64_t seed) {
    struct given *g = m->n_given ? &m->given[m->n_given - 1] : NULL;
    if (g) g->seed = (uint64_t)seed, g->policies = m->session.policies, g->overlap = m->session.overlap;
}

static int parse(struct command *m, int argc, char **argv) {
    enum {
        REPEAT = 256,
        SEED,
        KERNEL,
        BACKEND,
        OP,
        DTYPE,
        DEVICE,
        PROBLEM,
        OVERLAP,
        PROPERTIES,
        THREADS,
        ISA,
        COVERAGE,
        TIMEOUT,
        LIST,
        JSON,
        DRIVER,
        POLICY,
        TRACE,
        RUNS
    };
    static const struct option options[] = {
        {"repeat", required_argument, NULL, REPEAT},
        {"seed", required_argument, NULL, SEED},
        {"kernel", required_argument, NULL, KERNEL},
        {"backend", required_argument, NULL, BACKEND},
        {"op", required_argument, NULL, OP},
        {"dtype", required_argument, NULL, DTYPE},
        {"device", required_argument, NULL, DEVICE},
        {"driver", required_argument, NULL, DRIVER},
        {"policy", required_argument, NULL, POLICY},
        {"trace-barriers", required_argument, NULL, TRACE},
        {"problem", required_argument, NULL, PROBLEM},
        {"overlap", required_argument, NULL, OVERLAP},
        {"properties", optional_argument, NULL, PROPERTIES},
        {"threads", required_argument, NULL, THREADS},
        {"runs", required_argument, NULL, RUNS},
        {"cpu-isa", required_argument, NULL, ISA},
        {"coverage", no_argument, NULL, COVERAGE},
        {"timeout", required_argument, NULL, TIMEOUT},
        {"list", no_argument, NULL, LIST},
        {"json", no_argument, NULL, JSON},
        {"verbose", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    static const char *const expected[] = {
        [REPEAT - REPEAT] = "1 to 1000000000",
        [SEED - REPEAT] = "0 to 9223372036854775807",
        [BACKEND - REPEAT] = "ref, cpu or cuda",
        [OP - REPEAT] = "sdpa_fwd, sdpa_bwd, mla_fwd, mla_bwd, dist or mla_join",
        [DTYPE - REPEAT] = "f32, f16, bf16, f64, i32 or e4m3",
        [DEVICE - REPEAT] = "cpu or cuda:N",
        [OVERLAP - REPEAT] = "0 to 1, random or prefix",
        [THREADS - REPEAT] = "1 or more",
        [TIMEOUT - REPEAT] = "0 to 1000000 seconds",
        [DRIVER - REPEAT] = "sim, or the path of a driver's library",
        [POLICY - REPEAT] = "eager, late or random, or a list",
        [TRACE - REPEAT] = "a file that can be written",
        [RUNS - REPEAT] = "2 or 3",
    };
    int64_t seed = 1, repeat = 0;
    int o, option = 0;
    m->given = calloc((size_t)argc, sizeof *m->given);
    if (!m->given) return attn_cli_die("check", "out of memory");
    while ((o = getopt_long(argc, argv, ":hv", options, &option)) != -1) {
        int bad = 0;
        switch (o) {
        case REPEAT: bad = attn_cli_int(optarg, 1, 1000000000, &repeat); break;
        case SEED: bad = attn_cli_int(optarg, 0, INT64_MAX, &seed); break;
        case KERNEL: m->filter.pattern = optarg; break;
        case BACKEND: bad = !(m->filter.backend = backend_named(optarg)); break;
        case OP: bad = !(m->filter.op = op_named(optarg)); break;
        case DTYPE: bad = !(m->filter.dtype = dtype_named(optarg)); break;
        case DEVICE: bad = attn_cli_device(optarg, &m->session.device); break;
        case DRIVER: bad = attn_cli_driver(optarg), m->session.device = ATTN_DEVICE_CUDA(0); break;
        case POLICY: bad = attn_cli_policy(m->session.policies = optarg, -1, NULL); break;
        case TRACE: bad = choose_trace(optarg); break;
        case PROBLEM:
            close_given(m, seed);
            m->given[m->n_given++].text = optarg;
            break;
        case OVERLAP: bad = attn_cli_overlap_parse(optarg, &m->session.overlap); break;
        case PROPERTIES: m->properties = true, m->filter.property = optarg; break;
        case THREADS: bad = attn_cli_int(optarg, 1, INT32_MAX, &m->threads); break;
        case RUNS: bad = attn_cli_int(optarg, 2, 3, &m->runs); break;
        case ISA: m->session.isa = optarg; break;
        case COVERAGE: m->coverage = true; break;
        case TIMEOUT: bad = attn_cli_int(optarg, 0, 1000000, &m->timeout); break;
        case LIST: m->list = true; break;
        case JSON: m->session.json = true; break;
        case 'v': m->session.verbose = true; break;
        case 'h': fputs(help, stdout); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("check", o, argv);
        }
        if (bad)
            return attn_cli_usage("check", "--%s: expected %s, given '%s'", options[option].name, expected[o - REPEAT],
                                  optarg);
    }
    if (optind < argc) return attn_cli_usage("check", "unexpected argument \"%s\"", argv[optind]);
    m->seed = (uint64_t)seed;
    close_given(m, seed);
    char seed_text[24];
    snprintf(seed_text, sizeof seed_text, "%" PRId64, seed);
    setenv("ATTNSIM_SEED", seed_text, 0);
    snprintf(m->session.seed_text, sizeof m->session.seed_text, "%s", getenv("ATTNSIM_SEED"));
    if (m->session.policies) attn_cli_policy(m->session.policies, 0, m->session.seed_text);
    m->own_sums = !getenv("ATTNSIM_ORDERED_SUMS");
    /* Kernels of this library keep to the letter: a missing fence or wait is a fault, whatever hardware forgives. */
    setenv("ATTNSIM_FENCES", "2", 0), setenv("ATTNSIM_WAITS", "2", 0);
    m->repeat = repeat ? repeat : m->n_given ? 1 : 50;
    m->session.threads = (int)m->threads, m->session.runs = (int)m->runs;
    return -1; /* go on */
}

static int check(struct command *m) {
    int r = open_contexts(m);
    for (int n = 0; n < m->n_given && !r; n++) r = attn_cli_problem("check", m->given[n].text, &m->given[n].problem);
    if (!r) r = choose_kernels(m);
    if (r) return r;
    if (m->list) {
        for (int32_t i = 0; i < m->n_kernels; i++)
            if (m->tally[i].tested)
                printf("%s%s\n", m->kernels[i].name, m->kernels[i].usable ? "" : "  (not usable here)");
        return m->n_tested ? ATTN_CLI_OK : ATTN_CLI_SKIPPED;
    }
    attn_cli_check_signals((int)m->timeout);
    if (m->session.device.type == ATTN_DEVICE_TYPE_CUDA && m->n_tested) {
        char why[300];
        m->session.gpu = attn_cli_check_device_open(m->session.one, m->session.device, why, sizeof why);
        if (!m->session.gpu) {
            printf("%s\n0 passed, 0 failed, 0 skipped\n", why);
            return ATTN_CLI_SKIPPED;
        }
    }
    if (m->properties) {
        int passed = 0, failed = attn_cli_check_properties(&m->session, &m->filter, m->seed, (int)m->repeat, &passed);
        printf("%d passed, %d failed, 0 skipped\n", passed, failed);
        return failed ? ATTN_CLI_FAILED : passed ? ATTN_CLI_OK : ATTN_CLI_SKIPPED;
    }
    if (!m->session.json)
        printf("seed %" PRIu64 ", %" PRId64 " problems per operator and dtype, 1 and %" PRId64 " threads\n", m->seed,
               m->repeat, m->threads);
    if (m->n_given)
        test_given(m);
    else
        test_random(m);
    return finish(m);
}

int attn_cli_check(int argc, char **argv) {
    struct command m = {.threads = 3, .runs = 3, .timeout = 120, .session.device = ATTN_DEVICE_CPU};
    int r = parse(&m, argc, argv);
    if (r < 0) r = check(&m);
    attn_cli_check_device_close(m.session.gpu);
    attn_ctx_release(m.session.one);
    attn_ctx_release(m.session.many);
    free(m.given);
    free(m.kernels);
    free(m.tally);
    return r;
}
