/* SPDX-License-Identifier: MIT
 * Parts of golden.c: PTX of a form, operands of a form, comparison of results. */
#ifndef GOLDEN_H
#define GOLDEN_H
#include "golden_forms.h"

#include <stddef.h>
#include <stdint.h>

enum { GOLDEN_LANES = 32, GOLDEN_WARPS = 8, GOLDEN_WORDS = 20 };

uint32_t golden_words_in(const struct golden_form *form); /* 32-bit words of a lane */
uint32_t golden_words_out(const struct golden_form *form);
/* Text of a module with the kernel `k(in, out, scratch)`; 0 if it fits. */
int golden_ptx(const struct golden_form *form, char *text, size_t bytes);
/* Operands of all lanes of all warps, by lane; the same for the same name. */
void golden_inputs(const struct golden_form *form, uint32_t *words);
/* Results of the warps held against the recorded ones. Number of lanes that differ; worst: what was farthest off, in
 * the unit of the form's kind; first: lane of the first difference. */
int golden_compare(const struct golden_form *form, const uint32_t *in, const uint32_t *want, const uint32_t *got,
                   double *worst, int *first);
#endif
