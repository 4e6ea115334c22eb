/* SPDX-License-Identifier: MIT
 * Launches in small steps: workers that hold a cluster and give its warps one turn at a time. For sched_together.c,
 * which lets clusters of one launch or several run at the same time in one host thread. */
#ifndef SIM_TURNS_H
#define SIM_TURNS_H
#include "machine/machine.h"

void sim_launch_open(struct sim_launch *g);   /* before its first worker */
void sim_launch_begins(struct sim_launch *g); /* again, before its first cluster: it began early */
void sim_launch_close(struct sim_launch *g);
uint64_t sim_launch_clusters(const struct sim_launch *g);

struct sim_worker *sim_worker_open(struct sim_launch *g);
void sim_worker_close(struct sim_worker *k);
int sim_worker_next(struct sim_worker *k); /* takes the next cluster of the grid; 0: there is none left */
enum sim_turn {
    SIM_WENT_ON,
    SIM_POLLED, /* but nothing has changed */
    SIM_ENDED,  /* the cluster; sim_worker_leave and then _next */
    SIM_STUCK,  /* no warp can run until another cluster changes something */
    SIM_BROKEN  /* a fault, or the launch has failed elsewhere */
};
enum sim_turn sim_worker_turn(struct sim_worker *k);
void sim_worker_leave(struct sim_worker *k); /* the cluster has ended or is given up */

/* Launches that nothing orders, or of which one began early behind another (g->behind), in turns by the dice. */
void sim_launches_run(struct sim_launch *const *launches, uint32_t n);
enum { SIM_TOGETHER = 8 };
#endif
