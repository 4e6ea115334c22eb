/* SPDX-License-Identifier: MIT
 * The dense forward on AMX, 32 queries at a time (a strip): attn_ukr_bf16.fwd. Scores are transposed, S^T = K Q^T: key
 * rows are read as they are in memory, and the softmax needs no reduction across a register. O^T = V^T P^T.
 *
 *            queries                  tiles (tmm)                         first-level cache, D 64, bytes
 *     keys  +-------+-------+           0 .. 3 sums of 16 x 16              S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |           4 5    16 keys or values^T each     P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |           6 7    16 queries' Q^T or P each    O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+                                               36 KiB
 *
 * The tile unit and the vector unit run in parallel, a software pipeline: the exponentials of step j are interleaved
 * evenly with the products Q K^T of step j + 1 and P V of step j - 1. Tiles are renamed like other registers, so that
 * neither a store nor a load of one delays products that use its name next. But tile loads and stores compete with each
 * other: their number counts, and stores must not come in a burst. A block of 32 x 32 sums needs four loads for four
 * products, D 64 has a form of its own with three. A block's sums are stored one by one between the first products of
 * the next block. Keys and values are loaded with a streaming hint, so that the other buffers of the table above stay
 * in the cache.
 *
 *     step    j - 1            j                j + 1
 *     tiles   QK(j)   PV(j-2)  QK(j+1) PV(j-1)  QK(j+2) PV(j)
 *     vectors exp (j-1)        exp (j)          exp (j+1)
 *
 * The pipeline does not drain between strips: the last P V of a strip overlaps the first exponentials of the next. The
 * full-step path is unrolled; its only branches depend on data.
 *
 * With D 128 these buffers would fill the cache. There a step has 32 keys, and P V of the last four steps is added to
 * one quarter of O at a time, which also halves the loads and stores of O:
 *
 *     step    j                                 j + 1                             S 4 KiB, two of them; P 2 KiB, five
 *     tiles   QK(j+1)  PV(j-4 .. j-1) slice 0   QK(j+2)  PV(j-3 .. j) slice 1     with O^T and Q^T: 42 KiB
 *
 * The running max m of a query need not be its maximum so far (running_max.h): it is the largest score of the first
 * step in which the query sees a key, until a step's sum of probabilities passes MOST. Then that step's exponentials
 * are taken again with the maximum, and O and l are rescaled. So no step waits for a maximum.
 *
 * f16 is split exactly (bf16x2): 11 bits are a bf16 of 8 bits and one of at most 3. Q K^T is four products and exact
 * but for its sums; three where lse is not requested and no score changes by more than 2^-12. P is cut into two
 * parts, 16 bits, and products of two low parts are left out: each is an error of 2^-15 of a term.
 *
 * f32 is split exactly (bf16x3): its first, middle and last 8 bits. The six largest of nine products are computed, the
 * smallest of them first. The others are 2^-21 of a term at most and 2^-24 on average, less than what sums in f32
 * lose.
 *
 * P = 2^(s * factor - offset), offset = m * factor ROUNDED to f32: one multiply-add of the score. O and l are relative
 * to that rounded number, rescaling uses it and lse contains it, so that its rounding costs nothing. A constant factor
 * in P saves a multiply-add of the polynomial (exp2_times). Where lse is not requested, bf16 takes P from a table
 * (exp_table.h). */
#include "cpu/amx/dense_fwd/fwd_mainloop.h"

static int fits_flat(const struct attn_fwd_strip *f) {
    const struct layout k = layout_of(1, f, f->depth, f->n_bf16);
    return k.row == f->k_row && k.next16 == f->k_more && k.step == f->k_step && (f->n_bf16 == 1 || k.low == f->k_low);
}
/* The instances for one pair of extents: bf16, f16 as bf16x2, f32 as bf16x3. flat: extents are constants, see
 * block(). */
#define KINDS(name, flat, depth, width, span, o_slices, more_span, more_o_slices)                                      \
    KIND(name, flat, FUSE_NONE, depth, width, 1, 0, span, o_slices)                                                    \
    KIND(name##_bf16_accuracy, flat, FUSE_NONE, depth, width, 1, 1, span, o_slices)                                    \
    KIND(name##_bf16x2, flat, FUSE_NONE, depth, width, 2, 0, more_span, more_o_slices)                                 \
    KIND(name##_bf16x2_bf16_accuracy, flat, FUSE_NONE, depth, width, 2, 1, more_span, more_o_slices)                   \
    KIND(name##_bf16x3, flat, FUSE_NONE, depth, width, 3, 0, more_span, more_o_slices)
KINDS(strips_any, 0, f->depth, f->width, SPAN, 1, SPAN, 1)
KINDS(strips_64, 1, 64, 64, SPAN, 1, HALF, 2)
KINDS(strips_128, 1, 128, 128, HALF, 4, HALF, 2)
void attn_ukr_amx_fwd(const struct attn_fwd_strip *f, int64_t n) {
    static void (*const kernel[][EXTENTS])(const struct attn_fwd_strip *f, int64_t n) = {
        {strips_any, strips_64, strips_128},
        {strips_any_bf16_accuracy, strips_64_bf16_accuracy, strips_128_bf16_accuracy},
        {strips_any_bf16x2, strips_64_bf16x2, strips_128_bf16x2},
        {strips_any_bf16x2_bf16_accuracy, strips_64_bf16x2_bf16_accuracy, strips_128_bf16x2_bf16_accuracy},
        {strips_any_bf16x3, strips_64_bf16x3, strips_128_bf16x3}};
    const int extents = f->depth != f->width || !fits_flat(f) ? EXTENTS_ANY
                        : f->width == 64                      ? EXTENTS_64
                        : f->width == 128                     ? EXTENTS_128
                                                              : EXTENTS_ANY;
    if (f->score && f->n_bf16 == 1) {
        attn_ukr_amx_fwd_score_mod(f, n, extents);
    } else {
        kernel[f->n_bf16 == 3 ? 4 : 2 * (f->n_bf16 - 1) + f->bf16_accuracy][extents](f, n);
    }
}
