/* SPDX-License-Identifier: MIT
 * The report of a deadlock: each warp's place and what it waits for, warps that are alike in one line. */
#include "checks/report.h"
#include "checks/spin.h"
#include "machine/barrier.h"
#include "machine/turns.h"
#include "units/hopper.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 4000, LINE = 640 };

/* Where the lanes of a group stand and why they do not go on. */
static void describe(const struct sim_warp *w, const struct sim_group *g, char line[LINE]) {
    const struct sim_cta *cta = w->cta;
    const struct sim_program *p = cta->cluster->launch->program;
    int n = snprintf(line, LINE, "lanes %08x at %s", g->mask, sim_place(p, p->ins[g->pc].statement));
    if (n < 0 || n >= LINE) return;
    size_t room = LINE - (size_t)n;
    if (w->apart & g->mask) {
        const uint32_t id = w->barrier_of[__builtin_ctz(w->apart & g->mask)];
        const struct sim_barrier *b = &cta->barriers[id];
        snprintf(line + n, room, ": barrier %u, %u threads of %u have come", id, b->arrived,
                 b->need ? b->need : cta->n_live * SIM_LANES);
    } else if (g->parked == 1) {
        snprintf(line + n, room, ": wants other lanes of the warp");
    } else if (w->blocked) {
        const struct sim_barrier *b = &cta->barriers[w->barrier & (SIM_BARRIERS - 1)];
        snprintf(line + n, room, ": barrier %u, %u threads of %u have come", w->barrier, b->arrived,
                 b->need ? b->need : cta->n_live * SIM_LANES);
    } else if (sim_spins(w)) {
        snprintf(line + n, room, ": polls memory that nobody is left to write");
    } else if (w->hopper) {
        sim_hopper_tell(w, line + n, room);
    }
}
/* Where warps poll memory, others' CTAs might have written it. */
static void tell_rest(const struct sim_launch *g, int spins, char *out, size_t room) {
    const uint64_t n = sim_launch_clusters(g), begun = atomic_load(&g->next_cluster);
    out[0] = 0;
    if (spins && begun < n)
        snprintf(out, room, "\n    %llu of %llu clusters had not begun: fewer run at a time here than on a device",
                 (unsigned long long)(n - begun), (unsigned long long)n);
}

void sim_tell_deadlock(struct sim_cluster *c) {
    char text[TEXT], line[LINE], before[LINE] = "";
    size_t n = 0;
    uint32_t like = 0;
    struct sim_warp *first = NULL;
    int spins = 0;
    char rest[160];
    text[0] = 0;
    for (uint32_t i = 0; i < c->n_warps; i++) {
        struct sim_warp *w = &c->ctas[i / c->ctas->n_warps].warps[i % c->ctas->n_warps];
        if (w->done) continue;
        if (!first) first = w;
        spins |= sim_spins(w);
        for (uint32_t q = 0; q < w->n_groups; q++) {
            describe(w, &w->groups[q], line);
            if (!strcmp(line, before)) {
                like++;
                continue;
            }
            if (like) n += (size_t)snprintf(text + n, TEXT - n, " (and %u warps behind it)", like);
            like = 0;
            if (n + LINE + 80 > TEXT) break;
            memcpy(before, line, LINE);
            n += (size_t)snprintf(text + n, TEXT - n, "\n    CTA rank %u warp %u %s", w->cta->rank, w->index, line);
        }
    }
    if (like) snprintf(text + n, TEXT - n, " (and %u warps behind it)", like);
    tell_rest(c->launch, spins, rest, sizeof rest);
    if (first) sim_find(first, NULL, first->live, SIM_F_DEADLOCK, "no warp can go on:%s%s", text, rest);
}
