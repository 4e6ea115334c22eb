/* SPDX-License-Identifier: MIT
 * ATTN_FILL_PADDING on CUDA: a launch of its own writes the packed rows of no sequence, whatever kernel serves the
 * rest. The device's side: kernels/smxx/sdpa_padding.cu. */
#include "core/problem.h"
#include "cuda/dense/sdpa.h"

static const struct config {
    const char *symbol;
    int32_t backward, rows, threads;
} configs[] = {
#define VARIANT(tail, source, ...) {.symbol = "attn_sdpa_padding_smxx_" #tail, __VA_ARGS__},
#include "kernels/variants/sdpa_padding_smxx.def"
#undef VARIANT
};

/* NULL: nothing is asked for. */
static const struct config *config_of(const attn_problem *p) {
    if (!attn_core_has(p, ATTN_FILL_PADDING)) return NULL;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (configs[i].backward == (p->op == ATTN_OP_SDPA_BWD)) return &configs[i];
    return NULL;
}

int attn_cuda_padding_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why) {
    const struct config *c = config_of(p);
    return c && attn_cuda_refuse_image(dev, c->symbol, 0, why);
}

attn_status attn_cuda_padding_prepare(struct attn_core_device *dev, const attn_problem *p) {
    const struct config *c = config_of(p);
    return c ? attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), 0) : ATTN_OK;
}

attn_status attn_cuda_padding(const struct attn_core_device *dev, const attn_problem *p, const void *params,
                              void *stream) {
    const struct config *c = config_of(p);
    if (!c) return ATTN_OK;
    const int64_t ctas =
        attn_cuda_blocks(p->total_q, c->rows) + (c->backward ? attn_cuda_blocks(p->total_k, c->rows) : 0);
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX), .y = 1, .z = 1, .threads = (uint32_t)c->threads};
    if (ctas == 0) return ATTN_OK;
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, params,
                            c->backward ? sizeof(struct kp_sdpa_bwd) : sizeof(struct kp_sdpa_fwd), stream);
}
