/* SPDX-License-Identifier: MIT
 * Operands of wgmma by their descriptors, and the product. Descriptor: bits 0-13 start, 16-29 leading distance, 32-45
 * stride, each in units of 16 bytes, 49-51 base offset, 62-63 swizzle (0 none, 1 128, 2 64, 3 32 bytes).
 *
 * Byte of row i (of M or N) and chunk c of K, or of k and chunk of 8 rows, before the swizzle; span: bytes of it:
 *   K-major   swizzled  (i % 8) span + (i / 8) stride + 16 c      none  (i % 8) 16 + (i / 8) stride + c leading
 *   MN-major  swizzled  16 (c % s) + (c / s) leading + (k % 8) span + (k / 8) stride, s = span / 16
 *             none      (k % 8) 16 + c stride + (k / 8) leading
 * The start is added first; then bits 4.. of the whole address are turned by bits 7.., counted from where the pattern
 * of the swizzle starts, which the base offset tells if that is no multiple of 1024, 512 or 256 bytes.
 * Sums are taken in f32 in the order of k; the machine has an order and precision of its own. ATTNSIM_MMA=h100: as
 * mma.sync has them on that machine (exec/aligned_sum.h). */
#include "units/wgmma_math.h"
#include "exec/aligned_sum.h"
#include "exec/formats.h"

#include <stdlib.h>
#include <string.h>

typedef float row8 __attribute__((vector_size(32), aligned(4), may_alias));

uint32_t wgmma_chunks(uint64_t desc, int mn_major, uint32_t rows, uint32_t out[]) {
    static const uint32_t spans[4] = {16, 128, 64, 32}, turns[4] = {0, 7, 3, 1};
    const uint32_t start = (uint32_t)(desc & 0x3fff) << 4, leading = (uint32_t)(desc >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(desc >> 32 & 0x3fff) << 4, base = (uint32_t)(desc >> 49 & 7),
                   mode = (uint32_t)(desc >> 62), span = spans[mode], turn = turns[mode], s = span / 16;
    uint32_t n = 0, outer = mn_major ? 16 : rows, inner = mn_major ? rows / 8 : 2;
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

uint32_t wgmma_widen(const uint8_t chunk[16], enum wgmma_type type, float out[16]) {
    uint16_t h[8];
    uint32_t w[4];
    memcpy(h, chunk, 16);
    memcpy(w, chunk, 16);
    switch (type) {
    case WGMMA_F16:
        for (int i = 0; i < 8; i++) out[i] = sim_from_f16(h[i]);
        return 8;
    case WGMMA_BF16:
        for (int i = 0; i < 8; i++) out[i] = sim_from_bf16(h[i]);
        return 8;
    case WGMMA_TF32:
        for (int i = 0; i < 4; i++) out[i] = sim_from_tf32(w[i]);
        return 4;
    case WGMMA_E4M3:
        for (int i = 0; i < 16; i++) out[i] = sim_from_e4m3(chunk[i]);
        return 16;
    case WGMMA_E5M2:
        for (int i = 0; i < 16; i++) out[i] = sim_from_e5m2(chunk[i]);
        return 16;
    }
    return 0;
}

void wgmma_gather(const uint8_t *shared, const uint32_t *chunks, uint32_t n_chunks, uint32_t rows, int mn_major,
                  enum wgmma_type type, int by_k, float *out, uint32_t pitch) {
    uint32_t inner = mn_major ? rows / 8 : 2;
    for (uint32_t c = 0; c < n_chunks; c++) {
        float values[16];
        uint32_t n = wgmma_widen(shared + chunks[c], type, values), outer = c / inner, part = c % inner;
        for (uint32_t e = 0; e < n; e++) {
            uint32_t row = mn_major ? part * 8 + e : outer, k = mn_major ? outer : part * n + e;
            out[by_k ? k * pitch + row : row * pitch + k] = values[e];
        }
    }
}
static void aligned_product(float *sums, const float *a, const float *b, uint32_t rows, uint32_t n, uint32_t k,
                            uint32_t pitch_a, uint32_t pitch) {
    double row[SIM_ALIGNED_MOST], column[SIM_ALIGNED_MOST];
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t q = 0; q < k; q++) column[q] = (double)b[(size_t)q * pitch + j];
        for (uint32_t i = 0; i < rows; i++) {
            float *sum = sums + (size_t)i * pitch + j;
            for (uint32_t q = 0; q < k; q++) row[q] = (double)a[(size_t)i * pitch_a + q];
            *sum = (float)sim_aligned_sum((double)*sum, row, column, k);
        }
    }
}
void wgmma_product(float *sums, const float *a, const float *b, uint32_t rows, uint32_t n, uint32_t k, uint32_t pitch_a,
                   uint32_t pitch) {
    const char *as = getenv("ATTNSIM_MMA");
    if (as && !strcmp(as, "h100")) {
        aligned_product(sums, a, b, rows, n, k, pitch_a, pitch);
        return;
    }
    for (uint32_t j = 0; j < n; j += 8)
        for (uint32_t i = 0; i < rows; i += 4) {
            float *out = sums + (size_t)i * pitch + j;
            const float *row = a + (size_t)i * pitch_a;
            row8 s0 = *(const row8 *)out, s1 = *(const row8 *)(out + pitch), s2 = *(const row8 *)(out + 2 * pitch),
                 s3 = *(const row8 *)(out + 3 * pitch);
            for (uint32_t q = 0; q < k; q++) {
                row8 column = *(const row8 *)(b + (size_t)q * pitch + j);
                s0 += row[q] * column;
                s1 += row[pitch_a + q] * column;
                s2 += row[2 * pitch_a + q] * column;
                s3 += row[3 * pitch_a + q] * column;
            }
            *(row8 *)out = s0, *(row8 *)(out + pitch) = s1, *(row8 *)(out + 2 * pitch) = s2,
                   *(row8 *)(out + 3 * pitch) = s3;
        }
}
