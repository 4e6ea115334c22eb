/* SPDX-License-Identifier: MIT
 * Strips of ukr_flash_amx.c whose products are not scores, of bf16: a kind for each way from one to the other
 * (ukr_flash_fuse.h, ukr_flash_score.h). */
#include "cpu/ukr_flash_strips.h"

#define ROUGH_OR_NOT(name, flat, fuse, depth, width, span, parts)                                                      \
    KIND(name, flat, fuse, depth, width, 1, 0, span, parts)                                                            \
    KIND(name##_rough, flat, fuse, depth, width, 1, 1, span, parts)
#define WITH(fuse)                                                                                                     \
    ROUGH_OR_NOT(strips_64_##fuse, 1, FUSE_##fuse, 64, 64, SPAN, 1)                                                    \
    ROUGH_OR_NOT(strips_128_##fuse, 1, FUSE_##fuse, 128, 128, HALF, 4)
ROUGH_OR_NOT(strips_any_PASS, 0, FUSE_PASS, f->depth, f->width, SPAN, 1)
WITH(CAP)
WITH(ALIBI)
WITH(KEPT)
WITH(CAP_KEPT)
WITH(ALIBI_KEPT)
WITH(PASS)
KIND(strips_64_READ_16, 1, FUSE_READ_16, 64, 64, 1, 0, SPAN, 1)
KIND(strips_64_READ_32, 1, FUSE_READ_32, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_READ_16, 1, FUSE_READ_16, 128, 128, 1, 0, HALF, 4)
KIND(strips_128_READ_32, 1, FUSE_READ_32, 128, 128, 1, 0, HALF, 4)
static int fuse_of(const struct attn_pair_score *s) {
    const int bits = s->mask == ATTN_PAIR_MASK_BITS, both = s->caps && s->alibi;
    if (s->scale > 0 && !both && (bits || (!s->mask && (s->caps || s->alibi))))
        return s->caps ? bits ? FUSE_CAP_KEPT : FUSE_CAP : s->alibi ? bits ? FUSE_ALIBI_KEPT : FUSE_ALIBI : FUSE_KEPT;
    if (!s->mask || s->mask == ATTN_PAIR_MASK_BIAS || bits) return FUSE_PASS;
    return s->mask == ATTN_PAIR_MASK_F32 ? FUSE_READ_32 : FUSE_READ_16;
}
void attn_ukr_amx_flash_scores(const struct attn_pair_flash *f, int64_t n, int extents) {
#define STRIPS(fuse)                                                                                                   \
    [FUSE_##fuse] = { {strips_64_##fuse, strips_128_##fuse}, {strips_64_##fuse##_rough, strips_128_##fuse##_rough} }
    static void (*const of[][2][2])(const struct attn_pair_flash *f,
                                    int64_t n) = {STRIPS(CAP),
                                                  STRIPS(ALIBI),
                                                  STRIPS(KEPT),
                                                  STRIPS(CAP_KEPT),
                                                  STRIPS(ALIBI_KEPT),
                                                  STRIPS(PASS),
                                                  [FUSE_READ_16] = {{strips_64_READ_16, strips_128_READ_16}},
                                                  [FUSE_READ_32] = {{strips_64_READ_32, strips_128_READ_32}}};
    if (extents != EXTENTS_ANY) {
        of[fuse_of(f->score)][f->rough][extents - EXTENTS_64](f, n);
    } else if (f->rough) {
        strips_any_PASS_rough(f, n);
    } else {
        strips_any_PASS(f, n);
    }
}
