/* SPDX-License-Identifier: MIT
 * The instructions of mbarriers, for lanes one by one: lanes of a warp may name different barriers. Arrivals release
 * and waits acquire unless they are relaxed. Under the random policy, try_wait fails now and then though the phase is
 * over, as the machine may. */
#include "checks/report.h"
#include "counts/counts.h"
#include "machine/address.h"
#include "units/barrier_trace.h"
#include "units/hopper.h"

#include <string.h>

enum form { INIT, INVAL, EXPECT, COMPLETE, ARRIVE, ARRIVE_EXPECT, DROP, DROP_EXPECT, TEST, TRY };
enum { RELAXED = 1, PARITY = 2, NO_COMPLETE = 4, HAS_COUNT = 8, WANTS_STATE = 16 };

/* The mbarrier that a lane's address names: its CTA and offset. NULL after a finding. */
static struct sim_cta *place_of(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t address,
                                uint32_t *offset) {
    if (in->space == PTX_GENERIC) {
        if ((address & SIM_WINDOW_MASK) != SIM_WINDOW_SHARED) {
            sim_find(w, in, 1u << l, SIM_F_BOUNDS, "the address of an mbarrier is not in shared memory");
            return NULL;
        }
        address &= ~SIM_WINDOW_MASK;
    }
    struct sim_cta *owner = sim_shared_at(w, in, l, address, 8, 8, offset);
    if (owner && owner != w->cta && in->space == PTX_SHARED) {
        sim_find(w, in, 1u << l, SIM_F_BOUNDS, "an mbarrier of CTA rank %u as shared::cta of rank %u", owner->rank,
                 w->cta->rank);
        return NULL;
    }
    return owner;
}

static uint64_t state_of(const struct sim_mbarrier *b) { return (uint64_t)b->phase << 32 | b->pending; }

SIM_HEAD(barrier_step) {
    uint64_t address[SIM_LANES];
    int released = 0;
    sim_addresses(w, in, m, 1, address);
    EACH_OF(m) {
        uint32_t offset, value = in->y & HAS_COUNT ? W32(in->o[2])[l] : 1;
        struct sim_cta *owner = place_of(w, in, l, address[l], &offset);
        if (!owner) return SIM_FAULT;
        /* PTX ISA, mbarrier.init: lanes that give one object the same count do what one of them would */
        uint32_t equal = 0;
        while (in->x == INIT && equal < l &&
               !(m >> equal & 1 && address[equal] == address[l] && W32(in->o[2])[equal] == value))
            equal++;
        if (in->x == INIT && equal < l) continue;
        if (in->x == INIT || in->x == INVAL) {
            if (in->x == INIT ? sim_mbarrier_init(w, in, l, owner, offset, value)
                              : sim_mbarrier_inval(w, in, l, owner, offset))
                return SIM_FAULT;
            continue;
        }
        struct sim_mbarrier *b = sim_mbarrier_at(w, in, l, owner, offset, 0);
        if (!b) return SIM_FAULT;
        uint64_t state = state_of(b);
        uint32_t arrivals = in->x == ARRIVE_EXPECT || in->x == DROP_EXPECT ? 1 : value;
        if (in->x == EXPECT || in->x == ARRIVE_EXPECT || in->x == DROP_EXPECT) {
            if (sim_mbarrier_expect(w, in, l, owner, b, (int32_t)value)) return SIM_FAULT;
        } else if (in->x == COMPLETE) {
            if (sim_mbarrier_expect(w, in, l, owner, b, -(int32_t)value)) return SIM_FAULT;
        }
        if (in->x == DROP || in->x == DROP_EXPECT) {
            if (arrivals >= b->expected) {
                sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "drops %u of %u arrivals of an mbarrier", arrivals,
                         b->expected);
                return SIM_FAULT;
            }
            b->expected -= arrivals;
        }
        if (in->x >= ARRIVE) {
            if (w->counts && owner != w->cta) sim_count_remote_arrivals(w, 1);
            if (in->y & NO_COMPLETE && arrivals >= b->pending && !b->tx) {
                sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "a noComplete arrival completes the phase");
                return SIM_FAULT;
            }
            if (sim_mbarrier_arrive(w, in, l, owner, b, arrivals, in->y & RELAXED ? NULL : w->known)) return SIM_FAULT;
            released = 1;
        }
        if (in->y & WANTS_STATE) W64(in->o[0])[l] = state;
    }
    if (released && !(in->y & RELAXED)) sim_clock_tick(w);
    return SIM_NEXT;
}

SIM_HEAD(barrier_wait) {
    struct sim_warp_hopper *h = w->hopper;
    struct sim_cluster *c = w->cta->cluster;
    uint64_t address[SIM_LANES];
    uint32_t passed = 0, spurious = 0, polled = 0;
    double last = 0; /* phase */
    sim_addresses(w, in, m, 1, address);
    if (in->x == TRY && c->launch->options.policy == SIM_RANDOM && sim_random(&c->rng) % 8 == 0) spurious = 1;
    EACH_OF(m) {
        uint32_t offset;
        struct sim_cta *owner = place_of(w, in, l, address[l], &offset);
        struct sim_mbarrier *b = owner ? sim_mbarrier_at(w, in, l, owner, offset, 0) : NULL;
        if (!b) return SIM_FAULT;
        uint32_t wanted = in->y & PARITY ? W32(in->o[2])[l] & 1 : 0;
        int over;
        if (in->y & PARITY) {
            over = (b->phase & 1) != wanted;
        } else {
            uint32_t phase = (uint32_t)(W64(in->o[2])[l] >> 32);
            wanted = phase & 1;
            over = b->phase != phase;
            if (over && b->phase != phase + 1) {
                sim_find(w, in, 1u << l, SIM_F_PROTOCOL,
                         "waits with the state of phase %u, the mbarrier is in phase %u", phase, b->phase);
                return SIM_FAULT;
            }
        }
        if (!over || spurious) {
            if (!polled && (h->waits != SIM_WAITS_MBARRIER || h->wait_rank != owner->rank || h->wait_offset != offset))
                sim_trace_mbarrier(w, in, m, "wait", owner, b, wanted);
            polled = 1;
            h->wait_rank = owner->rank, h->wait_offset = offset, h->wait_parity = wanted;
            continue;
        }
        if (!passed) sim_trace_mbarrier(w, in, m, "pass", owner, b, wanted);
        passed |= 1u << l;
        b->observed = 1;
        if (b->over > last) last = b->over;
        if (in->y & RELAXED || !b->phase) continue;
        sim_clock_join(w->known, b->done_clock, c->n_clock);
        sim_learn(w, b->actor, b->done_time);
    }
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | passed;
    h->waits = passed == m ? SIM_WAITS_NOTHING : SIM_WAITS_MBARRIER;
    if (passed) w->passed = in->statement + 1;
    if (w->counts) sim_count_wait(w, in, m, passed != m, last);
    return passed == m || spurious ? SIM_NEXT : SIM_RETRY;
}

SIM_HEAD(pending_count) {
    EACH_OF(m) W32(in->o[0])[l] = (uint32_t)W64(in->o[1])[l];
    return SIM_NEXT;
}

static void read_space(struct sim_decoder *d, struct sim_ins *in) {
    in->space = sim_word(d, "shared::cluster")                        ? PTX_SHARED_CLUSTER
                : sim_word(d, "shared::cta") || sim_word(d, "shared") ? PTX_SHARED
                                                                      : PTX_GENERIC;
}
static void read_order(struct sim_decoder *d, struct sim_ins *in) {
    sim_word(d, "release"), sim_word(d, "acquire"), sim_word(d, "cta"), sim_word(d, "cluster");
    if (sim_word(d, "relaxed")) in->y |= RELAXED;
}

SIM_DECODER(mbarrier) {
    static const struct {
        const char *word;
        uint8_t form;
    } forms[] = {{"init", INIT},     {"inval", INVAL},      {"expect_tx", EXPECT}, {"complete_tx", COMPLETE},
                 {"arrive", ARRIVE}, {"arrive_drop", DROP}, {"test_wait", TEST},   {"try_wait", TRY}};
    d->program->uses |= SIM_USES_MBARRIER;
    if (sim_word(d, "pending_count")) {
        if (sim_last_type(d) != PTX_B64) return;
        sim_want(d, 2, 2);
        if (d->failed) return;
        in->o[0] = sim_target(d, &d->o[0], 32), in->o[1] = sim_source(d, &d->o[1], 64);
        in->exec = pending_count;
        return;
    }
    int found = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && !found; i++)
        if (!strcmp(d->part[1], forms[i].word)) in->x = forms[i].form, found = sim_word(d, forms[i].word);
    if (!found) return;
    if ((in->x == ARRIVE || in->x == DROP) && sim_word(d, "expect_tx")) in->x++;
    if ((in->x == ARRIVE || in->x == DROP) && sim_word(d, "noComplete")) in->y |= NO_COMPLETE;
    read_order(d, in);
    read_space(d, in);
    if (sim_last_type(d) != PTX_B64 || d->failed) return;
    if (in->x == TEST || in->x == TRY) {
        if (sim_word(d, "parity")) in->y |= PARITY;
        sim_want(d, 3, in->x == TRY ? 4 : 3); /* the fourth: how long the machine may suspend the thread */
        if (d->failed) return;
        in->o[0] = sim_target(d, &d->o[0], 1);
        in->o[2] = sim_source(d, &d->o[2], in->y & PARITY ? 32 : 64);
        sim_address(d, in, &d->o[1], 1);
        in->exec = barrier_wait;
        return;
    }
    uint32_t first = in->x >= ARRIVE ? 1 : 0; /* arrivals give a state */
    int no_count = in->x == INVAL, must = in->x != INVAL && in->x != ARRIVE && in->x != DROP;
    sim_want(d, first + 1 + (must ? 1u : 0u), first + 2 - (no_count ? 1u : 0u));
    if (d->failed) return;
    if (first && d->o[0].kind != PTX_SINK) {
        if (in->space == PTX_SHARED_CLUSTER) sim_refuse(d, "no state comes from shared::cluster");
        in->y |= WANTS_STATE;
        in->o[0] = sim_target(d, &d->o[0], 64);
    }
    if (d->n > first + 1) {
        in->y |= HAS_COUNT;
        in->o[2] = sim_source(d, &d->o[first + 1], 32);
    }
    sim_address(d, in, &d->o[first], 1);
    in->exec = barrier_step;
}
