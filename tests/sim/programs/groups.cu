/* SPDX-License-Identifier: MIT
 * Lanes of one warp in groups of their own, which execute the same collective with different masks. */
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void by_label(int *sums, int *ranks, const int *labels) { /* groups of lanes with the same label */
    const cg::thread_block_tile<32> tile = cg::tiled_partition<32>(cg::this_thread_block());
    const int i = threadIdx.x;
    const auto group = cg::labeled_partition(tile, labels[i]);
    sums[i] = cg::reduce(group, i, cg::plus<int>());
    ranks[i] = group.shfl(i, 0) + (group.any(i == 5) ? 100 : 0);
}
__global__ void tiles(int *out) { /* four tiles of eight lanes, two of which leave the branch late */
    const cg::thread_block_tile<8> tile = cg::tiled_partition<8>(cg::this_thread_block());
    int v = threadIdx.x;
    if (threadIdx.x / 8 % 2)
        for (int i = 0; i < 3; i++) v += tile.shfl_xor(v, 1);
    else
        v = tile.shfl(v, 7);
    tile.sync();
    out[threadIdx.x] = v + warpSize;
}
int main() {
    enum { N = 32 };
    int labels[N], sums[N], ranks[N], *d;
    CALL(cudaMallocManaged(&d, 3 * sizeof labels));
    for (int i = 0; i < N; i++) d[i] = labels[i] = i * i % 5;
    by_label<<<1, N>>>(d + N, d + 2 * N, d);
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) {
        sums[i] = 0, ranks[i] = -1;
        for (int k = N - 1; k >= 0; k--)
            if (labels[k] == labels[i]) sums[i] += k, ranks[i] = k;
        if (labels[5] == labels[i]) ranks[i] += 100;
        EXPECT(d[N + i] == sums[i] && d[2 * N + i] == ranks[i]);
    }
    tiles<<<1, N>>>(d);
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) {
        const int pair = i + (i ^ 1);
        EXPECT(d[i] == 32 + (i / 8 % 2 ? 4 * pair : i / 8 * 8 + 7));
    }
    std::puts("right");
    return 0;
}
