/* SPDX-License-Identifier: MIT
 * The state machine of mbarriers. A phase completes when no arrival and no byte is missing; then the next one begins
 * with as many arrivals as were asked for. What arrivals release is kept until the phase is complete, so that waiting
 * for a phase tells nothing of the next. Offences against the protocol end the launch. */
#include "checks/report.h"
#include "counts/counts.h"
#include "units/barrier_trace.h"
#include "units/hopper.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = (1 << 20) - 1 };

uint32_t sim_mbarrier_time(const struct sim_cluster *c, const struct sim_mbarrier *b) {
    return c->hopper->barrier_times[b->actor - c->hopper->actors.barriers];
}

static uint32_t *clock_of(const struct sim_cluster *c, uint32_t **slot) {
    if (!*slot) *slot = calloc(c->n_clock, sizeof **slot);
    if (!*slot) abort();
    return *slot;
}

int sim_mbarrier_init(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                      uint32_t offset, uint32_t count) {
    struct sim_cta_hopper *h = owner->hopper;
    const struct sim_cluster *c = owner->cluster;
    const struct sim_actors *a = &c->hopper->actors;
    if (count < 1 || count > MOST) {
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL, "an mbarrier for %u arrivals: 1 to %d", count, MOST);
        return -1;
    }
    uint8_t *number = &h->index[offset / 8];
    if (*number && h->mbarriers[*number - 1].live) {
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL, "initialises an mbarrier again (first at %s) with no inval between",
                 sim_place(c->launch->program, h->mbarriers[*number - 1].init_statement));
        return -1;
    }
    if (!*number) {
        if (h->n_mbarriers == SIM_MAX_MBARRIERS) {
            sim_find(w, in, 1u << lane, SIM_F_PROTOCOL, "more than %d mbarriers in a CTA are not modelled",
                     SIM_MAX_MBARRIERS);
            return -1;
        }
        *number = (uint8_t)++h->n_mbarriers;
    }
    struct sim_mbarrier *b = &h->mbarriers[*number - 1];
    uint32_t *clock = clock_of(c, &b->clock), *done = clock_of(c, &b->done_clock);
    memset(clock, 0, c->n_clock * sizeof *clock);
    memset(done, 0, c->n_clock * sizeof *done);
    *b = (struct sim_mbarrier){.offset = offset, .live = 1, .observed = 1, .expected = count, .pending = count};
    b->clock = clock, b->done_clock = done;
    b->actor = a->barriers + owner->rank * a->barriers_per_cta + (*number - 1u) % a->barriers_per_cta;
    b->init_actor = w->actor, b->init_time = w->known[w->actor], b->init_statement = in->statement;
    b->init_cluster_phase = c->hopper->cluster_phase;
    memset(owner->shared + offset, 0xb0, 8);
    sim_trace_mbarrier(w, in, 1u << lane, "init", owner, b, count);
    if (c->launch->options.races) {
        sim_shared_touch(w, in, owner, lane, offset, 8, SIM_STORE);
        sim_mark_barrier(owner, offset, sim_record(b->init_time, w->actor, in->statement, 0));
    }
    return 0;
}

int sim_mbarrier_inval(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                       uint32_t offset) {
    struct sim_mbarrier *b = sim_mbarrier_at(w, in, lane, owner, offset, 0);
    if (!b) return -1;
    b->live = 0;
    memset(owner->shared + offset, 0xfb, 8);
    sim_mark_barrier(owner, offset, 0);
    return 0;
}

/* The init must be ordered before the use: by a barrier, for units also by a fence, for other CTAs by the cluster's
 * barrier, where fence.mbarrier_init makes up for a relaxed arrival (PTX ISA, "mbarrier.init", "fence.mbarrier_init"). */
enum visible { VISIBLE, UNFENCED, UNORDERED };
static enum visible visible(const struct sim_warp *w, const struct sim_mbarrier *b, int async) {
    const int ordered = b->init_actor == w->actor || b->init_time <= w->known[b->init_actor],
              met = b->init_cluster_phase != w->cta->cluster->hopper->cluster_phase;
    if (ordered || (met && b->fenced))
        return !async || b->fenced || b->init_time <= sim_view(w)[b->init_actor] ? VISIBLE : UNFENCED;
    return met ? UNFENCED : UNORDERED;
}

struct sim_mbarrier *sim_mbarrier_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                                     uint32_t offset, int async) {
    struct sim_cta_hopper *h = owner->hopper;
    uint8_t number = offset % 8 ? 0 : h->index[offset / 8];
    struct sim_mbarrier *b = number ? &h->mbarriers[number - 1] : NULL;
    if (!b || !b->live) {
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL, "%s at shared byte %u of CTA rank %u",
                 b ? "an mbarrier that is no longer valid" : "no mbarrier was initialised", offset, owner->rank);
        return NULL;
    }
    const enum visible seen = w->cta->cluster->launch->options.races ? visible(w, b, async) : VISIBLE;
    if (seen != VISIBLE) {
        const char *place = sim_place(w->cta->cluster->launch->program, b->init_statement);
        if (seen == UNORDERED)
            sim_find(w, in, 1u << lane, SIM_F_PROTOCOL,
                     "the mbarrier at shared byte %u of CTA rank %u was initialised at %s, with no %s between", offset,
                     owner->rank, place, async ? "fence (mbarrier_init or proxy.async) and barrier" : "barrier");
        else
            sim_find(w, in, 1u << lane, SIM_F_PROXY,
                     "only a fence is missing: the mbarrier at shared byte %u of CTA rank %u was initialised at %s, "
                     "with no fence (mbarrier_init or proxy.async) before the barrier",
                     offset, owner->rank, place);
        b->fenced = 1, b->init_time = 0; /* once is enough */
    }
    return b;
}

static void complete(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, const struct sim_cta *owner,
                     struct sim_mbarrier *b) {
    struct sim_cluster *c = w->cta->cluster;
    if (b->pending || b->tx) return;
    if (b->under_way)
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL,
                 "phase %u of the mbarrier at shared byte %u ends while %u bytes of copies for it are under way: fewer "
                 "were expected",
                 b->phase, b->offset, b->under_way);
    uint32_t *time = &c->hopper->barrier_times[b->actor - c->hopper->actors.barriers];
    memcpy(b->done_clock, b->clock, c->n_clock * sizeof *b->clock);
    b->done_time = (*time)++;
    b->phase++;
    b->over = b->latest, b->latest = 0;
    b->pending = b->expected;
    b->observed = 0;
    c->changes++;
    sim_trace_mbarrier(w, in, 1u << lane, "phase over", owner, b, b->phase - 1);
}

int sim_mbarrier_arrive(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                        struct sim_mbarrier *b, uint32_t count, const uint32_t *clock) {
    struct sim_cluster *c = owner->cluster;
    if (!b->observed && c->launch->options.races) {
        sim_find(w, in, 1u << lane, SIM_F_ADVICE,
                 "arrives at the mbarrier at shared byte %u in phase %u, whose phase before nobody has waited for",
                 b->offset, b->phase);
        b->observed = 1;
    }
    if (count > b->pending) {
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL,
                 "%u arrivals at the mbarrier at shared byte %u of CTA rank %u, where phase %u misses %u of %u", count,
                 b->offset, owner->rank, b->phase, b->pending, b->expected);
        return -1;
    }
    if (clock) sim_clock_join(b->clock, clock, c->n_clock);
    b->pending -= count;
    c->changes++;
    if (w->counts) sim_time_came(w, &b->latest, owner != w->cta);
    sim_trace_mbarrier(w, in, 1u << lane, "arrive", owner, b, count);
    complete(w, in, lane, owner, b);
    return 0;
}

int sim_mbarrier_expect(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                        struct sim_mbarrier *b, int32_t bytes) {
    int64_t tx = (int64_t)b->tx + bytes;
    if (tx > MOST || tx < -MOST) {
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL,
                 "the mbarrier at shared byte %u of CTA rank %u would miss %lld bytes: at most %d", b->offset,
                 owner->rank, (long long)tx, MOST);
        return -1;
    }
    b->tx = (int32_t)tx;
    if (w->counts && bytes < 0) sim_time_came(w, &b->latest, owner != w->cta);
    w->cta->cluster->changes++;
    sim_trace_mbarrier(w, in, 1u << lane, bytes < 0 ? "landed" : "expect", owner, b,
                       bytes < 0 ? -(int64_t)bytes : bytes);
    if (bytes <= 0) complete(w, in, lane, owner, b);
    return 0;
}
