/* SPDX-License-Identifier: MIT
 * Findings: what a kernel did wrong, where (kernel, CTA, warp, lanes, PTX line, CUDA line), once per place and reason.
 * Kinds are in classes: faults, which alone make a launch fail; fences by the letter and waits by the letter, each
 * faults or advice as a variable says; advice. Faults are told when met, advice when its launch ends, with a count. */
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
    SIM_F_PROXY,    /* ordered, and only a fence by the letter is missing */
    SIM_F_UNWAITED, /* a wait by the letter is missing where hardware is known to wait by itself */
    SIM_F_ADVICE,   /* odd, but allowed */
    SIM_F_KINDS
};
/* Work in several parts tells of a missing fence once; a fault in a later part must not hide behind it. */
enum sim_found { SIM_FOUND_NOTHING, SIM_FOUND_FENCE, SIM_FOUND_FAULT };
/* Records a finding at the instruction for the lanes; NULL instruction: at the warp's current place. The format is the
 * reason: two findings of one place with one format are one. */
void sim_find(struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, enum sim_kind kind, const char *format, ...)
    __attribute__((format(printf, 5, 6), cold));
/* The same about a copy or fill; program (NULL: none) and statement are those of the other side. */
void sim_find_deed(const struct sim_program *program, uint32_t statement, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* A kernel or module that is refused: told, and of the class of faults, but no finding of a kernel that ran. */
void sim_tell_refusal(const char *reason);
void sim_tell_deadlock(struct sim_cluster *c); /* deadlock.c: every live warp waits and nothing can wake one */
/* "line 12 (ldmatrix...)" of an instruction by number, into a rotating buffer of the thread. */
const char *sim_place(const struct sim_program *program, uint32_t statement);

/* Lists advice that has not been listed, with the number of times that it was met so far: at the end of a launch. */
void sim_report_advice(void);
/* Number of faults since the start of the process, and the text of all findings; the caller frees nothing. */
uint64_t sim_report_count(void);
const char *sim_report_text(void);
void sim_report_clear(void);
#endif
