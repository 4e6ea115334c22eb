/* SPDX-License-Identifier: MIT
 * The program that attn-sim is to run: where it is, and whether it can run here. */
#ifndef SIM_COMMAND_PROGRAM_H
#define SIM_COMMAND_PROGRAM_H
#include <stddef.h>

/* As a shell finds it: a path, or a name in PATH. 0, or -1. */
int find_program(const char *name, char *path, size_t bytes);
/* 0, or -1 with a reason: a runtime that is linked in cannot be replaced. Programs without device code pass. */
int check_program(const char *path, char *why, size_t why_bytes);
#endif
