/* SPDX-License-Identifier: MIT
 * ATTN_FILL_PADDING on the CPU, for every kernel: packed rows of no sequence become empty rows. */
#include "cpu/ref/ref.h"

#include "base/num.h"
#include "core/problem.h"
#include "core/view.h"

#include <math.h>
#include <string.h>

enum { OUTPUTS = 7, IS_LSE = 1, IS_MAX = 2 };
static const struct output {
    int32_t role;
    uint8_t of_keys, scalar,
        of_values; /* scalar: IS_* of one number per row; of_values: rows of DV elements, else of D */
} outputs[OUTPUTS] = {
    {ATTN_ROLE_OUT, 0, 0, 1},
    {ATTN_ROLE_LSE, 0, IS_LSE, 0},
    {ATTN_ROLE_LSE_ROUNDED, 0, IS_LSE, 0},
    {ATTN_ROLE_MAX_LOGITS, 0, IS_MAX, 0},
    {ATTN_ROLE_DQ, 0, 0, 0},
    {ATTN_ROLE_DK, 1, 0, 0},
    {ATTN_ROLE_DV, 1, 0, 1},
};

struct job {
    const attn_problem *p;
    const attn_args *args;
    int falls;
    struct attn_view view[OUTPUTS]; /* data NULL: not this operator's, or not asked for */
    struct attn_cpu_counter next;
};

static void fill_rows(const struct job *j, int of_keys, int64_t h, int64_t from, int64_t to) {
    for (int i = 0; i < OUTPUTS; i++) {
        const struct output *o = &outputs[i];
        const struct attn_view *v = &j->view[i];
        const int64_t width = o->of_values ? j->p->dim_v : j->p->dim_qk;
        if (o->of_keys != of_keys || !v->data) continue;
        for (int64_t row = from; row < to; row++) {
            char *line = attn_view_row(v, 0, h, row);
            if (o->scalar)
                attn_num_store(line, v->dtype, 0, o->scalar == IS_LSE ? attn_cpu_ref_empty_lse(j->p) : -INFINITY);
            else
                memset(line, 0, (size_t)width * (size_t)v->element_bytes);
        }
    }
}

/* The rows before each sequence and after the last one, which may be cut. */
static void fill_head(const struct job *j, int of_keys, int64_t h) {
    int64_t end = 0;
    for (int64_t b = 0; b < j->p->batch; b++) {
        struct attn_core_seq s;
        attn_core_seq_get(j->p, j->args, j->falls, b, &s);
        fill_rows(j, of_keys, h, end, of_keys ? s.k0 : s.q0);
        end = of_keys ? s.k0 + s.sk_rows : s.q0 + s.sq_rows;
    }
    fill_rows(j, of_keys, h, end, of_keys ? j->p->total_k : j->p->total_q);
}

static void work(void *arg, int32_t worker) {
    struct job *j = arg;
    const int64_t q = j->p->heads_q, k = j->p->op == ATTN_OP_SDPA_BWD ? j->p->heads_k : 0;
    (void)worker;
    for (int64_t t; (t = attn_cpu_next(&j->next)) < q + k;) fill_head(j, t >= q, t < q ? t : t - q);
}

void attn_cpu_ref_padding(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args) {
    if (!attn_core_has(p, ATTN_FILL_PADDING)) return;
    struct job j = {.p = p, .args = args, .falls = attn_core_offsets_fall(p, args)};
    const int back = p->op == ATTN_OP_SDPA_BWD;
    for (int i = 0; i < OUTPUTS; i++)
        if ((outputs[i].role >= ATTN_ROLE_DQ) == back) j.view[i] = attn_core_view(p, args, outputs[i].role);
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(dev->threads, p->heads_q + (back ? p->heads_k : 0)), work,
                      &j);
}
