/* SPDX-License-Identifier: MIT
 * Processors that this process may use: its affinity, and the processor time that its control groups grant. Not what
 * the machine has. */
#define _GNU_SOURCE /* CPU_COUNT */
#include "base/processors.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

/* First line of a file; 0 = there is none. */
static int read_line(const char *path, char *line, int bytes) {
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const int got = fgets(line, bytes, file) != NULL;
    fclose(file);
    return got;
}

/* Processors' worth of time of one group, rounded up; INT32_MAX = no limit. */
static int32_t group_quota(const char *dir) {
    char path[PATH_BYTES + 32], line[128];
    long long quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", dir); /* version 2: "QUOTA PERIOD" or "max PERIOD" */
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return INT32_MAX;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir); /* version 1: -1 = no limit */
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return INT32_MAX;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1) return INT32_MAX;
    }
    if (quota <= 0 || period <= 0) return INT32_MAX;
    const long long whole = quota / period + (quota % period != 0);
    return whole < INT32_MAX ? (int32_t)whole : INT32_MAX;
}

/* The least of a group and those around it, up to `mount`. A path that a namespace hides leaves those that exist. */
static int32_t least_quota(const char *mount, const char *group) {
    char dir[PATH_BYTES];
    const size_t stop = strlen(mount), group_length = strlen(group);
    int32_t least = INT32_MAX;
    if (stop + group_length >= sizeof dir) return group_quota(mount);
    memcpy(dir, mount, stop);
    memcpy(dir + stop, group, group_length + 1);
    for (size_t end = stop + group_length; end >= stop; end--) {
        if (end != stop && dir[end] != '/' && dir[end] != 0) continue;
        dir[end] = 0;
        const int32_t quota = group_quota(dir);
        if (quota < least) least = quota;
        if (end == 0) break;
    }
    return least;
}

/* Whether a list of controllers, as "cpu,cpuacct", has the one of time. */
static int names_cpu(const char *list) {
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == 3 && !memcmp(list, "cpu", n)) return 1;
    }
    return 0;
}

int32_t attn_base_cpu_quota(const char *groups, const char *root) {
    char line[PATH_BYTES], mount[PATH_BYTES / 2];
    int32_t least = INT32_MAX;
    FILE *file = fopen(groups, "re");
    if (!file) return least;
    while (fgets(line, sizeof line, file)) { /* number:controllers:path; version 2 has no controllers */
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0, names++;
        const int unified = !*names;
        if (!unified && !names_cpu(names)) continue;
        snprintf(mount, sizeof mount, "%s%s", root, unified ? "" : "/cpu"); /* a link, where several share a mount */
        const int32_t quota = least_quota(mount, path);
        if (quota < least) least = quota;
    }
    fclose(file);
    return least;
}

int32_t attn_base_processors(void) {
    cpu_set_t set;
    const long n = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    const int32_t may = n < 1 ? 1 : n > INT32_MAX ? INT32_MAX : (int32_t)n;
    const int32_t quota = attn_base_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < may ? quota : may;
}
