/* SPDX-License-Identifier: MIT
 * Strips of fwd.c with a boolean mask, of bf16: alone, with a softcap or with ALiBi. */
#include "cpu/amx/dense_fwd/fwd_mainloop.h"

KINDS_OF(BOOL)
KINDS_OF(CAP_BOOL)
KINDS_OF(ALIBI_BOOL)
void attn_ukr_amx_fwd_bool_mask(const struct attn_fwd_strip *f, int64_t n, int kind, int extents) {
    static const attn_fwd_strips kernel[][2][2] = {ROW_OF(BOOL), ROW_OF(CAP_BOOL), ROW_OF(ALIBI_BOOL)};
    kernel[kind][f->bf16_accuracy][extents - EXTENTS_64](f, n);
}
