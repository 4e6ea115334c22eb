/* SPDX-License-Identifier: MIT
 * Vectors of tensor memory's allocation, of its loads and stores in every shape, with and without packing, and of the
 * shift. */
#include "blackwell_golden.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *word;
    uint8_t registers, columns; /* of .x1 */
    uint8_t most;               /* .xN */
} shapes[] = {{"32x32b", 1, 1, 128},
              {"16x64b", 1, 2, 128},
              {"16x128b", 2, 4, 64},
              {"16x256b", 4, 8, 32},
              {"16x32bx2", 1, 1, 128}};
enum { N_SHAPES = 5, BEFORE = 512 };

static void random_cells(struct bg_case *c, uint64_t *state) {
    for (uint32_t l = 0; l < BG_LANES; l++)
        for (uint32_t i = 0; i < BG_COLUMNS; i++) c->cells[0][l][i] = bg_random(state);
}

/* Column of the first (or only) cell of a register. */
static uint32_t first_cell(uint32_t column, uint32_t split, int packed, struct bg_spot s) {
    uint32_t in_second = split && s.column >= split ? split : 0;
    return column + in_second + (s.column - in_second) * (packed ? 2 : 1);
}

/* i: shape, .xN (1, 4, most), packed, load or store */
static int move(uint32_t i, struct bg_case *c) {
    if (i >= N_SHAPES * 3 * 2 * 2) return 0;
    const uint32_t s = i % N_SHAPES, packed = i / N_SHAPES % 2, stores = i / N_SHAPES / 2 % 2, size = i / N_SHAPES / 4;
    uint32_t times = size == 0 ? 1 : size == 1 ? 4 : shapes[s].most;
    uint32_t n = times * shapes[s].registers, columns = times * shapes[s].columns * (packed ? 2 : 1);
    const uint32_t split = s == BG_16X32BX2 ? columns : 0, column = size == 2 ? 0 : 32 + times,
                   lane = size == 1 && s ? 16 : 0;
    snprintf(c->name, sizeof c->name, "%s_%s_x%u%s", stores ? "st" : "ld", shapes[s].word, times,
             packed ? "_packed" : "");
    uint64_t state = bg_seed(c->name);
    random_cells(c, &state);
    for (uint32_t k = 0; k < BG_IMAGE; k += 4) {
        uint32_t word = bg_random(&state);
        memcpy(c->image[0] + k, &word, 4);
    }
    bg_begin(c, BEFORE);
    bg_keep(c, stores ? BEFORE : n);
    for (uint32_t t = 0; t < 128; t++)
        for (uint32_t k = 0; k < n; k++) {
            struct bg_spot spot = bg_of_register((enum bg_shape)s, split, t % 32, k);
            const uint32_t l = t / 32 * 32 + lane + spot.row, cell = first_cell(column, split, (int)packed, spot);
            uint32_t word;
            memcpy(&word, c->image[0] + 4 * (128 * t + k), 4);
            if (stores) {
                c->want[0][l][cell] = word;
                if (!packed) continue;
                c->want[0][l][cell] = word & 0xffff, c->want[0][l][cell + 1] = word >> 16;
                c->care[0][l][cell] = c->care[0][l][cell + 1] = 0xffff;
            } else {
                const uint32_t *from = &c->cells[0][l][cell];
                c->want[0][t][k] = packed ? (from[0] & 0xffff) | from[1] << 16 : from[0];
            }
        }
    char offset[16] = "";
    if (split) snprintf(offset, sizeof offset, ", %u", split);
    if (stores) {
        bg_add(c, "mad.wide.u32 %%rd6, %%r0, 512, %%rd5;\n");
        for (uint32_t k = 0; k < n; k++) bg_add(c, "ld.global.b32 %%v%u, [%%rd6+%u];\n", k, 4 * k);
        bg_add(c, "tcgen05.st.sync.aligned.%s.x%u%s.b32 [%%r5+%u]%s, ", shapes[s].word, times,
               packed ? ".unpack::16b" : "", (lane << 16) + column, offset);
        bg_registers(c, n);
        bg_add(c, ";\ntcgen05.wait::st.sync.aligned;\n");
        bg_dump(c, BEFORE);
    } else {
        bg_add(c, "tcgen05.ld.sync.aligned.%s.x%u%s.b32 ", shapes[s].word, times, packed ? ".pack::16b" : "");
        bg_registers(c, n);
        bg_add(c, ", [%%r5+%u]%s;\ntcgen05.wait::ld.sync.aligned;\n", (lane << 16) + column, offset);
        for (uint32_t k = 0; k < n; k++) bg_add(c, "st.global.b32 [%%rd4+%u], %%v%u;\n", 4 * k, k);
    }
    bg_end(c);
    return 1;
}

/* Two allocations, or one of all columns: at lane 0 and multiples of 32 columns, and at least their size apart. */
static int allocate(uint32_t i, struct bg_case *c) {
    if (i >= 5) return 0;
    const uint32_t columns = 32u << i, two = columns < 512;
    snprintf(c->name, sizeof c->name, "alloc_%u", columns);
    memset(c->care, 0, sizeof c->care);
    for (uint32_t t = 0; t < 128; t++) {
        c->care[0][t][0] = c->care[0][t][1] = 0xffff001f, c->care[0][t][2] = UINT32_MAX;
        c->want[0][t][2] = two;
    }
    bg_head(c);
    for (uint32_t k = 0; k <= two; k++)
        bg_add(c, "@warp0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%%r6+%u], %u;\n", 8 + 4 * k,
               columns);
    bg_add(c,
           "@warp0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nbar.sync 0;\n"
           "ld.shared.b32 %%r10, [%%r6+8];\nld.shared.b32 %%r11, [%%r6+%u];\nsub.s32 %%r12, %%r10, %%r11;\n"
           "abs.s32 %%r12, %%r12;\nsetp.ge.s32 p, %%r12, %u;\nselp.b32 %%r12, 1, 0, p;\n"
           "st.global.b32 [%%rd4], %%r10;\nst.global.b32 [%%rd4+4], %%r11;\nst.global.b32 [%%rd4+8], %%r12;\n"
           "bar.sync 0;\n",
           8 + 4 * two, columns);
    for (uint32_t k = 0; k <= two; k++)
        bg_add(c, "@warp0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %%r%u, %u;\n", 10 + k, columns);
    bg_add(c, "ret;\n}\n");
    return 1;
}

/* 8 columns of a warp's lanes move by one: the ISA says down, not whether that is to higher or to lower lanes. */
static int shift(uint32_t i, struct bg_case *c) {
    if (i >= 2) return 0;
    c->ctas = 1 + i;
    snprintf(c->name, sizeof c->name, "shift_cta%u", c->ctas);
    uint64_t state = bg_seed(c->name);
    random_cells(c, &state);
    memcpy(c->cells[1], c->cells[0], sizeof c->cells[0]);
    bg_begin(c, 64);
    bg_keep(c, 64);
    memcpy(c->other, c->want, sizeof c->other);
    c->has_other = 1;
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t r = 0; r < 31; r++)
            for (uint32_t k = 16; k < 24; k++) {
                c->want[v][64 + r + 1][k] = c->cells[v][64 + r][k];
                c->other[v][64 + r][k] = c->cells[v][64 + r + 1][k];
            }
    bg_one(c);
    bg_add(c, "tcgen05.shift.cta_group::%u.down [%%r4+%u];\n", c->ctas, (64u << 16) + 16);
    bg_commit(c);
    bg_wait(c);
    bg_dump(c, 64);
    bg_end(c);
    return 1;
}
int bg_moves(uint32_t i, struct bg_case *c) {
    const uint32_t n = N_SHAPES * 12;
    return i < n ? move(i, c) : i < n + 5 ? allocate(i - n, c) : shift(i - n - 5, c);
}
