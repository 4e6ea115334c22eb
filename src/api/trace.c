/* SPDX-License-Identifier: MIT
 * ATTN_TRACE: complete events ("ph":"X") of the Chrome trace format, one per line. Each line is one append, so that
 * threads, contexts and processes can share a file; the format allows the closing bracket to be absent. */
#include "api/api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void put(int file, const char *text, size_t n) {
    while (n) {
        ssize_t done = write(file, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return; /* a full disk must not disturb the work that is traced */
        text += done;
        n -= (size_t)done;
    }
}

int attn_api_trace_open(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    struct stat info;
    if (file >= 0 && !fstat(file, &info) && info.st_size == 0) put(file, "[\n", 2);
    return file;
}

void attn_api_trace_close(int file) {
    if (file >= 0) close(file);
}

int64_t attn_api_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t attn_api_trace_begin(const attn_ctx *ctx) {
    return attn_api_state_of(ctx)->trace_file < 0 ? 0 : attn_api_clock_ns();
}

void attn_api_trace_end(const attn_ctx *ctx, int64_t begin, const char *category, const char *name,
                        const attn_problem *problem) {
    if (!begin) return;
    int64_t now = attn_api_clock_ns();
    char words[768] = "", line[1280];
    attn_problem_format(problem, words, sizeof words, NULL);
    /* Kernel names and problem texts hold no character that JSON would want escaped. Times are microseconds. */
    int n = snprintf(line, sizeof line,
                     "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"pid\":%ld,"
                     "\"tid\":%ld,\"args\":{\"problem\":\"%s\"}},\n",
                     name, category, (long long)(begin / 1000), (int)(begin % 1000), (long long)((now - begin) / 1000),
                     (int)((now - begin) % 1000), (long)getpid(), (long)syscall(SYS_gettid), words);
    if (n > 0 && (size_t)n < sizeof line) put(attn_api_state_of(ctx)->trace_file, line, (size_t)n);
}
