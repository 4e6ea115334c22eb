/* SPDX-License-Identifier: MIT
 * See tensor_operand.h. Swizzles move 16-byte chunks within 1024 bytes: bits 4.. of the address are changed by bits
 * 7.. of it, less the descriptor's base offset. */
#include "units/tensor_operand.h"
#include "exec/formats.h"

#include <math.h>

uint32_t tensor_chunks(uint64_t desc, int mn_major, uint32_t rows, uint32_t chunks, uint32_t size, uint32_t out[]) {
    /* by the descriptor's three bits; 128 bytes in atoms of 32 (1) serve 32-bit operands with rows along m or n only */
    static const struct {
        uint8_t good, span, turn;
    } modes[8] = {{1, 16, 0}, {0}, {1, 128, 7}, {0}, {1, 64, 3}, {0}, {1, 32, 1}, {0}};
    const uint32_t start = (uint32_t)(desc & 0x3fff) << 4, leading = (uint32_t)(desc >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(desc >> 32 & 0x3fff) << 4, base = (uint32_t)(desc >> 49 & 7),
                   mode = (uint32_t)(desc >> 61);
    const uint32_t span = modes[mode].span, turn = modes[mode].turn, s = span / 16;
    uint32_t n = 0, outer = mn_major ? 32 / size : rows, inner = mn_major ? rows * size / 16 : chunks;
    if (!modes[mode].good || (desc >> 46 & 7) != 1 || desc >> 52 & 1) return 0;
    for (uint32_t i = 0; i < outer; i++)
        for (uint32_t c = 0; c < inner; c++) {
            uint32_t offset = start;
            if (!mn_major)
                offset += i % 8 * span + i / 8 * stride + c * (mode ? 16 : leading);
            else if (mode)
                offset += c % s * 16 + c / s * leading + i % 8 * span + i / 8 * stride;
            else
                offset += i % 8 * 16 + c * stride + i / 8 * leading;
            out[n++] = (offset ^ (((offset >> 7) - base) & turn) << 4) & 0x3ffff;
        }
    return n;
}

void tensor_unpack(const uint8_t chunk[16], uint32_t bits, uint8_t out[16]) {
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t bit = i * bits, two = chunk[bit / 8] | (uint32_t)chunk[bit / 8 + 1] << 8;
        out[i] = (uint8_t)((two >> bit % 8 & ((1u << bits) - 1)) << (bits == 4 ? 2 : 0));
    }
}

uint32_t tensor_widen(const uint8_t chunk[16], enum tensor_format format, int cells, float out[32]) {
    uint16_t h[8];
    uint32_t w[4], n = tensor_per_chunk(format);
    uint8_t bytes[16];
    memcpy(h, chunk, 16), memcpy(w, chunk, 16), memcpy(bytes, chunk, 16);
    if (!cells && format >= TENSOR_E2M3 && format <= TENSOR_E2M1)
        tensor_unpack(chunk, format == TENSOR_E2M1 ? 4 : 6, bytes);
    for (uint32_t i = 0; i < n; i++) {
        switch (format) {
        case TENSOR_F16: out[i] = sim_from_f16(h[i]); break;
        case TENSOR_BF16: out[i] = sim_from_bf16(h[i]); break;
        case TENSOR_TF32: out[i] = sim_from_tf32(w[i]); break;
        case TENSOR_E4M3: out[i] = sim_from_e4m3(bytes[i]); break;
        case TENSOR_E5M2: out[i] = sim_from_e5m2(bytes[i]); break;
        case TENSOR_E2M3: out[i] = sim_from_small(bytes[i] & 63, 2, 3); break;
        case TENSOR_E3M2: out[i] = sim_from_small(bytes[i] & 63, 3, 2); break;
        case TENSOR_E2M1: out[i] = sim_from_small(bytes[i] >> 2 & 15, 2, 1); break;
        case TENSOR_U8: out[i] = bytes[i]; break;
        case TENSOR_S8: out[i] = (float)(int8_t)bytes[i]; break;
        case TENSOR_PAIRS: out[i] = sim_from_small(bytes[i / 2] >> (4 * (i & 1)) & 15, 2, 1); break;
        }
    }
    return n;
}

float tensor_scale(uint8_t bits, int ue4m3) {
    if (ue4m3) return sim_from_e4m3(bits & 127);
    return bits == 255 ? NAN : ldexpf(1, bits - 127);
}
