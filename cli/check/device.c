/* SPDX-License-Identifier: MIT
 * Device memory for the tester: every block of host memory that a case lives in - tensors with their guards, the
 * workspace - gets a copy on the device. Both are filled alike before a run and the copy is read back whole after it,
 * so that all tests of bytes work as on the CPU. */
#include "check.h"

#include <stdlib.h>

struct check_device {
    attn_ctx *ctx;
    attn_device id;
};

struct check_device *attn_cli_check_device_open(attn_ctx *ctx, attn_device id, char *why, size_t bytes) {
    struct check_device *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    *d = (struct check_device){attn_ctx_retain(ctx), id};
    if (!attn_device_synchronize(ctx, id)) return d;
    snprintf(why, bytes, "%s", attn_last_error());
    attn_cli_check_device_close(d);
    return NULL;
}

void attn_cli_check_device_close(struct check_device *d) {
    if (!d) return;
    attn_ctx_release(d->ctx);
    free(d);
}

const char *attn_cli_check_device_wait(struct check_device *d) {
    return attn_device_synchronize(d->ctx, d->id) ? attn_last_error() : NULL;
}

int attn_cli_check_copy_alloc(struct check_device *d, struct check_device_copy *t, uint8_t *host, size_t bytes) {
    *t = (struct check_device_copy){.host = host, .bytes = bytes};
    return attn_memory_alloc(d->ctx, d->id, bytes, (void **)&t->memory);
}
int attn_cli_check_copy_to_device(struct check_device *d, const struct check_device_copy *t) {
    return attn_memory_copy(d->ctx, d->id, t->memory, ATTN_DEVICE_CPU, t->host, t->bytes);
}
int attn_cli_check_copy_to_host(struct check_device *d, const struct check_device_copy *t) {
    return attn_memory_copy(d->ctx, ATTN_DEVICE_CPU, t->host, d->id, t->memory, t->bytes);
}
void attn_cli_check_copy_free(struct check_device *d, struct check_device_copy *t) {
    attn_memory_free(d->ctx, d->id, t->memory, t->bytes);
    *t = (struct check_device_copy){0};
}
void *attn_cli_check_copy_address(const struct check_device_copy *t, const void *host) {
    return host ? t->memory + ((const uint8_t *)host - t->host) : NULL;
}
