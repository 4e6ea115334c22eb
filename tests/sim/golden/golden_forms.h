/* SPDX-License-Identifier: MIT
 * Instructions whose results on a real GPU are recorded (golden.c): how their operands are made, how results compare.
 */
#ifndef GOLDEN_FORMS_H
#define GOLDEN_FORMS_H

/* How a result is held against the recorded one: the same bits; the same bits or both NaN; within a few units in the
 * last place of f32 or f64, or of an absolute error in units of 2^-24; a product of matrices. */
enum golden_kind { G_BITS, G_NUMBER, G_ULP, G_NEAR, G_DOUBLE_UPPER, G_MMA };

/* in: one letter an operand, each 32-bit words of the lane: w random bits and edges, f f32, t f32 of modest size, d 64
 * bits, e f64 of modest size, h 16 bits, g f16, b bf16 of modest size, q two f16, r two bf16, s a small number, p a
 * predicate, i a whole number in f32, j a 64-bit integer of any size. out: W w 32 bits, D d 64, H h 16, P predicate, in
 * capitals. body: NULL = "op out, in, ..."; else PTX in which $0.. are the inputs, #0.. the outputs, %sh the shared
 * address of 4 KiB, %mine that of the lane's 32 bytes, %src the global address of the lane's inputs, %lane the lane. */
struct golden_form {
    const char *op, *out, *in;
    enum golden_kind kind;
    int limit, sm; /* limit: of G_ULP and G_NEAR; sm: at least, 0 = 80 */
    const char *body;
};
extern const struct golden_form golden_forms[];
extern const int golden_n_forms;
#endif
