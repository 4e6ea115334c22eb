/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Hopper: wgmma, f16 and bf16. A work tile is one query and up to 64 of its heads; a tile is 64
 * of its slots. Persistent: CTA c takes work tiles c, c + grid, ...; what is left over after whole rounds is cut into
 * parts of some tiles, whose sums kernels/smxx/mla_combine.cu merges. Here: the consumers; what stands where in shared
 * memory and the producers: gather.h.
 *
 *   q [64 heads x D] --cp.async--> Q                             one tile of key rows, taken twice: as K and as V
 *   kv rows by index --cp.async--> KV[0], KV[1]                  (tile t of the work tile in buffer t % 2)
 *
 *   warpgroup 0, tile a = 0, 2, ...                              warpgroup 1, tile b = a + 1
 *     S = Q Ka^T           64 x 64, all of D
 *     m, Pa = 2^(S - m)    in registers; also to shared            S = Q Kb^T            when S of a is done
 *     O[left] += Pa Va     64 x 256, Pa from registers             O[right] += Pa Va     Pa from shared memory, under:
 *                                                                  m, Pb = 2^(S - m)     in registers; also to shared
 *     O[left] += Pb Vb     Pb from shared memory                   O[right] += Pb Vb     Pb from registers
 *     S of the next a              issued after it, before it is done
 *
 * so each warpgroup owns 256 of the 512 columns of O and the softmax of every second tile; the softmax of a runs under
 * S of b, and that of b under the products of a. Both add the tiles in the same order: growth (the factor by which O
 * and the sums are rescaled since a maximum grew) is applied tile by tile. The maximum that P is taken against is
 * changed only when a row's maximum has grown by more than 2^8.
 *
 * Roles (384 threads, 1 CTA an SM): warpgroups 0 and 1 consume, 216 registers; warpgroup 2 gathers, 72 registers.
 * Shared memory, bytes:                                          D = 576     D = 512
 *   Q       D/64 slices of 8192                                  73,728      65,536
 *   KV      2 x 9 slices; P of the tile takes slice 8 once       147,456     147,456
 *           S is done (D = 576: the last 64 columns of K)
 *   rest    struct plan                                          4,096       4,096      225,280 and 217,088 in all
 * Barriers (arrivals; who waits). "near" are the four slices that the owner multiplies with P, "far" the rest.
 *   Q_FULL (128 producers; consumers)        Q_FREE (8 warps, each after its last S of the work tile; producers)
 *   NEAR_FULL, FAR_FULL [2] (128 producers, NEAR also 1 for the mask; owner; the other warpgroup learns it through P)
 *   NEAR_FREE [2] (4 warps of the owner after its P V; producers)    FAR_FREE [2] (4 warps of the other; producers)
 *   named 1, 2: P of buffer 0, 1 is there (128 arrive + 128 wait)    named 3: sums of the work tile are exchanged (256)
 *   named 4, 5: all warps of a warpgroup have S, P may take slice 8 (128)
 *   named 6, S_ORDER: S of a has been issued (128 + 128)
 * Phases: round of a buffer = tiles that it has had so far, of Q = work tiles with at least one slot so far. The floor
 * and the measured gap stand in docs/kernels/mla_fwd_sm90.md. */
#include "kernels/device/number.h"
#include "kernels/device/stmatrix.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/mla_fwd/gather.h"

/* What is seldom true: the code for it is placed out of the way. */
static __device__ __forceinline__ int rare(int x) { return __builtin_expect(x != 0, 0); }

constexpr int P_READY = 1, SUMS_READY = 3, S_DONE = 4, S_ORDER = 6; /* named barriers */

/* ------------------------------------------------------------------ consumers ---------------------- */

struct state {
    uint32_t shared;
    int wg, warp, lane;
    float o[128];     /* 64 x 256: see wgmma.h */
    float m[2], l[2]; /* of rows g, g + 8 of the warp: maximum in use, sum of this thread's P of own tiles */
    float largest[2]; /* largest of this thread's scores of own tiles, scaled, base 2 */
    uint32_t query;   /* JOINED: where the words of row g's query stand in a mask, and << 16 those of row g + 8's */
};

/* Words of a tile's mask that a thread holds. JOINED: one, the bits of its own scores; byte k has those of columns
 * 8 k + 2 t + e at e, of 32 + 8 k + 2 t + e at 2 + e, and at 4 + e, 6 + e the same of row g + 8. */
constexpr int MASKS = JOINED ? 1 : 2;

static __device__ __forceinline__ int row_of(const struct state *c) { return c->warp * 16 + (c->lane >> 2); }

static __device__ __forceinline__ void rescale_sums(struct state *c, const float growth[2]) {
#pragma unroll
    for (int j = 0; j < 32; j++) {
        c->o[4 * j] *= growth[0], c->o[4 * j + 1] *= growth[0];
        c->o[4 * j + 2] *= growth[1], c->o[4 * j + 3] *= growth[1];
    }
}

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (c->lane == 0) mbar_arrive(c->shared + barrier);
}
/* Wait for the product, and give the half of the buffer that it read back. */
static __device__ __forceinline__ void end_product(struct state *c, uint32_t free) {
    wgmma_wait(0);
    wgmma_hold(c->o, 128);
    arrive_warp(c, free);
}

static __device__ __forceinline__ void load_mask(const struct state *c, uint32_t mask[MASKS], uint32_t buffer) {
    const uint32_t place = c->shared + MASK_AT + MASK * buffer;
    if (JOINED) {
        const uint32_t two = 0x03030303u, t2 = 2 * (uint32_t)(c->lane & 3);
        const uint2 row = shared_load32x2(place + (c->query & 0xffff)),
                    other = shared_load32x2(place + (c->query >> 16));
        mask[0] =
            (row.x >> t2 & two) | (row.y >> t2 & two) << 2 | (other.x >> t2 & two) << 4 | (other.y >> t2 & two) << 6;
    } else {
        mask[0] = shared_load32(place), mask[MASKS - 1] = shared_load32(place + 4);
    }
}
/* Scores that do not count. */
static __device__ __forceinline__ void hide(const struct state *c, float s[32], const uint32_t mask[MASKS]) {
    if (JOINED) {
        if (mask[0] == ~0u) return;
#pragma unroll
        for (int x = 0; x < 32; x++) { /* j = x / 4, row x / 2 % 2, e = x % 2 */
            const int bit = 8 * (x / 4 & 3) + 2 * (x / 16) + 4 * (x / 2 & 1) + (x & 1);
            if (!(mask[0] >> bit & 1)) s[x] = -INF;
        }
    } else if (rare((mask[0] & mask[MASKS - 1]) != ~0u)) {
        const int t2 = 2 * (c->lane & 3);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t bits = (j < 4 ? mask[0] : mask[MASKS - 1]) >> (8 * (j & 3) + t2);
            if (!(bits & 1)) s[4 * j] = -INF, s[4 * j + 2] = -INF;
            if (!(bits & 2)) s[4 * j + 1] = -INF, s[4 * j + 3] = -INF;
        }
    }
}

/* S of the tile in `buffer`, which is this warpgroup's, and its valid slots: read before the products take all of the
 * shared memory's bandwidth. under: a product with the far half of the other buffer is under way, which is given back
 * when that is done. */
static __device__ __forceinline__ void score_tile(struct state *c, float s[32], uint32_t mask[MASKS], uint32_t buffer,
                                                  uint32_t parity, int under) {
    const uint64_t q = slice_desc(c->shared + Q_AT, 0), k = slice_desc(c->shared + KV_AT + buffer * STAGE, 0);
    const uint64_t near = (uint64_t)(buffer * HALF >> 4), far = (uint64_t)((HALF - buffer * HALF) >> 4);
    mbar_wait(c->shared + NEAR_FULL + 8 * buffer, parity);
    load_mask(c, mask, buffer);
    async_fence();
    if (buffer == 1) named_sync(S_ORDER, 256);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < 4; x++) {
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(s, desc_step(q + near, x * SLICE + kk * 32),
                                     desc_step(k + near, x * SLICE + kk * 32), x + kk > 0);
        if (under && x == 0) {
            wgmma_commit();
            wgmma_wait(1);
            wgmma_hold(c->o, 128);
            arrive_warp(c, FAR_FREE + 8 * (buffer ^ 1));
        }
    }
    mbar_wait(c->shared + FAR_FULL + 8 * buffer, parity);
    async_fence();
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(s, desc_step(q + far, x * SLICE + kk * 32),
                                     desc_step(k + far, x * SLICE + kk * 32), 1);
    if (D == 576) {
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(s, desc_step(q, 8 * SLICE + kk * 32), desc_step(k, 8 * SLICE + kk * 32), 1);
    }
    wgmma_commit();
    if (buffer == 0) named_arrive(S_ORDER, 256); /* all of it has been issued: S of b follows without a gap */
    wgmma_wait(0);
    wgmma_hold(s, 32);
}

/* Where scores are counted from: the maximum in use. */
static __device__ __forceinline__ float base_of(float m) { return m == -INF ? 0 : m; }

/* P of the scores x, in the order of an A operand, and its sums in this thread. */
static __device__ __forceinline__ void exponentials(const float x[32], uint32_t p[16], float sum[2]) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float e[4];
#pragma unroll
        for (int i = 0; i < 4; i++) e[i] = exp2_fast(x[4 * j + i]), sum[i >> 1] += e[i];
        p[2 * j] = pack16(TYPE, e[0], e[1]);
        p[2 * j + 1] = pack16(TYPE, e[2], e[3]);
    }
}

/* Rows of the warp have grown, `tile` being the largest of this thread's scores of two rows: m and growth, to the plan,
 * and s is counted from the new maximum. Nonzero if some row has: one with NaN does not. */
static __device__ __forceinline__ uint32_t grow(const struct state *c, float s[32], float tile[2], const float from[2],
                                                uint32_t buffer) {
    uint32_t grew = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        tile[r] = max_nan(tile[r], __shfl_xor_sync(~0u, tile[r], 1));
        tile[r] = max_nan(tile[r], __shfl_xor_sync(~0u, tile[r], 2));
        const int grows = tile[r] > 8 || (c->m[r] == -INF && tile[r] > -INF);
        const float m = from[r] + tile[r];
        const uint32_t place = (buffer * 64 + (uint32_t)(row_of(c) + 8 * r)) * 4;
        if ((c->lane & 3) == 0) {
            shared_store32(c->shared + NEW_M_AT + place, __float_as_uint(grows ? m : c->m[r]));
            shared_store32(c->shared + GROWTH_AT + place, __float_as_uint(grows ? exp2_fast(c->m[r] - m) : 1));
        }
        tile[r] = grows ? tile[r] : 0;
        grew |= (uint32_t)grows;
    }
#pragma unroll
    for (int x = 0; x < 32; x++) s[x] -= tile[x >> 1 & 1];
    grew = __ballot_sync(~0u, grew != 0);
    __syncwarp(); /* all lanes see what has been told */
    return grew;
}

/* S of an own tile becomes P and its sums; `largest` follows. m, l, O do not: a product may be adding to O. That is
 * follow_growth, if this returns nonzero. A row's maximum is looked for only where some score of the warp lies 2^8
 * above the one in use: no shuffles else. */
static __device__ __forceinline__ uint32_t exp_tile(struct state *c, float s[32], uint32_t p[16], float sum[2],
                                                    const uint32_t mask[MASKS], float scale_log2, uint32_t buffer) {
    const float from[2] = {base_of(c->m[0]), base_of(c->m[1])};
    float tile[2], part[4] = {-INF, -INF, -INF, -INF};
#pragma unroll
    for (int x = 0; x < 32; x++) s[x] = __fmaf_rn(s[x], scale_log2, -from[x >> 1 & 1]);
    hide(c, s, mask);
#pragma unroll
    for (int x = 0; x < 32; x++) part[x & 3] = max_nan(part[x & 3], s[x]);
    tile[0] = max_nan(part[0], part[1]), tile[1] = max_nan(part[2], part[3]);
    /* A row without a maximum looks for one: growth is decided there. */
    uint32_t grew = (uint32_t)__any_sync(~0u, c->m[0] == -INF || c->m[1] == -INF || tile[0] > 8 || tile[1] > 8);
#pragma unroll
    for (int r = 0; r < 2; r++) c->largest[r] = max_nan(c->largest[r], from[r] + tile[r]);
    if (rare((int)grew)) grew = grow(c, s, tile, from, buffer);
    exponentials(s, p, sum);
    if (c->lane == 0) shared_store32(c->shared + GREW_AT + (buffer * 4 + (uint32_t)c->warp) * 4, grew);
    return grew;
}

/* P to slice 8 of the buffer; the other warpgroup may take it. */
static __device__ __forceinline__ void publish(const struct state *c, const uint32_t p[16], uint32_t buffer) {
    const uint32_t line = (uint32_t)(c->warp * 16 + (c->lane & 15)), half = (uint32_t)(c->lane >> 4);
    const uint32_t address = c->shared + KV_AT + buffer * STAGE + 8 * SLICE + line * 128;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) store_matrix4(address + (((2 * j + half) ^ (line & 7)) << 4), p + 4 * j);
    named_arrive(P_READY + (int)buffer, 256);
}

/* P of an own tile is handed over. */
static __device__ __forceinline__ void give_p(const struct state *c, const uint32_t p[16], uint32_t buffer) {
    if (D == 576) named_sync(S_DONE + c->wg, 128); /* the slice that P takes has been read by all four warps */
    publish(c, p, buffer);
}

/* m, l and O follow the growth that was told of. */
static __device__ __forceinline__ void follow_growth(struct state *c, uint32_t buffer) {
    const uint32_t place = (buffer * 64 + (uint32_t)row_of(c)) * 4;
    const float growth[2] = {__uint_as_float(shared_load32(c->shared + GROWTH_AT + place)),
                             __uint_as_float(shared_load32(c->shared + GROWTH_AT + place + 32))};
    c->m[0] = __uint_as_float(shared_load32(c->shared + NEW_M_AT + place));
    c->m[1] = __uint_as_float(shared_load32(c->shared + NEW_M_AT + place + 32));
    rescale_sums(c, growth);
    c->l[0] *= growth[0], c->l[1] *= growth[1];
}

/* Wait for P of the other warpgroup's tile. */
static __device__ __forceinline__ void take_p(struct state *c, uint32_t buffer) {
    named_sync(P_READY + (int)buffer, 256);
    async_fence();
    if (rare((int)shared_load32(c->shared + GREW_AT + (buffer * 4 + (uint32_t)c->warp) * 4))) follow_growth(c, buffer);
}

/* Start O += P V for an own tile: P from registers, the near half of the columns. */
template <int BUFFER> static __device__ __forceinline__ void add_own(struct state *c, const uint32_t p[16]) {
    const uint64_t v = slice_desc(c->shared + KV_AT + BUFFER * STAGE + BUFFER * HALF, SLICE);
    wgmma_hold(c->o, 128);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma_rs_n256<TYPE, 1>(c->o, p + 4 * kk, desc_step(v, kk * 2048), 1);
    wgmma_commit();
}
/* The same for the other warpgroup's tile: P from shared memory, the far half. */
template <int BUFFER> static __device__ __forceinline__ void add_other(struct state *c) {
    const uint32_t tile = c->shared + KV_AT + BUFFER * STAGE;
    const uint64_t p = slice_desc(tile + 8 * SLICE, 0), v = slice_desc(tile + HALF - BUFFER * HALF, SLICE);
    wgmma_hold(c->o, 128);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma_ss_n256<TYPE, 0, 1>(c->o, desc_step(p, kk * 32), desc_step(v, kk * 2048), 1);
    wgmma_commit();
}

/* The sums of both warpgroups, to c->l and c->largest, made while the work tile's last product is still under way. */
static __device__ __forceinline__ void settle(struct state *c, uint32_t odd) {
    const int row = row_of(c), t = c->lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = c->l[r] + __shfl_xor_sync(~0u, c->l[r], 1);
        float largest = max_nan(c->largest[r], __shfl_xor_sync(~0u, c->largest[r], 1));
        l += __shfl_xor_sync(~0u, l, 2);
        largest = max_nan(largest, __shfl_xor_sync(~0u, largest, 2));
        const uint32_t place = c->shared + SUMS_AT + odd * 1024 + (uint32_t)(c->wg * 512 + (row + 8 * r) * 8);
        if (t == 0) {
            shared_store32(place, __float_as_uint(l));
            shared_store32(place + 4, __float_as_uint(largest));
        }
    }
    named_sync(SUMS_READY, 256);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum[2];
        c->largest[r] = -INF;
#pragma unroll
        for (int g = 0; g < 2; g++) { /* the same order in both warpgroups */
            const uint32_t place = c->shared + SUMS_AT + odd * 1024 + (uint32_t)(g * 512 + (row + 8 * r) * 8);
            sum[g] = __uint_as_float(shared_load32(place));
            c->largest[r] = max_nan(c->largest[r], __uint_as_float(shared_load32(place + 4)));
        }
        c->l[r] = sum[0] + sum[1];
    }
}

/* Tiles t (buffer 0, of warpgroup 0) and t + 1 (buffer 1, of warpgroup 1) of `tiles`; parity of the buffers' rounds. In
 * s and mask: S of tile t, and on return that of tile t + 2. */
static __device__ __forceinline__ void first_of_pair(struct state *c, float s[32], uint32_t mask[MASKS],
                                                     uint32_t parity, float scale_log2, int t, int tiles,
                                                     uint32_t odd) {
    float sum[2];
    uint32_t p[16];
    const uint32_t grew = exp_tile(c, s, p, sum, mask, scale_log2, 0);
    give_p(c, p, 0);
    if (rare((int)grew)) follow_growth(c, 0);
    add_own<0>(c, p);
    c->l[0] += sum[0], c->l[1] += sum[1];
    if (t + 1 == tiles) settle(c, odd);
    end_product(c, NEAR_FREE);
    if (t + 1 == tiles) return;
    take_p(c, 1);
    add_other<1>(c);
    if (t + 2 < tiles) {
        score_tile(c, s, mask, 0, parity ^ 1, 1); /* after that product, without a gap */
        if (t + 4 >= tiles) arrive_warp(c, Q_FREE);
    } else {
        settle(c, odd);
        end_product(c, FAR_FREE + 8);
    }
}
static __device__ __forceinline__ void second_of_pair(struct state *c, uint32_t parity, float scale_log2, int t,
                                                      int tiles, uint32_t odd) {
    if (t + 1 == tiles) {
        if (tiles == 1) { /* no own tile in this work tile */
            __syncwarp(); /* every lane has seen Q_FULL */
            if (c->lane == 0) mbar_arrive(c->shared + Q_FREE);
        }
        named_sync(S_ORDER, 256);
        take_p(c, 0);
        add_other<0>(c);
        settle(c, odd);
        end_product(c, FAR_FREE);
        return;
    }
    float s[32], sum[2];
    uint32_t p[16], mask[MASKS];
    score_tile(c, s, mask, 1, parity, 0);
    if (t + 3 >= tiles) arrive_warp(c, Q_FREE);
    take_p(c, 0);
    add_other<0>(c); /* runs under the softmax */
    const uint32_t grew = exp_tile(c, s, p, sum, mask, scale_log2, 1);
    give_p(c, p, 1);
    end_product(c, FAR_FREE);
    if (rare((int)grew)) follow_growth(c, 1);
    add_own<1>(c, p);
    c->l[0] += sum[0], c->l[1] += sum[1];
    if (t + 2 >= tiles) settle(c, odd);
    end_product(c, NEAR_FREE + 8);
}

/* ------------------------------------------------------------------ results ------------------------ */

/* The warpgroup's 256 columns of a row. A quad's 4 x 32 words of two columns change places, so that lane t has columns
 * 32 g + 8 t .. + 7 for each g: whole sectors. A step is taken for all words at once: a shuffle's answer takes 25
 * cycles, and a chain of 64 of them, with a branch for each store, took 7 % of the kernel's time. */
static __device__ __forceinline__ void store_row(const struct state *c, const struct kp_view *out, uint16_t *to, int r,
                                                 int inside, float factor) {
    const int t = c->lane & 3;
    uint32_t w[32], y[16];
#pragma unroll
    for (int x = 0; x < 32; x++) {
        const float *o = c->o + 4 * x + 2 * r;
        w[x] = factor == 0 ? 0 : pack16(TYPE, o[0] * factor, o[1] * factor);
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) { /* words x and x + d of a four, lanes t and t ^ d */
#pragma unroll
        for (int x = 0; x < 16; x++) {
            const int word = d == 1 ? 2 * x : x / 2 * 4 + x % 2;
            y[x] = __shfl_xor_sync(~0u, t & d ? w[word] : w[word + d], d);
        }
#pragma unroll
        for (int x = 0; x < 16; x++) {
            const int word = d == 1 ? 2 * x : x / 2 * 4 + x % 2;
            w[word] = t & d ? y[x] : w[word];
            w[word + d] = t & d ? w[word + d] : y[x];
        }
    }
    if (!inside) return;
    to += c->wg * 256 + 8 * t;
    if (JOINED || out->chunk == 16) {
#pragma unroll
        for (int g = 0; g < 8; g++)
            *(uint4 *)(to + 32 * g) = make_uint4(w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3]);
    } else {
#pragma unroll
        for (int x = 0; x < 32; x++) {
            uint16_t *two = to + 32 * (x / 4) + x % 4 * 2;
            two[0] = (uint16_t)w[x];
            two[1] = (uint16_t)(w[x] >> 16);
        }
    }
}

/* Nonzero if row r of O has no NaN and no infinity in this thread's columns. */
static __device__ __forceinline__ int row_finite(const struct state *c, int r) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 32; j++) sum += c->o[4 * j + 2 * r] * 0 + c->o[4 * j + 2 * r + 1] * 0;
    return sum == 0;
}
/* JOINED: what the warp has to say of the group, which is taken again if any warp's rows are not finite. */
static __device__ __forceinline__ void mark(const struct state *c, const struct kp_mla_fwd_sm90 *kp, int n,
                                            int finite) {
    finite = __all_sync(~0u, finite);
    if (c->lane) return;
    ((volatile uint8_t *)kp->marks)[mark_of(n - 1) * 8 + c->wg * 4 + c->warp] = !finite;
    if (!finite) shared_or32(c->shared + MARKED_AT, 1);
}

/* Of a part: row r of O, not normalised, and what merging needs. row: the one among those that are cut. */
static __device__ __forceinline__ void store_part(const struct state *c, const struct kp_mla_fwd_sm90 *kp, int64_t row,
                                                  int r, float l, float largest) {
    float *to = (float *)kp->part_o + row * 512 + c->wg * 256 + 2 * (c->lane & 3);
#pragma unroll
    for (int j = 0; j < 32; j++) *(float2 *)(to + 8 * j) = make_float2(c->o[4 * j + 2 * r], c->o[4 * j + 2 * r + 1]);
    if (c->wg || (c->lane & 3)) return;
    ((float *)kp->part_m)[row] = c->m[r];
    ((float *)kp->part_l)[row] = l;
    ((float *)kp->part_max_logits)[row] = largest;
}

/* Of lse and max_logits, which may be absent and are f32. */
static __device__ __forceinline__ void store_one(const struct kp_view *v, int64_t index, float x) {
    if (v->data) ((float *)v->data)[index] = x;
}

template <int WG>
static __device__ __forceinline__ void finish(struct state *c, const struct kp_mla_fwd_sm90 *kp,
                                              const struct piece *y) {
    const struct kp_mla *p = &kp->in;
    struct work_tile w = y->w;
    const int row = row_of(c), t = c->lane & 3;
    int finite = 1, queries = 1;
    if (JOINED) {
        const struct joined_group g = rows_of(kp, y->cursor);
        w.b = g.b, w.i = g.query, w.head = 0, queries = g.queries;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = JOINED ? (row + 8 * r) >> kp->joined.shift : 0;
        const int h = JOINED ? row + 8 * r - (query << kp->joined.shift) : w.head + row + 8 * r;
        const int inside = h < p->heads_q && (!JOINED || query < queries);
        const int64_t i = w.i + query;
        if (!JOINED && y->part >= 0) {
            const int64_t row = (w.b * p->seq_q + w.i) * p->heads_q + h - kp->first_row;
            if (inside) store_part(c, kp, y->part * kp->rows + row, r, c->l[r], c->largest[r]);
            continue;
        }
        const float natural = c->m[r] * LN2;
        const int empty = c->l[r] == 0;
        float sink = -INF;
        if (p->sink && inside) sink = ((const float *)p->sink)[h * p->sink_head];
        const float factor = empty ? 0 : 1 / (c->l[r] + exp2_fast((sink - natural) * LOG2E));
        if (JOINED && inside && !empty) finite &= row_finite(c, r);
        uint16_t *to = (uint16_t *)kp->out.data + w.b * kp->out.batch + i * kp->out.row + h * kp->out.head;
        store_row(c, &kp->out, to, r, inside, factor);
        if (WG == 0 || t || !inside) continue; /* warpgroup 1 has the time: it waits for S of a anyhow */
        const float lse = lse_in_form(p->flags, empty ? -INF : natural + log2f(c->l[r]) * LN2);
        store_one(&kp->lse, w.b * kp->lse.batch + i * kp->lse.row + h * kp->lse.head, lse);
        store_one(&kp->max_logits, w.b * kp->max_logits.batch + i * kp->max_logits.row + h * kp->max_logits.head,
                  c->largest[r] * LN2);
    }
    if (JOINED && !y->cursor.second && y->cursor.alone < 2) mark(c, kp, y->cursor.groups, y->cursor.alone || finite);
}

template <int WG> static __device__ __forceinline__ void consume(const struct kp_mla_fwd_sm90 *kp, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    struct state c;
    c.shared = shared;
    c.wg = WG;
    c.warp = (int)threadIdx.x >> 5 & 3;
    c.lane = (int)threadIdx.x & 31;
    uint32_t round = 0, round_q = 0, odd = 0; /* own tiles, work tiles with tiles, parity of work tiles */
    if (JOINED)
        c.query = (uint32_t)(row_of(&c) >> kp->joined.shift) * 8 | (uint32_t)((row_of(&c) + 8) >> kp->joined.shift) * 8
                                                                       << 16;
    struct piece y;
    start_pieces(&y);
    for (; next_piece(kp, MARKS_WRITTEN, shared + MARKED_AT, &y); odd ^= 1) {
        const int tiles = y.tiles;
#pragma unroll
        for (int x = 0; x < 128; x++) c.o[x] = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) c.m[r] = c.largest[r] = -INF, c.l[r] = 0;
        if (tiles) mbar_wait(shared + Q_FULL, round_q++ & 1);
        float s[32];
        uint32_t mask[MASKS];
        if (WG == 0 && tiles) {
            score_tile(&c, s, mask, 0, round & 1, 0);
            if (tiles <= 2) arrive_warp(&c, Q_FREE);
        }
#pragma unroll 1
        for (int t = 0; t < tiles; t += 2, round++) {
            if (WG == 0)
                first_of_pair(&c, s, mask, round & 1, p->scale_log2, t, tiles, odd);
            else
                second_of_pair(&c, round & 1, p->scale_log2, t, tiles, odd);
        }
        if (WG == 1 && (tiles & 1)) round--; /* the last pair had no second tile */
        if (!tiles) settle(&c, odd);
        finish<WG>(&c, kp, &y);
    }
}

extern "C" __global__ void __launch_bounds__(KP_MLA_FWD_SM90_THREADS, 1)
    CFG(const __grid_constant__ struct kp_mla_fwd_sm90 kp) {
    const uint32_t shared = shared_base();
    if ((JOINED || APART) && !has_work(&kp)) return;
    if (threadIdx.x == 0) {
        mbar_init(shared + Q_FULL, 128);
        mbar_init(shared + Q_FREE, 8);
        if (JOINED) shared_store32(shared + MARKED_AT, 0);
        for (uint32_t buffer = 0; buffer < 2; buffer++) {
            mbar_init(shared + NEAR_FULL + 8 * buffer, 129);
            mbar_init(shared + FAR_FULL + 8 * buffer, 128);
            mbar_init(shared + NEAR_FREE + 8 * buffer, 4);
            mbar_init(shared + FAR_FREE + 8 * buffer, 4);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        registers_fewer<72>();
        if (JOINED || APART || (kp.in.q.chunk == 16 && kp.in.kv.chunk == 16)) /* joined: the table asks for it */
            produce<1>(&kp, shared);
        else
            produce<0>(&kp, shared);
    } else {
        registers_more<216>();
        if (threadIdx.x < 128)
            consume<0>(&kp, shared);
        else
            consume<1>(&kp, shared);
    }
}
