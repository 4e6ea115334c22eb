/* SPDX-License-Identifier: MIT
 * The floating-point mode of the calling thread: MXCSR on x86 (Intel SDM vol. 1, 10.2.3), the rounding mode alone
 * elsewhere. */
#include "base/float_mode.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

#if defined(__SSE2__)
enum {
    FTZ = 0x8000,
    DAZ = 0x40,
    ALL_MASKED = 0x1f80, /* what a process begins with, to nearest */
    FLAGS = 0x3f         /* of exceptions that have happened */
};

uint32_t attn_base_float_mode(void) { return _mm_getcsr(); }
/* Loading MXCSR costs more than reading it, and holds up what follows. */
void attn_base_float_end(uint32_t mode) {
    if (_mm_getcsr() != mode) _mm_setcsr(mode);
}

uint32_t attn_base_float_begin(int32_t subnormals) {
    static const uint32_t bits[] = {
        [ATTN_SUBNORMALS_READ] = FTZ, [ATTN_SUBNORMALS_EXACT] = 0, [ATTN_SUBNORMALS_FLUSH] = FTZ | DAZ};
    const uint32_t mode = _mm_getcsr(), wanted = ALL_MASKED | bits[subnormals];
    if ((mode ^ wanted) & ~(uint32_t)FLAGS) _mm_setcsr(wanted);
    return mode;
}
uint32_t attn_base_float_keep_subnormals(void) {
    const uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode & ~(uint32_t)FTZ);
    return mode;
}
#else
uint32_t attn_base_float_mode(void) { return (uint32_t)fegetround(); }
void attn_base_float_end(uint32_t mode) { fesetround((int)mode); }

uint32_t attn_base_float_begin(int32_t subnormals) {
    const uint32_t mode = attn_base_float_mode();
    (void)subnormals; /* flushed where the caller flushes */
    fesetround(FE_TONEAREST);
    return mode;
}
uint32_t attn_base_float_keep_subnormals(void) { return attn_base_float_mode(); }
#endif
