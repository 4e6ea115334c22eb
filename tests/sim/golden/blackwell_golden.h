/* SPDX-License-Identifier: MIT
 * Vectors of tcgen05: kernels of one instruction each, what shared and tensor memory hold before, and what a second
 * statement of the layouts and products on the host says that is there afterwards. That statement shares no code with
 * sim/. */
#ifndef TESTS_SIM_BLACKWELL_GOLDEN_H
#define TESTS_SIM_BLACKWELL_GOLDEN_H
#include <stddef.h>
#include <stdint.h>

enum { BG_IMAGE = 65536, BG_LANES = 128, BG_COLUMNS = 512, BG_TEXT = 1 << 17, BG_SHARED = BG_IMAGE + 1024 };
typedef uint32_t bg_cells[BG_LANES][BG_COLUMNS];
struct bg_case {
    char name[96], text[BG_TEXT];
    uint32_t ctas; /* of one cluster; also the cta_group */
    uint8_t image[2][BG_IMAGE];
    bg_cells cells[2], want[2], care[2]; /* before; after; bits that are stated */
    bg_cells other[2];                   /* another answer that the ISA leaves open, if has_other */
    uint8_t has_other;
    /* tensor map over the image of CTA 0, if rank > 0 */
    int type, swizzle;
    unsigned rank, box[2];
    uint64_t dims[2], stride;
};
/* Makes case i; 0 when there are no more. */
int bg_moves(uint32_t i, struct bg_case *c);    /* alloc, ld, st, shift */
int bg_copies(uint32_t i, struct bg_case *c);   /* cp, gather4 */
int bg_products(uint32_t i, struct bg_case *c); /* mma */

/* ---- the kernel's frame (blackwell_golden_text.c) ---- */

void bg_add(struct bg_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bg_registers(struct bg_case *c, uint32_t n); /* "{%v0, ...}" */
/* Allocates all columns, fills shared memory from the image and `columns` of tensor memory from the cells, all seen by
 * everybody. %r0 thread, %r1 shared base, %r2 rank, %r4 tensor base, %r5 that with the warp's lanes, %rd4 this thread's
 * row of `out`, %rd5 the CTA's image, %r6 the mbarrier. */
void bg_head(struct bg_case *c); /* parameters and registers alone */
void bg_begin(struct bg_case *c, uint32_t columns);
void bg_one(struct bg_case *c); /* what follows is done by one thread of CTA 0 */
void bg_commit(struct bg_case *c);
void bg_wait(struct bg_case *c); /* everybody waits for it */
void bg_dump(struct bg_case *c, uint32_t columns);
void bg_end(struct bg_case *c);
/* want = cells, all of `columns` stated, the rest not. Call before what the instruction changes. */
void bg_keep(struct bg_case *c, uint32_t columns);
uint32_t bg_random(uint64_t *state);
uint64_t bg_seed(const char *name);

/* ---- the second statement (blackwell_layout.c) ---- */

enum bg_format { BG_F16, BG_BF16, BG_TF32, BG_E4M3, BG_E5M2, BG_E2M3, BG_E3M2, BG_E2M1, BG_U8, BG_S8, BG_PAIRS };
struct bg_code {
    uint32_t code;
    double value;
};
/* One of eight small numbers of the format. */
struct bg_code bg_pick(enum bg_format format, uint32_t random);
uint32_t bg_row_elements(enum bg_format format); /* of 32 bytes of k in shared memory */

enum bg_swizzle { BG_NONE, BG_32, BG_64, BG_128 };
struct bg_layout {
    uint8_t swizzle, along_mn; /* k along the rows, or m, n */
    uint8_t unit;              /* first 16-byte unit of the pattern's rows that belongs to the operand */
    uint32_t start, leading, stride;
};
uint64_t bg_descriptor(const struct bg_layout *l); /* but for the base of shared memory */
/* The byte of shared memory where 16-byte unit `unit` of a line stands: a line is a row, or with along_mn a k. */
uint32_t bg_unit(const struct bg_layout *l, uint32_t line, uint32_t unit);
/* Writes an element (row, k) into shared memory. */
void bg_put(uint8_t *image, const struct bg_layout *l, enum bg_format format, uint32_t row, uint32_t k, uint32_t code);
/* Writes an element of A into a lane of cells whose first column is `column`. */
void bg_put_cell(uint32_t *lane, uint32_t column, enum bg_format format, uint32_t k, uint32_t code);
/* Row and column of D that a cell holds: 0 if none. ws: weight-stationary; lane16: D begins at lane 16. */
int bg_of_cell(uint32_t m_all, uint32_t n_all, uint32_t ctas, int ws, int lane16, uint32_t cta, uint32_t lane,
               uint32_t column, uint32_t *m, uint32_t *n);
/* Rows of the words that thread t's register i holds; 0 if the shape has no such register. */
struct bg_spot {
    uint32_t row, column;
};
enum bg_shape { BG_32X32B, BG_16X64B, BG_16X128B, BG_16X256B, BG_16X32BX2 };
struct bg_spot bg_of_register(enum bg_shape shape, uint32_t split, uint32_t t, uint32_t i);
uint32_t bg_f32(double x);
uint32_t bg_f16(double x); /* of a number that f16 holds exactly */
#endif
