/* SPDX-License-Identifier: MIT
 * From statements to instructions: tables of spellings with their operands' widths, and decoders for instructions whose
 * words have a grammar of their own. Whatever no table names is refused with its line. */
#ifndef SIM_DECODE_H
#define SIM_DECODE_H
#include "machine/machine.h"

/* Operands, in order: H h 16 bits, W w 32, D d 64, P p predicate; a capital letter is written. */
struct sim_op {
    const char *name, *operands;
    sim_exec exec;
};

struct sim_notes { /* registers that the statements name: number << 1, | 1 where written; first: by statement */
    uint32_t *used, n, room, *first;
};
struct sim_decoder {
    struct sim_program *program;
    const struct ptx_kernel *kernel;
    const struct ptx_statement *s;
    const struct ptx_operand *o; /* of the statement */
    uint32_t n;
    char words[160]; /* the opcode, cut at its dots */
    const char *part[24];
    uint32_t n_parts, used;  /* used: bit per part */
    uint32_t *reg_at;        /* place of each PTX register */
    struct sim_notes *notes; /* kept by the first pass over the statements; NULL in the second */
    uint32_t *constant_hash, constant_room, list_room, constants_room;
    uint32_t sink; /* where results go that nobody wants */
    char *error;
    size_t error_bytes;
    int failed;
};
struct sim_grammar {
    const char *word; /* the first of the opcode */
    void (*decode)(struct sim_decoder *d, struct sim_ins *in);
};
struct sim_op_table {
    const struct sim_op *rows;
    uint32_t n;
};
#define SIM_TABLE(rows)                                                                                                \
    { rows, sizeof(rows) / sizeof(rows)[0] }

struct sim_program *sim_decode(const struct ptx_module *module, const struct ptx_kernel *kernel, char *error,
                               size_t error_bytes);
void sim_program_free(struct sim_program *program);

/* ---- for decoders ---- */
void sim_refuse(struct sim_decoder *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
int sim_word(struct sim_decoder *d, const char *word); /* 1 if the opcode has it; marks it as understood */
void sim_hint(struct sim_decoder *d);                  /* marks cache hints as understood */
enum ptx_type sim_last_type(struct sim_decoder *d);    /* the last word that is a type and not yet understood */
/* Place of a source of 16, 32, 64 bits or 1; constants get a place. */
uint32_t sim_source(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits);
uint32_t sim_target(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits);
uint32_t sim_constant(struct sim_decoder *d, enum sim_constant_kind kind, uint64_t value, int wide);
unsigned sim_bits(const struct sim_decoder *d, const struct ptx_operand *o); /* of a register; 0 for others */
/* Base register and offset of [..]: o[slot] and imm, in->wide. Coordinates are left to the caller. */
void sim_address(struct sim_decoder *d, struct sim_ins *in, const struct ptx_operand *o, unsigned slot);
uint32_t sim_list_add(struct sim_decoder *d, uint32_t place);
/* Sources or targets of `bits` each, from a vector or a single operand, into the list. Number of them. */
uint32_t sim_list(struct sim_decoder *d, const struct ptx_operand *o, unsigned bits, int written);
uint64_t sim_number(struct sim_decoder *d, const struct ptx_operand *o); /* must be an integer */
void sim_want(struct sim_decoder *d, uint32_t low, uint32_t high);       /* number of operands */

/* regalloc.c: the current statement names a register; places for all of them, of which predicates have theirs. */
void sim_note(struct sim_decoder *d, uint32_t reg, int written);
void sim_share_places(struct sim_decoder *d, const struct sim_notes *notes);

#define W32(offset) (w->r + (offset))
#define W64(offset) ((uint64_t *)(void *)(w->r + (offset)))
#define F32(offset) ((float *)(void *)(w->r + (offset)))
#define F64(offset) ((double *)(void *)(w->r + (offset)))
#define EACH_LANE   for (uint32_t l = 0; l < SIM_LANES; l++)
#define EACH_OF(m)  for (uint32_t left_ = (m), l; left_ && (l = (uint32_t)__builtin_ctz(left_), 1); left_ &= left_ - 1)
#if defined(__clang__)
#define SIM_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIM_IVDEP _Pragma("GCC ivdep")
#endif

extern struct sim_op_table sim_tables[];
extern const uint32_t sim_n_tables;
extern const struct sim_grammar sim_grammars[];
extern const uint32_t sim_n_grammars;
#endif
