/* SPDX-License-Identifier: MIT
 * What a launch does, counted: per warp while it runs (collect.c), folded into roles and told as a table or JSON
 * (roles.c, tell.c), turned into clocks of a multiprocessor's units by measured rates (rates.c, clocks.c). Counts are
 * of the PTX text and exact for it; no time is simulated. Off unless ATTNSIM_COUNTS or attnsim_counts() asks: then
 * w->counts is not NULL and hooks call the functions below. */
#ifndef SIM_COUNTS_H
#define SIM_COUNTS_H
#include "counts/timeline.h"
#include "machine/device.h"
#include "machine/machine.h"

#include <stdio.h>

/* X(member, unit, what it is). Warp instructions are counted whatever lanes take part; "results" are of lanes. Bytes
 * of threads are those of the lanes that take part. */
#define SIM_COUNTS(X)                                                                                                  \
    X(flops, "FLOP", "products of matrices, 2 M N K each")                                                             \
    X(operand_bytes, "B", "operands that products read from shared memory, each once an instruction")                  \
    X(operand_cells, "B", "operands A that products read from tensor memory")                                          \
    X(commits, "", "commits of products")                                                                              \
    X(cells_read, "B", "tensor memory read by threads (tcgen05.ld)")                                                   \
    X(cells_written, "B", "tensor memory written by threads (tcgen05.st)")                                             \
    X(cells_copied, "B", "tensor memory written by tcgen05.cp")                                                        \
    X(cell_sources, "B", "shared memory read by tcgen05.cp")                                                           \
    X(shared_read, "B", "shared memory read by threads, of the cluster's other CTAs too")                              \
    X(shared_written, "B", "shared memory written by threads, likewise")                                               \
    X(shared_atomics, "B", "shared memory changed by atomics, likewise")                                               \
    X(wavefronts, "", "passes of 128 bytes that these accesses take, with conflicts of banks")                         \
    X(copied_in, "B", "bulk and tensor copies that arrive in shared memory, in each CTA")                              \
    X(copied_async, "B", "cp.async that arrive in shared memory, zeroes included")                                     \
    X(copied_out, "B", "shared memory that bulk copies and reductions read")                                           \
    X(bulk_copies, "", "bulk and tensor copies, one for each lane that starts one")                                    \
    X(gather_rows, "", "rows of tile::gather4")                                                                        \
    X(async_runs, "", "runs of bytes side by side in global memory of each cp.async of a warp")                        \
    X(multicast, "B", "of copied_in: what multicast brings to more CTAs than one")                                     \
    X(remote, "B", "shared memory of other CTAs: reads, writes and copies")                                            \
    X(remote_arrivals, "", "arrivals at mbarriers of other CTAs")                                                      \
    X(arrivals, "", "arrivals of threads at mbarriers")                                                                \
    X(waits, "", "waits for mbarriers that found the phase over (try_wait, test_wait)")                                \
    X(waits_in_vain, "", "those that did not, as this simulation's turns fell")                                        \
    X(barriers, "", "bar, barrier and barrier.cluster, arrivals included")                                             \
    X(global_read, "B", "global memory read: by threads, cp.async, bulk copies")                                       \
    X(sectors_read, "", "of 32 bytes, each once an instruction of a warp or a box")                                    \
    X(global_written, "B", "global memory written, but by reductions")                                                 \
    X(sectors_written, "", "likewise")                                                                                 \
    X(reductions, "", "red and atom on global memory, one a lane, vectors too")                                        \
    X(reduced, "B", "bytes of these")                                                                                  \
    X(reduced_in_bulk, "B", "bytes of cp.reduce.async.bulk")                                                           \
    X(footprint_read, "B", "sectors of global memory that the launch reads or reduces into, each once")                \
    X(footprint_written, "B", "that it writes or reduces into, likewise")                                              \
    X(local, "B", "local memory read and written")                                                                     \
    X(ex2, "", "results of ex2, two of .f16x2 and .bf16x2")                                                            \
    X(special, "warp", "ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div: instructions, twice where packed")            \
    X(fma, "warp", "add, sub, mul, fma of .f32")                                                                       \
    X(fma_packed, "warp", "likewise, .f32x2")                                                                          \
    X(fma_half, "warp", "likewise, of 16 bits, single or packed")                                                      \
    X(fma_double, "warp", "likewise, .f64")                                                                            \
    X(cvt, "warp", "conversions")                                                                                      \
    X(shuffles, "warp", "shfl, redux")                                                                                 \
    X(moves, "warp", "mov")                                                                                            \
    X(skipped, "warp", "instructions whose guard left out all lanes")                                                  \
    X(instructions, "warp", "PTX instructions, moves and skipped ones included, polls in vain not")                    \
    X(spins, "warp", "instructions of loops around polls in vain")                                                     \
    X(timeline, "clk", "length of the timeline of each CTA's cluster (counts/timeline.h)")                             \
    X(waited, "clk", "of it, what warps waited for barriers, copies, products and loads")

enum sim_count {
#define SIM_COUNT_NAME(member, unit, words) SIM_COUNT_##member,
    SIM_COUNTS(SIM_COUNT_NAME)
#undef SIM_COUNT_NAME
        SIM_N_COUNTS
};
struct sim_count_row {
    const char *name, *unit, *words;
};
extern const struct sim_count_row sim_count_rows[SIM_N_COUNTS];

enum sim_product_kind { SIM_WGMMA, SIM_TCGEN05, SIM_TCGEN05_WS, SIM_MMA, SIM_PRODUCT_KINDS };
struct sim_product { /* equal ones together */
    enum sim_product_kind kind;
    char types[40]; /* as the instruction says them */
    uint32_t m, n, k, ctas;
    char a;         /* place of A: S shared memory, T tensor memory, R registers, C kept in a collector buffer */
    uint8_t bytes;  /* of an element of A; 0: does not matter */
    uint64_t parts; /* executions; of wgmma by each of the four warps */
};
static inline uint32_t sim_product_parts(const struct sim_product *p) { return p->kind == SIM_WGMMA ? 4 : 1; }

struct sim_counts { /* of a launch, a role, or a warp of all CTAs */
    uint64_t v[SIM_N_COUNTS];
    struct sim_product *products;
    uint32_t n_products;
};
void sim_counts_add(struct sim_counts *to, const struct sim_counts *from);
void sim_counts_free(struct sim_counts *c);
/* n executions of p (its `parts` is not read) and what they read. */
void sim_counts_product(struct sim_counts *c, const struct sim_product *p, uint64_t n);

/* What a rate is of: FLOP of bf16, bytes, lanes, warp instructions. */
enum sim_rate {
    SIM_RATE_WGMMA,
    SIM_RATE_TCGEN05,
    SIM_RATE_MMA,
    SIM_RATE_MMA_DOUBLE,
    SIM_RATE_SHARED,
    SIM_RATE_CELLS,
    SIM_RATE_SPECIAL,
    SIM_RATE_FMA,
    SIM_RATE_FMA_PACKED,
    SIM_RATE_DOUBLE,
    SIM_RATE_ISSUE,
    SIM_RATE_CACHE,
    SIM_RATE_REDUCE,
    SIM_RATE_MEMORY,
    SIM_N_RATES
};
enum sim_unit_number {
    SIM_UNIT_TENSOR,
    SIM_UNIT_SHARED,
    SIM_UNIT_CELLS,
    SIM_UNIT_SPECIAL,
    SIM_UNIT_FMA,
    SIM_UNIT_ISSUE,
    SIM_UNIT_CACHE,
    SIM_UNIT_REDUCE,
    SIM_UNIT_MEMORY,
    SIM_N_UNITS
};

struct sim_footprint_page;
struct sim_footprint { /* footprint.c */
    struct sim_footprint_page *pages;
    uint64_t n, room;
};
void sim_footprint_touch(struct sim_footprint *f, uint64_t sector, int written); /* a sector: 32 bytes */
void sim_footprint_add(struct sim_footprint *to, const struct sim_footprint *from);
uint64_t sim_footprint_sectors(const struct sim_footprint *f, int written);
void sim_footprint_free(struct sim_footprint *f);

enum { SIM_TRAIL = 16 };
struct sim_warp_counts { /* of one warp of one rank in its cluster, over all CTAs of a worker or launch */
    struct sim_counts counts;
    uint64_t *executed, *lanes; /* by instruction of the program: warp instructions, lanes that took part */
    double *waited;             /* likewise: clocks of the timeline */
    struct sim_warp_time time;
    /* since a poll in vain, of the instruction polled - 1 by these lanes: what its loop did since */
    uint32_t polled, poll_mask, n_trail;
    struct {
        uint32_t index, lanes;
    } trail[SIM_TRAIL];
};
struct sim_count_sheet {
    uint32_t n, n_ins; /* warps of a cluster */
    struct sim_warp_counts *warps;
    struct sim_footprint footprint;
    /* timeline.c, of a worker */
    const struct sim_rates *rates;       /* NULL: no timeline */
    struct sim_time_cost *costs;         /* by instruction */
    struct sim_time_calendar *calendars; /* by CTA of the cluster and unit */
    uint64_t *first_level;               /* by CTA of the cluster and place: sector + 1 */
    uint32_t n_calendars;
};

/* ---- when (collect.c) ---- */
void sim_counts_open(struct sim_worker *k);  /* its warps exist */
void sim_counts_close(struct sim_worker *k); /* adds to the launch */
/* All workers have closed: the launch is told, as one of that device. */
void sim_counts_end(struct sim_launch *g, const struct sim_profile *profile);

/* ---- hooks (collect.c): only where w->counts is not NULL ---- */
struct sim_transfer;
struct tensor_product;
void sim_count_issued(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint32_t group, enum sim_step step);
/* over: when the latest of the phases that it waited for was. */
void sim_count_wait(struct sim_warp *w, const struct sim_ins *in, uint32_t m, int in_vain, double over);
void sim_count_remote_arrivals(struct sim_warp *w, uint32_t n);
void sim_count_global(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes, int access);
void sim_count_shared(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes, int access);
void sim_count_local(struct sim_warp *w, uint32_t m, uint32_t bytes);
void sim_count_copy(struct sim_warp *w, uint32_t m, const uint64_t from[SIM_LANES], const uint8_t take[SIM_LANES],
                    uint32_t bytes);
void sim_count_transfer(struct sim_warp *w, const struct sim_transfer *t);
void sim_count_product(struct sim_warp *w, const struct sim_ins *in, const struct tensor_product *p, int kept);

/* ---- afterwards ---- */

/* work.c: what the text of instruction i alone tells of its executions. */
void sim_count_work(const struct sim_program *p, uint32_t i, uint64_t executed, uint64_t lanes, struct sim_counts *out);

enum { SIM_ROLE_WAITS = 4 };
struct sim_role {  /* warps of a cluster that run the same code */
    char name[96]; /* "warps 0-3", "rank 0 warp 4" */
    uint32_t n;    /* of them */
    struct sim_counts counts;
    struct {           /* the longest waits of the timeline */
        double clocks; /* 0: none */
        char place[256];
    } waits[SIM_ROLE_WAITS];
};
/* roles.c: the number of roles, at most sheet->n; the caller frees their counts and the array. */
uint32_t sim_count_roles(const struct sim_program *p, const struct sim_count_sheet *sheet, uint32_t n_ranks,
                         struct sim_role **roles);

struct sim_counted { /* a launch; or several, whose kernel is then NULL */
    char *kernel;
    const struct sim_profile *profile;
    uint64_t number, n_launches, n_ctas;
    uint32_t grid[3], n_threads, cluster;
    uint8_t failed; /* ended early: the counts are of a part */
    struct sim_counts counts;
    struct sim_role *roles;
    uint32_t n_roles;
};
void sim_counted_add(struct sim_counted *sum, const struct sim_counted *c); /* of launches: without roles */
void sim_counted_free(struct sim_counted *c);

/* keep.c: what ATTNSIM_COUNTS and attnsim_counts() ask for. */
int sim_counts_wanted(void);
void sim_counts_keep(struct sim_counted c); /* owns it */
/* For programs that have opened the driver by path. START forgets the launches so far and counts those that follow,
 * STOP counts no more; both return NULL. TABLE: text for people, of each launch and, of several, their sum. JSON: one
 * object {"launches": [..], "sum": ..}. The text is valid until the next call; NULL: nothing was counted. */
enum { SIM_COUNTS_STOP, SIM_COUNTS_START, SIM_COUNTS_TABLE, SIM_COUNTS_JSON };
__attribute__((visibility("default"))) const char *attnsim_counts(int what);

/* rates.c: what one multiprocessor does in a clock. 0 = not known. */
struct sim_rates {
    const char *gpu; /* word of the profile */
    double ghz;      /* clock under load, at which rates of memory became those of a clock */
    double v[SIM_N_RATES];
    const char *sources[SIM_N_RATES];
};
extern const char *const sim_rate_names[SIM_N_RATES];
const struct sim_rates *sim_rates_of(const char *gpu); /* NULL: none are known */

/* clocks.c: multiprocessor-clocks of each unit, if it did nothing else and never waited. */
struct sim_unit {
    const char *name, *words;
};
extern const struct sim_unit sim_units[SIM_N_UNITS];
double sim_product_clocks(const struct sim_rates *r, const struct sim_product *p); /* of all its executions */
/* The largest unit. */
enum sim_unit_number sim_clocks(const struct sim_rates *r, const struct sim_counts *c, double clocks[SIM_N_UNITS]);

/* tell.c: a table for people, or one line of JSON, without an end of line. */
void sim_count_table(const struct sim_counted *c, FILE *out);
void sim_count_json(const struct sim_counted *c, FILE *out);
#endif
