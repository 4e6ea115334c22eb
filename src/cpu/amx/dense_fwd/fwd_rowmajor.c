/* SPDX-License-Identifier: MIT
 * Query blocks of 32 rows on AMX, S row-major (keys across the lanes): attn_ukr_bf16.fwd_rowmajor, for bf16 of 64 and
 * 128 columns with an additive mask. A mask's rows lie along the keys, so the mask is not transposed: it is an addend
 * of the exponential's argument. S = Q K^T and O = P V lie as they are; K is transposed, once. Those with a softcap or
 * ALiBi are in fwd_rowmajor_score_mod.c, the loop over steps of both in rowmajor_mainloop.h.
 *
 *            keys, columns            tiles (tmm)                         first-level cache, D 128, bytes
 *   queries +-------+-------+           0 .. 3 sums of 16 x 16              S  32 x 32 f32       4 KiB, two of them
 *      16   |   0   |   1   |           4 5    16 queries' Q or P each      P  32 x 16 pairs     2 KiB, five of them
 *      16   |   2   |   3   |           6 7    16 keys' K^T, values' V      O  32 x 128 f32     16 KiB, Q  8 KiB
 *           +-------+-------+                                               l  32 x 16 f32       2 KiB, two of them
 *
 * A step has 32 keys, 16 in one vector and 16 in another, which are pairs, so that two registers of probabilities
 * become a row of pairs by two additions and one permutation, and a mask of f32 is read as it is. During its
 * exponentials the keys of the next step are multiplied, and the values of the last four (D 64: two) are added to a
 * quarter (a half) of the sums:
 *
 *     step    j                                   j + 1
 *     tiles   QK(j+1)  PV(j-4 .. j-1) slice 0     QK(j+2)  PV(j-3 .. j) slice 1
 *     vectors exp(j), two queries at a time       exp(j+1)
 *
 * The pipeline is that of fwd.c: it does not drain between strips, the only branches of a full step depend on data, and
 * a block's four sums are stored during the first products of the next block.
 * What differs:
 * - Nothing is prefetched: rows go on from step to step, and the hardware follows them.
 * - Steps at a strip's ends, or with keys that some row does not see, work on a copy of the mask.
 * - l is summed lane by lane, and across the lanes once, at a strip's end.
 * - Probabilities are 2^-16 of what they are there. So a probability that is too large shows in one bit: bit 30 of
 *   a rounded number, the sign of a table's. A step ORs all its probabilities; if the bit is set, the rows that have it
 *   get a new running max.
 */
#include "cpu/amx/dense_fwd/rowmajor_mainloop.h"

#define KIND(o_slices, bf16_accuracy)                                                                                  \
    LOOP(o_slices, bf16_accuracy, 0, F32)                                                                              \
    LOOP(o_slices, bf16_accuracy, 0, F16) LOOP(o_slices, bf16_accuracy, 0, BF16) STRIPS(o_slices, bf16_accuracy, 0)
#define ROW(o_slices, bf16_accuracy)                                                                                   \
    {                                                                                                                  \
        IN_ROW(o_slices, bf16_accuracy, 0, F32), IN_ROW(o_slices, bf16_accuracy, 0, F16),                              \
            IN_ROW(o_slices, bf16_accuracy, 0, BF16)                                                                   \
    }
KIND(2, 0)
KIND(2, 1)
KIND(4, 0)
KIND(4, 1)
void attn_ukr_amx_fwd_rowmajor(const struct attn_fwd_strip *f, int64_t n) {
    static strips_of *const kernel[2][2] = {{strips_2_0_0, strips_4_0_0}, {strips_2_1_0, strips_4_1_0}};
    static open_loop *const open[2][2][ATTN_UKR_MASK_BF16 + 1] = {{ROW(2, 0), ROW(4, 0)}, {ROW(2, 1), ROW(4, 1)}};
    const int bf16_accuracy = f->bf16_accuracy != 0, wide = f->depth == 128;
    if (f->score->caps || f->score->alibi) {
        attn_ukr_amx_fwd_rowmajor_score_mod(f, n);
    } else {
        kernel[bf16_accuracy][wide](open[bf16_accuracy][wide][f->score->mask], f, n);
    }
}
