/* SPDX-License-Identifier: MIT
 * Which instructions of a kernel were ever executed by any lane, over launches and processes. ATTNSIM_COVERAGE=folder:
 * a file a kernel there, NAME.cov, which tools/sim_coverage.py reads:
 *   a line with the text's hash and n, the number of instructions; a line of n digits, 1: executed; n lines of the
 *   PTX line, the instruction, its place in the sources and that of the call that was inlined there, or -.
 * A file of another text of the kernel begins anew. Each instruction notes its first execution by itself and is then as
 * fast as ever. */
#ifndef SIM_COVERAGE_H
#define SIM_COVERAGE_H
#include "machine/machine.h"

void sim_coverage_watch(struct sim_program *p); /* when decoded; nothing unless the variable is set */
void sim_coverage_save(const struct sim_program *p);
void sim_coverage_free(struct sim_coverage *c);
#endif
