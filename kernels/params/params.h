/* SPDX-License-Identifier: MIT
 * What all parameter structs of device code share: plain C of fixed-width members, the same bytes on both sides (sizes
 * asserted). The other headers of this folder hold the structs and variant tables of the operators. These are the only
 * headers that both sides include; they include nothing of either. */
#ifndef ATTN_KPARAMS_H
#define ATTN_KPARAMS_H
#include <stdint.h>

#ifdef __cplusplus
#define KP_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " differs between host and device")
#else
#define KP_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " differs between host and device")
#endif

/* Values of the keys in kernels/variants and of dtype members: equal to ATTN_F32 ..., src/cuda asserts it. */
#define KP_F32  1
#define KP_F16  2
#define KP_BF16 3
#define KP_F64  4
#define KP_BOOL 7

/* Flags of every operator with an lse: which one the caller wants, or gives to a backward. */
#define KP_LSE_WITH_SINK      1
#define KP_LSE_BASE_2         2
#define KP_LSE_EMPTY_PLUS_INF 4

/* A tensor with up to three outer axes (batch or page, head, row); strides in elements, axes of extent 1 have 0.
 * column is 1, or 0 for a broadcast mask; numbers per row (lse) leave it unread. */
struct kp_view {
    uint64_t data; /* device address, 0 = absent */
    int64_t batch, head, row;
    int32_t column;
    int32_t dtype;
    /* Bytes that a copy may move at once: 16, 4 or the element's size. Address and outer strides are multiples of it.
     */
    int32_t chunk;
    int32_t reserved;
};
KP_SIZE(struct kp_view, 48);
#endif
