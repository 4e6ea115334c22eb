/* SPDX-License-Identifier: MIT
 * A transposition by tiles of shared memory. With -DMISSING_BARRIER nothing orders the two halves; with -DTOO_FAR the
 * last row is read past the end. */
#include "check.h"

enum { TILE = 32, ROWS = 96, COLUMNS = 64 };
__global__ void transpose(float *out, const float *in) {
    __shared__ float tile[TILE][TILE + 1];
    const int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int i = 0; i < TILE; i += 8) tile[threadIdx.y + i][threadIdx.x] = in[(y + i) * COLUMNS + x];
#ifndef MISSING_BARRIER
    __syncthreads();
#endif
    const int row = blockIdx.x * TILE + threadIdx.y, column = blockIdx.y * TILE + threadIdx.x;
    for (int i = 0; i < TILE; i += 8) out[(row + i) * ROWS + column] = tile[threadIdx.x][threadIdx.y + i]; // THE READ
}

int main() {
    static float host[ROWS * COLUMNS], back[ROWS * COLUMNS];
    float *in, *out;
    for (int i = 0; i < ROWS * COLUMNS; i++) host[i] = i;
#ifdef TOO_FAR
    CALL(cudaMalloc(&in, sizeof host - COLUMNS * sizeof *host));
#else
    CALL(cudaMalloc(&in, sizeof host));
    CALL(cudaMemcpy2D(in, COLUMNS * 4, host, COLUMNS * 4, COLUMNS * 4, ROWS, cudaMemcpyHostToDevice));
#endif
    CALL(cudaMalloc(&out, sizeof host));
    transpose<<<dim3(COLUMNS / TILE, ROWS / TILE), dim3(TILE, 8)>>>(out, in);
    CALL(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLUMNS; k++) EXPECT(back[k * ROWS + i] == host[i * COLUMNS + k]);
    std::puts("right");
    return 0;
}
