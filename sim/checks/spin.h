/* SPDX-License-Identifier: MIT
 * Loops that poll memory: a strong load, or an atomic that leaves what it found, of the same lanes again and again,
 * with no change of memory or of a barrier in the cluster. When it comes back with the same registers in all lanes, the
 * warp can go on only if somebody else writes: it lets others run first, like a poll of an mbarrier in vain, and where
 * nobody is left to write, that is a deadlock. A loop that counts or looks at a clock has other registers each time and
 * is none. */
#ifndef SIM_SPIN_H
#define SIM_SPIN_H
#include "machine/machine.h"

/* Behind a poll that has its values: SIM_RETRY if the warp spins. */
enum sim_step sim_spin_poll(struct sim_warp *w, const struct sim_ins *in, uint32_t m);
int sim_spins(const struct sim_warp *w);
void sim_spin_start(struct sim_warp *w); /* of a CTA that starts */
void sim_spin_free(struct sim_warp *w);

/* With several host threads, another one's cluster may write what this one waits for. Where no warp of a cluster can go
 * on: whether that is for good. When one did; when a worker takes no more clusters. */
int sim_spin_is_for_good(struct sim_worker *k);
void sim_spin_went_on(struct sim_worker *k);
void sim_spin_leave(struct sim_launch *g);
#endif
