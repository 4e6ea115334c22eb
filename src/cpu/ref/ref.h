/* SPDX-License-Identifier: MIT
 * What the reference kernels share: rows in double, softmax of a row, the state of a row in the backward, and the loop
 * that deals tasks to the pool. Reference kernels are the specification in code: every sum is kept in double and in one
 * fixed order, and an output is rounded once. A task's result depends on nothing but the task, so the number of threads
 * never shows. score.h adds the dense scores, mla.h the sparse ones. */
#ifndef ATTN_CPU_REF_REF_H
#define ATTN_CPU_REF_REF_H
#include "cpu/host/cpu.h"

#include "base/num.h"
#include "core/problem.h"
#include "core/view.h"

#include <math.h>

/* One row of n elements with unit stride as double. */
void attn_cpu_ref_load(double *dst, const void *src, int32_t dtype, int64_t n);
/* dst = factor * src, rounded once. */
void attn_cpu_ref_store(void *dst, int32_t dtype, const double *src, int64_t n, double factor);
void attn_cpu_ref_fill(void *dst, int32_t dtype, int64_t n, double value);

/* Eight partial sums, so that the compiler can use vectors without reordering anything. */
static inline double attn_cpu_ref_dot(const double *a, const double *b, int64_t n) {
    double part[8] = {0}, rest = 0;
    int64_t c = 0;
    for (; c + 8 <= n; c += 8)
        for (int u = 0; u < 8; ++u) part[u] += a[c + u] * b[c + u];
    for (; c < n; ++c) rest += a[c] * b[c];
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7])) + rest;
}
/* Summands of a partial sum of a long sum. */
enum { ATTN_REF_SUM = 64 };
/* y += factor * x */
static inline void attn_cpu_ref_axpy(double *restrict y, double factor, const double *restrict x, int64_t n) {
    for (int64_t c = 0; c < n; ++c) y[c] += factor * x[c];
}

/* sink[h], or -inf without ATTN_SINK: a logit of -inf adds exactly nothing. */
double attn_cpu_ref_sink(const attn_problem *p, const attn_args *args, int64_t h);

/* Softmax of one row. s[0..n) holds scores, -inf = hidden. Afterwards the visible ones are exp(s - max), still to be
 * divided by `denominator`; hidden ones stay -inf, so that nobody multiplies a 0 with what a hidden value row holds. */
enum attn_cpu_ref_kind { ATTN_REF_ROW_EMPTY, ATTN_REF_ROW_NAN, ATTN_REF_ROW_NORMAL };
struct attn_cpu_ref_softmax {
    enum attn_cpu_ref_kind kind;
    double denominator; /* includes the sink */
    double lse;         /* as the problem defines it: base, sink, sign of the empty row */
};
struct attn_cpu_ref_softmax attn_cpu_ref_softmax(const attn_problem *p, double *s, int64_t n, double sink);

/* lse of a row that holds no query (past seqlens_q): an empty row that has not even a sink. */
double attn_cpu_ref_empty_lse(const attn_problem *p);
/* What ATTN_FILL_PADDING asks for, of every dense kernel, at any time of its execution: see padding.c. */
void attn_cpu_ref_padding(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args);

/* State of one query row of one head in the backward. With natural logarithms, P' = exp(s - lse) and t = the sink:
 *   lse excludes the sink:  P = g P',  g = exp(lse - logaddexp(lse, t)),  d lse / d s_j = P'_j,  d lse / d t = 0
 *   lse includes it:        P = P',    g = 1,                             d lse / d s_j = P_j,   d lse / d t = p_sink
 * From d out / d s_j = P_j (v_j - out) and D = out . dout:  dS_j = P'_j (g dP_j - (g D - dlse)),  and from
 * d out / d t = -p_sink out:  dsink = p_sink (-D + dlse if lse includes the sink). */
struct attn_cpu_ref_grad {
    int alive;     /* 0: lse was +-inf, an empty row: every gradient 0, nothing of it is read further */
    double lse, g; /* natural */
    double shift;  /* g D - dlse */
    double dsink;
};
struct attn_cpu_ref_grad attn_cpu_ref_grad(const attn_problem *p, double lse, double dlse, double out_dot_dout,
                                           double sink);

/* Tasks 0 .. n_tasks-1, each once, with a scratch area of `doubles` per worker (at most dev->threads of them). */
struct attn_cpu_ref_tasks {
    int64_t n_tasks;
    int64_t doubles;
    void (*task)(const void *what, int64_t task, double *scratch);
    const void *what;
};
void attn_cpu_ref_run(const struct attn_core_device *dev, const attn_args *args,
                      const struct attn_cpu_ref_tasks *tasks);
uint64_t attn_cpu_ref_bytes(const struct attn_core_device *dev,
                            int64_t doubles); /* workspace for `doubles` per worker */

/* Scratch is carved by offsets: take(&end, n) returns where n doubles start and moves the end. */
static inline int64_t attn_cpu_ref_take(int64_t *end, int64_t n) {
    int64_t start = *end;
    *end += (n + 7) / 8 * 8;
    return start;
}
static inline int64_t attn_cpu_ref_blocks(int64_t n, int64_t block) { return n / block + (n % block != 0); }

/* Kernels: doubles of scratch per worker, and launch. */
int64_t attn_cpu_ref_sdpa_fwd_doubles(const attn_problem *p);
int64_t attn_cpu_ref_sdpa_bwd_doubles(const attn_problem *p);
int64_t attn_cpu_ref_mla_fwd_doubles(const attn_problem *p);
int64_t attn_cpu_ref_mla_bwd_doubles(const attn_problem *p);
int64_t attn_cpu_ref_dist_doubles(const attn_problem *p);
int64_t attn_cpu_ref_mla_join_doubles(const attn_problem *p);
attn_status attn_cpu_ref_sdpa_fwd(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args);
attn_status attn_cpu_ref_sdpa_bwd(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args);
attn_status attn_cpu_ref_mla_fwd(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                                 const attn_args *args);
attn_status attn_cpu_ref_mla_bwd(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                                 const attn_args *args);
attn_status attn_cpu_ref_dist(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                              const attn_args *args);
attn_status attn_cpu_ref_mla_join(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args);
#endif
