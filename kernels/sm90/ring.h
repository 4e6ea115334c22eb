/* SPDX-License-Identifier: MIT
 * A ring of SLOTS slots in shared memory: a kernel's work.h defines SLOTS before it includes this file. */
#ifndef ATTN_SM90_RING_H
#define ATTN_SM90_RING_H
#include <stdint.h>

/* A place in the ring: slot, and the parity of the phase in which it is filled. */
struct ring {
    uint32_t slot, phase;
};
static __device__ __forceinline__ void next_slot(struct ring *r) {
    r->slot++;
    if (r->slot == SLOTS) r->slot = 0, r->phase ^= 1;
}
#endif
