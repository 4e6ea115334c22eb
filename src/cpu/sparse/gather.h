/* SPDX-License-Identifier: MIT
 * What the three MLA operators share: which slots of a query are valid (the one predicate, evaluated once per slot and
 * pass), the gather of valid rows into an f32 block that serves every head, and the cut of heads into chunks. */
#ifndef ATTN_CPU_SPARSE_GATHER_H
#define ATTN_CPU_SPARSE_GATHER_H
#include "core/view.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/mla_vec.h"

enum {
    MLA_BLOCK = 128,       /* gathered rows per block: K, S, Q and O of a task together stay within 1 MiB of cache */
    MLA_PLACE_BLOCK = 132, /* the same where rows stay in place: whole tiles of scores */
    MLA_PLACE_DEPTH = 576, /* columns of rows that stay in place, at most */
    MLA_HEADS = 128,       /* most heads per chunk */
    MLA_DECODE_HEADS = 32, /* heads per chunk when there are few queries to share out */
    MLA_DECODE_QUERIES = 16
};

/* Scratch of attn_ukr_bf16.mla_bwd_scores, then a block's sums. */
#define MLA_STRIP_CELLS       (4 * ATTN_MLA_HEADS * ATTN_MLA_HEADS + 16 * ATTN_MLA_HEADS)
#define MLA_STRIP_FLOATS(isa) (MLA_STRIP_CELLS + (isa)->block * 16)

static inline int64_t mla_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t mla_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mla_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* Lays out a workspace: returns where `bytes` bytes start, on a cache line. */
static inline uint64_t mla_take(uint64_t *end, int64_t bytes) {
    uint64_t start = *end;
    *end += ((uint64_t)bytes + 63) & ~UINT64_C(63);
    return start;
}

/* Heads per chunk; a function of the problem alone, so that no result depends on the number of threads. */
static inline int64_t mla_chunk(const attn_problem *p) {
    int64_t most = p->batch * p->seq_q < MLA_DECODE_QUERIES ? MLA_DECODE_HEADS : MLA_HEADS;
    return mla_min(p->heads_q, most);
}

/* The index list of one query. */
struct mla_query {
    const int32_t *idx;
    int64_t n_slots; /* topk_length applied */
    int64_t n_keys;  /* admissible keys are 0 .. n_keys-1: the end of kv and the causal test in one bound */
};
struct mla_query attn_cpu_mla_query(const attn_problem *p, const attn_args *args, int64_t b, int64_t i);

/* Next at most `most` valid slots from *at on, before `end`: writes key and slot of each, moves *at after the last
 * slot looked at, returns how many. 0 means that there are no more. Each output array has room for `most`; slot may be
 * NULL. */
int64_t attn_cpu_mla_next(const struct mla_query *query, int64_t *cursor, int64_t end, int64_t most, int32_t *key,
                          int64_t *slot);

/* Heads as the scores of a block have them side by side: whole vectors, or strips of ukr/bf16.h. */
static inline int mla_strips(const struct mla_isa *isa) { return isa->bf16 && isa->bf16->mla_scores; }
static inline int64_t mla_side(const struct mla_isa *isa, int64_t heads) {
    return mla_round(heads, mla_strips(isa) ? ATTN_MLA_HEADS : 16);
}

/* Depth of the score product over x columns: pairs count once. */
static inline int64_t mla_depth(const struct mla_isa *isa, int64_t x) { return isa->bf16 ? x / 2 : x; }

/* Where gathered rows go: rows [n][ld], as f32 or as pairs along the columns; with pairs also zipped [n/2][ld_zip], the
 * first `width` columns as pairs along the rows, what sums over the rows read. */
struct mla_rows {
    float *rows, *zip;
    int64_t ld, ld_zip, width;
};
/* kv rows key[r], r < n. */
void attn_cpu_mla_gather(const struct mla_isa *isa, const struct attn_view *kv, int64_t b, const int32_t *key,
                         int64_t n, int64_t d, const struct mla_rows *to);
/* Rows in place: products read them in memory (ukr/sparse.h), and during the products of a block the rows of the next
 * one are prefetched, which the second-level cache then holds. */
static inline int mla_in_place(const struct mla_isa *isa) { return isa->sparse != NULL; }
/* Pointers to rows key[r], r < n, and after them, up to a whole tile, to a row of zeros. */
void attn_cpu_mla_point(const struct attn_view *kv, int64_t b, const int32_t *key, int64_t n, const uint16_t **row);
/* Rows to prefetch during the products that follow: d columns of each. now: at once. */
struct attn_sparse_ahead attn_cpu_mla_ahead(const uint16_t *const *row, int64_t n, int64_t d);
void attn_cpu_mla_prefetch(struct attn_sparse_ahead *ahead);
/* Shares what is left of them out to `places` in which products ask. */
static inline void mla_pace(struct attn_sparse_ahead *ahead, int64_t part, int64_t parts, int64_t places) {
    const int64_t lines = ahead->n * ahead->lines * part / parts;
    ahead->burst = (lines + places - 1) / places;
}
/* Places of scores and of sums over rows. */
static inline int64_t mla_score_places(int64_t n, int64_t heads, int64_t depth) {
    return mla_round(n, ATTN_SPARSE_ROWS) / ATTN_SPARSE_ROWS *
           (mla_round(heads, ATTN_SPARSE_PANEL) / ATTN_SPARSE_PANEL) * (depth / ATTN_SPARSE_DEPTH);
}
static inline int64_t mla_sum_places(int64_t heads, int64_t columns) {
    return (heads + ATTN_SPARSE_SUM - 1) / ATTN_SPARSE_SUM * (columns / 32);
}

/* The sum over gathered rows, C[m][n] (+)= A^T rows: A [rows][lda], with pairs [rows/2][lda] zipped. */
void attn_cpu_mla_sum(const struct mla_isa *isa, int64_t m, int64_t n, int64_t rows, const float *a, int64_t lda,
                      const struct mla_rows *from, float *c, int64_t ldc, int accumulate);

/* With strips nothing is gathered beforehand: the kernels copy rows themselves, and what sums over rows read (P or dS
 * of a strip, pairs of rows of 32 columns) is mla_strip(rows of a block) apart. */
static inline struct attn_mla_rows mla_rows_of(const struct attn_view *kv, int64_t b, const int32_t *key, int64_t n) {
    return (struct attn_mla_rows){attn_view_row(kv, b, 0, 0), key, n, kv->row * kv->element_bytes};
}
static inline int64_t mla_strip(int64_t block) { return block / 2 * ATTN_MLA_HEADS; }
/* The sum over `rows` of them, the first 32 of the next copied meanwhile: C has whole strips. */
static inline struct attn_mla_sum mla_sum_strips(int64_t m, int64_t n, int64_t rows, const float *a,
                                                 const struct attn_mla_copies *from, int64_t depth, float *c,
                                                 int64_t ldc, const struct attn_mla_rows *next) {
    return (struct attn_mla_sum){.strips = (m + ATTN_MLA_HEADS - 1) / ATTN_MLA_HEADS,
                                 .pairs = (rows + 1) / 2,
                                 .columns = n,
                                 .a = a,
                                 .lda = from->ldz,
                                 .zip = from->zip,
                                 .ldz = from->ldz,
                                 .c = c,
                                 .ldc = ldc,
                                 .next = *next,
                                 .tiles = from->tiles,
                                 .depth = depth};
}

/* Rows of `heads` heads from h0 on of a [B,S,H,X] tensor as f32 or as pairs: dst[h][0..x). A head with skip[h] != 0
 * (NULL: none) is zeroed unread. */
void attn_cpu_mla_heads(const struct mla_isa *isa, const struct attn_view *v, int64_t b, int64_t i, int64_t h0,
                        int64_t heads, int64_t x, const uint8_t *skip, float *dst, int64_t ld);

/* Row stride of what mla_turn makes for ldh padded heads: an odd number of cache lines, or its columns would crowd a
 * few sets. */
static inline int64_t mla_transposed(int64_t ldh) { return ldh | 16; }

/* dst[x][h] = src[h][x] for h < heads, 0 for heads <= h < ld_dst: the right operand of the score product; x is a depth.
 * With strips dst is in tiles, [strips][x / 16][2][16][16], and ld_dst is not used. */
void attn_cpu_mla_turn(const struct mla_isa *isa, const float *src, int64_t ld_src, int64_t heads, int64_t x,
                       float *dst, int64_t ld_dst);

/* s[n][ldh] = rows[n][d] transposed[d][ldh], d columns, the scores before scaling; row strides of rows and s are given,
 * that of transposed is mla_transposed(ldh). With f32 tensors the sum over d is cut into parts: one chain of 576
 * multiply-adds loses too many bits for large scales. */
void attn_cpu_mla_score(const struct mla_isa *isa, int32_t dtype, int64_t n, int64_t ldh, int64_t d, const float *rows,
                        int64_t ld_rows, const float *transposed, float *s, int64_t ld_s);

/* lse of chunk heads in base e, +inf (probability 0 everywhere) for heads whose row counts as empty; dead[h] says
 * which. Returns the number of dead heads. lse[heads..padded) is set to 0. */
int64_t attn_cpu_mla_lse(const attn_problem *p, const struct attn_view *v, int64_t b, int64_t i, int64_t h0,
                         int64_t heads, int64_t padded, float *lse, uint8_t *dead);

/* Heads that exist and are not dead, a bit each: attn_mla_bwd_scores.valid of a chunk. */
void attn_cpu_mla_valid(const uint8_t *dead, int64_t heads, uint32_t valid[MLA_HEADS / ATTN_MLA_HEADS]);

/* ATTN_DIST_L1: divides the row by its sum, in double; a row of zeros stays. */
void attn_cpu_mla_sum_to_one(float *row, int64_t n);

/* The three operators, called by the rows of rows.c. */
/* Threads that work on a problem at most: a function of it, so that workspaces are of that many. */
static inline int32_t attn_cpu_mla_crew(const struct mla_isa *isa, const attn_problem *p, int32_t threads) {
    const double rows = (double)p->batch * (double)p->seq_q, slots = rows * (double)p->topk;
    const double width = (double)(p->dim_qk + (p->op == ATTN_OP_DIST ? 0 : p->dim_v));
    const double factor = p->op == ATTN_OP_MLA_BWD ? 6 : 2;
    const double keys = p->op == ATTN_OP_MLA_BWD ? (double)p->batch * (double)p->seq_k * (double)p->dim_qk : 0;
    return attn_cpu_crew(threads, factor * slots * (double)p->heads_q * width, 2 * (slots * width + keys), isa->flops);
}
uint64_t attn_cpu_mla_fwd_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads);
uint64_t attn_cpu_mla_bwd_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads);
uint64_t attn_cpu_mla_dist_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads);
void attn_cpu_mla_fwd(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                      const attn_args *a);
void attn_cpu_mla_bwd(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                      const attn_args *a);
void attn_cpu_mla_dist(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *a);
#endif
