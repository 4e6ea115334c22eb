/* SPDX-License-Identifier: MIT
 * What the rows of the dense backward in 16-bit types share: the workspace, and the launches before and after a main
 * kernel. Prepare makes statistics of the rows, main the gradients, convert rounds dQ; bias and sums serve masks, ALiBi
 * slopes and sinks. */
#ifndef ATTN_CUDA_DENSE_BWD_STEPS_H
#define ATTN_CUDA_DENSE_BWD_STEPS_H
#include "cuda/dense/sdpa.h"

/* A main kernel. */
struct attn_cuda_bwd_main {
    const char *symbol;
    int32_t keys, rows;            /* key tile, query rows of a step */
    int32_t dim, dim_v;            /* padded head dims */
    int32_t ctas;                  /* that share a key tile, a cluster; 0 counts as 1 */
    int32_t box_rows;              /* query rows that a copy by tensor map takes */
    int32_t score_mod;             /* 1: softcap */
    int32_t by_columns;            /* 1: it reads q and k by columns, too */
    int32_t full;                  /* 1: lse in natural units and shares: struct kp_sdpa_bwd */
    int32_t fours;                 /* 1: dQ is summed four numbers a lane at a time (convert) */
    int32_t row_warps, dim_warps;  /* how warps share a tile of dQ */
    int32_t ordered;               /* 1: dQ is summed in the order of the key tiles */
    int32_t early;                 /* 1: it and convert wait for the kernel before by themselves */
    int32_t threads, shared_bytes; /* of a CTA */
};

/* How a problem is dealt to CTAs, and where in the workspace what lies: a function of problem and device alone. */
struct attn_cuda_bwd_geometry {
    int64_t key_tiles, row_tiles, bias_tiles, section, work_tiles;
    int64_t bound_tiles; /* of keys, of the rows' tile height: struct kp_sdpa_bwd_scaled */
    int64_t stat_rows;
    struct {
        int64_t lse, shift, share, dsink, dalibi, dq, turns, turns_bytes, row_bounds, key_bounds, undo, end;
    } offset; /* bytes into the workspace */
};

/* A launch without its tensors: what the plan keeps. Grids that depend on which gradients are asked for are 0. */
enum {
    ATTN_CUDA_BWD_PREPARE,
    ATTN_CUDA_BWD_MAIN,
    ATTN_CUDA_BWD_CONVERT,
    ATTN_CUDA_BWD_BIAS,
    ATTN_CUDA_BWD_SUMS,
    ATTN_CUDA_BWD_STEPS
};
struct attn_cuda_bwd_prepared {
    struct kp_sdpa_bwd_scaled kp;
    struct attn_cuda_bwd_geometry g;
    struct attn_cuda_work work[ATTN_CUDA_BWD_STEPS];
};

/* 1 and the reason if head dims, images or counts do not fit. */
int attn_cuda_bwd_refuse(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m, const attn_problem *p,
                         struct attn_text *why);
uint64_t attn_cuda_bwd_workspace(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                 const attn_problem *p);
attn_status attn_cuda_bwd_prepare(struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                  const attn_problem *p);
void attn_cuda_bwd_write_prepared(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                  const attn_problem *p, struct attn_cuda_bwd_prepared *prepared);

/* Parameters of a main kernel that takes more than the others: written to `room`, whose size it says. */
struct attn_cuda_bwd_extra {
    attn_status (*write)(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m, const attn_problem *p,
                         const struct kp_sdpa_bwd_scaled *kp, void *room);
    void *room;
    size_t bytes;
};
attn_status attn_cuda_bwd_launch(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                                 const attn_problem *p, const struct attn_cuda_bwd_prepared *prepared,
                                 const attn_args *args, const struct attn_cuda_bwd_extra *extra);
#endif
