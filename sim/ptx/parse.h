/* SPDX-License-Identifier: MIT
 * What the files of the parser share: the reader's state, scopes and their names. */
#ifndef SIM_PTX_PARSE_H
#define SIM_PTX_PARSE_H
#include "ptx/ptx.h"

enum { PTX_MAX_OPERANDS = 24 };

struct ptx_family { /* .reg .b32 %r<100> or one register, or .reg .v4 .b32 v */
    const char *name;
    size_t length;
    uint32_t base, count;
    uint8_t numbered, vector; /* vector: registers of each name, which .x and the like tell apart; 1: no vector */
    struct ptx_family *next;
};
struct ptx_scope_var {
    struct ptx_var *var;
    struct ptx_scope_var *next;
};
struct ptx_label {
    const char *name;
    uint32_t statement;
    struct ptx_label *next, *listed; /* of the scope; of its list by hash, while names are resolved */
};
struct ptx_scope {
    struct ptx_scope *parent;
    uint32_t id;
    struct ptx_family *families;
    struct ptx_scope_var *vars;
    struct ptx_label *labels;
};
struct ptx_parser {
    struct ptx_lexer lexer;
    struct ptx_token token;
    struct ptx_module *module;
    struct ptx_kernel *kernel;
    struct ptx_scope *scope;
    uint32_t n_scopes, file, source_line, call_file, call_line, call, depth; /* depth: of operands in operands */
    uint64_t var_bytes;
    struct ptx_place *places; /* of .loc, and those without one that others are inlined at */
    uint32_t n_places;
    struct ptx_function *functions;
    int call_depth;                       /* calls that the text being read is inside of */
    uint32_t *open_labels, n_open_labels; /* operands that name labels not seen so far */
    char *error;
    size_t error_bytes;
    int failed;
};
void ptx_fail(struct ptx_parser *parser, uint32_t line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void ptx_advance(struct ptx_parser *parser);
int ptx_accept(struct ptx_parser *parser, const char *text);
void ptx_expect(struct ptx_parser *parser, const char *text);
uint64_t ptx_integer(struct ptx_parser *parser);

void ptx_open_scope(struct ptx_parser *parser);
/* Statements up to the '}' of the scope that is open; a return is a branch to it in a called function. */
void ptx_read_body(struct ptx_parser *parser);
/* call.c */
void ptx_read_function(struct ptx_parser *parser);
void ptx_read_call(struct ptx_parser *parser);
/* operand.c */
void ptx_read_operand(struct ptx_parser *parser, struct ptx_operand *out);
uint32_t ptx_pool(struct ptx_parser *parser, const struct ptx_operand *operands, uint32_t n);
/* Labels of statements that the closing scope contains; what it lacks is left to the outer scope. */
void ptx_resolve_labels(struct ptx_parser *parser);
#endif
