/* SPDX-License-Identifier: MIT
 * `attn dist`: how attention is distributed over the keys, summed over heads, as .npy numbers and as a heat map. Sparse
 * problems run the dist operator; dense ones get their probabilities through dense_dist.h. */
#include "commands/dense_dist.h"
#include "commands/heatmap.h"
#include "commands/run.h"
#include "io/io.h"
#include "shared/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: attn dist PROBLEM [--in FILE] [--png FILE] [--out FILE.npy] [options]\n"
    "\n"
    "PROBLEM is a `dist` problem (sparse MLA: the dist operator) or an `sdpa_fwd` problem of batch 1 and at most 512 keys\n"
    "(dense: softmax itself, in f32). Extents and dtype that it leaves out are read off the tensors of --in.\n"
    "Example: attn dist \"dist sq=64 sk=256 hq=16 topk=64 bf16 causal q_start=190\" --png d.png\n"
    "\n"
    "      --in FILE         safetensors with q, kv, indices, lse (sparse) or q, k (dense); default: random inputs\n"
    "      --prefix TEXT     put before each tensor name, e.g. layer3.\n"
    "      --seed N          seed of random inputs (default 1)\n"
    "      --head N          dense: one head instead of the sum\n"
    "      --mean            dense: mean over heads (sparse: say dist_norm=mean in PROBLEM)\n"
    "      --png FILE        heat map, queries x keys (slots of a query that name the same key are added)\n"
    "      --out FILE        .npy of the numbers: [SQ, TOPK] sparse, [SQ, SK] dense; - is standard output\n" ATTN_CLI_COMMON_HELP
    "  -h, --help            this text\n";

struct request {
    struct attn_cli_common common;
    const char *in, *prefix, *png, *out;
    int64_t seed, head;
    int mean;
    struct attn_cli_archive archive; /* of --in */
};

enum { MAX_ROLES = 5 };
static const int32_t dense_roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K},
                     sparse_roles[MAX_ROLES] = {ATTN_ROLE_Q, ATTN_ROLE_KV, ATTN_ROLE_INDICES, ATTN_ROLE_TOPK_LENGTH,
                                                ATTN_ROLE_LSE};

static const struct attn_cli_array *find_role(const struct request *r, int32_t role, char name[96]) {
    snprintf(name, 96, "%.60s%s", r->prefix, attn_role_name(role));
    return attn_cli_archive_find(&r->archive, name);
}

/* PROBLEM with what it leaves out read off the file's tensors, as `attn run` does. */
static int complete(const struct request *r, const char *text, attn_problem *out) {
    struct attn_cli_run *run = calloc(1, sizeof *run);
    if (!run) return attn_cli_die("dist", "out of memory");
    run->command = "dist";
    const int of_sparse = !strncmp(text + strspn(text, " \t\n"), "dist", 4);
    const int32_t *roles = of_sparse ? sparse_roles : dense_roles;
    const int n = of_sparse ? MAX_ROLES : (int)(sizeof dense_roles / sizeof *dense_roles);
    for (int i = 0; i < n; i++) {
        char name[96];
        const struct attn_cli_array *a = find_role(r, roles[i], name);
        if (!a) continue;
        run->given[roles[i]] = *a; /* the archive keeps it */
        run->have[roles[i]] = 1;
    }
    int code = attn_cli_run_complete(run, text, out);
    free(run);
    return code;
}

/* Point a role's memory at the file's array of that name; shape [..] must hold the same number of elements. */
static int load_role(struct attn_cli_tensors *set, int32_t role, const struct request *r) {
    char name[96];
    const struct attn_cli_array *a = find_role(r, role, name);
    attn_tensor *t = &set->tensor[role];
    if (!a) return attn_cli_die("dist", "the file has no tensor '%s'", name);
    int64_t want = (int64_t)(t->bytes / attn_dtype_bytes(t->dtype)), have = attn_cli_array_count(a);
    if (have != want)
        return attn_cli_die("dist", "'%s' has %lld elements, the problem needs %lld", name, (long long)have,
                            (long long)want);
    if (a->dtype == t->dtype) {
        memcpy(t->data, a->data, a->bytes);
        return 0;
    }
    attn_status status = attn_convert(t->data, t->dtype, a->data, a->dtype, (size_t)have);
    return status ? attn_cli_library("dist", status, "'%s'", name) : 0;
}

static int load_inputs(attn_ctx *ctx, struct attn_cli_tensors *set, const struct request *r, const int32_t *roles,
                       int n_roles) {
    attn_status status = attn_cli_tensors_fill(set, (uint64_t)r->seed);
    if (status) return attn_cli_library("dist", status, "inputs");
    if (!r->in) {
        status = attn_cli_tensors_forward(ctx, set);
        return status ? attn_cli_library("dist", status, "lse") : 0;
    }
    int code = 0;
    for (int i = 0; !code && i < n_roles; i++)
        if (set->use[roles[i]] == ATTN_USE_IN) code = load_role(set, roles[i], r);
    return code;
}

static int write_npy(const char *path, const double *values, int64_t rows, int64_t columns) {
    size_t n = (size_t)(rows * columns);
    float *f = malloc((n + 1) * sizeof *f);
    if (!f) return attn_cli_die("dist", "out of memory");
    for (size_t i = 0; i < n; i++) f[i] = (float)values[i];
    struct attn_cli_array a = {
        .data = f, .bytes = n * sizeof *f, .dtype = ATTN_F32, .rank = 2, .shape = {rows, columns}};
    struct attn_cli_fault fault = {{0}};
    int failed = attn_cli_npy_write(path, &a, &fault);
    free(f);
    return failed ? attn_cli_die("dist", "%s", fault.text) : 0;
}

static int write_png(const struct request *r, const char *title, const char *what, const double *values, int64_t rows,
                     int64_t columns) {
    struct attn_cli_heatmap map = {.title = title,
                                   .row_title = "query",
                                   .column_title = "key",
                                   .rows = rows,
                                   .columns = columns,
                                   .values = values,
                                   .value_title = what};
    char error[320];
    return attn_cli_heatmap_write(&map, r->png, error, sizeof error) ? attn_cli_die("dist", "%s", error) : 0;
}

/* The tensor's elements as f32, in memory that the caller frees; NULL without memory. */
static float *as_f32(attn_tensor *t) {
    const size_t n = (size_t)t->bytes / attn_dtype_bytes(t->dtype);
    float *wide = malloc((n + 1) * sizeof *wide);
    if (!wide || attn_convert(wide, ATTN_F32, t->data, t->dtype, n)) {
        free(wide);
        return NULL;
    }
    t->data = wide;
    t->dtype = ATTN_F32;
    t->bytes = n * sizeof *wide;
    return wide;
}

/* In f32 whatever the dtype, which the inputs alone are rounded to: a kernel of 16 bits would round P, too. */
static int dense(attn_ctx *ctx, const attn_problem *p, const struct request *r, const char *title) {
    if (p->batch != 1 || p->seq_k > 512 || p->seq_k < 1 || p->heads_q < 1 || (p->flags & (ATTN_PACKED | ATTN_PAGED)))
        return attn_cli_usage("dist", "a dense problem here has b=1, 1..512 keys, no packed or paged form");
    if (r->head >= p->heads_q)
        return attn_cli_usage("dist", "--head %lld of %lld", (long long)r->head, (long long)p->heads_q);
    attn_problem plain = *p; /* q and k only: masks and ALiBi tensors would need inputs that a picture lacks */
    if (p->mask_dtype || p->alibi || (p->flags & (ATTN_SINK | ATTN_SEQLENS_Q | ATTN_SEQLENS_K)))
        return attn_cli_usage("dist", "a dense problem here takes q and k only: no mask, alibi, sink or seqlens");
    struct attn_cli_tensors set;
    attn_status status = attn_cli_tensors_create(&set, &plain);
    if (status) return attn_cli_library("dist", status, "tensors");
    int code = load_inputs(ctx, &set, r, dense_roles, 2);
    attn_tensor q = set.tensor[ATTN_ROLE_Q], k = set.tensor[ATTN_ROLE_K];
    float *wide_q = code ? NULL : as_f32(&q), *wide_k = code ? NULL : as_f32(&k);
    if (!code && (!wide_q || !wide_k)) code = attn_cli_die("dist", "out of memory");
    plain.dtype = ATTN_F32;
    size_t cells = (size_t)(p->seq_q * p->seq_k);
    float *probs = malloc((size_t)p->heads_q * cells * sizeof *probs + 1);
    double *sum = malloc(cells * sizeof *sum + 1);
    if (!code && (!probs || !sum)) code = attn_cli_die("dist", "out of memory");
    if (!code) {
        status = attn_cli_dense_probs(ctx, &plain, &q, &k, probs);
        if (status) code = attn_cli_library("dist", status, "probabilities");
    }
    if (!code) attn_cli_dense_reduce(probs, p->heads_q, p->seq_q, p->seq_k, r->head, r->mean, sum);
    if (!code && r->out) code = write_npy(r->out, sum, p->seq_q, p->seq_k);
    char what[64];
    snprintf(what, sizeof what, r->mean ? "probability, mean over heads" : "probability, summed over heads");
    if (r->head >= 0) snprintf(what, sizeof what, "probability of head %lld", (long long)r->head);
    if (!code && r->png) code = write_png(r, title, what, sum, p->seq_q, p->seq_k);
    free(wide_q);
    free(wide_k);
    free(probs);
    free(sum);
    attn_cli_tensors_destroy(&set);
    return code;
}

static int sparse(attn_ctx *ctx, const attn_problem *p, const struct request *r, const char *title) {
    if (p->batch != 1)
        return attn_cli_usage("dist", "b=%lld: pictures are made of one batch entry", (long long)p->batch);
    if (r->head >= 0 || r->mean)
        return attn_cli_usage("dist", "--head and --mean are for dense problems; see dist_norm");
    struct attn_cli_tensors set;
    attn_status status = attn_cli_tensors_create(&set, p);
    if (status) return attn_cli_library("dist", status, "tensors");
    int code = load_inputs(ctx, &set, r, sparse_roles, MAX_ROLES);
    if (!code) {
        status = attn_run(ctx, r->common.device, p, &set.args);
        if (status) code = attn_cli_library("dist", status, "run");
    }
    const float *a = set.tensor[ATTN_ROLE_DIST].data;
    const int32_t *index = set.tensor[ATTN_ROLE_INDICES].data;
    double *slots = calloc((size_t)(p->seq_q * p->topk) + 1, sizeof *slots),
           *keys = calloc((size_t)(p->seq_q * p->seq_k) + 1, sizeof *keys);
    if (!code && (!slots || !keys)) code = attn_cli_die("dist", "out of memory");
    for (int64_t i = 0; !code && i < p->seq_q; i++)
        for (int64_t t = 0; t < p->topk; t++) {
            int64_t j = index[i * p->topk + t];
            slots[i * p->topk + t] = (double)a[i * p->topk + t];
            if (j >= 0 && j < p->seq_k) keys[i * p->seq_k + j] += slots[i * p->topk + t]; /* invalid slots hold 0 */
        }
    if (!code && r->out) code = write_npy(r->out, slots, p->seq_q, p->topk);
    static const char *const what[] = {"probability, summed over heads", "probability, mean over heads",
                                       "share of the query's attention"};
    if (!code && r->png) code = write_png(r, title, what[p->dist_norm], keys, p->seq_q, p->seq_k);
    free(slots);
    free(keys);
    attn_cli_tensors_destroy(&set);
    return code;
}

int attn_cli_dist(int argc, char **argv) {
    static const struct option options[] = {ATTN_CLI_COMMON_OPTIONS,
                                            {"in", required_argument, NULL, 'i'},
                                            {"prefix", required_argument, NULL, 'x'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"head", required_argument, NULL, 'H'},
                                            {"mean", no_argument, NULL, 'm'},
                                            {"png", required_argument, NULL, 'p'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct request r = {.prefix = "", .seed = 1, .head = -1};
    int c;
    while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        int taken = attn_cli_common_option("dist", c, optarg, &r.common);
        if (taken < 0) return ATTN_CLI_USAGE;
        if (taken > 0) continue;
        switch (c) {
        case 'i': r.in = optarg; break;
        case 'x': r.prefix = optarg; break;
        case 's':
            if (attn_cli_int(optarg, 0, INT64_MAX, &r.seed)) return attn_cli_usage("dist", "--seed %s", optarg);
            break;
        case 'H':
            if (attn_cli_int(optarg, 0, INT64_MAX, &r.head)) return attn_cli_usage("dist", "--head %s", optarg);
            break;
        case 'm': r.mean = 1; break;
        case 'p': r.png = optarg; break;
        case 'o': r.out = optarg; break;
        case 'h': fputs(usage, stdout); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("dist", c, argv);
        }
    }
    if (optind + 1 != argc) return attn_cli_usage("dist", "one PROBLEM is needed");
    if (!r.png && !r.out) return attn_cli_usage("dist", "nothing to write: give --png or --out");
    struct attn_cli_fault fault = {{0}};
    if (r.in && attn_cli_safetensors_read(r.in, &r.archive, &fault)) return attn_cli_die("dist", "%s", fault.text);
    attn_problem p;
    attn_ctx *ctx = NULL;
    int code = r.in ? complete(&r, argv[optind], &p) : attn_cli_problem("dist", argv[optind], &p);
    if (!code && p.op != ATTN_OP_DIST && p.op != ATTN_OP_SDPA_FWD)
        code = attn_cli_usage("dist", "PROBLEM must start with dist or sdpa_fwd");
    if (!code) code = attn_cli_ctx("dist", &r.common, &ctx);
    char *title = code ? NULL : attn_cli_problem_text(&p); /* with what was read off the tensors */
    if (!code)
        code = p.op == ATTN_OP_DIST ? sparse(ctx, &p, &r, title ? title : "") : dense(ctx, &p, &r, title ? title : "");
    free(title);
    attn_ctx_release(ctx);
    attn_cli_archive_free(&r.archive);
    return code;
}
