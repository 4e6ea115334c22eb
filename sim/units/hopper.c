/* SPDX-License-Identifier: MIT
 * The state of a cluster whose program uses mbarriers and asynchronous units: made once a launch, cleared for each
 * cluster of the grid. */
#include "units/tensor_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *zeroed(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}
static uint32_t groups_of(const struct sim_cluster *c) { return (c->n_warps / c->n_ctas + 3) / 4; }

uint32_t sim_count_actors(const struct sim_launch *g, struct sim_actors *a) {
    const uint32_t n_ctas = g->cluster[0] * g->cluster[1] * g->cluster[2], n_warps = n_ctas * g->n_warps;
    const uint32_t uses = g->program->uses;
    uint32_t next = n_warps;
    a->copies = next, next += uses & SIM_USES_COPY_ARRIVAL ? n_warps : 0;
    a->products = next, next += uses & SIM_USES_WGMMA ? n_ctas * ((g->n_warps + 3) / 4) : 0;
    a->bulk = next, next += uses & SIM_USES_BULK ? n_warps : 0;
    a->stores = n_warps > 256 ? a->bulk : next, next += uses & SIM_USES_BULK && n_warps <= 256 ? n_warps : 0;
    a->tensor = next, next += uses & SIM_USES_TCGEN05 ? n_ctas : 0;
    a->lanes = next, next += uses & SIM_USES_TCGEN05 ? n_warps : 0;
    a->barriers = next;
    uint32_t room = (SIM_MAX_ACTORS - next) / n_ctas; /* at least 12: 512 warps have at most 1664 actors so far */
    a->barriers_per_cta = uses & SIM_USES_MBARRIER ? room < 48 ? room : 48 : 0;
    return next + n_ctas * a->barriers_per_cta;
}

void sim_hopper_make(struct sim_cluster *c) {
    struct sim_cluster_hopper *h = c->hopper = zeroed(1, sizeof *h);
    struct sim_actors *a = &h->actors;
    sim_count_actors(c->launch, a);
    h->barrier_times = zeroed(c->n_ctas * a->barriers_per_cta, sizeof *h->barrier_times);
    h->cluster_clock = zeroed(c->n_clock, sizeof *h->cluster_clock);
    h->cluster_done = zeroed(c->n_clock, sizeof *h->cluster_done);
}
void sim_hopper_make_cta(struct sim_cta *cta) {
    const struct sim_program *p = cta->cluster->launch->program;
    cta->hopper = zeroed(1, sizeof *cta->hopper);
    cta->hopper->index = zeroed(cta->shared_bytes / 8 + 1, 1);
    cta->hopper->remote_times = zeroed(cta->cluster->n_actors, sizeof(uint32_t));
    cta->hopper->remote_statements = zeroed(cta->cluster->n_actors, sizeof(uint32_t));
    for (uint32_t i = 0; i < cta->n_warps; i++) {
        struct sim_warp_hopper *h = cta->warps[i].hopper = zeroed(1, sizeof *h);
        h->used_by = zeroed(p->n_tracked, sizeof *h->used_by);
        h->touched_at = zeroed(p->n_tracked, sizeof *h->touched_at);
    }
    if (p->uses & SIM_USES_WGMMA) sim_products_make(cta);
    if (p->uses & SIM_USES_TCGEN05) sim_tensor_make(cta);
}
void sim_hopper_free(struct sim_cluster *c) {
    sim_flight_clear(c);
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        struct sim_cta *cta = &c->ctas[r];
        for (uint32_t i = 0; i < cta->n_warps; i++) {
            free(cta->warps[i].hopper->used_by), free(cta->warps[i].hopper->touched_at);
            free(cta->warps[i].hopper);
        }
        for (uint32_t i = 0; i < SIM_MAX_MBARRIERS; i++)
            free(cta->hopper->mbarriers[i].clock), free(cta->hopper->mbarriers[i].done_clock);
        sim_products_free(cta);
        sim_tensor_free(cta);
        free(cta->hopper->remote_times), free(cta->hopper->remote_statements);
        free(cta->hopper->index), free(cta->hopper);
    }
    free(c->hopper->barrier_times), free(c->hopper->flights);
    free(c->hopper->cluster_clock), free(c->hopper->cluster_done);
    free(c->hopper);
    c->hopper = NULL;
}

/* Registers of a thread before any setmaxnreg: the even share of 65,536. Together they are the CTA's pool. */
static uint32_t even_share(const struct sim_cta *cta) {
    uint32_t share = 65536 / (cta->n_warps * SIM_LANES) / 8 * 8;
    return share > 256 ? 256 : share;
}

void sim_hopper_start(struct sim_cluster *c, uint32_t clock_base) {
    struct sim_cluster_hopper *h = c->hopper;
    uint32_t tracked = c->launch->program->n_tracked;
    sim_flight_clear(c);
    for (uint32_t i = 0; i < c->n_ctas * h->actors.barriers_per_cta; i++) h->barrier_times[i] = clock_base + 1;
    h->cluster_arrived = h->cluster_phase = 0;
    h->launch_refused = 0;
    memset(h->cluster_clock, 0, c->n_clock * sizeof *h->cluster_clock);
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        struct sim_cta *cta = &c->ctas[r];
        memset(cta->hopper->index, 0, cta->shared_bytes / 8 + 1);
        cta->hopper->n_mbarriers = 0;
        memset(cta->hopper->remote_times, 0, c->n_actors * sizeof(uint32_t));
        cta->hopper->registers_free = 0;
        for (uint32_t i = 0; i < cta->n_warps; i++) {
            struct sim_warp_hopper *w = cta->warps[i].hopper;
            uint32_t *used_by = w->used_by, *touched_at = w->touched_at;
            *w = (struct sim_warp_hopper){.used_by = used_by, .touched_at = touched_at, .fences = 1};
            w->registers = even_share(cta);
            w->copy_time = w->bulk_time = w->tensor_time = clock_base + 1;
            memset(used_by, 0, tracked * sizeof *used_by);
            for (uint32_t k = 0; k < tracked; k++) touched_at[k] = 1; /* a fence must come before the first product */
        }
        if (c->launch->program->uses & SIM_USES_WGMMA) sim_products_start(cta, clock_base);
        if (cta->hopper->tensor) sim_tensor_start(cta, clock_base);
    }
}

uint32_t sim_hopper_top(const struct sim_cluster *c, uint32_t top) {
    const struct sim_cluster_hopper *h = c->hopper;
    for (uint32_t i = 0; i < c->n_ctas * h->actors.barriers_per_cta; i++)
        if (h->barrier_times[i] > top) top = h->barrier_times[i];
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        const struct sim_cta *cta = &c->ctas[r];
        for (uint32_t i = 0; i < cta->n_warps; i++) {
            const struct sim_warp_hopper *w = cta->warps[i].hopper;
            if (w->copy_time > top) top = w->copy_time;
            if (w->bulk_time > top) top = w->bulk_time;
            if (w->tensor_time > top) top = w->tensor_time;
        }
        uint32_t products = sim_products_top(cta);
        if (products > top) top = products;
        const struct sim_tensor_memory *t = cta->hopper->tensor;
        if (t && t->base + t->n_products > top) top = t->base + t->n_products;
    }
    return top;
}

void sim_proxy_fence(struct sim_warp *w, int shared, int global) {
    struct sim_cluster *c = w->cta->cluster;
    if (!c->hopper) return;
    const struct sim_actors *a = &c->hopper->actors; /* tensor memory has a fence of its own */
    uint32_t *views[2] = {shared ? sim_view(w) : NULL, global ? sim_global_view(w) : NULL};
    for (int i = 0; i < 2; i++) {
        if (!views[i]) continue;
        sim_clock_join(views[i], w->known, a->tensor);
        sim_clock_join(views[i] + a->barriers, w->known + a->barriers, c->n_actors - a->barriers);
    }
    sim_clock_tick(w);
}

void sim_clock_acquired(const struct sim_warp *w, uint32_t *out) {
    const struct sim_cluster *c = w->cta->cluster;
    const uint32_t now = w->known[w->actor];
    memcpy(out, w->known, c->n_clock * sizeof *out);
    out[w->actor] = now - 1;
    if (out[c->view_at + w->actor] >= now) out[c->view_at + w->actor] = now - 1;
    if (out[c->global_view_at + w->actor] >= now) out[c->global_view_at + w->actor] = now - 1;
}

const char *sim_actor_text(const struct sim_cluster *c, uint32_t actor) {
    static _Thread_local char text[2][80];
    static _Thread_local unsigned next;
    char *out = text[next++ % 2];
    const struct sim_actors *a = c->hopper ? &c->hopper->actors : NULL;
    uint32_t warps = c->n_warps / c->n_ctas, unit = actor;
    const char *what = "";
    if (a && actor >= a->barriers) {
        unit = (actor - a->barriers) / (a->barriers_per_cta ? a->barriers_per_cta : 1);
        snprintf(out, sizeof text[0], "a transaction with an mbarrier of CTA rank %u", unit);
        return out;
    }
    if (a && actor >= a->lanes)
        unit = actor - a->lanes, what = "tensor memory accesses of ";
    else if (a && actor >= a->tensor)
        unit = (actor - a->tensor) * warps, what = "products of ";
    else if (a && actor >= a->stores && a->stores != a->bulk)
        unit = actor - a->stores, what = "a bulk store of ";
    else if (a && actor >= a->bulk)
        unit = actor - a->bulk, what = "a bulk group of ";
    else if (a && actor >= a->products)
        unit = 4 * (actor - a->products), warps = 4 * groups_of(c), what = "a product of the warpgroup of ";
    else if (a && actor >= a->copies)
        unit = actor - a->copies, what = "cp.async of ";
    snprintf(out, sizeof text[0], "%sCTA rank %u warp %u", what, unit / warps, unit % warps);
    return out;
}

int sim_hopper_tell(const struct sim_warp *w, char *text, size_t room) {
    const struct sim_warp_hopper *h = w->hopper;
    const struct sim_cluster *c = w->cta->cluster;
    switch (h->waits) {
    case SIM_WAITS_MBARRIER: {
        const struct sim_cta *cta = &c->ctas[h->wait_rank];
        uint8_t number = cta->hopper->index[h->wait_offset / 8];
        const struct sim_mbarrier *b = &cta->hopper->mbarriers[number ? number - 1 : 0];
        return snprintf(text, room,
                        ": mbarrier at shared byte %u of rank %u, wants the phase of parity %u, is in phase %u (parity "
                        "%u): %u of %u arrivals and %d bytes are missing",
                        h->wait_offset, h->wait_rank, h->wait_parity, b->phase, b->phase & 1, b->pending, b->expected,
                        b->tx);
    }
    case SIM_WAITS_PRODUCTS:
        return snprintf(text, room, ": a product that other warps of the warpgroup have not started");
    case SIM_WAITS_CLUSTER:
        return snprintf(text, room, ": the cluster's barrier, %u arrivals of warps or their parts have come",
                        c->hopper->cluster_arrived);
    case SIM_WAITS_REGISTERS:
        return snprintf(text, room, ": registers, %u are free for its threads", w->cta->hopper->registers_free);
    case SIM_WAITS_COLUMNS: return snprintf(text, room, ": columns of tensor memory");
    case SIM_WAITS_PEER:
        return snprintf(text, room, ": the tcgen05.alloc of CTA rank %u, which allocates with it", w->cta->rank ^ 1);
    default: return 0;
    }
}
