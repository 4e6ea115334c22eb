/* SPDX-License-Identifier: MIT
 * Inside a graph: tasks in an order in which none comes before one that it follows. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H
#include "driver/stream.h"

struct sim_node {
    struct sim_task task;
    uint32_t after[SIM_TAILS], n;
    uint32_t place; /* in its graph, and in what is made of that */
};
struct sim_graph {
    struct sim_node **nodes;
    uint32_t n, room;
};
struct sim_graph_exec {
    struct sim_graph graph;
};
uint32_t sim_graph_append(struct sim_graph *g, struct sim_task t, const uint32_t *after, uint32_t n);
#endif
