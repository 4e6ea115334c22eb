/* SPDX-License-Identifier: MIT
 * Words of sm_100 for the simulator's test kernels (tests/sim/blackwell_*.cu), for one CTA (G 1) or a pair (G 2). Not
 * for the library's kernels. */
#ifndef TESTS_SIM_BLACKWELL_TCGEN05_H
#define TESTS_SIM_BLACKWELL_TCGEN05_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"

struct __align__(64) tensor_map {
    unsigned char bytes[128];
};
#define WORDS static __device__ __forceinline__

WORDS void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
WORDS void fetch(uint32_t to, const tensor_map *map, uint32_t barrier, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}
/* 8 lines of 128 bytes a pattern; what is apart: patterns along the lines, and across them. */
WORDS uint64_t desc(uint32_t address, uint32_t leading) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 46 | (uint64_t)2 << 61;
}
/* An instruction descriptor: bf16, sums in f32. */
WORDS uint32_t shape_of(int m, int n, int n_major) {
    return 1u << 4 | 1u << 7 | 1u << 10 | (uint32_t)n_major << 16 | (uint32_t)(n / 8) << 17 | (uint32_t)(m / 16) << 24;
}
template <int G> WORDS void product(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(shape), "r"(add), "n"(G)
                 : "memory");
}
WORDS void product_from_cells(uint32_t d, uint32_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
                 "r"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}
WORDS void commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}
WORDS void before(void) { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
WORDS void after(void) { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
WORDS void wait_loads(void) { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
WORDS void wait_stores(void) { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
template <int G> WORDS void alloc(uint32_t slot, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot), "r"(columns), "n"(G)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(G));
}
template <int G> WORDS void dealloc(uint32_t cells, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(cells), "r"(columns), "n"(G));
}
WORDS void load16(uint32_t x[16], uint32_t address) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
        "%15}, [%16];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7]), "=r"(x[8]),
          "=r"(x[9]), "=r"(x[10]), "=r"(x[11]), "=r"(x[12]), "=r"(x[13]), "=r"(x[14]), "=r"(x[15])
        : "r"(address));
}
WORDS void store8(uint32_t address, const uint32_t x[8]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(address),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7])
                 : "memory");
}
#endif
