/* SPDX-License-Identifier: MIT
 * Dense backward in f16: the power of two that dS is multiplied with, so that it stays within the type's range. The
 * preparing kernel leaves bounds, the main kernel makes the factor of them, who rounds dQ and dK undoes it.
 *
 *   |dS| <= |P'| (g |dP| + |shift|) <= max ||dout row|| max ||v row|| + max |shift| = bound
 *
 * over the rows of a key head's group and its keys. Rows that are empty, past their end or not finite do not count:
 * what these say is 0, infinite or NaN with any factor. */
#ifndef ATTN_DEVICE_SDPA_BWD_BOUND_H
#define ATTN_DEVICE_SDPA_BWD_BOUND_H
#include "kernels/device/f16_scale.h"
#include "kernels/params/sdpa.h"

/* Parameters of a kernel: with the bounds, or without. */
template <int SCALED> struct sdpa_bwd_parameters { struct kp_sdpa_bwd bwd; };
template <> struct sdpa_bwd_parameters<1> : kp_sdpa_bwd_scaled {};
static __device__ __forceinline__ const struct kp_sdpa_bwd_scaled *scaled_of(const struct kp_sdpa_bwd *p) {
    return (const struct kp_sdpa_bwd_scaled *)p;
}
#endif
