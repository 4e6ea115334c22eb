/* SPDX-License-Identifier: MIT
 * mma.sync: D = A B + C over a warp. Products of 16-bit and tf32 numbers are exact in f32 and are added in the order of
 * k; the machine adds them in an order and precision of its own, so results agree to rounding, not bit by bit. With
 * ATTNSIM_MMA=h100 sums in f32 are formed as that machine forms them, bit by bit (aligned_sum.h).
 *
 * Lane 4 g + t. 32-bit registers of A, rows g and g + 8 in turn, then the next columns; B likewise by columns of n:
 *   16 bits  a[i]: row g + 8 (i & 1), columns 2t, 2t+1 + 8 (i >> 1)      b[i]: rows 2t, 2t+1 + 8 i of column g
 *    8 bits  a[i]: ...                columns 4t..4t+3 + 16 (i >> 1)     b[i]: rows 4t..4t+3 + 16 i
 *   tf32, f64 a[i]: ...               column t + 4 (i >> 1)              b[i]: row t + 4 i
 *   C        c[0], c[1]: row g, columns 2t, 2t+1     c[2], c[3]: row g + 8    (f16: two to a register) */
#include "exec/aligned_sum.h"
#include "exec/exec.h"
#include "exec/formats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_K = SIM_ALIGNED_MOST };
typedef float row8 __attribute__((vector_size(32)));

static float element(uint32_t v, enum ptx_type type) {
    return type == PTX_BF16 ? sim_from_bf16(v & 0xffff) : sim_from_f16(v & 0xffff);
}

/* ---- 16-bit operands: registers are 8x8 tiles by rows ---- */

typedef uint32_t bits8 __attribute__((vector_size(32)));
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (bits8){__VA_ARGS__})
#endif

static inline bits8 load8(const uint32_t *from) {
    bits8 x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline row8 from_f16(bits8 h) { /* sim_from_f16 */
    const bits8 body = (h & 0x7fff) << 13, special = (bits8)((h & 0x7c00) == 0x7c00);
    const bits8 scaled = (bits8)((row8)body * sim_float(UINT32_C(239) << 23));
    return (row8)((h & 0x8000) << 16 | (special & (body | 0x7f800000)) | (~special & scaled));
}
static inline row8 first_of(bits8 pairs, int is_bf16) {
    return is_bf16 ? (row8)(pairs << 16) : from_f16(pairs & 0xffff);
}
static inline row8 second_of(bits8 pairs, int is_bf16) {
    return is_bf16 ? (row8)(pairs & 0xffff0000) : from_f16(pairs >> 16);
}
static inline row8 load_floats(const float *from) {
    row8 x;
    memcpy(&x, from, sizeof x);
    return x;
}
/* Two rows of C or D, each with its even columns before the odd ones, as its registers have them. */
static inline void load_rows(struct sim_warp *w, const uint32_t *list, uint32_t g, row8 *x, row8 *y) {
    const row8 even = load_floats(F32(list[g / 8 * 2]) + g % 8 * 4),
               odd = load_floats(F32(list[g / 8 * 2 + 1]) + g % 8 * 4);
    *x = MIX(even, odd, 0, 1, 2, 3, 8, 9, 10, 11), *y = MIX(even, odd, 4, 5, 6, 7, 12, 13, 14, 15);
}
static inline void store_rows(struct sim_warp *w, const uint32_t *list, uint32_t g, row8 x, row8 y) {
    const row8 even = MIX(x, y, 0, 1, 2, 3, 8, 9, 10, 11), odd = MIX(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    memcpy(F32(list[g / 8 * 2]) + g % 8 * 4, &even, sizeof even);
    memcpy(F32(list[g / 8 * 2 + 1]) + g % 8 * 4, &odd, sizeof odd);
}
/* The rows of B of a tile, columns in the order of D. A vector holds an even column in its lower, the next one in its
 * upper half. */
static inline void rows_of(const uint32_t *b, int is_bf16, row8 rows[8]) {
    const bits8 y0 = load8(b), y1 = load8(b + 8), y2 = load8(b + 16), y3 = load8(b + 24);
    const bits8 a = MIX(y0, y1, 0, 8, 1, 9, 4, 12, 5, 13), c = MIX(y2, y3, 0, 8, 1, 9, 4, 12, 5, 13);
    const bits8 e = MIX(y0, y1, 2, 10, 3, 11, 6, 14, 7, 15), f = MIX(y2, y3, 2, 10, 3, 11, 6, 14, 7, 15);
    const bits8 pairs[4] = {MIX(a, c, 0, 1, 8, 9, 4, 5, 12, 13), MIX(a, c, 2, 3, 10, 11, 6, 7, 14, 15),
                            MIX(e, f, 0, 1, 8, 9, 4, 5, 12, 13), MIX(e, f, 2, 3, 10, 11, 6, 7, 14, 15)};
    for (uint32_t t = 0; t < 4; t++)
        rows[2 * t] = first_of(pairs[t], is_bf16), rows[2 * t + 1] = second_of(pairs[t], is_bf16);
}

/* tiles: k / 8. list: d[4], a[2x], b[x], c[4]. Eight rows of D at a time stay in vectors; k goes up. */
static inline __attribute__((always_inline)) void mma_16bit(struct sim_warp *w, const uint32_t *list, uint32_t tiles,
                                                            int is_bf16) {
    row8 wide[4][2][4], rows[16];
    const uint32_t *c = list + 4 + 3 * tiles;
    for (uint32_t i = 0; i < 2 * tiles; i++)
        for (uint32_t q = 0; q < 4; q++) {
            const bits8 pairs = load8(W32(list[4 + i]) + 8 * q);
            wide[i][0][q] = first_of(pairs, is_bf16), wide[i][1][q] = second_of(pairs, is_bf16);
        }
    for (uint32_t i = 0; i < tiles; i++) rows_of(W32(list[4 + 2 * tiles + i]), is_bf16, rows + 8 * i);
    for (uint32_t g = 0; g < 8; g += 4) {
        row8 x0, x1, x2, x3, y0, y1, y2, y3;
        load_rows(w, c, g, &x0, &x1), load_rows(w, c, g + 2, &x2, &x3);
        load_rows(w, c, g + 8, &y0, &y1), load_rows(w, c, g + 10, &y2, &y3);
        for (uint32_t i = 0; i < tiles; i++)
            for (uint32_t k = 0; k < 8; k++) {
                const row8 row = rows[8 * i + k];
                const float *top = (const float *)wide[2 * i][k % 2] + 4 * g + k / 2;
                const float *low = (const float *)wide[2 * i + 1][k % 2] + 4 * g + k / 2;
                x0 += top[0] * row, x1 += top[4] * row, x2 += top[8] * row, x3 += top[12] * row;
                y0 += low[0] * row, y1 += low[4] * row, y2 += low[8] * row, y3 += low[12] * row;
            }
        store_rows(w, list, g, x0, x1), store_rows(w, list, g + 2, x2, x3);
        store_rows(w, list, g + 8, y0, y1), store_rows(w, list, g + 10, y2, y3);
    }
}
/* x: k / 8; y: bf16 */
SIM_HEAD(mma_16bit_f32) {
    const uint32_t *list = w->list + in->list;
    (void)m;
    if (in->x == 2 && in->y)
        mma_16bit(w, list, 2, 1);
    else if (in->x == 2)
        mma_16bit(w, list, 2, 0);
    else
        mma_16bit(w, list, in->x, in->y);
    return SIM_NEXT;
}

/* ---- tf32, k = 4 x: list as above, one element to a register ---- */

SIM_HEAD(mma_tf32) {
    const uint32_t *list = w->list + in->list, slices = in->x, *a = list + 4, *b = a + 2 * slices, *c = b + slices;
    row8 acc[16], row;
    (void)m;
    for (uint32_t l = 0; l < SIM_LANES; l++)
        for (uint32_t i = 0; i < 4; i++) acc[l / 4 + 8 * (i / 2)][l % 4 * 2 + i % 2] = F32(c[i])[l];
    for (uint32_t i = 0; i < slices; i++)
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t *top = W32(a[2 * i]), *low = W32(a[2 * i + 1]), *column = W32(b[i]);
            for (uint32_t n = 0; n < 8; n++) row[n] = sim_from_tf32(column[4 * n + t]);
            for (uint32_t g = 0; g < 8; g++) {
                acc[g] += sim_from_tf32(top[4 * g + t]) * row;
                acc[g + 8] += sim_from_tf32(low[4 * g + t]) * row;
            }
        }
    for (uint32_t l = 0; l < SIM_LANES; l++)
        for (uint32_t i = 0; i < 4; i++) F32(list[i])[l] = acc[l / 4 + 8 * (i / 2)][l % 4 * 2 + i % 2];
    return SIM_NEXT;
}

/* ---- f64, m8n8k4 ---- */

typedef double row4 __attribute__((vector_size(32)));
SIM_HEAD(mma_f64) { /* rows of D in two halves; each product is fused, in the order of k */
    const uint32_t *list = w->list + in->list;
    const double *a = F64(list[2]), *b = F64(list[3]), *c[2] = {F64(list[4]), F64(list[5])};
    double *d[2] = {F64(list[0]), F64(list[1])};
    row4 row[4][2], acc[8][2];
    (void)m;
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t n = 0; n < 8; n++) row[k][n / 4][n % 4] = b[4 * n + k];
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t n = 0; n < 8; n++) acc[g][n / 4][n % 4] = c[n % 2][4 * g + n / 2];
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t h = 0; h < 2; h++) acc[g][h] += a[4 * g + k] * row[k][h];
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t n = 0; n < 8; n++) d[n % 2][4 * g + n / 2] = acc[g][n / 4][n % 4];
    return SIM_NEXT;
}

/* ---- everything else, element by element ---- */

/* x: log2 of elements in a register; y, z: types of A and B; type: of C and D; bytes: K; count: rows; n: registers of
 * A; wide: C in f16 or f64. */
struct shape {
    const char *word;
    uint8_t rows, k;
};
static double value_of(const struct sim_warp *w, uint32_t place, uint32_t lane, uint32_t part, enum ptx_type type) {
    uint32_t word = W32(place)[lane];
    switch (type) {
    case PTX_F64: return F64(place)[lane];
    case PTX_F32: return (double)sim_from_tf32(word);
    case PTX_S8: return (double)(int8_t)(word >> (8 * part));
    case PTX_U8: return (double)(uint8_t)(word >> (8 * part));
    case PTX_B8: return (double)sim_from_e4m3(word >> (8 * part) & 255);
    case PTX_B16: return (double)sim_from_e5m2(word >> (8 * part) & 255);
    default: return (double)element(word >> (16 * part), type);
    }
}

/* wide: sim_aligned_sum. */
SIM_HEAD(mma_any) {
    const uint32_t *list = w->list + in->list;
    uint32_t parts = 1u << in->x, rows = in->count, tall = rows / 8, k = in->bytes;
    uint32_t n_c = in->type == PTX_F16 ? tall : 2 * tall, n_a = in->n, n_b = n_a / tall;
    double a[16][MAX_K], b[MAX_K][8], d[16][8];
    (void)m;
    for (uint32_t i = 0; i < n_a; i++) EACH_LANE
    for (uint32_t p = 0; p < parts; p++)
        a[l / 4 + 8 * (i % tall)][l % 4 * parts + p + 4 * parts * (i / tall)] =
            value_of(w, list[n_c + i], l, p, (enum ptx_type)in->y);
    for (uint32_t i = 0; i < n_b; i++) EACH_LANE
    for (uint32_t p = 0; p < parts; p++)
        b[l % 4 * parts + p + 4 * parts * i][l / 4] = value_of(w, list[n_c + n_a + i], l, p, (enum ptx_type)in->z);
    const uint32_t *c = list + n_c + n_a + n_b;
    EACH_LANE
    for (uint32_t i = 0; i < 2 * tall; i++) {
        uint32_t r = l / 4 + 8 * (i / 2), column = l % 4 * 2 + i % 2;
        double v = in->type == PTX_F64   ? F64(c[i])[l]
                   : in->type == PTX_S32 ? (double)(int32_t)W32(c[i])[l]
                   : in->type == PTX_F16 ? (double)sim_from_f16(W32(c[i / 2])[l] >> (16 * (i & 1)) & 0xffff)
                                         : (double)F32(c[i])[l];
        if (in->wide) {
            double y[MAX_K];
            for (uint32_t j = 0; j < k; j++) y[j] = b[j][column];
            v = sim_aligned_sum(v, a[r], y, k);
        }
        for (uint32_t j = 0; j < k && !in->wide; j++) {
            double term = a[r][j] * b[j][column];
            v = in->type == PTX_F64   ? fma(a[r][j], b[j][column], v)
                : in->type == PTX_S32 ? v + term
                                      : (double)(float)(v + term);
        }
        d[r][column] = v;
    }
    EACH_LANE
    for (uint32_t i = 0; i < 2 * tall; i++) {
        double v = d[l / 4 + 8 * (i / 2)][l % 4 * 2 + i % 2];
        if (in->type == PTX_F64)
            F64(list[i])[l] = v;
        else if (in->type == PTX_S32)
            W32(list[i])[l] = (uint32_t)(int64_t)v;
        else if (in->type == PTX_F32)
            F32(list[i])[l] = (float)v;
        else if (i & 1)
            W32(list[i / 2])[l] = (W32(list[i / 2])[l] & 0xffff) | sim_to_f16((float)v) << 16;
        else
            W32(list[i / 2])[l] = sim_to_f16((float)v);
    }
    return SIM_NEXT;
}

static const struct {
    const char *word;
    enum ptx_type type; /* e4m3 and e5m2 borrow B8 and B16 */
    uint8_t parts_log2, bits;
} types[] = {
    {"f16", PTX_F16, 1, 32}, {"bf16", PTX_BF16, 1, 32}, {"tf32", PTX_F32, 0, 32}, {"f64", PTX_F64, 0, 64},
    {"s8", PTX_S8, 2, 32},   {"u8", PTX_U8, 2, 32},     {"e4m3", PTX_B8, 2, 32},  {"e5m2", PTX_B16, 2, 32},
    {"f32", PTX_F32, 0, 32}, {"s32", PTX_S32, 0, 32},
};
enum { N_TYPES = sizeof types / sizeof *types, N_OPERANDS = 8 };

SIM_DECODER(mma) {
    static const struct shape shapes[] = {
        {"m16n8k4", 16, 4}, {"m16n8k8", 16, 8}, {"m16n8k16", 16, 16}, {"m16n8k32", 16, 32}, {"m8n8k4", 8, 4}};
    const struct shape *s = NULL;
    sim_word(d, "sync");
    sim_word(d, "aligned");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (sim_word(d, shapes[i].word)) s = &shapes[i];
    if (!s || !sim_word(d, "row") || !sim_word(d, "col")) return;
    /* the last four words: types of D, A, B, C */
    int t[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t part = d->n_parts - 4 + i;
        t[i] = -1;
        for (int k = 0; k < N_TYPES && d->n_parts > 6; k++)
            if (!strcmp(d->part[part], types[k].word)) t[i] = k;
        if (t[i] < 0) return;
        d->used |= 1u << part;
    }
    sim_want(d, 4, 4);
    if (d->failed || t[0] != t[3] || types[t[1]].parts_log2 != types[t[2]].parts_log2) return;
    if (t[1] >= N_OPERANDS || t[2] >= N_OPERANDS) return;
    unsigned bits = types[t[1]].bits, bits_c = types[t[0]].bits;
    uint32_t per = 4u << types[t[1]].parts_log2, tall = s->rows / 8u;
    if (s->k % per || (types[t[0]].type == PTX_F64) != (types[t[1]].type == PTX_F64) || (tall == 1 && bits != 64))
        return;
    uint32_t n_a = tall * (s->k / per), n_b = s->k / per;
    uint32_t n_c = types[t[0]].type == PTX_F16 ? tall : 2 * tall;
    in->type = (uint8_t)types[t[0]].type;
    in->x = types[t[1]].parts_log2;
    in->y = (uint8_t)types[t[1]].type, in->z = (uint8_t)types[t[2]].type;
    in->count = s->rows, in->bytes = s->k;
    in->n = n_a;
    in->sync = SIM_ALIGNED;
    in->list = d->program->n_list;
    uint32_t got = sim_list(d, &d->o[0], bits_c, 1) * 1000000u;
    got += sim_list(d, &d->o[1], bits, 0) * 10000u;
    got += sim_list(d, &d->o[2], bits, 0) * 100u;
    got += sim_list(d, &d->o[3], bits_c, 0);
    if (got != n_c * 1000000u + n_a * 10000u + n_b * 100u + n_c) return;
    in->exec = mma_any;
    const char *as = getenv("ATTNSIM_MMA");
    in->wide = as && !strcmp(as, "h100") && in->type == PTX_F32;
    if (in->wide) return;
    if (in->x == 1 && in->type == PTX_F32 && in->y == in->z) {
        in->x = s->k / 8;
        in->y = types[t[1]].type == PTX_BF16;
        in->exec = mma_16bit_f32;
    } else if (in->type == PTX_F32 && in->y == PTX_F32 && in->z == PTX_F32 && tall == 2) {
        in->x = s->k / 4;
        in->exec = mma_tf32;
    } else if (in->type == PTX_F64 && tall == 1) {
        in->exec = mma_f64;
    }
}
