/* SPDX-License-Identifier: MIT
 * PTX as text says it: modules, variables, kernels, statements with their names resolved. What the words of an
 * instruction mean is the decoder's business (decode.h). */
#ifndef SIM_PTX_H
#define SIM_PTX_H
#include <stddef.h>
#include <stdint.h>

enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8,
    PTX_B16,
    PTX_B32,
    PTX_B64,
    PTX_B128,
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_F16,
    PTX_F16X2,
    PTX_BF16,
    PTX_BF16X2,
    PTX_F32,
    PTX_F32X2,
    PTX_F64,
    PTX_TYPES
};
enum ptx_type ptx_type_of(const char *word); /* "s32"; PTX_NONE if it is none */
unsigned ptx_type_bytes(enum ptx_type type); /* 0 for predicates */

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_SHARED_CLUSTER, PTX_PARAM, PTX_LOCAL, PTX_CONST };

struct ptx_var {
    char *name;
    enum ptx_space space;
    enum ptx_type type;
    uint32_t align;
    uint64_t bytes, address; /* offset in its space, or the device's address of a global variable */
    uint8_t dynamic;         /* extern shared: begins where the static ones end */
    unsigned char *data;
};

enum ptx_kind {
    PTX_REG,
    PTX_INT,
    PTX_FLOAT32, /* bits, 0f... */
    PTX_FLOAT64, /* bits, 0d... or a decimal */
    PTX_ADDRESS, /* [register or variable + value], or with coordinates a tensor's address */
    PTX_VECTOR,
    PTX_VARIABLE,
    PTX_SPECIAL, /* %tid.x: the name is in text */
    PTX_LABEL,
    PTX_SINK
};
enum { PTX_NO_REG = 0xffffffff };
struct ptx_operand {
    enum ptx_kind kind;
    uint8_t negated; /* !p */
    uint32_t reg;    /* PTX_REG; base of an address, or PTX_NO_REG */
    uint64_t value;  /* integer or bits; offset of an address; statement of a label */
    struct ptx_var *var;
    uint32_t first, n; /* PTX_VECTOR and the coordinates of an address: elements in the kernel's pool */
    const char *text;  /* of a special register or label */
    uint32_t scope;    /* of a label */
};

struct ptx_statement {
    const char *opcode; /* "add.s32" */
    uint32_t guard;     /* predicate register or PTX_NO_REG */
    uint8_t guard_negated;
    uint8_t n;
    uint32_t first;                   /* operands in the kernel's pool */
    uint32_t line, file, source_line; /* of the PTX text; of the CUDA source where .loc tells it, or 0 */
    uint32_t call_file, call_line;    /* of the kernel's own line, where that one was inlined into it, or 0 */
    uint32_t call;                    /* 1 + number of the place in the kernel's that it was inlined at, or 0 */
};
/* A place of the CUDA source that .loc tells; call as in a statement: a chain from callee to kernel. */
struct ptx_place {
    uint32_t file, line, column, call_file, call_line, call;
};

struct ptx_kernel {
    char *name;
    char *refused; /* why its text is not understood, or NULL */
    uint32_t line;
    struct ptx_var *params;
    uint32_t n_params, param_bytes;
    uint32_t sized; /* .minnctapersm or .maxnreg: the compiler knows how many registers a thread has */
    uint32_t reqntid[3], maxntid[3], cluster[3];
    uint8_t *reg_bits; /* 1, 16, 32, 64 or 128 for each register */
    uint32_t n_regs;
    struct ptx_statement *statements;
    uint32_t n_statements;
    struct ptx_place *places;
    struct ptx_operand *operands;
    uint32_t n_operands;
    struct ptx_var **vars; /* shared and local ones it declares */
    uint32_t n_vars;
    uint32_t shared_bytes, dynamic_at, local_bytes;
    struct ptx_kernel *next;
};

struct ptx_module {
    char *text;
    int version_major, version_minor, target;
    struct ptx_kernel *kernels;
    struct ptx_var **vars; /* of the module */
    uint32_t n_vars;
    char **files;
    uint32_t n_files;
    char *pool; /* interned words */
    void *memory;
};

/* NULL and a message in `error` if the text is not understood. */
struct ptx_module *ptx_parse(const char *text, char *error, size_t error_bytes);
void ptx_free(struct ptx_module *module);

/* ---- tokens (lex.c) ---- */
enum ptx_token_kind { PTX_T_END, PTX_T_WORD, PTX_T_NUMBER, PTX_T_STRING, PTX_T_PUNCT };
struct ptx_token {
    enum ptx_token_kind kind;
    const char *text;
    uint32_t n, line;
};
struct ptx_lexer {
    const char *next;
    uint32_t line;
};
void ptx_next(struct ptx_lexer *lexer, struct ptx_token *token);
int ptx_is(const struct ptx_token *token, const char *text);
/* 0 = fine. kind becomes PTX_INT, PTX_FLOAT32 or PTX_FLOAT64. */
int ptx_number(const struct ptx_token *token, enum ptx_kind *kind, uint64_t *value);

/* ---- memory that lives as long as a module (memory.c) ---- */
void *ptx_alloc(struct ptx_module *module, size_t bytes);
char *ptx_word(struct ptx_module *module, const char *text, size_t n);
/* Room for one more element of an array that doubles; the old one stays allocated until the module goes. */
void *ptx_grow(struct ptx_module *module, void *array, uint32_t n, size_t size);
#endif
