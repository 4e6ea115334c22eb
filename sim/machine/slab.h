/* SPDX-License-Identifier: MIT
 * Large blocks that outlive a launch, so that small launches do not spend their time on fresh pages. A block's records
 * of accesses (race.h) are left in it: the clocks of later launches start behind their times. */
#ifndef SIM_SLAB_H
#define SIM_SLAB_H
#include <stddef.h>
#include <stdint.h>

uint32_t sim_slab_base(void); /* where the clocks of a launch that starts now begin */
/* 128-byte aligned. What it holds is junk, but read as 64-bit records no time in it is above `base` (UINT32_MAX: no
 * matter). */
void *sim_slab_take(size_t bytes, uint32_t base);
void sim_slab_give(void *block, uint32_t top); /* top: no time in it is above; NULL is fine */
#endif
