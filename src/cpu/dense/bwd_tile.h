/* SPDX-License-Identifier: MIT
 * A tile of the dense backward: P and dS of up to `tile` query rows against up to `tile` keys of one key head, what
 * every gradient is summed from. Rows and keys are loaded apart, so that whoever owns one side keeps it. */
#ifndef ATTN_CPU_DENSE_BWD_TILE_H
#define ATTN_CPU_DENSE_BWD_TILE_H
#include "cpu/dense/bf16_operands.h"
#include "cpu/dense/bwd.h"

enum { ATTN_CPU_TILE_SLOTS = 2 };

#define ATTN_CPU_TILE(REAL, T)                                                                                         \
    struct attn_cpu_tile_##T {                                                                                         \
        const struct attn_cpu_bwd *w;                                                                                  \
        struct attn_core_seq seq;                                                                                      \
        int64_t b, hk;                                                                                                 \
        int64_t n_rows, n_keys, j0;                                                                                    \
        int64_t lo, hi; /* keys that at least one of the rows sees */                                                  \
        struct attn_cpu_sdpa_row *row;                                                                                 \
        struct attn_cpu_bwd_row **stat;                                                                                \
        REAL *q, *dout, *k, *v, *kt, *vt, *p, *ds, *chain, *tmp;                                                       \
        /* of pairs: q, dout, P and dS as pairs of rows, k as pairs of keys, dS as pairs of keys */                    \
        REAL *q_zip, *dout_zip, *p_zip, *ds_zip, *k_zip, *ds_half;                                                     \
        float *mask;                                                                                                   \
        uint8_t *hidden;                                                                                               \
        struct attn_cpu_sdpa_nonfinite bad_q, bad_dout, bad_k;                                                         \
        int simple, fused;        /* rows need nothing but the exponential; P and dS were made as pairs alone */       \
        int bad_rows, bad_values; /* rows (q, dout, shift) or v are not finite: see exp_lifted */                      \
        int partial;              /* some row does not see some key; not of pairs */                                   \
    };                                                                                                                 \
    /* slot < ATTN_CPU_TILE_SLOTS: tiles of one worker share everything but their rows. */                             \
    void attn_cpu_tile_init_##T(struct attn_cpu_tile_##T *t, const struct attn_cpu_bwd *w, char *scratch, int slot);   \
    /* Sequence b and key head hk; forgets rows and keys. */                                                           \
    void attn_cpu_tile_head_##T(struct attn_cpu_tile_##T *t, int64_t b, int64_t hk);                                   \
    /* Rows f0 .. f0+n: row r is query (f0+r) / group of head h0 + (f0+r) % group. */                                  \
    void attn_cpu_tile_rows_##T(struct attn_cpu_tile_##T *t, int64_t h0, int64_t group, int64_t f0, int64_t n);        \
    void attn_cpu_tile_keys_##T(struct attn_cpu_tile_##T *t, int64_t j0, int64_t n);                                   \
    /* The keys that another slot of this worker has loaded. */                                                        \
    void attn_cpu_tile_same_keys_##T(struct attn_cpu_tile_##T *t, const struct attn_cpu_tile_##T *loaded);             \
    /* p (zero where hidden) and ds (gradient of the score after step 4) */                                            \
    void attn_cpu_tile_compute_##T(struct attn_cpu_tile_##T *t);                                                       \
    /* ds becomes the gradient of scale * (q . k): through the softcap */                                              \
    void attn_cpu_tile_chain_##T(struct attn_cpu_tile_##T *t);                                                         \
    /* What the tile adds to the gradients: dv += P^T dout (before chain); dk += dS^T q and dq += dS \
     * k (after it). dk and dv take NaN and infinities out of the loaded rows: load them anew for \
     * another tile. */                 \
    void attn_cpu_tile_add_dv_##T(struct attn_cpu_tile_##T *t, REAL *dv);                                              \
    void attn_cpu_tile_add_dk_##T(struct attn_cpu_tile_##T *t, REAL *dk);                                              \
    void attn_cpu_tile_add_dq_##T(const struct attn_cpu_tile_##T *t, REAL *dq);
ATTN_CPU_TILE(float, f32)
ATTN_CPU_TILE(double, f64)
ATTN_CPU_TILE(float, bf16) /* products on pairs of bf16: see ukr/bf16.h */
#endif
