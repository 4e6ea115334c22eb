/* SPDX-License-Identifier: MIT
 * The environment: one table of every variable the library reads, and the only getenv. */
#ifndef ATTN_BASE_ENV_H
#define ATTN_BASE_ENV_H
#include "attn.h"

#include <stddef.h>
#include <stdint.h>

enum attn_env_id {
    ATTN_ENV_LOG,
    ATTN_ENV_KERNEL,
    ATTN_ENV_BACKEND,
    ATTN_ENV_CPU,
    ATTN_ENV_CPU_SUBNORMALS,
    ATTN_ENV_EXPLAIN,
    ATTN_ENV_CHECK,
    ATTN_ENV_POISON,
    ATTN_ENV_TRACE,
    ATTN_ENV_THREADS,
    ATTN_ENV_TUNING,
    ATTN_ENV_SYNC,
    ATTN_ENV_CUDA_DRIVER,
    ATTN_ENV_CUDA_IMAGE,
    ATTN_ENV_CUDA_GRAPHS,
    ATTN_ENV_CUDA_SHARED_LIMIT,
    ATTN_ENV_CUDA_L2_LIMIT,
    ATTN_ENV_CUDA_CHUNK_LIMIT,
    ATTN_ENV_CUDA_SM_LIMIT,
    ATTN_ENV_FAIL_ALLOC,
    ATTN_ENV_FAIL_THREAD,
    ATTN_ENV_COUNT
};
struct attn_env_row {
    const char *name, *type, *help;
};
extern const struct attn_env_row attn_env_table[ATTN_ENV_COUNT];
const char *attn_base_env(enum attn_env_id id);                        /* NULL if unset or empty */
int64_t attn_base_env_int(enum attn_env_id id, int64_t default_value); /* default if unset or not a number */
int attn_base_env_bool(enum attn_env_id id);                           /* 1, true, yes, on */
/* ATTN_E_ARGUMENT where a variable of type bool or int has another value. The context judges ATTN_THREADS. */
attn_status attn_base_env_check(void);
/* The next ATTN_* entry of the environment whose name the table lacks, as it stands there ("NAME=value"), from entry
 * *cursor on; *cursor moves past it. NULL at the end. */
const char *attn_base_env_unknown(size_t *cursor);
/* The known name that differs from that of an entry by two letters or less; NULL if there is none. */
const char *attn_base_env_nearest(const char *entry);
#endif
