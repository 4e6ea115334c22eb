/* SPDX-License-Identifier: MIT
 * Geometry of the dense backward: tiles, phases, scratch. The formulas stand at struct attn_cpu_ref_grad in ref.h.
 *
 * PHASES, each a run of the pool: rows (statistics of every query row), keys (owner of a key block: dK and dV) and
 * queries (owner of a block of flat rows: dQ), or both at once with one owner per (batch, key head) when there are
 * enough of them (5 products instead of 7); then dmask and the sums over rows. Nobody adds to what another task owns,
 * and every sum runs over the same grid in the same order whichever way the work is dealt: same bits always. */
#ifndef ATTN_CPU_DENSE_BWD_H
#define ATTN_CPU_DENSE_BWD_H
#include "cpu/dense/sdpa.h"

/* Statistics of a query row of one head. lse = +inf marks a row without gradients. */
struct attn_cpu_bwd_row {
    double lse, g, shift; /* natural; factor of dout; g * (out . dout) - dlse */
    double dsink, dalibi;
    float offset; /* lse in units of a plain pair kernel's scores; of bwd_amx_score.c: struct attn_bwd_tile's max */
};
enum { ATTN_CPU_BWD_ROWS = 64 /* query rows of a task of the first phase */ };

/* Sizes of bwd_amx.c, and a worker's scratch there, which shares its place with that of the tiles. */
struct attn_cpu_bwd_amx {
    int64_t depth, width;       /* of q and k, of dout and v, rounded up to 32 */
    int64_t ldq, ldo, ldk, ldt; /* row strides: pairs of q and of dout, zipped k, a strip of anything */
    struct {
        int64_t q, dout, q_transposed, dout_transposed, kt, vt, k_zip, seen, range, max, delta, dk, dv, tmp, s, p, ds,
            ds_rows;
        int64_t slope, origin, near, weight, ref, cell, next, bits; /* bwd_amx_score.c */
    } offsets;
    int scored;  /* products are not yet scores */
    int64_t end; /* 0: not used */
};

struct attn_cpu_bwd {
    struct attn_cpu_sdpa s;
    const struct attn_ukr_bf16 *bf16; /* s.bf16, or for f32 what splits its numbers; or NULL */
    struct attn_view out, lse, dout, dlse, dq, dk, dv, dmask;
    int want_dq, want_dk, want_dv;
    int64_t real;
    int64_t tile;              /* rows and keys of a tile */
    int64_t ldd, ldv, lds;     /* row strides: width of q and k, of v and dout, of a tile of scores */
    int64_t depth_qk, depth_v; /* steps of the products with q and with dout: widths, or pairs of them */
    int64_t ldq, ldo, ldh;     /* row strides of loaded q and dout, and of dS as pairs of keys */
    int64_t slots;             /* tiles of keys that a worker has loaded at once */
    int64_t panel;
    int64_t keys; /* of a task of the key phase, and... */
    int64_t rows; /* flat rows of one of the query phase: multiples of tile */
    int64_t row_blocks, key_blocks;
    struct attn_cpu_bwd_amx amx;
    uint8_t *unfit_rows,
        *unfit_keys; /* not for bwd_amx.c: [batch][query head][block of rows], [batch][key head][block] */
    int fused;       /* keys and queries in one phase */
    int in_parts;    /* dk and dv are summed in parts, f32 alone */
    struct {
        int64_t q, dout, k, v, kt, vt, p, ds, chain, dq, dk, dv, tmp, mask, hidden, row, stat, raw_q, raw_dout, raw_k,
            raw_v, bad, sum, sums, q_zip, dout_zip, k_zip, p_zip, ds_zip, ds_half;
        int64_t end;
    } offsets;       /* a worker's scratch */
    int64_t n_stats; /* query rows times heads */
    struct attn_cpu_bwd_row *stats;
    struct attn_cpu_counter next;
    void (*phase)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
    int64_t tasks;
    int32_t crew; /* threads that work on the problem at most */
    char *scratch;
};

static inline struct attn_cpu_bwd_row *attn_cpu_bwd_stat(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq,
                                                         int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = w->s.p;
    if (attn_core_has(p, ATTN_PACKED)) return w->stats + h * p->total_q + seq->q0 + i;
    return w->stats + (b * p->heads_q + h) * p->seq_q + i;
}

/* dmask (bias.c): tasks and the phase. */
int64_t attn_cpu_bwd_mask_tasks(const struct attn_cpu_bwd *w);
void attn_cpu_bwd_mask_f32(struct attn_cpu_bwd *w, int64_t task, char *scratch);
void attn_cpu_bwd_mask_f64(struct attn_cpu_bwd *w, int64_t task, char *scratch);
void attn_cpu_bwd_mask_bf16(struct attn_cpu_bwd *w, int64_t task, char *scratch);
/* Sums of the rows' dsink and dalibi; task = query head. */
void attn_cpu_bwd_sums(struct attn_cpu_bwd *w, int64_t head, char *scratch);
#endif
