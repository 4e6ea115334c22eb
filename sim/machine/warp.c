/* SPDX-License-Identifier: MIT
 * One warp's instruction loop. While all live lanes are at one place there is one group of lanes; a branch that parts
 * them makes groups, of which the one that is furthest back runs first, so that they meet again where their paths do.
 * A group that stands at an instruction for more lanes than it has is parked until those arrive. */
#include "checks/report.h"
#include "counts/counts.h"
#include "exec/exec.h"
#include "machine/barrier.h"
#include "units/hopper.h"

/* Joins groups at the same place. The current group keeps running. */
static void merge(struct sim_warp *w) {
    struct sim_group *g = w->groups;
    for (uint32_t i = 0; i < w->n_groups; i++)
        for (uint32_t k = i + 1; k < w->n_groups;) {
            if (g[i].pc != g[k].pc) {
                k++;
                continue;
            }
            g[i].mask |= g[k].mask;
            g[i].parked = 0; /* looks again whether all are here */
            if (w->current == k) w->current = i;
            uint32_t last = --w->n_groups;
            if (w->current == last) w->current = k;
            g[k] = g[last];
        }
}

/* The group furthest back that is not parked; 0 if all are. */
static int choose(struct sim_warp *w) {
    uint32_t best = w->n_groups;
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (!w->groups[i].parked && (best == w->n_groups || w->groups[i].pc < w->groups[best].pc)) best = i;
    if (best == w->n_groups) return 0;
    w->current = best;
    return 1;
}
static void rotate(struct sim_warp *w) { /* another group's turn: the current one may wait for it */
    for (uint32_t i = 1; i < w->n_groups; i++) {
        uint32_t k = (w->current + i) % w->n_groups;
        if (!w->groups[k].parked) {
            w->current = k;
            return;
        }
    }
}

static void jump(struct sim_warp *w, uint32_t target) {
    struct sim_group *g = &w->groups[w->current];
    uint32_t taken = w->taken & g->mask, rest = g->mask & ~taken;
    if (!rest) {
        g->pc = target;
    } else {
        w->groups[w->n_groups++] = (struct sim_group){.mask = taken, .pc = target};
        g->mask = rest;
        g->pc++;
    }
}

/* Lanes end. 0 if the group goes on behind the exit with others, 1 if another group must be chosen. */
static int end_lanes(struct sim_warp *w) {
    struct sim_group *g = &w->groups[w->current];
    w->live &= ~w->taken;
    for (uint32_t i = 0; i < w->n_groups; i++) w->groups[i].parked = 0; /* fewer lanes may suffice now */
    g->mask &= ~w->taken;
    if (g->mask) {
        g->pc++;
        return 0;
    }
    *g = w->groups[--w->n_groups];
    return 1;
}
/* What other threads wait for may be complete now. */
static void tell_lanes_ended(struct sim_warp *w) {
    sim_barrier_warp_ended(w->cta);
    if (w->hopper) sim_cluster_check(w->cta->cluster);
}

/* No group can go on. Those that are asleep look again at the warp's next turn. */
static enum sim_step stand(struct sim_warp *w) {
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (w->groups[i].parked == SIM_ASLEEP) {
            w->current = i;
            w->polling = 1;
            return SIM_AGAIN;
        }
    w->blocked = 1; /* for good, unless nothing: the deadlock report tells */
    return SIM_BLOCK;
}

/* 1 if lanes are missing that must take part. */
static int must_park(const struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    uint32_t need = in->sync == SIM_ALIGNED ? w->live : 0;
    if (in->sync == SIM_MEMBERS) {
        EACH_OF(m) need |= W32(in->o[5])[l] & w->live;
    }
    return (need & ~m) != 0;
}

enum sim_step sim_warp_run(struct sim_warp *w, uint32_t quantum) {
    const struct sim_ins *code = w->cta->cluster->launch->program->ins;
    enum sim_step step = SIM_NEXT;
    uint32_t left = quantum;
    w->polling = 0;
    for (uint32_t i = 0; i < w->n_groups && w->n_groups > 1; i++)
        if (w->groups[i].parked == SIM_ASLEEP) w->groups[i].parked = 0;
    while (left) {
        struct sim_group *g = &w->groups[w->current];
        const struct sim_ins *in = &code[g->pc];
        uint32_t m = g->mask & (w->p[in->guard] ^ in->flip);
        left--;
        if (!m) {
            if (w->counts) sim_count_issued(w, in, 0, g->mask, SIM_NEXT);
            g->pc++;
            if (w->n_groups == 1) continue;
            merge(w);
            if (!choose(w)) break;
            continue;
        }
        if (in->sync && w->n_groups > 1 && must_park(w, in, m)) {
            g->parked = 1;
            if (!choose(w)) {
                step = stand(w);
                break;
            }
            continue;
        }
        if (in->sync == SIM_ALIGNED && m != w->live) {
            sim_find(w, in, m, SIM_F_DIVERGENCE, "lanes %08x of the warp execute it, the live ones are %08x", m,
                     w->live);
            step = SIM_FAULT;
            break;
        }
        if (in->n_touch && sim_watch(w, in, m)) {
            step = SIM_FAULT;
            break;
        }
        step = in->exec(w, in, m);
        if (w->counts) sim_count_issued(w, in, m, g->mask, step);
        if (step == SIM_NEXT) {
            g->pc++;
            if (w->n_groups == 1) continue;
        } else if (step == SIM_JUMP) {
            jump(w, in->target);
            if (w->n_groups == 1) continue;
        } else if (step == SIM_EXIT) {
            if (end_lanes(w) && !w->live) {
                w->done = 1;
                break;
            }
            tell_lanes_ended(w);
        } else if (step == SIM_AGAIN) {
            g->parked = SIM_ASLEEP;
        } else if (step == SIM_RETRY) {
            g->pc++;
            if (w->n_groups == 1) {
                w->polling = 1;
                break;
            }
            g->parked = SIM_ASLEEP; /* the others go on: what it waits for may be theirs to do */
        } else {
            break;
        }
        merge(w);
        if (!choose(w)) {
            step = stand(w);
            break;
        }
    }
    w->n_executed += quantum - left;
    if (!left && w->n_groups > 1) rotate(w);
    return step;
}
