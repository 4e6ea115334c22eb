/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: rows whose sums are not finite, in e4m3: what sdpa_hidden_values.h asks for. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_HIDDEN_VALUES_H
#define ATTN_SM90_SDPA_FWD_FP8_HIDDEN_VALUES_H
#include "kernels/sm90/sdpa_fwd_fp8/products.h"
#include "kernels/sm90/sdpa_fwd_fp8/work.h"

struct numbers_e4m3 {
    typedef uint8_t stored;
    static constexpr int INFINITIES = 0;
    static __device__ __forceinline__ float value(uint32_t x) { return unpack_e4m3(x); }
    static __device__ __forceinline__ uint32_t not_finite(uint32_t x) { return (x & 0x7f) == 0x7f; }
};
/* No softcap, no ALiBi. */
static __device__ __forceinline__ float modified_product(const struct kp_sdpa_fwd *, const struct work *, int, int,
                                                         float s) {
    return s;
}
#include "kernels/device/sdpa_hidden_values.h"
#endif
