/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward, f32 rows: the launches that sort slots by the kv row that they name and add the
 * rows that they left (kernels/smxx/mla_bwd_sort.cu, mla_bwd_sum.cu), after the main kernel of a chunk. */
#include "cuda/sparse/mla_bwd.h"

enum { COUNT, SCAN, SCATTER, SUM, THREADS = 256, SCAN_THREADS = 1024, DIGIT_BITS = 8 };
const char *const attn_cuda_mla_bwd_sum_symbols[ATTN_CUDA_MLA_BWD_SUM_STEPS] = {
    [COUNT] = "attn_mla_bwd_sort_smxx_count",
    [SCAN] = "attn_mla_bwd_sort_smxx_scan",
    [SCATTER] = "attn_mla_bwd_sort_smxx_scatter",
    [SUM] = "attn_mla_bwd_sum_smxx_any",
};

static attn_status queue(const struct attn_core_device *dev, const struct kp_mla_bwd *kp, int step, int64_t ctas,
                         void *stream) {
    if (ctas <= 0) return ATTN_OK;
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX / 64 * 64),
                                        .y = 1,
                                        .z = 1,
                                        .threads = step == SCAN ? SCAN_THREADS : THREADS};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, attn_cuda_mla_bwd_sum_symbols[step]), &grid, kp, sizeof *kp,
                            stream);
}

attn_status attn_cuda_mla_bwd_sum(const struct attn_core_device *dev, struct kp_mla_bwd *kp, void *stream) {
    const uint64_t most = (uint64_t)(kp->in.batch * kp->in.seq_k); /* the key of an invalid slot */
    kp->sort_blocks = (int32_t)attn_cuda_blocks(kp->n * kp->in.topk, KP_MLA_SORT_BLOCK);
    kp->from = -1;
    for (kp->digit = 0; kp->digit == 0 || most >> kp->digit; kp->digit += DIGIT_BITS) {
        attn_status status = queue(dev, kp, COUNT, kp->sort_blocks, stream);
        if (!status) status = queue(dev, kp, SCAN, 1, stream);
        if (!status) status = queue(dev, kp, SCATTER, kp->sort_blocks, stream);
        if (status) return status;
        kp->from = (kp->from + 1) & 1;
    }
    return queue(dev, kp, SUM, attn_cuda_blocks(kp->in.batch * kp->in.seq_k, THREADS / 32), stream);
}
