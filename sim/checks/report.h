/* SPDX-License-Identifier: MIT
 * Findings: what a kernel did wrong, where (kernel, CTA, warp, lanes, PTX line, CUDA line), once per place and kind. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H
#include "machine/machine.h"

enum sim_kind {
    SIM_F_BOUNDS,
    SIM_F_ALIGNMENT,
    SIM_F_FREED,
    SIM_F_UNINITIALISED,
    SIM_F_RACE,
    SIM_F_ASYNC,
    SIM_F_DEADLOCK,
    SIM_F_DIVERGENCE,
    SIM_F_BARRIER,
    SIM_F_TRAP,
    SIM_F_ENDLESS,
    SIM_F_PROTOCOL,
    SIM_F_PROXY,  /* a fence by the letter: only that is missing */
    SIM_F_ADVICE, /* told, but no fault: the launch succeeds */
    SIM_F_KINDS
};
struct sim_report; /* the findings of a process */
struct sim_report *sim_report_open(void);

/* Records a finding at the instruction for the lanes; NULL instruction: at the warp's current place. */
void sim_find(struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, enum sim_kind kind, const char *format, ...)
    __attribute__((format(printf, 5, 6), cold));
/* The same about a copy or fill; program (NULL: none) and statement are those of the other side. */
void sim_find_deed(const struct sim_program *program, uint32_t statement, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
void sim_tell_deadlock(struct sim_cluster *c); /* deadlock.c: every live warp waits and nothing can wake one */
/* "line 12 (ldmatrix...)" of an instruction by number, into a rotating buffer of the thread. */
const char *sim_place(const struct sim_program *program, uint32_t statement);

/* Number of findings since the start of the process, and their text; the caller frees nothing. */
uint64_t sim_report_count(void);
const char *sim_report_text(void);
void sim_report_clear(void);
#endif
