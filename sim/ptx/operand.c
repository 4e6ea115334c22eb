/* SPDX-License-Identifier: MIT
 * Operands: registers, numbers, addresses, vectors, variables, labels. Names are resolved here, innermost scope first;
 * labels when their scope closes, since branches go forward. */
#include "ptx/parse.h"

#include <stdlib.h>
#include <string.h>

static void read_operand(struct ptx_parser *x, struct ptx_operand *out);

/* The first register that has the name, and how many do. */
static uint32_t find_registers(const struct ptx_parser *x, const struct ptx_token *t, uint32_t *reg) {
    size_t digits = t->n;
    while (digits && t->text[digits - 1] >= '0' && t->text[digits - 1] <= '9') digits--;
    for (const struct ptx_scope *s = x->scope; s; s = s->parent)
        for (const struct ptx_family *f = s->families; f; f = f->next) {
            if (!f->numbered) {
                if (f->length == t->n && !memcmp(f->name, t->text, t->n)) {
                    *reg = f->base;
                    return f->vector;
                }
            } else if (digits < t->n && f->length == digits && !memcmp(f->name, t->text, digits)) {
                unsigned long i = strtoul(t->text + digits, NULL, 10);
                if (i < f->count) {
                    *reg = f->base + (uint32_t)i * f->vector;
                    return f->vector;
                }
            }
        }
    return 0;
}

/* PTX ISA, Vectors: a variable of vector type is all its elements, x.y or x.g one of them. 0: none. */
static int find_register(struct ptx_parser *x, const struct ptx_token *t, struct ptx_operand *out) {
    static const char elements[] = "xyzwrgba";
    struct ptx_token whole = *t;
    uint32_t n = find_registers(x, t, &out->reg);
    if (n == 1) {
        out->kind = PTX_REG;
        return 1;
    }
    if (n) {
        struct ptx_operand list[8];
        for (uint32_t i = 0; i < n; i++) list[i] = (struct ptx_operand){.kind = PTX_REG, .reg = out->reg + i};
        *out = (struct ptx_operand){.kind = PTX_VECTOR, .reg = PTX_NO_REG, .first = ptx_pool(x, list, n), .n = n};
        return 1;
    }
    const char *element = t->n > 2 && t->text[t->n - 2] == '.' ? strchr(elements, t->text[t->n - 1]) : NULL;
    const uint32_t which = element ? (uint32_t)(element - elements) % 4 : 0;
    whole.n = t->n - 2;
    if (!element || (n = find_registers(x, &whole, &out->reg)) < 2 || which >= n) {
        out->reg = PTX_NO_REG;
        return 0;
    }
    out->kind = PTX_REG;
    out->reg += which;
    return 1;
}

static struct ptx_var *find_variable(const struct ptx_parser *x, const struct ptx_token *t) {
    for (const struct ptx_scope *s = x->scope; s; s = s->parent)
        for (const struct ptx_scope_var *v = s->vars; v; v = v->next)
            if (strlen(v->var->name) == t->n && !memcmp(v->var->name, t->text, t->n)) return v->var;
    return NULL;
}

uint32_t ptx_pool(struct ptx_parser *x, const struct ptx_operand *o, uint32_t n) {
    struct ptx_kernel *k = x->kernel;
    uint32_t first = k->n_operands;
    for (uint32_t i = 0; i < n; i++) {
        k->operands = ptx_grow(x->module, k->operands, k->n_operands, sizeof *o);
        if (o[i].kind == PTX_LABEL) {
            x->open_labels = ptx_grow(x->module, x->open_labels, x->n_open_labels, sizeof *x->open_labels);
            x->open_labels[x->n_open_labels++] = k->n_operands;
        }
        k->operands[k->n_operands++] = o[i];
    }
    return first;
}

static void vector(struct ptx_parser *x, struct ptx_operand *out) { /* after '{' */
    struct ptx_operand list[256];
    uint32_t n = 0;
    while (!x->failed && !ptx_accept(x, "}")) {
        if (n == sizeof list / sizeof *list) {
            ptx_fail(x, x->token.line, "a vector of more than %zu elements", sizeof list / sizeof *list);
            return;
        }
        ptx_read_operand(x, &list[n++]);
        ptx_accept(x, ",");
    }
    out->first = ptx_pool(x, list, n);
    out->n = n;
}

static void address(struct ptx_parser *x, struct ptx_operand *out) { /* after '[' */
    struct ptx_operand base = {.reg = PTX_NO_REG};
    ptx_read_operand(x, &base);
    *out = (struct ptx_operand){.kind = PTX_ADDRESS, .reg = PTX_NO_REG};
    if (base.kind == PTX_REG)
        out->reg = base.reg;
    else if (base.kind == PTX_VARIABLE)
        out->var = base.var, out->value = base.value; /* name() has read "+ offset" */
    else if (base.kind == PTX_INT)
        out->value = base.value;
    else
        ptx_fail(x, x->token.line, "an address must be a register, a variable or a number");
    if (ptx_accept(x, "+"))
        out->value += ptx_integer(x);
    else if (ptx_is(&x->token, "-"))
        out->value += ptx_integer(x);
    if (ptx_accept(x, ",")) { /* coordinates of a tensor */
        struct ptx_operand list = {0};
        ptx_expect(x, "{");
        vector(x, &list);
        out->first = list.first;
        out->n = list.n;
    }
    ptx_expect(x, "]");
}

static void name(struct ptx_parser *x, struct ptx_operand *out) {
    struct ptx_token t = x->token;
    ptx_advance(x);
    if (t.n == 1 && t.text[0] == '_') {
        out->kind = PTX_SINK;
        return;
    }
    if (find_register(x, &t, out)) return;
    if ((out->var = find_variable(x, &t)) != NULL) {
        out->kind = PTX_VARIABLE;
        if (ptx_is(&x->token, "+")) { /* variable + offset outside of brackets */
            ptx_advance(x);
            out->value = ptx_integer(x);
        }
        return;
    }
    if (t.n == 7 && !memcmp(t.text, "WARP_SZ", 7)) { /* PTX ISA: the one constant with a name */
        out->kind = PTX_INT;
        out->value = 32;
        return;
    }
    out->text = ptx_word(x->module, t.text, t.n);
    out->kind = t.text[0] == '%' ? PTX_SPECIAL : PTX_LABEL;
    out->value = PTX_NO_REG;
    out->scope = x->scope->id;
}

void ptx_read_operand(struct ptx_parser *x, struct ptx_operand *out) {
    *out = (struct ptx_operand){.reg = PTX_NO_REG};
    if (x->depth == 4) ptx_fail(x, x->token.line, "an operand within operands");
    if (x->failed) return;
    x->depth++;
    read_operand(x, out);
    x->depth--;
}
static void read_operand(struct ptx_parser *x, struct ptx_operand *out) {
    if (ptx_accept(x, "{")) {
        out->kind = PTX_VECTOR;
        vector(x, out);
    } else if (ptx_accept(x, "[")) {
        address(x, out);
    } else if (ptx_accept(x, "!")) {
        ptx_read_operand(x, out);
        out->negated = 1;
    } else if (x->token.kind == PTX_T_NUMBER || ptx_is(&x->token, "-")) {
        int negative = ptx_accept(x, "-");
        if (ptx_number(&x->token, &out->kind, &out->value)) {
            ptx_fail(x, x->token.line, "\"%.*s\" is no number", (int)x->token.n, x->token.text);
            return;
        }
        if (negative) {
            if (out->kind == PTX_INT)
                out->value = 0 - out->value;
            else
                out->value ^= out->kind == PTX_FLOAT32 ? UINT64_C(1) << 31 : UINT64_C(1) << 63;
        }
        ptx_advance(x);
    } else if (x->token.kind == PTX_T_WORD) {
        name(x, out);
    } else {
        ptx_fail(x, x->token.line, "an operand expected, not \"%.*s\"", (int)x->token.n, x->token.text);
    }
}

/* Labels of a scope by the hash of their names: a kernel with lines of its sources has thousands. */
enum { LABEL_LISTS = 4096 };
static uint32_t label_list_of(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 16777619u;
    return (hash ^ hash >> 16) % LABEL_LISTS;
}
static void list_labels(const struct ptx_scope *s, struct ptx_label *lists[LABEL_LISTS]) {
    memset(lists, 0, LABEL_LISTS * sizeof lists[0]);
    for (struct ptx_label *l = s->labels; l; l = l->next) {
        struct ptx_label **end = &lists[label_list_of(l->name)];
        while (*end) end = &(*end)->listed; /* the first of a name stays the first */
        l->listed = NULL, *end = l;
    }
}

/* Only the labels of the scope that closes are looked at; names that it lacks go on to the scope around it. */
void ptx_resolve_labels(struct ptx_parser *x) {
    struct ptx_kernel *k = x->kernel;
    const struct ptx_scope *s = x->scope;
    struct ptx_label *lists[LABEL_LISTS];
    int outermost = s->parent && !s->parent->parent;
    uint32_t left = 0;
    if (s->labels) list_labels(s, lists);
    for (uint32_t i = 0; i < x->n_open_labels && !x->failed; i++) {
        struct ptx_operand *o = &k->operands[x->open_labels[i]];
        const struct ptx_label *l = o->scope == s->id && s->labels ? lists[label_list_of(o->text)] : NULL;
        while (l && strcmp(l->name, o->text)) l = l->listed;
        if (l) {
            o->value = l->statement;
            continue;
        }
        if (o->scope == s->id) {
            if (outermost) ptx_fail(x, x->token.line, "%s is neither a register, a variable nor a label", o->text);
            o->scope = s->parent->id;
        }
        x->open_labels[left++] = x->open_labels[i];
    }
    x->n_open_labels = left;
}
