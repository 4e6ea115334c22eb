/* SPDX-License-Identifier: MIT
 * A tensor map (TMA descriptor) in a kernel's parameters: what cuTensorMapEncodeTiled writes, opaque. */
#ifndef ATTN_KPARAMS_TENSOR_MAP_H
#define ATTN_KPARAMS_TENSOR_MAP_H
#include "kernels/params/params.h"

#ifdef __cplusplus
struct alignas(128) kp_tensor_map {
    uint64_t opaque[16];
};
#else
struct kp_tensor_map {
    _Alignas(128) uint64_t opaque[16];
};
#endif
KP_SIZE(struct kp_tensor_map, 128);
#endif
