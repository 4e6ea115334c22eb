/* SPDX-License-Identifier: MIT
 * cp.async.mbarrier.arrive: an arrival that comes when the thread's cp.async so far are complete. It tells the
 * barrier's waiters of those copies and of nothing else that the thread did. */
#include "checks/report.h"
#include "machine/address.h"
#include "units/hopper.h"

#include <stdlib.h>
#include <string.h>

struct arrivals { /* of a warp's lanes */
    uint32_t n, time;
    struct {
        struct sim_cta *owner;
        uint32_t offset, count;
    } target[SIM_LANES];
    uint32_t clock[];
};

static int arrive(struct sim_flight *f) {
    struct sim_cluster *c = f->w->cta->cluster;
    struct arrivals *a = f->data;
    sim_copies_perform(f->w, a->time);
    a->clock[c->hopper->actors.copies + f->w->actor] = a->time; /* ordinary writes: no view of units */
    for (uint32_t i = 0; i < a->n; i++) {
        struct sim_mbarrier *b = sim_mbarrier_at(f->w, f->in, f->lane, a->target[i].owner, a->target[i].offset, 0);
        if (!b || sim_mbarrier_arrive(f->w, f->in, f->lane, a->target[i].owner, b, a->target[i].count, a->clock))
            return -1;
    }
    return 1;
}

/* y: noinc */
SIM_HEAD(arrive_later) {
    uint64_t address[SIM_LANES];
    struct sim_cluster *c = w->cta->cluster;
    struct arrivals *a = calloc(1, sizeof *a + c->n_clock * sizeof *a->clock);
    if (!a) abort();
    a->time = ++w->hopper->copy_time;
    memcpy(a->clock, w->known, c->n_clock * sizeof *a->clock);
    a->clock[w->actor]--;
    sim_addresses(w, in, m, 0, address);
    EACH_OF(m) {
        uint32_t offset, i = 0;
        struct sim_cta *owner = NULL;
        if (in->space == PTX_GENERIC) address[l] &= ~SIM_WINDOW_MASK;
        owner = sim_shared_at(w, in, l, address[l], 8, 8, &offset);
        struct sim_mbarrier *b = owner ? sim_mbarrier_at(w, in, l, owner, offset, 0) : NULL;
        if (!b) {
            free(a);
            return SIM_FAULT;
        }
        if (!in->y) b->pending++; /* pending arrivals stay what they are when this one comes */
        while (i < a->n && (a->target[i].owner != owner || a->target[i].offset != offset)) i++;
        if (i == a->n) a->n++;
        a->target[i].owner = owner, a->target[i].offset = offset, a->target[i].count++;
    }
    sim_copies_hand_over(w, m, c->hopper->actors.copies + w->actor, a->time);
    struct sim_flight f = {.in = in,
                           .w = w,
                           .lane = (uint32_t)__builtin_ctz(m),
                           .kind = SIM_FLIGHT_COPIES,
                           .stages = 1,
                           .step = arrive,
                           .data = a};
    return sim_flight_add(c, f) < 0 ? SIM_FAULT : SIM_NEXT;
}

void sim_decode_copy_arrival(struct sim_decoder *d, struct sim_ins *in) {
    d->program->uses |= SIM_USES_COPY_ARRIVAL | SIM_USES_MBARRIER;
    if (!sim_word(d, "arrive")) return;
    in->y = (uint8_t)sim_word(d, "noinc");
    in->space = sim_word(d, "shared::cta") || sim_word(d, "shared") ? PTX_SHARED : PTX_GENERIC;
    if (sim_last_type(d) != PTX_B64) return;
    sim_want(d, 1, 1);
    if (d->failed) return;
    sim_address(d, in, &d->o[0], 0);
    in->exec = arrive_later;
}
