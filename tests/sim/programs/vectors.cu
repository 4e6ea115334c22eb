/* SPDX-License-Identifier: MIT
 * Two streams, pinned and managed memory, variables, a function of the host, properties, device printf. */
#include "check.h"

__constant__ float factor;
__device__ unsigned calls;
__managed__ int total;

__global__ void scale(float *out, const float *in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * in[i];
    if (i == 0) {
        atomicAdd(&calls, 1u);
        printf("%s: %d of %5.2f, 0x%llx%c", "scale", n, (double)factor, 1ull << 40, '\n');
    }
}
__global__ void add_up(const int *in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&total, in[i]);
}
static void count_down(void *left) { --*(int *)left; }

int main() {
    enum { N = 3000, HALF = N / 2 };
    const float two = 2;
    float *host, *in, *out;
    int left = 2, *shared_ints, per_sm = 0;
    unsigned n_calls = 7;
    cudaStream_t streams[2];
    cudaEvent_t done;
    cudaDeviceProp p;
    CALL(cudaGetDeviceProperties(&p, 0));
    EXPECT(p.major == 9 && p.warpSize == 32 && p.multiProcessorCount == 132 && p.sharedMemPerBlockOptin == 227 << 10);
    EXPECT(p.maxThreadsPerMultiProcessor == 2048 && p.clusterLaunch == 1 && p.maxBlocksPerMultiProcessor == 32);
    CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, scale, 256, 0));
    EXPECT(per_sm == 8);
    CALL(cudaMallocHost(&host, N * sizeof *host));
    CALL(cudaMalloc(&in, N * sizeof *in));
    CALL(cudaMalloc(&out, N * sizeof *out));
    CALL(cudaMemcpyToSymbol(factor, &two, sizeof two));
    CALL(cudaMemcpyToSymbol(calls, &(n_calls = 0), sizeof n_calls));
    for (int i = 0; i < N; i++) host[i] = i;
    CALL(cudaEventCreate(&done));
    for (int k = 0; k < 2; k++) {
        CALL(cudaStreamCreateWithFlags(&streams[k], cudaStreamNonBlocking));
        CALL(cudaMemcpyAsync(in + k * HALF, host + k * HALF, HALF * sizeof *in, cudaMemcpyHostToDevice, streams[k]));
        scale<<<(HALF + 255) / 256, 256, 0, streams[k]>>>(out + k * HALF, in + k * HALF, HALF);
        CALL(cudaGetLastError());
        CALL(cudaLaunchHostFunc(streams[k], count_down, &left));
    }
    CALL(cudaEventRecord(done, streams[1]));
    CALL(cudaStreamWaitEvent(streams[0], done, 0));
    CALL(cudaMemcpyAsync(host, out, N * sizeof *out, cudaMemcpyDefault, streams[0]));
    CALL(cudaStreamSynchronize(streams[0]));
    EXPECT(left == 0);
    for (int i = 0; i < N; i++) EXPECT(host[i] == 2.f * i);
    CALL(cudaMemcpyFromSymbol(&n_calls, calls, sizeof n_calls));
    EXPECT(n_calls == 2);

    CALL(cudaMallocManaged(&shared_ints, N * sizeof *shared_ints));
    for (int i = 0; i < N; i++) shared_ints[i] = i % 7;
    total = 100;
    add_up<<<1, 128>>>(shared_ints, N);
    CALL(cudaDeviceSynchronize());
    int expected = 100;
    for (int i = 0; i < N; i++) expected += i % 7;
    EXPECT(total == expected);
    EXPECT(cudaMemcpy(host, out, N, cudaMemcpyKind(9)) == cudaErrorInvalidMemcpyDirection);
    EXPECT(cudaGetLastError() == cudaErrorInvalidMemcpyDirection && cudaGetLastError() == cudaSuccess);
    scale<<<1, 2000>>>(out, in, N);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CALL(cudaFree(shared_ints));
    CALL(cudaFreeHost(host));
    std::puts("right");
    return 0;
}
