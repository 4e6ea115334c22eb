/* SPDX-License-Identifier: MIT
 * From addresses of lanes to bytes of the host, with every check of bounds, alignment, life and order on the way. */
#ifndef SIM_ADDRESS_H
#define SIM_ADDRESS_H
#include "checks/race.h"
#include "exec/exec.h"

/* Addresses that lanes m compute: register o[slot] plus imm. */
void sim_addresses(const struct sim_warp *w, const struct sim_ins *in, uint32_t m, unsigned slot,
                   uint64_t address[SIM_LANES]);
/* Bytes of the host for lanes m. 0, or -1 after a finding that ends the launch. */
int sim_resolve(struct sim_warp *w, const struct sim_ins *in, uint32_t m, enum ptx_space space,
                const uint64_t address[SIM_LANES], uint32_t bytes, enum sim_access access, uint8_t *out[SIM_LANES]);
/* Offsets of lanes m in the warp's own CTA; 0 if not all lie in it, aligned to their size. */
int sim_own_offsets(const struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes,
                    uint32_t offset[SIM_LANES]);
/* The live block that holds what lanes m reach, aligned to its size, or NULL: some lane may be out of it. */
const struct sim_block *sim_block_of_lanes(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES],
                                           uint32_t bytes);
/* One address of shared memory: its CTA and offset. NULL after a finding. */
/* sim_shared_at also notes a visit of another CTA's memory by the warp, which the CTA's end must come after;
 * sim_shared_named does not: a copy is told by its mbarrier, not by its issuer. */
struct sim_cta *sim_shared_named(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                                 uint32_t bytes, uint32_t align, uint32_t *offset);
struct sim_cta *sim_shared_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                              uint32_t bytes, uint32_t align, uint32_t *offset);
/* One range of global memory. 0 or -1 after a finding. */
int sim_global_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address, uint64_t bytes,
                  uint32_t align, const char *does);
/* The live block that holds all of it, or NULL. */
const struct sim_block *sim_block_of(struct sim_worker *k, uint64_t address, uint64_t bytes);
#endif
