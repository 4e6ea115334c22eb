/* SPDX-License-Identifier: MIT
 * What the property files share. A property runs one kernel on related problems and compares its answers with each
 * other or with what mathematics says; no other kernel and no reference takes part. */
#ifndef ATTN_CLI_CHECK_PROP_H
#define ATTN_CLI_CHECK_PROP_H
#include "check.h"

enum { PROP_PASS = 0, PROP_FAIL = 1, PROP_SKIP = 2 };

struct prop_run {
    struct check_session *session;
    const attn_kernel_info *kernel;
    int32_t index; /* its number in the context */
    uint64_t seed;
    struct attn_cli_rng rng;
    char problem[400]; /* text of the problem at hand */
    char text[400];    /* why it failed */
};
struct prop {
    const char *name;
    int32_t op; /* of the kernels it is for */
    int (*run)(struct prop_run *r);
    int32_t dtype; /* 0 = any */
};
extern const struct prop attn_cli_props_dense[], attn_cli_props_sparse[], attn_cli_props_grad[], attn_cli_props_join[],
    attn_cli_props_out[], attn_cli_props_sums[], attn_cli_props_empty[]; /* end with name NULL */

/* A small problem of the kernel's operator and dtype, without features. */
attn_problem attn_cli_prop_problem(struct prop_run *r);
static inline int64_t prop_below(struct prop_run *r, int64_t n) { return attn_cli_rng_below(&r->rng, n); }

/* Tensors with random inputs; inputs OUT and LSE come from the matching forward. 0, or PROP_FAIL with r->text. */
int attn_cli_prop_make(struct prop_run *r, struct attn_cli_tensors *set, const attn_problem *p, uint64_t seed);
/* Run the kernel (kernel != NULL: another one by name pattern, with its op in the problem). PROP_SKIP if it refuses. */
int attn_cli_prop_execute(struct prop_run *r, struct attn_cli_tensors *set, const char *kernel);
int attn_cli_prop_failed(struct prop_run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Row-major values of a role as doubles (malloc), and back. */
double *attn_cli_prop_get(const struct attn_cli_tensors *set, int32_t role);
void attn_cli_prop_put(struct attn_cli_tensors *set, int32_t role, const double *values);
int64_t attn_cli_prop_count(const struct attn_cli_tensors *set, int32_t role);

/* Relative error of a result that may differ by rounding alone. */
double attn_cli_prop_tolerance(const struct prop_run *r);
/* 0 if every row of n agrees within tol of the rows' size; lse: absolute, infinities must be equal. PROP_FAIL with
 * text. */
int attn_cli_prop_rows_equal(struct prop_run *r, const char *what, const double *a, const double *b, int64_t rows,
                             int64_t cols, double tol);
/* Values are all 1, and so is out, 0 in rows that see no key. On the CPU exactly in 16 bits: probabilities that are
 * rounded are divided by the sum of what was rounded. */
int attn_cli_prop_ones(struct prop_run *r, const struct attn_cli_tensors *set, int64_t rows, int64_t cols,
                       const double *lse);
int attn_cli_prop_lse_equal(struct prop_run *r, const char *what, const double *a, const double *b, int64_t n,
                            double shift);
#endif
