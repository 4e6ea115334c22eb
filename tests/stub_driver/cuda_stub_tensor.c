/* SPDX-License-Identifier: MIT
 * The stand-in driver's tensor maps: the rules that cuda.h states for bf16 without interleave; the map holds its
 * arguments. */
#include "stub_driver/cuda_stub_graph.h"

#include <string.h>

__attribute__((visibility("default"))) cu_result
cuTensorMapEncodeTiled(cu_tensor_map *map, cu_tensor_type type, unsigned rank, void *address, const uint64_t *size,
                       const uint64_t *stride, const uint32_t *box, const uint32_t *step,
                       cu_tensor_interleave interleave, cu_tensor_swizzle swizzle, cu_tensor_promotion promotion,
                       cu_tensor_fill fill);

cu_result cuTensorMapEncodeTiled(cu_tensor_map *map, cu_tensor_type type, unsigned rank, void *address,
                                 const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                                 const uint32_t *step, cu_tensor_interleave interleave, cu_tensor_swizzle swizzle,
                                 cu_tensor_promotion promotion, cu_tensor_fill fill) {
    ENTER(1);
    const uint32_t span = swizzle == CU_SWIZZLE_128B ? 128 : swizzle == CU_SWIZZLE_64B ? 64 : 32;
    int bad = !map || (uintptr_t)map % 64 || type != CU_TENSOR_BF16 || rank < 1 || rank > 5 || !address ||
              (uintptr_t)address % 16 || interleave || swizzle < 0 || swizzle > CU_SWIZZLE_128B || promotion < 0 ||
              promotion > CU_PROMOTE_256B || fill < 0 || fill > 1;
    for (unsigned a = 0; a < rank && !bad; a++)
        bad = !size[a] || size[a] > UINT64_C(1) << 32 || !box[a] || box[a] > 256 || step[a] != 1 ||
              (a + 1 < rank && (stride[a] % 16 || stride[a] >> 40));
    if (bad || 2 * box[0] % 16 || (swizzle && 2 * box[0] > span)) return cuda_stub_misuse(CU_BAD_VALUE);
    memset(map, 0, sizeof *map);
    map->opaque[0] = (uint64_t)(uintptr_t)address, map->opaque[1] = rank, map->opaque[2] = (uint64_t)swizzle;
    for (unsigned a = 0; a < rank; a++) map->opaque[3 + a] = size[a];
    return CU_OK;
}
