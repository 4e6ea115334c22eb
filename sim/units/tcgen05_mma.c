/* SPDX-License-Identifier: MIT
 * tcgen05.mma and .mma.ws, dense: words, instruction descriptors and what must hold when a product is started. One
 * thread starts it; work of a CTA goes in order, at moments that the policy chooses (tcgen05_math.c does it). The
 * fields of an instruction descriptor, from bit 0 on: sparse 3 (0)   saturate 1   type of D 2   1   A 3   B 3   negate
 * A, B 2   A, B along m, n 2   N / 8 6   1   M / 16 5 1   shift of .ws 2 (0) with scales: 4 (0)   first byte of B's
 * scales 2   1   A 3   B 3   negate 2   along m, n 2   N / 8 6   scales are UE8M0 1   M / 16 5   first byte of A's
 * scales 2   K of 96 1 (0) */
#include "checks/report.h"
#include "counts/counts.h"
#include "exec/exec.h"
#include "units/tcgen05_product.h"

#include <stdio.h>
#include <stdlib.h>

enum kind { KIND_F16, KIND_TF32, KIND_F8, KIND_I8, KIND_MXF8, KIND_MXF4, KIND_NVF4, KINDS };
static const struct {
    const char *word;
    int8_t formats[6]; /* by the descriptor's number; -1: none */
} kinds[KINDS] = {
    {"kind::f16", {TENSOR_F16, TENSOR_BF16, -1, -1, -1, -1}},
    {"kind::tf32", {-1, -1, TENSOR_TF32, -1, -1, -1}},
    {"kind::f8f6f4", {TENSOR_E4M3, TENSOR_E5M2, -1, TENSOR_E2M3, TENSOR_E3M2, TENSOR_E2M1}},
    {"kind::i8", {TENSOR_U8, TENSOR_S8, -1, -1, -1, -1}},
    {"kind::mxf8f6f4", {TENSOR_E4M3, TENSOR_E5M2, -1, TENSOR_E2M3, TENSOR_E3M2, TENSOR_E2M1}},
    {"kind::mxf4", {-1, TENSOR_PAIRS, -1, -1, -1, -1}},
    {"kind::mxf4nvf4", {-1, TENSOR_PAIRS, -1, -1, -1, -1}},
};
/* What collector words do to a buffer: A has one, B in .ws four. */
enum collect { DISCARD, FILL, USE, LAST_USE };
/* in->x: kind; y: A in cells; z: cta_group; count: scales of a row; bytes: .ws; type: buffer << 4 | collect; wide: D is
 * scaled by the number in `target`'s upper half */
enum { OFFSET_BITS = 16 };

static int refuse(struct sim_warp *w, const struct sim_ins *in, const char *what, uint32_t value) {
    sim_find(w, in, 1, SIM_F_PROTOCOL, "instruction descriptor 0x%x: %s", value, what);
    return -1;
}

static int shape_is_good(const struct tensor_product *p, enum kind kind) {
    const uint32_t m = p->m, n = p->n;
    if (n > 256 || n < 8) return 0;
    if (p->ws) return (m == 32 || m == 64 || m == 128) && (n == 64 || n == 128 || n == 256);
    if (kind >= KIND_MXF8)
        return p->ctas == 1 ? m == 128 : m == 256 && n % 16 == 0; /* a pair with M 128 has scales of its own order */
    if (p->ctas == 2) {
        uint32_t step = p->from_cells || kind == KIND_I8 ? 32 : 16;
        return (m == 128 || m == 256) && n % step == 0;
    }
    if (m != 64 && m != 128) return 0;
    if (kind == KIND_I8) return n == 8 || n == 24 || n % 16 == 0;
    return m == 64 || kind == KIND_F8 || n % 16 == 0;
}

/* The instruction descriptor. 0, or -1 after a finding. */
static int read_shape(struct sim_warp *w, const struct sim_ins *in, uint32_t i, struct tensor_product *p) {
    const enum kind kind = (enum kind)in->x;
    const int scaled = kind >= KIND_MXF8;
    uint32_t a = i >> 7 & 7, b = i >> 10 & 7, d = i >> 4 & 3, size;
    p->n = (i >> 17 & 63) * 8, p->m = (i >> 24 & 31) * 16;
    p->groups = (uint8_t)(p->ws ? 128 / (p->m ? p->m : 128) : p->ctas == 2 && p->m == 128 ? 2 : 1);
    if (i & 7) return refuse(w, in, "sparse A is not modelled", i);
    if (a > 5 || b > 5 || kinds[kind].formats[a] < 0 || kinds[kind].formats[b] < 0)
        return refuse(w, in, "types of A and B that this kind has not", i);
    p->a_format = (enum tensor_format)kinds[kind].formats[a], p->b_format = (enum tensor_format)kinds[kind].formats[b];
    if (!shape_is_good(p, kind)) return refuse(w, in, "M or N that this kind has not, or that is not modelled", i);
    p->negate = (i >> 13 ^ i >> 14) & 1;
    p->mn_a = i >> 15 & 1, p->mn_b = i >> 16 & 1;
    p->k = 2 * tensor_per_chunk(p->a_format);
    p->n_scales = in->count;
    if (scaled) {
        p->id_b = (uint8_t)d, p->id_a = i >> 29 & 3, p->ue4m3 = !(i >> 23 & 1);
        if (i & 0x48 || i >> 31) return refuse(w, in, "reserved bits, or K 96", i);
        if (p->ue4m3 && (kind != KIND_NVF4 || p->n_scales != 4))
            return refuse(w, in, "scales in UE4M3 are for blocks of 16", i);
        if ((p->n_scales > 1 && (p->id_a | p->id_b) & 1) || (p->n_scales > 2 && (p->id_a | p->id_b)))
            return refuse(w, in, "the first byte of the scales", i);
    } else {
        p->half_sums = d == 0, p->whole = kind == KIND_I8, p->saturate = i >> 3 & 1;
        if (i & 0x800040 || i >> 29) return refuse(w, in, "reserved bits, or a shift", i);
        if (kind == KIND_I8 ? d != 2 || i & 0x6000 : d > 1 || p->saturate)
            return refuse(w, in, "the type of D, saturation or a negated operand", i);
        if (d == 0 && (kind == KIND_TF32 || (kind == KIND_F16 && (a || b))))
            return refuse(w, in, "D in f16 is for operands in f16 and 8 bits", i);
    }
    size = 16 / tensor_per_chunk(p->a_format);
    if ((p->mn_a && (size > 2 || p->a_format > TENSOR_E5M2) && p->a_format < TENSOR_U8) ||
        (p->mn_b && (size > 2 || p->b_format > TENSOR_E5M2) && p->b_format < TENSOR_U8) ||
        ((p->mn_a || p->mn_b) && p->a_format == TENSOR_PAIRS))
        return refuse(w, in, "operands of other than 8 or 16 bits must have k along their rows", i);
    if (p->mn_a && p->from_cells) return refuse(w, in, "A in tensor memory has k along its rows", i);
    return 0;
}

static int chunks_of(struct sim_warp *w, const struct sim_ins *in, uint64_t desc, int mn_major, uint32_t rows,
                     enum tensor_format format, uint32_t *out, uint32_t *n, char name) {
    uint32_t size = 16 / tensor_per_chunk(format);
    *n = tensor_chunks(desc, mn_major, rows, 2, size ? size : 1, out);
    if (!*n) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "the descriptor of %c, 0x%llx: swizzle or version", name,
                 (unsigned long long)desc);
        return -1;
    }
    return sim_tensor_offsets(w, in, out, *n, name);
}

/* The buffer that A, or in .ws B, may be kept in. */
static int collect(struct sim_warp *w, const struct sim_ins *in, uint64_t operand, uint32_t shape) {
    struct sim_collected *c = &w->cta->hopper->tensor->collected[in->type >> 4];
    enum collect how = (enum collect)(in->type & 15);
    if (how >= USE && (!c->valid || c->operand != operand || c->shape != shape)) {
        sim_find(w, in, 1, SIM_F_PROTOCOL, "uses a collector buffer that %s",
                 c->valid ? "was filled from other operands" : "no earlier product has filled");
        return -1;
    }
    *c = (struct sim_collected){operand, shape, how == FILL || how == USE};
    return 0;
}

static int check(struct sim_warp *w, const struct sim_ins *in, struct tensor_product *p) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    const uint32_t actor = sim_tensor_core_actor(w->cta), time = t->base + p->number + 1;
    const int races = w->cta->cluster->launch->options.races;
    for (uint32_t v = 0; v < p->ctas; v++) {
        struct sim_cta *cta = tensor_cta(w, p->ctas, v);
        enum sim_found found = races ? SIM_FOUND_NOTHING : SIM_FOUND_FAULT;
        uint32_t parts = 0;
        for (uint32_t i = 0; i < p->n_a && found < SIM_FOUND_FAULT; i++)
            found = sim_async_read(w, in, cta, 0, p->chunks_a[i], 16, actor, time, found);
        for (uint32_t i = 0; i < p->n_b && found < SIM_FOUND_FAULT; i++)
            found = sim_async_read(w, in, cta, 0, p->chunks_b[i], 16, actor, time, found);
        cta->hopper->tensor->issuer = w->actor;
        if (p->from_cells &&
            sim_tensor_touch(w, in, cta, SIM_TM_ALL, p->a_cells & 0xffff, 8, actor, time, SIM_CELLS_READ))
            return -1;
        if (p->n_scales &&
            (sim_tensor_touch(w, in, cta, SIM_TM_ALL, p->scales_a & 0xffff, 4, actor, time, SIM_CELLS_READ) ||
             sim_tensor_touch(w, in, cta, SIM_TM_ALL, p->scales_b & 0xffff, (p->n + 31) / 32, actor, time,
                              SIM_CELLS_READ)))
            return -1;
        /* 64 rows of a CTA fill 16 lanes of each quarter (PTX ISA, "Data path layout organization") */
        const uint32_t half = p->m / p->ctas == 64 && p->groups == 1, lanes = half ? 1u << (p->d >> 16) % 32 / 16 : 3;
        for (uint32_t q = 0; q < 4; q++)
            if (p->disabled[4 * v + q] != UINT32_MAX) parts |= lanes << 2 * q;
        if (sim_tensor_touch(w, in, cta, parts, p->d & 0xffff, p->n / p->groups, actor, time, SIM_CELLS_WRITTEN))
            return -1;
    }
    return 0;
}

/* o[0]: D, o[1]: A, o[2]: B, o[3]: descriptor, o[4]: accumulate; list: lanes of D that are not written, addresses of
 * scales, or the zero-column mask of .ws (PTX ISA: tcgen05.mma.ws). */
SIM_HEAD(multiply) {
    struct sim_tensor_memory *t = w->cta->hopper->tensor;
    uint32_t l = (uint32_t)__builtin_ctz(m), shape = W32(in->o[3])[l];
    if (sim_tensor_starts(w, in, m)) return SIM_FAULT;
    struct tensor_product *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->ctas = in->z, p->from_cells = in->y, p->ws = in->bytes, p->d = W32(in->o[0])[l] + (uint32_t)in->imm;
    p->accumulate = w->p[in->o[4]] >> l & 1;
    p->scale_d = (uint8_t)(in->target >> OFFSET_BITS);
    p->number = t->n_products;
    if (p->from_cells) p->a_cells = W32(in->o[1])[l] + (in->target & ((1u << OFFSET_BITS) - 1));
    if (in->count)
        p->scales_a = W32(w->list[in->list])[l] & 0x3fffffff, p->scales_b = W32(w->list[in->list + 1])[l] & 0x3fffffff;
    else if (p->ws && in->n && W64(w->list[in->list])[l]) {
        sim_find(w, in, m, SIM_F_PROTOCOL, "the zero-column mask 0x%llx: only 0, no mask, is modelled",
                 (unsigned long long)W64(w->list[in->list])[l]);
        free(p);
        return SIM_FAULT;
    } else if (!p->ws)
        for (uint32_t i = 0; i < in->n; i++) p->disabled[i] = W32(w->list[in->list + i])[l];
    int bad = read_shape(w, in, shape, p);
    if (!bad && !p->from_cells)
        bad = chunks_of(w, in, W64(in->o[1])[l], p->mn_a, p->m / p->ctas, p->a_format, p->chunks_a, &p->n_a, 'A');
    bad = bad || chunks_of(w, in, W64(in->o[2])[l], p->mn_b, p->n / p->ctas, p->b_format, p->chunks_b, &p->n_b, 'B');
    const uint32_t half = p->m == 64 && p->groups == 1, lane = p->d >> 16;
    if (!bad && ((lane && (!half || lane != 16)) || (p->from_cells && p->a_cells >> 16 != lane) || p->scales_a >> 16 ||
                 p->scales_b >> 16)) {
        sim_find(w, in, m, SIM_F_BOUNDS,
                 "D, A and scales of a product begin at lane 0 of tensor memory, D and A of 64 rows also both at 16");
        bad = 1;
    }
    bad = bad || collect(w, in,
                         p->ws   ? W64(in->o[2])[l]
                         : in->y ? p->a_cells
                                 : W64(in->o[1])[l],
                         p->ws ? (shape & 0x7f5c00) : (shape & 0x1f00a380));
    bad = bad || check(w, in, p);
    if (bad) {
        free(p);
        return SIM_FAULT;
    }
    t->n_products++;
    if (w->counts) sim_count_product(w, in, p, (in->type & 15) >= USE);
    struct sim_flight f = {
        .in = in, .w = w, .lane = l, .kind = SIM_FLIGHT_TENSOR, .stages = 1, .step = tensor_product_perform, .data = p};
    return sim_flight_add(w->cta->cluster, f) < 0 ? SIM_FAULT : SIM_NEXT;
}

int sim_is_product(const struct sim_ins *in) { return in->exec == multiply; }

/* collector::a::fill and the like: buffer and what happens to it. 0 if the words are there and wrong. */
static int read_collector(struct sim_decoder *d, struct sim_ins *in) {
    static const char *const hows[] = {"discard", "fill", "use", "lastuse"};
    static const char *const buffers[] = {"a", "b0", "b1", "b2", "b3"};
    in->type = in->bytes ? 1 << 4 : 0;
    for (uint32_t i = 0; i < 20; i++) {
        char word[40];
        snprintf(word, sizeof word, "collector::%s::%s", buffers[i / 4], hows[i % 4]);
        if (!sim_word(d, word)) continue;
        in->type = (uint8_t)(i / 4 << 4 | i % 4);
        return (i >= 4) == in->bytes;
    }
    return 1;
}

static void read_scales(struct sim_decoder *d, struct sim_ins *in, enum kind kind) {
    static const struct {
        const char *word;
        uint8_t by_kind[3]; /* scales of a row: mxf8f6f4, mxf4, mxf4nvf4 */
    } sizes[] = {{"scale_vec::1X", {1, 0, 0}},
                 {"scale_vec::2X", {0, 2, 2}},
                 {"scale_vec::4X", {0, 0, 4}},
                 {"block32", {1, 2, 2}},
                 {"block16", {0, 0, 4}}};
    in->count = kind == KIND_MXF8 ? 1 : kind == KIND_MXF4 ? 2 : 0;
    for (uint32_t i = 0; i < 5; i++)
        if (sim_word(d, sizes[i].word)) in->count = sizes[i].by_kind[kind - KIND_MXF8];
    sim_want(d, 7, 7);
    if (d->failed) return;
    if (!in->count) sim_refuse(d, "this kind has no such scales");
    for (uint32_t i = 4; i < 6; i++) {
        const struct ptx_operand *o = &d->o[i];
        if (o->kind != PTX_ADDRESS || o->reg == PTX_NO_REG || o->value || d->kernel->reg_bits[o->reg] != 32) {
            sim_refuse(d, "the address of scales is a register in brackets");
            return;
        }
        sim_note(d, o->reg, 0);
        sim_list_add(d, d->reg_at[o->reg]);
    }
    in->n = 2;
}

SIM_DECODER(tensor_product) {
    int kind = -1;
    in->bytes = (uint8_t)sim_word(d, "ws");
    for (int i = 0; i < KINDS; i++)
        if (sim_word(d, kinds[i].word)) kind = i;
    const int scaled = kind >= KIND_MXF8;
    if (kind < 0 || d->n < 5 || scaled != sim_word(d, "block_scale") || (in->bytes && (in->z != 1 || scaled))) return;
    if (!read_collector(d, in)) {
        sim_refuse(d, "a collector buffer of another matrix");
        return;
    }
    in->x = (uint8_t)kind;
    in->y = d->o[1].kind == PTX_ADDRESS;
    if (in->y) {
        sim_address(d, in, &d->o[1], 1);
        if (in->imm < 0 || in->imm >> OFFSET_BITS) sim_refuse(d, "the offset of A");
        in->target = (uint32_t)in->imm;
    } else {
        in->o[1] = sim_source(d, &d->o[1], 64);
    }
    sim_address(d, in, &d->o[0], 0);
    in->o[2] = sim_source(d, &d->o[2], 64);
    in->o[3] = sim_source(d, &d->o[3], 32);
    in->list = d->program->n_list;
    uint32_t last = d->n - 1;
    if (scaled) {
        read_scales(d, in, (enum kind)kind);
    } else {
        if (d->o[last].kind == PTX_INT && d->o[last - 1].kind == PTX_REG && d->n > 5 && !in->bytes) {
            uint64_t shift = sim_number(d, &d->o[last--]); /* scale-input-d */
            if (shift > 15 || kind > KIND_TF32) sim_refuse(d, "D is divided by 2 to 0 to 15, in kinds f16 and tf32");
            in->target |= (uint32_t)shift << OFFSET_BITS;
        }
        if (last == 5 && in->bytes) {
            if (d->o[5].kind == PTX_INT && d->o[5].value) sim_refuse(d, "a zero-column mask other than 0");
            sim_list_add(d, sim_source(d, &d->o[last--], 64));
            in->n = 1;
        } else if (last == 5 && d->o[4].kind == PTX_VECTOR)
            in->n = sim_list(d, &d->o[4], 32, 0);
        else if (last != 4)
            return;
        if (in->n && !in->bytes && in->n != 4u * in->z)
            sim_refuse(d, "%u registers of lanes, not %u", in->n, 4u * in->z);
    }
    if (!d->failed) in->o[4] = sim_source(d, &d->o[last], 1);
    in->exec = multiply;
}
