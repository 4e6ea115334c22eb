/* SPDX-License-Identifier: MIT
 * A stream of a GPU and the GPU's own clock, for `attn bench`. The library takes a stream from its caller and has no
 * events in its interface; a caller that wants them has the driver, and so has this file, by dlopen. */
#ifndef ATTN_CLI_BENCH_CLOCK_H
#define ATTN_CLI_BENCH_CLOCK_H
#include "attn.h"
#include "bench/driver.h"

struct attn_cli_clock;

/* For the device, through the same driver library as contexts without an option use. NULL: `why` has the reason. The
 * device's context stays current in the calling thread until close. */
struct attn_cli_clock *attn_cli_clock_open(attn_device device, char *why, size_t bytes);
void attn_cli_clock_close(struct attn_cli_clock *clock);
void *attn_cli_clock_stream(const struct attn_cli_clock *clock); /* attn_args.stream */
int attn_cli_clock_driver(const struct attn_cli_clock *clock);   /* CUDA version: 13000 = 13.0 */
const struct attn_cli_driver *attn_cli_clock_calls(const struct attn_cli_clock *clock);

/* Queue a mark on the stream; the time between two marks is known when the second one has been reached, which read()
 * waits for. All return 0, or the driver's error number. */
enum { ATTN_CLI_CLOCK_BEGIN, ATTN_CLI_CLOCK_END };
int attn_cli_clock_mark(struct attn_cli_clock *clock, int which);
int attn_cli_clock_read(struct attn_cli_clock *clock, double *seconds);
/* Queue a write of bytes of device memory. */
int attn_cli_clock_overwrite(struct attn_cli_clock *clock, void *memory, size_t bytes);
#endif
