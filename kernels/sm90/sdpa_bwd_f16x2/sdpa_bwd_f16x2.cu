/* SPDX-License-Identifier: MIT
 * Dense backward of f32 on Hopper: wgmma and tensor maps (TMA) on operands that kernels/smxx/sdpa_f16x2.cu has split in
 * two f16 each. One source, two kernels a variant, as kernels/sm80/sdpa_bwd_wide.cu: one owns keys (CFG_SIDE), one owns
 * queries; each forms the scores anew, so that every sum has one owner and one order.
 *
 *   P = exp(s - lse)     dP = dO V^T     dS = P o (dP - shift)
 *   owner of keys:  dV = P^T dO   dK = scale dS^T Q   over all queries of the group's heads, one head after the other
 *   owner of queries:  dQ = scale dS K   over all keys
 *
 * A CTA has one tile of 128 own rows (a: K or Q, b: V or dO), 64 a compute warpgroup, and walks tiles of the other side
 * (a: Q or K, b: dO or V). A product is three of f16: hi lo', lo hi', hi hi' in one sum, the small ones first. P and dS
 * are split in registers, rows with a power of two of their own, and multiply the same tile along its rows; sums over
 * 64 rows are added to the gradient in f32.
 *
 * Roles: warpgroups 0 and 1 compute, 232 registers, and issue their scores in turns; a thread of the last one copies.
 * Shared memory: own a hi, lo, b hi, lo; a ring of slots, four a tile; lse, shift and share of a tile of queries;
 * mbarriers: OWN_FULL (1 + bytes), FULL (1 + bytes) and FREE (a compute warp each) of each slot; struct work.
 * Flagged heads belong to kernels of tf32. Rows of the other side past its sequence are cleared in shared memory.
 * Figures: docs/kernels/sdpa_bwd_f16x2_sm90.md. */
#include "kernels/device/cluster.h"
#include "kernels/device/quad.h"
#include "kernels/device/tensor_load.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_bwd_f16x2/work.h"

static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

/* ------------------------------------------------------------------ copies ------------------------- */

static __device__ __forceinline__ void load_half(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                 int rows, int row, int place, int b) {
#pragma unroll
    for (int x = 0; x < DIM / 64; x++) tensor_load4(to + x * 128 * rows, map, barrier, 64 * x, row, place, b);
}
static __device__ __forceinline__ void produce(const struct kp_sdpa_bwd_f16x2 *kp, const struct work *w,
                                               uint32_t shared) {
    const struct kp_sdpa_bwd *p = &kp->all.bwd;
    const int b = p->in.cu_seqlens_q ? 0 : w->b, own = (int)(OWN_KEYS ? w->seq.k0 : w->seq.q0) + w->own0;
    struct ring r = {0, 0};
    uint32_t stats = shared + STATS;
    mbar_expect(shared + OWN_FULL, 4 * OWN_HALF);
#pragma unroll
    for (int y = 0; y < 2; y++) {
        load_half(shared + y * OWN_HALF, &kp->own_a, shared + OWN_FULL, ROWS, own, 2 * w->head + y, b);
        load_half(shared + (2 + y) * OWN_HALF, &kp->own_b, shared + OWN_FULL, ROWS, own, 2 * w->head + y, b);
    }
#pragma unroll 1
    for (int head = w->head0; head < w->head0 + w->heads; head++)
#pragma unroll 1
        for (int n = 0; n < w->n_tiles; n++) {
            const int row = (w->first + n) * TILE, from = (int)(OWN_KEYS ? w->seq.q0 : w->seq.k0) + row,
                      place = 2 * (OWN_KEYS ? head : w->head_k);
#pragma unroll 1
            for (int y = 0; y < 4; y++, next_slot(&r)) {
                const int is_b = OWN_KEYS ? y >= 2 : y < 2, has_stats = OWN_KEYS && y == 0;
                const uint32_t full = shared + FULL + 8 * r.slot;
                mbar_wait(shared + FREE + 8 * r.slot, r.phase ^ 1);
                mbar_expect(full, HALF + (has_stats ? 3 * STAT_BYTES : 0));
                load_half(shared + RING + r.slot * HALF, is_b ? &kp->other_b : &kp->other_a, full, TILE, from,
                          place + 1 - y % 2, b);
                if (!has_stats) continue;
                const int64_t stat = 4 * (head * p->stat_rows + w->stat0 + row);
                bulk_load(stats, (const char *)p->stat_lse + stat, STAT_BYTES, full);
                bulk_load(stats + STAT_BYTES, (const char *)p->stat_shift + stat, STAT_BYTES, full);
                bulk_load(stats + 2 * STAT_BYTES, (const char *)p->stat_g + stat, STAT_BYTES, full);
                stats += 3 * STAT_BYTES;
                if (stats == shared + BARRIERS) stats = shared + STATS;
            }
        }
}

/* ------------------------------------------------------------------ products ----------------------- */

static __device__ __forceinline__ void multiply_own(float s[N_S], uint64_t own, uint64_t other, int accumulate) {
#pragma unroll
    for (int x = 0; x < DIM / 64; x++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            const uint64_t a = desc_step(own, x * OWN_SLICE + 32 * kk), b = desc_step(other, x * SLICE + 32 * kk);
            if (TILE == 64) wgmma_ss_n64<KP_F16, 0, 0>(s, a, b, accumulate || x + kk > 0);
            if (TILE == 128) wgmma_ss_n128<KP_F16, 0, 0>(s, a, b, accumulate || x + kk > 0);
        }
}
/* Start s = the warpgroup's own rows times the tile's, of a or b. */
static __device__ __forceinline__ void start_scores(float s[N_S], uint32_t own, uint32_t lo, uint32_t hi) {
    const uint64_t x = uniform_desc(slice_desc(own, 0)), y = uniform_desc(slice_desc(hi, 0)),
                   z = uniform_desc(slice_desc(lo, 0));
    wgmma_hold(s, N_S);
    wgmma_fence();
    multiply_own(s, x, z, 0);
    multiply_own(s, desc_step(x, OWN_HALF), y, 1);
    multiply_own(s, x, y, 1);
    wgmma_commit();
}
static __device__ __forceinline__ void multiply_cells(float sum[COLS / 2], const uint32_t p[], uint64_t other,
                                                      int accumulate) {
#pragma unroll
    for (int kk = 0; kk < BLOCK / 16; kk++)
        wgmma_rs_n64<KP_F16, 1>(sum, p + 4 * kk, desc_step(other, 2048 * kk), accumulate || kk > 0);
}
/* Start sum = cells of one block times the tile's rows of it, of a or b: COLS columns, of slice x. */
static __device__ __forceinline__ void start_part(float sum[COLS / 2], const uint32_t p_hi[N_P],
                                                  const uint32_t p_lo[N_P], int block, int x, uint32_t lo,
                                                  uint32_t hi) {
    const uint64_t y = uniform_desc(slice_desc(hi + x * SLICE + block * BLOCK * 128, SLICE)),
                   z = uniform_desc(slice_desc(lo + x * SLICE + block * BLOCK * 128, SLICE));
    wgmma_hold(sum, COLS / 2);
    wgmma_fence();
    multiply_cells(sum, p_lo + block * BLOCK / 4, y, 0);
    multiply_cells(sum, p_hi + block * BLOCK / 4, z, 1);
    multiply_cells(sum, p_hi + block * BLOCK / 4, y, 1);
    wgmma_commit();
}

/* ------------------------------------------------------------------ cells -------------------------- */

/* Cells as pairs of f16, each row brought to [2^14, 2^15); unit: what its products are to be multiplied with. */
static __device__ __forceinline__ void split_cells(const float x[N_S], uint32_t hi[N_P], uint32_t lo[N_P],
                                                   float unit[2]) {
    float most[2] = {0, 0}, up[2];
#pragma unroll
    for (int y = 0; y < N_S; y++) most[y >> 1 & 1] = fmaxf(most[y >> 1 & 1], fabsf(x[y]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* biased exponent; powers stay normal */
        const uint32_t e = min(max(__float_as_uint(quad_max(most[r])) >> 23, 30u), 240u);
        unit[r] = __uint_as_float((e - 14) << 23);
        up[r] = __uint_as_float((127 + 127 + 14 - e) << 23);
    }
#pragma unroll
    for (int y = 0; y < N_P; y++) {
        const float a = x[2 * y] * up[y & 1], b = x[2 * y + 1] * up[y & 1];
        hi[y] = pack16(KP_F16, a, b);
        lo[y] = pack16(KP_F16, a - unpack16(KP_F16, hi[y]), b - unpack16(KP_F16, hi[y] >> 16));
    }
    if (DIM < 128) return;
    uint32_t all = 0;
#pragma unroll
    for (int y = 0; y < N_P; y++) all ^= lo[y];
    /* Never, or it does not matter: ptxas would put these conversions off until products are under way, for which there
     * are not enough registers. */
    if (__any_sync(~0u, all == 0x7e017e01u)) asm volatile("nanosleep.u32 1;" ::: "memory");
}

/* Of own rows: statistics of queries. */
struct own_numbers {
    float lse[2], shift[2], share[2]; /* lse in log2 units */
};

constexpr int SHARES = !OWN_KEYS || DIM < 128; /* of a sink outside of lse: the host refuses it else */
/* Of column e of block n of eight: lse in log2 units, shift, share. */
static __device__ __forceinline__ float stat_of(uint32_t stats, int kind, int n, int e) {
    return __uint_as_float(shared_load32(stats + 8 * (lane_of() & 3) + kind * STAT_BYTES + 32 * n + 4 * e));
}
/* Products to P without the share of a sink; unit[y] of block y: to log2 units of scores. */
static __device__ __forceinline__ void form_p(float s[N_S], const float unit[BLOCKS], const struct own_numbers *own,
                                              uint32_t stats) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        float lse[2];
        if (OWN_KEYS) lse[0] = stat_of(stats, 0, n, 0) * LOG2E, lse[1] = stat_of(stats, 0, n, 1) * LOG2E;
#pragma unroll
        for (int y = 0; y < 4; y++)
            s[4 * n + y] = exp2_fast(__fmaf_rn(s[4 * n + y], unit[n / 8], -(OWN_KEYS ? lse[y & 1] : own->lse[y >> 1])));
    }
}
/* P of column and products to dS; unit[y] of block y: to dP. p gets the share of a sink if `shares`. */
static __device__ __forceinline__ void form_ds(float p[N_S], float d[N_S], const float unit[BLOCKS],
                                               const struct own_numbers *own, uint32_t stats) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        float shift[2], share[2];
        if (OWN_KEYS) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                shift[e] = stat_of(stats, 1, n, e);
                share[e] = SHARES ? stat_of(stats, 2, n, e) : 1;
            }
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const float sh = OWN_KEYS ? shift[y & 1] : own->shift[y >> 1],
                        g = OWN_KEYS ? share[y & 1] : own->share[y >> 1];
            if (!SHARES) {
                d[4 * n + y] = p[4 * n + y] * __fmaf_rn(d[4 * n + y], unit[n / 8], -sh);
                continue;
            }
            d[4 * n + y] = p[4 * n + y] * __fmaf_rn(d[4 * n + y] * unit[n / 8], g, -sh);
            p[4 * n + y] *= g;
        }
    }
}
/* Pairs that do not count become 0. own0: the warp's first own row; other0: the tile's first. */
static __device__ __forceinline__ void hide(const struct kp_sdpa *p, const struct work *w, float s[N_S], int own0,
                                            int other0) {
    const int own_end = OWN_KEYS ? w->seq.sk : w->seq.sq, end = OWN_KEYS ? w->seq.sq : w->seq.sk;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int o = own0 + 8 * r + (lane_of() >> 2);
        int lo = OWN_KEYS ? o - w->off - p->window_right : o + w->off - p->window_left,
            hi = OWN_KEYS ? o - w->off + p->window_left + 1 : o + w->off + p->window_right + 1;
        lo = max(lo, 0) - other0 - 2 * (lane_of() & 3);
        hi = (o < own_end ? min(hi, end) : 0) - other0 - 2 * (lane_of() & 3);
#pragma unroll
        for (int x = 0; x < N_S; x++) {
            const int j = 8 * (x >> 2) + (x & 1);
            if ((x >> 1 & 1) == r && (j < lo || j >= hi)) s[x] = 0;
        }
    }
}

/* Own keys of 128 columns: both gradients fill the registers. P waits as hi and lo while dP is formed; a sink has no
 * share. */
constexpr int SERIAL = OWN_KEYS && DIM == 128;
static __device__ __forceinline__ void unsplit_cells(float s[N_S], const uint32_t hi[N_P], const uint32_t lo[N_P],
                                                     const float unit[2], uint32_t zero) {
#pragma unroll
    for (int y = 0; y < N_P; y++) {
        const uint32_t a = hi[y] ^ zero, b = lo[y] ^ zero; /* else they are numbers while products are under way */
        s[2 * y] = (unpack16(KP_F16, a) + unpack16(KP_F16, b)) * unit[y & 1];
        s[2 * y + 1] = (unpack16(KP_F16, a >> 16) + unpack16(KP_F16, b >> 16)) * unit[y & 1];
    }
}
/* Slot x of a step whose first slot is `first`, found anew: four slots need not be kept. */
static __device__ __forceinline__ uint32_t slot_of(uint32_t first, int x) {
    const uint32_t slot = (uint32_t)recompute((int)first) + (uint32_t)x;
    return slot < SLOTS ? slot : slot - SLOTS;
}
static __device__ __forceinline__ uint32_t slot_place(uint32_t shared, uint32_t first, int x) {
    return shared + RING + slot_of(first, x) * HALF;
}
static __device__ __forceinline__ void release(uint32_t shared, uint32_t slot) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(shared + FREE + 8 * slot);
}

/* ------------------------------------------------------------------ a work tile -------------------- */

static __device__ __forceinline__ void add_part(float *gradient, float sum[COLS / 2], const float unit[2],
                                                float other) {
    const float both[2] = {unit[0] * other, unit[1] * other};
    wgmma_hold(sum, COLS / 2);
#pragma unroll
    for (int x = 0; x < COLS / 2; x++) gradient[x] = __fmaf_rn(sum[x], both[x >> 1 & 1], gradient[x]);
}
static __device__ __forceinline__ float block_unit(uint64_t units, int64_t head, int blocks, int row, int end) {
    return ((const float *)units)[head * blocks + min(row, end - 1) / BLOCK];
}
static __device__ __forceinline__ void store_gradient(const struct work *w, const struct kp_view *v, int width,
                                                      float scale, int own0, const float gradient[N_G]) {
    const int exist = OWN_KEYS ? w->seq.keys : w->seq.rows, t = 2 * (lane_of() & 3), pairs = v->chunk == 16;
    if (!v->data) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own0 + 8 * r + (lane_of() >> 2);
        if (row >= exist) continue;
        float *const to = (float *)v->data + w->b * v->batch + w->head * v->head +
                          ((OWN_KEYS ? w->seq.k0 : w->seq.q0) + row) * v->row + t;
#pragma unroll
        for (int j = 0; j < N_G / 4; j++) {
            const float a = gradient[4 * j + 2 * r] * scale, b = gradient[4 * j + 2 * r + 1] * scale;
            const int left = width - 8 * j - t;
            if (left > 1 && pairs) {
                *(float2 *)(to + 8 * j) = make_float2(a, b);
                continue;
            }
            if (left > 0) to[8 * j] = a;
            if (left > 1) to[8 * j + 1] = b;
        }
    }
}
/* The tile holds the end of the other side's rows, `valid` of them: all compute warpgroups clear those past it. */
static __device__ __forceinline__ void clear_tail(const uint32_t slots[4], int valid) {
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll 1
        for (int y = (int)threadIdx.x; y < (TILE - valid) * (DIM / 8); y += CONSUMERS) {
            const int row = valid + y / (DIM / 8), chunk = y % (DIM / 8);
            shared_store128(slots[x] + chunk / 8 * SLICE + row * 128 + chunk % 8 * 16, make_uint4(0, 0, 0, 0));
        }
    async_fence();
    named_sync(TAIL_CLEARED, CONSUMERS);
}

static __device__ __forceinline__ void consume(const struct kp_sdpa_bwd_f16x2 *kp, uint32_t shared) {
    const struct kp_sdpa_wide_bwd *k = &kp->all;
    const struct kp_sdpa_bwd *p = &k->bwd;
    const int wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    struct ring ring = {0, 0};
    uint32_t stats = shared + STATS;
    float ga[N_G], gb[N_G];
#pragma unroll
    for (int x = 0; x < N_G; x++) ga[x] = gb[x] = 0;
    struct own_numbers own;
    if (!OWN_KEYS) {
        const struct work w = recall_work(shared + WORK);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = w.own0 + 64 * wg + 16 * warp_of() + 8 * r + (lane_of() >> 2);
            const int64_t stat = w.head * p->stat_rows + w.stat0 + i;
            own.lse[r] = i < w.seq.sq ? ((const float *)p->stat_lse)[stat] * LOG2E : INF;
            own.shift[r] = i < w.seq.sq ? ((const float *)p->stat_shift)[stat] : 0;
            own.share[r] = i < w.seq.sq ? ((const float *)p->stat_g)[stat] : 1;
        }
    }
    if ((int)shared_load32(shared + WORK) > 0) {
        if (wg == GROUPS - 1) named_arrive(TURN, CONSUMERS);
        mbar_wait(shared + OWN_FULL, 0);
#pragma unroll 1
        for (int y = 0; y < (int)shared_load32(shared + WORK + 44); y++) {
#pragma unroll 1
            for (int n = 0; n < (int)shared_load32(shared + WORK); n++) {
                const struct work work = recall_work(shared + WORK), *w = &work;
                const int own0 = w->own0 + 64 * wg, own_row = own0 + 16 * warp_of(), row = (w->first + n) * TILE;
                const int own_end = OWN_KEYS ? w->seq.sk : w->seq.sq, other_end = OWN_KEYS ? w->seq.sq : w->seq.sk;
                const int has_tail = p->in.cu_seqlens_q || (OWN_KEYS ? p->in.seqlens_q : p->in.seqlens_k);
                float a[BLOCKS], b[BLOCKS], s_unit[BLOCKS], d_unit[BLOCKS], unit[2];
                uint32_t slots[4], full[4], hi[N_P], lo[N_P];
#pragma unroll
                for (int x = 0; x < 4; x++, next_slot(&ring)) {
                    slots[x] = shared + RING + ring.slot * HALF, full[x] = ring.slot;
                    mbar_wait(shared + FULL + 8 * ring.slot, ring.phase);
                }
                constexpr int A = OWN_KEYS ? 0 : 2, B = 2 - A; /* lo, then hi */
                if (has_tail && row + TILE > other_end) clear_tail(slots, other_end - row);
                {
                    const int64_t head_q = w->b * p->in.heads_q + w->head0 + y,
                                  head_k = w->b * p->in.heads_k + w->head_k;
                    const int64_t own_head = OWN_KEYS ? head_k : head_q, other_head = OWN_KEYS ? head_q : head_k;
                    const int own_blocks = OWN_KEYS ? k->wide.blocks_k : k->wide.blocks_q,
                              other_blocks = OWN_KEYS ? k->wide.blocks_q : k->wide.blocks_k;
                    const float own_a = p->in.scale * LOG2E *
                                        block_unit(OWN_KEYS ? k->wide.unit_k : k->wide.unit_q, own_head, own_blocks,
                                                   own0, own_end),
                                own_b = block_unit(OWN_KEYS ? k->wide.unit_v : k->wide.unit_o, own_head, own_blocks,
                                                   own0, own_end);
#pragma unroll
                    for (int x = 0; x < BLOCKS; x++) {
                        a[x] = block_unit(OWN_KEYS ? k->wide.unit_q : k->wide.unit_k, other_head, other_blocks,
                                          row + x * BLOCK, other_end);
                        b[x] = block_unit(OWN_KEYS ? k->wide.unit_o : k->wide.unit_v, other_head, other_blocks,
                                          row + x * BLOCK, other_end);
                        s_unit[x] = own_a * a[x], d_unit[x] = own_b * b[x];
                    }
                }
                const int own1 = own0 + 63, row1 = row + TILE - 1;
                const int inner =
                    own1 < own_end && row1 < other_end &&
                    (OWN_KEYS
                         ? own1 - row - w->off <= p->in.window_right && own0 - row1 - w->off >= -p->in.window_left
                         : row1 - own0 - w->off <= p->in.window_right && row - own1 - w->off >= -p->in.window_left);
                const uint32_t own_rows = shared + 8192 * (uint32_t)wg;
                float s[N_S], d[N_S];
                named_sync(TURN + wg, CONSUMERS);
                start_scores(s, own_rows, slots[A], slots[A + 1]);
                if (!SERIAL) start_scores(d, own_rows + 2 * OWN_HALF, slots[B], slots[B + 1]);
                named_arrive(TURN + (wg ^ 1), CONSUMERS);
                wgmma_wait(0);
                wgmma_hold(s, N_S);
                if (!SERIAL) wgmma_hold(d, N_S);
                form_p(s, s_unit, &own, stats);
                if (!inner) hide(&p->in, w, s, own_row, row);
                if (SERIAL) {
                    const uint32_t first = full[0];
                    float sum[COLS / 2];
                    split_cells(s, hi, lo, unit);
#pragma unroll
                    for (int x = 0; x < ACROSS; x++) {
                        start_part(sum, hi, lo, 0, x, slot_place(shared, first, B), slot_place(shared, first, B + 1));
                        wgmma_wait(0);
                        add_part(gb + x * COLS / 2, sum, unit, b[0]);
                    }
                    start_scores(d, own_rows + 2 * OWN_HALF, slot_place(shared, first, B),
                                 slot_place(shared, first, B + 1));
                    wgmma_wait(0);
                    wgmma_hold(d, N_S);
                    release(shared, slot_of(first, B)), release(shared, slot_of(first, B + 1));
                    unsplit_cells(s, hi, lo, unit, __float_as_uint(d[0]) == 0x7fc12345u); /* 0, known after d */
                    form_ds(s, d, d_unit, &own, stats);
                    if (!inner) { /* rows past a sequence may be NaN */
                        const struct work again = recall_work(shared + WORK);
                        hide(&p->in, &again, d, again.own0 + 64 * wg + 16 * warp_of(), (again.first + n) * TILE);
                    }
                    split_cells(d, hi, lo, unit);
#pragma unroll
                    for (int x = 0; x < ACROSS; x++) {
                        start_part(sum, hi, lo, 0, x, slot_place(shared, first, A), slot_place(shared, first, A + 1));
                        wgmma_wait(0);
                        add_part(ga + x * COLS / 2, sum, unit, a[0]);
                    }
                } else if (OWN_KEYS) {
                    float sum[2][COLS / 2], unit_p[2];
                    uint32_t p_hi[N_P], p_lo[N_P];
                    form_ds(s, d, d_unit, &own, stats);
                    if (!inner) hide(&p->in, w, d, own_row, row); /* rows past a sequence may be NaN */
                    split_cells(s, p_hi, p_lo, unit_p);
                    start_part(sum[0], p_hi, p_lo, 0, 0, slots[B], slots[B + 1]);
                    split_cells(d, hi, lo, unit);
                    start_part(sum[1], hi, lo, 0, 0, slots[A], slots[A + 1]);
                    wgmma_wait(1);
                    add_part(gb, sum[0], unit_p, b[0]);
                    wgmma_wait(0);
                    add_part(ga, sum[1], unit, a[0]);
                    release(shared, full[B]), release(shared, full[B + 1]);
                } else {
                    float sum[2][COLS / 2];
                    release(shared, full[B]), release(shared, full[B + 1]);
                    form_ds(s, d, d_unit, &own, stats);
                    if (!inner) hide(&p->in, w, d, own_row, row); /* rows past a sequence may be NaN */
                    split_cells(d, hi, lo, unit);
#pragma unroll
                    for (int x = 0; x < 2; x++)
                        start_part(sum[x], hi, lo, x / ACROSS, x % ACROSS, slots[A], slots[A + 1]);
#pragma unroll
                    for (int x = 0; x < 2; x++) {
                        wgmma_wait(1 - x);
                        add_part(ga + x % ACROSS * COLS / 2, sum[x], unit, a[x / ACROSS]);
                    }
                }
                if (SERIAL) {
                    release(shared, slot_of(full[0], A)), release(shared, slot_of(full[0], A + 1));
                } else {
                    release(shared, full[A]), release(shared, full[A + 1]);
                }
                stats += 3 * STAT_BYTES;
                if (stats == shared + BARRIERS) stats = shared + STATS;
            }
        }
        if (wg == 0) named_sync(TURN, CONSUMERS);
    }
    const struct work w = recall_work(shared + WORK);
    const int own_row = w.own0 + 64 * wg + 16 * warp_of();
    store_gradient(&w, OWN_KEYS ? &p->dk : &p->dq, p->in.dim_qk, p->in.scale, own_row, ga);
    if (OWN_KEYS) store_gradient(&w, &p->dv, p->in.dim_v, 1, own_row, gb);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_bwd_f16x2 kp) {
    const uint32_t shared = shared_base();
    struct work w;
    static_assert(OWN_KEYS ? BLOCKS == 1 : BLOCKS * ACROSS == 2, "two sums a step");
    if (!find_work(&kp.all, &w)) return;
    if (threadIdx.x == 0) {
        keep_work(shared + WORK, &w);
        mbar_init(shared + OWN_FULL, 1);
        for (int x = 0; x < SLOTS; x++)
            mbar_init(shared + FULL + 8 * x, 1), mbar_init(shared + FREE + 8 * x, 4 * GROUPS);
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_fewer<40>();
        if (threadIdx.x == CONSUMERS && w.n_tiles > 0) produce(&kp, &w, shared);
    } else {
        registers_more<232>();
        consume(&kp, shared);
    }
}
