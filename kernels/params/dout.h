/* SPDX-License-Identifier: MIT
 * Parameters of kernels/smxx/dout_row.cu, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_DOUT_H
#define ATTN_KPARAMS_DOUT_H
#include "kernels/params/params.h"

/* n copies of one number, side by side. */
struct kp_dout_row {
    uint64_t number, row; /* addresses */
    int32_t n, dtype;
};
KP_SIZE(struct kp_dout_row, 24);
#endif
