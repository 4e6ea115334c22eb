/* SPDX-License-Identifier: MIT
 * Dense attention on the CPU: what the blocked drivers share. The compute type (f32, or f64 for f64 tensors) is chosen
 * by including the *_tpl.h files twice; names end in _f32 or _f64.
 *
 * FLAT ROWS. The query heads that read one key head are handled together: flat row f of a (batch, key head) pair is
 * query f / G of head hk * G + f % G, G = HQ / HK. A key block is packed once for all of them, and causal bounds stay
 * tight. BITS. Key blocks and row blocks lie on fixed grids, every product element is one chain over k, and hidden
 * pairs add an exact 0, so that no result depends on threads, on how rows are dealt to tasks, or on what hidden places
 * hold. */
#ifndef ATTN_CPU_DENSE_SDPA_H
#define ATTN_CPU_DENSE_SDPA_H
#include "cpu/host/cpu.h"

#include "core/problem.h"
#include "core/view.h"
#include "cpu/ukr/bf16.h"
#include "cpu/ukr/ukr.h"

/* One instruction set, as the `impl` of a kernel row. */
struct attn_cpu_sdpa_isa {
    const struct attn_ukr *u;
    const struct attn_ukr_bf16 *bf16; /* or NULL; bf16 only */
    int n_bf16;  /* f16: 2, f32: 3: bf16 serves attn_cpu_fwd_amx_serves and attn_cpu_bwd_amx_serves alone, split */
    double rate; /* sustained flops per second and thread, for the ranking only */
};

struct attn_cpu_sdpa {
    const attn_problem *p;
    const attn_args *args;
    const struct attn_ukr *u;
    const struct attn_ukr_bf16 *bf16; /* not NULL: products take operands of pairs (ukr/bf16.h) */
    struct attn_view q, k, v, mask;
    int64_t group;     /* G */
    int64_t flat;      /* flat rows of a (batch, key head): SQ * G */
    double row_factor; /* packed q rows carry this: the scale, unless its size could overflow a product on the way */
    double remaining_scale; /* what remains of the scale for the score: 1, or the scale */
    int remaining_fits;     /* its product with a score can be taken in the compute type */
    double unit;    /* what one unit of a finished score is worth: 1, or the scale if that is left to the exponential */
    double softcap; /* clamped to what the compute type can divide by */
    int plain;      /* scores need nothing but their key range */
    int falls;      /* attn_core_offsets_fall */
};
void attn_cpu_sdpa_init(struct attn_cpu_sdpa *s, const attn_problem *p, const attn_args *args, const struct attn_ukr *u,
                        const struct attn_ukr_bf16 *bf16);
static inline void attn_cpu_sdpa_seq(const struct attn_cpu_sdpa *s, int64_t b, struct attn_core_seq *out) {
    attn_core_seq_get(s->p, s->args, s->falls, b, out);
}

/* One query row: which keys it sees and what is added to its scores. ALiBi is taken relative to its largest value in
 * the row (`shift`, which then belongs to lse): a slope times thousands of keys would cost the score its last digits.
 */
struct attn_cpu_sdpa_row {
    int64_t i, h;
    int64_t lo, hi;    /* keys that rule 5 leaves visible */
    int64_t diagonal;  /* i + off: the last key of a causal row */
    int64_t alibi_ref; /* LINEAR: key whose bias is the shift; DISTANCE: distance whose bias is the shift */
    double slope, shift;
    const char *mask; /* cell of key 0 */
};
void attn_cpu_sdpa_row(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i,
                       struct attn_cpu_sdpa_row *row);
/* Fills in alibi_ref and shift from slope, lo, hi and diagonal; lo < hi. */
void attn_cpu_sdpa_alibi(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_row *row);
double attn_cpu_sdpa_slope(const struct attn_cpu_sdpa *s, int64_t b, int64_t h);
/* n flat rows of a key head, from f0 on. */
void attn_cpu_sdpa_flat_rows(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                             int64_t f0, int64_t n, struct attn_cpu_sdpa_row *row);
/* The factor of the slope for key j: j - diagonal, or minus its absolute value. */
static inline double attn_cpu_sdpa_alibi_factor(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row,
                                                int64_t j) {
    double d = (double)(j - row->diagonal);
    return s->p->alibi == ATTN_ALIBI_DISTANCE ? (d < 0 ? d : -d) : d;
}

/* Rows of a packed operand that hold a NaN or an infinity. A hidden pair has coefficient 0, but 0 * NaN would leak; so
 * products run on a copy with 0 in place of such values (`raw` keeps the original), and what they add to rows that do
 * see them is added afterwards: attn_cpu_sdpa_nonfinite_apply. Elements of other rows keep their bits. */
struct attn_cpu_sdpa_nonfinite {
    int any;
    void *raw;    /* same extents as the operand */
    uint8_t *row; /* 1: the row has such values */
};

/* Declarations for both compute types. */
#define ATTN_CPU_SDPA_TYPED(REAL, T)                                                                                   \
    /* Operands times factor, subnormal ones kept. */                                                                  \
    void attn_cpu_sdpa_scale_##T(const struct attn_cpu_sdpa *s, REAL *y, int64_t n, double factor);                    \
    /* One row of a tensor of the problem's dtype, times factor, and back (rounded once). */                           \
    void attn_cpu_sdpa_load_##T(const struct attn_cpu_sdpa *s, REAL *dst, const void *src, int32_t dtype, int64_t n,   \
                                double factor);                                                                        \
    void attn_cpu_sdpa_store_##T(const struct attn_cpu_sdpa *s, void *dst, int32_t dtype, const REAL *src, int64_t n,  \
                                 double factor);                                                                       \
    /* Key (or value) rows j0 .. j0+n of a sequence as REAL rows: in place if the tensor allows it and \
     * `copy` is 0, else in dst with rows `ld` apart. Rows of pages outside the pool become 0. Returns \
     * the rows, *ld_out theirs. */               \
    const REAL *attn_cpu_sdpa_keys_##T(const struct attn_cpu_sdpa *s, const struct attn_view *view,                    \
                                       const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,  \
                                       int64_t width, REAL *dst, int64_t ld, int copy, int64_t *ld_out);               \
    /* Keys j0 .. j0+n as transposed panels [ceil(n/panel)][width][panel], the last one filled up with \
     * 0. tmp holds `panel` rows of ld elements. */               \
    void attn_cpu_sdpa_panels_##T(const struct attn_cpu_sdpa *s, const struct attn_view *view,                         \
                                  const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,       \
                                  int64_t width, int64_t panel, REAL *dst, REAL *tmp, int64_t ld);                     \
    /* Raw products s[0..n) of a row with keys j0 .. j0+n become scores relative to row->shift, -inf = \
     * hidden. chain (may be NULL) receives the derivative of the softcap. tmp: n floats. */               \
    void attn_cpu_sdpa_score_##T(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq,                       \
                                 const struct attn_cpu_sdpa_row *row, REAL *x, REAL *chain, int64_t j0, int64_t n,     \
                                 float *tmp);                                                                          \
    /* Adds the row's mask for keys j0 .. j0+n. */                                                                     \
    void attn_cpu_sdpa_add_mask_##T(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, REAL *x,       \
                                    int64_t j0, int64_t n, float *tmp);                                                \
    /* Look for nonfinite values in `rows` rows of x; if there are any, move them to nonfinite->raw. */                \
    void attn_cpu_sdpa_nonfinite_find_##T(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_nonfinite *nonfinite,    \
                                          REAL *x, int64_t rows, int64_t n, int64_t ld);                               \
    /* C[i] += A[i][r] * raw[r] wherever A[i][r] is not 0; A is addressed like that of gemm. */                        \
    void attn_cpu_sdpa_nonfinite_apply_##T(const struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t m, int64_t rows,   \
                                           int64_t n, int64_t ld, const REAL *a, int64_t a_row, int64_t a_col,         \
                                           REAL *c, int64_t ldc);                                                      \
    /* exp for rows that see nonfinite values: a visible key whose probability underflows gets the smallest number \
     * instead of 0, or its NaN would be lost. has_nonfinite: of each key, whether its value row has some; NULL: all \
     * keys are treated so. A row whose keys have none keeps its bits, whatever other keys its task has loaded. \
     * `hidden` has n bytes. */   \
    REAL attn_cpu_sdpa_exp_lifted_##T(const struct attn_cpu_sdpa *s, REAL *x, int64_t n, REAL max,                     \
                                      const uint8_t *has_nonfinite, uint8_t *hidden, int lse);
ATTN_CPU_SDPA_TYPED(float, f32)
ATTN_CPU_SDPA_TYPED(double, f64)

/* Scratch is carved by offsets in bytes, all multiples of 64. */
static inline int64_t attn_cpu_sdpa_take(int64_t *end, int64_t bytes) {
    int64_t start = *end;
    *end += (bytes + 63) / 64 * 64;
    return start;
}
static inline int64_t attn_cpu_sdpa_blocks(int64_t n, int64_t block) { return n / block + (n % block != 0); }
static inline int64_t attn_cpu_sdpa_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Threads that work on a problem at most: a function of it, so that workspaces are of that many. */
static inline int32_t attn_cpu_sdpa_crew(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads) {
    const int packed = (p->flags & ATTN_PACKED) != 0, back = p->op == ATTN_OP_SDPA_BWD;
    const double all_q = (double)p->batch * (double)p->seq_q, all_k = (double)p->batch * (double)p->seq_k;
    const double queries = packed && (double)p->total_q < all_q ? (double)p->total_q : all_q;
    const double keys = packed && (double)p->total_k < all_k ? (double)p->total_k : all_k;
    const double rows = queries * (double)p->heads_q, width = (double)(p->dim_qk + p->dim_v);
    const double element = (double)attn_dtype_bytes(p->dtype);
    const double bytes = (rows + keys * (double)p->heads_k) * width * element * (back ? 2 : 1);
    return attn_cpu_crew(threads, rows * (double)p->seq_k * width * (back ? 6 : 2), bytes,
                         isa->rate * (p->dtype == ATTN_F64 ? 0.5 : 1));
}

/* Operators (fwd.c, bwd.c). */
int64_t attn_cpu_sdpa_fwd_workspace(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads);
int64_t attn_cpu_sdpa_bwd_workspace(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads);
void attn_cpu_sdpa_fwd(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *args);
void attn_cpu_sdpa_bwd(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *args);
#endif
