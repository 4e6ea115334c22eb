/* SPDX-License-Identifier: MIT
 * Releases and acquires of global memory. A release (or a strong write behind a fence) leaves at its address what the
 * warp knows of all actors of the launch; an acquire (or a fence behind a strong read) takes it. Atomics join what is
 * there, so that whoever reads the last of several has waited for all. Sums of floats are nobody's flag: they leave
 * nothing. */
#include "checks/global.h"
#include "checks/report.h"
#include "decode/decode.h"

#include <stdlib.h>
#include <string.h>

struct object { /* an address with what was released there */
    uint64_t address;
    uint32_t *clock;
};
struct sim_signals {
    pthread_mutex_t lock;
    struct object *objects;
    uint32_t n, room; /* a hash table */
};

struct sim_signals *sim_signals_open(void) {
    struct sim_signals *s = calloc(1, sizeof *s);
    if (!s || pthread_mutex_init(&s->lock, NULL)) abort();
    return s;
}
void sim_signals_close(struct sim_signals *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->room; i++) free(s->objects[i].clock);
    free(s->objects);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct object *slot_of(struct object *objects, uint32_t room, uint64_t address) {
    uint32_t i = (uint32_t)((address >> 2) * UINT64_C(0x9e3779b97f4a7c15) >> 40) & (room - 1);
    while (objects[i].clock && objects[i].address != address) i = (i + 1) & (room - 1);
    return &objects[i];
}
/* Under the lock. With `n` 0: NULL if there is none. */
static struct object *object_at(struct sim_signals *s, uint64_t address, uint32_t n) {
    if (!n) {
        struct object *o = s->room ? slot_of(s->objects, s->room, address) : NULL;
        return o && o->clock ? o : NULL;
    }
    if (2 * s->n >= s->room) {
        uint32_t room = s->room ? 2 * s->room : 64;
        struct object *objects = calloc(room, sizeof *objects);
        if (!objects) abort();
        for (uint32_t i = 0; i < s->room; i++)
            if (s->objects[i].clock) *slot_of(objects, room, s->objects[i].address) = s->objects[i];
        free(s->objects);
        s->objects = objects, s->room = room;
    }
    struct object *o = slot_of(s->objects, s->room, address);
    if (o->clock) return o;
    o->address = address;
    o->clock = calloc(n, sizeof *o->clock);
    if (!o->clock) abort();
    s->n++;
    return o;
}

/* The cluster's own actors stand in the first part of its clocks, those of the launch in the far part. */
static uint32_t own_at(const struct sim_cluster *c) { return c->first_actor - c->launch->deed->first; }
static void take(struct sim_warp *w, const uint32_t *clock) {
    const struct sim_cluster *c = w->cta->cluster;
    sim_clock_join(w->known + c->far_at, clock, c->n_far);
    sim_clock_join(w->known, clock + own_at(c), c->n_actors);
}

void sim_sync_fence(struct sim_warp *w) {
    const struct sim_cluster *c = w->cta->cluster;
    if (!c->n_far) return;
    if (w->seen_some) {
        take(w, w->seen);
        memset(w->seen, 0, c->n_far * sizeof *w->seen);
        w->seen_some = 0;
    }
    memcpy(w->released, w->known + c->far_at, c->n_far * sizeof *w->released);
    sim_clock_join(w->released + own_at(c), w->known, c->n_actors);
    w->fenced = 1;
    sim_clock_tick(w);
}

void sim_sync_before(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                     int joins) {
    const struct sim_cluster *c = w->cta->cluster;
    struct sim_signals *s = c->launch->signals;
    if (!c->n_far) return;
    if (in->order & SIM_RELEASE) sim_sync_fence(w);
    if (!w->fenced) return;
    pthread_mutex_lock(&s->lock);
    EACH_OF(m) {
        uint32_t *clock = object_at(s, address[l], c->n_far)->clock;
        if (!joins) memset(clock, 0, c->n_far * sizeof *clock);
        sim_clock_join(clock, w->released, c->n_far);
    }
    pthread_mutex_unlock(&s->lock);
}
void sim_sync_after(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES]) {
    const struct sim_cluster *c = w->cta->cluster;
    struct sim_signals *s = c->launch->signals;
    if (!c->n_far) return;
    pthread_mutex_lock(&s->lock);
    EACH_OF(m) {
        const struct object *o = object_at(s, address[l], 0);
        if (!o) continue;
        if (in->order & SIM_ACQUIRE)
            take(w, o->clock);
        else
            sim_clock_join(w->seen, o->clock, c->n_far), w->seen_some = 1;
    }
    pthread_mutex_unlock(&s->lock);
}
