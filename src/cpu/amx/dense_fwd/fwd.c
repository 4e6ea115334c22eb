/* SPDX-License-Identifier: MIT
 * Strips of 32 queries on AMX: attn_ukr_bf16.fwd. Scores are made transposed, S^T = K Q^T, so that key rows are used
 * as they are in memory and the softmax needs no sum across a register; O^T = V^T P^T.
 *
 *            queries                  tiles (tmm)                         first-level cache, D 64, bytes
 *     keys  +-------+-------+           0 .. 3 sums of 16 x 16              S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |           4 5    16 keys or values^T each     P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |           6 7    16 queries' Q^T or P each    O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+                                               36 KiB
 *
 * The tile unit and the vector unit work side by side: between the products of Q with the keys of step j + 1 and of P
 * with the values of step j - 1 the exponentials of step j are dealt out evenly. Tiles are renamed as other registers
 * are: neither a store nor a load of one holds up products that use its name next. But loads and stores take time from
 * each other, so that what counts is how few there are, and that stores do not come at once: blocks of 32 x 32 sums
 * need four loads for four products, D 64 has a form of its own with three, and a block's sums are stored one by one
 * beside the first products of the next. Keys and values have the hint that they pass through: what else is in the
 * table above stays.
 *
 *     step    j - 1            j                j + 1
 *     tiles   QK(j)   PV(j-2)  QK(j+1) PV(j-1)  QK(j+2) PV(j)
 *     vectors exp (j-1)        exp (j)          exp (j+1)
 *
 * Strips follow each other like steps of one: the last values of a strip are weighed beside the first exponentials of
 * the next. A full step leaves no branch but those on data: all its products are there one by one.
 *
 * D 128 would fill that cache to the brim: there a step has 32 keys, and adds the last four steps' values to a quarter
 * of the sums, which halves the loads and stores of sums besides:
 *
 *     step    j                                 j + 1                             S 4 KiB, two of them; P 2 KiB, five
 *     tiles   QK(j+1)  PV(j-4 .. j-1) part 0    QK(j+2)  PV(j-3 .. j) part 1      with O^T and Q^T: 42 KiB
 *
 * What a query's exponentials are relative to need not be its maximum: it is the largest score of the first step in
 * which it sees a key, for as long as no step's sum of probabilities passes MOST. Then that step's exponentials are
 * taken again, relative to the maximum, and O and l shrink. So no step waits for a maximum.
 *
 * f16 goes in exact halves: a number of 11 bits is a bf16 of 8 bits and one of at most 3, so that Q K^T is four
 * products and exact but for its sums (where lse is not asked for, and no score misses more than 2^-12 by it, three).
 * P is cut off into two halves, 16 bits, and low halves are not multiplied with low ones: 2^-15 of a term each.
 *
 * f32 goes in three terms, its first, middle and last 8 bits: nothing is rounded. Of nine products the six largest are
 * made, the smallest of them first; what is left out is 2^-21 of a term at most and 2^-24 on average, less than sums of
 * f32 lose.
 *
 * Exponentials are 2^(s * factor - top) with top = m * factor ROUNDED, one multiply-add from the score: sums are
 * relative to that number, by which older ones shrink and which goes into lse, so that its rounding costs nothing. They
 * are relative to a constant, too, which saves a multiply-add of the polynomial (exp2_times). Where nobody asks for
 * lse, bf16 takes them from a table (exp_table.h). */
#include "cpu/amx/dense_fwd/fwd_mainloop.h"

static int fits_flat(const struct attn_fwd_strip *f) {
    const struct layout k = layout_of(1, f, f->depth, f->terms);
    return k.row == f->k_row && k.more == f->k_more && k.step == f->k_step && (f->terms == 1 || k.low == f->k_low);
}
#define KINDS(name, flat, depth, width, span, parts, more_span, more_parts)                                            \
    KIND(name, flat, FUSE_NONE, depth, width, 1, 0, span, parts)                                                       \
    KIND(name##_rough, flat, FUSE_NONE, depth, width, 1, 1, span, parts)                                               \
    KIND(name##_halves, flat, FUSE_NONE, depth, width, 2, 0, more_span, more_parts)                                    \
    KIND(name##_halves_rough, flat, FUSE_NONE, depth, width, 2, 1, more_span, more_parts)                              \
    KIND(name##_thirds, flat, FUSE_NONE, depth, width, 3, 0, more_span, more_parts)
KINDS(strips_any, 0, f->depth, f->width, SPAN, 1, SPAN, 1)
KINDS(strips_64, 1, 64, 64, SPAN, 1, HALF, 2)
KINDS(strips_128, 1, 128, 128, HALF, 4, HALF, 2)
void attn_ukr_amx_fwd(const struct attn_fwd_strip *f, int64_t n) {
    static void (*const kernel[][EXTENTS])(const struct attn_fwd_strip *f, int64_t n) = {
        {strips_any, strips_64, strips_128},
        {strips_any_rough, strips_64_rough, strips_128_rough},
        {strips_any_halves, strips_64_halves, strips_128_halves},
        {strips_any_halves_rough, strips_64_halves_rough, strips_128_halves_rough},
        {strips_any_thirds, strips_64_thirds, strips_128_thirds}};
    const int extents = f->depth != f->width || !fits_flat(f) ? EXTENTS_ANY
                        : f->width == 64                      ? EXTENTS_64
                        : f->width == 128                     ? EXTENTS_128
                                                              : EXTENTS_ANY;
    if (f->score && f->terms == 1) {
        attn_ukr_amx_fwd_score_mod(f, n, extents);
    } else {
        kernel[f->terms == 3 ? 4 : 2 * (f->terms - 1) + f->bf16_accuracy][extents](f, n);
    }
}
