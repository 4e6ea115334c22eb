/* SPDX-License-Identifier: MIT
 * Strips of ukr_flash_amx.c with a boolean mask, of bf16: alone, with a softcap or with ALiBi. */
#include "cpu/ukr_flash_strips.h"

KINDS_OF(KEPT)
KINDS_OF(CAP_KEPT)
KINDS_OF(ALIBI_KEPT)
void attn_ukr_amx_flash_kept(const struct attn_pair_flash *f, int64_t n, int kind, int extents) {
    static const attn_flash_strips of[][2][2] = {ROW_OF(KEPT), ROW_OF(CAP_KEPT), ROW_OF(ALIBI_KEPT)};
    of[kind][f->rough][extents - EXTENTS_64](f, n);
}
