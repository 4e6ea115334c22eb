/* SPDX-License-Identifier: MIT
 * The launches of the attention distribution, see dist.h. */
#include "cuda/sparse/dist.h"

static const char norm_symbol[] = "attn_dist_norm_smxx_any";
enum { NORM_ROWS = 4, NORM_THREADS = 128 }; /* a warp for each row */

int attn_cuda_dist_refuse(const struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                          struct attn_text *why) {
    return attn_cuda_refuse_image(dev, symbol, shared_bytes, why) || attn_cuda_refuse_image(dev, norm_symbol, 0, why);
}

attn_status attn_cuda_dist_prepare(struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                                   const attn_problem *p) {
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(symbol), (uint32_t)shared_bytes);
    if (status || p->dist_norm != ATTN_DIST_L1) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(norm_symbol), 0);
}

uint64_t attn_cuda_dist_workspace(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p) {
    (void)k, (void)dev, (void)p;
    return 0;
}

struct kp_dist attn_cuda_dist_params(const attn_problem *p, const attn_args *args) {
    struct kp_dist kp = {.factor = p->dist_norm == ATTN_DIST_MEAN ? 1 / (float)p->heads_q : 1};
    attn_cuda_mla_inputs(&kp.in, p, args);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.dist = attn_cuda_view(p, args, ATTN_ROLE_DIST);
    return kp;
}

attn_status attn_cuda_dist_launch(const struct attn_core_device *dev, const char *symbol,
                                  const struct attn_cuda_grid *grid, const struct kp_dist *kp, const attn_problem *p,
                                  void *stream) {
    attn_status status = attn_cuda_launch(dev, attn_cuda_variant_of(dev, symbol), grid, kp, sizeof *kp, stream);
    return status ? status : attn_cuda_dist_norm(dev, kp, p, stream);
}

attn_status attn_cuda_dist_norm(const struct attn_core_device *dev, const struct kp_dist *kp, const attn_problem *p,
                                void *stream) {
    if (p->dist_norm != ATTN_DIST_L1) return ATTN_OK;
    const int64_t ctas = attn_cuda_blocks(p->batch * p->seq_q, NORM_ROWS);
    const struct attn_cuda_grid norm = {
        .x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX), .y = 1, .z = 1, .threads = NORM_THREADS};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, norm_symbol), &norm, kp, sizeof *kp, stream);
}
