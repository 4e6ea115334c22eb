/* SPDX-License-Identifier: MIT
 * cp.async and its groups. A group is what a lane issued between two commits; wait_group N waits for all but the lane's
 * last N. The destination is off limits from the issue to the wait (race.h). */
#include "checks/global.h"
#include "checks/report.h"
#include "counts/counts.h"
#include "machine/address.h"
#include "units/async.h"
#include "units/hopper.h"

#include <stdlib.h>
#include <string.h>

static void perform(struct sim_warp *w, struct sim_copy *c) {
    if (c->done) return;
    c->done = 1;
    w->cta->cluster->changes++;
    EACH_OF(c->lanes) {
        uint8_t *to = w->cta->shared + c->to[l];
        if (c->take[l] == 16) { /* the most common size, without calls */
            memcpy(to, (const uint8_t *)(uintptr_t)c->from[l], 16);
            continue;
        }
        memcpy(to, (const uint8_t *)(uintptr_t)c->from[l], c->take[l]);
        memset(to + c->take[l], 0, (size_t)c->bytes - c->take[l]);
    }
}
void sim_copies_step(struct sim_warp *w) {
    struct sim_cluster *cluster = w->cta->cluster;
    for (uint32_t i = 0; i < w->n_copies; i++)
        if (!w->copies[i].done && sim_random(&cluster->rng) % 4 == 0) perform(w, &w->copies[i]);
}
void sim_copies_drop(struct sim_warp *w) {
    for (uint32_t i = 0; i < w->n_copies; i++) perform(w, &w->copies[i]);
    w->n_copies = 0;
}

/* Bytes that each lane reads. */
static int takes(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint8_t take[SIM_LANES]) {
    memset(take, in->bytes, SIM_LANES);
    if (in->z) EACH_OF(m) {
            uint32_t n = W32(in->o[2])[l];
            if (n > in->bytes) {
                sim_find(w, in, 1u << l, SIM_F_BOUNDS, "reads %u bytes into %u", n, in->bytes);
                return -1;
            }
            take[l] = (uint8_t)n;
        }
    if (in->y) EACH_OF(m & w->p[in->o[2]]) take[l] = 0; /* the ignore-src predicate */
    return 0;
}

/* o[0]: destination, o[1]: source with its offset in `list`, o[2]: bytes to read, if z. */
SIM_HEAD(copy) {
    uint64_t to[SIM_LANES], from[SIM_LANES];
    const int64_t offset = (int64_t)((uint64_t)w->list[in->list + 1] << 32 | w->list[in->list]);
    const struct sim_launch *g = w->cta->cluster->launch;
    EACH_LANE {
        to[l] = in->wide ? W64(in->o[0])[l] + (uint64_t)in->imm : (uint32_t)(W32(in->o[0])[l] + (uint32_t)in->imm);
        from[l] = W64(in->o[1])[l] + (uint64_t)offset;
    }
    uint32_t left = m;
    while (left) { /* one record for lanes with the same group, which are all of them unless commits diverged */
        uint32_t group = w->committed[__builtin_ctz(left)], these = 0;
        EACH_OF(left) these |= (uint32_t)(w->committed[l] == group) << l;
        left &= ~these;
        if (w->n_copies == w->room_copies) {
            w->room_copies = w->room_copies ? 2 * w->room_copies : 64;
            w->copies = realloc(w->copies, w->room_copies * sizeof *w->copies);
            if (!w->copies) abort();
        }
        struct sim_copy *c = &w->copies[w->n_copies++];
        c->in = in, c->lanes = these, c->group = group, c->done = 0, c->bytes = in->bytes, c->handed = 0;
        const struct sim_block *block = NULL;
        if (takes(w, in, these, c->take)) return SIM_FAULT;
        memcpy(c->from, from, sizeof from);
        if (!sim_own_offsets(w, these, to, in->bytes, c->to) ||
            !(block = sim_block_of_lanes(w, these, from, in->bytes))) { /* some lane needs a closer look */
            EACH_OF(these) {
                struct sim_cta *owner = sim_shared_at(w, in, l, to[l], in->bytes, in->bytes, &c->to[l]);
                if (!owner || sim_global_at(w, in, l, from[l], c->take[l], in->bytes, "copies")) return SIM_FAULT;
                if (owner != w->cta) {
                    sim_find(w, in, 1u << l, SIM_F_BOUNDS, "cp.async to shared memory of another CTA");
                    return SIM_FAULT;
                }
            }
        }
        if (g->options.races) sim_shared_touch_lanes(w, in, w->cta, these, c->to, in->bytes, SIM_COPY);
        if (g->deed) sim_global_touch(w, in, these, c->from, c->take, 0, SIM_LOAD, block);
        if (w->counts) sim_count_copy(w, these, c->from, c->take, in->bytes);
        if (g->options.policy == SIM_EAGER) perform(w, c);
    }
    return SIM_NEXT;
}

/* ---- hand-over to an mbarrier (cp_async_arrive.c) ---- */

uint32_t sim_copies_hand_over(struct sim_warp *w, uint32_t lanes, uint32_t actor, uint32_t time) {
    const int races = w->cta->cluster->launch->options.races;
    struct sim_warp_hopper *h = w->hopper;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct sim_copy *c = &w->copies[i];
        if (!(c->lanes & lanes) || c->handed) continue;
        if (races) EACH_OF(c->lanes & lanes) sim_copy_handed(w, c->in, c->to[l], c->bytes, actor, time);
        if (c->lanes & ~lanes) continue; /* the rest of its lanes may wait in another way */
        c->handed = time;
        h->handed_group[h->n_handed % SIM_RING] = c->group;
        n++;
    }
    h->handed_time[h->n_handed++ % SIM_RING] = time;
    return n;
}
void sim_copies_perform(struct sim_warp *w, uint32_t time) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct sim_copy *c = &w->copies[i];
        if (c->handed && c->handed <= time) {
            perform(w, c);
            continue;
        }
        if (kept != i) w->copies[kept] = *c;
        kept++;
    }
    w->n_copies = kept;
}
/* Copies of groups < limit that were handed over are waited for, too. */
static void learn_handed(struct sim_warp *w, uint32_t limit) {
    struct sim_warp_hopper *h = w->hopper;
    uint32_t n = h->n_handed < SIM_RING ? h->n_handed : SIM_RING;
    for (uint32_t i = h->n_handed - n; i < h->n_handed; i++)
        if ((int32_t)(limit - h->handed_group[i % SIM_RING]) > 0) {
            uint32_t actor = w->cta->cluster->hopper->actors.copies + w->actor, time = h->handed_time[i % SIM_RING];
            if (w->known[actor] < time) w->known[actor] = time; /* not what units see: that takes a fence */
        }
}

SIM_HEAD(commit) {
    (void)in;
    EACH_OF(m) w->committed[l]++;
    return SIM_NEXT;
}

/* Lanes m are done with copies of group < limit. */
static void wait_below(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint32_t limit[SIM_LANES]) {
    const struct sim_launch *g = w->cta->cluster->launch;
    uint32_t kept = 0, one = limit[__builtin_ctz(m)], differ = 0;
    EACH_LANE differ |= (limit[l] ^ one) & (0 - (m >> l & 1));
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct sim_copy *c = &w->copies[i];
        uint32_t awaited = 0;
        if (!differ)
            awaited = (int32_t)(one - c->group) > 0 ? c->lanes & m : 0;
        else
            EACH_OF(c->lanes & m) awaited |= (uint32_t)((int32_t)(limit[l] - c->group) > 0) << l;
        if (awaited) {
            perform(w, c);
            if (g->options.races) sim_shared_landed(w, c->in, w->cta, awaited, c->to, c->bytes);
            c->lanes &= ~awaited;
        }
        if (c->lanes) {
            if (kept != i) w->copies[kept] = *c;
            kept++;
        }
    }
    w->n_copies = kept;
    if (w->hopper && w->hopper->n_handed) learn_handed(w, limit[__builtin_ctz(m)]);
    (void)in;
}
SIM_HEAD(wait_group) {
    uint32_t limit[SIM_LANES];
    EACH_LANE limit[l] = w->committed[l] - (uint32_t)in->imm;
    wait_below(w, in, m, limit);
    return SIM_NEXT;
}
SIM_HEAD(wait_all) { /* commits and waits */
    uint32_t limit[SIM_LANES];
    EACH_OF(m) w->committed[l]++;
    EACH_LANE limit[l] = w->committed[l];
    wait_below(w, in, m, limit);
    return SIM_NEXT;
}

static void cp_async(struct sim_decoder *d, struct sim_ins *in) {
    if (sim_word(d, "commit_group")) {
        in->exec = commit;
        return;
    }
    if (sim_word(d, "wait_all")) {
        in->exec = wait_all;
        return;
    }
    if (sim_word(d, "wait_group")) {
        sim_want(d, 1, 1);
        if (!d->failed) in->imm = (int64_t)sim_number(d, &d->o[0]);
        in->exec = wait_group;
        return;
    }
    int cg = sim_word(d, "cg");
    if (!cg && !sim_word(d, "ca")) return;
    if (!sim_word(d, "shared") && !sim_word(d, "shared::cta")) return;
    if (!sim_word(d, "global")) return;
    sim_hint(d);
    sim_want(d, 3, 5);
    if (d->failed) return;
    uint64_t bytes = sim_number(d, &d->o[2]);
    if (bytes != 16 && (cg || (bytes != 4 && bytes != 8))) sim_refuse(d, "copies of %u bytes", (unsigned)bytes);
    in->bytes = (uint8_t)bytes;
    sim_address(d, in, &d->o[1], 1);
    if (!in->wide) sim_refuse(d, "a source of 32 bits");
    uint64_t offset = (uint64_t)in->imm;
    sim_address(d, in, &d->o[0], 0);
    in->list = sim_list_add(d, (uint32_t)offset);
    sim_list_add(d, (uint32_t)(offset >> 32));
    if (d->n > 3) {
        unsigned bits = sim_bits(d, &d->o[3]);
        if (bits == 1)
            in->y = 1, in->o[2] = sim_source(d, &d->o[3], 1);
        else if (bits != 64) /* 64: a cache policy */
            in->z = 1, in->o[2] = sim_source(d, &d->o[3], 32);
    }
    in->exec = copy;
}
SIM_DECODER(cp) {
    if (!sim_word(d, "async")) return;
    cp_async(d, in);
}
