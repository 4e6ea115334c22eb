/* SPDX-License-Identifier: MIT
 * What warps of a cluster and of a CTA arrange among themselves on sm_90: the cluster's barrier, addresses of other
 * CTAs, fences between proxies, shares of registers; and words of sm_90 that have no effect here. */
#include "checks/report.h"
#include "checks/stream_order.h"
#include "exec/exec.h"
#include "units/hopper.h"

#include <stdio.h>
#include <string.h>

SIM_HEAD(no_effect) {
    (void)w, (void)in, (void)m;
    return SIM_NEXT;
}

/* ---- fences ---- */

SIM_HEAD(proxy_fence) { /* x: of shared memory, y: of global memory */
    (void)m;
    sim_proxy_fence(w, in->x, in->y);
    return SIM_NEXT;
}
SIM_HEAD(init_fence) { /* mbarriers that this warp has initialised so far */
    struct sim_cluster *c = w->cta->cluster;
    (void)in, (void)m;
    for (uint32_t r = 0; r < c->n_ctas; r++)
        for (uint32_t i = 0; i < c->ctas[r].hopper->n_mbarriers; i++) {
            struct sim_mbarrier *b = &c->ctas[r].hopper->mbarriers[i];
            if (b->init_actor == w->actor) b->fenced = 1;
        }
    return SIM_NEXT;
}
SIM_DECODER(fence_sm90) {
    if (sim_word(d, "mbarrier_init")) {
        sim_word(d, "release"), sim_word(d, "cluster");
        d->program->uses |= SIM_USES_MBARRIER;
        in->exec = init_fence;
        return;
    }
    for (uint32_t i = 1; i < d->n_parts; i++)
        if (!strncmp(d->part[i], "proxy",
                     5)) { /* proxy.async[.global, .shared::cta, ...], proxy.tensormap, proxy.alias */
            int is_async = i + 1 < d->n_parts && !strncmp(d->part[i + 1], "async", 5);
            int global = sim_word(d, "async::global") || sim_word(d, "global");
            int shared = sim_word(d, "async::shared::cta") || sim_word(d, "async::shared::cluster") ||
                         sim_word(d, "shared::cta") || sim_word(d, "shared::cluster");
            d->used = ~0u;
            in->x = (uint8_t)(shared || !global), in->y = (uint8_t)(global || !shared);
            in->exec = is_async ? proxy_fence : no_effect;
            return;
        }
    sim_decode_fence(d, in);
}

/* ---- barrier.cluster ---- */

SIM_HEAD(cluster_arrive) { /* x: relaxed */
    struct sim_cluster *c = w->cta->cluster;
    struct sim_cluster_hopper *k = c->hopper;
    struct sim_warp_hopper *h = w->hopper;
    if (h->cluster_arrived &
        m) { /* PTX ISA, barrier.cluster: undefined; here the second waits first, and owes a wait */
        if (h->waits != SIM_WAITS_CLUSTER)
            sim_find(w, in, m, SIM_F_BARRIER, "arrives twice at the cluster's barrier with no wait between");
        if (m & ~h->cluster_arrived || h->cluster_owed & m) return SIM_FAULT;
        if (h->cluster_came & m) {
            h->waits = SIM_WAITS_CLUSTER;
            return SIM_AGAIN;
        }
        h->waits = SIM_WAITS_NOTHING;
        h->cluster_owed |= m;
    }
    h->cluster_arrived |= m, h->cluster_came |= m;
    if (!in->x) {
        sim_clock_join(k->cluster_clock, w->known, c->n_clock);
        sim_clock_tick(w);
    }
    k->cluster_arrived++;
    c->changes++;
    sim_cluster_check(c);
    return SIM_NEXT;
}
/* Opens the barrier if every thread that has not ended has come in this phase. PTX ISA, "barrier.cluster": all the
 * non-exited threads of the cluster; arrivals of threads that have ended since do not stand for others. */
void sim_cluster_check(struct sim_cluster *c) {
    struct sim_cluster_hopper *k = c->hopper;
    if (!k->cluster_arrived) return;
    for (uint32_t r = 0; r < c->n_ctas; r++)
        for (uint32_t i = 0; i < c->ctas[r].n_warps; i++)
            if (c->ctas[r].warps[i].live & ~c->ctas[r].warps[i].hopper->cluster_came) return;
    for (uint32_t r = 0; r < c->n_ctas; r++)
        for (uint32_t i = 0; i < c->ctas[r].n_warps; i++) c->ctas[r].warps[i].hopper->cluster_came = 0;
    memcpy(k->cluster_done, k->cluster_clock, c->n_clock * sizeof *k->cluster_clock);
    k->cluster_arrived = 0;
    k->cluster_phase++;
    c->changes++;
}
SIM_HEAD(cluster_wait) {
    struct sim_cluster *c = w->cta->cluster;
    struct sim_warp_hopper *h = w->hopper;
    if (!(h->cluster_arrived & m) && !(m & ~h->cluster_owed)) {
        h->cluster_owed &= ~m;
        return SIM_NEXT;
    }
    if (m & ~h->cluster_arrived) {
        sim_find(w, in, m, SIM_F_BARRIER, "waits at the cluster's barrier without having arrived");
        return SIM_FAULT;
    }
    if (h->cluster_came & m) {
        h->waits = SIM_WAITS_CLUSTER;
        return SIM_AGAIN;
    }
    h->waits = SIM_WAITS_NOTHING;
    h->cluster_arrived &= ~m;
    w->passed = in->statement + 1;
    sim_clock_join(w->known, c->hopper->cluster_done, c->n_clock);
    return SIM_NEXT;
}
SIM_DECODER(barrier_sm90) {
    if (!sim_word(d, "cluster")) {
        sim_decode_barrier(d, in);
        return;
    }
    d->program->uses |= SIM_USES_MBARRIER;
    int arrive = sim_word(d, "arrive");
    if (!arrive && !sim_word(d, "wait")) return;
    in->x = (uint8_t)sim_word(d, "relaxed");
    sim_word(d, "release"), sim_word(d, "acquire");
    in->sync = sim_word(d, "aligned") ? SIM_ALIGNED : SIM_FREE; /* without: each thread by itself */
    sim_want(d, 0, 0);
    in->exec = arrive ? cluster_arrive : cluster_wait;
}

/* ---- addresses of the cluster ---- */

/* PTX ISA, mapa: of a rank that the cluster has not, an address that no CTA has: a finding where it is used. */
enum { NO_CTA = 0xff };
SIM_HEAD(map_address) { /* x: generic addresses */
    uint32_t n = w->cta->cluster->n_ctas;
    const uint64_t low = (UINT64_C(1) << SIM_RANK_SHIFT) - 1;
    EACH_OF(m) {
        uint64_t rank = W32(in->o[2])[l], place = in->wide ? W64(in->o[1])[l] : W32(in->o[1])[l];
        if (rank >= n) rank = NO_CTA;
        place = (place & low) | rank << SIM_RANK_SHIFT | (in->x ? SIM_WINDOW_SHARED : 0);
        if (in->wide)
            W64(in->o[0])[l] = place;
        else
            W32(in->o[0])[l] = (uint32_t)place;
    }
    return SIM_NEXT;
}
SIM_DECODER(mapa) {
    in->x = !sim_word(d, "shared::cluster");
    enum ptx_type type = sim_last_type(d);
    in->wide = type == PTX_U64;
    if (type != PTX_U32 && type != PTX_U64) return;
    sim_want(d, 3, 3);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], in->wide ? 64 : 32);
    in->o[1] = sim_source(d, &d->o[1], in->wide ? 64 : 32);
    in->o[2] = sim_source(d, &d->o[2], 32);
    in->exec = map_address;
}
SIM_HEAD(rank_of) {
    EACH_OF(m) {
        uint64_t place = in->wide ? W64(in->o[1])[l] & ~SIM_WINDOW_MASK : W32(in->o[1])[l];
        W32(in->o[0])[l] = (uint32_t)(place >> SIM_RANK_SHIFT);
    }
    return SIM_NEXT;
}
SIM_DECODER(getctarank) {
    sim_word(d, "shared::cluster");
    in->wide = sim_last_type(d) == PTX_U64;
    sim_want(d, 2, 2);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], 32);
    in->o[1] = sim_source(d, &d->o[1], in->wide ? 64 : 32);
    in->exec = rank_of;
}

/* ---- setmaxnreg ---- */

/* x: dec. What a warp gives goes to the CTA's pool, what it asks for it waits for. */
SIM_HEAD(change_registers) {
    struct sim_warp_hopper *h = w->hopper;
    uint32_t *pool = &w->cta->hopper->registers_free, want = (uint32_t)in->imm, have = h->registers;
    if (!w->cta->cluster->launch->program->kernel->sized) { /* as ptxas does (C7508) */
        sim_find(w, in, m, SIM_F_ADVICE, "setmaxnreg is ignored: the entry has neither .minnctapersm nor .maxnreg");
        return SIM_NEXT;
    }
    /* The text does not tell how many the compiler took: at most the even share, perhaps less than a first inc wants.
     */
    if (!h->registers_told && !in->x && want < have) want = have;
    h->registers_told = 1;
    if (in->x ? want > have : want < have) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "setmaxnreg.%s to %u with %u registers", in->x ? "dec" : "inc", want, have);
        return SIM_FAULT;
    }
    if (!in->x && want - have > *pool) {
        h->waits = SIM_WAITS_REGISTERS;
        w->polling = 1;
        return SIM_BLOCK;
    }
    h->waits = SIM_WAITS_NOTHING;
    *pool += have - want;
    h->registers = want;
    w->cta->cluster->changes++;
    return SIM_NEXT;
}
SIM_DECODER(setmaxnreg) {
    d->program->uses |= SIM_USES_MBARRIER;
    in->x = (uint8_t)sim_word(d, "dec");
    if (!in->x && !sim_word(d, "inc")) return;
    if (!sim_word(d, "sync") || !sim_word(d, "aligned") || sim_last_type(d) != PTX_U32) return;
    sim_want(d, 1, 1);
    if (d->failed) return;
    in->imm = (int64_t)sim_number(d, &d->o[0]);
    if (in->imm < 24 || in->imm > 256 || in->imm % 8) sim_refuse(d, "24 to 256 in steps of 8");
    in->sync = SIM_ALIGNED;
    in->exec = change_registers;
}

/* ---- what has no effect here ---- */

SIM_HEAD(grid_wait) { /* the launch ahead has ended; what the warp does from now on relies on it */
    const struct sim_launch *ahead = w->cta->cluster->launch->behind;
    (void)in, (void)m;
    if (ahead && !atomic_load(&ahead->ended)) {
        w->polling = 1;
        return SIM_BLOCK;
    }
    w->known[w->cta->cluster->waits_at] = 1;
    return SIM_NEXT;
}
void sim_release_dependents(struct sim_cta *cta) {
    if (cta->released) return;
    cta->released = 1;
    atomic_fetch_add(&cta->cluster->launch->n_released, 1);
}
SIM_HEAD(let_dependents) {
    const struct sim_cluster *c = w->cta->cluster;
    (void)in, (void)m;
    if (!w->cta->released && c->waits_at && w->known[c->waits_at] && c->launch->deed)
        __atomic_store_n(&c->launch->deed->hands_on, 1, __ATOMIC_RELAXED);
    sim_release_dependents(w->cta);
    return SIM_NEXT;
}
SIM_DECODER(griddepcontrol) {
    if (sim_word(d, "wait")) {
        d->program->uses |= SIM_USES_GRID_WAIT;
        in->exec = grid_wait;
    } else if (sim_word(d, "launch_dependents")) {
        in->exec = let_dependents;
    }
}
SIM_HEAD(make_policy) {
    EACH_OF(m) W64(in->o[0])[l] = UINT64_C(0x12f0000000000000); /* looks like none that an address could be */
    return SIM_NEXT;
}
SIM_DECODER(createpolicy) {
    if (!sim_word(d, "fractional") && !sim_word(d, "range") && !sim_word(d, "cvt")) return;
    sim_word(d, "global");
    sim_hint(d);
    if (sim_last_type(d) != PTX_B64 || d->failed) return;
    sim_want(d, 1, 4);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], 64);
    in->exec = make_policy;
}

/* ---- words whose later words decide ---- */

SIM_DECODER(cp_sm90) {
    if (d->n_parts > 2 && !strcmp(d->part[1], "async") && !strcmp(d->part[2], "mbarrier")) {
        sim_word(d, "async"), sim_word(d, "mbarrier");
        sim_decode_copy_arrival(d, in);
        return;
    }
    for (uint32_t i = 1; i < d->n_parts; i++)
        if (!strcmp(d->part[i], "bulk")) {
            sim_decode_bulk(d, in);
            return;
        }
    sim_decode_cp(d, in);
}
SIM_DECODER(prefetch_sm90) {
    if (d->n_parts == 2 && sim_word(d, "tensormap")) {
        sim_want(d, 1, 1);
        in->exec = no_effect;
        return;
    }
    sim_decode_prefetch(d, in);
}
