/* SPDX-License-Identifier: MIT
 * Several launches at the same time, and several clusters of each: every seat holds a cluster, the dice give turns
 * to seats. A launch that begins early gets turns when every CTA of the one ahead has allowed it or has ended. All
 * clusters of a cooperative launch have seats from its start. */
#include "checks/report.h"
#include "machine/turns.h"

#include <stdlib.h>
#include <time.h>

enum { RESIDENT = 3 };
struct seat {
    struct sim_worker *worker;
    uint8_t busy, stuck;
};
struct room {
    struct seat *seats;
    uint32_t n;
};

static int may_begin(const struct sim_launch *g) {
    const struct sim_launch *ahead = g->behind;
    return !ahead || atomic_load(&ahead->ended) ||
           atomic_load(&ahead->n_released) == (uint64_t)ahead->grid[0] * ahead->grid[1] * ahead->grid[2];
}
static void wake(struct room *r) {
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->seats[i].stuck) r->seats[i].worker->n_chances = 0;
        r->seats[i].stuck = 0;
    }
}
static void leave(struct room *r, uint32_t i) { /* its launch ends with its last seat */
    struct sim_launch *g = r->seats[i].worker->launch;
    uint32_t others = 0;
    if (r->seats[i].busy) sim_worker_leave(r->seats[i].worker);
    sim_worker_close(r->seats[i].worker);
    r->seats[i] = r->seats[--r->n];
    for (uint32_t k = 0; k < r->n; k++) others += r->seats[k].worker->launch == g;
    if (!others) atomic_store(&g->ended, 1);
    wake(r);
}
static void give_up(struct room *r, struct sim_launch *g) {
    atomic_store(&g->failed, 1);
    for (uint32_t i = r->n; i-- > 0;)
        if (r->seats[i].worker->launch == g) leave(r, i);
}

static void turn(struct room *r, uint32_t i) {
    struct seat *s = &r->seats[i];
    struct sim_launch *g = s->worker->launch;
    if (!s->busy && g->behind && !atomic_load(&g->next_cluster)) sim_launch_begins(g);
    if (!s->busy && !sim_worker_next(s->worker)) {
        leave(r, i);
        return;
    }
    s->busy = 1;
    switch (sim_worker_turn(s->worker)) {
    case SIM_WENT_ON: wake(r); break;
    case SIM_POLLED: break;
    case SIM_STUCK: s->stuck = 1; break;
    case SIM_ENDED:
        sim_worker_leave(s->worker);
        s->busy = 0;
        wake(r);
        break;
    case SIM_BROKEN: give_up(r, s->worker->launch); break;
    }
}

static uint64_t processor_time(void) { /* of this thread, in nanoseconds */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sim_launches_run(struct sim_launch *const *launches, uint32_t n) {
    struct room r = {.n = 0};
    const uint64_t from = processor_time();
    uint64_t n_seats = 0, rng = launches[0]->options.seed * UINT64_C(0x2545f4914f6cdd1d) + launches[0]->number;
    for (uint32_t i = 0; i < n; i++) n_seats += launches[i]->together ? sim_launch_clusters(launches[i]) : RESIDENT;
    r.seats = calloc(n_seats, sizeof *r.seats);
    if (!r.seats) abort();
    for (uint32_t i = 0; i < n; i++) {
        struct sim_launch *g = launches[i];
        uint64_t clusters = sim_launch_clusters(g), want = 1 + sim_random(&rng) % RESIDENT;
        if (g->together) want = clusters;
        sim_launch_open(g);
        if (want > clusters) want = clusters;
        for (uint64_t k = 0; k < want; k++) r.seats[r.n++].worker = sim_worker_open(g);
    }
    while (r.n) {
        uint32_t start = (uint32_t)(sim_random(&rng) % r.n), i = 0, tried = 0;
        for (; tried < r.n; tried++) {
            i = (start + tried) % r.n;
            if (!r.seats[i].stuck && (r.seats[i].busy || may_begin(r.seats[i].worker->launch))) break;
        }
        if (tried < r.n) {
            turn(&r, i);
            continue;
        }
        while (!r.seats[i].stuck) i = (i + 1) % r.n; /* those that may not begin wait for one that is stuck */
        sim_tell_deadlock(&r.seats[i].worker->cluster);
        give_up(&r, r.seats[i].worker->launch);
    }
    free(r.seats);
    for (uint32_t i = 0; i < n; i++) sim_launch_close(launches[i]);
    atomic_fetch_add(&launches[0]->nanoseconds, processor_time() - from); /* of them all */
}
