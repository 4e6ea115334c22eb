/* SPDX-License-Identifier: MIT
 * From counts to clocks of one multiprocessor's units: what all multiprocessors do together, divided by what one does
 * in a clock. A unit's clocks are its own: that units wait for each other is not counted. */
#include "counts/counts.h"

const struct sim_unit sim_units[SIM_N_UNITS] = {
    [SIM_UNIT_TENSOR] = {"tensor", "products"},
    [SIM_UNIT_SHARED] = {"shared memory", "operands, copies in and out, passes of threads"},
    [SIM_UNIT_CELLS] = {"tensor memory", "moves of threads, tcgen05.cp, operands A; sums of products not"},
    [SIM_UNIT_SPECIAL] = {"exp", "ex2 and the other special functions"},
    [SIM_UNIT_FMA] = {"fma", "add, mul, fma of f32, f32x2, 16 bits, f64"},
    [SIM_UNIT_ISSUE] = {"issue", "PTX instructions without moves"},
    [SIM_UNIT_CACHE] = {"L2", "sectors read and written, whether the second-level cache holds them or not"},
    [SIM_UNIT_REDUCE] = {"reductions", "bytes of red, atom and cp.reduce"},
    [SIM_UNIT_MEMORY] = {"memory", "the footprint: each sector once, with a cache that is cold and large enough"},
};

enum { WARP = 32, SECTOR = 32, PASS = 128 };

static double over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* Rates of products are of 16-bit elements; a step along k takes the same clocks with elements of any size, since it
 * has the same bytes. tcgen05: 64 rows of one CTA fill half of the unit. */
double sim_product_clocks(const struct sim_rates *r, const struct sim_product *p) {
    const double n = (double)p->parts / sim_product_parts(p);
    const double flops = 2.0 * p->m * p->n * p->k * n, like_16_bits = flops * 16 / p->k;
    switch (p->kind) {
    case SIM_WGMMA: return over(like_16_bits, r->v[SIM_RATE_WGMMA]);
    case SIM_TCGEN05: return over(like_16_bits, r->v[SIM_RATE_TCGEN05]) * (p->ctas == 1 && p->m == 64 ? 2 : 1);
    case SIM_TCGEN05_WS: return over(like_16_bits, r->v[SIM_RATE_TCGEN05]);
    default:
        return p->bytes == 8 ? over(flops, r->v[SIM_RATE_MMA_DOUBLE]) : over(flops * p->bytes / 2, r->v[SIM_RATE_MMA]);
    }
}

enum sim_unit_number sim_clocks(const struct sim_rates *r, const struct sim_counts *c, double clocks[SIM_N_UNITS]) {
#define V(member) ((double)c->v[SIM_COUNT_##member])
    clocks[SIM_UNIT_TENSOR] = 0;
    for (uint32_t i = 0; i < c->n_products; i++) clocks[SIM_UNIT_TENSOR] += sim_product_clocks(r, &c->products[i]);
    clocks[SIM_UNIT_SHARED] =
        over(V(operand_bytes) + V(cell_sources) + V(copied_in) + V(copied_async) + V(copied_out) + PASS * V(wavefronts),
             r->v[SIM_RATE_SHARED]);
    clocks[SIM_UNIT_CELLS] =
        over(V(cells_read) + V(cells_written) + V(cells_copied) + V(operand_cells), r->v[SIM_RATE_CELLS]);
    clocks[SIM_UNIT_SPECIAL] = over(WARP * V(special), r->v[SIM_RATE_SPECIAL]);
    clocks[SIM_UNIT_FMA] = over(WARP * (V(fma) + V(fma_half)), r->v[SIM_RATE_FMA]) +
                           over(WARP * V(fma_packed), r->v[SIM_RATE_FMA_PACKED]) +
                           over(WARP * V(fma_double), r->v[SIM_RATE_DOUBLE]);
    clocks[SIM_UNIT_ISSUE] = over(V(instructions) - V(moves), r->v[SIM_RATE_ISSUE]);
    clocks[SIM_UNIT_CACHE] = over(SECTOR * (V(sectors_read) + V(sectors_written)), r->v[SIM_RATE_CACHE]);
    clocks[SIM_UNIT_REDUCE] = over(V(reduced) + V(reduced_in_bulk), r->v[SIM_RATE_REDUCE]);
    clocks[SIM_UNIT_MEMORY] = over(V(footprint_read) + V(footprint_written), r->v[SIM_RATE_MEMORY]);
#undef V
    enum sim_unit_number largest = SIM_UNIT_TENSOR;
    for (int i = 1; i < SIM_N_UNITS; i++)
        if (clocks[i] > clocks[largest]) largest = (enum sim_unit_number)i;
    return largest;
}
