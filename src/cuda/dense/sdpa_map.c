/* SPDX-License-Identifier: MIT
 * Tensor maps of dense operands: see sdpa_map.h. */
#include "cuda/dense/sdpa_map.h"

#include "cuda/backend/driver.h"

/* An address for the map of a tensor without elements, which no copy reads: its own may be NULL, or not aligned. */
enum { NOWHERE = 4096 };

static attn_status encode(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                          int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                          uint32_t box_columns, struct kp_tensor_map *map) {
    const int empty = rows <= 0 || heads <= 0 || batch <= 0;
    const int64_t size[3] = {rows, heads, batch}, stride[3] = {v->row, v->head, v->batch};
    struct attn_cuda_tensor tensor = {.name = name,
                                      .address = empty ? NOWHERE : v->data,
                                      .rank = 4,
                                      .swizzle = box_columns == 64 ? CU_SWIZZLE_128B : CU_SWIZZLE_64B,
                                      .size = {(uint64_t)columns},
                                      .box = {box_columns, box, 1, 1}};
    for (int a = 0; a < 3; a++) { /* an axis of one entry may have any stride; multiples of 16 bytes */
        const int single = empty || size[a] == 1;
        tensor.size[a + 1] = single ? 1 : (uint64_t)size[a];
        tensor.stride[a] = single ? 16 * (uint64_t)attn_cuda_blocks(columns, 8) : 2 * (uint64_t)stride[a];
    }
    return attn_cuda_tensor_map(dev, &tensor, map);
}

attn_status attn_cuda_sdpa_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                               int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                               struct kp_tensor_map *map) {
    return encode(dev, name, v, columns, rows, heads, batch, box, 64, map);
}
attn_status attn_cuda_sdpa_narrow_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                                      int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                                      struct kp_tensor_map *map) {
    return encode(dev, name, v, columns, rows, heads, batch, box, 32, map);
}
