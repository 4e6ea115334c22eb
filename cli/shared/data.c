/* SPDX-License-Identifier: MIT
 * Where the files lie that come with the program: the lists of `attn bench @NAME`, the tensors of `attn demo`.
 * One lookup for both: share/attn beside a program in its build folder, else share/attn of the installed tree. Both
 * are found from the program itself, so that neither the current folder nor a moved tree matters. */
#include "shared/cli.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#ifndef ATTN_CLI_DATA_DIR /* set by the build: from the folder of the program, or absolute */
#define ATTN_CLI_DATA_DIR "../share/attn"
#endif

int attn_cli_data(const char *name, char *path, size_t bytes) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash) *slash = 0;
    static const char *const folders[] = {"share/attn", ATTN_CLI_DATA_DIR}; /* the last one is named in messages */
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int m = folders[i][0] == '/' ? snprintf(path, bytes, "%s/%s", folders[i], name)
                                     : snprintf(path, bytes, "%s/%s/%s", self, folders[i], name);
        if (m > 0 && (size_t)m < bytes && !access(path, R_OK)) return 0;
    }
    return -1;
}
