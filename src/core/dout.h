/* SPDX-License-Identifier: MIT
 * A dout of one number: stride 0 on every axis, as frameworks give for the gradient of a sum. Kernels read rows of DV
 * numbers, so that an execution makes a row of that number and hands it on in place of the tensor, stride 0 on the
 * axes outside it. */
#ifndef ATTN_CORE_DOUT_H
#define ATTN_CORE_DOUT_H
#include "attn.h"

#define ATTN_CORE_DOUT_BYTES 4096 /* of the longest row: 512 numbers of f64 */

/* t may be NULL. 0 for rows of one number, which need no help, and without elements. */
int attn_core_dout_is_one(const attn_tensor *t);

struct attn_core_dout {
    attn_args args;
    attn_tensor row;
};
/* args with the row at `data` in place of dout; made in *dout. */
const attn_args *attn_core_dout_replace(struct attn_core_dout *dout, const attn_args *args, void *data);
#endif
