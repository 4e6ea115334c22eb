/* SPDX-License-Identifier: MIT
 * The body of PTX: module directives, kernels, scopes, statements. Operands are in operand.c. A construct that is
 * not known here ends the parse with its line; nothing is skipped silently but debug sections and pragmas. */
#include "ptx/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptx_fail(struct ptx_parser *x, uint32_t line, const char *format, ...) {
    if (x->failed) return;
    x->failed = 1;
    va_list list;
    va_start(list, format);
    int n = snprintf(x->error, x->error_bytes, "PTX line %u: ", line);
    if (n >= 0 && (size_t)n < x->error_bytes) vsnprintf(x->error + n, x->error_bytes - (size_t)n, format, list);
    va_end(list);
    x->token.kind = PTX_T_END;
}
void ptx_advance(struct ptx_parser *x) {
    if (!x->failed) ptx_next(&x->lexer, &x->token);
}
int ptx_accept(struct ptx_parser *x, const char *text) {
    if (!ptx_is(&x->token, text)) return 0;
    ptx_advance(x);
    return 1;
}
void ptx_expect(struct ptx_parser *x, const char *text) {
    if (!ptx_accept(x, text))
        ptx_fail(x, x->token.line, "\"%s\" expected, not \"%.*s\"", text, (int)x->token.n, x->token.text);
}
uint64_t ptx_integer(struct ptx_parser *x) {
    enum ptx_kind kind = PTX_INT;
    uint64_t value = 0;
    int negative = ptx_accept(x, "-");
    if (ptx_number(&x->token, &kind, &value) || kind != PTX_INT)
        ptx_fail(x, x->token.line, "an integer expected, not \"%.*s\"", (int)x->token.n, x->token.text);
    ptx_advance(x);
    return negative ? 0 - value : value;
}
static const char RETURN[] = "$return";

static char *name_token(struct ptx_parser *x) {
    if (x->token.kind != PTX_T_WORD)
        ptx_fail(x, x->token.line, "a name expected, not \"%.*s\"", (int)x->token.n, x->token.text);
    char *name = ptx_word(x->module, x->token.text, x->failed ? 0 : x->token.n);
    ptx_advance(x);
    return name;
}

/* ---- variables ---- */

enum { MOST_BYTES = 1 << 28, MOST_REGISTERS = 1 << 20 };
static uint64_t capped_product(uint64_t a, uint64_t b) {
    return b > MOST_BYTES || a * b > MOST_BYTES ? MOST_BYTES + 1 : a * b;
}

/* .align 8 .b8 name[568] = {...} ; the words before have been read. Returns it with bytes set, not placed. */
static struct ptx_var *variable(struct ptx_parser *x, enum ptx_space space) {
    struct ptx_var *v = ptx_alloc(x->module, sizeof *v);
    uint64_t count = 1, vector = 1;
    int dims = 0, open = 0;
    v->space = space;
    while (x->token.kind == PTX_T_WORD && x->token.text[0] == '.') {
        if (ptx_accept(x, ".align")) {
            v->align = (uint32_t)ptx_integer(x);
        } else if (ptx_accept(x, ".v2")) {
            vector = 2;
        } else if (ptx_accept(x, ".v4")) {
            vector = 4;
        } else if (ptx_accept(x, ".ptr") || ptx_accept(x, ".global") || ptx_accept(x, ".shared") ||
                   ptx_accept(x, ".const") || ptx_accept(x, ".local")) { /* what a pointer parameter points to */
        } else if (ptx_accept(x, ".attribute")) { /* (.managed), (.unified(a, b)): where it lies */
            ptx_expect(x, "(");
            for (int depth = 1; depth && x->token.kind != PTX_T_END; ptx_advance(x))
                depth += ptx_is(&x->token, "(") - ptx_is(&x->token, ")");
        } else {
            char *word = name_token(x);
            v->type = ptx_type_of(word + 1);
            if (!v->type) ptx_fail(x, x->token.line, "unknown word %s of a variable", word);
        }
    }
    v->name = name_token(x);
    while (ptx_accept(x, "[")) {
        dims++;
        if (ptx_is(&x->token, "]"))
            open = 1;
        else
            count = capped_product(count, ptx_integer(x));
        ptx_expect(x, "]");
    }
    if (count > MOST_BYTES || v->align > 65536 || (v->align & (v->align - 1)))
        ptx_fail(x, x->token.line, "size or alignment of %s", v->name);
    if (x->failed) count = 0, v->align = 0;
    v->bytes = open ? 0 : count * vector * ptx_type_bytes(v->type);
    if (!v->align) v->align = (uint32_t)vector * ptx_type_bytes(v->type);
    if (!v->align) v->align = 1;
    if (ptx_accept(x, "=")) {
        unsigned each = ptx_type_bytes(v->type);
        uint64_t offset = 0;
        int depth = 0;
        v->data = ptx_alloc(x->module, v->bytes + 8); /* 8: a whole number may be stored at the last element */
        do {
            enum ptx_kind kind;
            uint64_t value = 0;
            if (ptx_accept(x, "{")) {
                depth++;
                continue;
            }
            if (ptx_accept(x, "}")) {
                depth--;
                continue;
            }
            if (ptx_accept(x, ",")) continue;
            int negative = ptx_accept(x, "-");
            if (ptx_number(&x->token, &kind, &value) || offset + each > v->bytes)
                ptx_fail(x, x->token.line, "initial values of %s", v->name);
            ptx_advance(x);
            if (negative) value = 0 - value;
            if (!x->failed) memcpy(v->data + offset, &value, each);
            offset += each;
        } while (depth && !x->failed);
    }
    return v;
}

static uint64_t up(uint64_t offset, uint64_t align) { return (offset + align - 1) / align * align; }

static void add_var(struct ptx_parser *x, struct ptx_var *v) {
    struct ptx_kernel *k = x->kernel;
    x->var_bytes += v->bytes;
    if (x->var_bytes > MOST_BYTES) ptx_fail(x, x->token.line, "variables of too many bytes");
    if (x->failed) return;
    if (k) {
        k->vars = ptx_grow(x->module, k->vars, k->n_vars, sizeof *k->vars);
        k->vars[k->n_vars++] = v;
        if (v->space == PTX_LOCAL) {
            v->address = up(k->local_bytes, v->align);
            k->local_bytes = (uint32_t)(v->address + v->bytes);
        }
    } else {
        x->module->vars = ptx_grow(x->module, x->module->vars, x->module->n_vars, sizeof *x->module->vars);
        x->module->vars[x->module->n_vars++] = v;
    }
    struct ptx_scope_var *s = ptx_alloc(x->module, sizeof *s);
    s->var = v;
    s->next = x->scope->vars;
    x->scope->vars = s;
}

/* .reg .b32 %r<100>, a, b; */
static void registers(struct ptx_parser *x) {
    const uint8_t vector = ptx_accept(x, ".v2") ? 2 : ptx_accept(x, ".v4") ? 4 : ptx_accept(x, ".v8") ? 8 : 1;
    char *word = name_token(x);
    enum ptx_type type = ptx_type_of(word + (word[0] == '.'));
    unsigned bits = type == PTX_PRED ? 1 : 8 * ptx_type_bytes(type);
    if (!type) ptx_fail(x, x->token.line, "registers of type %s", word);
    if (bits == 8) bits = 16;
    do {
        struct ptx_family *f = ptx_alloc(x->module, sizeof *f);
        struct ptx_kernel *k = x->kernel;
        f->name = name_token(x);
        f->length = strlen(f->name);
        f->base = k->n_regs;
        if (ptx_accept(x, "<")) {
            f->count = (uint32_t)ptx_integer(x);
            f->numbered = 1;
            ptx_expect(x, ">");
        } else {
            f->count = 1;
        }
        f->vector = vector;
        if (f->count > (MOST_REGISTERS - k->n_regs) / vector) ptx_fail(x, x->token.line, "%u registers", f->count);
        if (x->failed) return;
        for (uint32_t i = 0; i < f->count * vector; i++) {
            k->reg_bits = ptx_grow(x->module, k->reg_bits, k->n_regs, 1);
            k->reg_bits[k->n_regs++] = (uint8_t)bits;
        }
        f->next = x->scope->families;
        x->scope->families = f;
    } while (ptx_accept(x, ","));
    ptx_expect(x, ";");
}

/* .loc file line column [, function_name label, inlined_at file line column]: the place that it is inlined at has had a
 * .loc of its own, perhaps inlined, too. */
static uint32_t add_place(struct ptx_parser *x, struct ptx_place place) {
    x->places = ptx_grow(x->module, x->places, x->n_places, sizeof place);
    x->places[x->n_places++] = place;
    return x->n_places;
}
static void location(struct ptx_parser *x) {
    uint32_t line = x->token.line;
    struct ptx_place place = {0};
    place.file = (uint32_t)ptx_integer(x);
    place.line = (uint32_t)ptx_integer(x);
    if (x->token.line == line && x->token.kind == PTX_T_NUMBER) place.column = (uint32_t)ptx_integer(x);
    while (x->token.kind != PTX_T_END && x->token.line == line && !ptx_is(&x->token, "inlined_at")) ptx_advance(x);
    if (ptx_accept(x, "inlined_at")) {
        uint32_t site[3] = {0};
        for (int i = 0; i < 3; i++) site[i] = (uint32_t)ptx_integer(x);
        for (uint32_t i = x->n_places; i > 0 && !place.call; i--) {
            const struct ptx_place *p = &x->places[i - 1];
            if (p->file == site[0] && p->line == site[1] && p->column == site[2]) place.call = i;
        }
        if (!place.call)
            place.call = add_place(x, (struct ptx_place){.file = site[0], .line = site[1], .column = site[2]});
        const struct ptx_place *p = &x->places[place.call - 1];
        place.call_file = p->call_line ? p->call_file : site[0],
        place.call_line = p->call_line ? p->call_line : site[1];
    }
    while (x->token.kind != PTX_T_END && x->token.line == line) ptx_advance(x);
    x->file = place.file, x->source_line = place.line, x->call_file = place.call_file, x->call_line = place.call_line;
    x->call = place.call;
    add_place(x, place);
}

/* ---- statements ---- */

void ptx_open_scope(struct ptx_parser *x) {
    struct ptx_scope *s = ptx_alloc(x->module, sizeof *s);
    s->parent = x->scope;
    s->id = ++x->n_scopes;
    x->scope = s;
}

static void label(struct ptx_parser *x, const char *name, size_t n) {
    struct ptx_label *l = ptx_alloc(x->module, sizeof *l);
    l->name = ptx_word(x->module, name, n);
    l->statement = x->kernel->n_statements;
    l->next = x->scope->labels;
    x->scope->labels = l;
}

static void statement(struct ptx_parser *x) {
    struct ptx_kernel *k = x->kernel;
    struct ptx_statement s = {.guard = PTX_NO_REG,
                              .line = x->token.line,
                              .file = x->file,
                              .source_line = x->source_line,
                              .call_file = x->call_file,
                              .call_line = x->call_line,
                              .call = x->call};
    if (ptx_accept(x, "@")) {
        s.guard_negated = (uint8_t)ptx_accept(x, "!");
        struct ptx_operand o = {0};
        ptx_read_operand(x, &o);
        if (!x->failed && (o.kind != PTX_REG || k->reg_bits[o.reg] != 1))
            ptx_fail(x, s.line, "a guard must be a predicate");
        s.guard = o.reg;
        s.line = x->token.line;
    }
    s.opcode = name_token(x);
    if (!strcmp(s.opcode, "call") || !strcmp(s.opcode, "call.uni")) {
        if (s.guard != PTX_NO_REG) ptx_fail(x, s.line, "a call with a guard");
        ptx_read_call(x);
        return;
    }
    int returns = x->call_depth && (!strcmp(s.opcode, "ret") || !strcmp(s.opcode, "ret.uni"));
    if (returns) s.opcode = "bra";
    struct ptx_operand list[PTX_MAX_OPERANDS];
    while (!x->failed && !ptx_is(&x->token, ";")) {
        if (s.n == PTX_MAX_OPERANDS) ptx_fail(x, s.line, "%s has too many operands", s.opcode);
        if (x->failed) return;
        ptx_read_operand(x, &list[s.n++]);
        if (!ptx_accept(x, ",") && !ptx_accept(x, "|") && !ptx_is(&x->token, ";"))
            ptx_fail(x, x->token.line, "\"%.*s\" after an operand of %s", (int)x->token.n, x->token.text, s.opcode);
    }
    ptx_expect(x, ";");
    if (returns)
        list[s.n++] =
            (struct ptx_operand){.kind = PTX_LABEL, .text = RETURN, .value = PTX_NO_REG, .scope = x->scope->id};
    if (x->failed) return;
    s.first = ptx_pool(x, list, s.n);
    k->statements = ptx_grow(x->module, k->statements, k->n_statements, sizeof s);
    k->statements[k->n_statements++] = s;
}

void ptx_read_body(struct ptx_parser *x) {
    int depth = 1;
    while (depth && !x->failed) {
        if (x->token.kind == PTX_T_END) ptx_fail(x, x->token.line, "the text ends inside a kernel");
        if (ptx_accept(x, "{")) {
            ptx_open_scope(x);
            if (++depth > 256) ptx_fail(x, x->token.line, "scopes too deep");
        } else if (ptx_accept(x, "}")) {
            if (depth == 1 && x->call_depth) label(x, RETURN, sizeof RETURN - 1);
            ptx_resolve_labels(x);
            x->scope = x->scope->parent;
            depth--;
        } else if (ptx_accept(x, ".reg")) {
            registers(x);
        } else if (ptx_accept(x, ".shared")) {
            add_var(x, variable(x, PTX_SHARED));
            ptx_expect(x, ";");
        } else if (ptx_accept(x, ".local") || ptx_accept(x, ".param")) { /* .param: for a call */
            add_var(x, variable(x, PTX_LOCAL));
            ptx_expect(x, ";");
        } else if (ptx_accept(x, ".loc")) {
            location(x);
        } else if (ptx_accept(x, ".pragma")) {
            ptx_advance(x);
            ptx_expect(x, ";");
        } else if (ptx_accept(x, ";")) {
        } else if (x->token.kind == PTX_T_WORD && x->token.text[0] == '.') {
            ptx_fail(x, x->token.line, "unknown directive %.*s", (int)x->token.n, x->token.text);
        } else if (x->token.kind == PTX_T_WORD) {
            struct ptx_token name = x->token;
            struct ptx_lexer back = x->lexer;
            ptx_advance(x);
            if (ptx_accept(x, ":")) {
                label(x, name.text, name.n);
                continue;
            }
            x->token = name;
            x->lexer = back;
            statement(x);
        } else {
            statement(x);
        }
    }
}

/* ---- kernels ---- */

/* Shared variables of the module that a kernel names take room in it; the dynamic one starts behind them. */
static void place_shared(struct ptx_parser *x) {
    struct ptx_kernel *k = x->kernel;
    uint64_t offset = 0, dynamic_align = 1;
    for (int of_kernel = 0; of_kernel < 2; of_kernel++) {
        uint32_t n = of_kernel ? k->n_vars : x->module->n_vars;
        struct ptx_var **vars = of_kernel ? k->vars : x->module->vars;
        for (uint32_t i = 0; i < n; i++) {
            struct ptx_var *v = vars[i];
            if (v->space != PTX_SHARED) continue;
            if (v->dynamic) {
                if (v->align > dynamic_align) dynamic_align = v->align;
            } else {
                v->address = up(offset, v->align);
                offset = v->address + v->bytes;
            }
        }
    }
    k->shared_bytes = (uint32_t)offset;
    k->dynamic_at = (uint32_t)up(offset, dynamic_align < 16 ? 16 : dynamic_align);
}

static void triple(struct ptx_parser *x, uint32_t out[3]) {
    out[0] = out[1] = out[2] = 1;
    for (int i = 0; i < 3; i++) {
        out[i] = (uint32_t)ptx_integer(x);
        if (!ptx_accept(x, ",")) return;
    }
}

/* The rest of a kernel that is not understood, so that those after it are still read. */
static void refuse_kernel(struct ptx_parser *x, const struct ptx_lexer *body, struct ptx_scope *outer) {
    x->kernel->refused = ptx_word(x->module, x->error, strlen(x->error));
    x->failed = 0;
    x->call_depth = 0, x->depth = 0;
    x->scope = outer;
    x->lexer = *body;
    ptx_advance(x);
    for (int depth = 1; depth && x->token.kind != PTX_T_END && !x->failed; ptx_advance(x))
        depth += ptx_is(&x->token, "{") - ptx_is(&x->token, "}");
}

static void kernel(struct ptx_parser *x) {
    struct ptx_kernel *k = ptx_alloc(x->module, sizeof *k);
    struct ptx_scope *outer = x->scope;
    uint64_t offset = 0;
    k->line = x->token.line;
    k->name = name_token(x);
    x->kernel = k;
    x->n_open_labels = 0;
    x->file = x->source_line = x->call_file = x->call_line = x->call = 0;
    x->n_places = 0;
    x->places = NULL;
    ptx_open_scope(x);
    if (ptx_accept(x, "(")) {
        while (!x->failed && !ptx_accept(x, ")")) {
            ptx_expect(x, ".param");
            struct ptx_var *v = variable(x, PTX_PARAM);
            offset = up(offset, v->align);
            v->address = offset;
            offset += v->bytes;
            k->params = ptx_grow(x->module, k->params, k->n_params, sizeof *v);
            k->params[k->n_params++] = *v;
            ptx_accept(x, ",");
        }
    }
    k->param_bytes = (uint32_t)offset;
    for (uint32_t i = 0; i < k->n_params; i++) { /* names, now that the array stays where it is */
        struct ptx_scope_var *s = ptx_alloc(x->module, sizeof *s);
        s->var = &k->params[i];
        s->next = x->scope->vars;
        x->scope->vars = s;
    }
    while (x->token.kind == PTX_T_WORD && !x->failed) {
        if (ptx_accept(x, ".maxntid"))
            triple(x, k->maxntid);
        else if (ptx_accept(x, ".reqntid"))
            triple(x, k->reqntid);
        else if (ptx_accept(x, ".reqnctapercluster"))
            triple(x, k->cluster);
        else if (ptx_accept(x, ".minnctapersm") || ptx_accept(x, ".maxnreg"))
            k->sized = 1, ptx_integer(x);
        else if (ptx_accept(x, ".maxclusterrank"))
            ptx_integer(x);
        else if (!ptx_accept(x, ".explicitcluster") && !ptx_accept(x, ".noreturn"))
            ptx_fail(x, x->token.line, "unknown directive %.*s of kernel %s", (int)x->token.n, x->token.text, k->name);
    }
    if (ptx_accept(x, ";")) { /* a declaration */
        x->scope = x->scope->parent;
        x->kernel = NULL;
        return;
    }
    const struct ptx_lexer body = x->lexer; /* behind the '{' */
    ptx_expect(x, "{");
    if (x->failed) return;
    /* shared variables may be declared after their use in a nested scope: place them when all are known */
    ptx_read_body(x);
    if (!x->failed) place_shared(x);
    if (x->failed) refuse_kernel(x, &body, outer);
    k->places = x->places;
    struct ptx_kernel **end = &x->module->kernels;
    while (*end) end = &(*end)->next;
    *end = k;
    x->kernel = NULL;
}

static void skip_block(struct ptx_parser *x) { /* to the end of { ... } */
    while (x->token.kind != PTX_T_END && !ptx_is(&x->token, "{")) ptx_advance(x);
    for (int depth = 0; x->token.kind != PTX_T_END;) {
        depth += ptx_is(&x->token, "{") - ptx_is(&x->token, "}");
        ptx_advance(x);
        if (!depth) return;
    }
}

static void file_name(struct ptx_parser *x) { /* .file 1 "name" [, time, size] */
    uint32_t n = (uint32_t)ptx_integer(x), line = x->token.line;
    while (x->module->n_files <= n && n < 65536) {
        x->module->files = ptx_grow(x->module, x->module->files, x->module->n_files, sizeof *x->module->files);
        x->module->files[x->module->n_files++] = NULL;
    }
    if (x->token.kind == PTX_T_STRING && x->token.n >= 2 && n < x->module->n_files)
        x->module->files[n] = ptx_word(x->module, x->token.text + 1, x->token.n - 2);
    while (x->token.kind != PTX_T_END && x->token.line == line) ptx_advance(x);
}

static void directive(struct ptx_parser *x) {
    if (ptx_accept(x, ".version")) {
        char *end = NULL;
        long major = strtol(x->token.text, &end, 10), minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
        if (major < 1 || major > 99 || minor < 0 || minor > 99) ptx_fail(x, x->token.line, "version");
        x->module->version_major = (int)major;
        x->module->version_minor = (int)minor;
        ptx_advance(x);
    } else if (ptx_accept(x, ".target")) {
        if (x->token.n > 3 && !strncmp(x->token.text, "sm_", 3)) x->module->target = atoi(x->token.text + 3);
        uint32_t line = x->token.line;
        while (x->token.kind != PTX_T_END && x->token.line == line) ptx_advance(x);
    } else if (ptx_accept(x, ".address_size")) {
        if (ptx_integer(x) != 64) ptx_fail(x, x->token.line, "addresses must have 64 bits");
    } else if (ptx_accept(x, ".extern")) {
        if (ptx_accept(x, ".func")) {
            ptx_read_function(x); /* a declaration; ptx_read_call knows those of the system */
        } else {
            ptx_expect(x, ".shared");
            struct ptx_var *v = variable(x, PTX_SHARED);
            v->dynamic = 1;
            add_var(x, v);
            ptx_expect(x, ";");
        }
    } else if (ptx_accept(x, ".shared")) {
        add_var(x, variable(x, PTX_SHARED));
        ptx_expect(x, ";");
    } else if (ptx_is(&x->token, ".global") || ptx_is(&x->token, ".const")) {
        enum ptx_space space = ptx_is(&x->token, ".const") ? PTX_CONST : PTX_GLOBAL;
        ptx_advance(x);
        add_var(x, variable(x, space));
        ptx_expect(x, ";");
    } else if (ptx_accept(x, ".visible") || ptx_accept(x, ".weak")) {
    } else if (ptx_accept(x, ".entry")) {
        kernel(x);
    } else if (ptx_accept(x, ".func")) {
        ptx_read_function(x);
    } else if (ptx_accept(x, ".file")) {
        file_name(x);
    } else if (ptx_accept(x, ".section")) {
        skip_block(x);
    } else {
        ptx_fail(x, x->token.line, "unknown directive %.*s", (int)x->token.n, x->token.text);
    }
}

struct ptx_module *ptx_parse(const char *text, char *error, size_t error_bytes) {
    struct ptx_parser x = {.error = error, .error_bytes = error_bytes};
    size_t n = strlen(text);
    x.module = calloc(1, sizeof *x.module);
    if (!x.module) abort();
    x.module->text = malloc(n + 1);
    if (!x.module->text) abort();
    memcpy(x.module->text, text, n + 1);
    x.lexer = (struct ptx_lexer){.next = x.module->text, .line = 1};
    ptx_open_scope(&x);
    ptx_advance(&x);
    while (!x.failed && x.token.kind != PTX_T_END) directive(&x);
    if (!x.failed) return x.module;
    ptx_free(x.module);
    return NULL;
}
