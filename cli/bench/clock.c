/* SPDX-License-Identifier: MIT
 * The driver's streams and events by dlopen: see clock.h. Nothing here computes attention. */
#include "bench/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attn_cli_clock {
    void *library, *context, *stream, *event[2];
    int device, driver, retained, pushed;
    struct attn_cli_driver cu;
};

static const struct {
    const char *symbol;
    size_t offset;
    int optional;
} rows[] = {
#define NEEDED(name, symbol, parameters)   {#symbol, offsetof(struct attn_cli_driver, name), 0},
#define OPTIONAL(name, symbol, parameters) {#symbol, offsetof(struct attn_cli_driver, name), 1},
    ATTN_CLI_DRIVER_CLOCK(NEEDED) ATTN_CLI_DRIVER_FLOOR(OPTIONAL)
#undef OPTIONAL
#undef NEEDED
};

static const char *open_library(struct attn_cli_clock *c) {
    const char *path = getenv("ATTN_CUDA_DRIVER");
    c->library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!c->library) return dlerror();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *address = dlsym(c->library, rows[i].symbol);
        if (!address && !rows[i].optional) return rows[i].symbol;
        if (!address && !c->cu.lacks) c->cu.lacks = rows[i].symbol;
        memcpy((char *)&c->cu + rows[i].offset, &address, sizeof address);
    }
    return NULL;
}

static const char *start(struct attn_cli_clock *c, int32_t index) {
    const char *why = open_library(c);
    if (why) return why;
    if (c->cu.init(0) || c->cu.version(&c->driver) || c->cu.get(&c->device, index)) return "the driver does not start";
    c->retained = !c->cu.retain(&c->context, c->device);
    c->pushed = c->retained && !c->cu.push(c->context);
    if (!c->pushed) return "the driver gives no context";
    if (c->cu.stream_create(&c->stream, 1)) return "the driver gives no stream"; /* 1: apart from the default stream */
    for (int i = 0; i < 2; i++)
        if (c->cu.event_create(&c->event[i], 0)) return "the driver gives no event";
    return NULL;
}

struct attn_cli_clock *attn_cli_clock_open(attn_device device, char *why, size_t bytes) {
    struct attn_cli_clock *c = calloc(1, sizeof *c);
    const char *fault = c ? start(c, device.index) : "out of memory";
    if (!fault) return c;
    snprintf(why, bytes, "%s", fault);
    attn_cli_clock_close(c);
    return NULL;
}

void attn_cli_clock_close(struct attn_cli_clock *c) {
    if (!c) return;
    void *ours;
    for (int i = 0; i < 2; i++)
        if (c->event[i]) c->cu.event_destroy(c->event[i]);
    if (c->stream) c->cu.stream_destroy(c->stream);
    if (c->pushed) c->cu.pop(&ours);
    if (c->retained) c->cu.release(c->device);
    if (c->library) dlclose(c->library);
    free(c);
}

void *attn_cli_clock_stream(const struct attn_cli_clock *c) { return c->stream; }
int attn_cli_clock_driver(const struct attn_cli_clock *c) { return c->driver; }
const struct attn_cli_driver *attn_cli_clock_calls(const struct attn_cli_clock *c) { return &c->cu; }
int attn_cli_clock_mark(struct attn_cli_clock *c, int which) { return c->cu.event_record(c->event[which], c->stream); }

int attn_cli_clock_read(struct attn_cli_clock *c, double *seconds) {
    float ms = 0;
    int r = c->cu.event_wait(c->event[ATTN_CLI_CLOCK_END]);
    if (!r) r = c->cu.event_elapsed(&ms, c->event[ATTN_CLI_CLOCK_BEGIN], c->event[ATTN_CLI_CLOCK_END]);
    *seconds = (double)ms * 1e-3;
    return r;
}

int attn_cli_clock_overwrite(struct attn_cli_clock *c, void *memory, size_t bytes) {
    return c->cu.fill((unsigned long long)(uintptr_t)memory, 0, bytes, c->stream);
}
