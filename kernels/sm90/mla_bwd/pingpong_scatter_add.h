/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu: dKV of a tile by its owner, all of whose sums it adds to memory itself, 64 slots x 64
 * columns at a time in one set of 32 sums. Products of 32 columns take the matrix unit as long, P^T and dS^T coming
 * from registers; only the first, under which the warpgroup still has dQ under way, are of that size. */
#ifndef ATTN_SM90_MLA_BWD_PINGPONG_SCATTER_ADD_H
#define ATTN_SM90_MLA_BWD_PINGPONG_SCATTER_ADD_H
#include "kernels/sm90/mla_bwd/scatter_add.h"

/* All slices. first: the products of half of the first have been started there. */
static __device__ __forceinline__ void do_all_added(uint32_t shared, float first[16], const struct tile *t,
                                                    const struct scatter_dst *to, int last) {
    float b[16];
    multiply<0>(b, t, 0, 1);
    wgmma_wait(1);
    wgmma_hold(first, 16);
    write_columns(first, to, 0);
    wgmma_wait(0);
    wgmma_hold(b, 16);
    if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE);
    write_columns(b, to, 32);
    float a[32];
    multiply_slice<0>(a, t, slice_of(1));
    do_slices<1>(shared, a, t, last, [=](const float *d, uint32_t column) {
        write_columns(d, to, column);
        write_columns(d + 16, to, column + 32);
    });
}
#endif
