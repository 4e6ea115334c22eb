/* SPDX-License-Identifier: MIT
 * ldmatrix, stmatrix, movmatrix: 8x8 tiles of 16-bit elements between shared memory and the fragments of mma. Lane
 * 4 g + t holds elements 2t and 2t+1 of row g; rows are named by lanes 8 m .. 8 m + 7 for matrix m. */
#include "machine/address.h"

#include <string.h>

static int rows_of(struct sim_warp *w, const struct sim_ins *in, enum sim_access access, uint8_t *row[SIM_LANES]) {
    uint64_t address[SIM_LANES];
    uint32_t lanes = in->count == 4 ? SIM_ALL : (1u << (8 * in->count)) - 1;
    sim_addresses(w, in, lanes, 0, address);
    return sim_resolve(w, in, lanes, (enum ptx_space)in->space, address, 16, access, row);
}

/* out[4 g + t]: elements g of rows 2t and 2t+1. */
static void turned_tile(uint8_t *const row[8], uint32_t out[SIM_LANES]) {
    uint32_t first[4][8]; /* elements g of a pair of rows */
    for (uint32_t t = 0; t < 4; t++) {
        uint16_t low[8], high[8];
        memcpy(low, row[2 * t], 16), memcpy(high, row[2 * t + 1], 16);
        for (uint32_t g = 0; g < 8; g++) first[t][g] = (uint32_t)low[g] | (uint32_t)high[g] << 16;
    }
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t t = 0; t < 4; t++) out[4 * g + t] = first[t][g];
}

SIM_HEAD(load_matrix) {
    uint8_t *row[SIM_LANES];
    (void)m;
    if (rows_of(w, in, SIM_LOAD, row)) return SIM_FAULT;
    for (uint32_t k = 0; k < in->count; k++) {
        uint32_t *out = W32(w->list[in->list + k]);
        uint8_t *const *r = row + 8 * k;
        if (!in->x) {
            for (uint32_t g = 0; g < 8; g++) memcpy(out + 4 * g, r[g], 16);
            continue;
        }
        turned_tile(r, out);
    }
    return SIM_NEXT;
}
SIM_HEAD(store_matrix) {
    uint8_t *row[SIM_LANES];
    (void)m;
    if (rows_of(w, in, SIM_STORE, row)) return SIM_FAULT;
    w->cta->cluster->changes++;
    for (uint32_t k = 0; k < in->count; k++) {
        const uint32_t *from = W32(w->list[in->list + k]);
        uint8_t *const *r = row + 8 * k;
        if (!in->x) {
            for (uint32_t g = 0; g < 8; g++) memcpy(r[g], from + 4 * g, 16);
            continue;
        }
        EACH_LANE {
            uint32_t g = l / 4, t = l % 4;
            uint16_t low = (uint16_t)from[l], high = (uint16_t)(from[l] >> 16);
            memcpy(r[2 * t] + 2 * g, &low, 2);
            memcpy(r[2 * t + 1] + 2 * g, &high, 2);
        }
    }
    return SIM_NEXT;
}
SIM_HEAD(transpose) {
    uint16_t tile[8][8];
    (void)m;
    memcpy(tile, W32(in->o[1]), sizeof tile);
    EACH_LANE {
        uint32_t g = l / 4, t = l % 4;
        W32(in->o[0])[l] = (uint32_t)tile[2 * t][g] | (uint32_t)tile[2 * t + 1][g] << 16;
    }
    return SIM_NEXT;
}

static void matrices(struct sim_decoder *d, struct sim_ins *in, int is_store) {
    sim_word(d, "sync");
    sim_word(d, "aligned");
    if (!sim_word(d, "m8n8")) return;
    in->count = sim_word(d, "x4") ? 4 : sim_word(d, "x2") ? 2 : sim_word(d, "x1") ? 1 : 0;
    in->x = (uint8_t)sim_word(d, "trans");
    in->space = sim_word(d, "shared") || sim_word(d, "shared::cta") ? PTX_SHARED : PTX_GENERIC;
    if (sim_last_type(d) != PTX_B16 || !in->count) return;
    sim_want(d, 2, 2);
    if (d->failed) return;
    sim_address(d, in, &d->o[is_store ? 0 : 1], 0);
    in->list = d->program->n_list;
    if (sim_list(d, &d->o[is_store ? 1 : 0], 32, !is_store) != in->count) return;
    in->sync = SIM_ALIGNED;
    in->exec = is_store ? store_matrix : load_matrix;
}
SIM_DECODER(ldmatrix) { matrices(d, in, 0); }
SIM_DECODER(stmatrix) { matrices(d, in, 1); }
SIM_DECODER(movmatrix) {
    sim_word(d, "sync");
    sim_word(d, "aligned");
    if (!sim_word(d, "m8n8") || !sim_word(d, "trans") || sim_last_type(d) != PTX_B16) return;
    sim_want(d, 2, 2);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], 32);
    in->o[1] = sim_source(d, &d->o[1], 32);
    in->sync = SIM_ALIGNED;
    in->exec = transpose;
}
