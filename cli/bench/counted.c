/* SPDX-License-Identifier: MIT
 * Executions by the PTX simulator, counted (docs/sim.md, "Counts"). The simulator is known by a call that a device's
 * driver lacks; it is asked through the library that is loaded as the driver. */
#include "bench/bench.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { STOP, START, TABLE, JSON }; /* sim/counts/counts.h */
struct attn_cli_counter {
    void *library;
    const char *(*counts)(int what);
};

struct attn_cli_counter *attn_cli_counter_open(void) {
    const char *path = getenv("ATTN_CUDA_DRIVER");
    struct attn_cli_counter *c = path && *path ? calloc(1, sizeof *c) : NULL;
    if (!c) return NULL;
    setenv("ATTNSIM_RACES", "0", 0); /* not checked: `attn check` does that */
    c->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = c->library ? dlsym(c->library, "attnsim_counts") : NULL;
    memcpy(&c->counts, &symbol, sizeof symbol);
    if (symbol) return c;
    attn_cli_counter_close(c);
    return NULL;
}
void attn_cli_counter_close(struct attn_cli_counter *c) {
    if (!c) return;
    if (c->counts) c->counts(STOP);
    if (c->library) dlclose(c->library);
    free(c);
}

attn_status attn_cli_counter_run(struct attn_cli_counter *c, attn_ctx *ctx, const attn_plan *plan,
                                 const attn_args *args) {
    c->counts(START);
    attn_status status = attn_cli_execute(ctx, plan, args, NULL);
    c->counts(STOP);
    return status;
}
const char *attn_cli_counter_text(const struct attn_cli_counter *c, int json) {
    const char *text = c->counts(json ? JSON : TABLE);
    return text ? text : "";
}
