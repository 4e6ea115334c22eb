/* SPDX-License-Identifier: MIT
 * What the scheduler tells the barriers of a CTA. */
#ifndef SIM_BARRIER_H
#define SIM_BARRIER_H
#include "machine/machine.h"

void sim_barrier_check(struct sim_cta *cta, uint32_t id); /* opens it if all have come */
void sim_barrier_warp_ended(struct sim_cta *cta);
#endif
