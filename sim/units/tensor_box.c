/* SPDX-License-Identifier: MIT
 * The box of a tensor copy, row by row: where its elements are in global memory, which of them exist, where they go. */
#include "units/tensor_box.h"

uint32_t sim_tensor_span(uint32_t swizzle) {
    return swizzle == SIM_SWIZZLE_NONE ? 16 : swizzle > SIM_SWIZZLE_128B ? 128 : 16u << swizzle;
}
/* PTX ISA, swizzling modes: which bits of the address turn which. With atoms of 32 and 64 bytes fewer bits of the line
 * turn the place of larger pieces. */
uint32_t sim_swizzle(uint32_t address, uint32_t swizzle) {
    const uint32_t line = address >> 7;
    switch (swizzle) {
    case SIM_SWIZZLE_32B: return address ^ (line & 1) << 4;
    case SIM_SWIZZLE_64B: return address ^ (line & 3) << 4;
    case SIM_SWIZZLE_128B: return address ^ (line & 7) << 4;
    case SIM_SWIZZLE_128B_ATOM_32B:
    case SIM_SWIZZLE_128B_ATOM_32B_FLIP_8B: return address ^ (line & 3) << 5;
    case SIM_SWIZZLE_128B_ATOM_64B: return address ^ (line & 1) << 6;
    default: return address;
    }
}

static uint32_t count(const struct sim_tensor_map *m, uint32_t d) {
    return d < m->rank ? (m->box[d] + m->step[d] - 1u) / m->step[d] : 1;
}
static uint32_t pitch(const struct sim_tensor_map *m) { /* of a row in shared memory: whole spans of the swizzle */
    uint32_t inner = sim_tensor_in_shared(m, m->box[0]), span = sim_tensor_span(m->swizzle);
    return (inner + span - 1) / span * span;
}

uint32_t sim_tensor_rows(const struct sim_tensor_map *m, uint32_t *bytes) {
    uint32_t rows = 1;
    for (uint32_t d = 1; d < m->rank; d++) rows *= count(m, d);
    *bytes = rows * pitch(m);
    return rows;
}

uint32_t sim_tensor_walk(const struct sim_tensor_map *m, const int32_t position[SIM_TENSOR_RANK],
                         struct sim_piece *out) {
    const uint32_t inner = sim_tensor_in_shared(m, m->box[0]), step = pitch(m), gap = sim_tensor_gap(m),
                   bite = gap ? gap : 16; /* of global memory in a piece */
    const int64_t row_bytes = sim_tensor_in_global(m, (int64_t)m->last[0] + 1),
                  start = sim_tensor_in_global(m, position[0]);
    uint32_t bytes, rows = sim_tensor_rows(m, &bytes), n = 0, i[SIM_TENSOR_RANK] = {0};
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t base = m->address;
        int inside = 1;
        for (uint32_t d = 1; d < m->rank; d++) {
            int64_t c = (int64_t)position[d] + (int64_t)i[d] * m->step[d];
            inside &= c >= 0 && c <= m->last[d];
            base += (uint64_t)c * m->stride[d - 1];
        }
        for (uint32_t b = 0; b < inner; b += 16) {
            int64_t from = start + b / 16 * bite, low = from < 0 ? -from : 0, high = row_bytes - from;
            if (high > bite) high = bite;
            if (high > (int64_t)(inner - b)) high = (int64_t)(inner - b);
            uint32_t valid = inside && high > low ? (uint32_t)(high - low) : 0;
            out[n++] = (struct sim_piece){.global = base + (uint64_t)(from + low),
                                          .shared = r * step + b,
                                          .n = inner - b < 16 ? inner - b : 16,
                                          .skip = valid ? (uint32_t)low : 0,
                                          .valid = valid};
        }
        for (uint32_t d = 1; d < m->rank && ++i[d] == count(m, d); d++) i[d] = 0;
    }
    return n;
}
