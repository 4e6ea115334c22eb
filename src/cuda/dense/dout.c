/* SPDX-License-Identifier: MIT
 * See dout.h. The device's side: kernels/smxx/dout_row.cu. */
#include "cuda/dense/dout.h"

#include "kernels/params/dout.h"

static const struct config {
    const char *symbol;
    int32_t threads;
} config = {
#define VARIANT(tail, source, ...) .symbol = "attn_dout_row_smxx_" #tail, __VA_ARGS__
#include "kernels/variants/dout_row_smxx.def"
#undef VARIANT
};

int attn_cuda_dout_refuse(const struct attn_core_device *dev, struct attn_text *why) {
    if (attn_cuda_variant_of(dev, config.symbol)) return 0;
    attn_text_add(why, "this build has no image of %s", config.symbol);
    return 1;
}

attn_status attn_cuda_dout_prepare(struct attn_core_device *dev) {
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(config.symbol), 0);
}

attn_status attn_cuda_dout(const struct attn_core_device *dev, uint64_t offset, const attn_args **args,
                           struct attn_core_dout *room) {
    const attn_tensor *t = (*args)->dout;
    if (!attn_core_dout_is_one(t)) return ATTN_OK;
    void *row = (char *)(*args)->workspace + offset;
    const struct kp_dout_row kp = {.number = (uint64_t)(uintptr_t)t->data,
                                   .row = (uint64_t)(uintptr_t)row,
                                   .n = (int32_t)t->shape[t->rank - 1],
                                   .dtype = t->dtype};
    const struct attn_cuda_grid grid = {.x = 1, .y = 1, .z = 1, .threads = (uint32_t)config.threads};
    const attn_status status =
        attn_cuda_launch(dev, attn_cuda_variant_of(dev, config.symbol), &grid, &kp, sizeof kp, (*args)->stream);
    *args = attn_core_dout_replace(room, *args, row);
    return status;
}
