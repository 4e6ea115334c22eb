/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the product O += P V of 192 value columns, as kernels/device/wgmma.h has it for 64, 128, 256. */
#ifndef ATTN_SM90_SDPA_FWD_WGMMA_N192_H
#define ATTN_SM90_SDPA_FWD_WGMMA_N192_H
#include "kernels/device/wgmma.h"

#define WGMMA_SUMS_192 WGMMA_D64(d, 0), WGMMA_D32(d, 64)
WGMMA_RS(wgmma_rs_n192, 192, "m64n192k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5, WGMMA_SUMS_192, 96,
         97, 98, 99, 100, 101, 102)
#endif
