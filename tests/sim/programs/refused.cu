/* SPDX-License-Identifier: MIT
 * A kernel that the simulator cannot read must fail at its first use and not take the others with it; one whose
 * assertion does not hold ends with the runtime's error for that. The status is not 0, whatever the program says. */
#include "check.h"

#include <cassert>

__global__ void known(int *out) { *out = 7; }
__global__ void unknown(int **out) { *out = (int *)malloc(16); } /* a call that the simulator does not know */
__global__ void fails(const int *in) { assert(*in == 8); }       // THE ASSERTION

int main() {
    int *d;
    CALL(cudaMallocManaged(&d, 8));
    known<<<1, 1>>>(d);
    CALL(cudaDeviceSynchronize());
    EXPECT(*d == 7);
    unknown<<<1, 1>>>((int **)d);
    EXPECT(cudaGetLastError() == cudaErrorInvalidPtx);
    CALL(cudaDeviceSynchronize());
    fails<<<1, 32>>>(d);
    EXPECT(cudaDeviceSynchronize() == cudaErrorAssert);
    std::puts("right");
    return 0;
}
