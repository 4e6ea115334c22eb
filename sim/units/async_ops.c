/* SPDX-License-Identifier: MIT
 * Operations under way: each goes through stages (sources read, destination written and told), one after the other.
 * Eager: all at the start. Late: when a wait needs it or no warp can run. Random: by the dice, in any order that the
 * operation itself allows. */
#include "checks/report.h"
#include "counts/counts.h"
#include "units/tensor_memory.h"

#include <stdlib.h>
#include <string.h>

static void drop(struct sim_cluster_hopper *h, uint32_t i) {
    free(h->flights[i].data), free(h->flights[i].clock);
    memmove(&h->flights[i], &h->flights[i + 1], (--h->n_flights - i) * sizeof *h->flights);
}

/* One stage of flight i. 1: it went on (and may be gone), 0: it cannot now, -1: fault. */
static int advance(struct sim_cluster *c, uint32_t i) {
    struct sim_cluster_hopper *h = c->hopper;
    struct sim_flight *f = &h->flights[i];
    struct sim_warp *w = f->w;
    if (w->counts) sim_time_landing(w, f->end);
    int r = f->step(f);
    if (w->counts) sim_time_landing(w, 0);
    if (r < 1) return r;
    c->changes++;
    if (++f->stage == f->stages) drop(h, i);
    return 1;
}

/* All stages of flight i, or up to the reading of its sources. */
static int finish(struct sim_cluster *c, uint32_t i, int read_only) {
    struct sim_cluster_hopper *h = c->hopper;
    uint64_t number = h->flights[i].number;
    while (i < h->n_flights && h->flights[i].number == number) {
        if (read_only && h->flights[i].stage > h->flights[i].read_at) return 1;
        int r = advance(c, i);
        if (r < 1) return r;
    }
    return 1;
}

int sim_flight_add(struct sim_cluster *c, struct sim_flight f) {
    struct sim_cluster_hopper *h = c->hopper;
    if (h->n_flights == h->room_flights) {
        h->room_flights = h->room_flights ? 2 * h->room_flights : 64;
        h->flights = realloc(h->flights, h->room_flights * sizeof *h->flights);
        if (!h->flights) abort();
    }
    f.number = h->flights_so_far++;
    f.stage = 0;
    if (f.w->counts) f.end = sim_time_of_flight(f.w, f.kind);
    h->flights[h->n_flights++] = f;
    if (c->launch->options.policy != SIM_EAGER) return 0;
    return finish(c, h->n_flights - 1, 0) < 0 ? -1 : 0;
}

int sim_flight_some(struct sim_cluster *c) {
    struct sim_cluster_hopper *h = c->hopper;
    for (uint32_t i = 0; i < h->n_flights;) {
        uint64_t number = h->flights[i].number;
        if (sim_random(&c->rng) % 4 == 0 && advance(c, i) < 0) return -1;
        if (i < h->n_flights && h->flights[i].number == number) i++;
    }
    return 0;
}

int sim_flight_force(struct sim_cluster *c) {
    struct sim_cluster_hopper *h = c->hopper;
    for (uint32_t i = 0; i < h->n_flights; i++) {
        int r = finish(c, i, 0);
        if (r) return r;
    }
    return 0;
}

int sim_flight_wait(struct sim_warp *w, int kind, uint32_t lane, uint32_t group, int read_only) {
    struct sim_cluster *c = w->cta->cluster;
    struct sim_cluster_hopper *h = c->hopper;
    for (uint32_t i = 0; i < h->n_flights;) {
        struct sim_flight *f = &h->flights[i];
        uint64_t number = f->number;
        int mine = kind == SIM_FLIGHT_PRODUCT ? f->w->cta == w->cta && f->w->index / 4 == w->index / 4
                                              : f->w == w && f->lane == lane;
        if (f->kind == kind && mine && (int32_t)(group - f->group) > 0 && finish(c, i, read_only) < 0) return -1;
        if (i < h->n_flights && h->flights[i].number == number) i++;
    }
    return 0;
}

void sim_flight_clear(struct sim_cluster *c) {
    struct sim_cluster_hopper *h = c->hopper;
    while (h->n_flights) drop(h, h->n_flights - 1);
}

/* The CTA's memory goes with its last warp: what others did to it must be known to one of its warps. */
static void check_end(struct sim_warp *last) {
    const struct sim_cta *cta = last->cta;
    const struct sim_cluster *c = cta->cluster;
    for (uint32_t a = 0; a < c->n_actors; a++) {
        uint32_t time = cta->hopper->remote_times[a], known = 0;
        if (!time) continue;
        for (uint32_t i = 0; i < cta->n_warps; i++)
            if (cta->warps[i].known[a] > known) known = cta->warps[i].known[a];
        if (time <= known) continue;
        sim_find(last, NULL, 1, SIM_F_BARRIER,
                 "CTA rank %u ends, but %s uses its shared memory at %s: nothing orders the two", cta->rank,
                 sim_actor_text(c, a), sim_place(c->launch->program, cta->hopper->remote_statements[a]));
        return;
    }
}

void sim_hopper_warp_ended(struct sim_warp *w) {
    if (!w->cta->n_live && w->cta->cluster->launch->options.races) check_end(w);
    if (!w->cta->n_live && w->cta->hopper->tensor) sim_tensor_end(w);
    const struct sim_warp_hopper *h = w->hopper;
    for (uint32_t l = 0; l < SIM_LANES; l++)
        if (h->bulk_last[l] > h->bulk_seen[l]) {
            sim_find(w, NULL, 1u << l, SIM_F_UNWAITED,
                     "ends before a bulk group has read its shared memory: no cp.async.bulk.wait_group");
            break;
        }
    sim_cluster_check(w->cta->cluster);
}

int sim_hopper_end(struct sim_cluster *c) {
    struct sim_cluster_hopper *h = c->hopper;
    while (h->n_flights) {
        struct sim_flight f = h->flights[0];
        if (f.kind == SIM_FLIGHT_BULK)
            sim_find(f.w, f.in, 1u << f.lane, SIM_F_PROTOCOL,
                     "still writes to shared memory when all warps have ended");
        if (finish(c, 0, 0) < 1) return -1;
    }
    for (uint32_t r = 0; r < c->n_ctas; r++)
        for (uint32_t i = 0; i < c->ctas[r].hopper->n_mbarriers; i++) {
            const struct sim_mbarrier *b = &c->ctas[r].hopper->mbarriers[i];
            struct sim_warp *w = &c->ctas[r].warps[0];
            if (b->live && b->tx) /* missing: no copy of it is left; negative: one that nobody expected */
                sim_find(w, &c->launch->program->ins[b->init_statement], 1, b->tx > 0 ? SIM_F_ADVICE : SIM_F_PROTOCOL,
                         "the mbarrier ends with %d bytes missing in phase %u", b->tx, b->phase);
        }
    return 0;
}
