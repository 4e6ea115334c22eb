/* SPDX-License-Identifier: MIT
 * Happens-before on shared memory. Every warp of a cluster is an actor with a vector clock: known[a] is the time of
 * actor a up to which its accesses are ordered before the warp's next one. A warp's own time grows at every release
 * (barrier arrival and the like), and a barrier gives every warp the maximum of all that arrived. Two accesses of one
 * word race if neither is known to the other's warp, one writes, and not both are atomic.
 *
 * Per 4-byte word, one record of its last write and, per actor, one of its last read:
 *   63..40 time   39..30 actor   29 pending   28 atomic   27..8 instruction   7..4 bytes touched   3..0 bytes written
 * pending: an asynchronous copy under way owns the word; nobody may touch it before its issuer has waited for it.
 * What is not seen: races between lanes of one warp, and a second writer's bytes when two warps write different bytes
 * of one word at the same time (only the later one is kept). */
#ifndef SIM_RACE_H
#define SIM_RACE_H
#include "machine.h"

enum sim_access { SIM_LOAD, SIM_STORE, SIM_ATOMIC_ACCESS, SIM_COPY };

/* Checks and records an access of `bytes` at `offset` of the CTA's shared memory, which must lie in it. */
void sim_shared_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                      uint32_t offset, uint32_t bytes, enum sim_access access);
/* The issuer has waited for a copy that it issued at `in`: its bytes become ordinary writes of now. */
void sim_shared_landed(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t offset,
                       uint32_t bytes);
/* Clocks. */
void sim_clock_join(uint32_t *into, const uint32_t *from, uint32_t n);
void sim_clock_tick(struct sim_warp *w); /* after a release */
#endif
