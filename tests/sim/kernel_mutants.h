/* SPDX-License-Identifier: MIT
 * Test kernels with a switch for each thing that can be forgotten: the driver by path, and the runs of the right kernel
 * and of its mutants, each in a process of its own, since a finding may leave its context unusable. */
#ifndef TESTS_SIM_KERNEL_MUTANTS_H
#define TESTS_SIM_KERNEL_MUTANTS_H
#include "kernel_driver.h"

extern struct kernel_driver cu;

struct kernel_mutant {
    int number;
    const char *what, *kind,
        *mark; /* kind: word of a finding, "numbers", NULL: any; mark: in the source, at the line */
};
struct kernel_test {
    const char *name, *gpu; /* of the entry; of ATTNSIM_GPU */
    double bound;           /* of the difference of the right kernel */
    const struct kernel_mutant *mutants;
    int n;
    int (*compute)(void *function, int mutant); /* 0, or the driver's error */
    double (*difference)(void);                 /* of what compute() fetched, from sums in double */
};
/* Arguments: DRIVER PTX SOURCE [mutant [policy [seed]]] */
int kernel_mutants_main(int argc, char **argv, const struct kernel_test *test);

/* For small kernels with a line of a table each: run(driver, i) of each under the three policies, in a process of its
 * own; 0 = right, 1 = wrong and told, -1 = the driver failed. The first argument is the driver. */
int kernel_cases_main(int argc, char **argv, int n, int (*run)(const char *driver, int i));

/* ---- for the tests ---- */

int kernel_open_driver(const char *path); /* fills cu; 0, or -1 */
float kernel_number(uint64_t *state);     /* -1 .. 1 */
float kernel_wide(uint16_t bf16);
void kernel_fill(uint16_t *bf16, size_t n, uint64_t seed);
int kernel_upload(uint64_t *address, const void *from, size_t bytes);
#endif
