/* SPDX-License-Identifier: MIT
 * Where the dense backward's kernels keep what they know of a query row: workspace rows, per query head. */
#ifndef ATTN_DEVICE_SDPA_BWD_ROWS_H
#define ATTN_DEVICE_SDPA_BWD_ROWS_H
#include "kernels/device/sequence.h"

constexpr float PAST_END = 1e30f; /* stat_lse of a row past its sequence: exp(s - it) is 0, and it is no infinity */

/* Workspace row of query 0 of a batch entry; sequences start at multiples of the main kernel's tile height, and the gap
 * between packed ones holds the padding of the earlier. */
static __device__ __forceinline__ int64_t first_stat_row(const struct kp_sdpa_bwd *p, const struct sequence *s, int b) {
    const int64_t tile = p->rows;
    return p->in.cu_seqlens_q ? (s->q0 + b * tile) / tile * tile : b * p->row_tiles * tile;
}
#endif
