/* SPDX-License-Identifier: MIT
 * Merges the splits of a sparse MLA forward: every chip. One warp owns an output row (a head of a query); `work_tiles`
 * rows of the output, the first ones, have no splits and are left alone.
 *
 *   m = max_s m_s      w_s = 2^(m_s - m)      L = sum_s w_s l_s                                (units of log2)
 *   out = sum_s w_s O_s / (L + 2^(sink - m))          lse = m + log2 L        max_logits = max_s largest_s
 *
 * Input: f32 O_s (not normalised), m_s, l_s and largest_s of every split and row, written by kernels/sm80/mla_fwd.cu,
 * kernels/sm90/mla_fwd/mla_fwd.cu and kernels/sm100/mla_fwd/mla_fwd.cu. A split without valid slots has l_s = 0. Sums
 * run in the order of the splits or in a fixed tree: bit-equal every time. Lane t holds the weights of splits t and
 * t + 32 and adds up columns 4 t .. 4 t + 3, then those 128 further, ... */
#include "kernels/device/number.h"
#include "kernels/params/mla_apart.h"

constexpr int THREADS = CFG_THREADS, HELD = KP_MLA_MAX_SPLITS / 32, DIM_V = 512, LEAST = -126; /* as in mla_fwd.cu */
#ifdef CFG_APART
constexpr int APART = CFG_APART;
#else
constexpr int APART = 0;
#endif

static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = max_nan(x, __shfl_xor_sync(~0u, x, d));
    return x;
}
static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

/* Of lse and max_logits, which may be absent and are f32. */
static __device__ __forceinline__ void store_one(const struct kp_view *v, int64_t index, float x) {
    if (v->data) ((float *)v->data)[index] = x;
}

static __device__ __forceinline__ void merge_row(const struct kp_mla_fwd *p, int64_t row, int64_t rows) {
    const int lane = (int)threadIdx.x & 31;
    const int64_t flat = p->work_tiles + row, h = flat % p->in.heads_q, query = flat / p->in.heads_q;
    const int64_t i = query % p->in.seq_q, b = query / p->in.seq_q;
    float m[HELD], l[HELD], largest = -INF, most = -INF, sum = 0;
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        const int split = lane + 32 * x, there = split < p->splits;
        m[x] = there ? ((const float *)p->part_m)[split * rows + row] : -INF;
        l[x] = there ? ((const float *)p->part_l)[split * rows + row] : 0;
        most = max_nan(most, m[x]);
        largest = max_nan(largest, there ? ((const float *)p->part_max_logits)[split * rows + row] : -INF);
    }
    most = warp_max(most);
    largest = warp_max(largest);
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        m[x] = l[x] == 0 ? 0 : exp2_fast(fmaxf(m[x] - most, LEAST)); /* from here on the weight */
        sum += m[x] * l[x];
    }
    sum = warp_sum(sum);

    const int empty = sum == 0;
    const float sink = p->in.sink ? ((const float *)p->in.sink)[h * p->in.sink_head] : -INF;
    const float inverse = 1 / (sum + exp2_fast(sink * LOG2E - most));
    const int64_t out = b * p->out.batch + h * p->out.head + i * p->out.row;
#pragma unroll 1
    for (int c = 4 * lane; c < DIM_V; c += 128) {
        float o[4] = {0, 0, 0, 0};
#pragma unroll
        for (int x = 0; x < HELD; x++) {
#pragma unroll 4
            for (int y = 0; y < min(p->splits - 32 * x, 32); y++) {
                const float weight = __shfl_sync(~0u, m[x], y);
                if (weight == 0) continue;
                const float4 part =
                    *(const float4 *)((const float *)p->part_o + ((32 * x + y) * rows + row) * DIM_V + c);
                o[0] += weight * part.x, o[1] += weight * part.y, o[2] += weight * part.z, o[3] += weight * part.w;
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float y = empty || inverse == 0 ? 0 : o[e] * inverse;
            if (!APART && p->out.dtype == KP_F32) /* rows for joined lists write the problem's type */
                ((float *)p->out.data)[out + c + e] = y;
            else
                ((uint16_t *)p->out.data)[out + c + e] = (uint16_t)pack16(p->out.dtype, y, 0);
        }
    }
    if (lane != 0) return;
    store_one(&p->lse, b * p->lse.batch + h * p->lse.head + i * p->lse.row,
              lse_in_form(p->in.flags, empty ? -INF : (most + log2f(sum)) * LN2));
    store_one(&p->max_logits, b * p->max_logits.batch + h * p->max_logits.head + i * p->max_logits.row, largest * LN2);
}

#ifdef CFG_APART
typedef struct kp_mla_combine_apart launched;
#else
typedef struct kp_mla_fwd launched;
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 12) CFG(const __grid_constant__ launched kp) {
#ifdef CFG_APART
    const struct kp_mla_fwd &p = kp.fwd;
    if (*(const int32_t *)kp.gate == 0) return;
#else
    const struct kp_mla_fwd &p = kp;
#endif
    const int64_t rows = p.in.batch * p.in.seq_q * p.in.heads_q - p.work_tiles;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); row < rows; row += step)
        merge_row(&p, row, rows);
}
