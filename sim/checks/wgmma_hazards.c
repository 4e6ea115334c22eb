/* SPDX-License-Identifier: MIT
 * Registers that asynchronous products use. Those that any wgmma of the kernel names are tracked, by number; every
 * instruction knows which of them it touches. Touching one between a product and the wait for it is a fault, and so is
 * a product of registers that were touched with no wgmma.fence between.
 * The registers of a tcgen05.ld are a class of their own: hardware waits for them where they are used.
 * A mov hands "written by a tcgen05.ld under way" on to its target and is no use by itself: compilers put moves of an
 * asm statement's outputs before the wait that stands behind it (PTX ISA, "tcgen05.wait": the values are there after
 * it). */
#include "checks/report.h"
#include "units/tensor_memory.h"

#include <stdlib.h>
#include <string.h>

static int is_load(const struct ptx_statement *s) { return !strncmp(s->opcode, "tcgen05.ld.", 11); }
static int is_product(const struct ptx_statement *s) {
    return is_load(s) || !strncmp(s->opcode, "wgmma.mma_async", 15);
}

static int is_move(const struct ptx_statement *s) { return !strncmp(s->opcode, "mov.", 4) && s->n == 2; }

struct walk {
    const struct ptx_kernel *kernel;
    uint32_t *number; /* of each register: 1 + tracked number, or 0 */
    struct sim_program *p;
    uint32_t n_touched, room;
    int collect; /* 0: give numbers, 1: list them */
};
static void visit(struct walk *x, const struct ptx_operand *o) {
    if (o->kind == PTX_REG || (o->kind == PTX_ADDRESS && o->reg != PTX_NO_REG)) {
        uint32_t *number = &x->number[o->reg];
        if (!x->collect && !*number) *number = ++x->p->n_tracked;
        if (x->collect && *number) {
            if (x->n_touched == x->room) {
                x->room = x->room ? 2 * x->room : 1024;
                x->p->touched = realloc(x->p->touched, x->room * sizeof *x->p->touched);
                if (!x->p->touched) abort();
            }
            x->p->touched[x->n_touched++] = *number - 1;
        }
    }
    if (o->kind == PTX_VECTOR || o->kind == PTX_ADDRESS)
        for (uint32_t i = 0; i < o->n; i++) visit(x, &x->kernel->operands[o->first + i]);
}

static int has_number(const struct walk *x, const struct ptx_operand *o) {
    int any = o->kind == PTX_REG && x->number[o->reg];
    for (uint32_t i = 0; o->kind == PTX_VECTOR && i < o->n; i++)
        any |= has_number(x, &x->kernel->operands[o->first + i]);
    return any;
}
/* Targets of moves of loaded registers are tracked, too, and those of their moves. */
static void number_moves(struct walk *x) {
    for (uint32_t before = UINT32_MAX; before != x->p->n_tracked;) {
        before = x->p->n_tracked;
        for (uint32_t i = 0; i < x->kernel->n_statements; i++) {
            const struct ptx_statement *s = &x->kernel->statements[i];
            if (is_move(s) && has_number(x, &x->kernel->operands[s->first + 1]))
                visit(x, &x->kernel->operands[s->first]);
        }
    }
}

void sim_watch_find(struct sim_program *p) {
    const struct ptx_kernel *k = p->kernel;
    struct walk x = {.kernel = k, .p = p, .number = calloc(k->n_regs + 1, sizeof *x.number)};
    if (!x.number) abort();
    for (uint32_t i = 0; i < k->n_statements; i++) {
        const struct ptx_statement *s = &k->statements[i];
        if (!is_product(s)) continue;
        visit(&x, &k->operands[s->first]);
        if (!is_load(s) && k->operands[s->first + 1].kind == PTX_VECTOR) visit(&x, &k->operands[s->first + 1]);
    }
    if (p->uses & SIM_USES_TCGEN05) number_moves(&x);
    x.collect = 1;
    for (uint32_t i = 0; i < k->n_statements; i++) {
        const struct ptx_statement *s = &k->statements[i];
        uint32_t n = is_load(s) ? 1 : is_product(s) ? 2 : s->n; /* sums and A, which have just got numbers */
        p->ins[i].touch = x.n_touched;
        for (uint32_t o = 0; o < n; o++) {
            visit(&x, &k->operands[s->first + o]);
            if (!o && is_move(s) && p->uses & SIM_USES_TCGEN05)
                p->ins[i].n_moved = (uint16_t)(x.n_touched - p->ins[i].touch);
        }
        p->ins[i].n_touch = is_product(s) ? 0 : x.n_touched - p->ins[i].touch;
    }
    free(x.number);
}

/* used_by: 2 * (number of the product + 1) + (1 if as a sum). */
int sim_watch(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    struct sim_warp_hopper *h = w->hopper;
    const uint32_t *touched = w->cta->cluster->launch->program->touched + in->touch;
    uint32_t carried = 0; /* by a mov: the load of its sources that was not waited for */
    for (uint32_t i = in->n_moved; in->n_moved && i < in->n_touch; i++) {
        const uint32_t used = h->used_by[touched[i]] & ~1u;
        if (used >> 1 > h->products_seen && used > carried) carried = used;
    }
    for (uint32_t i = 0; i < in->n_touch; i++) {
        uint32_t r = touched[i];
        /* a target's earlier value may go, unless a load itself is to write there */
        const int as_move = in->n_moved && (i >= in->n_moved || !(h->used_by[r] & 1));
        if (!as_move && h->used_by[r] >> 1 > h->products_seen) {
            const uint32_t number = (h->used_by[r] >> 1) - 1;
            if (w->cta->hopper->tensor) {
                sim_find(w, in, m, SIM_F_UNWAITED,
                         "touches a register that is written by tcgen05.ld %u of the warp, with no tcgen05.wait::ld in "
                         "between",
                         number);
                if (number + 1 == h->n_products) sim_tensor_waited(w, 1);
            } else {
                sim_find(w, in, m, SIM_F_ASYNC, "touches a register that %s %u of the warp, which was not waited for",
                         h->used_by[r] & 1 ? "holds sums of product" : "is A of product", number);
            }
            h->used_by[r] = 0;
        }
        if (i < in->n_moved) h->used_by[r] = carried;
        h->touched_at[r] = h->fences;
    }
    return 0;
}

void sim_watch_product(struct sim_warp *w, const struct sim_ins *in, uint32_t number, uint32_t n_sums, uint32_t n_a) {
    struct sim_warp_hopper *h = w->hopper;
    const uint32_t *touched = w->cta->cluster->launch->program->touched + in->touch;
    int unfenced = 0, clash = 0;
    for (uint32_t i = 0; i < n_sums + n_a; i++) {
        uint32_t r = touched[i], is_sum = i < n_sums, used = h->used_by[r];
        unfenced |= h->touched_at[r] == h->fences;
        clash |= used >> 1 > h->products_seen && (used & 1) != is_sum;
        h->used_by[r] = 2 * (number + 1) + is_sum;
    }
    if (unfenced)
        sim_find(w, in, SIM_ALL, SIM_F_ASYNC,
                 "registers of the product were touched, or never fenced, since the warp's last wgmma.fence");
    if (clash)
        sim_find(w, in, SIM_ALL, SIM_F_ASYNC,
                 "sums of a product under way serve as A of this one, or the other way round: not waited for");
}

void sim_watch_load(struct sim_warp *w, const struct sim_ins *in, uint32_t number, uint32_t n) {
    const uint32_t *touched = w->cta->cluster->launch->program->touched + in->touch;
    for (uint32_t i = 0; i < n; i++) w->hopper->used_by[touched[i]] = 2 * (number + 1) + 1;
}
