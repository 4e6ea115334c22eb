/* SPDX-License-Identifier: MIT
 * Places of registers in a warp's file. PTX names a new register for nearly every result, thousands in all, so that
 * files of one place each go around the caches; here those that are never live at once share, which leaves some
 * hundreds. A thread's life of a register reaches from its first to its last statement in the order of the text, and
 * over every block that it is live in; lanes have their own words, so it does not matter which of them go where.
 * Places of their own have registers that a path may read before it writes them (they keep the pattern that shows
 * them) and those of asynchronous products, which read and write them later. */
#include "decode/decode.h"

#include <stdlib.h>
#include <string.h>

enum { NOBODY = 0xffffffff, WIDTHS = 3 };
struct block {
    uint32_t first, last, next[2];
};
struct life {
    const struct sim_decoder *d;
    const struct sim_notes *notes;
    uint32_t n_blocks, n_named, n_words; /* named: registers that a block reads before it writes them, by number */
    struct block *blocks;
    uint32_t *number, *killed_in, *named; /* killed_in: the block, + 1, that wrote the register so far */
    uint64_t *in, *killed;                /* [n_blocks][n_words] of named registers */
    uint32_t *from, *to;                  /* statements of each register's life */
    uint8_t *alone;
};

static void *fresh(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

void sim_note(struct sim_decoder *d, uint32_t reg, int written) {
    struct sim_notes *x = d->notes;
    if (!x || d->kernel->reg_bits[reg] == 1) return;
    if (x->n == x->room) {
        x->room = x->room ? 2 * x->room : 4096;
        x->used = realloc(x->used, x->room * sizeof *x->used);
        if (!x->used) abort();
    }
    x->used[x->n++] = reg << 1 | (uint32_t)written;
}

static int begins(const struct ptx_statement *s, const char *word) {
    size_t n = strlen(word);
    return !strncmp(s->opcode, word, n) && (!s->opcode[n] || s->opcode[n] == '.');
}
static int ends(const struct ptx_statement *s) { return begins(s, "ret") || begins(s, "exit") || begins(s, "trap"); }

static void find_blocks(struct life *x) {
    const struct sim_program *p = x->d->program;
    const struct ptx_statement *s = x->d->kernel->statements;
    const uint32_t n = p->n_ins;
    uint32_t *block_of = fresh(n + 2, sizeof *block_of); /* first 1 where one begins */
    block_of[0] = 1;
    for (uint32_t i = 0; i < n; i++) {
        int jumps = begins(&s[i], "bra");
        if (jumps && p->ins[i].target <= n) block_of[p->ins[i].target] = 1;
        if (jumps || ends(&s[i])) block_of[i + 1] = 1;
    }
    for (uint32_t i = 0; i <= n; i++) x->n_blocks += block_of[i];
    x->blocks = fresh(x->n_blocks, sizeof *x->blocks);
    uint32_t b = NOBODY;
    for (uint32_t i = 0; i <= n; i++) {
        if (block_of[i]) x->blocks[++b].first = i;
        block_of[i] = b;
        x->blocks[b].last = i;
    }
    for (b = 0; b < x->n_blocks; b++) {
        struct block *k = &x->blocks[b];
        int jumps = k->last < n && begins(&s[k->last], "bra"), always = k->last < n && s[k->last].guard == PTX_NO_REG;
        k->next[0] = jumps && p->ins[k->last].target <= n ? block_of[p->ins[k->last].target] : NOBODY;
        k->next[1] = b + 1 < x->n_blocks && !(always && (jumps || ends(&s[k->last]))) ? b + 1 : NOBODY;
    }
    free(block_of);
}

/* Reads of statement i before its writes. A write under a guard may leave the old value: it ends no life. */
static void walk(struct life *x, uint32_t b, int fill) {
    const struct sim_notes *t = x->notes;
    const uint32_t top = x->d->program->n_ins;
    for (uint32_t i = x->blocks[b].first; i <= x->blocks[b].last && i < top; i++) {
        for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++) {
            uint32_t r = t->used[k] >> 1;
            if (t->used[k] & 1 || x->killed_in[r] == b + 1) continue;
            if (!fill && !x->number[r]) x->number[r] = ++x->n_named;
            if (fill) x->in[(size_t)b * x->n_words + (x->number[r] - 1) / 64] |= UINT64_C(1) << (x->number[r] - 1) % 64;
        }
        if (x->d->kernel->statements[i].guard != PTX_NO_REG) continue;
        for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++) {
            uint32_t r = t->used[k] >> 1;
            if (!(t->used[k] & 1)) continue;
            x->killed_in[r] = b + 1;
            if (fill && x->number[r])
                x->killed[(size_t)b * x->n_words + (x->number[r] - 1) / 64] |= UINT64_C(1) << (x->number[r] - 1) % 64;
        }
    }
}

static void find_live(struct life *x) {
    const uint32_t n_regs = x->d->kernel->n_regs;
    x->number = fresh(n_regs, sizeof *x->number), x->killed_in = fresh(n_regs, sizeof *x->killed_in);
    for (uint32_t b = 0; b < x->n_blocks; b++) walk(x, b, 0);
    x->n_words = (x->n_named + 63) / 64;
    x->in = fresh((size_t)x->n_blocks * x->n_words, sizeof *x->in);
    x->killed = fresh((size_t)x->n_blocks * x->n_words, sizeof *x->killed);
    x->named = fresh(x->n_named, sizeof *x->named);
    for (uint32_t r = 0; r < n_regs; r++)
        if (x->number[r]) x->named[x->number[r] - 1] = r;
    memset(x->killed_in, 0, n_regs * sizeof *x->killed_in);
    for (uint32_t b = 0; b < x->n_blocks; b++) walk(x, b, 1);
    for (int again = 1; again;) {
        again = 0;
        for (uint32_t b = x->n_blocks; b-- > 0;) {
            uint64_t *in = x->in + (size_t)b * x->n_words;
            const uint64_t *killed = x->killed + (size_t)b * x->n_words;
            for (int e = 0; e < 2; e++) {
                if (x->blocks[b].next[e] == NOBODY) continue;
                const uint64_t *next = x->in + (size_t)x->blocks[b].next[e] * x->n_words;
                for (uint32_t i = 0; i < x->n_words; i++) {
                    uint64_t added = next[i] & ~killed[i] & ~in[i];
                    in[i] |= added;
                    again |= added != 0;
                }
            }
        }
    }
}

static void live_at(struct life *x, uint32_t reg, uint32_t i) {
    if (i < x->from[reg]) x->from[reg] = i;
    if (i > x->to[reg]) x->to[reg] = i;
}
static void find_spans(struct life *x) {
    const struct sim_notes *t = x->notes;
    const struct ptx_kernel *k = x->d->kernel;
    x->from = fresh(k->n_regs, sizeof *x->from), x->to = fresh(k->n_regs, sizeof *x->to);
    x->alone = fresh(k->n_regs, 1);
    memset(x->from, 0xff, k->n_regs * sizeof *x->from);
    for (uint32_t i = 0; i < x->d->program->n_ins; i++) {
        int later = begins(&k->statements[i], "wgmma") || begins(&k->statements[i], "tcgen05");
        for (uint32_t e = t->first[i]; e < t->first[i + 1]; e++) {
            live_at(x, t->used[e] >> 1, i);
            x->alone[t->used[e] >> 1] |= (uint8_t)later;
        }
    }
    for (uint32_t b = 0; b < x->n_blocks; b++)
        for (uint32_t i = 0; i < x->n_words; i++) {
            uint64_t in = x->in[(size_t)b * x->n_words + i], out = 0;
            for (int e = 0; e < 2; e++)
                if (x->blocks[b].next[e] != NOBODY) out |= x->in[(size_t)x->blocks[b].next[e] * x->n_words + i];
            for (uint64_t left = in; left; left &= left - 1) {
                uint32_t r = x->named[64 * i + (uint32_t)__builtin_ctzll(left)];
                live_at(x, r, x->blocks[b].first);
                if (!b) x->alone[r] = 1;
            }
            for (; out; out &= out - 1)
                live_at(x, x->named[64 * i + (uint32_t)__builtin_ctzll(out)], x->blocks[b].last);
        }
}

/* A statement's results get places before those that it reads for the last time are free. */
static void give_places(struct life *x) {
    const struct sim_decoder *d = x->d;
    const uint32_t n = d->program->n_ins, n_regs = d->kernel->n_regs;
    uint32_t *begin = fresh(2 * ((size_t)n + 1), sizeof *begin), *end = begin + n + 1; /* lists: register + 1, or 0 */
    uint32_t *next = fresh(2 * (size_t)n_regs, sizeof *next), *next_end = next + n_regs;
    uint32_t *free_places[WIDTHS], n_free[WIDTHS] = {0};
    for (int i = 0; i < WIDTHS; i++) free_places[i] = fresh(n_regs, sizeof **free_places);
    for (uint32_t r = n_regs; r-- > 0;) {
        uint32_t words = SIM_LANES * ((d->kernel->reg_bits[r] + 31u) / 32u);
        if (d->kernel->reg_bits[r] == 1 || x->from[r] == NOBODY) continue;
        if (x->alone[r]) {
            d->reg_at[r] = d->program->n_words;
            d->program->n_words += words;
            continue;
        }
        next[r] = begin[x->from[r]], begin[x->from[r]] = r + 1;
        next_end[r] = end[x->to[r]], end[x->to[r]] = r + 1;
    }
    for (uint32_t i = 0; i <= n; i++) {
        for (uint32_t r = begin[i]; r; r = next[r - 1]) {
            uint32_t words = (d->kernel->reg_bits[r - 1] + 31u) / 32u, width = words / 2;
            if (n_free[width]) {
                d->reg_at[r - 1] = free_places[width][--n_free[width]];
                continue;
            }
            d->reg_at[r - 1] = d->program->n_words;
            d->program->n_words += SIM_LANES * words;
        }
        for (uint32_t r = end[i]; r; r = next_end[r - 1]) {
            uint32_t width = (d->kernel->reg_bits[r - 1] + 31u) / 32u / 2;
            free_places[width][n_free[width]++] = d->reg_at[r - 1];
        }
    }
    for (int i = 0; i < WIDTHS; i++) free(free_places[i]);
    free(begin), free(next);
}

void sim_share_places(struct sim_decoder *d, const struct sim_notes *notes) {
    struct life x = {.d = d, .notes = notes};
    find_blocks(&x);
    find_live(&x);
    find_spans(&x);
    give_places(&x);
    free(x.blocks), free(x.number), free(x.killed_in), free(x.named), free(x.in), free(x.killed), free(x.from);
    free(x.to), free(x.alone);
}
