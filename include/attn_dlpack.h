/* SPDX-License-Identifier: MIT
 *
 * attn_dlpack.h - views of DLPack tensors as attn_tensor, and exchange of axes. Optional; header only; C99 and C++11.
 *
 *     #include <dlpack/dlpack.h>      // yours: libattn ships none and links to none
 *     #include <attn_dlpack.h>
 *
 *     attn_tensor q;                                        // a torch tensor [B, S, H, D], say
 *     static const int32_t bhsd[] = {0, 2, 1, 3};
 *     if (attn_tensor_from_dlpack(&managed->dl_tensor, &q) || attn_tensor_permute(&q, bhsd)) ...
 *
 * Nothing is copied and no ownership moves: the DLTensor's memory must live as long as the view is used. These
 * functions do not set attn_last_error(). DLPack does not carry the size of the storage, so `bytes` is 0 (unknown).
 */
#ifndef ATTN_DLPACK_H
#define ATTN_DLPACK_H

#include "attn.h"

#if !defined(DLPACK_DLPACK_H_) && !defined(ATTN_DLPACK_DECLARED)
#error "include dlpack.h before attn_dlpack.h (or declare DLTensor yourself and define ATTN_DLPACK_DECLARED)"
#endif

/* The published layout, checked member by member: a DLTensor of another layout must not compile. */
#define ATTN_DLPACK_ASSERT_(name, condition) typedef char attn_dlpack_assert_##name[(condition) ? 1 : -1]
#define ATTN_DLPACK_AT_(member, bytes)       ATTN_DLPACK_ASSERT_(member, offsetof(DLTensor, member) == (bytes))
ATTN_DLPACK_ASSERT_(pointer, sizeof(void *) == 8);
ATTN_DLPACK_ASSERT_(size, sizeof(DLTensor) == 48);
ATTN_DLPACK_ASSERT_(device_size, sizeof(DLDevice) == 8);
ATTN_DLPACK_ASSERT_(dtype_size, sizeof(DLDataType) == 4);
ATTN_DLPACK_ASSERT_(device_id, offsetof(DLDevice, device_id) == 4);
ATTN_DLPACK_ASSERT_(bits, offsetof(DLDataType, bits) == 1);
ATTN_DLPACK_ASSERT_(lanes, offsetof(DLDataType, lanes) == 2);
ATTN_DLPACK_AT_(data, 0);
ATTN_DLPACK_AT_(device, 8);
ATTN_DLPACK_AT_(ndim, 16);
ATTN_DLPACK_AT_(dtype, 20);
ATTN_DLPACK_AT_(shape, 24);
ATTN_DLPACK_AT_(strides, 32);
ATTN_DLPACK_AT_(byte_offset, 40);

/* DLPack's numbers, which are part of its ABI. Its enumerators changed names between versions. */
enum {
    ATTN_DLPACK_CPU_ = 1,
    ATTN_DLPACK_CUDA_ = 2,
    ATTN_DLPACK_CUDA_HOST_ = 3,
    ATTN_DLPACK_CUDA_MANAGED_ = 13,
    ATTN_DLPACK_INT_ = 0,
    ATTN_DLPACK_UINT_ = 1,
    ATTN_DLPACK_FLOAT_ = 2,
    ATTN_DLPACK_BFLOAT_ = 4,
    ATTN_DLPACK_BOOL_ = 6,
    ATTN_DLPACK_FLOAT8_E4M3FN_ = 10
};

static inline int32_t attn_dlpack_dtype_(int code, int bits) {
    switch (code * 256 + bits) {
    case ATTN_DLPACK_FLOAT_ * 256 + 16: return ATTN_F16;
    case ATTN_DLPACK_FLOAT_ * 256 + 32: return ATTN_F32;
    case ATTN_DLPACK_FLOAT_ * 256 + 64: return ATTN_F64;
    case ATTN_DLPACK_BFLOAT_ * 256 + 16: return ATTN_BF16;
    case ATTN_DLPACK_FLOAT8_E4M3FN_ * 256 + 8: return ATTN_E4M3;
    case ATTN_DLPACK_INT_ * 256 + 32: return ATTN_I32;
    case ATTN_DLPACK_INT_ * 256 + 64: return ATTN_I64;
    case ATTN_DLPACK_BOOL_ * 256 + 8:
    case ATTN_DLPACK_UINT_ * 256 + 8: return ATTN_BOOL; /* producers without a bool type export masks as uint8 */
    default: return ATTN_DTYPE_NONE;
    }
}

/* attn_tensor_from_dlpack - view `in` as *out; *out is written only on success.
 * Strides absent in DLPack mean row-major. Pinned host memory is a CPU tensor; managed memory is a tensor of its CUDA
 * device, which the caller may change to ATTN_DEVICE_CPU in the view. Returns ATTN_OK, _E_ARGUMENT (NULL), _E_SHAPE
 * (rank 0 or over 4, extent negative or too large), _E_DTYPE (also lanes other than 1), _E_TENSOR_DEVICE (another kind
 * of device). */
static inline attn_status attn_tensor_from_dlpack(const DLTensor *in, attn_tensor *out) {
    attn_tensor t;
    int32_t i;
    int64_t stride = 1;
    int empty = 0;
    if (!in || !out) return ATTN_E_ARGUMENT;
    if (in->ndim < 1 || in->ndim > ATTN_MAX_RANK) return ATTN_E_SHAPE;
    if (!in->shape) return ATTN_E_ARGUMENT;
    if (in->dtype.lanes != 1) return ATTN_E_DTYPE;

    t.dtype = attn_dlpack_dtype_((int)in->dtype.code, (int)in->dtype.bits);
    if (t.dtype == ATTN_DTYPE_NONE) return ATTN_E_DTYPE;
    switch ((int)in->device.device_type) {
    case ATTN_DLPACK_CPU_:
    case ATTN_DLPACK_CUDA_HOST_:
        t.device.type = ATTN_DEVICE_TYPE_CPU;
        t.device.index = 0;
        break;
    case ATTN_DLPACK_CUDA_:
    case ATTN_DLPACK_CUDA_MANAGED_:
        t.device.type = ATTN_DEVICE_TYPE_CUDA;
        t.device.index = (int32_t)in->device.device_id;
        break;
    default: return ATTN_E_TENSOR_DEVICE;
    }

    t.bytes = 0;
    t.rank = in->ndim;
    for (i = 0; i < ATTN_MAX_RANK; i++) t.shape[i] = t.strides[i] = 0;
    for (i = in->ndim - 1; i >= 0; i--) {
        if (in->shape[i] < 0) return ATTN_E_SHAPE;
        empty |= in->shape[i] == 0;
        t.shape[i] = in->shape[i];
        t.strides[i] = in->strides ? in->strides[i] : stride;
        if (in->shape[i] > 1) {
            if (stride > INT64_MAX / 8 / in->shape[i]) return ATTN_E_SHAPE;
            stride *= in->shape[i];
        }
    }
    if (!in->data && !empty) return ATTN_E_ARGUMENT;
    t.data = in->data ? (void *)((char *)in->data + in->byte_offset) : in->data;
    *out = t;
    return ATTN_OK;
}

/* attn_tensor_permute - exchange axes in place: axis i of the result is axis axes[i] of the tensor before. No data
 * moves. Returns ATTN_OK, _E_ARGUMENT (NULL, or axes is not a permutation of 0 .. rank-1), _E_SHAPE (rank). */
static inline attn_status attn_tensor_permute(attn_tensor *tensor, const int32_t *axes) {
    attn_tensor t;
    int32_t i, seen = 0;
    if (!tensor || !axes) return ATTN_E_ARGUMENT;
    if (tensor->rank < 0 || tensor->rank > ATTN_MAX_RANK) return ATTN_E_SHAPE;
    t = *tensor;
    for (i = 0; i < t.rank; i++) {
        if (axes[i] < 0 || axes[i] >= t.rank || (seen >> axes[i] & 1)) return ATTN_E_ARGUMENT;
        seen |= 1 << axes[i];
        t.shape[i] = tensor->shape[axes[i]];
        t.strides[i] = tensor->strides[axes[i]];
    }
    *tensor = t;
    return ATTN_OK;
}

#undef ATTN_DLPACK_AT_
#undef ATTN_DLPACK_ASSERT_

#endif /* ATTN_DLPACK_H */
