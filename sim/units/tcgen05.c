/* SPDX-License-Identifier: MIT
 * tcgen05: its words, allocation of tensor memory, waits, fences and commits. Products, copies and loads have files of
 * their own (tcgen05_*.c). */
#include "checks/report.h"
#include "counts/counts.h"
#include "machine/address.h"
#include "units/tensor_memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- allocation ---- */

static int wrong_group(struct sim_warp *w, const struct sim_ins *in) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    if (in->z == 2 && (w->cta->cluster->n_ctas & 1)) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "cta_group::2 in a cluster of %u CTAs", w->cta->cluster->n_ctas);
        return -1;
    }
    if (!t->group) t->group = in->z;
    if (t->group == in->z) return 0;
    sim_find(w, in, 1, SIM_F_PROTOCOL, "cta_group::%u after cta_group::%u: a kernel uses one", in->z, t->group);
    return -1;
}

int sim_tensor_starts(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    if (!(m & (m - 1))) return wrong_group(w, in);
    sim_find(w, in, m, SIM_F_DIVERGENCE, "one thread starts this, not %d", __builtin_popcount(m));
    return -1;
}

static int are_free(const struct sim_tensor_memory *t, uint32_t first, uint32_t n) {
    uint32_t c = first;
    while (c < first + n && !t->owner[c]) c++;
    return c == first + n;
}
/* The first n columns that are free in t and, unless NULL, in `peer`, are taken there. Their number, or SIM_TM_COLUMNS.
 */
static uint32_t take(struct sim_tensor_memory *t, struct sim_tensor_memory *peer, uint32_t n) {
    struct sim_tensor_memory *both[] = {t, peer};
    uint32_t first = 0;
    while (first < SIM_TM_COLUMNS && !(are_free(t, first, n) && (!peer || are_free(peer, first, n)))) first += n;
    for (uint32_t i = 0; i < 2 && first < SIM_TM_COLUMNS; i++) {
        if (!both[i]) continue;
        for (uint32_t c = first; c < first + n; c++) both[i]->owner[c] = (uint16_t)(first + 1);
        both[i]->sizes[first] = (uint16_t)n;
    }
    return first;
}
static enum sim_step wait_for(struct sim_warp *w, enum sim_wait_kind what) {
    w->hopper->waits = what;
    w->polling = 1;
    return SIM_BLOCK;
}
/* PTX ISA, "Issue granularity": two warps, one of each CTA of a pair, allocate together, and the first could block until
 * the second comes. Here it does, and both get the same columns. SIM_NEXT: `first` is theirs. */
static enum sim_step allocate_in_pair(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint32_t n,
                                      uint32_t *first) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor,
                             *peer = w->cta->cluster->ctas[w->cta->rank ^ 1].hopper->tensor;
    if (t->granted && t->asker == w->index) {
        *first = t->granted - 1u;
        t->granted = 0;
        return SIM_NEXT;
    }
    if (t->granted || (t->asks && t->asker != w->index))
        return wait_for(w, SIM_WAITS_COLUMNS); /* another warp's turn */
    t->asks = n, t->asker = w->index;
    if (!peer->asks) return wait_for(w, SIM_WAITS_PEER);
    if (peer->asks != n) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "allocates %u columns, and the other CTA of the pair %u", n, peer->asks);
        return SIM_FAULT;
    }
    *first = take(t, peer, n);
    if (*first == SIM_TM_COLUMNS) return wait_for(w, SIM_WAITS_COLUMNS);
    t->asks = peer->asks = 0;
    peer->granted = *first + 1;
    return SIM_NEXT;
}

SIM_HEAD(allocate) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    uint32_t lane = (uint32_t)__builtin_ctz(m), n = W32(in->o[1])[lane], first, offset;
    uint64_t address[SIM_LANES];
    if (wrong_group(w, in)) return SIM_FAULT;
    if (n < 32 || n > SIM_TM_COLUMNS || n & (n - 1) || t->relinquished) {
        sim_find(w, in, m, SIM_F_PROTOCOL,
                 t->relinquished ? "allocates %u columns after relinquish_alloc_permit"
                                 : "allocates %u columns: a power of two from 32 to 512",
                 n);
        return SIM_FAULT;
    }
    if (in->z == 2) {
        const enum sim_step step = allocate_in_pair(w, in, m, n, &first);
        if (step != SIM_NEXT) return step;
    } else if ((first = take(t, NULL, n)) == SIM_TM_COLUMNS) {
        return wait_for(w, SIM_WAITS_COLUMNS);
    }
    w->hopper->waits = SIM_WAITS_NOTHING;
    sim_addresses(w, in, m, 0, address);
    if (in->space == PTX_SHARED && (address[lane] & SIM_WINDOW_MASK) == SIM_WINDOW_SHARED) {
        sim_find(w, in, m, SIM_F_ADVICE,
                 "a generic address where .shared::cta wants one of shared memory: hardware "
                 "takes the lower 32 bits");
        address[lane] &= ~SIM_WINDOW_MASK;
    }
    if (in->space == PTX_GENERIC) address[lane] &= ~SIM_WINDOW_MASK;
    struct sim_cta *owner = sim_shared_at(w, in, lane, address[lane], 4, 4, &offset);
    if (!owner) return SIM_FAULT;
    t->taken_actor = w->actor, t->taken_time = w->known[w->actor];
    if (w->cta->cluster->launch->options.races) {
        sim_shared_touch(w, in, owner, lane, offset, 4, SIM_STORE);
        /* All lanes execute it, in order with what they do next (PTX ISA, "tcgen05 memory consistency model"): each may
         * read the address. Other warps need a barrier. */
        sim_clock_tick(w);
    }
    memcpy(owner->shared + offset, &first, 4);
    w->cta->cluster->changes++;
    return SIM_NEXT;
}
SIM_HEAD(deallocate) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    uint32_t lane = (uint32_t)__builtin_ctz(m), first = W32(in->o[0])[lane] & 0xffff, n = W32(in->o[1])[lane];
    if (wrong_group(w, in)) return SIM_FAULT;
    if (W32(in->o[0])[lane] >> 16 || first >= SIM_TM_COLUMNS || !n || t->sizes[first] != n) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "deallocates %u columns at 0x%x, which is no such allocation", n,
                 W32(in->o[0])[lane]);
        return SIM_FAULT;
    }
    /* whoever used them must be known to be done */
    if (sim_tensor_touch(w, in, w->cta, SIM_TM_ALL, first, n, sim_tensor_lane_actor(w), w->hopper->tensor_time,
                         SIM_CELLS_FREED))
        return SIM_FAULT;
    memset(t->owner + first, 0, n * sizeof *t->owner);
    for (uint32_t l = 0; l < SIM_TM_LANES; l++) memset(t->written[l] + first, SIM_CELL_NEVER, n);
    t->sizes[first] = 0;
    w->cta->cluster->changes++;
    return SIM_NEXT;
}
SIM_HEAD(relinquish) {
    (void)m;
    if (wrong_group(w, in)) return SIM_FAULT;
    w->cta->hopper->tensor->relinquished = 1;
    return SIM_NEXT;
}

/* ---- waits, fences ---- */

SIM_HEAD(wait_cells) { /* y: for stores */
    struct sim_warp_hopper *h = w->hopper;
    (void)m;
    if (in->y)
        h->stores_from = 0;
    else
        h->loads_from = h->loads_open = 0, h->products_seen = h->n_products;
    sim_tensor_waited(w, 0);
    return SIM_NEXT;
}
SIM_HEAD(fence) { /* y: after */
    (void)m;
    if (in->y)
        sim_tensor_after(w);
    else
        sim_tensor_before(w);
    return SIM_NEXT;
}

/* ---- commit ---- */

/* The arrival comes after the products, and those after what their issuer has acquired: it tells of both (PTX ISA,
 * "Completion mechanisms of asynchronous tcgen05 operations"). What the issuer's warp did itself since its last release
 * is not part of it. */
struct arrival {
    uint32_t ranks, offset, products, clock[];
};
static int arrive(struct sim_flight *f) {
    struct sim_cluster *c = f->w->cta->cluster;
    struct arrival *a = f->data;
    const struct sim_tensor_memory *t = f->w->cta->hopper->tensor;
    if (t->n_done < a->products) return 0;
    int r = 1;
    for (uint32_t rank = 0; rank < c->n_ctas && r == 1; rank++) {
        if (!(a->ranks >> rank & 1)) continue;
        struct sim_mbarrier *b = sim_mbarrier_at(f->w, f->in, f->lane, &c->ctas[rank], a->offset, 0);
        if (!b || sim_mbarrier_arrive(f->w, f->in, f->lane, &c->ctas[rank], b, 1, a->clock)) r = -1;
    }
    return r;
}
SIM_HEAD(commit) { /* y: multicast */
    struct sim_cluster *c = w->cta->cluster;
    uint64_t address[SIM_LANES];
    if (wrong_group(w, in)) return SIM_FAULT;
    sim_addresses(w, in, m, 0, address);
    EACH_OF(m) {
        struct arrival *a = calloc(1, sizeof *a + c->n_clock * sizeof *a->clock);
        if (!a) abort();
        if (in->space == PTX_GENERIC) address[l] &= ~SIM_WINDOW_MASK;
        struct sim_cta *owner = sim_shared_at(w, in, l, address[l], 8, 8, &a->offset);
        a->ranks = owner ? in->y ? W32(in->o[3])[l] & 0xffff : 1u << owner->rank : 0;
        a->products = w->cta->hopper->tensor->n_products;
        sim_clock_acquired(w, a->clock);
        a->clock[sim_tensor_core_actor(w->cta)] = w->cta->hopper->tensor->base + a->products;
        if (!owner || a->ranks >> c->n_ctas || !sim_mbarrier_at(w, in, l, owner, a->offset, 0)) {
            if (owner && a->ranks >> c->n_ctas)
                sim_find(w, in, 1u << l, SIM_F_BOUNDS, "mask 0x%x in a cluster of %u CTAs", a->ranks, c->n_ctas);
            free(a);
            return SIM_FAULT;
        }
        const uint32_t others = a->ranks & ~(1u << w->cta->rank);
        if (w->counts) sim_count_remote_arrivals(w, (uint32_t)__builtin_popcount(others));
        struct sim_flight f = {
            .in = in, .w = w, .lane = l, .kind = SIM_FLIGHT_TENSOR, .stages = 1, .step = arrive, .data = a};
        if (sim_flight_add(c, f) < 0) return SIM_FAULT;
    }
    return SIM_NEXT;
}

/* ---- words ---- */

SIM_DECODER(tcgen05) {
    d->program->uses |= SIM_USES_TCGEN05 | SIM_USES_MBARRIER;
    in->z = sim_word(d, "cta_group::1") ? 1 : sim_word(d, "cta_group::2") ? 2 : 0;
    if (sim_word(d, "ld")) {
        sim_decode_tensor_load(d, in);
    } else if (sim_word(d, "st")) {
        sim_decode_tensor_store(d, in);
    } else if (sim_word(d, "wait::ld") || (in->y = (uint8_t)sim_word(d, "wait::st"))) {
        sim_word(d, "sync"), sim_word(d, "aligned");
        in->sync = SIM_ALIGNED;
        in->exec = wait_cells;
    } else if (sim_word(d, "fence::before_thread_sync") || (in->y = (uint8_t)sim_word(d, "fence::after_thread_sync"))) {
        in->exec = fence;
    } else if (sim_word(d, "mma")) {
        if (in->z) sim_decode_tensor_product(d, in);
    } else if (!in->z) {
        return;
    } else if (sim_word(d, "cp")) {
        sim_decode_tensor_copy(d, in);
    } else if (sim_word(d, "shift")) {
        sim_decode_tensor_shift(d, in);
    } else if (sim_word(d, "commit")) {
        sim_word(d, "mbarrier::arrive::one");
        in->space = sim_word(d, "shared::cluster") ? PTX_SHARED_CLUSTER : PTX_GENERIC;
        in->y = (uint8_t)sim_word(d, "multicast::cluster");
        if (sim_last_type(d) != PTX_B64) return;
        sim_want(d, 1u + in->y, 1u + in->y);
        if (d->failed) return;
        sim_address(d, in, &d->o[0], 0);
        if (in->y) in->o[3] = sim_source(d, &d->o[1], 16);
        in->exec = commit;
    } else if (sim_word(d, "sync") && sim_word(d, "aligned")) {
        in->sync = SIM_ALIGNED;
        if (sim_word(d, "relinquish_alloc_permit")) {
            in->exec = relinquish;
            return;
        }
        int alloc = sim_word(d, "alloc");
        if (!alloc && !sim_word(d, "dealloc")) return;
        in->space = sim_word(d, "shared::cta") ? PTX_SHARED : PTX_GENERIC;
        if (sim_last_type(d) != PTX_B32) return;
        sim_want(d, 2, 2);
        if (d->failed) return;
        if (alloc)
            sim_address(d, in, &d->o[0], 0);
        else
            in->o[0] = sim_source(d, &d->o[0], 32);
        in->o[1] = sim_source(d, &d->o[1], 32);
        in->exec = alloc ? allocate : deallocate;
    }
}
