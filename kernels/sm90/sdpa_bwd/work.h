/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_pair.cu: what a CTA, or a pair of them, works on. The configuration of the variant,
 * and what stands where in shared memory: layout.h, pair_layout.h. */
#ifndef ATTN_SM90_SDPA_BWD_WORK_H
#define ATTN_SM90_SDPA_BWD_WORK_H
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/shared.h"
#if CFG_PAIR
#include "kernels/sm90/sdpa_bwd/pair_layout.h"
#else
#include "kernels/sm90/sdpa_bwd/layout.h"
#endif
/* It reads the constants of the layout. */
#include "kernels/device/sdpa_bwd_work.h"

static __device__ __forceinline__ struct place recall_place(uint32_t shared, int stage) {
    const uint4 x = shared_load128(shared + PLACES + 16 * stage);
    return (struct place){(int)x.x, (int)x.y, (int)x.z, (int)x.w};
}
#endif
