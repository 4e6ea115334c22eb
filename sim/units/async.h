/* SPDX-License-Identifier: MIT
 * Copies that end later than they begin. Each reads its source and writes its destination at a moment that the policy
 * chooses between its issue and the wait that names it. */
#ifndef SIM_ASYNC_H
#define SIM_ASYNC_H
#include "machine/machine.h"

struct sim_copy { /* one cp.async of a warp */
    const struct sim_ins *in;
    uint32_t lanes;      /* that have not waited for it */
    uint32_t group;      /* number of the group that it joins at the next commit, the same for all its lanes */
    uint32_t handed;     /* to an mbarrier, by the hand-over of this time; 0: to none */
    uint8_t done, bytes; /* written; size of the destination */
    uint64_t from[SIM_LANES];
    uint32_t to[SIM_LANES];  /* offset in the CTA's shared memory */
    uint8_t take[SIM_LANES]; /* bytes to read, the rest is zero */
};
/* Lets some of the warp's copies happen now, by the launch's policy. */
void sim_copies_step(struct sim_warp *warp);
void sim_copies_drop(struct sim_warp *warp); /* the warp has ended */
#endif
