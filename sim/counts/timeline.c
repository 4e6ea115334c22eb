/* SPDX-License-Identifier: MIT
 * See timeline.h. Times are clocks from the start of a cluster on. */
#include "counts/timeline.h"
#include "counts/counts.h"
#include "units/hopper.h"
#include "units/transfer.h"

#include <stdlib.h>
#include <string.h>

/* Clocks. LOAD and COPY are measured on an H200, a CTA on each multiprocessor: a chain of ld.global.cg takes 301 a
 * load, a warp's cp.async of 512 bytes with wait_group 0 behind it 341 a round, a bulk copy of 1 KiB waited for 602, of
 * which what issues, moves and wakes is beside the latency. Those of tcgen05.mma are measured, too
 * (SemiAnalysisAI/microbench-blackwell: a chain of products takes about 150 beyond its intervals); others are of the
 * order that is published for H100 and B200. None was fitted to a kernel. */
enum {
    INTERVAL = 32,
    ISSUE_GAP = 2, /* between instructions of a warp */
    WAKE = 30,     /* from a phase's end to the next instruction of who waited */
    REMOTE = 200,  /* an arrival at another CTA */
    FIRST = 40,    /* a load out of the first-level cache */
    LOAD = 290,    /* a load or cp.async out of the second-level cache */
    COPY = 480,    /* bulk and tensor copies, likewise */
    CLUSTER_COPY = 300,
    WGMMA = 60,
    MMA = 30,
    TCGEN05 = 150,
    CELLS = 40,  /* tcgen05.ld, st */
    QUEUE = 500, /* by which accesses to memory may lag behind the warp that started them */
    PASS = 128,
    SECTOR = 32,
    STEP = 32
};

static double later(double a, double b) { return a > b ? a : b; }

/* ---- units ---- */

/* From `from` on the unit is taken for `clocks`, in the first intervals that have some left. Returns the end. */
static double take(struct sim_time_calendar *c, double from, double clocks) {
    uint32_t i = (uint32_t)(from / INTERVAL);
    double end = from;
    if (clocks <= 0) return from;
    for (double start = from; clocks > 0; i++, start = (double)i * INTERVAL) {
        if (i >= c->n) {
            const uint32_t n = 2 * i + 1024;
            c->taken = realloc(c->taken, n * sizeof *c->taken);
            if (!c->taken) abort();
            memset(c->taken + c->n, 0, (n - c->n) * sizeof *c->taken);
            c->n = n;
        }
        const double limit = (double)(i + 1) * INTERVAL, left = INTERVAL - (double)c->taken[i];
        double some = left < limit - start ? left : limit - start;
        if (some > clocks) some = clocks;
        if (some <= 0) continue;
        c->taken[i] += (float)some, clocks -= some;
        end = later(start + some, (double)i * INTERVAL + (double)c->taken[i]);
    }
    return end;
}
static struct sim_time_calendar *calendar(const struct sim_warp *w, uint32_t rank, int unit) {
    return &w->cta->cluster->worker->counts->calendars[rank * SIM_TIME_UNITS + (uint32_t)unit];
}
static double take_own(const struct sim_warp *w, int unit, double from, double clocks) {
    return take(calendar(w, w->cta->rank, unit), from, clocks);
}
static const struct sim_rates *rates_of(const struct sim_warp *w) { return w->cta->cluster->worker->counts->rates; }
static double over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

static void commit(struct sim_time_groups *g, double end) { g->end[g->n++ % SIM_TIME_GROUPS] = end; }
/* When all groups but the last `left` are over. */
static double groups_end(const struct sim_time_groups *g, int64_t left) {
    return (int64_t)g->n > left && left < SIM_TIME_GROUPS ? g->end[(g->n - 1 - (uint32_t)left) % SIM_TIME_GROUPS] : 0;
}

/* ---- what instructions take ---- */

static int starts(const char *opcode, const char *with) { return !strncmp(opcode, with, strlen(with)); }
/* Loads that the first-level cache may answer: not those that name another cache, or order. */
static uint8_t caches(const char *opcode) {
    static const char *const others[] = {".cg", ".cv", ".volatile", ".relaxed", ".acquire", ".mmio", ".no_allocate"};
    if (strncmp(opcode, "ld.", 3) != 0) return 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(opcode, others[i])) return 0;
    return 1;
}
static enum sim_time_kind kind_of(const char *opcode) {
    static const struct {
        const char *with;
        enum sim_time_kind kind;
    } rows[] = {{"wgmma.mma_async", SIM_TIME_WGMMA},
                {"wgmma.commit_group", SIM_TIME_PRODUCTS_COMMIT},
                {"wgmma.wait_group", SIM_TIME_PRODUCTS_WAIT},
                {"mma.", SIM_TIME_MMA},
                {"cp.async.commit_group", SIM_TIME_COPIES_COMMIT},
                {"cp.async.wait_group", SIM_TIME_COPIES_WAIT},
                {"cp.async.wait_all", SIM_TIME_COPIES_WAIT_ALL},
                {"cp.async.bulk.wait_group", SIM_TIME_BULK_WAIT},
                {"tcgen05.ld", SIM_TIME_MOVES_CELLS},
                {"tcgen05.st", SIM_TIME_MOVES_CELLS},
                {"tcgen05.wait", SIM_TIME_CELLS_WAIT},
                {"tcgen05.cp", SIM_TIME_COPIES_CELLS},
                {"mov", SIM_TIME_FREE},
                {"st.", SIM_TIME_JOINS},
                {"red.", SIM_TIME_JOINS},
                {"shfl", SIM_TIME_JOINS},
                {"vote", SIM_TIME_JOINS},
                {"bar", SIM_TIME_JOINS},
                {"mbarrier.arrive", SIM_TIME_JOINS},
                {"cp.", SIM_TIME_JOINS}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (starts(opcode, rows[i].with)) return rows[i].kind;
    return SIM_TIME_PLAIN;
}

void sim_time_open(struct sim_worker *k, struct sim_count_sheet *s) {
    const struct sim_program *p = k->launch->program;
    s->rates = sim_rates_of(k->launch->options.gpu);
    if (!s->rates) return;
    s->calendars = calloc(k->cluster.n_ctas * SIM_TIME_UNITS, sizeof *s->calendars);
    s->costs = calloc(s->n_ins, sizeof *s->costs);
    s->first_level = calloc((size_t)k->cluster.n_ctas * SIM_TIME_SECTORS, sizeof *s->first_level);
    if (!s->calendars || !s->costs || !s->first_level) abort();
    s->n_calendars = k->cluster.n_ctas * SIM_TIME_UNITS;
    for (uint32_t i = 0; i < p->n_ins; i++) {
        struct sim_counts c = {0};
        double clocks[SIM_N_UNITS];
        sim_count_work(p, i, 1, SIM_LANES, &c);
        sim_clocks(s->rates, &c, clocks);
        s->costs[i] =
            (struct sim_time_cost){.kind = (uint8_t)kind_of(p->kernel->statements[p->ins[i].statement].opcode),
                                   .caches = caches(p->kernel->statements[p->ins[i].statement].opcode),
                                   .tensor = (float)clocks[SIM_UNIT_TENSOR],
                                   .shared = (float)clocks[SIM_UNIT_SHARED],
                                   .cells = (float)clocks[SIM_UNIT_CELLS],
                                   .special = (float)clocks[SIM_UNIT_SPECIAL],
                                   .fma = (float)clocks[SIM_UNIT_FMA]};
        sim_counts_free(&c);
    }
}
void sim_time_free(struct sim_count_sheet *s) {
    for (uint32_t i = 0; i < s->n_calendars; i++) free(s->calendars[i].taken);
    free(s->calendars), free(s->costs), free(s->first_level);
}

void sim_time_start(struct sim_worker *k) {
    struct sim_count_sheet *s = k->counts;
    if (!s || !s->rates) return;
    for (uint32_t i = 0; i < s->n_calendars; i++)
        if (s->calendars[i].taken) memset(s->calendars[i].taken, 0, s->calendars[i].n * sizeof *s->calendars[i].taken);
    memset(s->first_level, 0, (size_t)k->cluster.n_ctas * SIM_TIME_SECTORS * sizeof *s->first_level);
    for (uint32_t i = 0; i < s->n; i++) s->warps[i].time = (struct sim_warp_time){.polled = -1};
}
void sim_time_end(struct sim_worker *k) {
    struct sim_count_sheet *s = k->counts;
    double end = 0;
    if (!s || !s->rates) return;
    for (uint32_t i = 0; i < s->n; i++) end = later(end, s->warps[i].time.now);
    for (uint32_t r = 0; r < k->cluster.n_ctas; r++)
        s->warps[r * k->cluster.ctas[0].n_warps].counts.v[SIM_COUNT_timeline] += (uint64_t)end;
}

/* The warp goes on at `until`, having waited at the instruction. */
static void wait_until(struct sim_warp *w, uint32_t index, double until) {
    struct sim_warp_time *t = &w->counts->time;
    if (until <= t->now) return;
    w->counts->waited[index] += until - t->now;
    w->counts->counts.v[SIM_COUNT_waited] += (uint64_t)(until - t->now);
    t->now = until;
}

void sim_time_issued(struct sim_warp *w, const struct sim_ins *in, uint32_t index) {
    const struct sim_count_sheet *s = w->cta->cluster->worker->counts;
    struct sim_warp_time *t = &w->counts->time;
    if (!s->rates || t->polled >= 0) return;
    const struct sim_time_cost *c = &s->costs[index];
    t->caches = c->caches;
    if (c->kind == SIM_TIME_FREE) return;
    if (c->kind == SIM_TIME_JOINS) wait_until(w, index, t->loads);
    const double issued = take_own(w, SIM_TIME_ISSUE + (int)(w->index % 4), t->now, 1);
    t->now = later(t->now + ISSUE_GAP, issued);
    if (c->special > 0) t->now = later(t->now, take_own(w, SIM_TIME_SPECIAL, issued, (double)c->special) - WAKE);
    if (c->fma > 0) t->now = later(t->now, take_own(w, SIM_TIME_FMA, issued, (double)c->fma) - WAKE);
    double end;
    switch (c->kind) {
    case SIM_TIME_WGMMA:
        end = take_own(w, SIM_TIME_TENSOR, issued, (double)c->tensor);
        end = later(end, take_own(w, SIM_TIME_SHARED, issued, (double)c->shared));
        t->products = later(t->products, end + WGMMA);
        break;
    case SIM_TIME_MMA: t->now = later(t->now, take_own(w, SIM_TIME_TENSOR, issued, (double)c->tensor) - MMA); break;
    case SIM_TIME_PRODUCTS_COMMIT: commit(&t->product_groups, t->products); break;
    case SIM_TIME_PRODUCTS_WAIT: wait_until(w, index, groups_end(&t->product_groups, in->imm)); break;
    case SIM_TIME_COPIES_COMMIT: commit(&t->copy_groups, t->copies); break;
    case SIM_TIME_COPIES_WAIT: wait_until(w, index, groups_end(&t->copy_groups, in->imm)); break;
    case SIM_TIME_COPIES_WAIT_ALL: wait_until(w, index, t->copies); break;
    case SIM_TIME_BULK_WAIT: wait_until(w, index, t->bulk); break;
    case SIM_TIME_MOVES_CELLS:
        t->cells = later(t->cells, take_own(w, SIM_TIME_CELLS, issued, (double)c->cells) + CELLS);
        break;
    case SIM_TIME_COPIES_CELLS: /* one thread's, and the cost is of SIM_LANES */
        end = take_own(w, SIM_TIME_SHARED, issued, (double)c->shared / SIM_LANES);
        t->products = later(t->products, end + TCGEN05);
        break;
    case SIM_TIME_CELLS_WAIT: wait_until(w, index, t->cells); break;
    default: break;
    }
}

/* ---- barriers ---- */

void sim_time_polled(struct sim_warp *w) {
    struct sim_warp_time *t = &w->counts->time;
    if (t->polled < 0) t->polled = t->now;
}
void sim_time_passed(struct sim_warp *w, uint32_t index, double end) {
    struct sim_warp_time *t = &w->counts->time;
    if (t->polled >= 0) t->now = t->polled;
    t->polled = -1;
    if (end > t->now) wait_until(w, index, end + WAKE);
}
void sim_time_came(struct sim_warp *w, double *latest, int remote) {
    const struct sim_warp_time *t = &w->counts->time;
    *latest = later(*latest, t->landing > 0 ? t->landing : t->now + (remote ? REMOTE : 0));
}
double sim_time_of_flight(const struct sim_warp *w, int kind) {
    const struct sim_warp_time *t = &w->counts->time;
    return kind == SIM_FLIGHT_TENSOR ? later(t->products, t->now) : kind == SIM_FLIGHT_COPIES ? t->copies : t->bulk;
}
void sim_time_landing(struct sim_warp *w, double end) { w->counts->time.landing = end; }

/* ---- memory ---- */

void sim_time_shared(struct sim_warp *w, uint32_t passes) {
    struct sim_warp_time *t = &w->counts->time;
    const struct sim_rates *r = rates_of(w);
    if (!r) return;
    t->now = later(t->now, take_own(w, SIM_TIME_SHARED, t->now, over(PASS * passes, r->v[SIM_RATE_SHARED])) - WAKE);
}
void sim_time_global(struct sim_warp *w, double cache_bytes, double reduced, int load) {
    struct sim_warp_time *t = &w->counts->time;
    const struct sim_rates *r = rates_of(w);
    if (!r) return;
    const double moved = take_own(w, SIM_TIME_CACHE, t->now, over(cache_bytes, r->v[SIM_RATE_CACHE])),
                 added = take_own(w, SIM_TIME_REDUCE, t->now, over(reduced, r->v[SIM_RATE_REDUCE]));
    if (load) t->loads = later(t->loads, moved + (cache_bytes > 0 ? LOAD : FIRST));
    t->now = later(t->now, later(moved, added) - QUEUE);
}
int sim_time_cached(struct sim_warp *w, uint64_t sector) {
    const struct sim_count_sheet *s = w->cta->cluster->worker->counts;
    if (!s->rates || !w->counts->time.caches) return 0;
    uint64_t *line = &s->first_level[w->cta->rank * SIM_TIME_SECTORS + sector % SIM_TIME_SECTORS];
    const int there = *line == sector + 1;
    *line = sector + 1;
    return there;
}
void sim_time_copy(struct sim_warp *w, double cache_bytes) {
    struct sim_warp_time *t = &w->counts->time;
    const struct sim_rates *r = rates_of(w);
    if (!r) return;
    const double moved = take_own(w, SIM_TIME_CACHE, t->now, over(cache_bytes, r->v[SIM_RATE_CACHE]));
    t->copies = later(t->copies, take_own(w, SIM_TIME_SHARED, moved, over(cache_bytes, r->v[SIM_RATE_SHARED])) + LOAD);
    t->now = later(t->now, moved - QUEUE);
}
void sim_time_transfer(struct sim_warp *w, const struct sim_transfer *t, double cache_bytes) {
    struct sim_warp_time *time = &w->counts->time;
    const struct sim_rates *r = rates_of(w);
    if (!r) return;
    const double passes = over(t->bytes, r->v[SIM_RATE_SHARED]);
    double end = time->now;
    if (t->kind == SIM_TO_GLOBAL || t->kind == SIM_TO_CLUSTER) end = take_own(w, SIM_TIME_SHARED, end, passes);
    if (t->kind == SIM_TO_GLOBAL && t->reduce)
        end = take_own(w, SIM_TIME_REDUCE, end, over(t->bytes, r->v[SIM_RATE_REDUCE]));
    else if (t->kind == SIM_TO_GLOBAL || t->kind == SIM_TO_SHARED)
        end = take_own(w, SIM_TIME_CACHE, end, over(cache_bytes, r->v[SIM_RATE_CACHE]));
    end += t->kind == SIM_TO_SHARED ? COPY : t->kind == SIM_TO_GLOBAL ? 0 : CLUSTER_COPY;
    if (t->kind != SIM_TO_GLOBAL)
        for (uint32_t rank = 0; rank < w->cta->cluster->n_ctas; rank++)
            if (t->ranks >> rank & 1) end = later(end, take(calendar(w, rank, SIM_TIME_SHARED), end, passes));
    time->bulk = end;
}

/* ---- products of tcgen05.mma: of a pair, both CTAs' units ---- */

void sim_time_product(struct sim_warp *w, const struct sim_product *p) {
    struct sim_warp_time *t = &w->counts->time;
    const struct sim_rates *r = rates_of(w);
    if (!r) return;
    struct sim_product one = *p;
    one.parts = 1;
    /* As measured: what the rate says, or the bytes of operands; of pairs with N below 128 2 clocks longer. */
    const double clocks = sim_product_clocks(r, &one) / p->ctas, rows = (p->a == 'S' ? p->m : 0) + (double)p->n,
                 passes = over(rows / p->ctas * STEP, r->v[SIM_RATE_SHARED]);
    const double extra = p->ctas == 2 && p->n < 128 ? 2 : 0;
    const uint32_t first = p->ctas == 2 ? w->cta->rank & ~1u : w->cta->rank;
    double end = t->now;
    for (uint32_t rank = first; rank < first + p->ctas && rank < w->cta->cluster->n_ctas; rank++) {
        end = later(end, take(calendar(w, rank, SIM_TIME_TENSOR), t->now, later(clocks, passes) + extra));
        end = later(end, take(calendar(w, rank, SIM_TIME_SHARED), t->now, passes));
    }
    t->products = later(t->products, end + TCGEN05);
}
