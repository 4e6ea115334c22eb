/* SPDX-License-Identifier: MIT
 * Tensor memory of sm_100: 128 lanes by 512 columns of 32 bits in each CTA, its allocation, and who touched what. An
 * address is lane << 16 | column. Order is kept for parts of 16 lanes by one column: a warp's accesses have an actor
 * (its waits and tcgen05.fence::before_thread_sync move its time on), the products of a CTA have another, and what a
 * warp may rely on enters its view by tcgen05.fence::after_thread_sync. */
#ifndef SIM_TENSOR_MEMORY_H
#define SIM_TENSOR_MEMORY_H
#include "units/hopper.h"

enum { SIM_TM_LANES = 128, SIM_TM_COLUMNS = 512, SIM_TM_PARTS = 8 * SIM_TM_COLUMNS };
enum { SIM_TM_ALL = 255 }; /* parts of lanes */
/* unknown: by a shift, whose direction is not stated */
enum sim_cell { SIM_CELL_NEVER, SIM_CELL_WRITTEN, SIM_CELL_UNKNOWN };
enum { SIM_COLLECTORS = 5 };
struct sim_collected { /* the buffer of A, and those of B */
    uint64_t operand;
    uint32_t shape;
    uint8_t valid;
};
struct sim_tensor_memory {
    uint32_t (*cells)[SIM_TM_COLUMNS];         /* by lane */
    uint8_t (*written)[SIM_TM_COLUMNS];        /* of each cell: enum sim_cell */
    uint64_t writes[SIM_TM_PARTS];             /* record of the last write */
    uint32_t *reads;                           /* [part][actor]: time of its last read; actors from actors.tensor on */
    uint32_t *read_statements;                 /* likewise */
    uint16_t owner[SIM_TM_COLUMNS];            /* 1 + first column of the allocation, or 0 */
    uint16_t sizes[SIM_TM_COLUMNS];            /* of the allocation that begins there */
    uint8_t relinquished, group;               /* group: cta_group in use, 0 so far none */
    uint8_t early_told;                        /* a finding about taken_time */
    uint32_t asks, asker, granted;             /* of a pair: columns that a warp asks for; 1 + what it got */
    uint32_t taken_actor, taken_time;          /* of the last allocation */
    uint32_t base, n_products, n_done, issuer; /* issuer: warp of the cluster that started the last product */
    struct sim_collected collected[SIM_COLLECTORS];
};

void sim_tensor_make(struct sim_cta *cta);
void sim_tensor_free(struct sim_cta *cta);
void sim_tensor_start(struct sim_cta *cta, uint32_t clock_base);
int sim_tensor_end(struct sim_warp *last);    /* of the CTA: 1 if an allocation is left */
int sim_is_product(const struct sim_ins *in); /* tcgen05.mma */
enum sim_cell_access { SIM_CELLS_READ, SIM_CELLS_WRITTEN, SIM_CELLS_FREED }; /* freed: no fence is needed */
/* 0, or -1 after a finding that ends the launch: lanes [16 part, ...) of `columns` from `column` on, by actor and time.
 */
int sim_tensor_touch(struct sim_warp *w, const struct sim_ins *in, struct sim_cta *owner, uint32_t parts,
                     uint32_t column, uint32_t columns, uint32_t actor, uint32_t time, enum sim_cell_access access);
/* Columns from `column` on are allocated. */
int sim_tensor_holds(struct sim_warp *w, const struct sim_ins *in, const struct sim_cta *owner, uint32_t column,
                     uint32_t columns);
/* Before work of one thread starts: 0, or -1 after a finding (several threads, another cta_group). */
int sim_tensor_starts(struct sim_warp *w, const struct sim_ins *in, uint32_t m);
/* Shared addresses of 16 bytes that a descriptor reaches become offsets in the CTA's memory. 0, or -1 after a finding.
 */
int sim_tensor_offsets(struct sim_warp *w, const struct sim_ins *in, uint32_t *chunks, uint32_t n, char name);
/* The warp has waited for its loads or its stores; or, loads_are_over, its last load's registers are in use: all its
 * loads are over then, whatever the letter says, and a later wait for stores counts. Kept (waited_at) to tell a missing
 * fence from missing order. */
void sim_tensor_waited(struct sim_warp *w, int loads_are_over);
/* tcgen05.fence: before: what the warp has waited for becomes part of what it releases; after: what it knows, it sees.
 */
void sim_tensor_before(struct sim_warp *w);
void sim_tensor_after(struct sim_warp *w);
static inline uint32_t sim_tensor_lane_actor(const struct sim_warp *w) {
    return w->cta->cluster->hopper->actors.lanes + w->actor;
}
static inline uint32_t sim_tensor_core_actor(const struct sim_cta *cta) {
    return cta->cluster->hopper->actors.tensor + cta->rank;
}
#endif
