/* SPDX-License-Identifier: MIT
 * What the driver alone takes for the launches of an execution: they are read from a recording of it, and queued again
 * without the library. */
#ifndef ATTN_CLI_BENCH_FLOOR_H
#define ATTN_CLI_BENCH_FLOOR_H
#include "bench/clock.h"

struct attn_cli_floor;

/* Records an execution on the clock's stream (args.stream) and keeps its launches and fills. NULL: `why` has the
 * reason. */
struct attn_cli_floor *attn_cli_floor_open(const struct attn_cli_clock *clock, const attn_plan *plan,
                                           const attn_args *args, char *why, size_t bytes);
void attn_cli_floor_close(struct attn_cli_floor *floor);
int attn_cli_floor_launches(const struct attn_cli_floor *floor);
/* Queue them; 0, or the driver's error number. */
int attn_cli_floor_queue(const struct attn_cli_floor *floor);
#endif
