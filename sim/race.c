/* SPDX-License-Identifier: MIT
 * The records of shared memory's words, see race.h. */
#include "race.h"
#include "report.h"

#include <stdlib.h>

#define PENDING           (UINT64_C(1) << 29)
#define ATOMIC            (UINT64_C(1) << 28)
#define TIME(record)      ((uint32_t)((record) >> 40))
#define ACTOR(record)     ((uint32_t)((record) >> 30) & 1023)
#define STATEMENT(record) ((uint32_t)((record) >> 8) & 0xfffff)
#define TOUCHED(record)   ((uint32_t)((record) >> 4) & 15)

static uint64_t record_of(const struct sim_warp *w, const struct sim_ins *in, uint32_t touched) {
    return (uint64_t)w->known[w->actor] << 40 | (uint64_t)w->actor << 30 | (uint64_t)(in->statement & 0xfffff) << 8 |
           touched << 4;
}

void sim_clock_join(uint32_t *into, const uint32_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (from[i] > into[i]) into[i] = from[i];
}
void sim_clock_tick(struct sim_warp *w) { w->known[w->actor]++; }

static uint64_t *reads_of(struct sim_warp *w, struct sim_cta *owner) {
    uint64_t **slot = &owner->reads[w->actor];
    if (!*slot) {
        *slot = calloc(owner->shared_bytes / 4 + 1, sizeof **slot);
        if (!*slot) abort();
    }
    return *slot;
}

static void tell_race(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t word, uint64_t other,
                      const char *mine, const char *theirs) {
    const struct sim_cluster *c = w->cta->cluster;
    uint32_t warp = ACTOR(other) % w->cta->n_warps, cta = ACTOR(other) / w->cta->n_warps;
    const char *place = sim_place(c->launch->program, STATEMENT(other));
    if (other & PENDING)
        sim_find(
            w, in, 1u << lane, SIM_F_ASYNC,
            "%s shared byte %u, which an asynchronous copy of CTA rank %u warp %u at %s may still write: it was not "
            "waited for",
            mine, word * 4, cta, warp, place);
    else
        sim_find(w, in, 1u << lane, SIM_F_RACE,
                 "%s shared byte %u, %s CTA rank %u warp %u at %s with no barrier between them", mine, word * 4, theirs,
                 cta, warp, place);
}

static void tell_uninitialised(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t offset,
                               uint32_t bytes) {
    sim_find(w, in, 1u << lane, SIM_F_UNINITIALISED, "reads %u bytes at shared byte %u, not all of which were written",
             bytes, offset);
}

void sim_shared_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                      uint32_t offset, uint32_t bytes, enum sim_access access) {
    const struct sim_cluster *cluster = w->cta->cluster;
    const uint32_t *known = w->known;
    uint64_t *reads = access == SIM_LOAD ? reads_of(w, owner) : NULL;
    uint32_t first = offset / 4, last = (offset + bytes - 1) / 4;
    int untouched = 0;
    for (uint32_t word = first; word <= last; word++) {
        uint32_t touched = 15;
        if (word == first) touched &= 15u << (offset & 3);
        if (word == last) touched &= 15u >> (3 - ((offset + bytes - 1) & 3));
        uint64_t was = owner->writes[word];
        if (access == SIM_LOAD || access == SIM_ATOMIC_ACCESS) untouched |= (touched & ~(uint32_t)was) != 0;
        int other = (was & PENDING) || (ACTOR(was) != w->actor && TIME(was) > known[ACTOR(was)]);
        if (other && (TOUCHED(was) & touched) && !(access == SIM_ATOMIC_ACCESS && (was & ATOMIC)))
            tell_race(w, in, lane, word, was, access == SIM_LOAD ? "reads" : "writes", "written by");
        uint64_t mine = record_of(w, in, touched);
        if (access == SIM_LOAD) {
            uint64_t earlier = reads[word];
            if (TIME(earlier) == known[w->actor]) mine |= earlier & 0xf0; /* bytes read since the last release */
            reads[word] = mine;
            continue;
        }
        for (uint32_t a = 0; a < cluster->n_actors; a++) {
            if (a == w->actor || !owner->reads[a]) continue;
            uint64_t read = owner->reads[a][word];
            if (TIME(read) > known[a] && (TOUCHED(read) & touched))
                tell_race(w, in, lane, word, read, "writes", "read by");
        }
        mine |= was & 15;
        if (access == SIM_COPY)
            mine |= PENDING;
        else
            mine |= touched | (access == SIM_ATOMIC_ACCESS ? ATOMIC : 0);
        owner->writes[word] = mine;
    }
    if (untouched) tell_uninitialised(w, in, lane, offset, bytes);
}

void sim_shared_landed(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t offset,
                       uint32_t bytes) {
    for (uint32_t word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
        uint64_t was = owner->writes[word];
        if (!(was & PENDING) || ACTOR(was) != w->actor) continue; /* a race that was told */
        uint32_t touched = TOUCHED(was);
        owner->writes[word] = record_of(w, in, touched) | (was & 15) | touched;
    }
}
