/* SPDX-License-Identifier: MIT
 * Measured choices: a small table (problem text, device name, kernel name, seconds), and its text file. */
#ifndef ATTN_CORE_TUNE_H
#define ATTN_CORE_TUNE_H
#include "attn.h"
struct attn_core_tuning;
struct attn_mem;
attn_status attn_core_tuning_create(struct attn_mem *mem, struct attn_core_tuning **out);
void attn_core_tuning_destroy(struct attn_mem *mem, struct attn_core_tuning *table);
/* Seconds remembered for the problem on a device of this name and thread count; 0 if none. */
double attn_core_tuning_seconds(const struct attn_core_tuning *table, const attn_problem *problem,
                                const char *device_name, int32_t threads);
/* Its kernel; NULL if none. The string lives as long as the table. */
const char *attn_core_tuning_find(const struct attn_core_tuning *table, const attn_problem *problem,
                                  const char *device_name, int32_t threads);
attn_status attn_core_tuning_put(struct attn_mem *mem, struct attn_core_tuning *table, const attn_problem *problem,
                                 const char *device_name, int32_t threads, const char *kernel, double seconds);
/* Versioned text file, one entry a line; malformed lines give ATTN_E_IO with the line number and leave the table as it
 * was. */
attn_status attn_core_tuning_load(struct attn_mem *mem, struct attn_core_tuning *table, const char *path);
attn_status attn_core_tuning_save(const struct attn_core_tuning *table, const char *path);
/* Parses the text itself (fuzz target; load reads the file and calls this). */
attn_status attn_core_tuning_parse(struct attn_mem *mem, struct attn_core_tuning *table, const char *text,
                                   size_t bytes);
#endif
