/* SPDX-License-Identifier: MIT
 * The body of every ukr_<isa>.c: both element types of the row and product templates, and the table. The includer has
 * defined the vector layer (v32, v64), ISA, TABLE, the tile sizes (MR32 = MR64 = MR, FEW, WIDE, NT_ROWS),
 * PREFETCH_ROWS, HALF_LOADS if there are load_bf16, load_f16 and their tails, and widen, narrow, transpose_f32,
 * transpose_f64; VEC_EXP2_MINUS if x becomes 2^(x log2 e - offset) in less than e^(x - less) takes (f32); LANES_TABLE
 * and PASS(dtype) if there are these tables. */
#include "cpu/vec/unroll.h"

enum { TILE_ROWS = MR };

/* Operands in the type of their sums. */
#define BTYPE                  REAL
#define BLOAD(p)               V(load)(p)
#define BLOAD_TAIL(p, n, mask) V(load_tail)(p, mask)
#define BSTEP                  1
#define MADD                   V(fma)
#define MFIRST(a, b)           ((a) * (b))
#define SKINNY_WIDE            SKINNY
enum {
#ifdef VEC_SCALES
    EXP_MANY = 4
#else
    EXP_MANY = 2
#endif
};

#define REAL       double
#define VEC        v64
#define V(op)      v64_##op
#define LANES      V64_LANES
#define F(name)    name##_f64
#define EXP_MAGIC  0x1.8p52
#define EXP_LOG2E  0x1.71547652b82fep0
#define EXP_LN2_HI 0x1.62e42feep-1
#define EXP_LN2_LO 0x1.a39ef35793c76p-33
#define EXP_LOW    -709.0
#define EXP_HIGH   710.0
#define EXP_POLY                                                                                                       \
    {                                                                                                                  \
        0x1.0000000000000p-1, 0x1.555555555555bp-3, 0x1.5555555555502p-5, 0x1.111111110ec1ap-7, 0x1.6c16c16c3076ep-10, \
            0x1.a01a01b398f4cp-13, 0x1.a01a01360233bp-16, 0x1.71ddefdc9bfb3p-19, 0x1.27e5b4e704ee2p-22,                \
            0x1.af6c60fd077fdp-26, 0x1.1e3cea0fb6833p-29                                                               \
    }
#define EXP_SCALED_LOW -800.0
#define EXP_LN2        0x1.62e42fefa39efp-1
#define EXP_LN2_REST   0x1.abc9e3b39803fp-56
#define EXP_SCALED_POLY                                                                                                \
    {                                                                                                                  \
        0x1.0000000000000p+0, 0x1.000000000000bp-1, 0x1.55555555554b3p-3, 0x1.555555555017ap-5, 0x1.111111112f8a3p-7,  \
            0x1.6c16c18560763p-10, 0x1.a01a0111b5b2bp-13, 0x1.a019974c7b816p-16, 0x1.71df48e3706bcp-19,                \
            0x1.28afa5f92a310p-22, 0x1.ad5971d43969fp-26                                                               \
    }
#include "cpu/ukr/dot_tpl.h"
#include "cpu/ukr/gemm_tpl.h"
#include "cpu/ukr/row_tpl.h"
#undef REAL
#undef VEC
#undef V
#undef LANES
#undef F
#undef EXP_MAGIC
#undef EXP_LOG2E
#undef EXP_LN2_HI
#undef EXP_LN2_LO
#undef EXP_LOW
#undef EXP_HIGH
#undef EXP_POLY
#undef EXP_SCALED_LOW
#undef EXP_LN2
#undef EXP_LN2_REST
#undef EXP_SCALED_POLY

#define REAL       float
#define VEC        v32
#define V(op)      v32_##op
#define LANES      V32_LANES
#define F(name)    name##_f32
#define EXP_MAGIC  0x1.8p23f
#define EXP_LOG2E  0x1.715476p0f
#define EXP_LN2_HI 0x1.63p-1f /* few bits: n * hi is exact without a fused multiply-add, too */
#define EXP_LN2_LO -0x1.bd0106p-13f
#define EXP_LOW    -88.0f
#define EXP_HIGH   89.0f
#define EXP_POLY                                                                                                       \
    { 0x1.fffffcp-2f, 0x1.55549p-3f, 0x1.5558f4p-5f, 0x1.123a6cp-7f, 0x1.6a234cp-10f }
#define EXP_SCALED_LOW -120.0f /* 2^-173: no f32, not even a denormal */
#define EXP_LN2        0x1.62e43p-1f
#define EXP_LN2_REST   0.0f
#define EXP_SCALED_POLY                                                                                                \
    { 0x1.fffff6p-1f, 0x1.fffdc6p-2f, 0x1.555a6cp-3f, 0x1.573a6cp-5f, 0x1.0fa82ap-7f }
#ifdef VEC_EXP2_MINUS
#define EXP2_ONE_STEP VEC_EXP2_MINUS
#endif
#include "cpu/ukr/dot_tpl.h"
#include "cpu/ukr/gemm_tpl.h"
#include "cpu/ukr/row_tpl.h"
#undef F
#ifdef HALF_LOADS /* products with 16-bit rows as they are in memory */
#undef MR
#undef SKINNY_WIDE
#undef BTYPE
#undef BLOAD
#undef BLOAD_TAIL
#define MR                     4
#define SKINNY_WIDE            2
#define BTYPE                  uint16_t
#define BLOAD(p)               load_bf16(p)
#define BLOAD_TAIL(p, n, mask) load_tail_bf16(p, n)
#define F(name)                name##_f32_bf16
#include "cpu/ukr/dot_tpl.h"
#include "cpu/ukr/gemm_tpl.h"
#undef F
#undef BLOAD
#undef BLOAD_TAIL
#define BLOAD(p)               load_f16(p)
#define BLOAD_TAIL(p, n, mask) load_tail_f16(p, n)
#define F(name)                name##_f32_f16
#include "cpu/ukr/dot_tpl.h"
#include "cpu/ukr/gemm_tpl.h"
#undef F
static void gemm_half(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                      int32_t dtype, float *c, int64_t ldc, int accumulate) {
    (dtype == ATTN_F16 ? gemm_f32_f16 : gemm_f32_bf16)(m, n, k, a, lda, 1, b, ldb, c, ldc, accumulate);
}
static void gemm_nt_half(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                         int32_t dtype, float *c, int64_t ldc) {
    (dtype == ATTN_F16 ? gemm_nt_f32_f16 : gemm_nt_f32_bf16)(m, n, k, a, lda, b, ldb, c, ldc);
}
#endif

#define BOTH(entry) .entry##_f32 = entry##_f32, .entry##_f64 = entry##_f64
const struct attn_ukr TABLE = {
    .isa = ISA,
    .mr32 = TILE_ROWS,
    .nr32 = 2 * V32_LANES,
    .mr64 = TILE_ROWS,
    .nr64 = 2 * V64_LANES,
    BOTH(gemm),
    BOTH(gemm_nt),
    BOTH(max),
    BOTH(exp),
    BOTH(exp_lse),
    BOTH(softcap),
    BOTH(dsoftmax),
    BOTH(score_bwd),
    BOTH(scale),
    BOTH(mul),
    BOTH(alibi),
    BOTH(add),
    BOTH(hide),
    BOTH(dot),
    BOTH(finite),
    BOTH(transpose),
#ifdef HALF_LOADS
    .gemm_half = gemm_half,
    .gemm_nt_half = gemm_nt_half,
#endif
#ifdef LANES_TABLE
    .transposed = &LANES_TABLE,
#endif
#ifdef DECODE
    .decode_f32 = &DECODE(f32),
    .decode_f16 = &DECODE(f16),
    .decode_bf16 = &DECODE(bf16),
#endif
    .widen = widen,
    .narrow = narrow,
};
