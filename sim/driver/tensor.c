/* SPDX-License-Identifier: MIT
 * cuTensorMapEncodeTiled and cuTensorMapReplaceAddress, with the rules that cuda.h states for their arguments. Im2col
 * maps are refused. */
#include "driver/cu.h"
#include "machine/device.h"
#include "units/tensor_box.h"

#include <string.h>

static const uint8_t type_bytes[SIM_TENSOR_TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1, 1, 1};
static int is_real(int type) { return type >= SIM_TENSOR_F16 && type < SIM_TENSOR_U4_PACKED; }

static int bad_packed(const struct sim_tensor_map *m, const uint64_t *dim, const uint32_t *box) {
    const int s = m->swizzle, common = s == SIM_SWIZZLE_NONE || s == SIM_SWIZZLE_128B || s == SIM_SWIZZLE_128B_ATOM_32B;
    if (m->type == SIM_TENSOR_U4_PACKED) return dim[0] % 2 != 0;
    if (!sim_tensor_gap(m)) return 0;
    if (m->type == SIM_TENSOR_U6_APART && (m->interleave || !(common || s == SIM_SWIZZLE_128B_ATOM_64B))) return 1;
    return (m->type == SIM_TENSOR_U4_APART && !common) || dim[0] % 128 || box[0] != 128 || m->address % 32;
}

static int bad_sizes(const struct sim_tensor_map *m, const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                     const uint32_t *step) {
    uint64_t most = UINT64_C(1) << 32, align = m->interleave == SIM_INTERLEAVE_32B || sim_tensor_gap(m) ? 32 : 16;
    for (int i = 0; i < m->rank; i++) {
        if (!dim[i] || dim[i] > most || !box[i] || box[i] > 256 || !step[i] || step[i] > 8) return 1;
        /* cuda.h also asks for strides that grow; the driver takes others: rows that overlap, an outer dimension of
         * size 1 without a stride */
        if (i + 1 < m->rank && (stride[i] % align || stride[i] >> 40)) return 1;
    }
    uint64_t inner = sim_tensor_in_shared(m, box[0]);
    const uint32_t span = m->swizzle ? sim_tensor_span(m->swizzle) : UINT32_MAX;
    return m->interleave == SIM_INTERLEAVE_NONE && (inner % 16 || inner > span);
}

SIM_API cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dim,
                               const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                               int swizzle, int l2, int fill);
SIM_API cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dim,
                               const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                               int swizzle, int l2, int fill) {
    struct sim_context *context = NULL;
    int r = sim_enter(__func__, &context);
    if (r) return r;
    const uint64_t base = (uint64_t)(uintptr_t)address;
    if (sim_profile()->major < 9) return R_NOT_SUPPORTED;
    if (type >= SIM_TENSOR_U4_PACKED && type < SIM_TENSOR_TYPES && sim_profile()->major < 10) return R_NOT_SUPPORTED;
    if (swizzle > SIM_SWIZZLE_128B && sim_profile()->major < 10) return R_INVALID_VALUE; /* as for an H200 */
    if (!map || (uintptr_t)map % 64 || type < 0 || type >= SIM_TENSOR_TYPES || !rank || rank > SIM_TENSOR_RANK ||
        !dim || (rank > 1 && !stride) || !box || !step || interleave < 0 || interleave > SIM_INTERLEAVE_32B ||
        swizzle < 0 || swizzle >= SIM_SWIZZLES || l2 < 0 || l2 > 3 || fill < 0 || fill > 1)
        return R_INVALID_VALUE;
    if (interleave != SIM_INTERLEAVE_NONE && rank < 3) return R_INVALID_VALUE;
    if (interleave == SIM_INTERLEAVE_32B && (swizzle != SIM_SWIZZLE_32B || base % 32)) return R_INVALID_VALUE;
    if (!base || base % 16 || (fill && !is_real(type))) return R_INVALID_VALUE;
    struct sim_tensor_map m;
    memset(&m, 0, sizeof m);
    m.address = base;
    m.type = (uint8_t)type, m.bytes = type_bytes[type], m.rank = (uint8_t)rank;
    m.interleave = (uint8_t)interleave, m.swizzle = (uint8_t)swizzle, m.l2 = (uint8_t)l2, m.nan = (uint8_t)fill;
    if (bad_sizes(&m, dim, stride, box, step) || bad_packed(&m, dim, box)) return R_INVALID_VALUE;
    for (uint32_t i = 0; i < rank; i++) {
        m.last[i] = (uint32_t)(dim[i] - 1);
        m.box[i] = (uint16_t)box[i], m.step[i] = (uint8_t)step[i];
        if (i + 1 < rank) m.stride[i] = stride[i];
    }
    sim_tensor_write(&m, map);
    return R_SUCCESS;
}

SIM_API cuTensorMapReplaceAddress(void *map, void *address);
SIM_API cuTensorMapReplaceAddress(void *map, void *address) {
    struct sim_context *context = NULL;
    int r = sim_enter(__func__, &context);
    if (r) return r;
    struct sim_tensor_map m;
    const uint64_t base = (uint64_t)(uintptr_t)address;
    if (!map || (uintptr_t)map % 64) return R_INVALID_VALUE;
    if (!sim_tensor_read(map, &m) || !base) return R_INVALID_VALUE;
    if (base % (m.interleave == SIM_INTERLEAVE_32B || sim_tensor_gap(&m) ? 32 : 16)) return R_INVALID_VALUE;
    m.address = base;
    sim_tensor_write(&m, map);
    return R_SUCCESS;
}
