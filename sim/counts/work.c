/* SPDX-License-Identifier: MIT
 * What the text of an instruction tells of the work of one execution: its class, the shape of a product, the registers
 * of a move of tensor memory. Also sums of counts. */
#include "counts/counts.h"

#include <stdlib.h>
#include <string.h>

const struct sim_count_row sim_count_rows[SIM_N_COUNTS] = {
#define ROW(member, unit, words) {#member, unit, words},
    SIM_COUNTS(ROW)
#undef ROW
};

/* ---- sums ---- */

void sim_counts_free(struct sim_counts *c) {
    free(c->products);
    c->products = NULL, c->n_products = 0;
}
static struct sim_product *product_like(struct sim_counts *c, const struct sim_product *p) {
    for (uint32_t i = 0; i < c->n_products; i++) {
        const struct sim_product *q = &c->products[i];
        if (q->kind == p->kind && q->m == p->m && q->n == p->n && q->k == p->k && q->ctas == p->ctas && q->a == p->a &&
            !strcmp(q->types, p->types))
            return &c->products[i];
    }
    c->products = realloc(c->products, (c->n_products + 1) * sizeof *c->products);
    if (!c->products) abort();
    c->products[c->n_products] = *p;
    c->products[c->n_products].parts = 0;
    return &c->products[c->n_products++];
}
void sim_counts_add(struct sim_counts *to, const struct sim_counts *from) {
    for (int i = 0; i < SIM_N_COUNTS; i++) to->v[i] += from->v[i];
    for (uint32_t i = 0; i < from->n_products; i++)
        product_like(to, &from->products[i])->parts += from->products[i].parts;
}
/* A step along k takes 32 bytes of a row, whatever the type. A pair's CTAs have half of the rows of A and B each. */
enum { STEP = 32 };
void sim_counts_product(struct sim_counts *c, const struct sim_product *p, uint64_t n) {
    const uint32_t rows_b = p->n, parts = sim_product_parts(p);
    product_like(c, p)->parts += n;
    c->v[SIM_COUNT_flops] += 2 * (uint64_t)p->m * p->n * p->k / parts * n;
    if (p->kind == SIM_MMA) return;
    if (p->a == 'T') c->v[SIM_COUNT_operand_cells] += (uint64_t)p->m * STEP * n;
    if (p->kind == SIM_TCGEN05_WS && p->a == 'C') /* its buffers keep B */
        c->v[SIM_COUNT_operand_bytes] += (uint64_t)p->m * STEP * n;
    else
        c->v[SIM_COUNT_operand_bytes] += ((p->a == 'S' ? p->m : 0) + (uint64_t)rows_b) * STEP / parts * n;
}

/* ---- words of an opcode ---- */

static int has(const char *opcode, const char *word) {
    const size_t n = strlen(word);
    for (const char *dot = strchr(opcode, '.'); dot; dot = strchr(dot + 1, '.'))
        if (!strncmp(dot + 1, word, n) && (dot[n + 1] == '.' || !dot[n + 1])) return 1;
    return 0;
}
static int is(const char *opcode, const char *first) {
    const size_t n = strlen(first);
    return !strncmp(opcode, first, n) && (opcode[n] == '.' || !opcode[n]);
}
static int is_any(const char *opcode, const char *const *words) {
    while (*words && !is(opcode, *words)) words++;
    return *words != NULL;
}

/* ---- products whose shape is in their words ---- */

static uint8_t size_of(const char *types) { /* of an element: the second type is A's */
    static const struct {
        const char *word;
        uint8_t bytes;
    } sizes[] = {{"bf16", 2}, {"f16", 2}, {"tf32", 4}, {"f64", 8}, {"s8", 1}, {"u8", 1}, {"e4m3", 1}, {"e5m2", 1}};
    const char *a = strchr(types, '.');
    for (size_t i = 0; a && i < sizeof sizes / sizeof *sizes; i++)
        if (!strncmp(a + 1, sizes[i].word, strlen(sizes[i].word))) return sizes[i].bytes;
    return 0;
}
static void product(const struct ptx_kernel *k, const struct ptx_statement *s, uint64_t executed,
                    struct sim_counts *out) {
    struct sim_product p = {.ctas = 1, .a = 'R', .kind = is(s->opcode, "wgmma") ? SIM_WGMMA : SIM_MMA};
    const char *shape = strstr(s->opcode, ".m");
    while (shape && sscanf(shape, ".m%un%uk%u", &p.m, &p.n, &p.k) != 3) shape = strstr(shape + 1, ".m");
    if (!shape) return;
    const char *types = strchr(shape + 1, '.');
    if (types && !strncmp(types, ".row.col", 8)) types += 8;
    snprintf(p.types, sizeof p.types, "%s", types ? types + 1 : "");
    p.bytes = size_of(p.types);
    if (p.kind == SIM_WGMMA && k->operands[s->first + 1].kind != PTX_VECTOR) p.a = 'S';
    sim_counts_product(out, &p, executed);
}

/* ---- tensor memory ---- */

static void move_cells(const struct sim_ins *in, const char *opcode, uint64_t executed, uint64_t *v) {
    const uint64_t bytes = (uint64_t)in->n * SIM_LANES * 4 * executed;
    if (is(opcode, "tcgen05.ld"))
        v[SIM_COUNT_cells_read] += has(opcode, "pack::16b") ? 2 * bytes : bytes;
    else
        v[SIM_COUNT_cells_written] += has(opcode, "unpack::16b") ? 2 * bytes : bytes;
}
static void copy_cells(const char *opcode, uint64_t executed, uint64_t *v) {
    static const struct {
        const char *word, *multicast;
        uint32_t bytes, copies; /* 16 bytes a row's chunk */
    } shapes[] = {
        {"128x256b", NULL, 4096, 1},           {"128x128b", NULL, 2048, 1},           {"4x256b", NULL, 128, 1},
        {"64x128b", "warpx2::02_13", 1024, 2}, {"64x128b", "warpx2::01_23", 1024, 2}, {"32x128b", "warpx4", 512, 4}};
    const uint64_t n = executed * (has(opcode, "cta_group::2") ? 2 : 1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!has(opcode, shapes[i].word) || (shapes[i].multicast && !has(opcode, shapes[i].multicast))) continue;
        v[SIM_COUNT_cell_sources] += n * shapes[i].bytes;
        v[SIM_COUNT_cells_copied] += n * shapes[i].bytes * shapes[i].copies;
        return;
    }
}

/* ---- arithmetic ---- */

static void arithmetic(const char *opcode, uint64_t executed, uint64_t lanes, uint64_t *v) {
    static const char *const sums[] = {"add", "sub", "mul", "fma", "mad", NULL};
    static const char *const special[] = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", NULL};
    const int packed = has(opcode, "f16x2") || has(opcode, "bf16x2");
    const int half = packed || has(opcode, "f16") || has(opcode, "bf16");
    if (is_any(opcode, special) || (is(opcode, "div") && has(opcode, "f32"))) {
        if (is(opcode, "ex2")) v[SIM_COUNT_ex2] += packed ? 2 * lanes : lanes;
        v[SIM_COUNT_special] += packed ? 2 * executed : executed;
    } else if (is_any(opcode, sums)) {
        if (has(opcode, "f32x2"))
            v[SIM_COUNT_fma_packed] += executed;
        else if (has(opcode, "f32"))
            v[SIM_COUNT_fma] += executed;
        else if (has(opcode, "f64"))
            v[SIM_COUNT_fma_double] += executed;
        else if (half)
            v[SIM_COUNT_fma_half] += executed;
    } else if (is(opcode, "cvt")) {
        v[SIM_COUNT_cvt] += executed;
    } else if (is(opcode, "shfl") || is(opcode, "redux")) {
        v[SIM_COUNT_shuffles] += executed;
    } else if (is(opcode, "mov")) {
        v[SIM_COUNT_moves] += executed;
    } else if (is(opcode, "bar") || is(opcode, "barrier")) {
        v[SIM_COUNT_barriers] += has(opcode, "warp") ? 0 : executed;
    }
}

void sim_count_work(const struct sim_program *p, uint32_t i, uint64_t executed, uint64_t lanes,
                    struct sim_counts *out) {
    uint64_t *v = out->v;
    v[SIM_COUNT_instructions] += executed;
    if (i == p->n_ins) return; /* the exit behind the text */
    const struct ptx_statement *s = &p->kernel->statements[p->ins[i].statement];
    if (is(s->opcode, "wgmma.mma_async") || is(s->opcode, "mma"))
        product(p->kernel, s, lanes / SIM_LANES, out);
    else if (is(s->opcode, "tcgen05.ld") || is(s->opcode, "tcgen05.st"))
        move_cells(&p->ins[i], s->opcode, lanes / SIM_LANES, v);
    else if (is(s->opcode, "tcgen05.cp"))
        copy_cells(s->opcode, lanes, v);
    else if (is(s->opcode, "tcgen05.commit"))
        v[SIM_COUNT_commits] += lanes;
    else if (is(s->opcode, "wgmma.commit_group"))
        v[SIM_COUNT_commits] += executed;
    else if (is(s->opcode, "mbarrier.arrive") || is(s->opcode, "mbarrier.arrive_drop"))
        v[SIM_COUNT_arrivals] += lanes;
    else if (is(s->opcode, "cp.async.bulk.tensor") && has(s->opcode, "tile::gather4"))
        v[SIM_COUNT_gather_rows] += 4 * lanes;
    else
        arithmetic(s->opcode, executed, lanes, v);
}
