/* SPDX-License-Identifier: MIT
 * A bulk copy under way, whatever instruction started it. */
#ifndef SIM_TRANSFER_H
#define SIM_TRANSFER_H
#include "units/hopper.h"
#include "units/tensor_box.h"

enum sim_transfer_kind { SIM_TO_SHARED, SIM_TO_GLOBAL, SIM_TO_CLUSTER, SIM_FROM_REGISTERS, SIM_FROM_UNIT };
struct sim_transfer {
    enum sim_transfer_kind kind;
    uint32_t ranks;                    /* mask of CTAs that it writes to */
    uint32_t barrier;                  /* offset of the mbarrier in each of those, */
    uint32_t teller;                   /* or, if not 0, in the CTA of its pair whose rank is odd (2) or even (1) */
    uint32_t to, from;                 /* shared offsets: destination, source of SIM_TO_CLUSTER */
    uint32_t swizzle, bytes, n_pieces; /* bytes: what the mbarrier is told */
    uint32_t gap;                      /* of each 16 bytes in shared memory from here on, 0: none */
    uint32_t reduce, type;             /* 1 + operation of atom, or 0; its element type */
    uint16_t fill;                     /* of 16-bit elements that do not exist */
    uint8_t *buffer;
    struct sim_piece *pieces;
};
/* With room for pieces and bytes, in one allocation that the flight frees. */
struct sim_transfer *sim_transfer_new(uint32_t n_pieces, uint32_t bytes);
/* Checks what it touches, on behalf of the lane, and starts it. 0, or -1 after a finding. It owns `t`. */
int sim_transfer_start(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, struct sim_transfer *t);
#endif
