/* SPDX-License-Identifier: MIT
 * The floating-point mode of the calling thread. */
#ifndef ATTN_BASE_FLOAT_MODE_H
#define ATTN_BASE_FLOAT_MODE_H
#include <stdint.h>

/* Subnormal numbers: read as they are, while results are flushed to 0 for speed; read and written as they are; or
 * taken for 0 on both sides. */
enum { ATTN_SUBNORMALS_READ, ATTN_SUBNORMALS_EXACT, ATTN_SUBNORMALS_FLUSH };

/* Rounding to nearest, no exception trapped, and subnormal numbers as one of ATTN_SUBNORMALS_* says. Returns the mode
 * to restore: what the caller had, the exception flags included. */
uint32_t attn_base_float_begin(int32_t subnormals);
void attn_base_float_end(uint32_t mode); /* also sets a mode that attn_base_float_mode gave */
uint32_t attn_base_float_mode(void);
/* Results are not flushed from here on: for operands that are scaled before they are multiplied. Returns the mode to
 * restore with attn_base_float_end. */
uint32_t attn_base_float_keep_subnormals(void);

#endif
