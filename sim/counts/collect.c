/* SPDX-License-Identifier: MIT
 * Counting while a launch runs: each worker has a sheet with a row for each warp of a cluster, which its end adds to
 * the launch's. What the text of an instruction tells is not counted here but afterwards, by its executions (work.c);
 * here is what addresses and registers decide. */
#include "checks/race.h"
#include "counts/counts.h"
#include "decode/decode.h"
#include "units/tcgen05_product.h"
#include "units/transfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SECTOR = 32, BANKS = 32, WORD = 4 };

/* ---- sheets ---- */

static void *zeroed(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}
static struct sim_count_sheet *sheet_open(const struct sim_launch *g) {
    struct sim_count_sheet *s = zeroed(1, sizeof *s);
    s->n = g->cluster[0] * g->cluster[1] * g->cluster[2] * g->n_warps;
    s->n_ins = g->program->n_ins + 1; /* the exit behind the last */
    s->warps = zeroed(s->n, sizeof *s->warps);
    for (uint32_t i = 0; i < s->n; i++) {
        s->warps[i].executed = zeroed(2 * (size_t)s->n_ins, sizeof *s->warps[i].executed);
        s->warps[i].lanes = s->warps[i].executed + s->n_ins;
        s->warps[i].waited = zeroed(s->n_ins, sizeof *s->warps[i].waited);
    }
    return s;
}
static void sheet_close(struct sim_count_sheet *s) {
    for (uint32_t i = 0; i < s->n; i++)
        free(s->warps[i].executed), free(s->warps[i].waited), sim_counts_free(&s->warps[i].counts);
    sim_time_free(s);
    sim_footprint_free(&s->footprint);
    free(s->warps);
    free(s);
}

void sim_counts_open(struct sim_worker *k) {
    struct sim_cluster *c = &k->cluster;
    if (!k->launch->options.counts) return;
    k->counts = sheet_open(k->launch);
    sim_time_open(k, k->counts);
    for (uint32_t i = 0; i < c->n_warps; i++)
        c->ctas[i / c->ctas[0].n_warps].warps[i % c->ctas[0].n_warps].counts = &k->counts->warps[i];
}
void sim_counts_close(struct sim_worker *k) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sim_count_sheet *from = k->counts, *to;
    if (!from) return;
    pthread_mutex_lock(&lock);
    if (!k->launch->counts) k->launch->counts = sheet_open(k->launch);
    to = k->launch->counts;
    for (uint32_t i = 0; i < to->n; i++) {
        sim_counts_add(&to->warps[i].counts, &from->warps[i].counts);
        for (uint32_t j = 0; j < 2 * to->n_ins; j++) to->warps[i].executed[j] += from->warps[i].executed[j];
        for (uint32_t j = 0; j < to->n_ins; j++) to->warps[i].waited[j] += from->warps[i].waited[j];
    }
    sim_footprint_add(&to->footprint, &from->footprint);
    pthread_mutex_unlock(&lock);
    sheet_close(from);
    k->counts = NULL;
}

static struct sim_counted counted(struct sim_launch *g, const struct sim_profile *profile) {
    const uint32_t ranks = g->cluster[0] * g->cluster[1] * g->cluster[2];
    struct sim_counted c = {.kernel = strdup(g->program->kernel->name),
                            .profile = profile,
                            .number = g->number,
                            .n_launches = 1,
                            .n_ctas = (uint64_t)g->grid[0] * g->grid[1] * g->grid[2],
                            .n_threads = g->n_threads,
                            .cluster = ranks,
                            .failed = atomic_load(&g->failed) != 0};
    memcpy(c.grid, g->grid, sizeof c.grid);
    c.n_roles = sim_count_roles(g->program, g->counts, ranks, &c.roles);
    for (uint32_t i = 0; i < c.n_roles; i++) sim_counts_add(&c.counts, &c.roles[i].counts);
    c.counts.v[SIM_COUNT_footprint_read] = SECTOR * sim_footprint_sectors(&g->counts->footprint, 0);
    c.counts.v[SIM_COUNT_footprint_written] = SECTOR * sim_footprint_sectors(&g->counts->footprint, 1);
    return c;
}
void sim_counts_end(struct sim_launch *g, const struct sim_profile *profile) {
    if (!g->counts) return;
    sim_counts_keep(counted(g, profile));
    sheet_close(g->counts);
    g->counts = NULL;
}

/* ---- instructions and polls ---- */

static void count(struct sim_warp_counts *c, uint32_t index, uint32_t lanes, uint64_t n) { /* n: 1, or -1 */
    uint64_t *v = c->counts.v;
    if (lanes)
        c->executed[index] += n, c->lanes[index] += n * lanes;
    else
        v[SIM_COUNT_skipped] += n, v[SIM_COUNT_instructions] += n;
}
void sim_count_issued(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint32_t group, enum sim_step step) {
    struct sim_warp_counts *c = w->counts;
    const uint32_t index = (uint32_t)(in - w->cta->cluster->launch->program->ins),
                   lanes = (uint32_t)__builtin_popcount(m);
    if (step == SIM_BLOCK || step == SIM_AGAIN || step == SIM_FAULT) return; /* comes again, or ends the launch */
    count(c, index, lanes, 1);
    sim_time_issued(w, in, index);
    if (step == SIM_EXIT) c->polled = 0;
    if (!c->polled || !(group & c->poll_mask)) return;
    if (c->n_trail == SIM_TRAIL) {
        c->polled = 0; /* no loop that only waits */
        return;
    }
    c->trail[c->n_trail].index = index;
    c->trail[c->n_trail++].lanes = lanes;
}
/* A poll that comes again after one in vain, of the same instruction by the same lanes: the poll before and what came
 * between were for nothing. A device suspends the thread instead. */
void sim_count_wait(struct sim_warp *w, const struct sim_ins *in, uint32_t m, int in_vain, double over) {
    struct sim_warp_counts *c = w->counts;
    const uint32_t index = 1 + (uint32_t)(in - w->cta->cluster->launch->program->ins);
    if (c->polled == index && c->poll_mask == m) {
        for (uint32_t i = 0; i < c->n_trail; i++) count(c, c->trail[i].index, c->trail[i].lanes, UINT64_MAX);
        c->counts.v[SIM_COUNT_spins] += c->n_trail;
    }
    c->polled = in_vain ? index : 0, c->poll_mask = m, c->n_trail = 0;
    if (in_vain)
        sim_time_polled(w);
    else
        sim_time_passed(w, index - 1, over);
    c->counts.v[in_vain ? SIM_COUNT_waits_in_vain : SIM_COUNT_waits]++;
}
void sim_count_remote_arrivals(struct sim_warp *w, uint32_t n) { w->counts->counts.v[SIM_COUNT_remote_arrivals] += n; }

/* ---- memory ---- */

static void touch(struct sim_warp *w, uint64_t sector, int reads, int writes) {
    struct sim_footprint *f = &w->cta->cluster->worker->counts->footprint;
    if (reads) sim_footprint_touch(f, sector, 0);
    if (writes) sim_footprint_touch(f, sector, 1);
}
/* Sectors that the lanes name, each once; cached: those of them that the first-level cache has. */
static uint32_t sectors(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], const uint8_t *take,
                        uint32_t bytes, int reads, int writes, uint32_t *cached) {
    uint64_t seen[2 * SIM_LANES];
    uint32_t n = 0;
    EACH_OF(m) {
        const uint64_t size = take ? take[l] : bytes;
        for (uint64_t s = address[l] / SECTOR; size && s <= (address[l] + size - 1) / SECTOR; s++) {
            uint32_t i = n;
            while (i && seen[i - 1] != s) i--;
            if (!i) touch(w, seen[n++] = s, reads, writes);
        }
    }
    for (uint32_t i = 0; cached && i < n; i++) *cached += (uint32_t)sim_time_cached(w, seen[i]);
    return n;
}
void sim_count_global(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes, int access) {
    uint64_t *v = w->counts->counts.v;
    const uint64_t lanes = (uint64_t)__builtin_popcount(m), all = lanes * bytes;
    uint32_t cached = 0;
    const uint32_t n = sectors(w, m, address, NULL, bytes, access != SIM_STORE, access != SIM_LOAD,
                               access == SIM_LOAD ? &cached : NULL);
    if (access == SIM_ATOMIC_ACCESS)
        v[SIM_COUNT_reductions] += lanes, v[SIM_COUNT_reduced] += all;
    else if (access == SIM_LOAD)
        v[SIM_COUNT_global_read] += all, v[SIM_COUNT_sectors_read] += n;
    else
        v[SIM_COUNT_global_written] += all, v[SIM_COUNT_sectors_written] += n;
    if (access == SIM_ATOMIC_ACCESS)
        sim_time_global(w, 0, (double)all, 0);
    else
        sim_time_global(w, (double)(n - cached) * SECTOR, 0, access == SIM_LOAD);
}
void sim_count_local(struct sim_warp *w, uint32_t m, uint32_t bytes) {
    w->counts->counts.v[SIM_COUNT_local] += (uint64_t)__builtin_popcount(m) * bytes;
}

/* Passes of shared memory: accesses of 4 bytes and less by all lanes at once, wider ones by as many lanes as name 128
 * bytes. In a pass each of 32 banks gives a word; lanes that name the same address share it. */
static uint32_t wavefronts(uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes) {
    const uint32_t words = bytes < WORD ? 1 : bytes / WORD, step = SIM_LANES / words ? SIM_LANES / words : 1;
    uint32_t passes = 0, first[SIM_LANES] = {0};
    EACH_OF(m) { /* of the lanes with the same address only the first counts */
        uint32_t i = 0;
        while (i < l && !(m >> i & 1 && address[i] == address[l])) i++;
        first[l] = i == l;
    }
    for (uint32_t from = 0; from < SIM_LANES; from += step) {
        uint64_t named[SIM_LANES];
        uint32_t n = 0, worst = 0, depth[BANKS] = {0};
        for (uint32_t l = from; l < from + step; l++) {
            if (!(m >> l & 1) || !first[l]) continue;
            for (uint32_t i = 0; i < words; i++) {
                const uint64_t word = address[l] / WORD + i;
                uint32_t j = 0;
                while (j < n && named[j] != word) j++;
                if (j < n) continue;
                named[n++] = word;
                if (++depth[word % BANKS] > worst) worst = depth[word % BANKS];
            }
        }
        passes += worst;
    }
    return passes;
}
void sim_count_shared(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes, int access) {
    uint64_t *v = w->counts->counts.v;
    v[access == SIM_LOAD            ? SIM_COUNT_shared_read
      : access == SIM_ATOMIC_ACCESS ? SIM_COUNT_shared_atomics
                                    : SIM_COUNT_shared_written] += (uint64_t)__builtin_popcount(m) * bytes;
    const uint32_t passes = wavefronts(m, address, bytes);
    v[SIM_COUNT_wavefronts] += passes;
    sim_time_shared(w, passes);
    EACH_OF(m) if (address[l] >> SIM_RANK_SHIFT != w->cta->rank) v[SIM_COUNT_remote] += bytes;
}

/* ---- copies ---- */

void sim_count_copy(struct sim_warp *w, uint32_t m, const uint64_t from[SIM_LANES], const uint8_t take[SIM_LANES],
                    uint32_t bytes) {
    uint64_t *v = w->counts->counts.v, end = 0;
    EACH_OF(m) {
        v[SIM_COUNT_copied_async] += bytes;
        v[SIM_COUNT_global_read] += take[l];
        if (take[l] && from[l] != end) v[SIM_COUNT_async_runs]++;
        if (take[l]) end = from[l] + take[l];
    }
    const uint32_t n = sectors(w, m, from, take, bytes, 1, 0, NULL);
    v[SIM_COUNT_sectors_read] += n;
    sim_time_copy(w, (double)n * SECTOR);
}
void sim_count_transfer(struct sim_warp *w, const struct sim_transfer *t) {
    uint64_t *v = w->counts->counts.v, valid = 0, n_sectors = 0, last = UINT64_MAX;
    const uint64_t n = (uint64_t)__builtin_popcount(t->ranks);
    const uint32_t others = t->ranks & ~(1u << w->cta->rank);
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        const struct sim_piece *p = &t->pieces[i];
        if (!p->valid) continue;
        const uint64_t low = p->global / SECTOR, high = (p->global + p->valid - 1) / SECTOR;
        valid += p->valid;
        n_sectors += high - low + (low != last);
        for (uint64_t s = low; s <= high; s++)
            touch(w, s, t->kind == SIM_TO_SHARED || t->reduce, t->kind == SIM_TO_GLOBAL);
        last = high;
    }
    v[SIM_COUNT_bulk_copies]++;
    sim_time_transfer(w, t, (double)n_sectors * SECTOR);
    if (t->kind == SIM_TO_GLOBAL) {
        v[SIM_COUNT_copied_out] += t->bytes;
        v[t->reduce ? SIM_COUNT_reduced_in_bulk : SIM_COUNT_global_written] += valid;
        if (!t->reduce) v[SIM_COUNT_sectors_written] += n_sectors;
        return;
    }
    v[SIM_COUNT_copied_in] += n * t->bytes;
    if (n > 1) v[SIM_COUNT_multicast] += (n - 1) * t->bytes;
    if (t->kind == SIM_TO_SHARED) v[SIM_COUNT_global_read] += valid, v[SIM_COUNT_sectors_read] += n_sectors;
    if (t->kind == SIM_TO_CLUSTER) v[SIM_COUNT_copied_out] += t->bytes;
    if (t->kind == SIM_TO_CLUSTER || t->kind == SIM_FROM_REGISTERS)
        v[SIM_COUNT_remote] += (uint64_t)__builtin_popcount(others) * t->bytes;
}

/* ---- products of tcgen05.mma, whose shape a descriptor tells ---- */

void sim_count_product(struct sim_warp *w, const struct sim_ins *in, const struct tensor_product *p, int kept) {
    const char *opcode = w->cta->cluster->launch->program->kernel->statements[in->statement].opcode,
               *kind = strstr(opcode, "kind::");
    struct sim_product q = {.kind = p->ws ? SIM_TCGEN05_WS : SIM_TCGEN05,
                            .m = p->m,
                            .n = p->n,
                            .k = p->k,
                            .ctas = p->ctas,
                            .a = p->from_cells ? 'T' : 'S'};
    if (kept) q.a = 'C';
    if (kind) snprintf(q.types, sizeof q.types, "%.*s", (int)strcspn(kind + 6, "."), kind + 6);
    sim_counts_product(&w->counts->counts, &q, 1);
    sim_time_product(w, &q);
}
