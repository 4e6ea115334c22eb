/* SPDX-License-Identifier: MIT
 * Happens-before on shared memory. Every warp of a cluster is an actor with a vector clock: known[a] is the time of
 * actor a up to which its accesses are ordered before the warp's next one. A warp's own time grows at every release
 * (barrier arrival and the like), and a barrier gives every warp the maximum of all that arrived. Two accesses of one
 * word race if neither is known to the other's warp, one writes, and not both are atomic.
 *
 * Per 4-byte word, one record of its last write and, per actor, one of its last read:
 *   63..40 time   39..29 actor   28 pending   27 atomic   26..8 instruction   7..4 bytes touched   3..0 bytes written
 * pending: an asynchronous copy under way owns the word; nobody may touch it before its issuer has waited for it.
 * pending and atomic: the word belongs to an mbarrier.
 *
 * Where a program uses asynchronous units (bulk and tensor copies, wgmma), their work has actors of its own (hopper.h)
 * and every clock has a second half, the view of those units: view[a] is the time of actor a up to which its accesses
 * are ordered before work that the warp starts. Ordinary accesses enter it by fence.proxy.async only, at any place of
 * the chain of barriers; barriers carry both halves.
 * Between lanes of one warp only reads of what another lane wrote are seen, where no release of the warp, also
 * bar.warp.sync, lies between. What is not seen: other races between lanes, and a second writer's bytes when two warps
 * write different bytes of one word at the same time (only the later one is kept). */
#ifndef SIM_RACE_H
#define SIM_RACE_H
#include "machine/machine.h"

#define SIM_PENDING           (UINT64_C(1) << 28)
#define SIM_ATOMIC            (UINT64_C(1) << 27)
#define SIM_TIME(record)      ((uint32_t)((record) >> 40))
#define SIM_ACTOR(record)     ((uint32_t)((record) >> 29) & 2047)
#define SIM_STATEMENT(record) ((uint32_t)((record) >> 8) & 0x7ffff)
#define SIM_TOUCHED(record)   ((uint32_t)((record) >> 4) & 15)
enum { SIM_MAX_ACTORS = 2048, SIM_SAME = 29 }; /* bits from there on: time and actor */
static inline uint64_t sim_record(uint32_t time, uint32_t actor, uint32_t statement, uint32_t touched) {
    return (uint64_t)time << 40 | (uint64_t)actor << 29 | (uint64_t)(statement & 0x7ffff) << 8 | touched << 4;
}

enum sim_access { SIM_LOAD, SIM_STORE, SIM_ATOMIC_ACCESS, SIM_COPY };

/* Checks and records an access of `bytes` at `offset` of the CTA's shared memory, which must lie in it. */
void sim_shared_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                      uint32_t offset, uint32_t bytes, enum sim_access access);
/* The same for one access of each of the lanes m, all of which lie in the CTA. */
void sim_shared_touch_lanes(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t m,
                            const uint32_t offset[SIM_LANES], uint32_t bytes, enum sim_access access);
/* The issuer has waited for copies that it issued at `in` for lanes m, `bytes` at offset[l] each: these become ordinary
 * writes of now. */
void sim_shared_landed(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t m,
                       const uint32_t offset[SIM_LANES], uint32_t bytes);
/* An actor's records of reads: of words, then of fours of words that one access read, which stand for their words'
 * while they are not 0. */
uint64_t *sim_reads_of(struct sim_cta *owner, uint32_t actor);
static inline uint32_t sim_words_of(const struct sim_cta *cta) { return (cta->shared_bytes / 16 + 1) * 4; }
static inline size_t sim_reads_bytes(const struct sim_cta *cta) { return sim_words_of(cta) / 4 * 5 * sizeof(uint64_t); }
static inline uint64_t sim_read_at(const struct sim_cta *owner, const uint64_t *reads, uint32_t word) {
    uint64_t four = reads[sim_words_of(owner) + word / 4];
    return four ? four : reads[word];
}
static inline void sim_set_read(const struct sim_cta *owner, uint64_t *reads, uint32_t word, uint64_t record) {
    uint64_t *four = &reads[sim_words_of(owner) + word / 4];
    if (*four) {
        for (uint32_t i = 0; i < 4; i++) reads[(word & ~3u) + i] = *four;
        *four = 0;
    }
    reads[word] = record;
}
/* For race_async.c: the finding about a record that is in the way. */
void sim_tell_race(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t word, uint64_t other,
                   const char *mine, const char *theirs);
void sim_tell_uninitialised(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint32_t offset,
                            uint32_t bytes);
/* A sum of real numbers in memory: red, atom, copies that add. Where they come in any order, bits differ. */
int sim_adds_reals(const struct sim_program *p, uint32_t statement);
/* Clocks. */
void sim_clock_join(uint32_t *into, const uint32_t *from, uint32_t n);
void sim_clock_tick(struct sim_warp *w); /* after a release */
#endif
