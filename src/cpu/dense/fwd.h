/* SPDX-License-Identifier: MIT
 * Geometry of the dense forward: block sizes, task grid, scratch. fwd.c runs query blocks, decode_merge.c merges
 * the partial results when the keys were split. */
#ifndef ATTN_CPU_DENSE_FWD_H
#define ATTN_CPU_DENSE_FWD_H
#include "cpu/dense/sdpa.h"

struct attn_cpu_fwd {
    struct attn_cpu_sdpa s;
    struct attn_view out, lse, lse_rounded, max_logits;
    int64_t real;       /* bytes of the compute type */
    int64_t strip;      /* rows (a query block) whose scores stay in L1 from Q K^T to P V */
    int64_t rows;       /* flat rows of a task */
    int64_t block_keys; /* keys of a block */
    int64_t n_cached;   /* blocks of keys that a worker keeps packed: all, or 1 (amx_split: 1) */
    int64_t panel;      /* columns of a packed panel; 0: decode, nothing is packed */
    int amx_split;  /* > 0: fwd_amx.c runs the tasks, each number is 1 .. 3 bf16; depth, ldv: D, DV rounded up to 32 */
    int by_rows;    /* amx_split: S is row-major (attn_ukr_bf16.fwd_rowmajor) */
    int transposed; /* 1: fwd_transposed.c runs the tasks, in f32 (or widened to it) or bf16 pairs */
    int64_t step;   /* transposed: keys of a step, block_keys is a multiple of it */
    int stay;       /* transposed: all keys are one block */
    int decode_amx; /* decode on AMX: attn_ukr_bf16.decode_tiles */
    const struct attn_ukr_decode *steps; /* decode: NULL, or the microkernels, in steps of neighbouring keys */
    int prefetches;                      /* 1: keys and values of later steps are prefetched */
    int exact_max;                       /* max_logits: only paths whose running max is the row's maximum */
    int same_keys;                       /* the flat rows of a sequence see the same keys */
    int half;              /* decode: 16-bit keys and values are widened as they are multiplied, not before */
    int64_t depth;         /* steps of the first product: D, or pairs of it */
    int64_t ldq, ldv, lds; /* row strides of packed q, of values and accumulators, of a strip of scores */
    int64_t ldp;           /* row stride of a strip of probabilities as pairs */
    int64_t row_blocks;    /* tasks of one (batch, key head) and split */
    int64_t side;          /* (batch, key head) pairs that threads work on at a time */
    int64_t split, splits; /* keys of a split; splits = 1: results are final */
    struct {
        int64_t q, k, cached, tmp, v, raw, nonfinite, visible, s, p, hidden, mask, o, m, l;
        union {
            int64_t older;      /* fwd.c, fwd_amx.c: m, l and O of the blocks before */
            int64_t exp_offset; /* fwd_transposed.c: pre_offset and offset of attn_transposed_exp */
        };
        int64_t row, nonfinite_q, nonfinite_k, score_override, override_scores, two_rows, page_missing, low, bias, bits,
            end;
    } offsets;             /* where the buffers of a worker's scratch begin, in bytes */
    int64_t partial_bytes; /* one (batch, key head, split): m, l, o of all flat rows */
    int64_t partial_l, partial_o;
    struct attn_cpu_counter next;
    struct attn_cpu_fwd_queue *queues; /* of each (batch, key head) */
    char *scratch, *partials;
};
struct attn_cpu_fwd_queue {
    _Alignas(64) struct attn_cpu_counter next;
};

/* The keys that a slot of a worker's packed blocks holds: begin .. end of head b * HK + hk, -1: none. clean: all values
 * are finite, and used in place. */
struct attn_cpu_fwd_cached {
    int64_t head, begin, end;
    int clean;
    int nonfinite, nonfinite_k, page_missing; /* amx: of the values, of the keys; keys in no page of the pool */
    const uint16_t *rows;
};

/* Keys that some of n rows see, lo .. hi, and keys that all of them see, lo_most .. hi_least. lo = hi: none. */
struct attn_cpu_fwd_bounds {
    int64_t lo, hi, lo_most, hi_least;
};
struct attn_cpu_fwd_bounds attn_cpu_fwd_see(const struct attn_cpu_sdpa_row *row, int64_t n);

/* Output of one row: o[0..DV) unnormalised with its maximum m and sum l. m = -inf: empty row; m NaN: NaN row. */
void attn_cpu_fwd_finish_f32(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                             const struct attn_cpu_sdpa_row *row, double m, double l, const float *o);
void attn_cpu_fwd_finish_f64(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                             const struct attn_cpu_sdpa_row *row, double m, double l, const double *o);

/* The same in two parts. close writes lse and returns the factor of o, 0 for an empty row; store writes o times that
 * factor. natural: the row's lse without its sink. */
double attn_cpu_fwd_close(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                          const struct attn_cpu_sdpa_row *row, double m, double natural, double l);
/* lse alone, for n rows none of which is empty or NaN, where the microkernel divides o. natural: before ALiBi's shift
 * is added. */
void attn_cpu_fwd_logs(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                       const struct attn_cpu_sdpa_row *row, int64_t n, const double *natural);
void attn_cpu_fwd_store_f32(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                            const struct attn_cpu_sdpa_row *row, double m, double factor, const float *o);
void attn_cpu_fwd_store_f64(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                            const struct attn_cpu_sdpa_row *row, double m, double factor, const double *o);

/* Writes flat rows f0 .. f1, past the sequence's queries, as empty rows, as far as they belong to this batch entry. */
void attn_cpu_fwd_empty(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                        int64_t f0, int64_t f1);

/* Where m, l and o of a split's rows lie, o with rows of f->ldv. */
void attn_cpu_fwd_lay_out_partial(struct attn_cpu_fwd *f);
/* Keys of a split, a function of the problem alone: SK if the keys are not split. */
int64_t attn_cpu_decode_split(const struct attn_cpu_sdpa *s);
/* Merge all partial results, in the order of the keys. A job for attn_cpu_pool_run on a struct attn_cpu_fwd. */
void attn_cpu_decode_merge(void *arg, int32_t worker);
#endif
