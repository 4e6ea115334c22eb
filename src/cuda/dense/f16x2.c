/* SPDX-License-Identifier: MIT
 * f32 operands split in two f16 numbers each, in the workspace: its layout, and the launch that fills it. The device's
 * side: kernels/smxx/sdpa_f16x2.cu. */
#include "cuda/dense/f16x2.h"
#include "core/problem.h"

const char attn_cuda_f16x2_symbol[] = "attn_sdpa_halves_smxx_f32";
const char attn_cuda_f16x2_apart_symbol[] = "attn_sdpa_halves_smxx_f32_apart";

/* One tensor: heads, rows of a head over all sequences, rows of the longest, columns as stored. */
struct extent {
    int64_t heads, rows, longest, width, stored;
};
static struct extent extent_of(const attn_problem *p, int32_t which) {
    const int of_keys = which == ATTN_CUDA_F16X2_K || which == ATTN_CUDA_F16X2_V,
              packed = attn_core_has(p, ATTN_PACKED);
    struct extent x = {.heads = of_keys ? p->heads_k : p->heads_q, .longest = of_keys ? p->seq_k : p->seq_q};
    x.rows = !packed ? x.longest : of_keys ? p->total_k : p->total_q;
    x.width = which == ATTN_CUDA_F16X2_Q || which == ATTN_CUDA_F16X2_K ? p->dim_qk : p->dim_v;
    x.stored = (x.width + 7) / 8 * 8;
    return x;
}

static int64_t take(int64_t *end, int64_t bytes) {
    const int64_t offset = *end;
    *end += attn_cuda_blocks(bytes, 256) * 256;
    return offset;
}

struct attn_cuda_f16x2 attn_cuda_f16x2(const attn_problem *p, int64_t begin, int32_t n) {
    struct attn_cuda_f16x2 h = {.end = begin, .n = n};
    h.flags = take(&h.end, p->batch * p->heads_k * 4);
    for (int32_t i = 0; i < n; i++) {
        const struct extent x = extent_of(p, i);
        h.offset[i].to = take(&h.end, (attn_core_has(p, ATTN_PACKED) ? 1 : p->batch) * x.heads * x.rows * x.stored * 4);
        h.offset[i].unit = take(&h.end, p->batch * x.heads * attn_cuda_blocks(x.longest, KP_F16X2_ROWS) * 4);
    }
    return h;
}

int attn_cuda_f16x2_refuse(const attn_problem *p, struct attn_text *why) {
    if (!attn_core_has(p, ATTN_PAGED)) return 0;
    attn_text_add(why, "does not split paged keys: the rows without _halves read pages");
    return 1;
}

attn_status attn_cuda_f16x2_start(const struct attn_core_device *dev, const struct attn_cuda_f16x2 *h,
                                  const attn_problem *p, const attn_args *args, const struct kp_sdpa *in,
                                  const struct kp_view *const from[], struct kp_view to[], struct kp_sdpa_wide *wide) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    struct kp_sdpa_f16x2_job job = {.in = *in, .flags = base + (uint64_t)h->flags, .n_tensors = h->n};
    uint64_t *const units[] = {&wide->unit_q, &wide->unit_k, &wide->unit_v, &wide->unit_o};
    for (int32_t i = 0; i < h->n; i++) {
        const struct extent x = extent_of(p, i);
        struct kp_f16x2_tensor *t = &job.tensor[i];
        to[i] = (struct kp_view){.data = base + (uint64_t)h->offset[i].to,
                                 .batch = attn_core_has(p, ATTN_PACKED) ? 0 : x.heads * x.rows * x.stored,
                                 .head = x.rows * x.stored,
                                 .row = h->apart ? x.stored / 2 : x.stored,
                                 .column = 1,
                                 .dtype = KP_F32,
                                 .chunk = 16};
        t->from = *from[i];
        t->to = to[i];
        t->unit = *units[i] = base + (uint64_t)h->offset[i].unit;
        t->heads = (int32_t)x.heads;
        t->blocks = (int32_t)attn_cuda_blocks(x.longest, KP_F16X2_ROWS);
        t->width = (int32_t)x.width;
        t->of_keys = i == ATTN_CUDA_F16X2_K || i == ATTN_CUDA_F16X2_V;
        t->n_blocks = p->batch * x.heads * t->blocks;
        job.n_blocks += t->n_blocks;
    }
    wide->flags = job.flags;
    wide->blocks_q = job.tensor[ATTN_CUDA_F16X2_Q].blocks;
    wide->blocks_k = job.tensor[ATTN_CUDA_F16X2_K].blocks;
    attn_status status =
        attn_cuda_fill_zero(dev, (void *)(uintptr_t)job.flags, (size_t)(p->batch * p->heads_k * 4), args->stream);
    if (status || job.n_blocks <= 0) return status;
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(job.n_blocks, INT32_MAX), .y = 1, .z = 1, .threads = 256, .shared_bytes = 16};
    const char *symbol = h->apart ? attn_cuda_f16x2_apart_symbol : attn_cuda_f16x2_symbol;
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, symbol), &grid, &job, sizeof job, args->stream);
}

attn_status attn_cuda_f16x2_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                                int64_t columns, int64_t rows, int64_t heads, int64_t batch, int32_t box,
                                struct kp_tensor_map *map) {
    struct kp_view pairs = *v; /* of f32 numbers each as long as two of f16; a head's are those of hi, then of lo */
    pairs.row *= 2, pairs.batch *= 2;
    return attn_cuda_sdpa_map(dev, name, &pairs, columns, rows, 2 * heads, batch, (uint32_t)box, map);
}
