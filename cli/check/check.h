/* SPDX-License-Identifier: MIT
 * What the files of `attn check` share: a case (problem, layouts, values), what its outputs should be, and the verdict.
 * A case is a function of (problem, seed) alone, so that one line reproduces a failure. Sees attn.h and cli.h only.
 *
 *     command.c     draws problems (gen_*.c) and, for each: makes the case, gets its answers, runs every kernel
 *     case.c        the case: modes, storage with random strides (layout.c), values (data_*.c), and the tester's own
 *                   answer (plain_*.c)
 *     oracle.c      the answer of the ref kernel, which command.c first compares with the tester's own
 *     run.c         one kernel: three runs on poisoned outputs and workspace, compared with the answer (errstat.c)
 *                   within bounds (bounds.c) and with each other; device.c holds the tensors of a GPU
 *     report.c      failures as text or JSON, with the line that runs the case again; cover.c: listed values hit so far
 *     prop_*.c      `--properties`: identities that need no reference
 *
 * A new mode of data goes into the enum below, cover.c (its name), case.c (how often) and data_*.c or layout.c. */
#ifndef ATTN_CLI_CHECK_H
#define ATTN_CLI_CHECK_H
#include "attn.h"

#include "shared/cli.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- a case ------------------------------------------------------------------------------------------------- */

/* Special data of a case, drawn from its seed; several may apply at once. The names are in cover.c. */
enum {
    CHECK_FAR_NEGATIVE = 1 << 0,   /* every score is near -200                                     */
    CHECK_NAN_QUERY = 1 << 1,      /* one query row holds a NaN                                    */
    CHECK_NAN_KEY = 1 << 2,        /* one key row, visible to some queries, holds a NaN            */
    CHECK_HIDDEN_NAN = 1 << 3,     /* keys and cells that no query may read hold NaN and inf       */
    CHECK_MASK_PLUS_INF = 1 << 4,  /* one mask cell is +inf                                        */
    CHECK_MASK_DEAD_ROWS = 1 << 5, /* some mask rows hide every key                                */
    CHECK_HUGE = 1 << 6,           /* scores in the hundreds and thousands                         */
    CHECK_EQUAL_SCORES = 1 << 7,   /* all queries are zero                                         */
    CHECK_SINK_PLUS_INF = 1 << 8,
    CHECK_SINK_MINUS_INF = 1 << 9,
    CHECK_WILD_LENGTHS = 1 << 10, /* lengths outside their range, which the library clamps        */
    CHECK_BAD_PAGES = 1 << 11,
    CHECK_UNALIGNED = 1 << 12,   /* base addresses at element granularity                        */
    CHECK_AT_PAGE_END = 1 << 13, /* tensors end where an unreadable page begins                  */
    CHECK_NEGATIVE_STRIDE = 1 << 14,
    CHECK_PERMUTED = 1 << 15, /* memory order of the outer axes differs from the logical one  */
    CHECK_PADDED = 1 << 16,
    CHECK_BROADCAST = 1 << 17, /* some input has stride 0                                      */
    CHECK_OUTPUT_OMITTED = 1 << 18,
    CHECK_NO_BATCH_AXIS = 1 << 19, /* sparse tensors of rank 3                                     */
    CHECK_EMPTY_ROWS = 1 << 20,    /* sparse: rows without a valid slot                            */
    CHECK_ONE_SLOT = 1 << 21,      /* sparse: rows with one valid slot                             */
    CHECK_TWICE = 1 << 22,         /* sparse: every key twice in a row                             */
    CHECK_MANY_TIMES = 1 << 23,    /* sparse: keys 64 times in a row                               */
    CHECK_ONE_KEY = 1 << 24,       /* sparse: all queries name the same key                        */
    CHECK_BAD_INDICES = 1 << 25,   /* sparse: negative, s_kv, INT32_MAX                            */
    CHECK_LSE_PLUS_INF = 1 << 26,  /* backward: empty rows come in as +inf                         */
    CHECK_TOPK_EDGES = 1 << 27,    /* sparse: topk_length of 0, 1, 63, 64, 65, topk                */
    CHECK_MASK_LOW = 1 << 28,      /* an additive mask hides by a low finite number, not by -inf   */
    CHECK_BAD_DOUT = 1 << 29,      /* backward: one number of dout is NaN, or with the next        */
    CHECK_INF_DOUT = 1 << 30,      /* infinite                                                     */
    CHECK_MODES = 31
};

struct check_tensor {
    int32_t use;   /* ATTN_USE_* */
    int32_t given; /* an optional output may be left out */
    attn_tensor view;
    int64_t n;     /* elements */
    double *val;   /* row-major values as the library sees them: inputs, and outputs that are accumulated into */
    uint8_t *map;  /* mapping that holds the storage and the sentinels around it */
    uint8_t *copy; /* what the mapping held before the run */
    size_t map_bytes, use_bytes;      /* whole mapping; its readable part */
    uint8_t broadcast[ATTN_MAX_RANK]; /* stride 0 over an extent above 1 */
};

/* The values that an output should have, and the magnitudes that its bounds are made of. A "row" is a vector that is
 * judged by its norm; scalars are rows of one column. */
enum { CHECK_ROW_NORMAL = 0, CHECK_ROW_ZERO = 1, CHECK_ROW_UNWRITTEN = 2 };
struct check_want {
    int64_t rows, cols;
    double *want;      /* the ref kernel's answer on inputs widened to its widest dtype                      */
    double *plain;     /* the tester's own answer in double                                                  */
    double *half;      /* the tester's three-step answer with every step rounded to the dtype, NULL if wide  */
    double *terms;     /* per row: root of the sum of the summands' squares, which cancellation would hide   */
    double *roundings; /* per row: most that 16-bit roundings of the summands may add up to, over their epsilon */
    double peak;       /* sparse: square of the largest of all summands, slots of one kv row taken together */
    double *noise;     /* per row: size of the intermediate results whose rounding error reaches the row      */
    double *lost;      /* per row: what f16 on a GPU loses of small dS, which share their factor with large ones */
    double *score;     /* per row: largest score whose probability matters                                   */
    uint8_t *kind;     /* per row: CHECK_ROW_*                                                               */
};

struct check_seq {
    int64_t q0, k0, sq, sk, sq_rows, sk_rows;
};

struct check_case {
    attn_problem p;
    uint64_t seed;
    uint32_t modes;
    char *text; /* the problem's one-line form */
    struct attn_cli_rng rng;
    struct check_tensor t[ATTN_ROLE_COUNT];
    struct check_want want[ATTN_ROLE_COUNT];
    struct check_seq *seq; /* [batch], dense */
    struct attn_cli_overlap overlap;
    bool oracle_failed; /* the ref kernel could not run; want = plain */
};

static inline bool check_has(const struct check_case *c, uint64_t flag) { return (c->p.flags & flag) != 0; }
static inline bool check_join(const attn_problem *p) { return p->op == ATTN_OP_MLA_JOIN; }
static inline bool check_dense(const attn_problem *p) { return p->op == ATTN_OP_SDPA_FWD || p->op == ATTN_OP_SDPA_BWD; }
static inline bool check_backward(const attn_problem *p) {
    return p->op == ATTN_OP_SDPA_BWD || p->op == ATTN_OP_MLA_BWD;
}
static inline bool check_half_dtype(int32_t dtype) { return dtype == ATTN_F16 || dtype == ATTN_BF16; }
/* Whose bounds a kernel of the dtype has: e4m3 that is widened before the products is as exact as the bf16 of out. */
static inline int32_t check_bound_dtype(int32_t dtype, int32_t math_dtype) {
    return dtype == ATTN_E4M3 && math_dtype != ATTN_E4M3 ? ATTN_BF16 : dtype;
}
static inline bool check_is_out(int32_t use) { return use >= ATTN_USE_OUT; }

/* gen_dense.c, gen_sparse.c: a random problem of the operator and dtype. Not checked by the library yet. */
void attn_cli_check_gen_dense(struct attn_cli_rng *r, int32_t op, int32_t dtype, attn_problem *p);
void attn_cli_check_gen_sparse(struct attn_cli_rng *r, int32_t op, int32_t dtype, attn_problem *p);
void attn_cli_check_gen_join(struct attn_cli_rng *r, attn_problem *p);
/* gen_sparse.c: perhaps other sizes, of kinds that the above seldom or never draw. */
void attn_cli_check_gen_vary(struct attn_cli_rng *r, attn_problem *p);

/* case.c. make: everything up to the plain answer, which is also `want` at first; 0, or -1 with a text on stderr.
 * oracle.c: `want` from the ref kernel; fills `why` (reason it could not run, else ""). */
int attn_cli_check_case_make(struct check_case *c, const attn_problem *p, uint64_t seed,
                             const struct attn_cli_overlap *overlap);
void attn_cli_check_case_free(struct check_case *c);
/* join_input.c: the input JOINED of a made case, if it has one; 0, or -1 and the reason. */
int attn_cli_check_joined_input(struct check_case *c, attn_ctx *ctx, char *why, size_t why_bytes);
int64_t attn_cli_check_union_limit(const struct check_case *c); /* with which it is made */
void attn_cli_check_case_want_plain(struct check_case *c);
void attn_cli_check_case_oracle(struct check_case *c, attn_ctx *ctx, char *why, size_t why_bytes);
/* dtype of the ref kernel that computes `want`: f64; f32 for the sparse operators; i32 for joined lists. */
int32_t attn_cli_check_oracle_dtype(const attn_problem *p);

/* layout.c: strides and storage. place: choose strides, map storage, fill everything with the sentinel.
 * store: values -> storage, and back into val as rounded. load: storage -> row-major typed elements. */
int attn_cli_check_place(struct check_case *c, int32_t role, uint32_t forbid_broadcast);
int attn_cli_check_store(struct check_tensor *t);
void attn_cli_check_load(const struct check_tensor *t, void *typed);
void attn_cli_check_poison(struct check_tensor *t,
                           int variant); /* outputs; accumulated outputs get their start values */
/* 0 if nothing but the written rows changed since poison (outputs) or store (inputs); else 1 + a sentence. */
int attn_cli_check_intact(const struct check_tensor *t, const struct check_want *w, char *what, size_t bytes);
void attn_cli_check_drop(struct check_tensor *t);
void attn_cli_check_sentinel(uint8_t *memory, size_t bytes, int variant);
int64_t attn_cli_check_offset(const attn_tensor *t, int64_t row); /* elements from data to the row's first element */
int64_t attn_cli_check_rows(const attn_tensor *t);                /* product of all extents but the last */
/* Typed contiguous elements <-> double, every dtype. */
void attn_cli_check_widen(double *out, const void *typed, int32_t dtype, int64_t n);
void attn_cli_check_narrow(void *typed, int32_t dtype, const double *in, int64_t n);
double attn_cli_check_round(double x, int32_t dtype); /* to F16 or BF16, nearest even; other dtypes: x itself */

/* data_*.c: lengths and values of every input. */
int attn_cli_check_data_dense(struct check_case *c);
void attn_cli_check_scale_values(struct check_case *c); /* e4m3: of what is stored, what it is worth */
int attn_cli_check_data_sparse(struct check_case *c);
bool attn_cli_check_falls(const struct check_case *c);    /* packed offsets that fall */
bool attn_cli_check_uneven(const struct check_case *c);   /* dense: rows of very different sizes */
bool attn_cli_check_infinite(const struct check_case *c); /* dense: infinities in q or k */
bool attn_cli_check_hole(const struct check_case *c);     /* sparse: one slot of a list is not valid */
double attn_cli_check_wild(struct check_case *c, int64_t bound, int64_t far); /* a length outside its range */
/* Standard normal values into t->val (allocated by place). */
void attn_cli_check_normal(struct attn_cli_rng *r, double *out, int64_t n, double spread);
void attn_cli_check_bad_dout(struct check_case *c); /* what CHECK_BAD_DOUT asks for. No draw: numbers of a seed stay */
void attn_cli_check_modes(struct check_case *c);

/* plain_*.c: the tester's own attention, in double and, for 16-bit dtypes, rounded to the dtype at every step. The
 * answers go to c->want. inputs_only: computes only OUT and LSE of a backward case, which are inputs, into their
 * val. */
int attn_cli_check_plain_dense(struct check_case *c, bool inputs_only);
int attn_cli_check_plain_sparse(struct check_case *c, bool inputs_only);
int attn_cli_check_plain_join(struct check_case *c); /* joined lists */
bool attn_cli_check_visible(const struct check_case *c, int64_t b, int64_t h, int64_t i, int64_t j);
bool attn_cli_check_inside(const struct check_case *c, const struct check_seq *s, int64_t i,
                           int64_t j); /* rule 5 alone */
double attn_cli_check_dot(const double *a, const double *b, int64_t n);
int64_t attn_cli_check_q_row(const struct check_case *c, int64_t b, int64_t h, int64_t i);  /* row of q, out, lse */
int64_t attn_cli_check_k_row(const struct check_case *c, int64_t b, int64_t hk, int64_t j); /* -1: bad page */
bool attn_cli_check_slot(const struct check_case *c, int64_t b, int64_t i, int64_t t,
                         int64_t *key); /* sparse predicate */
/* fold.c: sums over broadcast axes, result written to every logical position. */
void attn_cli_check_fold(const struct check_tensor *t, double *values, bool squares);

/* ---- the verdict --------------------------------------------------------------------------------------------- */

struct check_bound {
    bool absolute; /* lse-like: |err| <= abs * max(1, |want|, score / 16), no norms */
    double abs;
    double tol;       /* ||err|| <= tol' * max(||want||, typical, terms, (||want|| + roundings) / 2) + eps * noise */
    double score_tol; /* tol' = tol * max(1, score / 8), or tol + score_tol * score if score_tol > 0 */
    double eps;
    double factor;   /* also max|err| <= factor * max|half - want| + 2 spacings; 0 = not asked */
    double cosine;   /* also 1 - 2 sum xy / sum (x^2 + y^2); < 0 = not asked */
    double slack;    /* absolute bounds: half a spacing of the output dtype, relative */
    double tiny;     /* per element, what underflow may take away                               */
    bool loses;      /* the row's `lost` is added: a GPU's f16                                  */
    bool zero_exact; /* elements that are exactly 0, since their slots take no part, must be 0 */
    bool inf_or_nan; /* what is not finite may be either (docs/semantics.md: infinities) */
    bool lost_nan;   /* 0 times an infinity, which may be left out: where NaN is wanted, anything may stand */
    int32_t dtype;   /* of the output */
    int32_t unit;    /* dtype whose spacing is added to the bound with `factor`: the problem's */
};

struct check_verdict {
    int32_t role;
    int64_t n, over; /* elements compared; elements in error */
    double worst;    /* largest error over its bound; > 1 fails */
    double max_err;  /* largest |got - want| of an element */
    double max_ulp;  /* in spacings of the output dtype at want */
    int64_t element; /* element of the worst row or cell */
    double got, want, bound, score;
    double cosine;     /* measured, < 0 if not asked */
    char why[48];      /* "row norm", "element", "nan", "zero row", ... of the worst */
    char cluster[320]; /* where the wrong elements are */
};

/* bounds.c, errstat.c */
struct check_bound attn_cli_check_bound(const struct check_case *c, int32_t role, int32_t dtype, bool against_plain);
bool attn_cli_check_leaves_out(const struct check_case *c, int32_t role); /* products of 0 and an infinity, perhaps */
/* Compare got (row-major doubles) with `want` (w->want or w->plain) under w's magnitudes. `wrong` (may be NULL)
 * receives one byte per element. Returns 0 if within bounds. */
int attn_cli_check_compare(const struct check_want *w, const double *want, const double *got,
                           const struct check_bound *b, uint8_t *wrong, struct check_verdict *v);
/* Where the wrong elements lie: per axis and modulo powers of two. `wrong` has one byte per element. `axes` has a
 * letter per axis of the shape. check_place_text writes an element's place with the same letters. */
void attn_cli_check_cluster(const attn_tensor *view, const uint8_t *wrong, const char *axes, char *buf, size_t bytes);
void attn_cli_check_place_text(const attn_tensor *view, int64_t element, const char *axes, char *buf, size_t bytes);
const char *attn_cli_check_axes(const struct check_case *c, int32_t role);
double attn_cli_check_spacing(double x, int32_t dtype); /* of representable numbers around x */

/* ---- running one kernel on one case ---------------------------------------------------------------------------- */

/* join_count.c: groups that kernels have joined, and how many of them had what. */
enum { CHECK_JOINED_KINDS = 6 };
struct check_joined {
    int64_t joined, apart, with[CHECK_JOINED_KINDS];
};
void attn_cli_check_count_joined(const struct check_case *c, attn_ctx *ctx, const attn_plan_info *info,
                                 struct check_joined *to);
void attn_cli_check_print_joined(const struct check_joined *j, int32_t op, bool json);

struct check_device;
struct check_session {
    attn_ctx *one, *many;     /* 1 and N threads */
    struct check_device *gpu; /* NULL: kernels run on host memory */
    bool gpu_lost;            /* a fault of the device: no further case runs */
    attn_device device;
    int32_t threads, runs; /* runs of a case: 3, or 2, without the second one of N threads */
    const char *isa;
    const char *policies; /* of the simulator, a word each run of a case in turn; NULL: as the environment says */
    char seed_text[24];   /* of the simulator, where such a word has none */
    struct attn_cli_overlap overlap; /* of sparse cases' lists */
    bool verbose, json;
    struct check_joined joined[ATTN_OP_COUNT_];
};
/* Which kernels are tested; 0 or NULL: all. */
struct check_filter {
    const char *pattern, *property;
    int32_t backend, op, dtype;
};
enum { CHECK_PASS = 0, CHECK_FAIL = 1, CHECK_SKIP = 2, CHECK_CRASH = 3 };
/* run.c. index: the kernel's in the context. Prints failures (report.c) and returns CHECK_*. *worst becomes the largest
 * error over its bound so far. */
int attn_cli_check_run(struct check_session *s, struct check_case *c, int32_t index, const attn_kernel_info *k,
                       double *worst);

/* device.c: device memory, only for a CUDA device. A copy mirrors a block of host memory. */
struct check_device_copy {
    uint8_t *host;
    size_t bytes;
    uint8_t *memory; /* on the device */
};
struct check_device *attn_cli_check_device_open(attn_ctx *ctx, attn_device id, char *why, size_t bytes);
void attn_cli_check_device_close(struct check_device *d);
const char *attn_cli_check_device_wait(struct check_device *d); /* NULL, or the fault */
int attn_cli_check_copy_alloc(struct check_device *d, struct check_device_copy *t, uint8_t *host, size_t bytes);
int attn_cli_check_copy_to_device(struct check_device *d, const struct check_device_copy *t);
int attn_cli_check_copy_to_host(struct check_device *d, const struct check_device_copy *t);
void attn_cli_check_copy_free(struct check_device *d, struct check_device_copy *t);
void *attn_cli_check_copy_address(const struct check_device_copy *t,
                                  const void *host); /* the device's address of a host address */

/* report.c */
struct check_report {
    const struct check_session *session;
    const struct check_case *c;
    const char *kernel;
    bool printed; /* a line about this case */
    int n_fail;
};
void attn_cli_check_report_fault(struct check_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void attn_cli_check_report_verdict(struct check_report *r, const struct check_verdict *v, bool failed);
void attn_cli_check_report_close(struct check_report *r, double worst);
void attn_cli_check_repro(const struct check_case *c, const char *kernel, char *buf, size_t bytes);
void attn_cli_check_json_text(const char *text); /* a JSON string with quotes, on stdout */

/* signal.c: faults of a kernel that runs in the calling thread become a failed case. */
int attn_cli_check_guarded(attn_status (*fn)(void *), void *arg, const char *repro,
                           attn_status *status); /* 0 or the signal */
void attn_cli_check_signals(int timeout_seconds);

/* cover.c: which listed values the generator has hit. */
void attn_cli_check_cover_case(const struct check_case *c, bool accepted);
int attn_cli_check_cover_print(bool table, const bool ops[ATTN_OP_COUNT_], bool demand); /* values never hit */

/* prop_*.c: properties that need no reference. Prints; returns the number that failed, adds to *passed. */
int attn_cli_check_properties(struct check_session *s, const struct check_filter *filter, uint64_t seed, int repeat,
                              int *passed);

#endif
