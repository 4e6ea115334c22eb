/* SPDX-License-Identifier: MIT
 * A product that tcgen05.mma has started: what the instruction said (tcgen05_mma.c) for those who do it
 * (tcgen05_math.c). Column n of row m of D is in a part g of the lanes:
 *   one CTA   M 128: lane m   M 64: lane m / 16 * 32 + m % 16, 16 lanes on if D begins there
 *   one CTA, .ws   M 64: lane 64 g + m, columns N / 2   M 32: lane 32 g + m, columns N / 4
 *   a pair    M 256: CTA m / 128, lane m % 128   M 128: CTA m / 64, lane 64 g + m % 64, columns N / 2
 * A in tensor memory stands in the same lanes, so that where g counts it is there g times. CTA v of a pair has its half
 * of A's rows and of B's columns, each at the place that the one descriptor tells. */
#ifndef SIM_TCGEN05_PRODUCT_H
#define SIM_TCGEN05_PRODUCT_H
#include "units/tensor_memory.h"
#include "units/tensor_operand.h"

struct tensor_product {
    uint32_t m, n, k, number, d, a_cells; /* a_cells: address of A in tensor memory, if from_cells */
    uint8_t from_cells, accumulate, half_sums, whole, saturate, mn_a, mn_b, negate, ws;
    uint8_t ctas, groups;    /* CTAs: 1 or 2; parts of the lanes */
    uint8_t scale_d;         /* D is divided by 2 to this before the sums */
    uint8_t n_scales, ue4m3; /* of a row, 0: none */
    uint8_t id_a, id_b;      /* first byte of the scales */
    uint32_t scales_a, scales_b;
    uint32_t disabled[8]; /* lanes of D that are not written, of both CTAs */
    enum tensor_format a_format, b_format;
    uint32_t n_a, n_b, chunks_a[TENSOR_CHUNKS], chunks_b[TENSOR_CHUNKS]; /* offsets in the CTA's shared memory */
};

struct tensor_place {
    uint32_t cta, lane, column;
};
static inline struct tensor_place tensor_place(const struct tensor_product *p, uint32_t m, uint32_t n) {
    const uint32_t width = p->n / p->groups, g = n / width, rows = p->m / p->ctas, r = m % rows;
    const uint32_t half = rows == 64 && p->groups == 1; /* 16 of 32 lanes */
    return (struct tensor_place){m / rows, (half ? (p->d >> 16) + r / 16 * 32 + r % 16 : r) + 128 / p->groups * g % 128,
                                 n % width};
}
static inline struct sim_cta *tensor_cta(const struct sim_warp *w, uint32_t ctas, uint32_t v) {
    uint32_t first = ctas == 2 ? w->cta->rank & ~1u : w->cta->rank;
    return &w->cta->cluster->ctas[first + v];
}

/* The step of a flight whose data is a product: 1 when done, 0 while earlier work of the CTA is not. */
int tensor_product_perform(struct sim_flight *f);
#endif
