/* SPDX-License-Identifier: MIT
 * max_logits of a row from what a softmax has in the end. */
#ifndef ATTN_DEVICE_LARGEST_SCORE_H
#define ATTN_DEVICE_LARGEST_SCORE_H
#include "kernels/device/number.h"

/* m: maximum, which NaN scores pass unseen; l: sum of exponentials, of which they and +inf make NaN. */
static __device__ __forceinline__ float largest_score(float m, float l, int empty) {
    return empty ? -INF : l != l ? l : m;
}
#endif
