/* SPDX-License-Identifier: MIT
 * What the backward in whole strips (bwd_amx.c) needs where products are not yet scores: softcap, ALiBi, masks, and
 * sinks that lse leaves out. */
#ifndef ATTN_CPU_DENSE_BWD_AMX_SCORE_H
#define ATTN_CPU_DENSE_BWD_AMX_SCORE_H
#include "cpu/dense/bwd.h"

/* Whether the problem's scores can be made by attn_ukr_bf16.bwd_tile. */
int attn_cpu_bwd_amx_scores(const struct attn_cpu_bwd *w);
/* Room for `rows` rows of a tile and `keys` keys, in w->amx. */
void attn_cpu_bwd_amx_score_lay_out(struct attn_cpu_bwd *w, int64_t rows, int64_t keys);
/* struct attn_bwd_tile's max of such a row; what a mask adds to a whole row belongs to it. */
float attn_cpu_bwd_amx_score_max(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t h,
                                 int64_t i, double lse);
/* A boolean mask hides key j from all rows that might see it. */
int attn_cpu_bwd_amx_score_hidden(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                                  int64_t j);

/* Of a worker. */
struct attn_cpu_bwd_amx_score {
    const struct attn_cpu_bwd *w;
    const struct attn_core_seq *seq;
    int64_t b, hk, f0, padded; /* rows: from f0 on, with those that fill up the last strip */
    float *slope, *origin, *near, *weight;
    int64_t *ref;
    const char **cell, **next;
    struct attn_bwd_score_mod score;
};
void attn_cpu_bwd_amx_score_begin(struct attn_cpu_bwd_amx_score *s, const struct attn_cpu_bwd *w,
                                  const struct attn_core_seq *seq, int64_t b, int64_t hk, char *scratch);
/* n flat rows from f0 on, `padded` of them in whole strips, which see `range`, two numbers each. */
void attn_cpu_bwd_amx_score_rows(struct attn_cpu_bwd_amx_score *s, int64_t f0, int64_t n, int64_t padded,
                                 const int64_t *range);
/* The same rows with keys from j0 on; who comes next: rows from f on with keys from j on, or f < 0. */
const struct attn_bwd_score_mod *attn_cpu_bwd_amx_score_keys(struct attn_cpu_bwd_amx_score *s, int64_t j0, int64_t f,
                                                             int64_t j);
#endif
