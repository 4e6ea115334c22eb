/* SPDX-License-Identifier: MIT
 * A kernel's barriers as a table of events, for people who write kernels: who came when, what was still missing, which
 * phase ended. ATTNSIM_TRACE=file, one line an event, columns separated by tabs; ATTNSIM_TRACE_CTA=n chooses the CTA
 * (by its linear number, default 0) whose cluster is told. */
#ifndef SIM_BARRIER_TRACE_H
#define SIM_BARRIER_TRACE_H
#include "units/hopper.h"

/* Is the cluster told about? Costs one test of the launch's options where nothing is. */
int sim_is_traced(const struct sim_cluster *c);

/* lanes: of the warp that does it. amount: arrivals, bytes, or the parity that is waited for. */
void sim_trace_mbarrier(const struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, const char *event,
                        const struct sim_cta *owner, const struct sim_mbarrier *b, int64_t amount);
/* A named barrier of the warp's CTA. */
void sim_trace_barrier(const struct sim_warp *w, const struct sim_ins *in, const char *event, uint32_t id);
#endif
