/* SPDX-License-Identifier: MIT
 * The decoder's frame: registers and constants get places in a warp's file, each statement is looked up in the tables
 * of spellings, then in the grammars. */
#include "checks/coverage.h"
#include "checks/global.h"
#include "exec/exec.h"
#include "units/hopper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_refuse(struct sim_decoder *d, const char *format, ...) {
    if (d->failed) return;
    d->failed = 1;
    va_list list;
    char reason[200];
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    /* names of templates' kernels are longer than any room for a message: last */
    snprintf(d->error, d->error_bytes, "PTX line %u, %.100s: %s, in %s", d->s ? d->s->line : 0,
             d->s ? d->s->opcode : "", reason, d->kernel->name);
}

/* ---- words of an opcode ---- */

static void split(struct sim_decoder *d) {
    d->n_parts = d->used = 0;
    snprintf(d->words, sizeof d->words, "%s", d->s->opcode);
    for (char *part = d->words; part && d->n_parts < sizeof d->part / sizeof *d->part;) {
        d->part[d->n_parts++] = part;
        part = strchr(part, '.');
        if (part) *part++ = 0;
    }
    if (strlen(d->s->opcode) >= sizeof d->words) sim_refuse(d, "too long");
    d->used = 1; /* the first word chose the decoder */
}
int sim_word(struct sim_decoder *d, const char *word) {
    for (uint32_t i = 1; i < d->n_parts; i++)
        if (!(d->used >> i & 1) && !strcmp(d->part[i], word)) {
            d->used |= 1u << i;
            return 1;
        }
    return 0;
}
void sim_hint(struct sim_decoder *d) {
    for (uint32_t i = 1; i < d->n_parts; i++)
        if (!strncmp(d->part[i], "L1::", 4) || !strncmp(d->part[i], "L2::", 4)) d->used |= 1u << i;
}
enum ptx_type sim_last_type(struct sim_decoder *d) {
    for (uint32_t i = d->n_parts; i-- > 1;)
        if (!(d->used >> i & 1) && ptx_type_of(d->part[i])) {
            d->used |= 1u << i;
            return ptx_type_of(d->part[i]);
        }
    sim_refuse(d, "no type");
    return PTX_B32;
}
void sim_want(struct sim_decoder *d, uint32_t low, uint32_t high) {
    if (d->n < low || d->n > high) sim_refuse(d, "%u operands", d->n);
}

/* ---- places ---- */

static uint32_t new_words(struct sim_decoder *d, uint32_t words) {
    uint32_t offset = d->program->n_words;
    d->program->n_words += words;
    return offset;
}

uint32_t sim_constant(struct sim_decoder *d, enum sim_constant_kind kind, uint64_t value, int wide) {
    struct sim_program *p = d->program;
    if (2 * (p->n_constants + 1) > d->constant_room) {
        d->constant_room = d->constant_room ? 2 * d->constant_room : 256;
        free(d->constant_hash);
        d->constant_hash = calloc(d->constant_room, sizeof *d->constant_hash);
        p->constants = realloc(p->constants, d->constant_room * sizeof *p->constants);
        if (!d->constant_hash || !p->constants) abort();
        for (uint32_t i = 0; i < p->n_constants; i++) {
            uint32_t h = (uint32_t)(p->constants[i].value * UINT64_C(0x9e3779b97f4a7c15) >> 40) % d->constant_room;
            while (d->constant_hash[h]) h = (h + 1) % d->constant_room;
            d->constant_hash[h] = i + 1;
        }
    }
    uint32_t h = (uint32_t)(value * UINT64_C(0x9e3779b97f4a7c15) >> 40) % d->constant_room;
    for (; d->constant_hash[h]; h = (h + 1) % d->constant_room) {
        const struct sim_constant *c = &p->constants[d->constant_hash[h] - 1];
        if (c->value == value && c->kind == kind && c->wide == wide) return c->word;
    }
    d->constant_hash[h] = ++p->n_constants;
    p->constants[p->n_constants - 1] =
        (struct sim_constant){kind, (uint8_t)wide, new_words(d, wide ? 2 * SIM_LANES : SIM_LANES), value};
    return p->constants[p->n_constants - 1].word;
}

unsigned sim_bits(const struct sim_decoder *d, const struct ptx_operand *o) {
    return o->kind == PTX_REG ? d->kernel->reg_bits[o->reg] : 0;
}

static uint64_t narrow_float(uint64_t bits) { /* a decimal where f32 is meant */
    double x;
    memcpy(&x, &bits, 8);
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

uint32_t sim_source(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits) {
    int wide = bits == 64;
    uint64_t value = o->value;
    switch (o->kind) {
    case PTX_REG:
        if (sim_bits(d, o) != bits) sim_refuse(d, "a source of %u bits where %u are due", sim_bits(d, o), bits);
        if (o->negated) sim_refuse(d, "a negated source");
        sim_note(d, o->reg, 0);
        return d->reg_at[o->reg];
    case PTX_FLOAT64:
        if (bits == 32) value = narrow_float(value);
        return sim_constant(d, SIM_VALUE, value, wide);
    case PTX_FLOAT32:
    case PTX_INT:
        if (bits == 1) return value ? 0 : 1;
        if (bits == 16) value &= 0xffff;
        if (bits == 32) value &= 0xffffffff;
        return sim_constant(d, SIM_VALUE, value, wide);
    case PTX_VARIABLE:
        if (o->var->space == PTX_SHARED) {
            uint64_t address = (o->var->dynamic ? d->kernel->dynamic_at : o->var->address) + o->value;
            return sim_constant(d, SIM_SHARED_ADDRESS, address + SIM_SHARED_BASE, wide);
        }
        if (!wide && o->var->space != PTX_LOCAL && o->var->space != PTX_PARAM)
            sim_refuse(d, "the address of %s in 32 bits", o->var->name);
        return sim_constant(d, SIM_VALUE, o->var->address + o->value, wide);
    case PTX_SPECIAL: {
        int special = sim_special_of(o->text);
        if (special < 0) sim_refuse(d, "special register %s", o->text);
        if (sim_special_wide(special) != wide || bits < 32) sim_refuse(d, "%s as %u bits", o->text, bits);
        return sim_constant(d, SIM_SPECIAL, (uint64_t)special, wide);
    }
    default: break;
    }
    sim_refuse(d, "operand %d cannot be a source", (int)(o - d->o));
    return 0;
}

uint32_t sim_target(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits) {
    if (o->kind == PTX_SINK) return bits == 1 ? 2 : d->sink;
    if (o->kind != PTX_REG) {
        sim_refuse(d, "operand %d cannot be written", (int)(o - d->o));
        return 0;
    }
    if (sim_bits(d, o) != bits) sim_refuse(d, "a result of %u bits where %u are due", sim_bits(d, o), bits);
    sim_note(d, o->reg, 1);
    return d->reg_at[o->reg];
}

void sim_address(struct sim_decoder *d, struct sim_ins *in, const struct ptx_operand *o, unsigned slot) {
    if (o->kind != PTX_ADDRESS) {
        sim_refuse(d, "operand %d is no address", (int)(o - d->o));
        return;
    }
    in->imm = (int64_t)o->value;
    if (o->reg != PTX_NO_REG) {
        in->wide = d->kernel->reg_bits[o->reg] == 64;
        if (!in->wide && d->kernel->reg_bits[o->reg] != 32) sim_refuse(d, "an address of too few bits");
        in->o[slot] = d->reg_at[o->reg];
        sim_note(d, o->reg, 0);
        return;
    }
    struct ptx_operand base = {.kind = PTX_INT};
    if (o->var) base = (struct ptx_operand){.kind = PTX_VARIABLE, .var = o->var};
    in->wide = !o->var || o->var->space != PTX_SHARED;
    in->o[slot] = sim_source(d, &base, in->wide ? 64 : 32);
}

uint32_t sim_list_add(struct sim_decoder *d, uint32_t place) {
    struct sim_program *p = d->program;
    if (p->n_list == d->list_room) {
        d->list_room = d->list_room ? 2 * d->list_room : 1024;
        p->list = realloc(p->list, d->list_room * sizeof *p->list);
        if (!p->list) abort();
    }
    p->list[p->n_list] = place;
    return p->n_list++;
}
uint32_t sim_list(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits, int written) {
    const struct ptx_operand *e = o->kind == PTX_VECTOR ? d->kernel->operands + o->first : o;
    uint32_t n = o->kind == PTX_VECTOR ? o->n : 1;
    for (uint32_t i = 0; i < n; i++) sim_list_add(d, written ? sim_target(d, &e[i], bits) : sim_source(d, &e[i], bits));
    return n;
}
uint64_t sim_number(struct sim_decoder *d, const struct ptx_operand *o) {
    if (o->kind != PTX_INT) sim_refuse(d, "operand %d must be a number", (int)(o - d->o));
    return o->value;
}

/* ---- statements ---- */

struct name_hash {
    const struct sim_op **slots;
    uint32_t room;
};
static struct name_hash names;
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static uint32_t hash_text(const char *text) {
    uint32_t h = 2166136261u;
    while (*text) h = (h ^ (unsigned char)*text++) * 16777619u;
    return h;
}
static void build_names(void) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < sim_n_tables; t++) n += sim_tables[t].n;
    for (names.room = 64; names.room < 3 * n; names.room *= 2) {
    }
    names.slots = calloc(names.room, sizeof *names.slots);
    if (!names.slots) abort();
    for (uint32_t t = 0; t < sim_n_tables; t++)
        for (uint32_t i = 0; i < sim_tables[t].n; i++) {
            uint32_t h = hash_text(sim_tables[t].rows[i].name) & (names.room - 1);
            while (names.slots[h]) h = (h + 1) & (names.room - 1);
            names.slots[h] = &sim_tables[t].rows[i];
        }
}
/* The row with this many operands, or another of the name, which says what is wrong. */
static const struct sim_op *find_op(const char *opcode, uint32_t n) {
    const struct sim_op *other = NULL;
    pthread_once(&names_once, build_names);
    for (uint32_t h = hash_text(opcode) & (names.room - 1); names.slots[h]; h = (h + 1) & (names.room - 1)) {
        if (strcmp(names.slots[h]->name, opcode)) continue;
        if (strlen(names.slots[h]->operands) == n) return names.slots[h];
        if (!other) other = names.slots[h];
    }
    return other;
}

static void by_table(struct sim_decoder *d, struct sim_ins *in, const struct sim_op *op) {
    uint32_t n = (uint32_t)strlen(op->operands);
    sim_want(d, n, n);
    for (uint32_t i = 0; i < n && !d->failed; i++) {
        char c = op->operands[i];
        int written = c < 'a';
        unsigned bits = c == 'h' || c == 'H' ? 16 : c == 'w' || c == 'W' ? 32 : c == 'd' || c == 'D' ? 64 : 1;
        in->o[i] = written ? sim_target(d, &d->o[i], bits) : sim_source(d, &d->o[i], bits);
    }
    in->exec = op->exec;
}

static void by_grammar(struct sim_decoder *d, struct sim_ins *in) {
    split(d);
    const struct sim_grammar *g = NULL;
    for (uint32_t i = 0; i < sim_n_grammars && !g; i++)
        if (!strcmp(sim_grammars[i].word, d->part[0])) g = &sim_grammars[i];
    if (!g) {
        sim_refuse(d, "this instruction is not known here");
        return;
    }
    g->decode(d, in);
    for (uint32_t i = 0; i < d->n_parts && !d->failed; i++)
        if (!(d->used >> i & 1)) sim_refuse(d, "the word .%s is not known here", d->part[i]);
    if (!in->exec && !d->failed) sim_refuse(d, "this form is not known here");
}

/* A number for an access of what may be global memory. */
static void number_place(struct sim_decoder *d, struct sim_ins *in) {
    static const char *const words[] = {"ld", "ldu", "st", "atom", "red", "cp"};
    struct sim_program *p = d->program;
    size_t n = strcspn(d->s->opcode, "."), i = 0;
    while (i < 6 && (strncmp(words[i], d->s->opcode, n) || words[i][n])) i++;
    if (i == 6 || p->n_places + 1 == SIM_PLACES || in->space == PTX_SHARED || in->space == PTX_PARAM) return;
    if (!(p->n_places & (p->n_places + 1))) {
        p->places = realloc(p->places, 2 * (p->n_places + 1u) * sizeof *p->places);
        if (!p->places) abort();
    }
    if (!p->n_places) p->places[0] = UINT32_MAX;
    p->places[++p->n_places] = in->statement;
    in->place = (uint16_t)p->n_places;
}

static void decode_statement(struct sim_decoder *d, struct sim_ins *in) {
    in->statement = (uint32_t)(d->s - d->kernel->statements);
    if (d->s->guard != PTX_NO_REG) {
        in->guard = d->reg_at[d->s->guard];
        in->flip = d->s->guard_negated ? SIM_ALL : 0;
    }
    d->o = d->s->n ? d->kernel->operands + d->s->first : NULL;
    d->n = d->s->n;
    const struct sim_op *op = find_op(d->s->opcode, d->n);
    if (op && !(op->exec && d->n && (d->o[0].kind == PTX_VECTOR || (d->n > 1 && d->o[1].kind == PTX_VECTOR))))
        by_table(d, in, op);
    else
        by_grammar(d, in);
    number_place(d, in);
}

static void decode_statements(struct sim_decoder *d) {
    struct sim_program *p = d->program;
    for (p->n_ins = 0; p->n_ins < d->kernel->n_statements && !d->failed; p->n_ins++) {
        d->s = &d->kernel->statements[p->n_ins];
        if (d->notes) d->notes->first[p->n_ins] = d->notes->n;
        decode_statement(d, &p->ins[p->n_ins]);
    }
    if (d->notes) d->notes->first[p->n_ins] = d->notes->n;
}
/* The first pass learns which registers each statement reads and writes; it leaves nothing else behind. */
static void place_registers(struct sim_decoder *d) {
    struct sim_program *p = d->program;
    struct sim_notes notes = {.first = calloc(d->kernel->n_statements + 1, sizeof *notes.first)};
    if (!notes.first) abort();
    d->notes = &notes;
    decode_statements(d);
    d->notes = NULL;
    p->n_words = 0;
    d->sink = new_words(d, 4 * SIM_LANES);
    if (!d->failed) sim_share_places(d, &notes);
    free(notes.used), free(notes.first);
    memset(p->ins, 0, (d->kernel->n_statements + 1) * sizeof *p->ins);
    p->n_list = p->n_constants = p->n_places = p->uses = 0;
    free(d->constant_hash);
    d->constant_hash = NULL, d->constant_room = 0;
}

struct sim_program *sim_decode(const struct ptx_module *module, const struct ptx_kernel *kernel, char *error,
                               size_t error_bytes) {
    struct sim_decoder d = {.kernel = kernel, .error = error, .error_bytes = error_bytes};
    if (kernel->refused) {
        snprintf(error, error_bytes, "%s", kernel->refused);
        return NULL;
    }
    struct sim_program *p = d.program = calloc(1, sizeof *p);
    d.reg_at = calloc(kernel->n_regs + 1, sizeof *d.reg_at);
    if (p) p->ins = calloc(kernel->n_statements + 1, sizeof *p->ins);
    if (!p || !d.reg_at || !p->ins) abort();
    p->module = module;
    p->kernel = kernel;
    p->n_predicates = 3; /* always true, always false, where unwanted results go */
    for (uint32_t i = 0; i < kernel->n_regs; i++)
        if (kernel->reg_bits[i] == 1) d.reg_at[i] = p->n_predicates++;
    place_registers(&d);
    if (!d.failed) decode_statements(&d);
    p->ins[p->n_ins] = (struct sim_ins){.exec = sim_exec_exit, .statement = p->n_ins ? p->n_ins - 1 : 0};
    if (!d.failed && p->uses & (SIM_USES_WGMMA | SIM_USES_TCGEN05)) sim_watch_find(p);
    free(d.reg_at);
    free(d.constant_hash);
    if (!d.failed) {
        sim_coverage_watch(p);
        return p;
    }
    sim_program_free(p);
    return NULL;
}

void sim_program_free(struct sim_program *p) {
    if (!p) return;
    free(p->ins);
    free(p->list);
    free(p->constants);
    free(p->touched);
    free(p->places);
    sim_coverage_free(p->coverage);
    free(p);
}
