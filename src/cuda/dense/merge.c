/* SPDX-License-Identifier: MIT
 * attn_merge on CUDA, the host's side: parameters and launch. The device's side: kernels/smxx/sdpa_merge.cu. */
#include "base/err.h"
#include "cuda/dense/sdpa.h"
#include "kernels/params/sdpa_merge.h"

#include <string.h>

static const struct config {
    const char *symbol;
    int32_t threads;
} config = {
#define VARIANT(tail, source, ...) .symbol = "attn_sdpa_merge_smxx_" #tail, __VA_ARGS__
#include "kernels/variants/sdpa_merge_smxx.def"
#undef VARIANT
};

/* Strides of the row's axes, the last ones of three; those of one row are 0. */
static void set_strides(const attn_tensor *t, int32_t axes, int64_t stride[3]) {
    for (int32_t x = 0; x < axes; x++) stride[3 - axes + x] = t->shape[x] > 1 ? t->strides[x] : 0;
}

static struct kp_merge_part part_of(const attn_tensor *out, const attn_tensor *lse, int32_t axes) {
    struct kp_merge_part part = {0};
    if (lse) {
        part.lse = attn_cuda_address(lse), part.lse_dtype = lse->dtype;
        set_strides(lse, axes, part.lse_stride);
    }
    if (!out) return part;
    part.out = attn_cuda_address(out), part.out_dtype = out->dtype;
    set_strides(out, axes, part.out_stride);
    const uint64_t strides = (uint64_t)(part.out_stride[0] | part.out_stride[1] | part.out_stride[2]);
    part.aligned = (part.out | strides * attn_dtype_bytes(out->dtype)) % 16 == 0;
    return part;
}

attn_status attn_cuda_merge(const struct attn_core_device *dev, const attn_merge_args *a) {
    const struct attn_cuda_variant *variant = attn_cuda_variant_find(config.symbol);
    const attn_tensor *like = a->out ? a->out : a->lse;
    const int32_t axes = like->rank - (a->out ? 1 : 0);
    struct kp_merge kp;
    if (!variant) FAIL(ATTN_E_NO_KERNEL, "device", "this build has no image of %s", config.symbol);
    if (a->n_parts > KP_MERGE_MOST)
        FAIL2(ATTN_E_NO_KERNEL, "n_parts", KP_MERGE_MOST, a->n_parts,
              "n_parts is %d, expected up to %d on %s: merge some, then the result with the rest", a->n_parts,
              KP_MERGE_MOST, dev->name);
    memset(&kp, 0, sizeof kp);
    kp.rows = 1;
    for (int32_t x = 0; x < 3; x++) {
        kp.extent[x] = x < 3 - axes ? 1 : like->shape[x - 3 + axes];
        kp.rows *= kp.extent[x];
    }
    if (kp.rows == 0) return ATTN_OK;
    kp.width = a->out ? like->shape[axes] : 0;
    kp.n_parts = a->n_parts;
    kp.flags = (a->flags & ATTN_LSE_BASE_2 ? KP_LSE_BASE_2 : 0u) |
               (a->flags & ATTN_LSE_EMPTY_PLUS_INF ? KP_LSE_EMPTY_PLUS_INF : 0u);
    kp.result = part_of(a->out, a->lse, axes);
    for (int32_t i = 0; i < a->n_parts; i++)
        kp.part[i] = part_of(a->out ? a->out_parts[i] : NULL, a->lse_parts[i], axes);
    const int64_t ctas = attn_cuda_blocks(kp.rows, config.threads / 32);
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(ctas, 1 << 20), .y = 1, .z = 1, .threads = (uint32_t)config.threads};
    TRY(attn_cuda_variant_load((struct attn_core_device *)dev, variant, 0));
    return attn_cuda_launch(dev, variant, &grid, &kp, sizeof kp, a->stream);
}
