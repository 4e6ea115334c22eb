/* SPDX-License-Identifier: MIT
 * Sparse MLA backward over joined lists, the launches around the main kernels (mla_bwd_joined.h).
 */
#include "cuda/sparse/mla_bwd_joined.h"

#include "kernels/params/mla_ranges.h"

const char *const attn_cuda_mla_bwd_joined_symbols[ATTN_CUDA_MLA_BWD_JOINED_STEPS] = {
    [ATTN_CUDA_MLA_BWD_JOINED_PREPARE] = "attn_mla_bwd_prepare_smxx_any",
    [ATTN_CUDA_MLA_BWD_JOINED_DKV] = "attn_mla_bwd_finish_smxx_dkv",
    [ATTN_CUDA_MLA_BWD_JOINED_DIST] = "attn_mla_bwd_finish_smxx_joined_dist",
    [ATTN_CUDA_MLA_BWD_JOINED_DSINK] = "attn_mla_bwd_finish_smxx_dsink",
};

attn_status attn_cuda_mla_bwd_joined_step(const struct attn_core_device *dev, const attn_args *args, const char *symbol,
                                          int64_t ctas, const void *params, size_t bytes) {
    if (ctas <= 0) return ATTN_OK;
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX),
                                        .y = 1,
                                        .z = 1,
                                        .threads = 32 * ATTN_CUDA_MLA_BWD_JOINED_WARPS};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, symbol), &grid, params, bytes, args->stream);
}

/* A warp a row of states and a row of zeroes. */
static attn_status queue_prepare(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                 struct kp_mla_bwd kp) {
    kp.cycles = (struct kp_mla_cycles){.rows = p->batch * p->seq_q * p->heads_q};
    kp.n = kp.cycles.rows + (kp.steps & KP_MLA_BWD_ZERO ? p->batch * p->seq_k : 0);
    return attn_cuda_mla_bwd_joined_step(dev, args, attn_cuda_mla_bwd_joined_symbols[ATTN_CUDA_MLA_BWD_JOINED_PREPARE],
                                         attn_cuda_blocks(kp.n, ATTN_CUDA_MLA_BWD_JOINED_WARPS), &kp, sizeof kp);
}

static attn_status queue_finish(const struct attn_core_device *dev, const attn_args *args, int step, int64_t ctas,
                                const struct kp_mla_bwd *kp) {
    const struct kp_mla_bwd_ranges params = {.bwd = *kp};
    return attn_cuda_mla_bwd_joined_step(dev, args, attn_cuda_mla_bwd_joined_symbols[step], ctas, &params,
                                         sizeof params);
}

attn_status attn_cuda_mla_bwd_joined_queue(const struct attn_core_device *dev, const attn_problem *p,
                                           const attn_args *args, const struct kp_mla_bwd_joined *kp, int64_t groups,
                                           int64_t listed,
                                           attn_status (*queue_groups)(void *run, int64_t first, int64_t n),
                                           void *run) {
    const struct kp_mla_bwd *bwd = &kp->bwd;
    attn_status status = queue_prepare(dev, p, args, *bwd);
    /* without queries dsink is 0, and no other step has anything to do */
    if (bwd->dq.data || bwd->dkv.data || bwd->part_dist)
        for (int64_t first = 0; first < groups && !status; first += listed)
            status = queue_groups(run, first, attn_cuda_lesser(listed, groups - first));
    if (!status && bwd->sum.data != bwd->dkv.data)
        status = queue_finish(dev, args, ATTN_CUDA_MLA_BWD_JOINED_DKV,
                              attn_cuda_blocks(p->batch * p->seq_k, ATTN_CUDA_MLA_BWD_JOINED_WARPS), bwd);
    if (!status && bwd->dsink) status = queue_finish(dev, args, ATTN_CUDA_MLA_BWD_JOINED_DSINK, p->heads_q, bwd);
    return status;
}
