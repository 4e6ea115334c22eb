/* SPDX-License-Identifier: MIT
 * The choice of CUDA's driver for commands that take --driver. The library reads its path from the environment when a
 * context is made. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* readlink */
#endif
#include "shared/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int attn_cli_driver(const char *name) {
    char path[600];
    if (!strcmp(name, "sim")) {
        ssize_t n = readlink("/proc/self/exe", path, 500);
        if (n <= 0) return -1;
        path[n] = 0;
        snprintf(strrchr(path, '/'), 60, "/libattn_sim_cuda.so");
        setenv("ATTN_CUDA_IMAGE", "ptx", 0); /* it runs no machine code */
        char folder[600]; /* the build's PTX, which has the places of its instructions in the sources */
        snprintf(folder, sizeof folder, "%.*s/cuda", (int)(strrchr(path, '/') - path), path);
        if (!access(folder, R_OK)) setenv("ATTNSIM_PTX", folder, 0);
        name = path;
    }
    return setenv("ATTN_CUDA_DRIVER", name, 1);
}

/* Bytes of a list's first word; *name: of them those before a seed. 0: it is none. */
static size_t policy_word(const char *list, size_t *name) {
    static const char *const names[] = {"eager", "late", "random"};
    const size_t bytes = strcspn(list, ",");
    *name = strcspn(list, ",:");
    for (int i = 0; i < 3; i++) {
        if (strlen(names[i]) != *name || memcmp(list, names[i], *name)) continue;
        if (*name == bytes) return bytes;
        const size_t digits = strspn(list + *name + 1, "0123456789");
        return i == 2 && digits > 0 && digits < 19 && *name + 1 + digits == bytes ? bytes : 0;
    }
    return 0;
}

int attn_cli_policy(const char *list, int turn, const char *seed) {
    size_t name;
    int n = 0;
    for (const char *s = list;; s++) {
        const size_t bytes = policy_word(s, &name);
        if (!bytes) return -1;
        n++;
        s += bytes;
        if (!*s) break;
    }
    if (turn < 0) return 0;
    for (turn %= n; turn > 0; turn--) list = strchr(list, ',') + 1;
    const size_t bytes = policy_word(list, &name);
    char text[24];
    snprintf(text, sizeof text, "%.*s", (int)name, list);
    setenv("ATTNSIM_POLICY", text, 1);
    if (bytes > name) snprintf(text, sizeof text, "%.*s", (int)(bytes - name - 1), list + name + 1), seed = text;
    return setenv("ATTNSIM_SEED", seed, 1);
}
