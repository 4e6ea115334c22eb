/* SPDX-License-Identifier: MIT
 * A dout of one number: the question and the arguments with a row in its place. */
#include "core/dout.h"

int attn_core_dout_is_one(const attn_tensor *t) {
    if (!t || t->rank < 1 || t->shape[t->rank - 1] <= 1) return 0;
    for (int32_t a = 0; a < t->rank; a++)
        if (t->shape[a] < 1 || (t->shape[a] > 1 && t->strides[a])) return 0;
    return 1;
}

const attn_args *attn_core_dout_replace(struct attn_core_dout *dout, const attn_args *args, void *data) {
    const int32_t last = args->dout->rank - 1;
    dout->args = *args;
    dout->row = *args->dout;
    dout->row.data = data;
    dout->row.strides[last] = 1;
    dout->row.bytes = (uint64_t)dout->row.shape[last] * attn_dtype_bytes(dout->row.dtype);
    dout->args.dout = &dout->row;
    return &dout->args;
}
