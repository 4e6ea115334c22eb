/* SPDX-License-Identifier: MIT
 * Intel AMX, the few instructions that the kernels use, by name: tile_config, tile_release, tile_zero, tile_load,
 * tile_load_once, tile_store, tile_dpbf16. Tile numbers are constants 0 .. 7, strides are in bytes. Written as asm and
 * not with the compilers' intrinsics, whose loads say nothing about the memory they read in gcc 12: a store before one
 * may sink below it, and a configuration made on the stack may never be stored.
 *
 * With ATTN_AMX_EMULATED, which only tests define (tests/amx), the same names call an emulation on arrays. */
#ifndef ATTN_CPU_AMX_TILE_H
#define ATTN_CPU_AMX_TILE_H
#include <stdint.h>

/* What LDTILECFG reads (Intel SDM vol. 1, 18.2): palette 1 has 8 tiles of at most 16 rows of 64 bytes. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef ATTN_AMX_EMULATED
void attn_amx_emulated_config(const struct tile_shapes *shapes);
void attn_amx_emulated_release(void);
void attn_amx_emulated_zero(int t);
void attn_amx_emulated_load(int t, const void *base, int64_t stride);
void attn_amx_emulated_store(int t, void *base, int64_t stride);
void attn_amx_emulated_dpbf16(int c, int a, int b);
#define tile_config                     attn_amx_emulated_config
#define tile_release                    attn_amx_emulated_release
#define tile_zero(t)                    attn_amx_emulated_zero(t)
#define tile_load(t, base, stride)      attn_amx_emulated_load(t, base, stride)
#define tile_load_once(t, base, stride) attn_amx_emulated_load(t, base, stride)
#define tile_store(t, base, stride)     attn_amx_emulated_store(t, base, stride)
#define tile_dpbf16(c, a, b)            attn_amx_emulated_dpbf16(c, a, b)
#else
/* All tiles become 0. */
static inline void tile_config(const struct tile_shapes *shapes) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes) : "memory");
}
/* Back to the initial state, so that the system need not save 8 KiB at each switch of threads. */
static inline void tile_release(void) { __asm__ volatile("tilerelease" : : : "memory"); }
#define TILE_WORD_(x) #x
#define TILE_WORD(x)  TILE_WORD_(x)
#define tile_zero(t)  __asm__ volatile("tilezero %%tmm" TILE_WORD(t) : :)
#define tile_load(t, base, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" TILE_WORD(t)                                                         \
                     :                                                                                                 \
                     : "r"((const void *)(base)), "r"((int64_t)(stride))                                               \
                     : "memory")
/* A load with the hint that the lines will not be needed again soon: what else is in the first-level cache stays. */
#define tile_load_once(t, base, stride)                                                                                \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" TILE_WORD(t)                                                       \
                     :                                                                                                 \
                     : "r"((const void *)(base)), "r"((int64_t)(stride))                                               \
                     : "memory")
#define tile_store(t, base, stride)                                                                                    \
    __asm__ volatile("tilestored %%tmm" TILE_WORD(t) ", (%0,%1,1)"                                                     \
                     :                                                                                                 \
                     : "r"((void *)(base)), "r"((int64_t)(stride))                                                     \
                     : "memory")
/* c[i][j] += sum over l of a[i][l].lo * b[l][j].lo + a[i][l].hi * b[l][j].hi: a has pairs of bf16 along its rows, b
 * pairs of rows. Round to nearest even, denormals count as 0, MXCSR is neither read nor written. */
#define tile_dpbf16(c, a, b)                                                                                           \
    __asm__ volatile("tdpbf16ps %%tmm" TILE_WORD(b) ", %%tmm" TILE_WORD(a) ", %%tmm" TILE_WORD(c) : :)
#endif
#endif
