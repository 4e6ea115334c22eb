/* SPDX-License-Identifier: MIT
 * Divides each row of an attention distribution by its sum (KP_DIST_L1), in place: every chip. One warp owns a row;
 * lane l adds up elements l, l + 32, ... and the lanes meet in a fixed tree: bit-equal every time. A row whose sum is 0
 * stays as it is. */
#include "kernels/device/number.h"
#include "kernels/params/mla.h"

constexpr int THREADS = CFG_THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_dist p) {
    const int lane = (int)threadIdx.x & 31;
    const int64_t rows = p.in.batch * p.in.seq_q, step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); row < rows; row += step) {
        float *a = (float *)p.dist.data + row / p.in.seq_q * p.dist.batch + row % p.in.seq_q * p.dist.row, sum = 0;
        for (int t = lane; t < p.in.topk; t += 32) sum += a[t];
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (sum == 0) continue;
        for (int t = lane; t < p.in.topk; t += 32) a[t] /= sum;
    }
}
