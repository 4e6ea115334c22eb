/* SPDX-License-Identifier: MIT
 * Products by wmma of every shape and type, operands by rows and by columns, against sums in double on the host. */
#include "check.h"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <vector>
using namespace nvcuda;

template <int M, int N, int K, class F, class T, class S, class LA, class LB>
__global__ void multiply(S *d, const T *a, const T *b, const S *c, int ld_a, int ld_b) {
    __shared__ S tile[M * N];
    wmma::fragment<wmma::matrix_a, M, N, K, F, LA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, F, LB> right;
    wmma::fragment<wmma::accumulator, M, N, K, S> sum, twice;
    wmma::load_matrix_sync(left, a, ld_a);
    wmma::load_matrix_sync(right, b, ld_b);
    wmma::load_matrix_sync(sum, c, N, wmma::mem_row_major);
    wmma::mma_sync(twice, left, right, sum);
    for (int i = 0; i < twice.num_elements; i++) twice.x[i] = twice.x[i] + twice.x[i];
    wmma::store_matrix_sync(tile, twice, M, wmma::mem_col_major); /* transposed on the way */
    __syncwarp();
    for (int i = threadIdx.x; i < M * N; i += 32) d[i] = tile[i % N * M + i / N];
}
template <class T> T small(int i) { return T(float((i * 37 + 11) % 17 - 8)); }

template <int M, int N, int K, class F, class T, class S, class LA, class LB> void check_one() {
    const bool a_rows = std::is_same<LA, wmma::row_major>::value, b_rows = std::is_same<LB, wmma::row_major>::value;
    const int ld_a = (a_rows ? K : M) + 16, ld_b = (b_rows ? N : K) + 16;
    std::vector<T> a(ld_a * (a_rows ? M : K)), b(ld_b * (b_rows ? K : N));
    std::vector<S> c(M * N), d(M * N);
    T *da, *db;
    S *dc, *dd;
    for (size_t i = 0; i < a.size(); i++) a[i] = small<T>(int(i));
    for (size_t i = 0; i < b.size(); i++) b[i] = small<T>(int(3 * i + 1));
    for (size_t i = 0; i < c.size(); i++) c[i] = S(float(int(i) % 31 - 15));
    CALL(cudaMalloc(&da, a.size() * sizeof(T)));
    CALL(cudaMalloc(&db, b.size() * sizeof(T)));
    CALL(cudaMalloc(&dc, c.size() * sizeof(S)));
    CALL(cudaMalloc(&dd, d.size() * sizeof(S)));
    CALL(cudaMemcpy(da, a.data(), a.size() * sizeof(T), cudaMemcpyHostToDevice));
    CALL(cudaMemcpy(db, b.data(), b.size() * sizeof(T), cudaMemcpyHostToDevice));
    CALL(cudaMemcpy(dc, c.data(), c.size() * sizeof(S), cudaMemcpyHostToDevice));
    multiply<M, N, K, F, T, S, LA, LB><<<1, 32>>>(dd, da, db, dc, ld_a, ld_b);
    CALL(cudaMemcpy(d.data(), dd, d.size() * sizeof(S), cudaMemcpyDeviceToHost));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) { /* small integers: every sum is exact */
            double sum = double(float(c[i * N + j]));
            for (int k = 0; k < K; k++)
                sum += double(float(a[a_rows ? i * ld_a + k : k * ld_a + i])) *
                       double(float(b[b_rows ? k * ld_b + j : j * ld_b + k]));
            EXPECT(double(float(d[i * N + j])) == 2 * sum);
        }
    for (void *p : {(void *)da, (void *)db, (void *)dc, (void *)dd}) CALL(cudaFree(p));
}
template <int M, int N, int K, class F, class T, class S> void check_layouts() {
    check_one<M, N, K, F, T, S, wmma::row_major, wmma::row_major>();
    check_one<M, N, K, F, T, S, wmma::row_major, wmma::col_major>();
    check_one<M, N, K, F, T, S, wmma::col_major, wmma::row_major>();
    check_one<M, N, K, F, T, S, wmma::col_major, wmma::col_major>();
}
template <int M, int N> void check_shape() {
    check_layouts<M, N, 16, half, half, float>();
    check_layouts<M, N, 16, half, half, half>();
    check_layouts<M, N, 16, __nv_bfloat16, __nv_bfloat16, float>();
    check_layouts<M, N, 16, signed char, signed char, int>();
    check_layouts<M, N, 16, unsigned char, unsigned char, int>();
}

int main() {
    check_shape<16, 16>();
    check_shape<8, 32>();
    check_shape<32, 8>();
    check_layouts<16, 16, 8, wmma::precision::tf32, float, float>();
    check_layouts<8, 8, 4, double, double, double>();
    std::puts("right");
    return 0;
}
