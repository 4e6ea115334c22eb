/* SPDX-License-Identifier: MIT
 * Strips of fwd.c whose products are not scores, of bf16: which way leads from one to the other
 * (score_mod_fused.h, ukr/score_mod.h), and those without a boolean mask. */
#include "cpu/amx/dense_fwd/fwd_mainloop.h"

KINDS_OF(CAP)
KINDS_OF(ALIBI)
KINDS_OF(SEPARATE)
KIND_BOTH(strips_any_SEPARATE, 0, FUSE_SEPARATE, f->depth, f->width, SPAN, 1)
static int fuse_of(const struct attn_fwd_score_mod *s) {
    const int bits = s->mask == ATTN_UKR_MASK_BITS, both = s->caps && s->alibi;
    if (!(s->scale > 0) || both || (s->mask && !bits) || (!bits && !s->caps && !s->alibi)) return FUSE_SEPARATE;
    return s->caps ? bits ? FUSE_CAP_BOOL : FUSE_CAP : s->alibi ? bits ? FUSE_ALIBI_BOOL : FUSE_ALIBI : FUSE_BOOL;
}
void attn_ukr_amx_fwd_score_mod(const struct attn_fwd_strip *f, int64_t n, int extents) {
    static const attn_fwd_strips kernel[][2][2] = {ROW_OF(CAP), ROW_OF(ALIBI), ROW_OF(SEPARATE)};
    const int kind = fuse_of(f->score);
    if (extents == EXTENTS_ANY) {
        (f->bf16_accuracy ? strips_any_SEPARATE_bf16_accuracy : strips_any_SEPARATE)(f, n);
    } else if (fuse_bool_mask(kind)) {
        attn_ukr_amx_fwd_bool_mask(f, n, kind, extents);
    } else {
        kernel[kind][f->bf16_accuracy][extents - EXTENTS_64](f, n);
    }
}
