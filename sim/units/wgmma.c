/* SPDX-License-Identifier: MIT
 * wgmma: products of a warpgroup. The four warps start a product one by one; when all have, it is under way, reads its
 * operands and gives its sums at one moment that the policy chooses, in the order of the products. A warp's wait covers
 * the product as a whole. What a warp may read of shared memory is checked for each when it starts the product.
 * Lane 4 g + t of warp w: sums d[4 j + 2 h + e] row 16 w + g + 8 h, column 8 j + 2 t + e; A in registers as mma.sync.
 */
#include "checks/report.h"
#include "exec/exec.h"
#include "exec/formats.h"
#include "units/hopper.h"
#include "units/wgmma_math.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_REGISTERS = 1, NEGATE_A = 2, NEGATE_B = 4, MN_A = 8, MN_B = 16, HALF_SUMS = 32 };
enum { CHUNKS_A = 128, CHUNKS_B = 512 };

struct product {
    const struct sim_ins *in;
    uint64_t a, b; /* descriptors */
    uint8_t arrived, scale;
    uint32_t n_a, n_b;
    uint32_t chunks_a[CHUNKS_A], chunks_b[CHUNKS_B]; /* offsets in the CTA's shared memory */
};
struct sim_warpgroup {
    uint32_t base, first, n, ready, done, room; /* times start behind base; products [first, n) are kept */
    struct product *kept;
};

void sim_products_make(struct sim_cta *cta) {
    uint32_t groups = (cta->n_warps + 3) / 4;
    cta->hopper->groups = calloc(groups, sizeof *cta->hopper->groups);
    if (!cta->hopper->groups) abort();
}
void sim_products_free(struct sim_cta *cta) {
    for (uint32_t i = 0; cta->hopper->groups && i < (cta->n_warps + 3) / 4; i++) free(cta->hopper->groups[i].kept);
    free(cta->hopper->groups);
}
void sim_products_start(struct sim_cta *cta, uint32_t clock_base) {
    for (uint32_t i = 0; i < (cta->n_warps + 3) / 4; i++) {
        struct sim_warpgroup *g = &cta->hopper->groups[i];
        *g = (struct sim_warpgroup){.base = clock_base + 1, .room = g->room, .kept = g->kept};
    }
}
uint32_t sim_products_top(const struct sim_cta *cta) {
    uint32_t top = 0;
    for (uint32_t i = 0; cta->hopper->groups && i < (cta->n_warps + 3) / 4; i++) {
        const struct sim_warpgroup *g = &cta->hopper->groups[i];
        if (g->base + g->n + 1 > top) top = g->base + g->n + 1;
    }
    return top;
}
static struct sim_warpgroup *group_of(const struct sim_warp *w) { return &w->cta->hopper->groups[w->index / 4]; }
static uint32_t actor_of(const struct sim_warp *w) {
    return w->cta->cluster->hopper->actors.products + w->cta->rank * ((w->cta->n_warps + 3) / 4) + w->index / 4;
}

/* ---- what a product does when its moment has come ---- */

static void read_registers(const struct sim_warp *first, const struct sim_ins *in, enum wgmma_type type, float *a) {
    uint32_t size = wgmma_size(type), parts = 4 / size;
    for (uint32_t q = 0; q < 4; q++) {
        const struct sim_warp *w = first + q;
        for (uint32_t r = 0; r < 4; r++) EACH_LANE {
                uint8_t chunk[16] = {0};
                float values[16];
                memcpy(chunk, &W32(w->list[in->list + in->n + r])[l], 4);
                wgmma_widen(chunk, type, values);
                for (uint32_t e = 0; e < parts; e++)
                    a[(16 * q + l / 4 + 8 * (r & 1)) * WGMMA_MAX_K + (l % 4 + 4 * (r >> 1)) * parts + e] = values[e];
            }
    }
}
static void move_sums(const struct sim_warp *first, const struct sim_ins *in, float *sums, uint32_t n, int store) {
    for (uint32_t q = 0; q < 4; q++) {
        const struct sim_warp *w = first + q;
        for (uint32_t i = 0; i < n / 2; i++) { /* sums of a lane */
            uint32_t place = w->list[in->list + (in->x & HALF_SUMS ? i / 2 : i)], high = in->x & HALF_SUMS ? i & 1 : 0;
            EACH_LANE {
                float *sum = &sums[(16 * q + l / 4 + 8 * (i >> 1 & 1)) * n + 8 * (i >> 2) + 2 * (l % 4) + (i & 1)];
                uint32_t *word = &W32(place)[l];
                if (!(in->x & HALF_SUMS)) {
                    if (store)
                        *word = sim_bits_of(*sum);
                    else
                        *sum = sim_float(*word);
                } else if (!store) {
                    *sum = sim_from_f16(*word >> (16 * high) & 0xffff);
                } else {
                    *word = (*word & (high ? 0xffffu : 0xffff0000u)) | sim_to_f16(*sum) << (16 * high);
                }
            }
        }
    }
}

static int perform(struct sim_flight *f) {
    struct sim_warpgroup *g = group_of(f->w);
    if (f->group != g->done) return 0; /* products of a warpgroup go in order */
    static _Thread_local float room[64 * WGMMA_MAX_K + WGMMA_MAX_K * WGMMA_MAX_N + 64 * WGMMA_MAX_N];
    float *a = room, *b = a + 64 * WGMMA_MAX_K, *sums = b + WGMMA_MAX_K * WGMMA_MAX_N;
    const struct product *p = &g->kept[f->group - g->first];
    const struct sim_ins *in = p->in;
    const struct sim_warp *first = &f->w->cta->warps[f->w->index / 4 * 4];
    const uint8_t *shared = f->w->cta->shared;
    uint32_t n = 8u * in->count, k = 32u / in->bytes;
    if (in->x & IN_REGISTERS)
        read_registers(first, in, (enum wgmma_type)in->y, a);
    else
        wgmma_gather(shared, p->chunks_a, p->n_a, 64, in->x & MN_A, (enum wgmma_type)in->y, 0, a, WGMMA_MAX_K);
    wgmma_gather(shared, p->chunks_b, p->n_b, n, in->x & MN_B, (enum wgmma_type)in->z, 1, b, n);
    if (!(in->x & NEGATE_A) != !(in->x & NEGATE_B))
        for (uint32_t i = 0; i < 64 * WGMMA_MAX_K; i++) a[i] = -a[i];
    if (p->scale)
        move_sums(first, in, sums, n, 0);
    else
        memset(sums, 0, 64 * (size_t)n * sizeof *sums);
    wgmma_product(sums, a, b, 64, n, k, WGMMA_MAX_K, n);
    move_sums(first, in, sums, n, 1);
    g->done++;
    if (g->done - g->first > 64) { /* forget those that are done */
        uint32_t gone = g->done - g->first;
        memmove(g->kept, g->kept + gone, (g->n - g->done) * sizeof *g->kept);
        g->first = g->done;
    }
    return 1;
}

/* ---- instructions ---- */

static int to_offsets(struct sim_warp *w, const struct sim_ins *in, uint32_t *chunks, uint32_t n, char name) {
    for (uint32_t i = 0; i < n; i++) {
        if (chunks[i] < SIM_SHARED_BASE || chunks[i] - SIM_SHARED_BASE + 16 > w->cta->shared_bytes) {
            sim_find(w, in, SIM_ALL, SIM_F_BOUNDS,
                     "the descriptor of %c reaches shared address 0x%x, the CTA has %u bytes "
                     "from 0x%x on",
                     name, chunks[i], w->cta->shared_bytes, SIM_SHARED_BASE);
            return -1;
        }
        chunks[i] -= SIM_SHARED_BASE;
    }
    return 0;
}

static struct product *begin(struct sim_warp *w, const struct sim_ins *in, struct sim_warpgroup *g, uint64_t a,
                             uint64_t b, uint8_t scale) {
    if (g->n - g->first == g->room) {
        g->room = g->room ? 2 * g->room : 128;
        g->kept = realloc(g->kept, g->room * sizeof *g->kept);
        if (!g->kept) abort();
    }
    struct product *p = &g->kept[g->n++ - g->first];
    *p = (struct product){.in = in, .a = a, .b = b, .scale = scale};
    if (!(in->x & IN_REGISTERS)) p->n_a = wgmma_chunks(a, in->x & MN_A, 64, p->chunks_a);
    p->n_b = wgmma_chunks(b, in->x & MN_B, 8u * in->count, p->chunks_b);
    return to_offsets(w, in, p->chunks_a, p->n_a, 'A') || to_offsets(w, in, p->chunks_b, p->n_b, 'B') ? NULL : p;
}

/* The chunks that the warp's part of the product reads: its 16 rows of A, all of B. */
static void check_shared(struct sim_warp *w, const struct sim_ins *in, const struct product *p, uint32_t time) {
    uint32_t actor = actor_of(w), quarter = w->index % 4;
    enum sim_found found = SIM_FOUND_NOTHING;
    for (uint32_t i = 0; i < p->n_a && found < SIM_FOUND_FAULT; i++) {
        uint32_t row = in->x & MN_A ? i % 8 * 8 : i / 2;
        if (row / 16 == quarter) found = sim_async_read(w, in, w->cta, 0, p->chunks_a[i], 16, actor, time, found);
    }
    for (uint32_t i = 0; i < p->n_b && found < SIM_FOUND_FAULT; i++)
        found = sim_async_read(w, in, w->cta, 0, p->chunks_b[i], 16, actor, time, found);
}

SIM_HEAD(multiply) {
    struct sim_warp_hopper *h = w->hopper;
    struct sim_warpgroup *g = group_of(w);
    struct sim_cluster *c = w->cta->cluster;
    uint64_t a = in->x & IN_REGISTERS ? 0 : W64(in->o[1])[0], b = W64(in->o[2])[0];
    uint32_t number = h->n_products, scale = w->p[in->o[3]];
    if (m != SIM_ALL || w->index / 4 * 4 + 4 > w->cta->n_warps) {
        sim_find(w, in, m, SIM_F_DIVERGENCE, "a product needs four whole warps");
        return SIM_FAULT;
    }
    EACH_LANE if (W64(in->o[2])[l] != b || (!(in->x & IN_REGISTERS) && W64(in->o[1])[l] != a)) {
        sim_find(w, in, 1u << l, SIM_F_DIVERGENCE, "lanes of the warp give different descriptors");
        return SIM_FAULT;
    }
    if (scale != 0 && scale != SIM_ALL) {
        sim_find(w, in, m, SIM_F_DIVERGENCE, "lanes of the warp differ in scale-d");
        return SIM_FAULT;
    }
    struct product *p = number == g->n ? begin(w, in, g, a, b, scale != 0) : &g->kept[number - g->first];
    if (!p) return SIM_FAULT;
    if (p->in != in || p->a != a || p->b != b || p->scale != (scale != 0)) {
        sim_find(w, in, m, SIM_F_DIVERGENCE, "warps of the warpgroup differ in product %u: another is at %s%s", number,
                 sim_place(c->launch->program, p->in->statement), p->in == in ? " with other descriptors" : "");
        return SIM_FAULT;
    }
    h->n_products++;
    sim_watch_product(w, in, number, in->n, in->x & IN_REGISTERS ? 4 : 0);
    if (c->launch->options.races) check_shared(w, in, p, g->base + number + 1);
    c->changes++;
    p->arrived |= (uint8_t)(1u << (w->index % 4));
    if (p->arrived != 15) return SIM_NEXT;
    g->ready++;
    struct sim_flight f = {.in = in, .w = w, .group = number, .kind = SIM_FLIGHT_PRODUCT, .stages = 1, .step = perform};
    return sim_flight_add(c, f) < 0 ? SIM_FAULT : SIM_NEXT;
}

SIM_HEAD(fence) {
    (void)in, (void)m;
    w->hopper->fences++;
    return SIM_NEXT;
}
SIM_HEAD(commit) {
    struct sim_warp_hopper *h = w->hopper;
    (void)in, (void)m;
    h->product_ends[h->product_groups++ % SIM_RING] = h->n_products;
    return SIM_NEXT;
}
SIM_HEAD(wait_group) {
    struct sim_warp_hopper *h = w->hopper;
    struct sim_warpgroup *g = group_of(w);
    (void)m;
    h->waits = SIM_WAITS_NOTHING;
    if (h->product_groups <= (uint32_t)in->imm) return SIM_NEXT;
    uint32_t end = h->product_ends[(h->product_groups - (uint32_t)in->imm - 1) % SIM_RING];
    if ((int32_t)(end - g->ready) > 0) { /* other warps have not started it */
        h->waits = SIM_WAITS_PRODUCTS;
        w->polling = 1;
        return SIM_BLOCK;
    }
    if (sim_flight_wait(w, SIM_FLIGHT_PRODUCT, 0, end, 0)) return SIM_FAULT;
    if (end > h->products_seen) h->products_seen = end;
    sim_learn(w, actor_of(w), g->base + end);
    return SIM_NEXT;
}

static int read_type(struct sim_decoder *d, uint32_t part, uint8_t *type) {
    static const char *const words[] = {"f16", "bf16", "tf32", "e4m3", "e5m2"};
    for (uint8_t i = 0; i < 5; i++)
        if (!strcmp(d->part[part], words[i])) {
            *type = i;
            d->used |= 1u << part;
            return 1;
        }
    return 0;
}

SIM_DECODER(wgmma) {
    d->program->uses |= SIM_USES_WGMMA;
    int kind = sim_word(d, "fence")          ? 1
               : sim_word(d, "commit_group") ? 2
               : sim_word(d, "wait_group")   ? 3
               : sim_word(d, "mma_async")    ? 4
                                             : 0;
    if (!kind || !sim_word(d, "sync") || !sim_word(d, "aligned")) return;
    in->sync = SIM_ALIGNED;
    if (kind < 4) {
        sim_want(d, kind == 3, kind == 3);
        if (kind == 3 && !d->failed) in->imm = (int64_t)sim_number(d, &d->o[0]);
        if (in->imm < 0 || in->imm > 7) sim_refuse(d, "0 to 7 groups may be left");
        in->exec = kind == 1 ? fence : kind == 2 ? commit : wait_group;
        return;
    }
    unsigned n = 0, k = 0;
    if (d->n_parts < 8 || sscanf(d->part[4], "m64n%uk%u", &n, &k) != 2 || !sim_word(d, d->part[4])) return;
    in->x = strcmp(d->part[5], "f32") ? HALF_SUMS : 0;
    if (!sim_word(d, "f32") && !sim_word(d, "f16")) return;
    if (d->n_parts != 8 || !read_type(d, 6, &in->y) || !read_type(d, 7, &in->z)) return;
    in->bytes = (uint8_t)wgmma_size((enum wgmma_type)in->y);
    if (n % 8 || n < 8 || n > WGMMA_MAX_N || k * in->bytes != 32 || wgmma_size((enum wgmma_type)in->z) != in->bytes)
        return;
    in->count = (uint8_t)(n / 8);
    if (d->n < 6) {
        sim_refuse(d, "%u operands", d->n);
        return;
    }
    int registers = d->o[1].kind == PTX_VECTOR;
    if (registers) in->x |= IN_REGISTERS;
    sim_want(d, in->bytes == 2 ? (registers ? 7 : 8) : 6, in->bytes == 2 ? (registers ? 7 : 8) : 6);
    if (d->failed) return;
    in->list = d->program->n_list;
    in->n = sim_list(d, &d->o[0], 32, 1);
    if (in->n != (in->x & HALF_SUMS ? n / 4 : n / 2)) sim_refuse(d, "%u registers of sums", in->n);
    if (!registers)
        in->o[1] = sim_source(d, &d->o[1], 64);
    else if (sim_list(d, &d->o[1], 32, 0) != 4)
        sim_refuse(d, "A in registers takes four");
    in->o[2] = sim_source(d, &d->o[2], 64);
    in->o[3] = sim_source(d, &d->o[3], 1);
    if ((int32_t)sim_number(d, &d->o[4]) == -1) in->x |= NEGATE_A;
    if ((int32_t)sim_number(d, &d->o[5]) == -1) in->x |= NEGATE_B;
    if (in->bytes == 2 && !registers && sim_number(d, &d->o[6])) in->x |= MN_A;
    if (in->bytes == 2 && sim_number(d, &d->o[registers ? 6 : 7])) in->x |= MN_B;
    in->exec = multiply;
}
