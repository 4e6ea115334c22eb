/* SPDX-License-Identifier: MIT
 * Happens-before on global memory, between warps of a CTA, CTAs of a launch, launches, copies and fills. Per 4-byte
 * word one record of its last write and two of reads by different actors:
 *   63..40 time   39..18 actor   17..6 place of access (sim_program.places)   5..4 strength   3..0 bytes touched
 * Actors are numbered over all deeds (stream_order.h): those of each cluster of a launch, one of a copy or fill. Times
 * are those of the cluster's clocks (race.h). An access is ordered behind another
 *   of its own cluster   if its clock says so;
 *   of another cluster   if releases and acquires of global memory say so: programs that have any carry one more part
 *                        in their clocks, the actors of the whole launch ("far"), which barriers hand on like the rest;
 *   of another deed      if streams, events, graphs or the host say so.
 * Units (bulk copies) see ordinary writes of their launch by fence.proxy.async only: a third part of the clocks.
 * Two strong accesses (atomics, .relaxed and the like) never race if their scopes reach each other.
 * Not seen: races between lanes of one warp; readers beyond the two kept, unless a race with those shows it; of sums by
 * several actors all but the last; with several host threads, accesses at the very same moment. */
#ifndef SIM_GLOBAL_H
#define SIM_GLOBAL_H
#include "checks/race.h"
#include "checks/report.h"
#include "checks/stream_order.h"
#include "machine/machine.h"

enum { SIM_GLOBAL_ACTORS = 1 << 22, SIM_PLACES = 1 << 12, SIM_MAX_FAR = 1 << 17 };
/* sim_ins.order */
enum { SIM_STRONG_NEAR = 1, SIM_STRONG = 2, SIM_STRENGTH = 3, SIM_ACQUIRE = 4, SIM_RELEASE = 8, SIM_SYNC_OBJECT = 16 };

struct sim_block;
/* Accesses of lanes m, all inside the block, or (NULL) each in a block of its own. */
void sim_global_touch(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                      const uint8_t bytes[SIM_LANES], uint32_t all_bytes, enum sim_access access,
                      const struct sim_block *block);
/* A range that a unit reads or writes (sums: `strong`) in the name of an actor of the cluster. found: in earlier ranges
 * of the same work; what that and this one give. */
enum sim_found sim_global_unit(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                               uint64_t bytes, enum sim_access access, int strong, uint32_t actor, uint32_t time,
                               enum sim_found found);
/* Of a copy or fill; nothing where it is memory of the host. 1 after a finding. */
int sim_global_deed(const struct sim_deed *deed, const struct sim_stamp *stamp, const void *address, size_t bytes,
                    enum sim_access access);

/* ---- releases and acquires (global_sync.c), in programs that have them ---- */
struct sim_signals *sim_signals_open(void);
void sim_signals_close(struct sim_signals *s);
void sim_sync_fence(struct sim_warp *w);
/* Around a strong access of global memory: before it writes, after it has read. */
void sim_sync_before(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                     int joins);
void sim_sync_after(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES]);
#endif
