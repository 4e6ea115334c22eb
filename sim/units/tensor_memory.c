/* SPDX-License-Identifier: MIT
 * Allocation and order of tensor memory, see tensor_memory.h. */
#include "units/tensor_memory.h"
#include "checks/report.h"

#include <stdlib.h>
#include <string.h>

static uint32_t n_actors(const struct sim_cluster *c) { return c->n_ctas + c->n_warps; }

void sim_tensor_make(struct sim_cta *cta) {
    struct sim_tensor_memory *t = calloc(1, sizeof *t);
    size_t n = (size_t)SIM_TM_PARTS * n_actors(cta->cluster);
    if (!t) abort();
    t->cells = calloc(SIM_TM_LANES, sizeof *t->cells);
    t->written = calloc(SIM_TM_LANES, sizeof *t->written);
    t->reads = calloc(n, sizeof *t->reads);
    t->read_statements = calloc(n, sizeof *t->read_statements);
    if (!t->cells || !t->written || !t->reads || !t->read_statements) abort();
    cta->hopper->tensor = t;
}
void sim_tensor_free(struct sim_cta *cta) {
    struct sim_tensor_memory *t = cta->hopper->tensor;
    if (!t) return;
    free(t->cells), free(t->written), free(t->reads), free(t->read_statements), free(t);
}
void sim_tensor_start(struct sim_cta *cta, uint32_t clock_base) {
    struct sim_tensor_memory *t = cta->hopper->tensor;
    memset(t->cells, 0xfb, SIM_TM_LANES * sizeof *t->cells);
    memset(t->written, 0, SIM_TM_LANES * sizeof *t->written);
    memset(t->writes, 0, sizeof t->writes);
    memset(t->reads, 0, (size_t)SIM_TM_PARTS * n_actors(cta->cluster) * sizeof *t->reads);
    memset(t->owner, 0, sizeof t->owner);
    memset(t->sizes, 0, sizeof t->sizes);
    t->relinquished = t->group = t->early_told = 0;
    t->asks = t->granted = t->taken_time = 0;
    t->base = clock_base + 1;
    t->n_products = t->n_done = 0;
    memset(t->collected, 0, sizeof t->collected);
}
int sim_tensor_end(struct sim_warp *last) {
    const struct sim_tensor_memory *t = last->cta->hopper->tensor;
    for (uint32_t i = 0; i < SIM_TM_COLUMNS; i++)
        if (t->sizes[i]) {
            sim_find(last, NULL, 1, SIM_F_PROTOCOL, "the CTA ends with %u columns of tensor memory allocated",
                     t->sizes[i]);
            return 1;
        }
    return 0;
}

/* The warp's accesses up to this time are over; `loads_from`: the oldest load that is not. */
static uint32_t waited_up_to(const struct sim_warp_hopper *h, uint32_t loads_from) {
    uint32_t upto = h->tensor_time;
    if (loads_from && loads_from - 1 < upto) upto = loads_from - 1;
    if (h->stores_from && h->stores_from - 1 < upto) upto = h->stores_from - 1;
    return upto;
}
void sim_tensor_waited(struct sim_warp *w, int loads_are_over) {
    struct sim_warp_hopper *h = w->hopper;
    if (loads_are_over) h->loads_open = 0;
    uint32_t upto = waited_up_to(h, h->loads_open), *waited = &w->known[w->cta->cluster->waited_at + w->actor];
    if (*waited < upto) *waited = upto;
    h->tensor_time++;
}
void sim_tensor_before(struct sim_warp *w) {
    struct sim_warp_hopper *h = w->hopper;
    uint32_t upto = waited_up_to(h, h->loads_from), *known = &w->known[sim_tensor_lane_actor(w)];
    if (*known < upto) *known = upto;
    h->tensor_time++;
}
void sim_tensor_after(struct sim_warp *w) {
    const struct sim_actors *a = &w->cta->cluster->hopper->actors;
    sim_clock_join(sim_view(w) + a->tensor, w->known + a->tensor, a->barriers - a->tensor);
}

int sim_tensor_offsets(struct sim_warp *w, const struct sim_ins *in, uint32_t *chunks, uint32_t n, char name) {
    for (uint32_t i = 0; i < n; i++) {
        if (chunks[i] < SIM_SHARED_BASE || chunks[i] - SIM_SHARED_BASE + 16 > w->cta->shared_bytes) {
            sim_find(w, in, 1, SIM_F_BOUNDS, "the descriptor of %c reaches shared address 0x%x, the CTA has %u bytes",
                     name, chunks[i], w->cta->shared_bytes);
            return -1;
        }
        chunks[i] -= SIM_SHARED_BASE;
    }
    return 0;
}

int sim_tensor_holds(struct sim_warp *w, const struct sim_ins *in, const struct sim_cta *owner, uint32_t column,
                     uint32_t columns) {
    struct sim_tensor_memory *t = owner->hopper->tensor;
    /* the alloc of a pair could block until both are there, but need not (PTX ISA, "Issue granularity") */
    if (owner != w->cta && w->cta->cluster->launch->options.races && !t->early_told &&
        (t->granted || t->taken_time > w->known[t->taken_actor])) {
        t->early_told = 1;
        sim_find(w, in, 1, SIM_F_UNWAITED,
                 "uses tensor memory of CTA rank %u with no barrier of the cluster behind that CTA's tcgen05.alloc",
                 owner->rank);
    }
    for (uint32_t c = column; c < column + columns; c++)
        if (c >= SIM_TM_COLUMNS || !t->owner[c]) {
            sim_find(w, in, 1, SIM_F_BOUNDS, "column %u of the tensor memory of CTA rank %u is not allocated", c,
                     owner->rank);
            return -1;
        }
    return 0;
}

/* 1 if the warp may rely on the work of that actor and time being over. The warp that starts the products needs no
 * fence after it has waited for them. */
static int is_over(const struct sim_warp *w, const struct sim_cta *owner, uint32_t actor, uint32_t time,
                   enum sim_cell_access access) {
    const struct sim_actors *a = &w->cta->cluster->hopper->actors;
    if (actor == sim_tensor_lane_actor(w)) {
        const struct sim_warp_hopper *h = w->hopper;
        return !h->stores_from || time < h->stores_from; /* own loads are in order */
    }
    if (time <= sim_view(w)[actor] || (access == SIM_CELLS_FREED && time <= w->known[actor])) return 1;
    return actor < a->lanes && owner->hopper->tensor->issuer == w->actor && time <= w->known[actor];
}

/* An access that is not over by the letter. Two different findings: nothing orders the two, or waits and barriers do,
 * and only a thread-sync fence is missing (PTX ISA, "tcgen05 memory consistency model": accesses of a warp are ordered
 * behind its wait, then before_thread_sync, what synchronises the threads, after_thread_sync). */
enum missing { MISSES_ORDER, MISSES_BEFORE, MISSES_AFTER };
static enum missing missing(const struct sim_warp *w, uint32_t actor, uint32_t time) {
    const struct sim_cluster *c = w->cta->cluster;
    const uint32_t lanes = c->hopper->actors.lanes, own = sim_tensor_lane_actor(w);
    if (actor != own && time <= w->known[actor]) return MISSES_AFTER;
    if (actor != own && actor >= lanes && time <= w->known[c->waited_at + actor - lanes]) return MISSES_BEFORE;
    return MISSES_ORDER;
}
static enum sim_found tell(struct sim_warp *w, const struct sim_ins *in, const struct sim_cta *owner, uint32_t column,
                           enum sim_cell_access access, const char *did, uint32_t actor, uint32_t time,
                           uint32_t statement, enum sim_found found) {
    const struct sim_cluster *c = w->cta->cluster;
    const enum missing what = missing(w, actor, time);
    static const char *const words[] = {"reads", "writes", "frees"};
    const char *does = words[access], *who = sim_actor_text(c, actor),
               *where = sim_place(c->launch->program, statement);
    if (what != MISSES_ORDER && found) return found;
    if (what == MISSES_AFTER)
        sim_find(w, in, SIM_ALL, SIM_F_PROXY,
                 "only a fence is missing: %s column %u of the tensor memory of CTA rank %u, %s %s at %s, with no "
                 "tcgen05.fence::after_thread_sync in between",
                 does, column, owner->rank, did, who, where);
    else if (what == MISSES_BEFORE)
        sim_find(w, in, SIM_ALL, SIM_F_PROXY,
                 "only a fence is missing: %s column %u of the tensor memory of CTA rank %u, %s %s at %s, with no "
                 "tcgen05.fence::before_thread_sync behind its wait",
                 does, column, owner->rank, did, who, where);
    else if (actor == sim_tensor_lane_actor(w))
        sim_find(w, in, SIM_ALL, SIM_F_ASYNC,
                 "nothing orders it: %s column %u of the tensor memory of CTA rank %u, %s the same warp at %s, with no "
                 "wait in between",
                 does, column, owner->rank, did, where);
    else if (actor >= c->hopper->actors.lanes)
        sim_find(w, in, SIM_ALL, SIM_F_ASYNC,
                 "nothing orders it: %s column %u of the tensor memory of CTA rank %u, %s %s at %s, with no "
                 "tcgen05.wait there and barrier behind it",
                 does, column, owner->rank, did, who, where);
    else
        sim_find(w, in, SIM_ALL, SIM_F_ASYNC,
                 "nothing orders it: %s column %u of the tensor memory of CTA rank %u, %s %s at %s, with no commit and "
                 "wait for its mbarrier in between",
                 does, column, owner->rank, did, who, where);
    return what == MISSES_ORDER ? SIM_FOUND_FAULT : SIM_FOUND_FENCE;
}

int sim_tensor_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t parts,
                     uint32_t column, uint32_t columns, uint32_t actor, uint32_t time, enum sim_cell_access access) {
    const int writes = access != SIM_CELLS_READ;
    struct sim_tensor_memory *t = owner->hopper->tensor;
    const struct sim_cluster *c = w->cta->cluster;
    const uint32_t first = c->hopper->actors.tensor, n = n_actors(c);
    if (sim_tensor_holds(w, in, owner, column, columns)) return -1;
    if (!c->launch->options.races) return 0;
    enum sim_found found = SIM_FOUND_NOTHING;
    for (uint32_t q = 0; q < SIM_TM_LANES / 16; q++)
        for (uint32_t i = column; i < column + columns && parts >> q & 1; i++) {
            uint32_t part = q * SIM_TM_COLUMNS + i;
            uint64_t was = t->writes[part];
            uint32_t *reads = t->reads + (size_t)part * n;
            const int look = was && found < SIM_FOUND_FAULT, own = SIM_ACTOR(was) == actor;
            if (look && (own ? !writes && actor == sim_tensor_lane_actor(w) : 1) &&
                !is_over(w, owner, SIM_ACTOR(was), SIM_TIME(was), access))
                found = tell(w, in, owner, i, access, "written by", SIM_ACTOR(was), SIM_TIME(was), SIM_STATEMENT(was),
                             found);
            if (look && own && !writes && SIM_TIME(was) > w->known[actor] && sim_is_product(in) &&
                sim_is_product(&c->launch->program->ins[SIM_STATEMENT(was)]))
                found = tell(w, in, owner, i, access, "as an operand, written by", actor, SIM_TIME(was),
                             SIM_STATEMENT(was), found);
            if (!writes) {
                reads[actor - first] = time;
                t->read_statements[(size_t)part * n + actor - first] = in->statement;
                continue;
            }
            for (uint32_t a = 0; a < n && found < SIM_FOUND_FAULT; a++)
                if (reads[a] && a + first != actor && !is_over(w, owner, a + first, reads[a], access))
                    found = tell(w, in, owner, i, access, "read by", a + first, reads[a],
                                 t->read_statements[(size_t)part * n + a], found);
            t->writes[part] = sim_record(time, actor, in->statement, 0);
        }
    return 0;
}
