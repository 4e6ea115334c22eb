/* SPDX-License-Identifier: MIT
 * Strips of fwd_rowmajor.c with a softcap, ALiBi or both. */
#include "cpu/amx/dense_fwd/rowmajor_mainloop.h"

enum { CAP = MADE_CAP, ALIBI = MADE_ALIBI, BOTH = MADE_CAP | MADE_ALIBI };
#define ADDED(parts, rough, made)                                                                                      \
    LOOP(parts, rough, made, F32)                                                                                      \
    LOOP(parts, rough, made, F16) LOOP(parts, rough, made, BF16) STRIPS(parts, rough, made)
#define KINDS(parts, rough)                                                                                            \
    ADDED(parts, rough, CAP)                                                                                           \
    ADDED(parts, rough, ALIBI) ADDED(parts, rough, BOTH) LOOP(parts, rough, BOTH, NONE) LOOP(parts, rough, BOTH, BITS)
#define ROW(parts, rough, made)                                                                                        \
    IN_ROW(parts, rough, made, F32), IN_ROW(parts, rough, made, F16), IN_ROW(parts, rough, made, BF16)
#define ROWS_OF(parts, rough)                                                                                          \
    {                                                                                                                  \
        [CAP] = {ROW(parts, rough, CAP)}, [ALIBI] = {ROW(parts, rough, ALIBI)}, [BOTH] = {                             \
            IN_ROW(parts, rough, BOTH, NONE),                                                                          \
            IN_ROW(parts, rough, BOTH, BITS),                                                                          \
            ROW(parts, rough, BOTH)                                                                                    \
        }                                                                                                              \
    }
#define STRIPS_OF(parts, rough)                                                                                        \
    {                                                                                                                  \
        [CAP] = strips_##parts##_##rough##_CAP, [ALIBI] = strips_##parts##_##rough##_ALIBI,                            \
        [BOTH] = strips_##parts##_##rough##_BOTH                                                                       \
    }
KINDS(2, 0)
KINDS(2, 1)
KINDS(4, 0)
KINDS(4, 1)
void attn_ukr_amx_fwd_rowmajor_score_mod(const struct attn_fwd_strip *f, int64_t n) {
    static strips_of *const of[2][2][MADE_KINDS] = {{STRIPS_OF(2, 0), STRIPS_OF(4, 0)},
                                                    {STRIPS_OF(2, 1), STRIPS_OF(4, 1)}};
    static open_loop *const open[2][2][MADE_KINDS][ATTN_UKR_MASK_BF16 + 1] = {{ROWS_OF(2, 0), ROWS_OF(4, 0)},
                                                                              {ROWS_OF(2, 1), ROWS_OF(4, 1)}};
    const int rough = f->rough != 0, wide = f->depth == 128,
              made = (f->score->caps ? MADE_CAP : 0) | (f->score->alibi ? MADE_ALIBI : 0);
    of[rough][wide][made](open[rough][wide][made][f->score->mask], f, n);
}
