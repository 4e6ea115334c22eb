/* SPDX-License-Identifier: MIT
 * A second statement of tcgen05's layouts, written from what a cell, register or unit holds, where sim/ says where an
 * element goes; formats are tables of numbers instead of rules. */
#include "blackwell_golden.h"

#include <string.h>

static const struct bg_code codes[][8] = {
    [BG_F16] = {{0, 0}, {0x3c00, 1}, {0x4000, 2}, {0x4200, 3}, {0x4400, 4}, {0xbc00, -1}, {0xc000, -2}, {0xc200, -3}},
    [BG_BF16] = {{0, 0}, {0x3f80, 1}, {0x4000, 2}, {0x4040, 3}, {0x4080, 4}, {0xbf80, -1}, {0xc000, -2}, {0xc040, -3}},
    [BG_TF32] = {{0, 0},
                 {0x3f800000, 1},
                 {0x40000000, 2},
                 {0x40400000, 3},
                 {0x40800000, 4},
                 {0xbf800000, -1},
                 {0xc0000000, -2},
                 {0xc0400000, -3}},
    [BG_E4M3] = {{0, 0}, {0x38, 1}, {0x40, 2}, {0x44, 3}, {0x48, 4}, {0xb8, -1}, {0xc0, -2}, {0xc4, -3}},
    [BG_E5M2] = {{0, 0}, {0x3c, 1}, {0x40, 2}, {0x42, 3}, {0x44, 4}, {0xbc, -1}, {0xc0, -2}, {0xc2, -3}},
    [BG_E2M3] = {{0, 0}, {8, 1}, {16, 2}, {20, 3}, {4, 0.5}, {40, -1}, {31, 7.5}, {52, -3}},
    [BG_E3M2] = {{0, 0}, {12, 1}, {16, 2}, {18, 3}, {8, 0.5}, {44, -1}, {22, 6}, {50, -3}},
    [BG_E2M1] = {{0, 0}, {1, 0.5}, {2, 1}, {3, 1.5}, {5, 3}, {10, -1}, {12, -2}, {15, -6}},
    [BG_U8] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {127, 127}, {128, 128}, {200, 200}, {255, 255}},
    [BG_S8] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {127, 127}, {128, -128}, {200, -56}, {255, -1}},
    [BG_PAIRS] = {{0, 0}, {1, 0.5}, {2, 1}, {3, 1.5}, {5, 3}, {10, -1}, {12, -2}, {15, -6}},
};
struct bg_code bg_pick(enum bg_format format, uint32_t random) {
    return codes[format][random & 7];
}

/* Bits of an element in shared memory, and elements in 16 bytes of it. */
static const struct {
    uint8_t bits, per_unit;
} sizes[] = {[BG_F16] = {16, 8},  [BG_BF16] = {16, 8}, [BG_TF32] = {32, 4}, [BG_E4M3] = {8, 16},
             [BG_E5M2] = {8, 16}, [BG_E2M3] = {6, 16}, [BG_E3M2] = {6, 16}, [BG_E2M1] = {4, 16},
             [BG_U8] = {8, 16},   [BG_S8] = {8, 16},   [BG_PAIRS] = {4, 32}};
uint32_t bg_row_elements(enum bg_format format) { return 2u * sizes[format].per_unit; }

uint64_t bg_descriptor(const struct bg_layout *l) {
    static const uint64_t modes[] = {[BG_NONE] = 0, [BG_32] = 6, [BG_64] = 4, [BG_128] = 2};
    uint32_t byte = l->start + 16u * l->unit;
    return (uint64_t)(byte / 16) | (uint64_t)(l->leading / 16) << 16 | (uint64_t)(l->stride / 16) << 32 |
           (uint64_t)1 << 46 | modes[l->swizzle] << 61;
}

/* A pattern has 8 lines of 1, 2, 4 or 8 units; within it a unit's place depends on the line: each pair of columns is
 * changed every 4 lines, each pair of pairs every 2, each pair of fours every line. */
static uint32_t in_pattern(enum bg_swizzle s, uint32_t line, uint32_t unit) {
    static const uint8_t places[3][8][8] = {{{0, 1}, {0, 1}, {0, 1}, {0, 1}, {1, 0}, {1, 0}, {1, 0}, {1, 0}},
                                            {{0, 1, 2, 3},
                                             {0, 1, 2, 3},
                                             {1, 0, 3, 2},
                                             {1, 0, 3, 2},
                                             {2, 3, 0, 1},
                                             {2, 3, 0, 1},
                                             {3, 2, 1, 0},
                                             {3, 2, 1, 0}},
                                            {{0, 1, 2, 3, 4, 5, 6, 7},
                                             {1, 0, 3, 2, 5, 4, 7, 6},
                                             {2, 3, 0, 1, 6, 7, 4, 5},
                                             {3, 2, 1, 0, 7, 6, 5, 4},
                                             {4, 5, 6, 7, 0, 1, 2, 3},
                                             {5, 4, 7, 6, 1, 0, 3, 2},
                                             {6, 7, 4, 5, 2, 3, 0, 1},
                                             {7, 6, 5, 4, 3, 2, 1, 0}}};
    return line * (16u << s) + 16u * (s == BG_NONE ? 0 : places[s - 1][line][unit]);
}
uint32_t bg_unit(const struct bg_layout *l, uint32_t line, uint32_t unit) {
    enum bg_swizzle s = (enum bg_swizzle)l->swizzle;
    const uint32_t wide = 1u << s, block = unit / wide, group = line / 8;
    unit += l->unit;
    if (!l->along_mn) /* a row's units lie side by side, or without swizzle in patterns of one column */
        return l->start + group * l->stride + in_pattern(s, line % 8, s ? unit : 0) + (s ? 0 : unit * l->leading);
    if (s == BG_NONE) return l->start + group * l->leading + unit * l->stride + in_pattern(s, line % 8, 0);
    return l->start + group * l->stride + block * l->leading + in_pattern(s, line % 8, unit % wide);
}

static void put_bits(uint8_t *unit, uint32_t first, uint32_t bits, uint32_t code) {
    for (uint32_t i = 0; i < bits; i++) {
        uint8_t mask = (uint8_t)(1u << (first + i) % 8);
        unit[(first + i) / 8] = (uint8_t)((unit[(first + i) / 8] & ~mask) | (code >> i & 1 ? mask : 0));
    }
}
void bg_put(uint8_t *image, const struct bg_layout *l, enum bg_format format, uint32_t row, uint32_t k, uint32_t code) {
    const uint32_t per = sizes[format].per_unit, bits = sizes[format].bits;
    uint32_t line = l->along_mn ? k : row, along = l->along_mn ? row : k;
    put_bits(image + bg_unit(l, line, along / per), along % per * bits, bits, code);
}
void bg_put_cell(uint32_t *lane, uint32_t column, enum bg_format format, uint32_t k, uint32_t code) {
    uint32_t bits = sizes[format].bits, shift = 0;
    if (format == BG_E2M1) shift = 2; /* bits 5..2 of a byte */
    if (bits < 8 && format != BG_PAIRS) bits = 8;
    put_bits((uint8_t *)(lane + column), k * bits, bits, code << shift);
}

int bg_of_cell(uint32_t m_all, uint32_t n_all, uint32_t ctas, int ws, int lane16, uint32_t cta, uint32_t lane,
               uint32_t column, uint32_t *m, uint32_t *n) {
    uint32_t warp = lane / 32, folds = 1;
    *n = column, *m = lane;
    if (ctas == 1 && m_all == 64 && !ws) { /* 16 rows in half of each warp's lanes */
        if (lane % 32 / 16 != (uint32_t)lane16) return 0;
        *m = 16 * warp + lane % 16;
    } else if (m_all == 32) {
        *m = lane % 32, *n += warp * (n_all / 4), folds = 4;
    } else if (ctas == 1 && m_all == 64) {
        *m = lane % 64, *n += warp / 2 * (n_all / 2), folds = 2;
    } else if (ctas == 2 && m_all == 128) {
        *m = 64 * cta + lane % 64, *n += warp / 2 * (n_all / 2), folds = 2;
    } else {
        *m = lane + 128 * cta;
    }
    return column < n_all / folds;
}

struct bg_spot bg_of_register(enum bg_shape shape, uint32_t split, uint32_t t, uint32_t i) {
    switch (shape) {
    case BG_16X64B: return (struct bg_spot){t / 4 + 8 * (t % 2), t / 2 % 2 + 2 * i};
    case BG_16X128B: return (struct bg_spot){t / 4 + 8 * (i % 2), t % 4 + 4 * (i / 2)};
    case BG_16X256B: return (struct bg_spot){t / 4 + 8 * (i / 2 % 2), i % 2 + 2 * (t % 4) + 8 * (i / 4)};
    case BG_16X32BX2: return (struct bg_spot){t % 16, i + (t < 16 ? 0 : split)};
    default: return (struct bg_spot){t, i};
    }
}

uint32_t bg_f32(double x) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
uint32_t bg_f16(double x) {
    uint32_t u = bg_f32(x);
    return x == 0 ? 0 : (u >> 16 & 0x8000) | ((u >> 23 & 255) - 112) << 10 | (u >> 13 & 1023);
}
