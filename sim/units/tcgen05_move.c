/* SPDX-License-Identifier: MIT
 * tcgen05.ld and st: cells of tensor memory to and from a warp's registers. Row r, column c of a shape and register i
 * of thread t: 32x32b   t = r, i = c                     16x64b   t = 4 (r % 8) + r / 8 + 2 (c % 2), i = c / 2 16x128b
 * t = 4 (r % 8) + c % 4, i = r / 8 + 2 (c / 4) 16x256b  t = 4 (r % 8) + c % 8 / 2, i = c % 2 + 2 (r / 8) + 4 (c / 8)
 *   16x32bx2 t = r + 16 h, i = c, with h = 1 for the columns that begin at the instruction's second number
 * pack::16b, unpack::16b: where c stands above, the lower halves of columns 2 c and 2 c + 1; what unpack leaves in the
 * upper halves nobody states. */
#include "checks/report.h"
#include "exec/exec.h"
#include "units/tensor_memory.h"

#include <stdio.h>

enum shape { LANES_32, BITS_64, BITS_128, BITS_256, TWICE_32, SHAPES };
static const struct {
    const char *word;
    uint8_t rows, columns, registers; /* of .x1; columns: of a half */
} shapes[SHAPES] = {
    {"32x32b", 32, 1, 1}, {"16x64b", 16, 2, 1}, {"16x128b", 16, 4, 2}, {"16x256b", 16, 8, 4}, {"16x32bx2", 16, 1, 1}};
enum { UNSTATED = 0xfbfb };
/* PTX ISA, access restrictions of tcgen05: a warp reaches the 32 lanes of its place in the warpgroup. These bits of
 * the lane are the warp's own whatever the address says. Libraries leave them 0; those of another warp are a finding,
 * and the access goes to the warp's lanes, as on the device. */
#define QUARTER 0x60u

static void place(enum shape s, uint32_t r, uint32_t c, uint32_t half, uint32_t *thread, uint32_t *i) {
    switch (s) {
    case LANES_32: *thread = r, *i = c; break;
    case BITS_64: *thread = 4 * (r % 8) + r / 8 + 2 * (c % 2), *i = c / 2; break;
    case BITS_128: *thread = 4 * (r % 8) + c % 4, *i = r / 8 + 2 * (c / 4); break;
    case BITS_256: *thread = 4 * (r % 8) + c % 8 / 2, *i = c % 2 + 2 * (r / 8) + 4 * (c / 8); break;
    default: *thread = r + 16 * half, *i = c; break;
    }
}

/* One register and its cell, or with `packed` two. What the cells were: enum sim_cell. */
static enum sim_cell load(const uint32_t *cell, const uint8_t *written, int packed, uint32_t *word) {
    *word = packed ? (cell[0] & 0xffff) | cell[1] << 16 : cell[0];
    enum sim_cell a = (enum sim_cell)written[0], b = packed ? (enum sim_cell)written[1] : SIM_CELL_WRITTEN;
    return a != SIM_CELL_WRITTEN ? a : b;
}
static void store(uint32_t *cell, uint8_t *written, int packed, uint32_t word) {
    cell[0] = packed ? (word & 0xffff) | (uint32_t)UNSTATED << 16 : word;
    written[0] = SIM_CELL_WRITTEN;
    if (!packed) return;
    cell[1] = word >> 16 | (uint32_t)UNSTATED << 16;
    written[1] = SIM_CELL_WRITTEN;
}

SIM_HEAD(move_cells) { /* x: shape; y: stores; count: packed; target: columns to the second half; n: registers */
    struct sim_warp_hopper *h = w->hopper;
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    const uint32_t address = W32(in->o[0])[0] + (uint32_t)in->imm, told = address >> 16, column = address & 0xffff,
                   part = w->index % 4, lane = (told & ~QUARTER) | 32 * part, width = 1u + in->count,
                   halves = in->x == TWICE_32 ? 2 : 1;
    const uint32_t rows = shapes[in->x].rows, columns = in->n / shapes[in->x].registers * shapes[in->x].columns;
    EACH_OF(m) if (W32(in->o[0])[l] != W32(in->o[0])[0]) {
        sim_find(w, in, 1u << l, SIM_F_DIVERGENCE, "lanes of the warp give different addresses of tensor memory");
        return SIM_FAULT;
    }
    const int beyond = told >= SIM_TM_LANES || lane % 32 + rows > 32 || lane % 16;
    if (beyond || (told & QUARTER && told / 32 != part))
        sim_find(w, in, m, SIM_F_BOUNDS, "%u lanes of tensor memory from %u on: the warp reaches %u to %u", rows, told,
                 32 * part, 32 * part + 31);
    if (beyond) return SIM_FAULT;
    const uint32_t lanes = rows > 16 ? 3 : 1u << lane % 32 / 16; /* parts of 16 */
    uint32_t *from = in->y ? &h->stores_from : &h->loads_from;
    for (uint32_t k = 0; k < halves; k++)
        if (sim_tensor_touch(w, in, w->cta, lanes << 2 * part, column + k * in->target, columns * width,
                             sim_tensor_lane_actor(w), h->tensor_time, in->y ? SIM_CELLS_WRITTEN : SIM_CELLS_READ))
            return SIM_FAULT;
    if (!*from) *from = h->tensor_time;
    if (!in->y && !h->loads_open) h->loads_open = h->tensor_time;
    enum sim_cell worst = SIM_CELL_WRITTEN;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns * halves; c++) {
            uint32_t thread = 0, i = 0, k = c / columns, first = column + k * in->target + c % columns * width;
            place((enum shape)in->x, r, c % columns, k, &thread, &i);
            uint32_t *cell = &t->cells[lane + r][first], *word = &W32(w->list[in->list + i])[thread];
            uint8_t *written = &t->written[lane + r][first];
            if (in->y) {
                store(cell, written, in->count, *word);
                continue;
            }
            enum sim_cell was = load(cell, written, in->count, word);
            if (was != SIM_CELL_WRITTEN) worst = was;
        }
    if (worst != SIM_CELL_WRITTEN)
        sim_find(w, in, m, SIM_F_UNINITIALISED, "reads columns %u to %u of tensor memory, %s", column,
                 column + columns * width - 1,
                 worst == SIM_CELL_NEVER ? "not all of which were written"
                                         : "where a shift has left what the ISA does not state");
    if (!in->y) sim_watch_load(w, in, h->n_products++, in->n);
    return SIM_NEXT;
}

static void read_words(struct sim_decoder *d, struct sim_ins *in, int stores) {
    unsigned count = 0;
    if (!sim_word(d, "sync") || !sim_word(d, "aligned")) return;
    uint32_t shape = 0;
    while (shape < SHAPES && !sim_word(d, shapes[shape].word)) shape++;
    for (unsigned n = 1; n <= 128 && !count; n *= 2) {
        char word[8];
        snprintf(word, sizeof word, "x%u", n);
        if (sim_word(d, word)) count = n;
    }
    if (shape == SHAPES || !count) return;
    in->count = (uint8_t)sim_word(d, stores ? "unpack::16b" : "pack::16b");
    if (sim_last_type(d) != PTX_B32) return;
    const uint32_t twice = shape == TWICE_32, first = stores ? 0 : 1, data = stores ? 1 + twice : 0;
    sim_want(d, 2 + twice, 2 + twice);
    if (d->failed) return;
    in->x = (uint8_t)shape, in->y = (uint8_t)stores;
    sim_address(d, in, &d->o[first], 0);
    if (in->wide) sim_refuse(d, "an address of tensor memory has 32 bits");
    if (twice) in->target = (uint32_t)sim_number(d, &d->o[first + 1]);
    if (in->target > SIM_TM_COLUMNS) sim_refuse(d, "the second half's column");
    in->list = d->program->n_list;
    in->n = sim_list(d, &d->o[data], 32, !stores);
    if (in->n != count * shapes[shape].registers || in->n > 128) sim_refuse(d, "%u registers", in->n);
    in->sync = SIM_ALIGNED;
    in->exec = move_cells;
}
SIM_DECODER(tensor_load) { read_words(d, in, 0); }
SIM_DECODER(tensor_store) { read_words(d, in, 1); }
