/* SPDX-License-Identifier: MIT
 * PTX for machine code. Compilers that write both (the CuTe DSL, Triton) hand the driver the machine code alone. Where
 * ATTNSIM_CUBINS names the folder in which they lie as NAME.cubin and NAME.ptx, machine code that equals a file there
 * counts as the PTX beside it. */
#define _GNU_SOURCE
#include "driver/cu.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file with a zero behind it; NULL: there is none. */
static char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    long n = -1;
    char *data = NULL;
    if (!f) return NULL;
    if (!fseek(f, 0, SEEK_END)) n = ftell(f);
    if (n >= 0 && n < INT_MAX && (data = calloc(1, (size_t)n + 1)) != NULL) {
        rewind(f);
        if (fread(data, 1, (size_t)n, f) != (size_t)n) {
            free(data);
            data = NULL;
        }
    }
    fclose(f);
    *bytes = (size_t)n;
    return data;
}
enum { HEADER = 64 }; /* of a 64-bit ELF file */
/* The header tells where the tables lie, so that of two files with one header neither is read beyond its end. */
static int is_same(const char *file, size_t file_bytes, const void *code, size_t bytes) {
    if (file_bytes < HEADER || memcmp(file, code, HEADER) != 0) return 0;
    return (!bytes || bytes == file_bytes) && !memcmp(file, code, file_bytes);
}

static char *search(const char *folder, const void *code, size_t bytes, int depth) {
    DIR *d = opendir(folder);
    char path[PATH_MAX], *text = NULL;
    for (const struct dirent *e; d && !text && (e = readdir(d)) != NULL;) {
        const size_t n = strlen(e->d_name);
        size_t size = 0;
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path)
            continue;
        if (n <= 6 || strcmp(e->d_name + n - 6, ".cubin") != 0) {
            if (depth && !strchr(e->d_name, '.')) text = search(path, code, bytes, depth - 1);
            continue;
        }
        char *file = read_file(path, &size);
        if (file && is_same(file, size, code, bytes)) {
            strcpy(path + strlen(path) - 6, ".ptx");
            text = read_file(path, &size);
        }
        free(file);
    }
    if (d) closedir(d);
    return text;
}
char *sim_cubin_text(const void *code, size_t bytes) {
    const char *folder = getenv("ATTNSIM_CUBINS");
    return folder && *folder ? search(folder, code, bytes, 1) : NULL;
}
