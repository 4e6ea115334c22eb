/* SPDX-License-Identifier: MIT
 * Strips of fwd_rowmajor.c with a softcap, ALiBi or both. */
#include "cpu/amx/dense_fwd/rowmajor_mainloop.h"

enum { CAP = MOD_CAP, ALIBI = MOD_ALIBI, BOTH = MOD_CAP | MOD_ALIBI };
#define ADDED(o_slices, bf16_accuracy, mod)                                                                            \
    LOOP(o_slices, bf16_accuracy, mod, F32)                                                                            \
    LOOP(o_slices, bf16_accuracy, mod, F16)                                                                            \
    LOOP(o_slices, bf16_accuracy, mod, BF16) STRIPS(o_slices, bf16_accuracy, mod)
#define KINDS(o_slices, bf16_accuracy)                                                                                 \
    ADDED(o_slices, bf16_accuracy, CAP)                                                                                \
    ADDED(o_slices, bf16_accuracy, ALIBI)                                                                              \
    ADDED(o_slices, bf16_accuracy, BOTH)                                                                               \
    LOOP(o_slices, bf16_accuracy, BOTH, NONE) LOOP(o_slices, bf16_accuracy, BOTH, BITS)
#define ROW(o_slices, bf16_accuracy, mod)                                                                              \
    IN_ROW(o_slices, bf16_accuracy, mod, F32), IN_ROW(o_slices, bf16_accuracy, mod, F16),                              \
        IN_ROW(o_slices, bf16_accuracy, mod, BF16)
#define ROWS_OF(o_slices, bf16_accuracy)                                                                               \
    {                                                                                                                  \
        [CAP] = {ROW(o_slices, bf16_accuracy, CAP)}, [ALIBI] = {ROW(o_slices, bf16_accuracy, ALIBI)}, [BOTH] = {       \
            IN_ROW(o_slices, bf16_accuracy, BOTH, NONE),                                                               \
            IN_ROW(o_slices, bf16_accuracy, BOTH, BITS),                                                               \
            ROW(o_slices, bf16_accuracy, BOTH)                                                                         \
        }                                                                                                              \
    }
#define STRIPS_OF(o_slices, bf16_accuracy)                                                                             \
    {                                                                                                                  \
        [CAP] = strips_##o_slices##_##bf16_accuracy##_CAP, [ALIBI] = strips_##o_slices##_##bf16_accuracy##_ALIBI,      \
        [BOTH] = strips_##o_slices##_##bf16_accuracy##_BOTH                                                            \
    }
KINDS(2, 0)
KINDS(2, 1)
KINDS(4, 0)
KINDS(4, 1)
void attn_ukr_amx_fwd_rowmajor_score_mod(const struct attn_fwd_strip *f, int64_t n) {
    static strips_of *const kernel[2][2][MOD_KINDS] = {{STRIPS_OF(2, 0), STRIPS_OF(4, 0)},
                                                       {STRIPS_OF(2, 1), STRIPS_OF(4, 1)}};
    static open_loop *const open[2][2][MOD_KINDS][ATTN_UKR_MASK_BF16 + 1] = {{ROWS_OF(2, 0), ROWS_OF(4, 0)},
                                                                             {ROWS_OF(2, 1), ROWS_OF(4, 1)}};
    const int bf16_accuracy = f->bf16_accuracy != 0, wide = f->depth == 128,
              mod = (f->score->caps ? MOD_CAP : 0) | (f->score->alibi ? MOD_ALIBI : 0);
    kernel[bf16_accuracy][wide][mod](open[bf16_accuracy][wide][mod][f->score->mask], f, n);
}
