/* SPDX-License-Identifier: MIT
 * Parameter structs of the dense kernels that read by tensor maps (TMA), shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_MAPS_H
#define ATTN_KPARAMS_SDPA_MAPS_H
#include "kernels/params/sdpa.h"
#include "kernels/params/tensor_map.h"

/* Maps have the axes column, row, head, batch entry (packed: one entry, rows of all sequences); boxes of 64
 * columns by the rows of a tile. fwd.pack and fwd.splits are 1. */
struct kp_sdpa_fwd_maps {
    struct kp_tensor_map q, k, v;
    struct kp_sdpa_fwd fwd;
    int32_t pairs, half_tiles; /* pairs: row tiles are dealt in pairs, the longest and the shortest of what is left */
    struct kp_divisor by_half; /* half_tiles: pairs of a head */
};

/* Backward: the same axes; boxes of 64 columns by the query rows of a step (q, dout) or the keys of a tile (k, v). */
struct kp_sdpa_bwd_maps {
    struct kp_tensor_map q, k, v, dout;
    struct kp_sdpa_bwd_scaled all; /* bf16: of all only bwd */
};
#endif
