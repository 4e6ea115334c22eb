/* SPDX-License-Identifier: MIT
 * A timeline beside the counts: when each warp would get where, if units had the rates of rates.c, latencies were those
 * of timeline.c, and a CTA had its multiprocessor to itself. Each warp has a time of its own; its instructions, units
 * that they take and barriers that it waits at move it on. What ends later (copies, products) carries the time at which
 * it does, and an mbarrier's phase is over at the latest of its arrivals. The order in which the simulation runs warps
 * only decides who is first at a unit. docs/sim.md, "Timeline", says what it leaves out. */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H
#include <stdint.h>

enum sim_time_unit {
    SIM_TIME_TENSOR,
    SIM_TIME_SHARED,
    SIM_TIME_CELLS,
    SIM_TIME_SPECIAL,
    SIM_TIME_FMA,
    SIM_TIME_CACHE,
    SIM_TIME_REDUCE,
    SIM_TIME_ISSUE, /* one a scheduler */
    SIM_TIME_UNITS = SIM_TIME_ISSUE + 4
};
struct sim_time_calendar { /* of a unit: by intervals of 32 clocks, how many are taken */
    float *taken;
    uint32_t n;
};

enum { SIM_TIME_SECTORS = 2048 }; /* of 32 bytes: what the first-level cache keeps beside the shared memory of a CTA */
enum { SIM_TIME_GROUPS = 16 };
struct sim_time_groups { /* ends of the last groups that were committed */
    double end[SIM_TIME_GROUPS];
    uint32_t n;
};
struct sim_warp_time {
    double now;
    double loads, cells, copies, bulk, products; /* the last that was started ends */
    double landing;                              /* of what happens for the warp by itself: its time; 0: `now` counts */
    double polled;                               /* `now` at the first poll in vain, -1: none */
    uint8_t caches;                              /* the instruction is a load that the first-level cache may answer */
    struct sim_time_groups copy_groups, product_groups;
};

/* What an execution of an instruction takes, by its text. */
enum sim_time_kind {
    SIM_TIME_PLAIN,
    SIM_TIME_FREE,
    SIM_TIME_JOINS, /* wants what loads bring, as far as that is known: stores, shuffles, barriers, copies */
    SIM_TIME_WGMMA,
    SIM_TIME_MMA,
    SIM_TIME_PRODUCTS_COMMIT,
    SIM_TIME_PRODUCTS_WAIT,
    SIM_TIME_COPIES_COMMIT,
    SIM_TIME_COPIES_WAIT,
    SIM_TIME_COPIES_WAIT_ALL,
    SIM_TIME_BULK_WAIT,
    SIM_TIME_MOVES_CELLS,
    SIM_TIME_COPIES_CELLS,
    SIM_TIME_CELLS_WAIT
};
struct sim_time_cost {
    uint8_t kind, caches;
    float tensor, shared, cells, special, fma; /* clocks */
};

struct sim_worker;
struct sim_warp;
struct sim_ins;
struct sim_count_sheet;
struct sim_transfer;
struct sim_product;

/* All of them only where counts are taken; without rates of the device, they do nothing. */
void sim_time_open(struct sim_worker *k, struct sim_count_sheet *s);
void sim_time_free(struct sim_count_sheet *s);
void sim_time_start(struct sim_worker *k); /* of a cluster */
void sim_time_end(struct sim_worker *k);
void sim_time_issued(struct sim_warp *w, const struct sim_ins *in, uint32_t index);
void sim_time_polled(struct sim_warp *w);                              /* in vain */
void sim_time_passed(struct sim_warp *w, uint32_t index, double over); /* a barrier that was over at this time */
void sim_time_came(struct sim_warp *w, double *latest, int remote);    /* an arrival, at `now` or at `landing` */
double sim_time_of_flight(const struct sim_warp *w, int kind);         /* at which what was just started ends */
void sim_time_landing(struct sim_warp *w, double end);                 /* 0: over */

void sim_time_shared(struct sim_warp *w, uint32_t passes);
int sim_time_cached(struct sim_warp *w,
                    uint64_t sector); /* by the CTA's first-level cache, in which it is from now on */
void sim_time_global(struct sim_warp *w, double cache_bytes, double reduced, int load);
void sim_time_copy(struct sim_warp *w, double cache_bytes);
void sim_time_transfer(struct sim_warp *w, const struct sim_transfer *t, double cache_bytes);
void sim_time_product(struct sim_warp *w, const struct sim_product *p); /* tcgen05.mma */
#endif
