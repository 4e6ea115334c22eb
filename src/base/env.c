/* SPDX-License-Identifier: MIT
 * The environment table and the only getenv of the library. Contexts read it once, when they are made. */
#include "base/env.h"
#include "base/err.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

const struct attn_env_row attn_env_table[ATTN_ENV_COUNT] = {
    [ATTN_ENV_LOG] =
        {"ATTN_LOG", "level",
         "Log level: off, warn, info or debug; then areas if not all of them, as in info,plan,pool: check, cpu, "
         "ctx, cuda, env, execute, measure, plan, pool. Lines go to the context's sink, or to standard error "
         "if it has none."},
    [ATTN_ENV_KERNEL] = {"ATTN_KERNEL", "text",
                         "Preferred kernels for plans that name none: a name pattern with * and ?, as in *_avx2_*. "
                         "A hint: if no kernel that accepts the problem matches, the choice is as without it."},
    [ATTN_ENV_BACKEND] = {"ATTN_BACKEND", "text",
                          "Preferred backend for plans that name none: any, ref, cpu or cuda. A hint, as ATTN_KERNEL."},
    [ATTN_ENV_CPU] =
        {"ATTN_CPU", "text",
         "Cap on the CPU features that kernels may use: c, avx2, avx512, avx512bf16 or amx. Unset: all there are."},
    [ATTN_ENV_CPU_SUBNORMALS] =
        {"ATTN_CPU_SUBNORMALS", "text",
         "Subnormal numbers on the CPU. Unset: operands count, results become 0 for speed. exact: "
         "results are kept, too, and kernels on VDPBF16PS and TDPBF16PS are refused. flush: both count as 0."},
    [ATTN_ENV_EXPLAIN] = {"ATTN_EXPLAIN", "bool",
                          "1: every new plan logs the table of attn_explain at level info, area plan. Unless "
                          "ATTN_LOG is set, it also asks for that level and area."},
    [ATTN_ENV_CHECK] = {"ATTN_CHECK", "bool",
                        "1: each execution on the CPU also runs the reference kernel and warns (area check) of outputs "
                        "that differ. Unless ATTN_LOG is set, it also asks for those lines. Slow; allocates."},
    [ATTN_ENV_POISON] = {"ATTN_POISON", "bool",
                         "1: fill outputs (but not accumulated ones) and the workspace with NaN patterns before each "
                         "execution on the CPU, so that elements that a kernel forgets show."},
    [ATTN_ENV_TRACE] = {"ATTN_TRACE", "path",
                        "Append plan creations and executions to this file as a Chrome trace (JSON array, as Perfetto "
                        "and chrome://tracing read it)."},
    [ATTN_ENV_THREADS] =
        {"ATTN_THREADS", "int",
         "CPU threads of a context whose options leave it open, the caller's included. 1 to 1024. Unset: the "
         "processors that the process may use, by its affinity and its control groups' quotas."},
    [ATTN_ENV_TUNING] = {"ATTN_TUNING", "path",
                         "Tuning file (attn_tuning_save) read by contexts whose options name none."},
    [ATTN_ENV_SYNC] =
        {"ATTN_SYNC", "bool",
         "1: executions on a GPU wait for their work, so that a fault is reported by the call that caused "
         "it and names the kernel. Streams that record a graph are not waited for."},
    [ATTN_ENV_CUDA_DRIVER] = {"ATTN_CUDA_DRIVER", "path",
                              "The CUDA driver library, for contexts whose options name none. Unset: libcuda.so.1."},
    [ATTN_ENV_CUDA_IMAGE] = {"ATTN_CUDA_IMAGE", "text",
                             "Which code of a kernel the GPU loads: ptx makes the driver compile the PTX text, cubin "
                             "refuses devices for which the build has no machine code. Unset: the driver's choice."},
    [ATTN_ENV_CUDA_GRAPHS] = {"ATTN_CUDA_GRAPHS", "bool",
                              "0: every execution on a GPU queues its kernels one by one. Unset: from a plan's third "
                              "execution on, several kernels go as one graph that the plan keeps."},
    [ATTN_ENV_CUDA_SHARED_LIMIT] = {"ATTN_CUDA_SHARED_LIMIT", "int",
                                    "For tests: bytes of shared memory per block that kernels may count on, below "
                                    "what the device has, to choose as on a smaller chip."},
    [ATTN_ENV_CUDA_L2_LIMIT] = {"ATTN_CUDA_L2_LIMIT", "int",
                                "For tests: bytes of the second-level cache that choices count on, below what the "
                                "device has, to choose as on a smaller chip."},
    [ATTN_ENV_CUDA_CHUNK_LIMIT] =
        {"ATTN_CUDA_CHUNK_LIMIT", "int",
         "For tests: queries whose rows of slots deterministic mla_bwd keeps at once, and groups of joined lists that "
         "mla_fwd and dist on sm_100 take at once, at most, so that small problems are cut in chunks, too."},
    [ATTN_ENV_CUDA_SM_LIMIT] = {"ATTN_CUDA_SM_LIMIT", "int",
                                "For tests: multiprocessors that launches count on, below what the device has, so that "
                                "small problems have several items for each CTA."},
    [ATTN_ENV_FAIL_ALLOC] = {"ATTN_FAIL_ALLOC", "int",
                             "For tests: the n-th allocation of each context fails, the first being 1."},
    [ATTN_ENV_FAIL_THREAD] = {"ATTN_FAIL_THREAD", "int",
                              "For tests: the n-th thread that a context starts fails to start, the first being 1."},
};

const char *attn_base_env(enum attn_env_id id) {
    const char *value = getenv(attn_env_table[id].name);
    return value && value[0] ? value : NULL;
}

int64_t attn_base_env_int(enum attn_env_id id, int64_t default_value) {
    const char *value = attn_base_env(id);
    int64_t out;
    return value && !attn_text_int64(value, strlen(value), &out) ? out : default_value;
}

static int listed(const char *value, const char *const words[], size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(value, words[i])) return 1;
    return 0;
}

static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", "off"};
enum { WORDS = sizeof yes / sizeof *yes };

int attn_base_env_bool(enum attn_env_id id) {
    const char *value = attn_base_env(id);
    return value && listed(value, yes, WORDS);
}

attn_status attn_base_env_check(void) {
    for (int id = 0; id < ATTN_ENV_COUNT; id++) {
        const struct attn_env_row *row = &attn_env_table[id];
        const char *value = attn_base_env((enum attn_env_id)id);
        int64_t number;
        if (!value || id == ATTN_ENV_THREADS) continue; /* its range, and whether it is read at all, is the context's */
        if (!strcmp(row->type, "bool") && !listed(value, yes, WORDS) && !listed(value, no, WORDS))
            FAIL(ATTN_E_ARGUMENT, row->name, "%s is \"%.80s\"; expected 1, true, yes, on, 0, false, no or off",
                 row->name, value);
        if (!strcmp(row->type, "int") && (attn_text_int64(value, strlen(value), &number) || number < 0))
            FAIL(ATTN_E_ARGUMENT, row->name, "%s is \"%.80s\"; expected a number, 0 or more", row->name, value);
    }
    return ATTN_OK;
}

/* Variables of the build (docs/building.md), which the shell of one who builds may keep. */
static const char *const of_the_build[] = {"ATTN_CUDA_CODE"};

const char *attn_base_env_unknown(size_t *cursor) {
    for (size_t seen = 0; environ && environ[seen]; seen++) {
        const char *entry = environ[seen];
        if (seen < *cursor || strncmp(entry, "ATTN_", 5)) continue;
        size_t n = strcspn(entry, "=");
        int known = 0;
        for (int id = 0; id < ATTN_ENV_COUNT && !known; id++)
            known = attn_text_equal(entry, n, attn_env_table[id].name);
        for (size_t i = 0; i < sizeof of_the_build / sizeof *of_the_build && !known; i++)
            known = attn_text_equal(entry, n, of_the_build[i]);
        *cursor = seen + 1;
        if (!known) return entry;
    }
    return NULL;
}

const char *attn_base_env_nearest(const char *entry) {
    enum { CLOSE = 2 };
    const char *nearest = NULL;
    int least = CLOSE + 1;
    for (int id = 0; id < ATTN_ENV_COUNT; id++) {
        int d = attn_text_distance(entry, strcspn(entry, "="), attn_env_table[id].name);
        if (d < least) least = d, nearest = attn_env_table[id].name;
    }
    return nearest;
}
