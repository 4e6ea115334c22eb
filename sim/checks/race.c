/* SPDX-License-Identifier: MIT
 * The records of shared memory's words, see race.h. */
#include "checks/report.h"
#include "decode/decode.h"
#include "machine/slab.h"
#include "units/hopper.h"

#include <string.h>

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
        *slot = sim_slab_take(sim_reads_bytes(owner), owner->cluster->worker->clock_base);
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

/* The latest read of each warp is kept for each part of the CTA's memory, so that most writes need no look at words. */
static uint32_t *latest_reads(struct sim_cta *owner, uint32_t offset) {
    return owner->latest + (size_t)(offset >> SIM_PART_SHIFT) * owner->cluster->n_warps;
}

/* The warp's own write by another lane, with no release since: a barrier of the warp or a larger one would be one. */
static void tell_lane(struct sim_warp *w, const struct sim_ins *in, const struct sim_cta *owner, uint32_t lane,
                      uint32_t word) {
    sim_find(w, in, 1u << lane, SIM_F_RACE,
             "reads shared byte %u, written by lane %u of the same warp at %s with no barrier of the warp between them",
             word * 4, owner->lanes[word],
             sim_place(w->cta->cluster->launch->program, SIM_STATEMENT(owner->writes[word])));
}

int sim_adds_reals(const struct sim_program *p, uint32_t statement) {
    static const char *const types[] = {".f32", ".f64", ".f16", ".bf16", ".f16x2", ".bf16x2"};
    const char *opcode = p->kernel->statements[statement].opcode, *type = strrchr(opcode, '.');
    if (!strstr(opcode, ".add")) return 0;
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i])) return 1;
    return 0;
}
static int sums_must_be_ordered(const struct sim_warp *w, const struct sim_ins *in, uint64_t was) {
    const struct sim_launch *g = w->cta->cluster->launch;
    return g->options.ordered_sums && sim_adds_reals(g->program, in->statement) &&
           sim_adds_reals(g->program, SIM_STATEMENT(was));
}

static void touch_word(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                       uint32_t word, uint32_t touched, enum sim_access access) {
    const uint32_t *known = w->known;
    uint64_t was = owner->writes[word], mine = record_of(w, in, touched);
    int other = (was & SIM_PENDING) || SIM_TIME(was) > known[SIM_ACTOR(was)];
    const int atomics = access == SIM_ATOMIC_ACCESS && (was & SIM_ATOMIC);
    if (other && (SIM_TOUCHED(was) & touched) && !atomics)
        sim_tell_race(w, in, lane, word, was, access == SIM_LOAD ? "reads" : "writes", "written by");
    else if (other && atomics && !(was & SIM_PENDING) && sums_must_be_ordered(w, in, was))
        sim_find(w, in, 1u << lane, SIM_F_RACE,
                 "adds to shared byte %u, as %s does by %s: nothing orders the two sums, and their order decides bits",
                 word * 4, sim_actor_text(owner->cluster, SIM_ACTOR(was)),
                 sim_place(w->cta->cluster->launch->program, SIM_STATEMENT(was)));
    if (access == SIM_LOAD) {
        if (was >> SIM_SAME == mine >> SIM_SAME && !(was & (SIM_ATOMIC | SIM_PENDING)) &&
            (SIM_TOUCHED(was) & touched) && owner->lanes[word] != lane)
            tell_lane(w, in, owner, lane, word);
        uint64_t *reads = sim_reads_of(owner, w->actor), earlier = sim_read_at(owner, reads, word);
        if (SIM_TIME(earlier) == known[w->actor]) mine |= earlier & 0xf0; /* bytes read since the last release */
        sim_set_read(owner, reads, word, mine);
        return;
    }
    for (uint32_t i = 0; i < owner->n_readers; i++) {
        uint32_t a = owner->readers[i];
        if (a == w->actor) continue;
        uint64_t read = sim_read_at(owner, owner->reads[a], word);
        if (SIM_TIME(read) > known[a] && (SIM_TOUCHED(read) & touched))
            sim_tell_race(w, in, lane, word, read, "writes", "read by");
    }
    mine |= was & 15;
    if (access == SIM_COPY)
        mine |= SIM_PENDING;
    else
        mine |= touched | (access == SIM_ATOMIC_ACCESS ? SIM_ATOMIC : 0);
    owner->writes[word] = mine;
    owner->lanes[word] = (uint8_t)lane;
}

void sim_shared_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                      uint32_t offset, uint32_t bytes, enum sim_access access) {
    uint32_t first = offset / 4, last = (offset + bytes - 1) / 4, missing = 0;
    if (access == SIM_LOAD)
        for (uint32_t part = offset >> SIM_PART_SHIFT; part <= (offset + bytes - 1) >> SIM_PART_SHIFT; part++)
            latest_reads(owner, part << SIM_PART_SHIFT)[w->actor] = w->known[w->actor];
    for (uint32_t word = first; word <= last; word++) {
        uint32_t touched = 15;
        if (word == first) touched &= 15u << (offset & 3);
        if (word == last) touched &= 15u >> (3 - ((offset + bytes - 1) & 3));
        if (access == SIM_LOAD || access == SIM_ATOMIC_ACCESS) missing |= touched & ~(uint32_t)owner->writes[word];
        touch_word(w, in, owner, lane, word, touched, access);
    }
    if (missing) sim_tell_uninitialised(w, in, lane, offset, bytes);
}

/* 1 if nothing hinders a read of n whole words (SIM_LOAD), or a write as far as earlier writes are concerned. Words
 * that one instruction wrote share the upper half of their records, so the first stands for all. */
static inline int words_are_free(const uint64_t *was, uint32_t n, const uint32_t *known, int must_be_written) {
    uint64_t both = was[0], any = was[0], differ = 0;
    for (uint32_t i = 1; i < n; i++) both &= was[i], any |= was[i], differ |= was[i] ^ was[0];
    return !(any & SIM_PENDING) && !(differ >> SIM_SAME) && SIM_TIME(was[0]) <= known[SIM_ACTOR(was[0])] &&
           (!must_be_written || (both & 15) == 15);
}
static inline int nobody_reads(const struct sim_cluster *c, const uint32_t *latest, const uint32_t *known,
                               uint32_t me) {
    uint32_t any = c->n_actors != c->n_warps; /* reads of asynchronous units: word by word */
    for (uint32_t a = 0; a < c->n_warps; a++) any |= (uint32_t)(latest[a] > known[a]) & (uint32_t)(a != me);
    return !any;
}

static inline int all_are(const uint64_t *was, uint32_t n, uint64_t record) {
    uint64_t differ = 0;
    for (uint32_t i = 0; i < n; i++) differ |= was[i] ^ record;
    return !differ;
}

/* n: words of an access, a constant in each of the callers below. Lanes next to each other mostly meet records of one
 * instruction, and one part of the memory: what was found good for one is good for the next (good, part). */
static inline __attribute__((always_inline)) void read_words(struct sim_warp *w, const struct sim_ins *in,
                                                             struct sim_cta *owner, uint32_t m, const uint32_t *offset,
                                                             uint32_t n) {
    uint64_t *reads = sim_reads_of(owner, w->actor), *writes = owner->writes, mine = record_of(w, in, 15), good = 0;
    uint64_t *fours = reads + sim_words_of(owner);
    const uint32_t now = w->known[w->actor];
    uint32_t part = UINT32_MAX;
    EACH_OF(m) __builtin_prefetch(writes + offset[l] / 4);
    EACH_OF(m) {
        uint32_t word = offset[l] / 4;
        if (offset[l] >> SIM_PART_SHIFT != part) {
            part = offset[l] >> SIM_PART_SHIFT;
            latest_reads(owner, offset[l])[w->actor] = now;
        }
        if (!good || !all_are(writes + word, n, good)) {
            if (!words_are_free(writes + word, n, w->known, 1) || writes[word] >> SIM_SAME == mine >> SIM_SAME) {
                sim_shared_touch(w, in, owner, l, offset[l], 4 * n, SIM_LOAD);
                continue;
            }
            good = writes[word];
        }
        if (n == 4)
            fours[word / 4] = mine;
        else
            for (uint32_t i = 0; i < n; i++) sim_set_read(owner, reads, word + i, mine);
    }
}
static inline __attribute__((always_inline)) void write_words(struct sim_warp *w, const struct sim_ins *in,
                                                              struct sim_cta *owner, uint32_t m, const uint32_t *offset,
                                                              uint32_t n, enum sim_access access) {
    uint64_t *writes = owner->writes, mine = record_of(w, in, 15) | (access == SIM_COPY ? SIM_PENDING : 15), good = 0;
    const uint64_t keep = access == SIM_COPY ? 15 : 0;
    uint32_t part = UINT32_MAX;
    int unread = 0;
    EACH_OF(m) __builtin_prefetch(writes + offset[l] / 4, 1);
    EACH_OF(m) {
        uint32_t word = offset[l] / 4;
        if (offset[l] >> SIM_PART_SHIFT != part) {
            part = offset[l] >> SIM_PART_SHIFT;
            unread = nobody_reads(owner->cluster, latest_reads(owner, offset[l]), w->known, w->actor);
        }
        if (!unread ||
            ((!good || !all_are(writes + word, n, good)) && !words_are_free(writes + word, n, w->known, 0))) {
            sim_shared_touch(w, in, owner, l, offset[l], 4 * n, access);
            continue;
        }
        good = writes[word];
        for (uint32_t i = 0; i < n; i++) writes[word + i] = mine | (writes[word + i] & keep);
        memset(owner->lanes + word, (int)l, n);
    }
}

void sim_shared_touch_lanes(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t m,
                            const uint32_t offset[SIM_LANES], uint32_t bytes, enum sim_access access) {
    if (access == SIM_LOAD && bytes == 4)
        read_words(w, in, owner, m, offset, 1);
    else if (access == SIM_LOAD && bytes == 8)
        read_words(w, in, owner, m, offset, 2);
    else if (access == SIM_LOAD && bytes == 16)
        read_words(w, in, owner, m, offset, 4);
    else if ((access == SIM_STORE || access == SIM_COPY) && bytes == 4)
        write_words(w, in, owner, m, offset, 1, access);
    else if ((access == SIM_STORE || access == SIM_COPY) && bytes == 8)
        write_words(w, in, owner, m, offset, 2, access);
    else if ((access == SIM_STORE || access == SIM_COPY) && bytes == 16)
        write_words(w, in, owner, m, offset, 4, access);
    else
        EACH_OF(m) sim_shared_touch(w, in, owner, l, offset[l], bytes, access);
}

void sim_shared_landed(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t m,
                       const uint32_t offset[SIM_LANES], uint32_t bytes) {
    const uint64_t mine = record_of(w, in, 0), pending = SIM_PENDING | (uint64_t)(SIM_MAX_ACTORS - 1) << SIM_SAME;
    const uint64_t due = SIM_PENDING | (uint64_t)w->actor << SIM_SAME;
    EACH_OF(m) {
        uint64_t *words = owner->writes + offset[l] / 4;
        for (uint32_t i = 0; i < bytes / 4; i++) {
            uint64_t was = words[i], landed = mine | (was & 255) | (was >> 4 & 15);
            words[i] = (was & pending) == due ? landed : was; /* else a race that was told */
        }
    }
}
