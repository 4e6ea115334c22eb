/* SPDX-License-Identifier: MIT
 * Barriers of a CTA: bar.sync, bar.arrive, bar.red with their 16 names, and bar.warp.sync. With .aligned a warp arrives
 * as a whole; without it each thread counts, wherever the other lanes of its warp are (PTX ISA, "bar, barrier"; .red
 * waits for the warp here). Threads that have ended count as arrived where the barrier counts all threads of the CTA,
 * and with the live ones of their warp where it has a count. */
#include "machine/barrier.h"
#include "checks/race.h"
#include "checks/report.h"
#include "counts/counts.h"
#include "exec/exec.h"
#include "units/barrier_trace.h"

#include <string.h>

enum { SYNC, ARRIVE, RED_POPC, RED_AND, RED_OR };

/* A barrier of all threads opens when every live thread has come. */
static int is_complete(const struct sim_cta *c, const struct sim_barrier *b) {
    uint32_t ended = 0;
    if (b->need && b->arrived >= b->need) return 1;
    if (!b->arrivers || (!b->need && (uint32_t)__builtin_popcount(b->arrivers) < c->n_live)) return 0;
    for (uint32_t i = 0; i < c->n_warps; i++) {
        const uint32_t live = c->warps[i].live, came = b->lanes[i];
        if (!b->need && live & ~came) return 0;
        if (came && !(live & ~came)) ended += (uint32_t)__builtin_popcount(~came);
    }
    return !b->need || b->arrived + ended >= b->need;
}

void sim_barrier_check(struct sim_cta *c, uint32_t id) {
    struct sim_barrier *b = &c->barriers[id];
    uint32_t n = c->cluster->n_clock;
    if (!is_complete(c, b)) return;
    c->cluster->changes++;
    for (uint32_t i = 0; i < c->n_warps; i++)
        if ((b->waiting | b->apart) >> i & 1) {
            if (b->waiting >> i & 1) c->warps[i].blocked = 0, c->warps[i].resumed = 1;
            sim_clock_join(c->warps[i].known, b->clock, n);
        }
    b->opened = b->latest, b->latest = 0;
    b->result_and = b->lanes_and, b->result_or = b->lanes_or, b->result_sum = b->lanes_sum;
    b->arrived = b->waiting = b->arrivers = b->apart = b->lanes_or = b->lanes_sum = 0;
    memset(b->lanes, 0, sizeof b->lanes);
    b->lanes_and = 1;
    memset(b->clock, 0, n * sizeof *b->clock);
}

void sim_barrier_warp_ended(struct sim_cta *c) {
    for (uint32_t id = 0; id < SIM_BARRIERS; id++)
        if (c->barriers[id].arrivers) sim_barrier_check(c, id);
}

/* lanes: that arrive. waits: they will, as a warp that sleeps (1) or each by itself (APART). */
enum { APART = 2 };
static int arrive(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint32_t id, uint32_t count, int waits,
                  uint32_t lanes) {
    struct sim_cta *c = w->cta;
    struct sim_barrier *b = &c->barriers[id];
    uint32_t n = c->cluster->n_clock;
    if (id >= SIM_BARRIERS || count % SIM_LANES || count > 1024) {
        sim_find(w, in, m, SIM_F_BARRIER, "barrier %u with %u threads: at most 15, and a multiple of 32", id, count);
        return -1;
    }
    if (count / SIM_LANES > c->n_warps) {
        sim_find(w, in, m, SIM_F_BARRIER, "barrier %u waits for %u threads, the CTA has %u", id, count, c->n_threads);
        return -1;
    }
    if (!b->arrivers) {
        b->need = count;
        b->statement = in->statement;
    } else if (b->need != count) {
        sim_find(w, in, m, SIM_F_BARRIER, "barrier %u with %u threads, but %u came with %u (at %s)", id, count,
                 b->arrived, b->need, sim_place(c->cluster->launch->program, b->statement));
        return -1;
    }
    /* With a count, the same warp may arrive first and wait later, for instance to let itself in the first time. */
    if (!count && b->lanes[w->index] & lanes)
        sim_find(w, in, m, SIM_F_BARRIER, "the warp arrives twice at barrier %u before it opens (first at %s)", id,
                 sim_place(c->cluster->launch->program, b->statement));
    b->arrivers |= 1u << w->index;
    b->lanes[w->index] |= lanes;
    b->arrived += (uint32_t)__builtin_popcount(lanes);
    if (waits) *(waits == APART ? &b->apart : &b->waiting) |= 1u << w->index;
    sim_clock_join(b->clock, w->known, n);
    sim_clock_tick(w);
    c->cluster->changes++;
    if (w->counts) sim_time_came(w, &b->latest, 0);
    sim_trace_barrier(w, in, waits ? "sync" : "arrive", id);
    return 0;
}

SIM_HEAD(barrier) {
    uint32_t first = (uint32_t)__builtin_ctz(m), id = W32(in->o[1])[first], count = W32(in->o[2])[first];
    struct sim_barrier *b = &w->cta->barriers[id & 15];
    if (!w->resumed) {
        EACH_OF(m)
        if (W32(in->o[1])[l] != id || W32(in->o[2])[l] != count) {
            sim_find(w, in, m, SIM_F_BARRIER, "lanes of the warp name different barriers or counts");
            return SIM_FAULT;
        }
        if (arrive(w, in, m, id, in->y ? count : 0, in->x != ARRIVE, SIM_ALL)) return SIM_FAULT;
        if (in->x >= RED_POPC) {
            uint32_t p = (w->p[in->o[3]] ^ (in->z ? SIM_ALL : 0)) & m;
            b->lanes_sum += (uint32_t)__builtin_popcount(p);
            b->lanes_or |= p != 0;
            b->lanes_and &= p == m;
        }
        if (in->x != ARRIVE) {
            w->blocked = 1;
            w->barrier = id;
        }
        sim_barrier_check(w->cta, id);
        if (in->x == ARRIVE) return SIM_NEXT;
        if (w->blocked) return SIM_BLOCK;
    }
    sim_trace_barrier(w, in, "pass", id);
    w->passed = in->statement + 1;
    if (w->counts) sim_time_passed(w, (uint32_t)(in - w->cta->cluster->launch->program->ins), b->opened);
    w->resumed = 0;
    if (in->x == RED_POPC)
        EACH_OF(m) W32(in->o[0])[l] = b->result_sum;
    else if (in->x >= RED_AND)
        w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | ((in->x == RED_AND ? b->result_and : b->result_or) ? m : 0);
    return SIM_NEXT;
}
/* Without .aligned, lanes of a warp that are not together: those at one place arrive and wait by themselves. A lane
 * whose arrival is no longer among the barrier's has seen it open. */
SIM_HEAD(barrier_apart) {
    if (w->resumed || (m == w->live && w->n_groups == 1 && !w->apart)) return barrier(w, in, m);
    struct sim_cta *c = w->cta;
    uint32_t later = 0;
    for (uint32_t left = m & ~w->apart; left;) { /* lanes that name one barrier and count at a time */
        const uint32_t first = (uint32_t)__builtin_ctz(left), id = W32(in->o[1])[first],
                       count = in->y ? W32(in->o[2])[first] : 0;
        uint32_t equal = 0;
        EACH_OF(left) equal |= (uint32_t)(W32(in->o[1])[l] == id && (!in->y || W32(in->o[2])[l] == count)) << l;
        left &= ~equal;
        if (arrive(w, in, equal, id, count, in->x == ARRIVE ? 0 : APART, equal)) return SIM_FAULT;
        if (in->x != ARRIVE) {
            w->apart |= equal;
            EACH_OF(equal) w->barrier_of[l] = (uint8_t)id;
        }
        sim_barrier_check(c, id);
    }
    if (in->x == ARRIVE) return SIM_NEXT;
    EACH_OF(m) later |= c->barriers[w->barrier_of[l]].lanes[w->index] & 1u << l;
    if (later) return SIM_AGAIN;
    w->apart &= ~m;
    sim_trace_barrier(w, in, "pass", w->barrier_of[__builtin_ctz(m)]);
    w->passed = in->statement + 1;
    return SIM_NEXT;
}
SIM_HEAD(warp_sync) { /* orders the lanes' accesses: later ones have a later time */
    (void)in, (void)m;
    sim_clock_tick(w);
    return SIM_NEXT;
}

static void read_barrier(struct sim_decoder *d, struct sim_ins *in) {
    const struct ptx_operand *o = d->o;
    uint32_t left = d->n;
    in->sync = SIM_ALIGNED;
    sim_word(d, "cta");
    const int aligned = sim_word(d, "aligned") || !strcmp(d->part[0], "bar");
    if (sim_word(d, "arrive")) {
        in->x = ARRIVE;
    } else if (sim_word(d, "red")) {
        in->x = sim_word(d, "popc") ? RED_POPC : sim_word(d, "and") ? RED_AND : RED_OR;
        if (in->x == RED_OR) sim_word(d, "or");
        sim_last_type(d);
        sim_want(d, 3, 4);
        if (d->failed) return;
        in->o[0] = sim_target(d, o++, in->x == RED_POPC ? 32 : 1);
        struct ptx_operand p = d->o[d->n - 1];
        in->z = p.negated;
        p.negated = 0;
        in->o[3] = sim_source(d, &p, 1);
        left -= 2;
    } else if (sim_word(d, "sync")) {
        in->x = SYNC;
    } else {
        return;
    }
    if (left < 1 || left > 2) sim_refuse(d, "%u operands", d->n);
    if (d->failed) return;
    in->o[1] = sim_source(d, &o[0], 32);
    in->y = left == 2;
    in->o[2] = in->y ? sim_source(d, &o[1], 32) : sim_constant(d, SIM_VALUE, 0, 0);
    in->exec = barrier;
    if (!aligned && in->x <= ARRIVE) in->sync = SIM_FREE, in->exec = barrier_apart;
}
SIM_DECODER(bar) {
    if (sim_word(d, "warp")) {
        sim_word(d, "sync");
        sim_want(d, 1, 1);
        if (d->failed) return;
        in->o[5] = sim_source(d, &d->o[0], 32);
        in->sync = SIM_MEMBERS;
        in->exec = warp_sync;
        return;
    }
    read_barrier(d, in);
}
SIM_DECODER(barrier) { read_barrier(d, in); }
