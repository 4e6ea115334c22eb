/* SPDX-License-Identifier: MIT
 * Helper of the reference kernels' tests: one problem with all its tensors, run straight through the kernel's row.
 * Elements are addressed by their row-major logical index, whatever the strides. */
#ifndef ATTN_TESTS_REF_TRY_H
#define ATTN_TESTS_REF_TRY_H
#include "attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct ref_try {
    attn_problem given, p; /* as given, and normalised */
    attn_args args;
    attn_tensor t[ATTN_ROLE_COUNT];
    int64_t n[ATTN_ROLE_COUNT]; /* logical elements; 0 = role not used or without elements */
};

/* Allocates every tensor that the problem uses; inputs are 0, outputs hold a pattern that no result has. */
void ref_try_open(struct ref_try *t, const attn_problem *p);
void ref_try_close(struct ref_try *t);
/* The backward (or dist) of a forward that has run: same inputs, its out and lse; other inputs 0. */
void ref_try_open_next(struct ref_try *next, const struct ref_try *forward, int32_t op, uint64_t more_flags);
/* Runs with a pool of that many threads on a poisoned workspace. */
void ref_try_run(struct ref_try *t, int32_t threads);
/* Runs by a plan on the kernels of an instruction set ("ref", "c", "avx2", ...). 0: this processor has none for it. */
int ref_try_run_isa(struct ref_try *t, const char *isa);

double ref_get(const struct ref_try *t, int32_t role, int64_t i);
void ref_set(struct ref_try *t, int32_t role, int64_t i, double value);
int32_t ref_get_int(const struct ref_try *t, int32_t role, int64_t i);
void ref_set_int(struct ref_try *t, int32_t role, int64_t i, int32_t value);
void ref_fill(struct ref_try *t, int32_t role, double value);
int64_t ref_at(const struct ref_try *t, int32_t role, int64_t a, int64_t b, int64_t c, int64_t d); /* logical index */
int ref_untouched(const struct ref_try *t, int32_t role, int64_t i); /* the element still holds the pattern */
int ref_same_bits(const struct ref_try *a, const struct ref_try *b, int32_t role);

/* Multiples of 1/256 in [-span, span]: exact in every dtype that the tests use them in. */
void ref_random(struct ref_try *t, int32_t role, uint64_t seed, double span);
uint64_t ref_next_random(uint64_t *state);

/* Other layouts. permute: memory order of axes 1 and 2 exchanged and rows padded. broadcast: stride 0 on an axis. */
void ref_permute(struct ref_try *t, int32_t role);
void ref_broadcast(struct ref_try *t, int32_t role, int32_t axis);
void ref_drop(struct ref_try *t, int32_t role); /* optional output not wanted */

/* Problems whose check fails with this status, and a word of the message. */
struct ref_refused {
    const char *text;
    attn_status status;
    const char *word;
};
void ref_expect_refused(const struct ref_refused *rows, size_t n);

/* |a - b| <= bound * scale, NaN and infinities must be equal. */
void ref_near(double a, double b, double bound, const char *what, int64_t i);
#endif
