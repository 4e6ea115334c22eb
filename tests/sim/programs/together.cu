/* SPDX-License-Identifier: MIT
 * A cooperative launch whose CTAs wait for each other, and clusters that read each other's shared memory. */
#include "check.h"

#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void steps(int *cells, int n_steps) { // each CTA adds its neighbour's cell of the step before
    const cg::grid_group grid = cg::this_grid();
    const int n = gridDim.x, i = blockIdx.x;
    for (int step = 0; step < n_steps; step++) {
        int *from = cells + step % 2 * n, *to = cells + (step + 1) % 2 * n;
        if (threadIdx.x == 0) to[i] = from[i] + from[(i + 1) % n];
        grid.sync();
    }
}
__global__ void ranks(int *out) {
    __shared__ int mine;
    const cg::cluster_group cluster = cg::this_cluster();
    mine = 10 * blockIdx.x;
    cluster.sync();
    const unsigned other = cluster.block_rank() ^ 1;
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, other);
    cluster.sync();
}

int main() {
    enum { N = 40, STEPS = 5, CLUSTERS = 6 };
    int host[2][N], *cells, n_steps = STEPS, n_clusters = 0;
    CALL(cudaMalloc(&cells, sizeof host));
    for (int i = 0; i < N; i++) host[0][i] = i * i;
    CALL(cudaMemcpy(cells, host, sizeof host[0], cudaMemcpyHostToDevice));
    void *arguments[] = {&cells, &n_steps};
    CALL(cudaLaunchCooperativeKernel((void *)steps, dim3(N), dim3(64), arguments, 0, 0));
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < N; i++) host[(step + 1) % 2][i] = host[step % 2][i] + host[step % 2][(i + 1) % N];
    int got[2][N];
    CALL(cudaMemcpy(got, cells, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(got[STEPS % 2][i] == host[STEPS % 2][i]);
    EXPECT(cudaLaunchCooperativeKernel((void *)steps, dim3(1 << 20), dim3(64), arguments, 0, 0) ==
           cudaErrorCooperativeLaunchTooLarge);
    EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);

    cudaLaunchAttribute size = {};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = 2, size.val.clusterDim.y = size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2 * CLUSTERS), config.blockDim = dim3(32);
    config.attrs = &size, config.numAttrs = 1;
    CALL(cudaOccupancyMaxActiveClusters(&n_clusters, ranks, &config));
    EXPECT(n_clusters > 0);
    CALL(cudaLaunchKernelEx(&config, ranks, cells));
    CALL(cudaMemcpy(got, cells, 2 * CLUSTERS * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * CLUSTERS; i++) EXPECT(got[0][i] == 10 * (i ^ 1));
    std::puts("right");
    return 0;
}
