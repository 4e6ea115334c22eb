/* SPDX-License-Identifier: MIT
 * The machine that a kernel runs on: decoded instructions, warps of 32 lanes whose registers are arrays over lanes,
 * CTAs with shared memory, clusters of CTAs, and one launch of a grid. */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H
#include "ptx/ptx.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SIM_LANES = 32, SIM_BARRIERS = 16, SIM_MAX_WARPS = 32, SIM_MAX_CLUSTER = 16 };
enum { SIM_PART_SHIFT = 9 }; /* parts of shared memory, see sim_cta.latest */
#define SIM_ALL 0xffffffffu
/* The hardware keeps the first kilobyte of a CTA's shared memory, so that address 0 is never a variable. Bits 24 and up
 * of a shared address are the CTA's rank in its cluster. */
enum { SIM_SHARED_BASE = 1024, SIM_RANK_SHIFT = 24 };
/* Generic addresses of the windows; everything else is global memory. */
#define SIM_WINDOW_SHARED (UINT64_C(1) << 62)
#define SIM_WINDOW_LOCAL  (UINT64_C(1) << 61)
#define SIM_WINDOW_PARAM  (UINT64_C(3) << 61)
#define SIM_WINDOW_MASK   (UINT64_C(7) << 61)

struct sim_warp;
struct sim_ins;
enum sim_step {
    SIM_NEXT,  /* go on behind the instruction */
    SIM_JUMP,  /* lanes in warp->taken go to the instruction's target */
    SIM_BLOCK, /* execute it again when the warp is woken */
    SIM_RETRY, /* go on behind it, but let other warps run first: a poll that found nothing */
    SIM_AGAIN, /* execute it again, but let other lanes of the warp and other warps run first */
    SIM_EXIT,  /* the lanes end */
    SIM_FAULT  /* the launch ends; a finding says why */
};
typedef enum sim_step (*sim_exec)(struct sim_warp *w, const struct sim_ins *in, uint32_t m);

/* Lanes that must execute an instruction together: any, all live ones, those that register o[5] names. */
enum sim_sync { SIM_FREE, SIM_ALIGNED, SIM_MEMBERS };

struct sim_ins {
    sim_exec exec;
    uint32_t guard, flip;              /* executed by lanes with p[guard] ^ flip */
    uint32_t o[6];                     /* registers: word offset in the warp's file, or number of a predicate */
    uint32_t target;                   /* of a branch */
    uint32_t list, n;                  /* more registers: program->list[list ..] */
    int64_t imm;                       /* number or offset of an address */
    uint8_t space, bytes, count, wide; /* of a memory access: space, bytes of an element, elements, 64-bit address */
    uint8_t x, y, z, type;             /* what else the words say; each handler's own numbering */
    uint8_t sync, order;               /* order: strength, acquire, release of an access of global memory (global.h) */
    uint16_t place;                    /* number in program->places; 0: none left, or no access of global memory */
    uint32_t statement;                /* in the kernel's text */
    uint16_t n_moved;                  /* of a mov: its first n_moved registers are targets (checks/wgmma_hazards.c) */
    uint32_t touch, n_touch; /* registers of asynchronous products that it touches: program->touched[touch ..] */
};

enum sim_constant_kind { SIM_VALUE, SIM_SHARED_ADDRESS, SIM_SPECIAL };
struct sim_constant {
    enum sim_constant_kind kind;
    uint8_t wide;
    uint32_t word; /* offset in words */
    uint64_t value;
};

/* What a program needs beside warps and barriers (hopper.h). */
enum { SIM_USES_MBARRIER = 1, SIM_USES_COPY_ARRIVAL = 2, SIM_USES_BULK = 4, SIM_USES_WGMMA = 8, SIM_USES_TCGEN05 = 16 };
/* What of its order on global memory is more than barriers (global.h); not part of hopper.h. */
enum { SIM_USES_SYNC = 1 << 8, SIM_USES_GRID_WAIT = 1 << 9, SIM_USES_UNITS = 0xff };

struct sim_coverage; /* checks/coverage.c */
struct sim_program { /* a decoded kernel */
    const struct ptx_module *module;
    const struct ptx_kernel *kernel;
    struct sim_ins *ins;
    uint32_t n_ins;
    uint32_t *list, n_list;
    struct sim_constant *constants;
    uint32_t n_constants;
    uint32_t n_words, n_predicates; /* of a warp */
    uint32_t uses;
    struct sim_coverage *coverage; /* NULL: not asked for */
    uint32_t *touched, n_tracked;  /* see checks/wgmma_hazards.c */
    uint32_t *places, n_places;    /* statements that access global memory, by number from 1 on */
    int max_dynamic;               /* cuFuncSetAttribute */
    int portable_cluster;
};

enum { SIM_ASLEEP = 2 };
struct sim_group { /* lanes of a warp that are at the same place */
    uint32_t mask, pc;
    uint8_t parked; /* at an instruction that wants more lanes; SIM_ASLEEP: until the warp's next turn */
};

struct sim_warp_counts; /* counts/counts.h */
struct sim_count_sheet;
struct sim_copy;        /* units/cp_async.c */
struct sim_spin;        /* checks/spin.c */
struct sim_warp_hopper; /* hopper.h */
struct sim_cta_hopper;
struct sim_cluster_hopper;

struct sim_warp {
    struct sim_cta *cta;
    uint32_t index; /* in its CTA */
    uint32_t actor; /* in its cluster: numbering of vector clocks */
    uint32_t live, taken;
    uint32_t *r, *p;
    const uint32_t *list; /* of the program */
    struct sim_group groups[SIM_LANES];
    uint32_t n_groups, current;
    uint8_t blocked, polling, resumed, done;
    uint32_t barrier; /* that it waits at, if blocked */
    uint32_t passed;  /* the last wait for a barrier that was over: 1 + its statement, or 0 */
    uint32_t apart;   /* lanes that wait at a barrier by themselves, barrier_of[lane] (exec/barrier.c) */
    uint8_t barrier_of[SIM_LANES];
    uint64_t polled_at; /* value of cluster->changes at the last failed poll */
    uint64_t n_executed;
    uint32_t *known;           /* vector clock: what it knows of each actor; known[actor] is its own time */
    uint32_t *released, *seen; /* of the launch's actors: at the last fence; by strong reads since then (global.h) */
    uint8_t fenced, seen_some;
    uint8_t *local;
    /* cp.async: groups that each lane has committed and waited for, and the copies under way, oldest first */
    uint32_t committed[SIM_LANES];
    struct sim_copy *copies;
    uint32_t n_copies, room_copies;
    struct sim_spin *spin;          /* NULL until it polls memory */
    struct sim_warp_hopper *hopper; /* NULL unless the program uses it */
    struct sim_warp_counts *counts; /* NULL: not counted */
};

struct sim_barrier {
    uint32_t need;                           /* threads; 0: all of the CTA */
    uint32_t arrived;                        /* threads */
    uint32_t waiting;                        /* warps that sleep at it */
    uint32_t arrivers;                       /* warps that came, waiting or not, or some of whose lanes did */
    uint32_t apart;                          /* warps of which lanes wait by themselves */
    uint32_t lanes[SIM_MAX_WARPS];           /* of each warp: those that came */
    uint32_t lanes_and, lanes_or, lanes_sum; /* reductions so far */
    uint32_t result_and, result_or, result_sum;
    uint32_t statement; /* of the first that came */
    uint32_t *clock;
    double latest, opened; /* times of the last arrival so far, and when it opened last (counts/timeline.h) */
};

struct sim_cta {
    struct sim_cluster *cluster;
    uint32_t rank, id[3];
    uint64_t linear;
    uint8_t *shared; /* [shared_bytes], address SIM_SHARED_BASE is shared[0] */
    uint32_t shared_bytes;
    uint64_t *writes;  /* record of each word's last write, see race.h */
    uint8_t *lanes;    /* of each word's last write, where it was a warp's */
    uint64_t **reads;  /* by actor: records of each word's last read, or NULL */
    uint16_t *readers; /* actors that have such records */
    uint32_t n_readers;
    uint32_t *latest; /* by part of the memory and warp of the cluster: time of its last read there */
    struct sim_warp *warps;
    uint32_t n_warps, n_live, n_threads;
    uint8_t released; /* griddepcontrol.launch_dependents came */
    struct sim_barrier barriers[SIM_BARRIERS];
    struct sim_cta_hopper *hopper;
};

struct sim_cluster { /* CTAs that run together, in one worker */
    struct sim_worker *worker;
    struct sim_launch *launch;
    struct sim_cta *ctas;
    uint32_t n_ctas, n_warps;
    /* Clocks have n_clock entries: n_actors, and behind them, where asynchronous units are used, twice more what those
     * units may see of shared (view_at; race.h) and of global memory; then the actors of the launch (far_at), 1 if
     * griddepcontrol.wait came (waits_at), where the program needs these (global.h), and by warp the time up to which
     * its accesses of tensor memory have been waited for (waited_at; tensor_memory.h). 0: there is no such part. Actors
     * below n_warps are warps. */
    uint32_t n_actors, n_clock, view_at, global_view_at, far_at, n_far, waits_at, waited_at;
    uint32_t first_actor; /* its number in records of global memory */
    struct sim_cluster_hopper *hopper;
    uint64_t changes; /* counts what may wake a poll */
    uint64_t rng;
};

enum sim_policy { SIM_EAGER, SIM_LATE, SIM_RANDOM };
struct sim_options {
    enum sim_policy policy;
    uint64_t seed;
    int threads, races, quiet, max_findings, trace, counts, ordered_sums;
    uint64_t max_instructions; /* of one warp */
    const char *gpu;           /* word of the device's profile */
    uint64_t trace_cta;        /* linear number of the CTA that barrier_trace.h tells of */
};

struct sim_spin_room { /* checks/spin.c; the epoch and who has agreed to a deadlock since it began */
    uint64_t epoch;
    uint32_t n_running, n_agreed; /* workers */
};

struct sim_launch {
    const struct sim_program *program;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_bytes, shared_bytes, n_threads, n_warps, n_ctas;
    const uint8_t *params;
    struct sim_options options;
    const struct sim_device *device;
    uint64_t number;                                     /* of launches so far */
    atomic_ullong next_cluster, n_executed, nanoseconds; /* nanoseconds: of host threads, summed */
    atomic_int failed, asserted;                         /* asserted: by an assertion that did not hold */
    struct sim_report *report;
    struct sim_count_sheet *counts; /* of the workers that have ended, or NULL */
    /* order on global memory */
    const struct sim_when *when;
    const struct sim_stamp *begun; /* what it may rely on before its wait */
    struct sim_deed *deed;         /* NULL: not checked */
    uint32_t calm_from;            /* the actors from here to the deed's own all come before it */
    uint8_t together;              /* cooperative: all CTAs live at once */
    uint64_t workspace;            /* of their barrier (cooperative_groups: grid_workspace), or 0 */
    uint8_t far_unknown;           /* too many actors to check CTAs against each other */
    struct sim_signals *signals;   /* NULL unless the program uses it */
    struct sim_spin_room spin;
    /* programmatic dependent launch: the launch behind which this one began early, or NULL; CTAs that have ended or
     * executed launch_dependents; all have ended */
    const struct sim_launch *behind;
    atomic_ullong n_released;
    atomic_int ended;
};

enum { SIM_RECENT = 4 };
struct sim_worker {
    struct sim_launch *launch;
    struct sim_cluster cluster;
    const struct sim_block *recent[SIM_RECENT]; /* blocks of global memory found last */
    uint32_t next_recent;
    struct sim_count_sheet *counts; /* NULL: not counted */
    uint32_t clock_base;            /* larger than every time that the shared memory's records hold */
    uint32_t last, live;            /* warps: the last that had a turn; those that have not ended */
    uint64_t seen_changes;
    uint32_t n_chances; /* of polls in vain since cluster->changes was seen_changes */
    uint8_t spin_stuck; /* checks/spin.c; epochs of the last round of tries, and of its agreement */
    uint64_t spin_round, spin_agreed;
};

/* Runs the grid; returns when all CTAs ended or one faulted. 0 or a driver error number. */
int sim_launch_run(struct sim_launch *launch);
/* Runs one warp until it blocks, ends, polls in vain or has executed `quantum` instructions. */
enum sim_step sim_warp_run(struct sim_warp *warp, uint32_t quantum);
/* The statement at which the lanes of a group stand. */
const struct ptx_statement *sim_statement(const struct sim_warp *warp, const struct sim_ins *in);

static inline uint64_t sim_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
#endif
