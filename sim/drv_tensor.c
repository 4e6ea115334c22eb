/* SPDX-License-Identifier: MIT
 * cuTensorMapEncodeTiled: checks by the rules that cuda.h states, then the map that sim/tensor_map.h describes. */
#include "cu.h"
#include "tensor_map.h"

#include <string.h>

enum { INTERLEAVES = 3, PROMOTIONS = 4 };

SIM_API cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *address, const uint64_t *dims,
                               const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                               int swizzle, int promotion, int fill);
SIM_API cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *address, const uint64_t *dims,
                               const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                               int swizzle, int promotion, int fill) {
    struct sim_tensor_map m = {.magic = SIM_TENSOR_MAGIC, .address = (uint64_t)(uintptr_t)address};
    int r = sim_enter(__func__, NULL);
    if (r) return r;
    if (!out || (uintptr_t)out % 64 || !dims || !box || !steps || rank < 1 || rank > SIM_TENSOR_RANK ||
        (rank > 1 && !strides) || !m.address || m.address % 16)
        return R_INVALID_VALUE;
    if (type < 0 || interleave < 0 || interleave >= INTERLEAVES || promotion < 0 || promotion >= PROMOTIONS ||
        fill < 0 || fill > 1)
        return R_INVALID_VALUE;
    if (type >= SIM_TENSOR_TYPES || interleave || swizzle < 0 || swizzle >= SIM_SWIZZLES) return R_NOT_SUPPORTED;
    int floating =
        type == SIM_TENSOR_F16 || type == SIM_TENSOR_F32 || type == SIM_TENSOR_F64 || type == SIM_TENSOR_BF16;
    if (fill && !floating) return R_INVALID_VALUE;
    if (steps[0] != 1 || (fill && type != SIM_TENSOR_F16 && type != SIM_TENSOR_BF16)) return R_NOT_SUPPORTED;
    m.rank = (uint8_t)rank, m.type = (uint8_t)type, m.swizzle = (uint8_t)swizzle, m.fill_nan = (uint8_t)fill;
    for (unsigned i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > UINT64_C(1) << 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > 8)
            return R_INVALID_VALUE;
        m.last[i] = (uint32_t)(dims[i] - 1), m.box[i] = (uint16_t)box[i], m.step[i] = (uint8_t)steps[i];
        if (i == 0) continue;
        if (strides[i - 1] % 16 || strides[i - 1] >= UINT64_C(1) << 40) return R_INVALID_VALUE;
        m.strides[i - 1] = strides[i - 1];
    }
    uint32_t inner = box[0] * sim_tensor_size(m.type);
    if (inner % 16 || (swizzle && inner > sim_tensor_span(m.swizzle))) return R_INVALID_VALUE;
    memset(out, 0, SIM_TENSOR_BYTES);
    memcpy(out, &m, sizeof m);
    return R_SUCCESS;
}
