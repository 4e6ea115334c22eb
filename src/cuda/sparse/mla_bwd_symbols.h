/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_steps.c: the kernels of its steps other than the main kernel. */
#ifndef ATTN_CUDA_CUDA_MLA_BWD_SYMBOLS_H
#define ATTN_CUDA_CUDA_MLA_BWD_SYMBOLS_H
enum {
    PREPARE,
    RANGES,
    FINISH_DQ,
    FINISH_DKV,
    FINISH_DIST,
    FINISH_DSINK,
    SORT_COUNT, /* these four: mla_bwd_sum.c */
    SORT_SCAN,
    SORT_SCATTER,
    SUM,
    ROWS_COUNT,
    ROWS_SCAN,
    ROWS_SCATTER,
    ROWS_SUM,
    ROWS_FIXUP,
    SLOTS_ORDER,
    SLOTS_MERGE,
    PREPARE_OVERLAPPED,
    N_STEPS
};
static const char *const symbols[N_STEPS] = {
    [PREPARE] = "attn_mla_bwd_prepare_smxx_any",       [RANGES] = "attn_mla_bwd_ranges_smxx_any",
    [FINISH_DQ] = "attn_mla_bwd_finish_smxx_dq",       [FINISH_DKV] = "attn_mla_bwd_finish_smxx_dkv",
    [FINISH_DIST] = "attn_mla_bwd_finish_smxx_dist",   [FINISH_DSINK] = "attn_mla_bwd_finish_smxx_dsink",
    [SORT_COUNT] = "attn_mla_bwd_sort_smxx_count",     [SORT_SCAN] = "attn_mla_bwd_sort_smxx_scan",
    [SORT_SCATTER] = "attn_mla_bwd_sort_smxx_scatter", [SUM] = "attn_mla_bwd_sum_smxx_any",
    [ROWS_COUNT] = "attn_mla_bwd_rows_sm90_count",     [ROWS_SCAN] = "attn_mla_bwd_rows_sm90_scan",
    [ROWS_SCATTER] = "attn_mla_bwd_rows_sm90_scatter", [ROWS_SUM] = "attn_mla_bwd_rows_sm90_walk",
    [ROWS_FIXUP] = "attn_mla_bwd_rows_sm90_join",      [SLOTS_ORDER] = "attn_mla_bwd_slots_sm90_order",
    [SLOTS_MERGE] = "attn_mla_bwd_slots_sm90_merge",   [PREPARE_OVERLAPPED] = "attn_mla_bwd_prepare_sm90_any",
};
/* Whether a main kernel's problems need the step. */
static int has_step(const struct attn_cuda_mla_bwd_main *m, int x) {
    if (x == PREPARE) return m->stored_bytes != 2;
    return x < SORT_COUNT || m->stored_bytes == (x < ROWS_COUNT ? 4 : 2);
}
#endif
