/* SPDX-License-Identifier: MIT
 * A graph that a stream recorded, with a branch, and one of nodes: copies, a fill, kernels, a function of the host. */
#include "check.h"

__global__ void twice(int *to, const int *from) { to[threadIdx.x] = 2 * from[threadIdx.x]; }
__global__ void sum(int *to, const int *a, const int *b) { to[threadIdx.x] += a[threadIdx.x] + b[threadIdx.x]; }
static void count_up(void *n) { ++*(int *)n; }

int main() {
    enum { N = 64 };
    int host[N], *a, *b, *c, *d, n_runs = 0;
    cudaStream_t first, second;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CALL(cudaMalloc(&a, sizeof host));
    CALL(cudaMalloc(&b, sizeof host));
    CALL(cudaMalloc(&c, sizeof host));
    CALL(cudaMalloc(&d, sizeof host));
    for (int i = 0; i < N; i++) host[i] = i;
    CALL(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
    CALL(cudaStreamCreate(&first));
    CALL(cudaStreamCreate(&second));
    CALL(cudaEventCreate(&fork));
    CALL(cudaEventCreate(&join));
    CALL(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    CALL(cudaMemsetAsync(d, 0, sizeof host, first));
    CALL(cudaEventRecord(fork, first));
    CALL(cudaStreamWaitEvent(second, fork, 0));
    twice<<<1, N, 0, first>>>(b, a);
    twice<<<1, N, 0, second>>>(c, a);
    CALL(cudaEventRecord(join, second));
    CALL(cudaStreamWaitEvent(first, join, 0));
    sum<<<1, N, 0, first>>>(d, b, c);
    CALL(cudaStreamEndCapture(first, &graph));
    CALL(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) CALL(cudaGraphLaunch(executable, first));
    CALL(cudaStreamSynchronize(first));
    CALL(cudaMemcpy(host, d, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(host[i] == 4 * i);
    /* the same steps from other memory; then a graph that is no update */
    cudaGraph_t other;
    cudaGraphExecUpdateResultInfo update;
    CALL(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    CALL(cudaMemsetAsync(d, 0, sizeof host, first));
    CALL(cudaEventRecord(fork, first));
    CALL(cudaStreamWaitEvent(second, fork, 0));
    twice<<<1, N, 0, first>>>(b, a);
    twice<<<1, N, 0, second>>>(c, a);
    CALL(cudaEventRecord(join, second));
    CALL(cudaStreamWaitEvent(first, join, 0));
    sum<<<1, N, 0, first>>>(d, a, c);
    CALL(cudaStreamEndCapture(first, &other));
    CALL(cudaGraphExecUpdate(executable, other, &update));
    CALL(cudaGraphDestroy(other));
    CALL(cudaGraphLaunch(executable, first));
    CALL(cudaStreamSynchronize(first));
    CALL(cudaMemcpy(host, d, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(host[i] == 3 * i);
    CALL(cudaGraphCreate(&other, 0));
    EXPECT(cudaGraphExecUpdate(executable, other, &update) == cudaErrorGraphExecUpdateFailure);
    EXPECT(update.result == cudaGraphExecUpdateErrorTopologyChanged);
    EXPECT(cudaGetLastError() == cudaErrorGraphExecUpdateFailure);
    CALL(cudaGraphDestroy(other));
    for (int i = 0; i < N; i++) host[i] = i;
    CALL(cudaGraphExecDestroy(executable));
    CALL(cudaGraphDestroy(graph));

    cudaGraphNode_t fill, copy, kernel, back, told;
    cudaMemsetParams zero = {};
    zero.dst = d, zero.elementSize = 2, zero.width = 2 * N, zero.height = 1;
    int result[N];
    void *arguments[] = {&d, &a, &b};
    cudaKernelNodeParams node = {};
    node.func = (void *)sum, node.gridDim = dim3(1), node.blockDim = dim3(N), node.kernelParams = arguments;
    cudaHostNodeParams telling = {count_up, &n_runs};
    CALL(cudaGraphCreate(&graph, 0));
    CALL(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &zero));
    CALL(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, a, host, sizeof host, cudaMemcpyHostToDevice));
    const cudaGraphNode_t before[] = {fill, copy};
    CALL(cudaGraphAddKernelNode(&kernel, graph, before, 2, &node));
    CALL(cudaGraphAddMemcpyNode1D(&back, graph, &kernel, 1, result, d, sizeof result, cudaMemcpyDeviceToHost));
    CALL(cudaGraphAddHostNode(&told, graph, &back, 1, &telling));
    CALL(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; i++) CALL(cudaGraphLaunch(executable, first));
    CALL(cudaStreamSynchronize(first));
    EXPECT(n_runs == 2); /* d is zeroed first; b still holds 2 i */
    for (int i = 0; i < N; i++) EXPECT(result[i] == 3 * i);
    std::puts("right");
    return 0;
}
