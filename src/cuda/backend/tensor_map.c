/* SPDX-License-Identifier: MIT
 * Tensor maps (TMA descriptors), written by the driver on the host and passed by value in a kernel's parameters. */
#include "kernels/params/tensor_map.h"
#include "cuda/backend/state.h"

#include "base/err.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

_Static_assert(sizeof(struct kp_tensor_map) == sizeof(struct cu_tensor_map), "the same 128 bytes");

int attn_cuda_refuse_tensor_maps(const struct attn_core_device *dev, struct attn_text *why) {
    if (attn_cuda_device_of(dev)->state->driver.tensors) return 0;
    attn_text_add(why, "the driver has no cuTensorMapEncodeTiled");
    return 1;
}

int attn_cuda_refuse_axes(const attn_tensor *t, struct attn_text *why) {
    for (int32_t a = 0; a < t->rank - 1; a++)
        if (t->shape[a] > 1 && (t->strides[a] < 0 || t->strides[a] >= INT64_C(1) << 39)) {
            attn_text_add(why, "stride %" PRId64 " in axis %" PRId32 ", a tensor map takes 0 to 2^39 - 1",
                          t->strides[a], a);
            return 1;
        }
    return 0;
}

attn_status attn_cuda_tensor_map(const struct attn_core_device *dev, const struct attn_cuda_tensor *t,
                                 struct kp_tensor_map *map) {
    static const uint32_t step[4] = {1, 1, 1, 1};
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const struct attn_cuda_driver *drv = &d->state->driver;
    struct cu_tensor_map written;
    int entered;
    TRY(attn_cuda_context_push(d, &entered));
    cu_result r =
        drv->cuTensorMapEncodeTiled(&written, CU_TENSOR_BF16, t->rank, (void *)(uintptr_t)t->address, t->size,
                                    t->stride, t->box, step, 0, (cu_tensor_swizzle)t->swizzle, CU_PROMOTE_256B, 0);
    if (!r) memcpy(map, &written, sizeof *map);
    const attn_status status = r ? attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuTensorMapEncodeTiled",
                                                  "the tensor map of %s on cuda:%d", t->name, d->index)
                                 : ATTN_OK;
    return attn_cuda_context_pop(d, entered, status);
}
