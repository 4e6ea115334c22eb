/* SPDX-License-Identifier: MIT
 * Vectors of tcgen05.cp in every shape, swizzle and unpacking, for one CTA and a pair, and of copies that gather four
 * rows, with the mbarrier in the other CTA of the pair. */
#include "blackwell_golden.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *word;
    uint8_t rows, units; /* units of 16 bytes in a row */
} shapes[] = {{"128x256b", 128, 2},
              {"128x128b", 128, 1},
              {"4x256b", 4, 2},
              {"64x128b.warpx2::02_13", 64, 1},
              {"64x128b.warpx2::01_23", 64, 1},
              {"32x128b.warpx4", 32, 1}};
enum { N_SHAPES = 6, COLUMNS = 32, TO = 12 };

/* The row that a lane receives, or -1. */
static int row_of_lane(uint32_t shape, uint32_t lane, uint32_t begin) {
    uint32_t warp = lane / 32;
    switch (shape) {
    case 2: return lane % 32 == begin ? (int)warp : -1;
    case 3: return (int)(32 * (warp & 1) + lane % 32);
    case 4: return (int)(32 * (warp >> 1) + lane % 32);
    case 5: return (int)(lane % 32);
    default: return (int)lane;
    }
}
static void unpacked(const uint8_t *unit, uint32_t bits, uint8_t out[16]) {
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = 0;
        for (uint32_t b = 0; b < bits; b++)
            out[i] |= (uint8_t)((unit[(i * bits + b) / 8] >> (i * bits + b) % 8 & 1) << (b + (bits == 4 ? 2 : 0)));
    }
}

static int copy(uint32_t i, struct bg_case *c) {
    static const char *const packings[] = {"", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64"};
    static const uint8_t bits[] = {8, 6, 4};
    if (i >= N_SHAPES * 4 * 3) return 0;
    const uint32_t s = i % N_SHAPES, swizzle = i / N_SHAPES % 4, packing = i / N_SHAPES / 4;
    const uint32_t wide = 16u << swizzle, begin = s == 2 ? swizzle * 7 : 0;
    c->ctas = swizzle == 1 ? 2 : 1;
    snprintf(c->name, sizeof c->name, "cp_%s_swizzle%u%s", shapes[s].word, swizzle ? wide : 0, packings[packing]);
    uint64_t state = bg_seed(c->name);
    for (uint32_t v = 0; v < c->ctas; v++) {
        for (uint32_t l = 0; l < BG_LANES; l++)
            for (uint32_t k = 0; k < COLUMNS; k++) c->cells[v][l][k] = bg_random(&state);
        for (uint32_t k = 0; k < BG_IMAGE; k++) c->image[v][k] = (uint8_t)bg_random(&state);
    }
    const struct bg_layout l = {.swizzle = (uint8_t)swizzle,
                                .unit = swizzle == 3 ? 2 : 0,
                                .start = 2048,
                                .leading = swizzle ? 16 : 4096,
                                .stride = swizzle == 2 ? 8 * wide + 1024 : 8 * wide};
    bg_begin(c, COLUMNS);
    bg_keep(c, COLUMNS);
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t lane = 0; lane < BG_LANES; lane++) {
            int row = row_of_lane(s, lane, begin);
            for (uint32_t u = 0; row >= 0 && u < shapes[s].units; u++) {
                const uint8_t *unit = c->image[v] + bg_unit(&l, (uint32_t)row, u);
                uint8_t bytes[16];
                if (packing)
                    unpacked(unit, bits[packing], bytes);
                else
                    memcpy(bytes, unit, 16);
                memcpy(&c->want[v][lane][TO + 4 * u], bytes, 16);
            }
        }
    bg_one(c);
    bg_add(c,
           "and.b32 %%r11, %%r1, 262143;\nshr.u32 %%r11, %%r11, 4;\ncvt.u64.u32 %%rd6, %%r11;\n"
           "add.u64 %%rd6, %%rd6, %llu;\ntcgen05.cp.cta_group::%u.%s%s [%%r4+%u], %%rd6;\n",
           (unsigned long long)bg_descriptor(&l), c->ctas, shapes[s].word, packings[packing], (begin << 16) + TO);
    bg_commit(c);
    bg_wait(c);
    bg_dump(c, COLUMNS);
    bg_end(c);
    return 1;
}

/* Four rows of 64 bytes to shared memory; of a pair each CTA fetches its own and tells the first one's mbarrier. */
static int gather(uint32_t i, struct bg_case *c) {
    static const uint32_t rows[2][4] = {{3, 60, 17, 200}, {129, 0, 5, 77}};
    enum { WIDE = 64, ROWS = 256, BYTES = 64, FIRST = 16, TO_BYTE = 4096 };
    if (i >= 4) return 0;
    const uint32_t swizzle = i % 2 ? 2 : 0;
    c->ctas = 1 + i / 2;
    snprintf(c->name, sizeof c->name, "gather4_cta%u_swizzle%u", c->ctas, swizzle ? 64 : 0);
    uint64_t state = bg_seed(c->name);
    for (uint32_t k = 0; k < BG_IMAGE; k++) c->image[0][k] = c->image[1][k] = (uint8_t)bg_random(&state);
    c->type = 2, c->swizzle = (int)swizzle, c->rank = 2; /* u32 */
    c->dims[0] = WIDE, c->dims[1] = ROWS, c->stride = WIDE * 4, c->box[0] = BYTES / 4, c->box[1] = 1;
    memset(c->care, 0, sizeof c->care);
    const struct bg_layout l = {.swizzle = swizzle ? BG_64 : BG_NONE, .stride = 512};
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t k = 0; k < BYTES / 4; k++) {
                const uint32_t byte = swizzle ? bg_unit(&l, r, k / 4) + k % 4 * 4 : r * BYTES + 4 * k, word = byte / 4;
                c->care[v][word / 16][word % 16] = UINT32_MAX;
                memcpy(&c->want[v][word / 16][word % 16], c->image[0] + 4 * (rows[v][r] * WIDE + FIRST + k), 4);
            }
    bg_begin(c, 0);
    bg_add(c,
           "mov.b64 %%rd7, map;\ncvta.param.u64 %%rd7, %%rd7;\nadd.u32 %%r11, %%r1, %u;\n"
           "setp.eq.u32 p, %%r2, 0;\nmov.b32 %%r12, %u;\n",
           TO_BYTE, FIRST);
    for (uint32_t r = 0; r < 4; r++) bg_add(c, "selp.b32 %%r%u, %u, %u, p;\n", 20 + r, rows[0][r], rows[1][r]);
    bg_add(c, "setp.ne.u32 p, %%r0, 0;\n@p bra SKIP;\nmapa.shared::cluster.u32 %%r13, %%r6, 0;\n");
    bg_add(c, "setp.eq.u32 p, %%r2, 0;\n@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%r6], %u;\n",
           4 * BYTES * c->ctas);
    bg_add(c,
           "cp.async.bulk.tensor.2d.shared::%s.global.tile::gather4.mbarrier::complete_tx::bytes%s "
           "[%%r11], [%%rd7, {%%r12, %%r20, %%r21, %%r22, %%r23}], [%%r%u];\nSKIP:\nbar.sync 0;\n",
           c->ctas == 2 ? "cluster" : "cta", c->ctas == 2 ? ".cta_group::2" : "", c->ctas == 2 ? 13 : 6);
    /* CTA 0 waits for the bytes of both; the other one for CTA 0 */
    bg_add(c,
           "setp.ne.u32 p, %%r2, 0;\n@p bra DONE;\nWAIT:\n"
           "mbarrier.try_wait.parity%s.shared::cta.b64 p, [%%r6], 0;\n@!p bra WAIT;\nDONE:\n%s"
           "shr.u32 %%r10, %%r0, 2;\nand.b32 %%r11, %%r0, 3;\nmov.b32 %%r12, 0;\n",
           c->ctas == 2 ? ".acquire.cluster" : "",
           c->ctas == 2 ? "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" : "bar.sync 0;\n");
    /* 64 words: thread t below 64 writes word t to row t / 16 */
    bg_add(c,
           "setp.gt.u32 p, %%r0, 63;\n@p bra END;\nshl.b32 %%r10, %%r0, 2;\nadd.u32 %%r10, %%r10, %%r1;\n"
           "ld.shared.b32 %%r11, [%%r10+%u];\nshr.u32 %%r12, %%r0, 4;\nand.b32 %%r13, %%r0, 15;\n"
           "ld.param.u64 %%rd8, [out];\nmad.wide.u32 %%rd8, %%r2, %d, %%rd8;\nmad.wide.u32 %%rd8, %%r12, %d, %%rd8;\n"
           "mad.wide.u32 %%rd8, %%r13, 4, %%rd8;\nst.global.b32 [%%rd8], %%r11;\nEND:\n",
           TO_BYTE, BG_LANES * BG_COLUMNS * 4, BG_COLUMNS * 4);
    bg_end(c);
    return 1;
}
int bg_copies(uint32_t i, struct bg_case *c) { return i < N_SHAPES * 12 ? copy(i, c) : gather(i - N_SHAPES * 12, c); }
