/* SPDX-License-Identifier: MIT
 * Shared memory as asynchronous units touch it: checks against the view of the warp that starts the work (race.h), and
 * records in the name of the actor whose completion others wait for. */
#include "checks/report.h"
#include "units/hopper.h"

static void tell_fence(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t word, uint64_t was,
                       const char *does) {
    const struct sim_cluster *c = w->cta->cluster;
    sim_find(w, in, 1u << lane, SIM_F_PROXY,
             "only a fence is missing: %s shared byte %u through the async proxy, written by %s at %s, with no "
             "fence.proxy.async in between",
             does, word * 4, sim_actor_text(c, SIM_ACTOR(was)), sim_place(c->launch->program, SIM_STATEMENT(was)));
}

/* The record of the last write of a word, and what was found so far. */
static enum sim_found bad_write(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t word,
                                uint64_t was, const char *does, const uint32_t *view, enum sim_found found) {
    uint32_t actor = SIM_ACTOR(was);
    if (!(was & SIM_PENDING)) {
        if (SIM_TIME(was) <= view[actor]) return found;
        if (actor == w->actor || SIM_TIME(was) <= w->known[actor]) {
            if (!found) tell_fence(w, in, lane, word, was, does);
            return SIM_FOUND_FENCE;
        }
    }
    sim_tell_race(w, in, lane, word, was, does, "written by");
    return SIM_FOUND_FAULT;
}

static uint32_t bytes_of(uint32_t word, uint32_t offset, uint32_t bytes) {
    uint32_t touched = 15, end = offset + bytes;
    if (word == offset / 4) touched &= 15u << (offset & 3);
    if (word == (end - 1) / 4) touched &= 15u >> (3 - ((end - 1) & 3));
    return touched;
}

enum sim_found sim_async_read(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                              uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t time, enum sim_found found) {
    uint64_t *reads = sim_reads_of(owner, actor), *writes = owner->writes, good = UINT64_MAX;
    const uint32_t *view = sim_view(w), first = offset / 4, last = (offset + bytes - 1) / 4;
    const uint64_t mine = sim_record(time, actor, in->statement, 15);
    if (offset % 4 == 0 && bytes % 4 == 0) { /* whole words, most of which one instruction wrote */
        uint32_t word = first;
        for (; word <= last; word++) {
            uint64_t was = writes[word];
            if (was != good) {
                if ((was & 15) != 15 || was & SIM_PENDING || SIM_TIME(was) > view[SIM_ACTOR(was)]) break;
                good = was;
            }
        }
        const uint32_t n_words = sim_words_of(owner);
        if (word > last) {
            for (word = first; word <= last;) {
                if (word % 4 || last - word < 3)
                    sim_set_read(owner, reads, word++, mine);
                else
                    reads[n_words + word / 4] = mine, word += 4;
            }
            return found;
        }
    }
    for (uint32_t word = first; word <= last; word++) {
        uint64_t was = writes[word], earlier = sim_read_at(owner, reads, word);
        uint32_t touched = bytes_of(word, offset, bytes);
        if (found < SIM_FOUND_FAULT && touched & ~(uint32_t)was) {
            found = SIM_FOUND_FAULT;
            sim_tell_uninitialised(w, in, lane, offset, bytes);
        }
        if (found < SIM_FOUND_FAULT && (SIM_TOUCHED(was) & touched))
            found = bad_write(w, in, lane, word, was, "reads", view, found);
        if (SIM_TIME(earlier) == time) touched |= SIM_TOUCHED(earlier);
        sim_set_read(owner, reads, word, sim_record(time, actor, in->statement, touched));
    }
    return found;
}

enum sim_found sim_async_write(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                               uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t time, const uint32_t *view,
                               enum sim_found found) {
    for (uint32_t word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
        uint64_t was = owner->writes[word];
        uint32_t touched = bytes_of(word, offset, bytes);
        int own = SIM_ACTOR(was) == actor && SIM_TIME(was) == time; /* other bytes of the same transaction */
        if (!own && found < SIM_FOUND_FAULT && (SIM_TOUCHED(was) & touched))
            found = bad_write(w, in, lane, word, was, "writes", view, found);
        for (uint32_t i = 0; i < owner->n_readers && found < SIM_FOUND_FAULT; i++) {
            uint32_t a = owner->readers[i];
            uint64_t read = sim_read_at(owner, owner->reads[a], word);
            if (a == w->actor || SIM_TIME(read) <= w->known[a] || !(SIM_TOUCHED(read) & touched)) continue;
            sim_tell_race(w, in, lane, word, read, "writes", "read by");
            found = SIM_FOUND_FAULT;
        }
        if (own) touched |= SIM_TOUCHED(was);
        owner->writes[word] = sim_record(time, actor, in->statement, touched) | (was & 15) | touched;
    }
    return found;
}

void sim_copy_handed(struct sim_warp *w, const struct sim_ins *in, uint32_t offset, uint32_t bytes, uint32_t actor,
                     uint32_t time) {
    uint64_t *writes = w->cta->writes;
    for (uint32_t word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
        uint64_t was = writes[word];
        if (!(was & SIM_PENDING) || SIM_ACTOR(was) != w->actor) continue; /* a race that was told */
        uint32_t touched = SIM_TOUCHED(was);
        writes[word] = sim_record(time, actor, in->statement, touched) | (was & 15) | touched;
    }
}

void sim_mark_barrier(struct sim_cta *cta, uint32_t offset, uint64_t record) {
    for (uint32_t word = offset / 4; word < offset / 4 + 2; word++)
        cta->writes[word] = record ? record | SIM_PENDING | SIM_ATOMIC | 0xff : 0;
}
