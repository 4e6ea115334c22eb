/* SPDX-License-Identifier: MIT
 * The table of former names. A line is added where a row goes and another serves all of its problems. */
#include "core/former_names.h"

#include "base/text.h"

#include <string.h>

/* mla_bwd: the schedule by turns (alt) is the faster one for each bf16 problem that the one in step (even) accepted. */
const struct attn_core_former_name attn_core_former_names[] = {
    {"attn_mla_bwd_sm90_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d576_h64_alt"},
    {"attn_mla_bwd_sm90_bf16_d512_h64_even", "attn_mla_bwd_sm90_bf16_d512_h64_alt"},
    {"attn_mla_bwd_sm90_bf16_d576_h128_even", "attn_mla_bwd_sm90_bf16_d576_h128_alt"},
    {"attn_mla_bwd_sm90_bf16_d512_h128_even", "attn_mla_bwd_sm90_bf16_d512_h128_alt"},
    {"attn_mla_bwd_sm90_bf16_d576_h64_even_det", "attn_mla_bwd_sm90_bf16_d576_h64_alt_det"},
    {"attn_mla_bwd_sm90_bf16_d512_h64_even_det", "attn_mla_bwd_sm90_bf16_d512_h64_alt_det"},
};
const int32_t attn_core_n_former_names = sizeof attn_core_former_names / sizeof attn_core_former_names[0];

bool attn_core_name_matches(const char *pattern, const char *name) {
    if (attn_text_match(pattern, name)) return true;
    for (int32_t i = 0; i < attn_core_n_former_names; i++)
        if (!strcmp(attn_core_former_names[i].present, name) &&
            attn_text_match(pattern, attn_core_former_names[i].former))
            return true;
    return false;
}

bool attn_core_is_named(const char *text, const char *name) {
    if (!strcmp(text, name)) return true;
    for (int32_t i = 0; i < attn_core_n_former_names; i++)
        if (!strcmp(attn_core_former_names[i].former, text)) return !strcmp(attn_core_former_names[i].present, name);
    return false;
}
