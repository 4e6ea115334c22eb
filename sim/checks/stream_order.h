/* SPDX-License-Identifier: MIT
 * What touches global memory one behind the other: launches, copies and fills ("deeds"), and how streams, events,
 * graphs and waits of the host order them. A stamp is a vector clock over slots; streams and branches of graphs have
 * slots. A deed sees an earlier one if its stamp says so, whatever the order in which they were done here. */
#ifndef SIM_ORDER_H
#define SIM_ORDER_H
#include <stddef.h>
#include <stdint.h>

/* Slot 0 is the default stream, then streams, then branches of graphs. More of either share slots: some findings less.
 */
enum { SIM_SLOTS = 64, SIM_STREAM_SLOTS = 48 };
struct sim_stamp {
    uint32_t number[SIM_SLOTS];
};
struct sim_when { /* of a task, told when it is queued */
    uint32_t slot, number;
    uint8_t known;           /* it has been told */
    struct sim_stamp before; /* what it may rely on from its start, */
    struct sim_stamp after;  /* and after griddepcontrol.wait */
    /* An early launch: the number of the one ahead in the slot, and what that one relies on after its own wait. If a
     * CTA of it allowed this one to begin behind that wait, all of that was over when this one began. */
    uint32_t ahead;
    struct sim_stamp handed;
};
void sim_stamp_join(struct sim_stamp *into, const struct sim_stamp *from);
/* The next place of a slot, and the stamp of what follows it. */
void sim_when_next(struct sim_when *when, uint32_t slot, struct sim_stamp *now);
extern struct sim_stamp sim_host_stamp; /* what the host has waited for; under the streams' lock */

struct sim_program;
struct sim_deed {
    uint32_t first, n; /* numbers of its actors in records of global memory (global.h) */
    uint32_t per_cluster, n_warps, slot, number;
    uint32_t grid[3], cluster[3];
    uint64_t launch;
    uint8_t hands_on;                  /* a CTA of it executed griddepcontrol.launch_dependents behind its wait */
    const struct sim_program *program; /* NULL: a copy or fill, or its module is gone */
    char name[96];                     /* of the kernel, or "a copy" */
};
/* Numbers for n actors. NULL: there are none now, order on global memory is not checked for this one. */
struct sim_deed *sim_deed_begin(const struct sim_deed *what, uint64_t n, const struct sim_when *when);
void sim_deed_end(struct sim_deed *deed);
const struct sim_deed *sim_deed_of(uint32_t actor); /* NULL: forgotten */
/* What a launch may rely on from its start, as far as that is known when it begins. */
const struct sim_stamp *sim_when_begun(const struct sim_when *when);
/* 1 if who has this stamp comes after the actor's deed. */
int sim_is_after(const struct sim_stamp *stamp, uint32_t actor);
/* Actors from here up to `first` all come before the stamp. */
uint32_t sim_calm_from(const struct sim_stamp *stamp, uint32_t first);
void sim_deeds_leave(const struct sim_program *program); /* it is about to be freed */
#endif
