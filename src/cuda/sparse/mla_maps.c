/* SPDX-License-Identifier: MIT
 * See mla_maps.h. A map's strides are bytes, unsigned, below 2^40, multiples of 16; an axis of one entry may have any.
 * All batch entries of kv are gathered through one map of two axes, so that the batch stride is whole rows. */
#include "cuda/sparse/mla_maps.h"
#include "cuda/backend/driver.h"

#include <inttypes.h>

static int refuses_rows(const attn_problem *p, const struct kp_view *kv, struct attn_text *why) {
    if (p->batch <= 1 || kv->batch == 0 || p->seq_k <= 1) return 0;
    if (kv->row == 0 || kv->batch % kv->row) {
        attn_text_add(why,
                      "a batch stride of %" PRId64 " is not whole rows of %" PRId64
                      ", and one tensor map serves all batch entries",
                      kv->batch, kv->row);
        return 1;
    }
    if (kv->batch / kv->row > INT32_MAX / p->batch) {
        attn_text_add(why, "a batch stride of %" PRId64 " rows, and a tensor map counts them in 31 bits",
                      kv->batch / kv->row);
        return 1;
    }
    return 0;
}

int attn_cuda_mla_refuse_map(const attn_problem *p, const attn_args *args, int32_t role, int32_t *refused,
                             struct attn_text *why) {
    const attn_tensor *t = role == ATTN_ROLE_Q ? args->q : role == ATTN_ROLE_DOUT ? args->dout : args->kv;
    const struct kp_view view = attn_cuda_view(p, args, role);
    *refused = role;
    return attn_cuda_refuse_axes(t, why) || (role == ATTN_ROLE_KV && refuses_rows(p, &view, why));
}

int64_t attn_cuda_mla_map_rows(const struct kp_mla *in) {
    if (in->batch <= 1 || in->kv.batch == 0) return 0;
    return in->seq_k <= 1 ? 1 : in->kv.batch / in->kv.row;
}

static uint64_t bytes_of(int64_t extent, int64_t stride, int64_t otherwise) {
    return 2 * (uint64_t)(extent > 1 ? stride : otherwise);
}

/* Boxes are as wide as the swizzle's pattern: 64 columns or 32. */
static uint32_t swizzle_of(uint32_t columns) { return columns == 64 ? CU_SWIZZLE_128B : CU_SWIZZLE_64B; }

attn_status attn_cuda_mla_map_heads(const struct attn_core_device *dev, const char *name, const struct kp_mla *in,
                                    const struct kp_view *v, int32_t columns, uint32_t heads, uint32_t box_columns,
                                    struct kp_tensor_map *map) {
    return attn_cuda_mla_map_queries(dev, name, in, v, columns, heads, 1, box_columns, map);
}

attn_status attn_cuda_mla_map_queries(const struct attn_core_device *dev, const char *name, const struct kp_mla *in,
                                      const struct kp_view *v, int32_t columns, uint32_t heads, uint32_t queries,
                                      uint32_t box_columns, struct kp_tensor_map *map) {
    const struct attn_cuda_tensor tensor = {
        .name = name,
        .address = v->data,
        .rank = 4,
        .swizzle = swizzle_of(box_columns),
        .size = {(uint64_t)columns, (uint64_t)in->heads_q, (uint64_t)in->seq_q, (uint64_t)in->batch},
        .stride = {bytes_of(in->heads_q, v->head, columns), bytes_of(in->seq_q, v->row, columns),
                   bytes_of(in->batch, v->batch, columns)},
        .box = {box_columns, heads, queries, 1},
    };
    return attn_cuda_tensor_map(dev, &tensor, map);
}

attn_status attn_cuda_mla_map_keys(const struct attn_core_device *dev, const struct kp_mla *in, uint32_t columns,
                                   struct kp_tensor_map *map) {
    const int64_t keys = in->seq_k > 0 ? in->seq_k : 1, rows = attn_cuda_mla_map_rows(in) * (in->batch - 1) + keys;
    /* A single key has no stride of its own. Without keys kv may have no address, and nothing is read: q's. */
    const int64_t alone = in->kv.batch > 0 && in->seq_k > 0 ? in->kv.batch : in->dim_qk;
    const struct attn_cuda_tensor tensor = {
        .name = "kv",
        .address = in->seq_k > 0 ? in->kv.data : in->q.data,
        .rank = 2,
        .swizzle = swizzle_of(columns),
        .size = {(uint64_t)in->dim_qk, (uint64_t)rows},
        .stride = {bytes_of(in->seq_k, in->kv.row, alone)},
        .box = {columns, 1},
    };
    return attn_cuda_tensor_map(dev, &tensor, map);
}
