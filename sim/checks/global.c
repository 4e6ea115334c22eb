/* SPDX-License-Identifier: MIT
 * The records of global memory's words, see global.h. They lie beside the allocation, page by page; a page that copies
 * and fills alone have touched as a whole has one record for all words. */
#include "checks/global.h"

#include "checks/report.h"
#include "machine/address.h"
#include "machine/device.h"
#include "units/hopper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_SHIFT = 12, WORDS = 1 << (PAGE_SHIFT - 2), SLOTS = 3 };
enum { WRITES, READS, MORE_READS };
struct sim_page {
    uint64_t *words[SLOTS]; /* NULL: all are like `all` */
    uint64_t all[SLOTS];
};
#define ACTOR(record)    ((uint32_t)((record) >> 18) & (SIM_GLOBAL_ACTORS - 1))
#define PLACE(record)    ((uint32_t)((record) >> 6) & (SIM_PLACES - 1))
#define STRENGTH(record) ((uint32_t)((record) >> 4) & 3)
#define LOAD(word)       __atomic_load_n(word, __ATOMIC_RELAXED)
#define STORE(word, x)   __atomic_store_n(word, x, __ATOMIC_RELAXED)

struct who {            /* one access, and what its actor knows */
    struct sim_warp *w; /* NULL: a copy or fill */
    const struct sim_ins *in;
    const uint32_t *known;
    const struct sim_stamp *stamp;
    const struct sim_deed *deed;
    uint64_t id, mine;    /* time and actor; the record but for its bytes */
    uint64_t memo[SLOTS]; /* by kind of record: time and actor of the last one looked at, and whether it is ordered */
    uint8_t verdict[SLOTS];
    uint32_t own_first, n_own, calm_from, n_calm;
    uint32_t strength, lane;
    uint64_t run_at; /* where the lane's bytes begin, if lanes behind it follow with run_bytes each */
    uint32_t run_bytes;
    int unit;
    int sums; /* it adds real numbers, in a kernel that claims the same bits whatever the order of its warps is */
    enum sim_found found;
};

static __attribute__((noinline)) int is_known_far(const struct who *q, uint64_t was) {
    uint32_t actor = ACTOR(was), local_actor = actor - q->deed->first;
    if (local_actor < q->deed->n) {
        const struct sim_cluster *c = q->w ? q->w->cta->cluster : NULL;
        if (!c || c->launch->far_unknown) return 1;
        return c->n_far && SIM_TIME(was) <= q->w->known[c->far_at + local_actor];
    }
    return sim_is_after(q->stamp, actor);
}
static inline int is_known(struct who *q, uint64_t was, int slot) {
    const uint64_t id = was >> 18;
    if (id == q->memo[slot]) return q->verdict[slot];
    const uint32_t actor = ACTOR(was), own = actor - q->own_first;
    int yes = own < q->n_own                     ? SIM_TIME(was) <= q->known[own]
              : actor - q->calm_from < q->n_calm ? 1
                                                 : is_known_far(q, was);
    q->memo[slot] = id, q->verdict[slot] = (uint8_t)yes;
    return yes;
}
/* Both strong, and each in the scope of the other. */
static inline int both_strong(const struct who *q, uint64_t was) {
    uint32_t least = STRENGTH(was) < q->strength ? STRENGTH(was) : q->strength;
    return least == SIM_STRONG || (least == SIM_STRONG_NEAR && ACTOR(was) - q->own_first < q->n_own);
}
/* Both add real numbers: strong, but their order decides bits. */
static __attribute__((noinline)) int both_add(const struct who *q, uint64_t was) {
    const struct sim_deed *d = sim_deed_of(ACTOR(was));
    return q->sums && d && d->program && PLACE(was) && sim_adds_reals(d->program, d->program->places[PLACE(was)]);
}

/* ---- findings ---- */

static void tell_actor(const struct who *q, uint64_t was, char *out, size_t room) {
    const struct sim_deed *d = sim_deed_of(ACTOR(was));
    if (!d) {
        snprintf(out, room, "something earlier");
        return;
    }
    const char *place = d->program && PLACE(was) ? sim_place(d->program, d->program->places[PLACE(was)]) : NULL;
    char who[160] = "";
    if (d->per_cluster) {
        uint32_t index = ACTOR(was) - d->first, cluster = index / d->per_cluster, actor = index % d->per_cluster;
        uint32_t n[3], id[3], per_cta = d->n_warps, rank = actor / per_cta;
        const uint32_t n_ctas = d->cluster[0] * d->cluster[1] * d->cluster[2];
        int unit = actor >= n_ctas * per_cta;
        if (unit) rank = 0;
        for (int i = 0; i < 3; i++) n[i] = d->grid[i] / d->cluster[i];
        id[0] = cluster % n[0], id[1] = cluster / n[0] % n[1], id[2] = cluster / n[0] / n[1];
        uint32_t in[3] = {rank % d->cluster[0], rank / d->cluster[0] % d->cluster[1],
                          rank / d->cluster[0] / d->cluster[1]};
        for (int i = 0; i < 3; i++) id[i] = id[i] * d->cluster[i] + in[i];
        if (unit)
            snprintf(who, sizeof who, "a bulk copy of the cluster of CTA (%u,%u,%u)", id[0], id[1], id[2]);
        else
            snprintf(who, sizeof who, "CTA (%u,%u,%u) warp %u", id[0], id[1], id[2], actor % per_cta);
    }
    const char *sep = who[0] ? ", " : "";
    if (d == q->deed)
        snprintf(out, room, "%s at %s", who, place ? place : "some place");
    else
        snprintf(out, room, "%s%s%s (number %llu)%s%s", who, sep, d->name, (unsigned long long)d->launch,
                 place ? " at " : "", place ? place : "");
}
static __attribute__((noinline, cold)) void tell(struct who *q, uint64_t address, uint64_t was, const char *does,
                                                 const char *theirs) {
    const uint32_t own = ACTOR(was) - q->own_first;
    const int fence = q->w && q->unit && own < q->w->cta->cluster->n_warps && SIM_TIME(was) <= q->w->known[own];
    if (fence && q->found) return;
    q->found = fence ? SIM_FOUND_FENCE : SIM_FOUND_FAULT;
    const struct sim_block *b = sim_memory_find(address);
    char other[720];
    tell_actor(q, was, other, sizeof other);
    const unsigned long long offset = b ? address - b->address : 0, number = b ? b->number : 0;
    const int is_other = !sim_deed_of(ACTOR(was)) || sim_deed_of(ACTOR(was)) != q->deed;
    if (!q->w) {
        const struct sim_deed *d = sim_deed_of(ACTOR(was));
        sim_find_deed(d ? d->program : NULL, d && d->program ? d->program->places[PLACE(was)] : 0,
                      "%s (number %llu) %s offset %llu of allocation %llu, %s %s: no stream, event or wait orders the "
                      "two",
                      q->deed->name, (unsigned long long)q->deed->launch, does, offset, number, theirs, other);
        return;
    }
    const uint32_t lane = q->lane + (q->run_bytes ? (uint32_t)(address - q->run_at) / q->run_bytes : 0);
    if (fence)
        sim_find(q->w, q->in, 1u << lane, SIM_F_PROXY,
                 "only a fence is missing: %s offset %llu of allocation %llu through the async proxy, %s %s, with no "
                 "fence.proxy.async in between",
                 does, offset, number, theirs, other);
    else if (q->sums && both_strong(q, was))
        sim_find(q->w, q->in, 1u << lane, SIM_F_RACE,
                 "adds to offset %llu of allocation %llu, as %s: nothing orders the two sums, and their order decides "
                 "bits",
                 offset, number, other);
    else
        sim_find(q->w, q->in, 1u << lane, SIM_F_RACE, "%s offset %llu of allocation %llu, %s %s: %s", does, offset,
                 number, theirs, other,
                 is_other ? "no stream, event or wait orders the two" : "nothing orders the two");
}

/* ---- words ---- */

static struct sim_page *page_of(const struct sim_block *b, uint64_t address) {
    struct sim_page **slot = &b->pages[(address - b->address) >> PAGE_SHIFT],
                    *p = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (__builtin_expect(p != NULL, 1)) return p;
    struct sim_page *fresh = calloc(1, sizeof *fresh);
    if (!fresh) abort();
    if (__atomic_compare_exchange_n(slot, &p, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return fresh;
    free(fresh);
    return p;
}
static __attribute__((noinline)) uint64_t *make_words(struct sim_page *p, int slot) {
    uint64_t *fresh = malloc(WORDS * sizeof *fresh), *was = NULL, all = LOAD(&p->all[slot]);
    if (!fresh) abort();
    for (uint32_t i = 0; i < WORDS; i++) fresh[i] = all;
    if (__atomic_compare_exchange_n(&p->words[slot], &was, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return fresh;
    free(fresh);
    return was;
}
static inline uint64_t *words_of(struct sim_page *p, int slot) {
    uint64_t *x = __atomic_load_n(&p->words[slot], __ATOMIC_ACQUIRE);
    return __builtin_expect(x != NULL, 1) ? x : make_words(p, slot);
}
static inline const uint64_t *look(const struct sim_page *p, int slot) { /* NULL: all words are like p->all */
    return __atomic_load_n(&p->words[slot], __ATOMIC_ACQUIRE);
}
static inline uint64_t word_of(const uint64_t *words, const struct sim_page *p, int slot, uint32_t i) {
    return words ? LOAD(&words[i]) : LOAD(&p->all[slot]);
}
static inline int clashes(struct who *q, uint64_t was, uint64_t mask, int slot) {
    return was && was >> 18 != q->id && (was & mask) && !is_known(q, was, slot) &&
           (!both_strong(q, was) || (q->sums && both_add(q, was)));
}
/* Four words that mostly have had the same fate: one look at each kind of record. 0: they must be looked at singly. */
struct four {
    uint64_t x[4];
};
static inline struct four four_of(const uint64_t *words, uint32_t i) {
    return (struct four){{LOAD(&words[i]), LOAD(&words[i + 1]), LOAD(&words[i + 2]), LOAD(&words[i + 3])}};
}
static inline int are_alike_from(struct four f, uint32_t bit) {
    return !(((f.x[0] ^ f.x[1]) | (f.x[0] ^ f.x[2]) | (f.x[0] ^ f.x[3])) >> bit);
}
static inline int are_alike(struct four f) { return are_alike_from(f, 18); } /* time and actor */
static inline int read_four(struct who *q, struct sim_page *p, uint32_t i) {
    const uint64_t *writes = look(p, WRITES), mine = q->mine | 15;
    struct four was = {{LOAD(&p->all[WRITES])}};
    if (writes) {
        was = four_of(writes, i);
        if (!are_alike(was)) return 0;
    }
    if (was.x[0] && was.x[0] >> 18 != q->id && !is_known(q, was.x[0], WRITES)) return 0;
    for (int slot = READS; slot <= MORE_READS; slot++) {
        uint64_t *reads = words_of(p, slot);
        struct four r = four_of(reads, i);
        if (!are_alike(r)) return 0;
        if (r.x[0] >> 18 == q->id || !r.x[0] || is_known(q, r.x[0], slot)) {
            for (uint32_t k = 0; k < 4; k++)
                if (r.x[k] != mine) STORE(&reads[i + k], mine);
            return 1;
        }
    }
    return 1;
}
static inline void read_words(struct who *q, struct sim_page *p, uint64_t address, uint32_t n, uint64_t mask) {
    const uint32_t first = (uint32_t)(address & ((1u << PAGE_SHIFT) - 1)) / 4;
    const uint64_t *writes = look(p, WRITES), mine = q->mine | mask;
    uint64_t *reads = words_of(p, READS), *more_reads = NULL;
    for (uint32_t i = first; i < first + n; i++) {
        while (first + n - i >= 4 && read_four(q, p, i))
            if ((i += 4) == first + n) return;
        uint64_t was = word_of(writes, p, WRITES, i), r = LOAD(&reads[i]);
        if (clashes(q, was, mask, WRITES) && q->found < SIM_FOUND_FAULT)
            tell(q, address + 4 * (uint64_t)(i - first), was, "reads", "written by");
        if (r >> 18 == q->id) {
            if (r != mine) STORE(&reads[i], mine | (r & 15));
        } else if (!r || is_known(q, r, READS)) {
            STORE(&reads[i], mine);
        } else {
            if (!more_reads) more_reads = words_of(p, MORE_READS);
            uint64_t s = LOAD(&more_reads[i]);
            if (s >> 18 == q->id)
                STORE(&more_reads[i], mine | (s & 15));
            else if (!s || is_known(q, s, MORE_READS))
                STORE(&more_reads[i], mine);
        }
    }
}
static inline int write_four(struct who *q, struct sim_page *p, uint32_t i) {
    uint64_t *writes = words_of(p, WRITES), mine = q->mine | 15;
    for (int slot = 0; slot < SLOTS; slot++) {
        const uint64_t *words = slot == WRITES ? writes : look(p, slot);
        const uint64_t all = LOAD(&p->all[slot]);
        struct four f = {{all, all, all, all}};
        if (words) f = four_of(words, i);
        if (!are_alike(f)) return 0;
        if (f.x[0] && f.x[0] >> 18 != q->id && !is_known(q, f.x[0], slot) &&
            (q->sums || !(are_alike_from(f, 4) && both_strong(q, f.x[0]))))
            return 0;
    }
    for (uint32_t k = 0; k < 4; k++) STORE(&writes[i + k], mine);
    return 1;
}
static inline void write_words(struct who *q, struct sim_page *p, uint64_t address, uint32_t n, uint64_t mask) {
    const uint32_t first = (uint32_t)(address & ((1u << PAGE_SHIFT) - 1)) / 4;
    const uint64_t *reads = look(p, READS), *more_reads = look(p, MORE_READS);
    uint64_t *writes = words_of(p, WRITES);
    for (uint32_t i = first; i < first + n; i++) {
        while (first + n - i >= 4 && write_four(q, p, i))
            if ((i += 4) == first + n) return;
        uint64_t was = LOAD(&writes[i]), r = word_of(reads, p, READS, i), s = word_of(more_reads, p, MORE_READS, i);
        if (q->found < SIM_FOUND_FAULT) {
            const uint64_t word = address + 4 * (uint64_t)(i - first);
            if (clashes(q, was, mask, WRITES)) tell(q, word, was, "writes", "written by");
            if (clashes(q, r, mask, READS)) tell(q, word, r, "writes", "read by");
            if (clashes(q, s, mask, MORE_READS)) tell(q, word, s, "writes", "read by");
        }
        STORE(&writes[i], q->mine | mask | (was >> 18 == q->id ? was & 15 : 0));
    }
}
static inline void touch_words(struct who *q, struct sim_page *p, uint64_t address, uint32_t n, uint64_t mask,
                               enum sim_access access) {
    if (access == SIM_LOAD)
        read_words(q, p, address, n, mask);
    else
        write_words(q, p, address, n, mask);
}

/* A whole page with one record: of a copy or fill. 0: it must go word by word. */
static int touch_page(struct who *q, struct sim_page *p, uint64_t address, enum sim_access access) {
    int slot = access == SIM_LOAD ? READS : WRITES;
    for (int i = 0; i < SLOTS; i++)
        if ((access != SIM_LOAD || i != WRITES) && __atomic_load_n(&p->words[i], __ATOMIC_ACQUIRE)) return 0;
    if (access == SIM_LOAD) {
        for (uint32_t i = 0; i < WORDS && !q->found; i++) {
            uint64_t was = word_of(look(p, WRITES), p, WRITES, i);
            if (clashes(q, was, 15, WRITES)) tell(q, address + 4 * (uint64_t)i, was, "reads", "written by");
        }
        if (p->all[READS] && !is_known(q, p->all[READS], READS)) slot = MORE_READS;
    } else {
        for (int i = 0; i < SLOTS && !q->found; i++)
            if (clashes(q, p->all[i], 15, i))
                tell(q, address, p->all[i], "writes", i == WRITES ? "written by" : "read by");
    }
    STORE(&p->all[slot], q->mine | 15);
    return 1;
}

static void touch_range(struct who *q, const struct sim_block *b, uint64_t address, uint64_t bytes,
                        enum sim_access access) {
    const uint64_t end = address + bytes, page = 1u << PAGE_SHIFT;
    while (address < end) {
        struct sim_page *p = page_of(b, address);
        if (!q->w && !(address & (page - 1)) && end - address >= page && touch_page(q, p, address, access)) {
            address += page;
            continue;
        }
        uint64_t stop = (address & ~(page - 1)) + page;
        if (stop > end) stop = end;
        if (address & 3 || stop - address < 4) { /* a part of a word */
            uint64_t word_end = (address & ~UINT64_C(3)) + 4 < stop ? (address & ~UINT64_C(3)) + 4 : stop;
            uint64_t mask = (UINT64_C(15) << (address & 3)) & (15u >> (3 - ((word_end - 1) & 3)));
            touch_words(q, p, address & ~UINT64_C(3), 1, mask, access);
            address = word_end;
            continue;
        }
        touch_words(q, p, address, (uint32_t)(stop - address) / 4, 15, access);
        address += (stop - address) & ~UINT64_C(3);
    }
}

/* ---- callers ---- */

static inline struct who of_warp(struct sim_warp *w, const struct sim_ins *in, uint32_t actor, uint32_t time,
                                 uint32_t strength) {
    const struct sim_cluster *c = w->cta->cluster;
    const struct sim_launch *g = c->launch;
    const int late = c->waits_at && w->known[c->waits_at];
    struct who q = {.w = w, .in = in, .known = w->known, .deed = g->deed, .strength = strength};
    q.stamp = late ? &g->when->after : g->begun;
    q.id = (uint64_t)time << 22 | (c->first_actor + actor);
    q.mine = q.id << 18 | (uint64_t)in->place << 6 | (uint64_t)strength << 4;
    q.own_first = c->first_actor, q.n_own = c->n_actors;
    q.calm_from = g->calm_from, q.n_calm = g->deed->first - g->calm_from;
    q.sums = g->options.ordered_sums && strength && sim_adds_reals(g->program, in->statement);
    return q;
}

/* Lanes that go to many lines wait for all of them at once. */
static void fetch_ahead(const struct sim_block *b, uint32_t m, const uint64_t address[SIM_LANES]) {
    EACH_OF(m) {
        const uint64_t from = address[l] - b->address;
        if (from >= b->bytes) continue;
        __builtin_prefetch((const void *)(uintptr_t)address[l]);
        const struct sim_page *p = __atomic_load_n(&b->pages[from >> PAGE_SHIFT], __ATOMIC_ACQUIRE);
        const uint32_t i = (uint32_t)(address[l] & ((1u << PAGE_SHIFT) - 1)) / 4;
        if (!p) continue;
        for (int slot = 0; slot <= READS; slot++) {
            const uint64_t *words = look(p, slot);
            if (words) __builtin_prefetch(words + i, 1);
        }
    }
}

void sim_global_touch(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                      const uint8_t bytes[SIM_LANES], uint32_t all_bytes, enum sim_access access,
                      const struct sim_block *block) {
    struct who q = of_warp(w, in, w->actor, w->known[w->actor], in->order & SIM_STRENGTH);
    const struct sim_block *b = block;
    if (b) fetch_ahead(b, m, address);
    for (uint32_t left = m; left;) {
        const uint32_t l = q.lane = (uint32_t)__builtin_ctz(left), n = bytes ? bytes[l] : all_bytes;
        uint32_t next = l + 1, size = n; /* lanes up to `next` go to the same bytes, or to those that follow */
        left &= left - 1;
        if (!n) continue;
        if (!b || address[l] - b->address >= b->bytes) b = sim_block_of(w->cta->cluster->worker, address[l], n);
        if (!b) continue;
        q.run_at = address[l], q.run_bytes = 0;
        if ((address[l] | n) & 3) {
            touch_range(&q, b, address[l], n, access);
            continue;
        }
        /* within a page, as it is aligned and at most 32 bytes */
        const uint64_t page = 1u << PAGE_SHIFT, end = (address[l] & ~(page - 1)) + page;
        while (left >> (next & 31) & 1 && address[next] == address[l] && (!bytes || bytes[next] == n))
            left &= left - 1, next++;
        if (next == l + 1) {
            while (left >> (next & 31) & 1 && address[next] == address[l] + size && address[next] < end &&
                   address[next] - b->address < b->bytes && (!bytes || bytes[next] == n))
                left &= left - 1, next++, size += n;
            q.run_bytes = n;
        }
        touch_words(&q, page_of(b, address[l]), address[l], size / 4, 15, access);
    }
}
enum sim_found sim_global_unit(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                               uint64_t bytes, enum sim_access access, int strong, uint32_t actor, uint32_t time,
                               enum sim_found found) {
    const struct sim_block *b = bytes ? sim_block_of(w->cta->cluster->worker, address, bytes) : NULL;
    if (!b || !w->cta->cluster->launch->deed) return found;
    struct who q = of_warp(w, in, actor, time, strong ? SIM_STRONG : 0);
    q.known = sim_global_view(w), q.unit = 1, q.lane = lane, q.found = found;
    touch_range(&q, b, address, bytes, access);
    return q.found;
}
int sim_global_deed(const struct sim_deed *deed, const struct sim_stamp *stamp, const void *address, size_t bytes,
                    enum sim_access access) {
    const uint64_t from = (uint64_t)(uintptr_t)address;
    static const uint32_t always = UINT32_MAX;
    if (!sim_memory_holds(from, bytes)) return 0;
    struct who q = {.known = &always, .stamp = stamp, .deed = deed, .own_first = deed->first, .n_own = 1};
    q.id = UINT64_C(1) << 22 | deed->first;
    q.mine = q.id << 18;
    q.calm_from = sim_calm_from(stamp, deed->first), q.n_calm = deed->first - q.calm_from;
    touch_range(&q, sim_memory_find(from), from, bytes, access);
    return q.found != SIM_FOUND_NOTHING;
}

void sim_pages_free(struct sim_page **pages, size_t bytes) {
    for (size_t i = 0; i < (bytes >> PAGE_SHIFT) + 1; i++) {
        if (!pages[i]) continue;
        for (int k = 0; k < SLOTS; k++) free(pages[i]->words[k]);
        free(pages[i]);
        pages[i] = NULL;
    }
}
