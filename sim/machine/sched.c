/* SPDX-License-Identifier: MIT
 * Runs a grid: host threads take clusters in order, each runs its cluster's warps in turns that the policy and the seed
 * choose, until all have ended. Nothing is left to chance but the order of atomics between clusters. */
#include "checks/global.h"
#include "checks/report.h"
#include "checks/spin.h"
#include "counts/counts.h"
#include "exec/exec.h"
#include "machine/barrier.h"
#include "machine/device.h"
#include "machine/slab.h"
#include "machine/turns.h"
#include "units/async.h"
#include "units/hopper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *zeroed(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

/* ---- memory of a worker, made once a launch ---- */

static size_t parts_of(const struct sim_cta *cta) { return (cta->shared_bytes >> SIM_PART_SHIFT) + 1; }

static void make_cta(struct sim_cluster *c, struct sim_cta *cta, uint32_t rank) {
    const struct sim_launch *g = c->launch;
    const uint32_t any = UINT32_MAX;
    const struct sim_program *p = g->program;
    cta->cluster = c;
    cta->rank = rank;
    cta->shared_bytes = g->shared_bytes;
    cta->shared = sim_slab_take(g->shared_bytes + 16u, any);
    cta->writes = sim_slab_take((g->shared_bytes / 4 + 4u) * sizeof *cta->writes, any);
    cta->lanes = sim_slab_take(g->shared_bytes / 4 + 4u, any);
    cta->reads = zeroed(c->n_actors, sizeof *cta->reads);
    cta->readers = zeroed(c->n_actors, sizeof *cta->readers);
    cta->latest = zeroed(parts_of(cta) * c->n_warps, sizeof *cta->latest);
    cta->n_warps = g->n_warps;
    cta->n_threads = g->n_threads;
    cta->warps = zeroed(g->n_warps, sizeof *cta->warps);
    for (uint32_t b = 0; b < SIM_BARRIERS; b++) cta->barriers[b].clock = zeroed(c->n_clock, sizeof(uint32_t));
    for (uint32_t i = 0; i < g->n_warps; i++) {
        struct sim_warp *w = &cta->warps[i];
        w->cta = cta;
        w->index = i;
        w->actor = rank * g->n_warps + i;
        w->list = p->list;
        w->r = sim_slab_take((size_t)p->n_words * 4, any);
        memset(w->r, 0xfb, (size_t)p->n_words * 4); /* NaN and huge: what is used before it is set shows */
        w->p = zeroed(p->n_predicates, sizeof *w->p);
        w->known = zeroed(c->n_clock, sizeof *w->known);
        if (c->n_far) w->released = zeroed(2 * c->n_far, sizeof *w->released), w->seen = w->released + c->n_far;
        w->local = p->kernel->local_bytes ? sim_slab_take((size_t)p->kernel->local_bytes * SIM_LANES, any) : NULL;
        for (uint32_t k = 0; k < p->n_constants; k++) {
            const struct sim_constant *q = &p->constants[k];
            uint64_t v = q->value;
            if (q->kind == SIM_SPECIAL) continue; /* filled in when a CTA starts */
            if (q->kind == SIM_SHARED_ADDRESS) v += (uint64_t)rank << SIM_RANK_SHIFT;
            EACH_LANE {
                if (q->wide)
                    W64(q->word)[l] = v;
                else
                    W32(q->word)[l] = (uint32_t)v;
            }
        }
    }
}
static void make_cluster(struct sim_worker *k, struct sim_launch *g) {
    struct sim_cluster *c = &k->cluster;
    c->worker = k;
    c->launch = g;
    c->n_ctas = g->cluster[0] * g->cluster[1] * g->cluster[2];
    struct sim_actors actors;
    c->n_warps = c->n_ctas * g->n_warps;
    c->n_actors = c->n_clock = sim_count_actors(g, &actors);
    if (g->program->uses & SIM_USES_UNITS)
        c->view_at = c->n_actors, c->global_view_at = 2 * c->n_actors, c->n_clock = 3 * c->n_actors;
    if (g->program->uses & SIM_USES_SYNC && g->deed && !g->far_unknown)
        c->far_at = c->n_clock, c->n_far = g->deed->n, c->n_clock += c->n_far;
    if (g->program->uses & SIM_USES_GRID_WAIT) c->waits_at = c->n_clock++;
    if (g->program->uses & SIM_USES_TCGEN05) c->waited_at = c->n_clock, c->n_clock += c->n_warps;
    if (g->program->uses & SIM_USES_UNITS) sim_hopper_make(c);
    c->ctas = zeroed(c->n_ctas, sizeof *c->ctas);
    for (uint32_t i = 0; i < c->n_ctas; i++) {
        make_cta(c, &c->ctas[i], i);
        if (c->hopper) sim_hopper_make_cta(&c->ctas[i]);
    }
}
static void free_cluster(struct sim_cluster *c) {
    if (c->hopper) sim_hopper_free(c);
    const uint32_t top = c->worker->clock_base, junk = UINT32_MAX;
    for (uint32_t i = 0; i < c->n_ctas; i++) {
        struct sim_cta *cta = &c->ctas[i];
        for (uint32_t k = 0; k < cta->n_warps; k++) {
            struct sim_warp *w = &cta->warps[k];
            sim_slab_give(w->r, junk), sim_slab_give(w->local, junk);
            free(w->p), free(w->known), free(w->copies), free(w->released);
            sim_spin_free(w);
        }
        for (uint32_t a = 0; a < c->n_actors; a++) sim_slab_give(cta->reads[a], top);
        for (uint32_t b = 0; b < SIM_BARRIERS; b++) free(cta->barriers[b].clock);
        sim_slab_give(cta->shared, junk), sim_slab_give(cta->writes, junk), sim_slab_give(cta->lanes, junk);
        free(cta->reads), free(cta->readers), free(cta->latest), free(cta->warps);
    }
    free(c->ctas);
}

/* ---- one cluster ---- */

enum { LAST_TIME = 1 << 23 };
static void start_cluster(struct sim_worker *k, uint64_t number) {
    struct sim_cluster *c = &k->cluster;
    const struct sim_launch *g = c->launch;
    const struct sim_program *p = g->program;
    uint64_t across[3] = {g->grid[0] / g->cluster[0], g->grid[1] / g->cluster[1], g->grid[2] / g->cluster[2]};
    uint64_t position[3] = {number % across[0], number / across[0] % across[1], number / across[0] / across[1]};
    int clear = k->clock_base > LAST_TIME; /* times are kept in 24 bits */
    if (clear) k->clock_base = 0;
    if (g->deed) c->first_actor = g->deed->first + (uint32_t)number * c->n_actors;
    c->rng = g->options.seed * UINT64_C(0xd1342543de82ef95) + number * 2 + 1;
    c->changes = 1;
    k->last = c->n_warps - 1, k->live = c->n_warps;
    k->seen_changes = k->n_chances = 0;
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        struct sim_cta *cta = &c->ctas[r];
        uint32_t in[3] = {r % g->cluster[0], r / g->cluster[0] % g->cluster[1], r / g->cluster[0] / g->cluster[1]};
        for (int i = 0; i < 3; i++) cta->id[i] = (uint32_t)position[i] * g->cluster[i] + in[i];
        cta->linear = ((uint64_t)cta->id[2] * g->grid[1] + cta->id[1]) * g->grid[0] + cta->id[0];
        cta->n_live = cta->n_warps, cta->released = 0;
        memset(cta->shared, 0xfb, cta->shared_bytes);
        memset(cta->writes, 0, (cta->shared_bytes / 4 + 1) * sizeof *cta->writes);
        if (clear) memset(cta->latest, 0, parts_of(cta) * c->n_warps * sizeof *cta->latest);
        if (clear)
            for (uint32_t a = 0; a < c->n_actors; a++)
                if (cta->reads[a]) memset(cta->reads[a], 0, sim_reads_bytes(cta));
        for (uint32_t b = 0; b < SIM_BARRIERS; b++) {
            struct sim_barrier *bar = &cta->barriers[b];
            uint32_t *clock = bar->clock;
            *bar = (struct sim_barrier){.clock = clock, .lanes_and = 1};
            memset(clock, 0, c->n_clock * sizeof *clock);
        }
        for (uint32_t i = 0; i < cta->n_warps; i++) {
            struct sim_warp *w = &cta->warps[i];
            uint32_t threads = cta->n_threads - i * SIM_LANES;
            w->live = threads >= SIM_LANES ? SIM_ALL : (1u << threads) - 1;
            w->groups[0] = (struct sim_group){.mask = w->live, .pc = 0};
            w->n_groups = 1, w->current = 0, w->apart = 0;
            w->blocked = w->polling = w->resumed = w->done = 0;
            w->n_executed = 0;
            sim_spin_start(w);
            w->n_copies = 0;
            memset(w->committed, 0, sizeof w->committed);
            w->p[0] = SIM_ALL, w->p[1] = 0;
            const uint32_t n_own = c->n_actors + c->global_view_at;
            for (uint32_t a = 0; a < n_own; a++) w->known[a] = k->clock_base;
            for (uint32_t a = n_own; a < c->n_clock; a++) w->known[a] = 0;
            w->known[w->actor] = k->clock_base + 1;
            w->fenced = w->seen_some = 0;
            if (c->n_far) memset(w->seen, 0, c->n_far * sizeof *w->seen);
            if (w->local) memset(w->local, 0xfb, (size_t)p->kernel->local_bytes * SIM_LANES);
            for (uint32_t q = 0; q < p->n_constants; q++)
                if (p->constants[q].kind == SIM_SPECIAL)
                    sim_special_fill((int)p->constants[q].value, w, w->r + p->constants[q].word);
        }
    }
    if (c->hopper) sim_hopper_start(c, k->clock_base);
    sim_time_start(k);
}

static void end_warp(struct sim_warp *w) {
    struct sim_cta *cta = w->cta;
    sim_copies_drop(w);
    if (!--cta->n_live) sim_release_dependents(cta);
    if (w->hopper) sim_hopper_warp_ended(w);
    cta->cluster->changes++;
    sim_barrier_warp_ended(cta);
}

struct turn {
    struct sim_warp *warp;
    uint32_t quantum;
};
/* The next warp to run; NULL if none can. Warps whose poll failed wait until something has changed. */
static struct turn next_turn(struct sim_cluster *c, uint32_t *last) {
    const struct sim_options *o = &c->launch->options;
    uint32_t n = c->n_warps, n_warps = c->ctas[0].n_warps;
    uint32_t start = o->policy == SIM_RANDOM ? (uint32_t)(sim_random(&c->rng) % n) : (*last + 1) % n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = o->policy == SIM_LATE ? (start + n - i) % n : (start + i) % n;
        struct sim_warp *w = &c->ctas[k / n_warps].warps[k % n_warps];
        if (w->done || w->blocked || (w->polling && w->polled_at == c->changes)) continue;
        *last = k;
        return (struct turn){w, o->policy == SIM_RANDOM ? 1 + (uint32_t)(sim_random(&c->rng) % 400) : 20000};
    }
    return (struct turn){NULL, 0};
}

/* A poll in vain may stand outside of any loop: warps that poll go on some times though nothing has changed. */
enum { CHANCES = 64 };
static int another_chance(struct sim_worker *k) {
    struct sim_cluster *c = &k->cluster;
    int any = 0;
    if (k->seen_changes != c->changes) k->seen_changes = c->changes, k->n_chances = 0;
    if (k->n_chances == CHANCES) return 0;
    k->n_chances++;
    for (uint32_t i = 0; i < c->n_warps; i++) {
        struct sim_warp *w = &c->ctas[i / c->ctas->n_warps].warps[i % c->ctas->n_warps];
        if (w->done || w->blocked || !w->polling) continue;
        w->polling = 0;
        any = 1;
    }
    return any;
}

enum sim_turn sim_worker_turn(struct sim_worker *k) {
    struct sim_cluster *c = &k->cluster;
    struct sim_launch *g = c->launch;
    if (!k->live) {
        sim_time_end(k);
        return c->hopper && sim_hopper_end(c) ? SIM_BROKEN : SIM_ENDED;
    }
    struct turn t = next_turn(c, &k->last);
    if (!t.warp) {
        int forced = c->hopper ? sim_flight_force(c) : 0;
        if (forced) return forced < 0 ? SIM_BROKEN : SIM_WENT_ON;
        return another_chance(k) ? SIM_POLLED : SIM_STUCK;
    }
    struct sim_warp *w = t.warp;
    const uint64_t before = c->changes;
    enum sim_step step = sim_warp_run(w, t.quantum);
    if (step == SIM_FAULT || atomic_load_explicit(&g->failed, memory_order_relaxed)) return SIM_BROKEN;
    if (w->polling) w->polled_at = c->changes;
    int in_vain = w->polling && c->changes == before;
    if (w->done) {
        end_warp(w);
        k->live--;
    }
    if (w->n_executed > g->options.max_instructions) {
        sim_find(w, NULL, w->live, SIM_F_ENDLESS, "%" PRIu64 " instructions of one warp and no end", w->n_executed);
        return SIM_BROKEN;
    }
    if (g->options.policy == SIM_RANDOM && w->n_copies) sim_copies_step(w);
    if (g->options.policy == SIM_RANDOM && c->hopper && sim_flight_some(c)) return SIM_BROKEN;
    return in_vain && c->changes == before ? SIM_POLLED : SIM_WENT_ON;
}
/* 0, or -1 after a fault. */
static int run_cluster(struct sim_worker *k) {
    for (;;) switch (sim_worker_turn(k)) {
        case SIM_ENDED: return 0;
        case SIM_BROKEN: return -1;
        case SIM_STUCK:
            if (!sim_spin_is_for_good(k)) break;
            sim_tell_deadlock(&k->cluster);
            return -1;
        case SIM_WENT_ON: sim_spin_went_on(k); break;
        case SIM_POLLED: break;
        }
}

void sim_worker_leave(struct sim_worker *k) { /* times of the next one start behind all of this one's */
    struct sim_cluster *c = &k->cluster;
    uint64_t n = 0;
    uint32_t top = k->clock_base;
    for (uint32_t r = 0; r < c->n_ctas; r++)
        for (uint32_t i = 0; i < c->ctas[r].n_warps; i++) {
            const struct sim_warp *w = &c->ctas[r].warps[i];
            if (w->known[w->actor] > top) top = w->known[w->actor];
            n += w->n_executed;
        }
    if (c->hopper) top = sim_hopper_top(c, top);
    k->clock_base = top + 1;
    atomic_fetch_add(&c->launch->n_executed, n);
}

/* ---- the grid ---- */

static uint64_t processor_time(void) { /* of this thread, in nanoseconds */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sim_launch_clusters(const struct sim_launch *g) {
    return (uint64_t)(g->grid[0] / g->cluster[0]) * (g->grid[1] / g->cluster[1]) * (g->grid[2] / g->cluster[2]);
}
struct sim_worker *sim_worker_open(struct sim_launch *g) {
    struct sim_worker *k = zeroed(1, sizeof *k);
    k->launch = g;
    k->clock_base = sim_slab_base();
    make_cluster(k, g);
    sim_counts_open(k);
    return k;
}
void sim_worker_close(struct sim_worker *k) {
    sim_counts_close(k);
    free_cluster(&k->cluster);
    free(k);
}
int sim_worker_next(struct sim_worker *k) {
    uint64_t number = atomic_fetch_add(&k->launch->next_cluster, 1);
    if (number >= sim_launch_clusters(k->launch) || atomic_load(&k->launch->failed)) return 0;
    start_cluster(k, number);
    return 1;
}

static void *work(void *arg) {
    struct sim_launch *g = arg;
    uint64_t start = processor_time();
    struct sim_worker *k = sim_worker_open(g);
    while (sim_worker_next(k)) {
        if (run_cluster(k)) atomic_store(&g->failed, 1);
        sim_worker_leave(k);
    }
    sim_worker_close(k);
    sim_spin_leave(g);
    atomic_fetch_add(&g->nanoseconds, processor_time() - start);
    return NULL;
}

/* No cluster of it has begun yet. */
void sim_launch_begins(struct sim_launch *g) {
    if (!g->deed) return;
    g->begun = sim_when_begun(g->when);
    g->calm_from = sim_calm_from(g->begun, g->deed->first);
}

/* Its place among all that touches global memory. */
void sim_launch_open(struct sim_launch *g) {
    if (!g->options.races) return;
    const struct sim_program *p = g->program;
    struct sim_actors actors;
    struct sim_deed what = {.launch = g->number, .program = p, .n_warps = g->n_warps};
    what.per_cluster = sim_count_actors(g, &actors);
    memcpy(what.grid, g->grid, sizeof what.grid), memcpy(what.cluster, g->cluster, sizeof what.cluster);
    snprintf(what.name, sizeof what.name, "%s", p->kernel->name);
    g->deed = sim_deed_begin(&what, sim_launch_clusters(g) * what.per_cluster, g->when);
    if (!g->deed) return;
    sim_launch_begins(g);
    g->far_unknown = p->uses & SIM_USES_SYNC && g->deed->n > SIM_MAX_FAR;
    if (p->uses & SIM_USES_SYNC && !g->far_unknown) g->signals = sim_signals_open();
}

void sim_launch_close(struct sim_launch *g) {
    sim_signals_close(g->signals);
    sim_deed_end(g->deed);
}

int sim_launch_run(struct sim_launch *g) {
    pthread_t threads[64];
    uint64_t clusters = sim_launch_clusters(g);
    int n = g->options.threads, started = 0;
    if (n > 64) n = 64;
    if ((uint64_t)n > clusters) n = (int)clusters;
    sim_launch_open(g);
    g->spin.n_running = n > 1 ? (uint32_t)n : 1;
    for (; started < n - 1; started++)
        if (pthread_create(&threads[started], NULL, work, g)) break;
    for (int i = started; i < n - 1; i++) sim_spin_leave(g);
    work(g);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    sim_launch_close(g);
    return atomic_load(&g->failed);
}
