/* SPDX-License-Identifier: MIT
 * Functions of a module: their text is read again at every call, in a scope where their parameters are the variables
 * that the caller filled. A return is a branch behind that scope. No function pointers, no recursion. */
#include "ptx/parse.h"

#include <string.h>

enum { MOST = 32, DEEPEST = 8, MOST_STATEMENTS = 1 << 20 };
struct ptx_function {
    const char *name;
    const char *names[MOST]; /* of results, then of parameters */
    uint32_t n_results, n;
    struct ptx_lexer body; /* behind '{' */
    struct ptx_function *next;
};

static const char *word(struct ptx_parser *x) {
    if (x->token.kind != PTX_T_WORD)
        ptx_fail(x, x->token.line, "a name expected, not \"%.*s\"", (int)x->token.n, x->token.text);
    const char *name = ptx_word(x->module, x->token.text, x->failed ? 0 : x->token.n);
    ptx_advance(x);
    return name;
}
/* ( .param .b32 a, .param .align 8 .b8 b[16] ): the names */
static void names(struct ptx_parser *x, struct ptx_function *f) {
    while (!x->failed && !ptx_accept(x, ")")) {
        const char *name = NULL;
        while (!x->failed && x->token.kind != PTX_T_END && !ptx_is(&x->token, ",") && !ptx_is(&x->token, ")")) {
            if (x->token.kind == PTX_T_WORD && x->token.text[0] != '.')
                name = ptx_word(x->module, x->token.text, x->token.n);
            ptx_advance(x);
        }
        if (!name || f->n == MOST)
            ptx_fail(x, x->token.line, "the parameters of a function");
        else
            f->names[f->n++] = name;
        ptx_accept(x, ",");
    }
}

void ptx_read_function(struct ptx_parser *x) { /* behind .func */
    struct ptx_function *f = ptx_alloc(x->module, sizeof *f);
    if (ptx_accept(x, "(")) names(x, f);
    f->n_results = f->n;
    f->name = word(x);
    if (ptx_accept(x, "(")) names(x, f);
    while (x->token.kind == PTX_T_WORD && x->token.text[0] == '.') ptx_advance(x); /* .noreturn and the like */
    if (ptx_accept(x, ";")) return;                                                /* a declaration */
    if (!ptx_is(&x->token, "{")) ptx_fail(x, x->token.line, "the body of %s expected", f->name);
    f->body = x->lexer;
    for (int depth = 0; x->token.kind != PTX_T_END;) {
        depth += ptx_is(&x->token, "{") - ptx_is(&x->token, "}");
        ptx_advance(x);
        if (!depth) break;
    }
    f->next = x->functions;
    x->functions = f;
}

static void pass(struct ptx_parser *x, struct ptx_var *vars[MOST], uint32_t *n) { /* (param0, param1) */
    while (!x->failed && !ptx_accept(x, ")")) {
        struct ptx_operand o = {0};
        ptx_read_operand(x, &o);
        if (o.kind != PTX_VARIABLE || *n == MOST)
            ptx_fail(x, x->token.line, "an argument must be a variable");
        else
            vars[(*n)++] = o.var;
        ptx_accept(x, ",");
    }
}

/* Functions of the system (CUDA, system calls of device code): statements of their own, whose operands are the result
 * and the arguments. 0: it is none of them. */
static int system_call(struct ptx_parser *x, const char *name, struct ptx_var *vars[MOST], uint32_t n, uint32_t line) {
    const int prints = !strcmp(name, "vprintf") && n == 3, fails = !strcmp(name, "__assertfail") && n == 5;
    struct ptx_operand operands[5] = {{0}};
    if (!prints && !fails) return 0;
    for (uint32_t i = 0; i < n; i++)
        operands[i] = (struct ptx_operand){.kind = PTX_VARIABLE, .reg = PTX_NO_REG, .var = vars[i]};
    struct ptx_kernel *k = x->kernel;
    const uint32_t first = ptx_pool(x, operands, n);
    k->statements = ptx_grow(x->module, k->statements, k->n_statements, sizeof *k->statements);
    k->statements[k->n_statements++] = (struct ptx_statement){.opcode = prints ? "call_vprintf" : "call_assertfail",
                                                              .guard = PTX_NO_REG,
                                                              .n = (uint8_t)n,
                                                              .first = first,
                                                              .line = line,
                                                              .file = x->file,
                                                              .source_line = x->source_line,
                                                              .call_file = x->call_file,
                                                              .call_line = x->call_line,
                                                              .call = x->call};
    ptx_advance(x); /* the ';' */
    return 1;
}

void ptx_read_call(struct ptx_parser *x) { /* behind call[.uni] */
    struct ptx_var *vars[MOST];
    uint32_t n = 0, line = x->token.line;
    if (ptx_accept(x, "(")) {
        pass(x, vars, &n);
        ptx_accept(x, ",");
    }
    const char *name = word(x);
    if (ptx_accept(x, ",") && ptx_accept(x, "(")) pass(x, vars, &n);
    if (!ptx_is(&x->token, ";")) ptx_fail(x, x->token.line, "a call of %s", name);
    const struct ptx_function *f = x->functions;
    while (f && strcmp(f->name, name)) f = f->next;
    if (!f && !x->failed && system_call(x, name, vars, n, line)) return;
    if (!f || f->n != n || x->call_depth == DEEPEST)
        ptx_fail(x, line,
                 f ? "a call of %s with %u arguments, at depth %d" : "%s is not known (arguments %u, depth %d)", name,
                 n, x->call_depth);
    if (x->kernel->n_statements > MOST_STATEMENTS) ptx_fail(x, line, "calls of calls make the kernel too long");
    if (x->failed) return;
    struct ptx_lexer back = x->lexer; /* behind the ';' */
    ptx_open_scope(x);
    x->call_depth++;
    for (uint32_t i = 0; i < n; i++) {
        struct ptx_scope_var *s = ptx_alloc(x->module, sizeof *s);
        s->var = ptx_alloc(x->module, sizeof *s->var);
        *s->var = *vars[i];
        s->var->name = ptx_word(x->module, f->names[i], strlen(f->names[i]));
        s->next = x->scope->vars;
        x->scope->vars = s;
    }
    x->lexer = f->body;
    uint32_t file = x->file, source_line = x->source_line, call_file = x->call_file, call_line = x->call_line,
             site = x->call;
    ptx_advance(x);
    ptx_read_body(x); /* closes the scope */
    x->call_depth--;
    x->file = file, x->source_line = source_line, x->call_file = call_file, x->call_line = call_line, x->call = site;
    if (x->failed) return;
    x->lexer = back;
    ptx_advance(x);
}
