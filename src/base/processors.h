/* SPDX-License-Identifier: MIT
 * Processors that this process may use, as a number of threads. */
#ifndef ATTN_BASE_PROCESSORS_H
#define ATTN_BASE_PROCESSORS_H
#include <stdint.h>

/* At least 1: the affinity's count, or less if a control group grants less time. */
int32_t attn_base_processors(void);
/* Processors' worth of time, rounded up, that the groups of the file `groups` (as /proc/self/cgroup) and those around
 * them grant under the mount `root`, version 1 or 2; INT32_MAX = no limit. */
int32_t attn_base_cpu_quota(const char *groups, const char *root);
#endif
