/* SPDX-License-Identifier: MIT
 * tcgen05.mma for one CTA or a pair: kinds f16, tf32 and f8f6f4 with 8-bit types; A from shared or tensor memory. One
 * thread starts a product; products of a CTA go in order, at moments that the policy chooses. Row m of D is
 *   one CTA  M 128: lane m                    M 64: lane m / 16 * 32 + m % 16
 *   a pair   M 256: CTA m / 128, lane m % 128  M 128: CTA m / 64, lane m % 64, columns from N / 2 on in lanes 64 ..
 * CTA v of a pair holds half of A's rows and half of B's columns, each at the place that the one descriptor tells. */
#include "exec.h"
#include "formats.h"
#include "report.h"
#include "tensor_memory.h"
#include "wgmma_math.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_F16, KIND_TF32, KIND_F8 };
enum { CHUNKS = 512 };

struct product {
    uint32_t m, n, number, d, a_cells; /* a_cells: address of A in tensor memory, if from_cells */
    uint8_t from_cells, accumulate, half_sums, mn_a, mn_b, negate, ctas; /* ctas: 1 or 2 */
    enum wgmma_type a_type, b_type;
    uint32_t n_a, n_b, chunks_a[CHUNKS], chunks_b[CHUNKS];
};

static struct sim_cta *cta_of(const struct sim_warp *w, const struct product *p, uint32_t v) {
    uint32_t first = p->ctas == 2 ? w->cta->rank & ~1u : w->cta->rank;
    return &w->cta->cluster->ctas[first + v];
}
/* Where row m, column n of D is: the CTA of the pair and the lane; the column may move. */
static uint32_t lane_of(const struct product *p, uint32_t m, uint32_t *n, uint32_t *v) {
    *v = 0;
    if (p->ctas == 1) return p->m == 128 ? m : m / 16 * 32 + m % 16;
    *v = m / (p->m / 2);
    if (p->m == 256) return m % 128;
    if (*n < p->n / 2) return m % 64;
    *n -= p->n / 2;
    return 64 + m % 64;
}

static void read_a_cells(const struct sim_flight *f, const struct product *p, float *a, uint32_t k) {
    const uint32_t size = wgmma_size(p->a_type), column = p->a_cells & 0xffff;
    for (uint32_t m = 0; m < p->m; m++) {
        uint32_t none = 0, v, lane = lane_of(p, m, &none, &v);
        const uint8_t *row = (const uint8_t *)&cta_of(f->w, p, v)->hopper->tensor->cells[lane][column];
        for (uint32_t c = 0; c < k * size / 16; c++) {
            float values[16];
            uint32_t n = wgmma_widen(row + 16 * c, p->a_type, values);
            memcpy(a + m * WGMMA_MAX_K + c * n, values, n * sizeof *values);
        }
    }
}
static void move_sums(const struct sim_flight *f, const struct product *p, float *sums, int store) {
    for (uint32_t m = 0; m < p->m; m++)
        for (uint32_t n = 0; n < p->n; n++) {
            uint32_t column = n, v, lane = lane_of(p, m, &column, &v);
            struct sim_tensor_memory *t = cta_of(f->w, p, v)->hopper->tensor;
            uint32_t *cell = &t->cells[lane][(p->d & 0xffff) + column];
            if (store) {
                *cell = p->half_sums ? sim_to_f16(sums[m * p->n + n]) : sim_bits_of(sums[m * p->n + n]);
                t->written[lane][(p->d & 0xffff) + column] = 1;
            } else {
                sums[m * p->n + n] = p->half_sums ? sim_from_f16(*cell & 0xffff) : sim_float(*cell);
            }
        }
}

static int perform(struct sim_flight *f) {
    struct sim_tensor_memory *t = f->w->cta->hopper->tensor;
    const struct product *p = f->data;
    if (t->n_done != p->number) return 0;
    const uint32_t k = 32 / wgmma_size(p->a_type), rows_a = p->m / p->ctas, rows_b = p->n / p->ctas;
    float *a = calloc(256 * WGMMA_MAX_K + WGMMA_MAX_K * 256 + 256 * 256, sizeof *a);
    if (!a) abort();
    float *b = a + 256 * WGMMA_MAX_K, *sums = b + WGMMA_MAX_K * 256;
    for (uint32_t v = 0; v < p->ctas; v++) {
        const uint8_t *shared = cta_of(f->w, p, v)->shared;
        if (!p->from_cells)
            wgmma_gather(shared, p->chunks_a, p->n_a, rows_a, p->mn_a, p->a_type, 0, a + v * rows_a * WGMMA_MAX_K,
                         WGMMA_MAX_K);
        wgmma_gather(shared, p->chunks_b, p->n_b, rows_b, p->mn_b, p->b_type, 1, b + v * rows_b, p->n);
    }
    if (p->from_cells) read_a_cells(f, p, a, k);
    if (p->negate)
        for (uint32_t i = 0; i < p->m * WGMMA_MAX_K; i++) a[i] = -a[i];
    if (p->accumulate) move_sums(f, p, sums, 0);
    for (uint32_t m = 0; m < p->m; m += 64)
        wgmma_product(sums + (size_t)m * p->n, a + (size_t)m * WGMMA_MAX_K, b, p->n, k);
    move_sums(f, p, sums, 1);
    free(a);
    t->n_done++;
    return 1;
}

/* Descriptors here have the swizzle in three bits and a version; what is left is wgmma's. */
static int chunks_of(struct sim_warp *w, const struct sim_ins *in, uint64_t desc, int mn_major, uint32_t rows,
                     uint32_t *out, uint32_t *n, char name) {
    static const int8_t modes[8] = {0, -1, 1, -1, 2, -1, 3, -1};
    int mode = modes[desc >> 61];
    if (mode < 0 || (desc >> 46 & 7) != 1 || desc >> 52 & 1) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "the descriptor of %c, 0x%llx: swizzle or version", name,
                 (unsigned long long)desc);
        return -1;
    }
    uint64_t plain = (desc & UINT64_C(0x3fff3fff3fff)) | (desc & UINT64_C(7) << 49) | (uint64_t)mode << 62;
    *n = wgmma_chunks(plain, mn_major, rows, out);
    for (uint32_t i = 0; i < *n; i++) {
        if (out[i] < SIM_SHARED_BASE || out[i] - SIM_SHARED_BASE + 16 > w->cta->shared_bytes) {
            sim_find(w, in, 1, SIM_F_BOUNDS, "the descriptor of %c reaches shared address 0x%x, the CTA has %u bytes",
                     name, out[i], w->cta->shared_bytes);
            return -1;
        }
        out[i] -= SIM_SHARED_BASE;
    }
    return 0;
}

/* The instruction descriptor. 0, or -1 after a finding. */
static int read_shape(struct sim_warp *w, const struct sim_ins *in, uint32_t i, struct product *p) {
    static const enum wgmma_type types[3][2] = {
        {WGMMA_F16, WGMMA_BF16}, {WGMMA_TF32, WGMMA_TF32}, {WGMMA_E4M3, WGMMA_E5M2}};
    uint32_t a = i >> 7 & 7, b = i >> 10 & 7, d = i >> 4 & 3, low = in->x == KIND_TF32 ? 2 : 0;
    p->n = (i >> 17 & 63) * 8, p->m = (i >> 24 & 31) * 16;
    int good = p->ctas == 1 ? (p->m == 64 && p->n >= 8) || (p->m == 128 && p->n >= 16 && p->n % 16 == 0)
                            : (p->m == 128 || p->m == 256) && p->n >= 16 && p->n % (p->from_cells ? 32 : 16) == 0;
    if (a - low > 1 || b - low > 1 || (low && (a != 2 || b != 2)) || d > 1 || (i & 0xf) || i >> 29 || p->n > 256 ||
        !good) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "instruction descriptor 0x%x: types %u, %u to %u, %u x %u", i, a, b, d, p->m,
                 p->n);
        return -1;
    }
    p->a_type = types[in->x][a - low], p->b_type = types[in->x][b - low], p->half_sums = d == 0;
    p->negate = (i >> 13 ^ i >> 14) & 1;
    p->mn_a = i >> 15 & 1, p->mn_b = i >> 16 & 1;
    if ((p->mn_a || p->mn_b) && wgmma_size(p->a_type) != 2) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "operands of other than 16 bits must have k along their rows");
        return -1;
    }
    return 0;
}

static int check(struct sim_warp *w, const struct sim_ins *in, struct product *p) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    const uint32_t actor = sim_tensor_core_actor(w->cta), time = t->base + p->number + 1;
    const uint32_t columns = p->ctas == 2 && p->m == 128 ? p->n / 2 : p->n;
    const int races = w->cta->cluster->launch->options.races;
    for (uint32_t v = 0; v < p->ctas; v++) {
        struct sim_cta *cta = cta_of(w, p, v);
        int found = !races;
        for (uint32_t i = 0; i < p->n_a && !found; i++)
            found = sim_async_read(w, in, cta, 0, p->chunks_a[i], 16, actor, time);
        for (uint32_t i = 0; i < p->n_b && !found; i++)
            found = sim_async_read(w, in, cta, 0, p->chunks_b[i], 16, actor, time);
        cta->hopper->tensor->issuer = w->actor;
        if (p->from_cells && sim_tensor_touch(w, in, cta, 15, p->a_cells & 0xffff, 8, actor, time, SIM_CELLS_READ))
            return -1;
        if (sim_tensor_touch(w, in, cta, 15, p->d & 0xffff, columns, actor, time, SIM_CELLS_WRITTEN)) return -1;
    }
    return 0;
}

/* o[0]: D, o[1]: A, o[2]: B, o[3]: descriptor, o[4]: accumulate; list: lanes of D that are not written. */
SIM_HEAD(multiply) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    uint32_t l = (uint32_t)__builtin_ctz(m);
    if (m & (m - 1)) {
        sim_find(w, in, m, SIM_F_DIVERGENCE, "one thread starts a product, not %d", __builtin_popcount(m));
        return SIM_FAULT;
    }
    if ((in->z == 2 && (w->cta->cluster->n_ctas & 1)) || (t->group && t->group != in->z)) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "cta_group::%u here, cta_group::%u before, %u CTAs", in->z, t->group,
                 w->cta->cluster->n_ctas);
        return SIM_FAULT;
    }
    for (uint32_t i = 0; i < in->n; i++)
        if (W32(w->list[in->list + i])[l]) {
            sim_find(w, in, m, SIM_F_PROTOCOL, "lanes that are not to be written are not modelled");
            return SIM_FAULT;
        }
    struct product *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->ctas = in->z, p->from_cells = in->y, p->d = W32(in->o[0])[l] + (uint32_t)in->imm;
    p->accumulate = w->p[in->o[4]] >> l & 1;
    p->number = t->n_products;
    if (p->from_cells) p->a_cells = W32(in->o[1])[l] + in->target;
    int bad = read_shape(w, in, W32(in->o[3])[l], p);
    if (!bad && !p->from_cells)
        bad = chunks_of(w, in, W64(in->o[1])[l], p->mn_a, p->m / p->ctas, p->chunks_a, &p->n_a, 'A');
    bad = bad || chunks_of(w, in, W64(in->o[2])[l], p->mn_b, p->n / p->ctas, p->chunks_b, &p->n_b, 'B');
    if (!bad && (p->d >> 16 || p->a_cells >> 16)) {
        sim_find(w, in, m, SIM_F_BOUNDS, "D or A of a product begin at lane 0 of tensor memory");
        bad = 1;
    }
    bad = bad || check(w, in, p);
    if (bad) {
        free(p);
        return SIM_FAULT;
    }
    t->n_products++;
    struct sim_flight f = {
        .in = in, .w = w, .lane = l, .kind = SIM_FLIGHT_TENSOR, .stages = 1, .step = perform, .data = p};
    return sim_flight_add(w->cta->cluster, f) < 0 ? SIM_FAULT : SIM_NEXT;
}

SIM_DECODER(tensor_product) {
    static const char *const kinds[] = {"kind::f16", "kind::tf32", "kind::f8f6f4"};
    int kind = -1;
    for (int i = 0; i < 3; i++)
        if (sim_word(d, kinds[i])) kind = i;
    if (kind < 0 || d->n < 5 || d->n > 6) return;
    int lanes = d->n == 6;
    if (lanes && d->o[4].kind != PTX_VECTOR) return; /* scale-input-d */
    in->x = (uint8_t)kind;
    in->y = d->o[1].kind == PTX_ADDRESS;
    if (in->y) {
        sim_address(d, in, &d->o[1], 1);
        in->target = (uint32_t)in->imm;
    } else {
        in->o[1] = sim_source(d, &d->o[1], 64);
    }
    sim_address(d, in, &d->o[0], 0);
    in->o[2] = sim_source(d, &d->o[2], 64);
    in->o[3] = sim_source(d, &d->o[3], 32);
    in->o[4] = sim_source(d, &d->o[d->n - 1], 1);
    in->list = d->program->n_list;
    if (lanes) in->n = sim_list(d, &d->o[4], 32, 0);
    in->exec = multiply;
}
