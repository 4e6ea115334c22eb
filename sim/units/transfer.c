/* SPDX-License-Identifier: MIT
 * Bulk copies: their checks when they start, and their two stages. Loads and copies in the cluster tell an mbarrier in
 * each CTA that they write to; stores belong to the thread's bulk group. */
#include "units/transfer.h"
#include "checks/global.h"
#include "checks/report.h"
#include "counts/counts.h"
#include "machine/address.h"

#include <stdlib.h>
#include <string.h>

enum { NOBODY = 0xfb }; /* in gaps, whose contents nobody states */

struct sim_transfer *sim_transfer_new(uint32_t n_pieces, uint32_t bytes) {
    size_t head = (sizeof(struct sim_transfer) + 15) / 16 * 16, list = n_pieces * sizeof(struct sim_piece);
    struct sim_transfer *t = calloc(1, head + list + bytes + 16);
    if (!t) abort();
    t->pieces = (struct sim_piece *)(void *)((uint8_t *)t + head);
    t->buffer = (uint8_t *)t + head + list;
    t->bytes = bytes;
    return t;
}

/* Where a piece stands in shared memory: the swizzle turns bits of the whole address. */
static uint32_t place(const struct sim_transfer *t, uint32_t base, const struct sim_piece *p) {
    return sim_swizzle(base + SIM_SHARED_BASE + p->shared, t->swizzle) - SIM_SHARED_BASE;
}

/* The CTA whose mbarrier is told of what rank r gets. PTX ISA, cp.async.bulk.tensor, .cta_group::2: "the destination CTA
 * or its peer-CTA based on CTAs %cluster_ctarank parity of shared memory where the mbarrier object mbar resides". */
static struct sim_cta *keeper_of(const struct sim_cluster *c, const struct sim_transfer *t, uint32_t r) {
    return &c->ctas[t->teller ? (r & ~1u) | (t->teller - 1) : r];
}
static void move_piece(const struct sim_transfer *t, uint32_t offset, uint8_t *to, const uint8_t *from, uint32_t n) {
    if (!sim_is_flipped(offset + SIM_SHARED_BASE, t->swizzle)) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from + 8, 8);
    memcpy(to + 8, from, 8);
}

static void read_source(const struct sim_flight *f, struct sim_transfer *t) {
    uint8_t *to = t->buffer;
    const uint8_t *shared = f->w->cta->shared;
    for (uint32_t i = 0; i < t->n_pieces; i++, to += t->pieces[i - 1].n) {
        const struct sim_piece *p = &t->pieces[i];
        if (t->kind != SIM_TO_SHARED) {
            const uint32_t offset = t->kind == SIM_TO_GLOBAL ? place(t, t->from, p) : t->from + p->shared;
            move_piece(t, offset, to, shared + offset, p->n);
            continue;
        }
        for (uint32_t b = 0; b < p->n; b += 2) memcpy(to + b, &t->fill, p->n - b < 2 ? 1 : 2);
        memcpy(to + p->skip, (const uint8_t *)(uintptr_t)p->global, p->valid);
        if (t->gap) memset(to + t->gap, NOBODY, p->n - t->gap);
    }
}

static void combine(const struct sim_transfer *t, uint8_t *to, const uint8_t *from, uint32_t n) {
    uint32_t size = ptx_type_bytes((enum ptx_type)t->type);
    struct sim_ins like = {.x = (uint8_t)(t->reduce - 1), .type = (uint8_t)t->type, .bytes = (uint8_t)size};
    for (uint32_t b = 0; b < n; b += size) {
        uint64_t value = 0;
        memcpy(&value, from + b, size);
        sim_exchange(to + b, &like, value, 0, 0);
    }
}

static int write_shared(struct sim_flight *f, struct sim_transfer *t) {
    struct sim_cluster *c = f->w->cta->cluster;
    const uint32_t n = f->clock ? c->n_clock : 0;
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        if (!(t->ranks >> r & 1)) continue;
        struct sim_cta *cta = &c->ctas[r];
        const uint8_t *from = t->buffer;
        for (uint32_t i = 0; i < t->n_pieces; i++, from += t->pieces[i - 1].n) {
            const uint32_t offset = place(t, t->to, &t->pieces[i]);
            if (t->reduce)
                combine(t, cta->shared + offset, from, t->pieces[i].n);
            else
                move_piece(t, offset, cta->shared + offset, from, t->pieces[i].n);
        }
        struct sim_cta *keeper = keeper_of(c, t, r);
        struct sim_mbarrier *b = sim_mbarrier_at(f->w, f->in, f->lane, keeper, t->barrier, 0);
        if (!b) return -1;
        b->under_way -= t->bytes;
        sim_clock_join(b->clock, f->clock, n);
        if (sim_mbarrier_expect(f->w, f->in, f->lane, keeper, b, -(int32_t)t->bytes)) return -1;
    }
    return 1;
}

static int step(struct sim_flight *f) {
    struct sim_transfer *t = f->data;
    if (f->stage == 0) {
        if (t->kind < SIM_FROM_REGISTERS) read_source(f, t);
        return 1;
    }
    if (t->kind != SIM_TO_GLOBAL) return write_shared(f, t);
    const uint8_t *from = t->buffer;
    for (uint32_t i = 0; i < t->n_pieces; i++, from += t->pieces[i - 1].n) {
        const struct sim_piece *p = &t->pieces[i];
        uint8_t *to = (uint8_t *)(uintptr_t)p->global;
        if (t->reduce)
            combine(t, to, from + p->skip, p->valid);
        else
            memcpy(to, from + p->skip, p->valid);
    }
    return 1;
}

static int check_global(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, const struct sim_transfer *t) {
    if (t->kind != SIM_TO_SHARED && t->kind != SIM_TO_GLOBAL) return 0;
    const char *does = t->kind == SIM_TO_SHARED ? "copies" : "writes";
    for (uint32_t i = 0; i < t->n_pieces;) { /* neighbours at once */
        const struct sim_piece *p = &t->pieces[i];
        uint64_t bytes = p->valid;
        for (i++; i < t->n_pieces && p->valid && t->pieces[i].global == p->global + bytes; i++)
            bytes += t->pieces[i].valid;
        if (bytes && sim_global_at(w, in, lane, p->global, bytes, 1, does)) return -1;
    }
    return 0;
}

static int check_shared_range(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, const struct sim_transfer *t,
                              uint32_t base) {
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        uint32_t offset = t->kind >= SIM_FROM_REGISTERS ? base : place(t, base, &t->pieces[i]);
        if (offset <= w->cta->shared_bytes && t->pieces[i].n <= w->cta->shared_bytes - offset) continue;
        sim_find(w, in, 1u << lane, SIM_F_BOUNDS, "the copy reaches shared byte %u, the CTA has %u",
                 offset + t->pieces[i].n, w->cta->shared_bytes);
        return -1;
    }
    return 0;
}

/* Order on global memory: loads are told with their mbarrier, stores with their group. */
static void touch_global(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, const struct sim_transfer *t,
                         uint32_t actor, uint32_t time) {
    const enum sim_access access = t->kind == SIM_TO_GLOBAL ? SIM_STORE : SIM_LOAD;
    enum sim_found found = SIM_FOUND_NOTHING;
    for (uint32_t i = 0; i < t->n_pieces && found < SIM_FOUND_FAULT;) { /* neighbours at once */
        const struct sim_piece *p = &t->pieces[i];
        uint64_t bytes = p->valid;
        for (i++; i < t->n_pieces && p->valid && t->pieces[i].global == p->global + bytes; i++)
            bytes += t->pieces[i].valid;
        found = sim_global_unit(w, in, lane, p->global, bytes, access, t->reduce != 0, actor, time, found);
    }
}

/* A copy from another CTA is over for this one when it has waited for the transaction. */
static void note_copy(const struct sim_warp *w, const struct sim_ins *in, struct sim_cta *cta,
                      const struct sim_mbarrier *b) {
    if (cta == w->cta) return;
    cta->hopper->remote_times[b->actor] = sim_mbarrier_time(cta->cluster, b);
    cta->hopper->remote_statements[b->actor] = in->statement;
}

int sim_transfer_start(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_transfer *t) {
    struct sim_cluster *c = w->cta->cluster;
    struct sim_warp_hopper *h = w->hopper;
    const int races = c->launch->options.races;
    struct sim_flight f = {
        .in = in, .w = w, .lane = lane, .kind = SIM_FLIGHT_BULK, .stages = 2, .step = step, .data = t};
    int bad = check_global(w, in, lane, t);
    uint32_t reader = c->hopper->actors.bulk + w->actor, read_time = h->bulk_time;
    if (t->kind == SIM_TO_GLOBAL) {
        f.kind = SIM_FLIGHT_BULK_GROUP;
        f.group = h->bulk_committed[lane];
        h->bulk_last[lane] = f.group + 1;
        bad = bad || check_shared_range(w, in, lane, t, t->from);
    }
    for (uint32_t r = 0; r < c->n_ctas && !bad; r++) {
        if (!(t->ranks >> r & 1)) continue;
        struct sim_cta *cta = &c->ctas[r], *keeper = keeper_of(c, t, r);
        struct sim_mbarrier *b = sim_mbarrier_at(w, in, lane, keeper, t->barrier, 1);
        bad = !b || check_shared_range(w, in, lane, t, t->to);
        if (bad) break;
        b->under_way += t->bytes;
        note_copy(w, in, cta, b), note_copy(w, in, keeper, b);
        reader = b->actor, read_time = sim_mbarrier_time(c, b);
        enum sim_found found = races ? SIM_FOUND_NOTHING : SIM_FOUND_FAULT;
        for (uint32_t i = 0; i < t->n_pieces && found < SIM_FOUND_FAULT; i++)
            found =
                sim_async_write(w, in, cta, lane, place(t, t->to, &t->pieces[i]), t->pieces[i].n, b->actor,
                                sim_mbarrier_time(c, b), t->kind == SIM_FROM_REGISTERS ? w->known : sim_view(w), found);
    }
    if (!bad && races && (t->kind == SIM_TO_GLOBAL || t->kind == SIM_TO_CLUSTER)) {
        enum sim_found found = SIM_FOUND_NOTHING;
        for (uint32_t i = 0; i < t->n_pieces && found < SIM_FOUND_FAULT; i++) {
            const struct sim_piece *p = &t->pieces[i];
            uint32_t offset = t->kind == SIM_TO_GLOBAL ? place(t, t->from, p) : t->from + p->shared;
            if (p->valid)
                found = sim_async_read(w, in, w->cta, lane, offset, t->gap ? t->gap : p->n, reader, read_time, found);
        }
    }
    if (!bad && c->launch->deed && t->kind == SIM_TO_GLOBAL)
        touch_global(w, in, lane, t, c->hopper->actors.stores + w->actor, read_time);
    if (!bad && c->launch->deed && t->kind == SIM_TO_SHARED) touch_global(w, in, lane, t, reader, read_time);
    if (bad) {
        free(t);
        return -1;
    }
    if (w->counts) sim_count_transfer(w, t);
    if (t->kind != SIM_TO_GLOBAL &&
        races) { /* PTX ISA, "mbarrier.complete_tx": the copy comes after what its issuer acquired */
        if (!(f.clock = malloc(c->n_clock * sizeof *f.clock))) abort();
        sim_clock_acquired(w, f.clock);
    }
    return sim_flight_add(c, f);
}
