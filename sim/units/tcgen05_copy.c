/* SPDX-License-Identifier: MIT
 * tcgen05.cp, from shared to tensor memory, and tcgen05.shift: started by one thread, in one queue with the CTA's
 * products. Row r of a copy goes to these lanes:
 *   128x256b, 128x128b   r       4x256b   32 r, and on from the address' lane
 *   64x128b.warpx2::02_13   r, 64 + r    64x128b.warpx2::01_23   r % 32 + 64 (r / 32) and 32 on    32x128b.warpx4   all
 * r + 32 i Rows of a descriptor are those of an operand with k along its rows. The direction of a shift is not stated
 * by the ISA: cells that depend on it count as unknown. */
#include "checks/report.h"
#include "exec/exec.h"
#include "units/tcgen05_product.h"

#include <stdlib.h>
#include <string.h>

static const struct shape {
    const char *word, *multicast;
    uint8_t rows, chunks;        /* chunks of a row */
    uint8_t step, copies, apart; /* row r: lane r, but 4x256b; copies of all rows, that many lanes apart */
} shapes[] = {
    {"128x256b", NULL, 128, 2, 1, 1, 0},
    {"128x128b", NULL, 128, 1, 1, 1, 0},
    {"4x256b", NULL, 4, 2, 32, 1, 0},
    {"64x128b", "warpx2::02_13", 64, 1, 1, 2, 64},
    {"64x128b", "warpx2::01_23", 64, 1, 1, 2, 32},
    {"32x128b", "warpx4", 32, 1, 1, 4, 32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, CP_01_23 = 4 };

struct copy {
    uint32_t number, ctas, to, bits, n; /* bits: of packed values, or 0 */
    const struct shape *shape;
    uint32_t chunks[256];
};

static uint32_t lane_of(const struct shape *s, uint32_t r) {
    if (s == &shapes[CP_01_23]) return r % 32 + 64 * (r / 32);
    return r * s->step;
}

static int copy(struct sim_flight *f) {
    struct sim_tensor_memory *own = f->w->cta->hopper->tensor;
    const struct copy *c = f->data;
    if (own->n_done != c->number) return 0;
    for (uint32_t v = 0; v < c->ctas; v++) {
        const struct sim_cta *cta = tensor_cta(f->w, c->ctas, v);
        struct sim_tensor_memory *t = cta->hopper->tensor;
        for (uint32_t i = 0; i < c->n; i++) {
            const uint32_t column = (c->to & 0xffff) + i % c->shape->chunks * 4;
            uint8_t bytes[16];
            if (c->bits)
                tensor_unpack(cta->shared + c->chunks[i], c->bits, bytes);
            else
                memcpy(bytes, cta->shared + c->chunks[i], 16);
            for (uint32_t k = 0; k < c->shape->copies; k++) {
                uint32_t lane = (c->to >> 16) + lane_of(c->shape, i / c->shape->chunks) + k * c->shape->apart;
                memcpy(&t->cells[lane][column], bytes, 16);
                memset(&t->written[lane][column], SIM_CELL_WRITTEN, 4);
            }
        }
    }
    own->n_done++;
    return 1;
}

static enum sim_step start(struct sim_warp *w, const struct sim_ins *in, uint32_t lane,
                           int (*step)(struct sim_flight *), void *data) {
    w->cta->hopper->tensor->n_products++;
    struct sim_flight f = {
        .in = in, .w = w, .lane = lane, .kind = SIM_FLIGHT_TENSOR, .stages = 1, .step = step, .data = data};
    return sim_flight_add(w->cta->cluster, f) < 0 ? SIM_FAULT : SIM_NEXT;
}

SIM_HEAD(start_copy) { /* x: shape; y: bits; o[0]: to, o[1]: descriptor */
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    const uint32_t l = (uint32_t)__builtin_ctz(m), actor = sim_tensor_core_actor(w->cta),
                   time = t->base + t->n_products + 1;
    const struct shape *s = &shapes[in->x];
    if (sim_tensor_starts(w, in, m)) return SIM_FAULT;
    struct copy *c = calloc(1, sizeof *c);
    if (!c) abort();
    *c = (struct copy){.number = t->n_products, .ctas = in->z, .bits = in->y, .shape = s};
    c->to = W32(in->o[0])[l] + (uint32_t)in->imm;
    c->n = tensor_chunks(W64(in->o[1])[l], 0, s->rows, s->chunks, 1, c->chunks);
    int bad = 0;
    if (!c->n) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "the descriptor 0x%llx: swizzle or version",
                 (unsigned long long)W64(in->o[1])[l]);
        bad = 1;
    } else if (c->to >> 16 > (s->rows == 4 ? 31 : 0)) {
        sim_find(w, in, m, SIM_F_BOUNDS, "a copy to lane %u of tensor memory: %s", c->to >> 16,
                 s->rows == 4 ? "4 rows begin at lane 0 to 31" : "it begins at lane 0");
        bad = 1;
    } else if (c->to % 4) {
        sim_find(w, in, m, SIM_F_ALIGNMENT, "a copy to column %u of tensor memory, not a multiple of 4",
                 c->to & 0xffff);
        bad = 1;
    }
    bad = bad || sim_tensor_offsets(w, in, c->chunks, c->n, 'S');
    for (uint32_t v = 0; v < c->ctas && !bad; v++) {
        struct sim_cta *cta = tensor_cta(w, c->ctas, v);
        enum sim_found found = w->cta->cluster->launch->options.races ? SIM_FOUND_NOTHING : SIM_FOUND_FAULT;
        for (uint32_t i = 0; i < c->n && found < SIM_FOUND_FAULT; i++)
            found = sim_async_read(w, in, cta, 0, c->chunks[i], 16, actor, time, found);
        cta->hopper->tensor->issuer = w->actor;
        bad = sim_tensor_touch(w, in, cta, SIM_TM_ALL, c->to & 0xffff, 4u * s->chunks, actor, time, SIM_CELLS_WRITTEN);
    }
    if (!bad) return start(w, in, l, copy, c);
    free(c);
    return SIM_FAULT;
}

struct shift {
    uint32_t number, ctas, cell;
};
static int shift(struct sim_flight *f) {
    struct sim_tensor_memory *own = f->w->cta->hopper->tensor;
    const struct shift *s = f->data;
    if (own->n_done != s->number) return 0;
    for (uint32_t v = 0; v < s->ctas; v++) {
        struct sim_tensor_memory *t = tensor_cta(f->w, s->ctas, v)->hopper->tensor;
        const uint32_t first = s->cell >> 16;
        for (uint32_t column = s->cell & 0xffff; column < (s->cell & 0xffff) + 8; column++) {
            uint32_t old[32];
            uint8_t was[32];
            for (uint32_t r = 0; r < 32; r++)
                old[r] = t->cells[first + r][column], was[r] = t->written[first + r][column];
            for (uint32_t r = 0; r < 32; r++) { /* what a shift to higher and one to lower lanes would leave here */
                uint32_t up = r ? r - 1 : 0, down = r < 31 ? r + 1 : 31;
                int known = old[up] == old[down] && was[up] == SIM_CELL_WRITTEN && was[down] == SIM_CELL_WRITTEN;
                t->cells[first + r][column] = known ? old[up] : 0xfbfbfbfb;
                t->written[first + r][column] = known ? SIM_CELL_WRITTEN : SIM_CELL_UNKNOWN;
            }
        }
    }
    own->n_done++;
    return 1;
}
SIM_HEAD(start_shift) { /* o[0]: where */
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    const uint32_t l = (uint32_t)__builtin_ctz(m), actor = sim_tensor_core_actor(w->cta),
                   time = t->base + t->n_products + 1, cell = W32(in->o[0])[l] + (uint32_t)in->imm;
    if (sim_tensor_starts(w, in, m)) return SIM_FAULT;
    if (cell >> 16 & 31 || cell >> 16 >= SIM_TM_LANES) {
        sim_find(w, in, m, SIM_F_ALIGNMENT, "a shift of lanes from %u on: 0, 32, 64 or 96", cell >> 16);
        return SIM_FAULT;
    }
    for (uint32_t v = 0; v < in->z; v++) {
        struct sim_cta *cta = tensor_cta(w, in->z, v);
        cta->hopper->tensor->issuer = w->actor;
        if (sim_tensor_touch(w, in, cta, 3u << 2 * (cell >> 21), cell & 0xffff, 8, actor, time, SIM_CELLS_WRITTEN))
            return SIM_FAULT;
    }
    struct shift *s = malloc(sizeof *s);
    if (!s) abort();
    *s = (struct shift){t->n_products, in->z, cell};
    return start(w, in, l, shift, s);
}

SIM_DECODER(tensor_copy) {
    uint32_t i = 0;
    while (i < N_SHAPES && !(shapes[i].multicast && sim_word(d, shapes[i].multicast))) i++;
    if (i < N_SHAPES) {
        if (!sim_word(d, shapes[i].word)) return;
    } else {
        for (i = 0; i < N_SHAPES && (shapes[i].multicast || !sim_word(d, shapes[i].word));) i++;
        if (i == N_SHAPES) return;
    }
    if (sim_word(d, "b8x16")) {
        in->y = sim_word(d, "b6x16_p32") ? 6 : sim_word(d, "b4x16_p64") ? 4 : 0;
        if (!in->y) return;
    }
    sim_want(d, 2, 2);
    if (d->failed) return;
    in->x = (uint8_t)i;
    sim_address(d, in, &d->o[0], 0);
    if (in->wide) sim_refuse(d, "an address of tensor memory has 32 bits");
    in->o[1] = sim_source(d, &d->o[1], 64);
    in->exec = start_copy;
}
SIM_DECODER(tensor_shift) {
    if (!sim_word(d, "down")) return;
    sim_want(d, 1, 1);
    if (d->failed) return;
    sim_address(d, in, &d->o[0], 0);
    if (in->wide) sim_refuse(d, "an address of tensor memory has 32 bits");
    in->exec = start_shift;
}
