/* SPDX-License-Identifier: MIT
 * Names that kernel rows had before they were renamed or replaced. Patterns (attn_plan_options.kernel, ATTN_KERNEL) and
 * tuning files that hold one mean the row that took its place. */
#ifndef ATTN_CORE_FORMER_NAMES_H
#define ATTN_CORE_FORMER_NAMES_H
#include <stdbool.h>
#include <stdint.h>

struct attn_core_former_name {
    const char *former, *present;
};
extern const struct attn_core_former_name attn_core_former_names[];
extern const int32_t attn_core_n_former_names;

/* Does the glob match the row's name or one that it had? */
bool attn_core_name_matches(const char *pattern, const char *name);
/* Is this the row's name or one that it had? */
bool attn_core_is_named(const char *text, const char *name);
#endif
