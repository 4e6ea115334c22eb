/* SPDX-License-Identifier: MIT
 * The records of shared memory's words, see race.h. */
#include "hopper.h"
#include "report.h"

#include <stdlib.h>

static uint64_t record_of(const struct sim_warp *w, const struct sim_ins *in, uint32_t touched) {
    return sim_record(w->known[w->actor], w->actor, in->statement, touched);
}

void sim_clock_join(uint32_t *into, const uint32_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (from[i] > into[i]) into[i] = from[i];
}
void sim_clock_tick(struct sim_warp *w) { w->known[w->actor]++; }

uint64_t *sim_reads_of(struct sim_cta *owner, uint32_t actor) {
    uint64_t **slot = &owner->reads[actor];
    if (!*slot) {
        *slot = calloc(owner->shared_bytes / 4 + 1, sizeof **slot);
        if (!*slot) abort();
        owner->readers[owner->n_readers++] = (uint16_t)actor;
    }
    return *slot;
}

void sim_tell_race(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t word, uint64_t other,
                   const char *mine, const char *theirs) {
    const struct sim_cluster *c = w->cta->cluster;
    const char *place = sim_place(c->launch->program, SIM_STATEMENT(other));
    const char *who = sim_actor_text(c, SIM_ACTOR(other));
    if ((other & SIM_PENDING) && (other & SIM_ATOMIC))
        sim_find(w, in, 1u << lane, SIM_F_PROTOCOL, "%s shared byte %u, which belongs to the mbarrier of %s", mine,
                 word * 4, place);
    else if (other & SIM_PENDING)
        sim_find(w, in, 1u << lane, SIM_F_ASYNC,
                 "%s shared byte %u, which an asynchronous copy of %s at %s may still write: it was not waited for",
                 mine, word * 4, who, place);
    else if (SIM_ACTOR(other) >= c->n_warps)
        sim_find(w, in, 1u << lane, SIM_F_ASYNC, "%s shared byte %u, %s %s at %s, which was not waited for", mine,
                 word * 4, theirs, who, place);
    else
        sim_find(w, in, 1u << lane, SIM_F_RACE, "%s shared byte %u, %s %s at %s with no barrier between them", mine,
                 word * 4, theirs, who, place);
}

void sim_tell_uninitialised(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t offset,
                            uint32_t bytes) {
    sim_find(w, in, 1u << lane, SIM_F_UNINITIALISED, "reads %u bytes at shared byte %u, not all of which were written",
             bytes, offset);
}

void sim_shared_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                      uint32_t offset, uint32_t bytes, enum sim_access access) {
    const uint32_t *known = w->known;
    uint64_t *reads = access == SIM_LOAD ? sim_reads_of(owner, w->actor) : NULL;
    uint32_t first = offset / 4, last = (offset + bytes - 1) / 4;
    int untouched = 0;
    for (uint32_t word = first; word <= last; word++) {
        uint32_t touched = 15;
        if (word == first) touched &= 15u << (offset & 3);
        if (word == last) touched &= 15u >> (3 - ((offset + bytes - 1) & 3));
        uint64_t was = owner->writes[word];
        if (access == SIM_LOAD || access == SIM_ATOMIC_ACCESS) untouched |= (touched & ~(uint32_t)was) != 0;
        int other = (was & SIM_PENDING) || (SIM_ACTOR(was) != w->actor && SIM_TIME(was) > known[SIM_ACTOR(was)]);
        if (other && (SIM_TOUCHED(was) & touched) && !(access == SIM_ATOMIC_ACCESS && (was & SIM_ATOMIC)))
            sim_tell_race(w, in, lane, word, was, access == SIM_LOAD ? "reads" : "writes", "written by");
        uint64_t mine = record_of(w, in, touched);
        if (access == SIM_LOAD) {
            uint64_t earlier = reads[word];
            if (SIM_TIME(earlier) == known[w->actor]) mine |= earlier & 0xf0; /* bytes read since the last release */
            reads[word] = mine;
            continue;
        }
        for (uint32_t i = 0; i < owner->n_readers; i++) {
            uint32_t a = owner->readers[i];
            if (a == w->actor) continue;
            uint64_t read = owner->reads[a][word];
            if (SIM_TIME(read) > known[a] && (SIM_TOUCHED(read) & touched))
                sim_tell_race(w, in, lane, word, read, "writes", "read by");
        }
        mine |= was & 15;
        if (access == SIM_COPY)
            mine |= SIM_PENDING;
        else
            mine |= touched | (access == SIM_ATOMIC_ACCESS ? SIM_ATOMIC : 0);
        owner->writes[word] = mine;
    }
    if (untouched) sim_tell_uninitialised(w, in, lane, offset, bytes);
}

void sim_shared_landed(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t offset,
                       uint32_t bytes) {
    for (uint32_t word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
        uint64_t was = owner->writes[word];
        if (!(was & SIM_PENDING) || SIM_ACTOR(was) != w->actor) continue; /* a race that was told */
        uint32_t touched = SIM_TOUCHED(was);
        owner->writes[word] = record_of(w, in, touched) | (was & 15) | touched;
    }
}
