/* SPDX-License-Identifier: MIT
 * The backward's state, shared by mla_bwd.c (order of work, outputs) and mla_bwd_products.c (products). A unit is a
 * query and a chunk of its heads. Phase 1: threads take units and compute dq, P and dS. Phase 2: threads take slices of
 * dKV (a range of keys by some columns), so that each sum has one owner and one order. */
#ifndef ATTN_CPU_SPARSE_MLA_BWD_H
#define ATTN_CPU_SPARSE_MLA_BWD_H
#include "cpu/sparse/gather.h"

enum {
    MLA_SLICE = 256,       /* columns of dKV per task of phase 2 */
    MLA_RANGE_SLOTS = 128, /* slots of a unit per key range, about, if they are spread evenly */
    MLA_STRIP_SLICE = 288, /* the same on AMX: a task's sums, P, dS, q and dout come from memory, the less often the */
    MLA_LEAST_SLICE = 96,  /* larger slices and ranges are */
    MLA_STRIP_RANGE_SLOTS = 256,
    MLA_MAX_RANGES = 64,
    MLA_SUMMANDS = 250, /* of a sum, before it goes to dkv */
    MLA_SUM_ROWS = 64   /* rows per product of phase 2: the product's result stays in the first-level cache's reach */
};

/* Persistent part of a unit, at the start of its memory. */
struct mla_unit {
    int64_t n;                         /* valid slots of this window */
    int64_t seen;                      /* valid slots of the windows before */
    int64_t start[MLA_MAX_RANGES + 1]; /* where a key range's slots begin in the sorted lists */
};

/* Sizes and byte offsets: a function of the problem and the number of threads. */
struct mla_bwd_size {
    int64_t chunk, n_chunks;       /* heads per unit, units per query */
    int64_t ldh, ldx;              /* heads padded; row of x = [dS | g P], with pairs of bf16 two to an element; with
                                    * strips x is in tiles */
    int64_t ldk, ldz;              /* row of gathered K; row of dq, and of what sums over rows or heads read */
    int64_t window, n_windows;     /* slots per window */
    int64_t range_shift, n_ranges; /* key range = key >> range_shift */
    int64_t slice, n_slices;       /* columns per slice */
    int64_t sum_block; /* columns of sums in the workspace that lie side by side, [D / sum_block][SK][sum_block] */
    int64_t batch_units;
    uint64_t u_state, u_sink, u_key, u_slot, u_q, u_do, u_x, u_dq, unit_bytes;
    uint64_t t_qt, t_dot, t_k, t_zip, t_x, t_ds, t_dq, t_key, t_slot, t_row, t_lse, t_g, t_c, t_dead, t_sum, t_at,
        thread_bytes;
    int32_t threads; /* that work on the problem at most */
    int in_parts;    /* f32 problems: sums of at most MLA_SUMMANDS summands in the workspace, which dkv is made of */
    uint64_t at_threads, at_units, at_sink, at_sums, at_counts, bytes;
};
struct mla_bwd_size attn_cpu_mla_bwd_size(const struct mla_isa *isa, const attn_problem *p, int32_t threads);

struct mla_bwd {
    const struct mla_isa *isa;
    const attn_problem *p;
    const attn_args *a;
    struct mla_bwd_size z;
    char *ws;
    struct attn_view q, kv, out, lse, dout, dlse, dq, dkv, dist;
    const float *sink;
    int64_t b, u0, n_units, window; /* what the threads are working on */
    int clear, round;               /* phase 2 is the first of the entry, the last one whose sums are rounded */
    struct attn_cpu_counter next;
};

static inline char *attn_cpu_mla_bwd_unit(const struct mla_bwd *j, int64_t u) {
    return j->ws + j->z.at_units + j->z.unit_bytes * (uint64_t)u;
}
float *attn_cpu_mla_bwd_sum(const struct mla_bwd *j, int64_t key, int64_t column);
/* in_parts: one more summand is in a key's sum, columns c0 .. c1. */
void attn_cpu_mla_bwd_count(const struct mla_bwd *j, int64_t key, int64_t c0, int64_t c1);
/* Sums of keys from .. to - 1, columns from c0 on and before c1, whole blocks of them. round: to dkv's type, after
 * adding what is there when accumulating; old: scratch for a row. */
void attn_cpu_mla_bwd_clear(const struct mla_bwd *j, int64_t from, int64_t to, int64_t c0, int64_t c1);
void attn_cpu_mla_bwd_round(const struct mla_bwd *j, int64_t from, int64_t to, int64_t c0, int64_t c1, float *old);
void attn_cpu_mla_bwd_rows_job(void *arg, int32_t worker); /* phase 1 */
void attn_cpu_mla_bwd_keys_job(void *arg, int32_t worker); /* phase 2 */
#endif
