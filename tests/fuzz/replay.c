/* SPDX-License-Identifier: MIT
 * Runs a fuzz target without libFuzzer: every file of a corpus folder, then a fixed number of mutations of them that
 * are the same on every machine. It finds nothing that libFuzzer would not; it keeps what was found from coming back.
 *   usage: fuzz_<name> CORPUS_FOLDER MUTATIONS [SEED]     or: fuzz_<name> FILE... (no mutations) */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_FILES = 512, MAX_BYTES = 1 << 16 };
struct blob {
    uint8_t *data;
    size_t size;
};

static uint64_t next_random(uint64_t *state) { /* splitmix64, Steele, Lea, Flood 2014 */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t below(uint64_t *state, size_t n) { return n ? (size_t)(next_random(state) % n) : 0; }

static int read_blob(const char *path, struct blob *out) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    out->data = malloc(MAX_BYTES);
    out->size = out->data ? fread(out->data, 1, MAX_BYTES, f) : 0;
    fclose(f);
    return out->data ? 0 : -1;
}

/* An exact-size heap copy, so that address sanitizer sees the first byte past the end. */
static void run_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) exit(2);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static size_t mutate(uint8_t *buf, size_t size, const struct blob *blobs, size_t n_blobs, uint64_t *state) {
    static const uint64_t edges[] = {0,
                                     1,
                                     UINT64_MAX,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     INT32_MAX,
                                     0x80000000u,
                                     UINT32_MAX,
                                     INT64_MAX,
                                     (uint64_t)INT64_MIN,
                                     0x10000000,
                                     65536,
                                     0x7ff0000000000000u,
                                     0x7ff8000000000000u};
    size_t rounds = 1 + below(state, 6);
    for (size_t r = 0; r < rounds; r++) {
        size_t pos = below(state, size + 1);
        switch (below(state, 7)) {
        case 0: /* flip a bit */
            if (pos < size) buf[pos] ^= (uint8_t)(1u << below(state, 8));
            break;
        case 1: /* another byte */
            if (pos < size) buf[pos] = (uint8_t)next_random(state);
            break;
        case 2: { /* an edge value, 1 to 8 bytes wide, at its own alignment or not */
            uint64_t v = edges[below(state, sizeof edges / sizeof *edges)];
            size_t width = (size_t)1 << below(state, 4);
            if (pos + width <= size) memcpy(buf + pos, &v, width);
            break;
        }
        case 3: { /* insert */
            size_t n = 1 + below(state, 8);
            if (size + n > MAX_BYTES) break;
            memmove(buf + pos + n, buf + pos, size - pos);
            for (size_t i = 0; i < n; i++) buf[pos + i] = (uint8_t)next_random(state);
            size += n;
            break;
        }
        case 4: { /* delete */
            size_t n = below(state, size - pos < 16 ? size - pos + 1 : 16);
            memmove(buf + pos, buf + pos + n, size - pos - n);
            size -= n;
            break;
        }
        case 5: { /* a piece of another file */
            const struct blob *b = &blobs[below(state, n_blobs)];
            size_t from = below(state, b->size + 1), n = below(state, b->size - from + 1);
            if (pos + n > MAX_BYTES) break;
            memcpy(buf + pos, b->data + from, n);
            if (pos + n > size) size = pos + n;
            break;
        }
        default: /* cut */
            if (below(state, 4) == 0) size = pos;
            break;
        }
    }
    return size;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int main(int argc, char **argv) {
    static struct blob blobs[MAX_FILES + 1];
    static char *names[MAX_FILES];
    size_t n_blobs = 0, n_names = 0, mutations = 0;
    uint64_t state = 1;
    struct stat st;
    if (argc >= 2 && (stat(argv[1], &st) || S_ISDIR(st.st_mode))) {
        DIR *folder = opendir(argv[1]);
        if (!folder) {
            fprintf(stderr, "no corpus folder %s\n", argv[1]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(folder)) && n_names < MAX_FILES;) {
            if (e->d_name[0] == '.') continue;
            size_t bytes = strlen(argv[1]) + strlen(e->d_name) + 2;
            char *path = malloc(bytes);
            if (!path) return 2;
            snprintf(path, bytes, "%s/%s", argv[1], e->d_name);
            names[n_names++] = path;
        }
        closedir(folder);
        /* folder order differs between machines */
        qsort(names, n_names, sizeof *names, compare_names);
        if (argc >= 3) mutations = (size_t)strtoull(argv[2], NULL, 10);
        if (argc >= 4) state = strtoull(argv[3], NULL, 10);
    } else {
        for (int i = 1; i < argc && n_names < MAX_FILES; i++) names[n_names++] = strdup(argv[i]);
    }
    for (size_t i = 0; i < n_names; i++) {
        if (!names[i] || read_blob(names[i], &blobs[n_blobs])) {
            fprintf(stderr, "cannot read %s\n", names[i] ? names[i] : "?");
            return 1;
        }
        run_copy(blobs[n_blobs].data, blobs[n_blobs].size);
        n_blobs++;
        free(names[i]);
    }
    if (!n_blobs) {
        fprintf(stderr, "nothing to replay: give a corpus folder or files\n");
        return 1;
    }
    uint8_t *buf = malloc(MAX_BYTES);
    if (!buf) return 2;
    for (size_t i = 0; i < mutations; i++) {
        const struct blob *b = &blobs[below(&state, n_blobs)];
        memcpy(buf, b->data, b->size);
        run_copy(buf, mutate(buf, b->size, blobs, n_blobs, &state));
    }
    printf("%zu files, %zu mutations\n", n_blobs, mutations);
    free(buf);
    for (size_t i = 0; i < n_blobs; i++) free(blobs[i].data);
    return 0;
}
