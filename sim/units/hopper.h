/* SPDX-License-Identifier: MIT
 * What kernels of sm_90 need beside warps and barriers: actors for work that goes on by itself, mbarriers, operations
 * under way, products of warpgroups, bulk groups. A program that uses none of it has no such state. */
#ifndef SIM_HOPPER_H
#define SIM_HOPPER_H
#include "checks/race.h"
#include "checks/report.h"

/* Actors beside the warps. Each has times of its own, so that waiting for one thing tells nothing of another:
 *   the copies of a warp   cp.async handed to an mbarrier: time = number of the hand-over
 *   the products of a warpgroup   shared memory that wgmma reads: time = number of the product
 *   the bulk groups of a warp     shared memory that bulk stores read: time = number of the commit
 *   an mbarrier            what lands with its transactions: time = number of its phase */
struct sim_actors {
    uint32_t copies, products, bulk, barriers; /* the first of each kind; products: one a warpgroup */
    uint32_t stores;                           /* global memory that bulk stores write: times as those of `bulk` */
    uint32_t tensor, lanes;                    /* tensor_memory.h: one a CTA, one a warp */
    uint32_t barriers_per_cta;
};

enum { SIM_MAX_MBARRIERS = 255, SIM_RING = 16 };
struct sim_mbarrier {
    uint32_t offset;
    uint8_t live, fenced, observed; /* fenced: fence.mbarrier_init came; observed: someone saw its last phase */
    uint32_t expected, pending;     /* arrivals of the next phase, arrivals missing in this one */
    int32_t tx;                     /* bytes missing */
    uint32_t under_way;             /* bytes of copies that were started and have not told it */
    uint32_t phase;                 /* phases completed */
    uint32_t actor, done_time;      /* done_time: of the last completed phase */
    uint32_t init_actor, init_time, init_statement, init_cluster_phase;
    uint32_t *clock, *done_clock;
    double latest, over; /* times of the last arrival so far, and of the last completed phase (counts/timeline.h) */
};

struct sim_cta_hopper {
    uint8_t *index; /* of each 8 bytes of shared memory: 1 + number of the mbarrier, or 0 */
    struct sim_mbarrier mbarriers[SIM_MAX_MBARRIERS];
    uint32_t n_mbarriers;
    uint32_t registers_free; /* setmaxnreg: what the CTA's pool has left, by warps */
    struct sim_warpgroup *groups;
    struct sim_tensor_memory *tensor;
    /* by actor: time and place of the last access to this CTA's memory by a warp of another CTA, or by the transaction
     * of a copy that such a warp started */
    uint32_t *remote_times, *remote_statements;
};

enum sim_wait_kind {
    SIM_WAITS_NOTHING,
    SIM_WAITS_MBARRIER,
    SIM_WAITS_PRODUCTS,
    SIM_WAITS_CLUSTER,
    SIM_WAITS_REGISTERS,
    SIM_WAITS_COLUMNS,
    SIM_WAITS_PEER
};
struct sim_warp_hopper {
    /* what the last poll in vain was about, for the deadlock report */
    enum sim_wait_kind waits;
    uint32_t wait_rank, wait_offset, wait_parity;
    uint32_t registers;     /* of a thread */
    uint8_t registers_told; /* by a setmaxnreg */
    /* lanes that have arrived at the cluster's barrier and not waited so far; that came in its present phase */
    uint32_t cluster_arrived, cluster_came;
    uint32_t cluster_owed; /* lanes whose second arrival has done a wait */
    uint32_t copy_time;    /* hand-overs of cp.async so far */
    uint32_t handed_group[SIM_RING], handed_time[SIM_RING], n_handed;
    uint32_t bulk_time; /* commits of bulk groups so far, all lanes */
    uint32_t bulk_committed[SIM_LANES], bulk_times[SIM_LANES][SIM_RING];
    uint32_t bulk_last[SIM_LANES], bulk_seen[SIM_LANES]; /* groups: 1 + that of the last copy; waited for */
    uint32_t n_products, products_seen;                  /* issued, waited for */
    uint32_t product_groups, product_ends[SIM_RING];     /* groups committed; products before each commit */
    uint32_t fences;                                     /* wgmma.fence so far */
    uint32_t tensor_time, loads_from, stores_from;       /* tcgen05.ld, st: times of the oldest not waited for, or 0 */
    uint32_t loads_open;            /* of loads: the oldest whose registers nobody has used, either */
    uint32_t *used_by, *touched_at; /* of each tracked register, see checks/wgmma_hazards.c */
};

struct sim_cluster_hopper {
    struct sim_actors actors;
    uint32_t *barrier_times;    /* by mbarrier actor: its present phase's time */
    struct sim_flight *flights; /* oldest first */
    uint32_t n_flights, room_flights;
    uint64_t flights_so_far;
    /* barrier.cluster */
    uint32_t cluster_arrived, cluster_phase;
    uint32_t *cluster_clock, *cluster_done;
    uint8_t launch_refused; /* clusterlaunchcontrol: seen that no cluster is left */
};

uint32_t sim_count_actors(const struct sim_launch *g, struct sim_actors *out); /* of a cluster */
void sim_hopper_make(struct sim_cluster *c);   /* the state, before the CTAs' own memory */
void sim_hopper_make_cta(struct sim_cta *cta); /* of a CTA and its warps */
void sim_hopper_free(struct sim_cluster *c);
void sim_hopper_start(struct sim_cluster *c, uint32_t clock_base);
uint32_t sim_hopper_top(const struct sim_cluster *c, uint32_t top); /* the largest time that an actor may have had */
void sim_hopper_warp_ended(struct sim_warp *w);
int sim_hopper_end(struct sim_cluster *c); /* all warps have ended: lets what is under way end; -1 after a fault */
/* " waits for ..." into the deadlock report; characters written. */
int sim_hopper_tell(const struct sim_warp *w, char *text, size_t room);
const char *sim_actor_text(const struct sim_cluster *c, uint32_t actor); /* "CTA rank 0 warp 3", "the mbarrier ..." */

/* ---- clocks ---- */

/* What asynchronous units may see of actor a, as the warp knows it. */
static inline uint32_t *sim_view(const struct sim_warp *w) {
    const struct sim_cluster *c = w->cta->cluster;
    return w->known + c->view_at;
}
static inline uint32_t *sim_global_view(const struct sim_warp *w) { /* likewise, of global memory */
    return w->known + w->cta->cluster->global_view_at;
}
/* The warp has waited for an actor's work of this time, which every unit then sees. */
static inline void sim_learn(struct sim_warp *w, uint32_t actor, uint32_t time) {
    uint32_t *view = sim_view(w), *global = sim_global_view(w);
    if (w->known[actor] < time) w->known[actor] = time;
    if (view[actor] < time) view[actor] = time;
    if (global[actor] < time) global[actor] = time;
}
void sim_proxy_fence(struct sim_warp *w, int shared, int global);
/* What asynchronous work of the warp comes after and its completion tells: all that the warp knows, but for what it did
 * itself since its last release. out: n_clock times. */
void sim_clock_acquired(const struct sim_warp *w, uint32_t *out);
void sim_cluster_check(struct sim_cluster *c); /* barrier.cluster, when a warp has come or ended */

/* ---- shared memory as asynchronous units touch it (race_async.c) ---- */

/* On behalf of the warp that starts it. found: in earlier parts of the same work; what that and this part give. */
enum sim_found sim_async_read(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                              uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t time, enum sim_found found);
/* view: sim_view(w), or w->known for writes that are no unit's (st.async). */
enum sim_found sim_async_write(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t lane,
                               uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t time, const uint32_t *view,
                               enum sim_found found);
/* cp.async under way that an mbarrier will tell about: from its issuer to the actor of the warp's copies. */
void sim_copy_handed(struct sim_warp *w, const struct sim_ins *in, uint32_t offset, uint32_t bytes, uint32_t actor,
                     uint32_t time);
void sim_mark_barrier(struct sim_cta *cta, uint32_t offset, uint64_t record); /* of its init; 0: none any more */

/* ---- mbarriers (mbarrier.c): each call is 0, or -1 after a finding ---- */

/* `async`: a unit will use it, so that its init must be visible to those. */
struct sim_mbarrier *sim_mbarrier_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                                     uint32_t offset, int async);
int sim_mbarrier_init(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                      uint32_t offset, uint32_t count);
int sim_mbarrier_inval(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                       uint32_t offset);
/* clock: what the arrival releases, or NULL. */
int sim_mbarrier_arrive(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                        struct sim_mbarrier *b, uint32_t count, const uint32_t *clock);
int sim_mbarrier_expect(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_cta *owner,
                        struct sim_mbarrier *b, int32_t bytes);
uint32_t sim_mbarrier_time(const struct sim_cluster *c, const struct sim_mbarrier *b); /* of its present phase */

/* ---- operations under way (async_ops.c) ---- */

struct sim_flight {
    const struct sim_ins *in;
    struct sim_warp *w;
    uint32_t lane, group;                 /* group: of bulk groups; number of a product */
    uint8_t kind, stage, stages, read_at; /* its sources have been read when stage > read_at */
    uint64_t number;
    /* The next stage. 1: done; 0: not possible now; -1: fault. */
    int (*step)(struct sim_flight *f);
    void *data;      /* freed when it has ended */
    uint32_t *clock; /* likewise: what its completion tells (sim_clock_acquired), or NULL */
    double end;      /* when it ends (counts/timeline.h) */
};
enum { SIM_FLIGHT_COPIES, SIM_FLIGHT_BULK, SIM_FLIGHT_BULK_GROUP, SIM_FLIGHT_PRODUCT, SIM_FLIGHT_TENSOR };
/* Takes a copy of it. Under the eager policy it ends at once if it can. */
int sim_flight_add(struct sim_cluster *c, struct sim_flight f);
int sim_flight_some(struct sim_cluster *c); /* random policy: some go a stage on */
/* No warp can run: the oldest that can goes on. 1: one did; 0: none could; -1: fault. */
int sim_flight_force(struct sim_cluster *c);
/* Those of the lane (products: of the warpgroup) below `group` end, or only read their sources. */
int sim_flight_wait(struct sim_warp *w, int kind, uint32_t lane, uint32_t group, int read_only);
void sim_flight_clear(struct sim_cluster *c);

/* ---- products of warpgroups (wgmma.c) ---- */
void sim_products_make(struct sim_cta *cta);
void sim_products_free(struct sim_cta *cta);
void sim_products_start(struct sim_cta *cta, uint32_t clock_base);
uint32_t sim_products_top(const struct sim_cta *cta);

/* ---- registers of asynchronous products (checks/wgmma_hazards.c) ---- */
void sim_watch_find(struct sim_program *p); /* when decoded */
int sim_watch(struct sim_warp *w, const struct sim_ins *in, uint32_t m);
/* The product `number` of the warp takes its registers: first those of the sums, then those of A. */
void sim_watch_product(struct sim_warp *w, const struct sim_ins *in, uint32_t number, uint32_t n_sums, uint32_t n_a);

/* tcgen05.ld likewise: the load `number` writes n registers; products_seen counts loads then. */
void sim_watch_load(struct sim_warp *w, const struct sim_ins *in, uint32_t number, uint32_t n);

/* ---- copies of a warp (cp_async.c) ---- */
/* The lanes' cp.async so far are handed to the hand-over `time`. Number of copies. */
uint32_t sim_copies_hand_over(struct sim_warp *w, uint32_t lanes, uint32_t actor, uint32_t time);
/* Performs and forgets those that were handed over with this time. */
void sim_copies_perform(struct sim_warp *w, uint32_t time);
#endif
