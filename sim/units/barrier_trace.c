/* SPDX-License-Identifier: MIT
 * See barrier_trace.h. Lines of one cluster stand in the order in which things happened in this run. */
#include "units/barrier_trace.h"

#include "checks/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file; /* opened by the first event */

int sim_is_traced(const struct sim_cluster *c) {
    const struct sim_options *o = &c->launch->options;
    if (!o->trace) return 0;
    for (uint32_t i = 0; i < c->n_ctas; i++)
        if (c->ctas[i].linear == o->trace_cta) return 1;
    return 0;
}

/* Under the lock. */
static int open_file(void) {
    const char *path = getenv("ATTNSIM_TRACE");
    if (!file && path) file = fopen(path, "a");
    if (!file) return 0;
    fseek(file, 0, SEEK_END);
    if (ftell(file) == 0) fputs("kernel\tlaunch\trank\twarp\tlanes\tevent\tbarrier\tphase\tmissing\tplace\n", file);
    return 1;
}

static void tell(const struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, const char *event,
                 const char *barrier, uint32_t phase, const char *missing) {
    const struct sim_launch *g = w->cta->cluster->launch;
    pthread_mutex_lock(&lock);
    if (open_file()) {
        fprintf(file, "%s\t%" PRIu64 "\t%u\t%u\t%08x\t%s\t%s\t%u\t%s\t%s\n", g->program->kernel->name, g->number,
                w->cta->rank, w->index, lanes, event, barrier, phase, missing, sim_place(g->program, in->statement));
        fflush(file);
    }
    pthread_mutex_unlock(&lock);
}

void sim_trace_mbarrier(const struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, const char *event,
                        const struct sim_cta *owner, const struct sim_mbarrier *b, int64_t amount) {
    if (!sim_is_traced(w->cta->cluster)) return;
    char words[40], barrier[40], missing[60];
    snprintf(words, sizeof words, "%s %" PRId64, event, amount);
    snprintf(barrier, sizeof barrier, "%u:%u", owner->rank, b->offset);
    snprintf(missing, sizeof missing, "%u of %u, %" PRId32 " bytes", b->pending, b->expected, b->tx);
    tell(w, in, lanes, words, barrier, b->phase, missing);
}

void sim_trace_barrier(const struct sim_warp *w, const struct sim_ins *in, const char *event, uint32_t id) {
    if (!sim_is_traced(w->cta->cluster)) return;
    const struct sim_barrier *b = &w->cta->barriers[id];
    const uint32_t need = b->need ? b->need : w->cta->n_live * SIM_LANES;
    char barrier[40], missing[60];
    snprintf(barrier, sizeof barrier, "%u:bar.%u", w->cta->rank, id);
    snprintf(missing, sizeof missing, "%u of %u", need > b->arrived ? need - b->arrived : 0, need);
    tell(w, in, w->live, event, barrier, 0, missing);
}
