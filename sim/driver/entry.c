/* SPDX-License-Identifier: MIT
 * cuGetProcAddress: a call by its name in the manual, without the number of its version. What this driver lacks is not
 * found. */
#define _GNU_SOURCE
#include "driver/cu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { FOUND = 0, NOT_FOUND = 1 };

static void *own_symbol(const char *name) {
    Dl_info own_library;
    if (!dladdr((const void *)&own_symbol, &own_library)) return NULL;
    void *self = dlopen(own_library.dli_fname, RTLD_NOW | RTLD_NOLOAD), *symbol = NULL;
    if (self) {
        symbol = dlsym(self, name);
        dlclose(self);
    }
    return symbol;
}

SIM_API cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
SIM_API cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    char versioned[96];
    int r = sim_enter(__func__, NULL);
    if (r && r != R_NOT_INITIALIZED) return r; /* it may come before cuInit */
    if (!name || !out || strncmp(name, "cu", 2) || flags > 2) return R_INVALID_VALUE;
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *out = version >= 3020 ? own_symbol(versioned) : NULL;
    if (!*out) *out = own_symbol(name);
    if (status) *status = *out ? FOUND : NOT_FOUND;
    return *out || status ? R_SUCCESS : R_NOT_FOUND;
}
SIM_API cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
SIM_API cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
