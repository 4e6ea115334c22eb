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
