/* SPDX-License-Identifier: MIT
 * Vectors of tcgen05.mma: every kind with each of its types, shapes of one CTA and of a pair, A in shared and in tensor
 * memory, both orders and every swizzle, scales, lanes left out, .ws, and what else an instruction descriptor says.
 * Cells: D from 0 or column 32 on, A 256, scales of A 264, of B 268. Shared memory: A from 0, B from 32768 on. */
#include "blackwell_golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum kind { F16, TF32, F8, I8, MXF8, MXF4, NVF4 };
static const struct {
    const char *word;
    uint8_t codes[11]; /* of a format in the descriptor */
} kinds[] = {
    [F16] = {"f16", {[BG_F16] = 0, [BG_BF16] = 1}},
    [TF32] = {"tf32", {[BG_TF32] = 2}},
    [F8] = {"f8f6f4", {[BG_E4M3] = 0, [BG_E5M2] = 1, [BG_E2M3] = 3, [BG_E3M2] = 4, [BG_E2M1] = 5}},
    [I8] = {"i8", {[BG_U8] = 0, [BG_S8] = 1}},
    [MXF8] = {"mxf8f6f4.block_scale", {[BG_E4M3] = 0, [BG_E5M2] = 1, [BG_E2M3] = 3, [BG_E3M2] = 4, [BG_E2M1] = 5}},
    [MXF4] = {"mxf4.block_scale", {[BG_PAIRS] = 1}},
    [NVF4] = {"mxf4nvf4.block_scale", {[BG_PAIRS] = 1}}};

struct product {
    uint8_t kind, a, b; /* formats */
    uint16_t m, n;
    uint8_t ctas, cells, ws, half, add, lane16;
    uint8_t swizzle_a, swizzle_b, mn_a, mn_b, unit;
    uint8_t negate, saturate, divide, masked;
    uint8_t scales, ue4m3, id_a, id_b;
    const char *words; /* that the name and the opcode have more */
};
static const struct product table[] = {
    /* types and shapes of one CTA */
    {F16, BG_F16, BG_F16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F16, BG_F16, BG_F16, 128, 16, 1, .half = 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_BF16, BG_BF16, 128, 256, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F16, BG_BF16, BG_F16, 64, 8, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_BF16, BG_BF16, 64, 256, 1, .swizzle_a = BG_64, .swizzle_b = BG_128},
    {F16, BG_F16, BG_F16, 64, 48, 1, .lane16 = 1, .swizzle_a = BG_64, .swizzle_b = BG_32},
    {TF32, BG_TF32, BG_TF32, 128, 96, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {TF32, BG_TF32, BG_TF32, 64, 24, 1, .swizzle_a = BG_32, .swizzle_b = BG_64},
    {F8, BG_E4M3, BG_E4M3, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E5M2, BG_E4M3, 128, 128, 1, .swizzle_a = BG_64, .swizzle_b = BG_128, .add = 1},
    {F8, BG_E4M3, BG_E5M2, 64, 32, 1, .swizzle_a = BG_128, .swizzle_b = BG_32},
    {F8, BG_E2M3, BG_E4M3, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E4M3, BG_E3M2, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E2M1, BG_E2M1, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E3M2, BG_E2M1, 64, 64, 1, .swizzle_a = BG_NONE, .swizzle_b = BG_64},
    {I8, BG_S8, BG_S8, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {I8, BG_U8, BG_S8, 64, 8, 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {I8, BG_S8, BG_U8, 128, 256, 1, .swizzle_a = BG_64, .swizzle_b = BG_64, .saturate = 1, .add = 2},
    /* A in tensor memory */
    {F16, BG_BF16, BG_BF16, 128, 128, 1, .cells = 1, .swizzle_b = BG_128, .add = 1},
    {F16, BG_F16, BG_F16, 64, 64, 1, .cells = 1, .swizzle_b = BG_128},
    {F16, BG_F16, BG_F16, 64, 64, 1, .cells = 1, .lane16 = 1, .swizzle_b = BG_64, .mn_b = 1},
    {TF32, BG_TF32, BG_TF32, 128, 64, 1, .cells = 1, .swizzle_b = BG_128},
    {F8, BG_E4M3, BG_E5M2, 128, 64, 1, .cells = 1, .swizzle_b = BG_128},
    {F8, BG_E2M1, BG_E4M3, 128, 64, 1, .cells = 1, .swizzle_b = BG_128},
    {F8, BG_E2M3, BG_E4M3, 128, 64, 1, .cells = 1, .swizzle_b = BG_128},
    {I8, BG_S8, BG_U8, 128, 64, 1, .cells = 1, .swizzle_b = BG_128},
    /* pairs */
    {F16, BG_BF16, BG_BF16, 256, 256, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_F16, BG_F16, 256, 16, 2, .swizzle_a = BG_64, .swizzle_b = BG_128},
    {F16, BG_F16, BG_F16, 128, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_BF16, BG_BF16, 256, 64, 2, .cells = 1, .swizzle_b = BG_128},
    {F16, BG_BF16, BG_BF16, 128, 64, 2, .cells = 1, .swizzle_b = BG_64},
    {TF32, BG_TF32, BG_TF32, 256, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E4M3, BG_E4M3, 256, 128, 2, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {I8, BG_S8, BG_S8, 128, 96, 2, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F16, BG_BF16, BG_BF16, 256, 64, 2, .swizzle_a = BG_64, .swizzle_b = BG_64, .mn_a = 1, .mn_b = 1},
    /* rows along m or n; starts inside a pattern's row */
    {F8, BG_E4M3, BG_E4M3, 128, 128, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .mn_a = 1, .mn_b = 1},
    {F8, BG_E5M2, BG_E4M3, 64, 64, 1, .swizzle_a = BG_32, .swizzle_b = BG_64, .mn_a = 1},
    {I8, BG_S8, BG_S8, 128, 64, 1, .swizzle_a = BG_NONE, .swizzle_b = BG_64, .mn_b = 1},
    {F16, BG_F16, BG_F16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .unit = 2},
    {F16, BG_F16, BG_F16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .unit = 6},
    {F8, BG_E4M3, BG_E4M3, 64, 64, 1, .swizzle_a = BG_64, .swizzle_b = BG_64, .unit = 2},
    /* scales */
    {MXF8, BG_E4M3, BG_E4M3, 128, 128, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 1, .add = 1},
    {MXF8, BG_E5M2, BG_E2M1, 128, 256, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 1, .id_a = 2, .id_b = 1},
    {MXF8, BG_E2M3, BG_E3M2, 128, 40, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 1, .id_a = 3, .id_b = 3},
    {MXF8, BG_E4M3, BG_E4M3, 128, 64, 1, .cells = 1, .swizzle_b = BG_128, .scales = 1, .words = ".scale_vec::1X"},
    {MXF8, BG_E4M3, BG_E4M3, 256, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 1, .id_b = 1},
    {MXF4, BG_PAIRS, BG_PAIRS, 128, 128, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 2},
    {MXF4, BG_PAIRS, BG_PAIRS, 128, 64, 1, .swizzle_a = BG_64, .swizzle_b = BG_128, .scales = 2, .id_a = 2, .add = 1,
     .words = ".scale_vec::2X"},
    {MXF4, BG_PAIRS, BG_PAIRS, 128, 64, 1, .cells = 1, .swizzle_b = BG_128, .scales = 2, .id_b = 2},
    {MXF4, BG_PAIRS, BG_PAIRS, 256, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 2},
    {NVF4, BG_PAIRS, BG_PAIRS, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 4, .ue4m3 = 1,
     .words = ".scale_vec::4X"},
    {NVF4, BG_PAIRS, BG_PAIRS, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 4,
     .words = ".scale_vec::4X"},
    {NVF4, BG_PAIRS, BG_PAIRS, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 2, .id_a = 2,
     .words = ".scale_vec::2X"},
    {NVF4, BG_PAIRS, BG_PAIRS, 256, 128, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .scales = 4, .ue4m3 = 1,
     .words = ".scale_vec::4X"},
    /* .ws */
    {F16, BG_BF16, BG_BF16, 128, 64, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F16, BG_F16, BG_F16, 64, 128, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_F16, BG_F16, 32, 64, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .add = 1},
    {F16, BG_F16, BG_F16, 32, 256, 1, .ws = 1, .cells = 1, .swizzle_b = BG_128},
    {F16, BG_BF16, BG_BF16, 64, 64, 1, .ws = 1, .cells = 1, .swizzle_b = BG_128},
    {TF32, BG_TF32, BG_TF32, 64, 64, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {F8, BG_E4M3, BG_E4M3, 32, 128, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128},
    {I8, BG_S8, BG_U8, 64, 64, 1, .ws = 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .words = ".collector::b2::fill"},
    /* the rest of the words */
    {F16, BG_F16, BG_F16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .negate = 1, .add = 1},
    {F16, BG_F16, BG_F16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .negate = 2},
    {F8, BG_E4M3, BG_E4M3, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .negate = 3},
    {F16, BG_BF16, BG_BF16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .divide = 3, .add = 1},
    {TF32, BG_TF32, BG_TF32, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .divide = 15, .add = 1},
    {F16, BG_BF16, BG_BF16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .masked = 1, .add = 1},
    {F16, BG_BF16, BG_BF16, 64, 64, 1, .cells = 1, .swizzle_b = BG_128, .masked = 1},
    {F16, BG_BF16, BG_BF16, 256, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .masked = 1, .add = 1},
    {F16, BG_BF16, BG_BF16, 128, 64, 2, .swizzle_a = BG_128, .swizzle_b = BG_128, .masked = 1},
    {F16, BG_BF16, BG_BF16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .words = ".collector::a::fill"},
    {F16, BG_BF16, BG_BF16, 128, 64, 1, .swizzle_a = BG_128, .swizzle_b = BG_128, .words = ".collector::a::discard"},
};
enum {
    N_TABLE = sizeof table / sizeof *table,
    D_AT = 32,
    A_AT = 288,
    SFA_AT = 296,
    SFB_AT = 300,
    COLUMNS = 320,
    B_BYTE = 32768
};

static int choose(uint32_t i, struct product *p) {
    if (i < N_TABLE) {
        *p = table[i];
        return 1;
    }
    i -= N_TABLE;
    if (i >= 16) return 0; /* swizzle x order of A x order of B */
    *p = (struct product){.kind = F16, .a = BG_BF16, .b = BG_BF16, .m = 128, .n = 64, .ctas = 1};
    p->swizzle_a = p->swizzle_b = (uint8_t)(i / 4), p->mn_a = i & 1, p->mn_b = i >> 1 & 1;
    return 1;
}
static void name_of(const struct product *p, char *name, size_t room) {
    static const char *const formats[] = {"f16",  "bf16", "tf32", "e4m3", "e5m2", "e2m3",
                                          "e3m2", "e2m1", "u8",   "s8",   "fp4"};
    int n = snprintf(name, room, "mma%s_%.*s_%s_%s_m%un%u_cta%u_sw%u%u", p->ws ? "_ws" : "",
                     (int)strcspn(kinds[p->kind].word, "."), kinds[p->kind].word, formats[p->a], formats[p->b], p->m,
                     p->n, p->ctas, p->swizzle_a, p->swizzle_b);
    const struct {
        const char *word;
        uint32_t value;
    } extras[] = {{"cells", p->cells},  {"half", p->half},  {"add", p->add},     {"lane16", p->lane16},
                  {"ta", p->mn_a},      {"tb", p->mn_b},    {"unit", p->unit},   {"neg", p->negate},
                  {"sat", p->saturate}, {"div", p->divide}, {"mask", p->masked}, {"vec", p->scales},
                  {"ue4m3", p->ue4m3},  {"ida", p->id_a},   {"idb", p->id_b}};
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++)
        if (extras[i].value) n += snprintf(name + n, room - (size_t)n, "_%s%u", extras[i].word, extras[i].value);
    if (p->words) snprintf(name + n, room - (size_t)n, "%s", p->words);
    for (char *c = name; *c; c++)
        if (*c == ':' || *c == '.') *c = '_';
}

static struct bg_code a[256][64], b[256][64];
static double scale_a[256][4], scale_b[256][4];

static struct bg_layout layout_of(const struct product *p, int of_b) {
    struct bg_layout l = {.swizzle = of_b ? p->swizzle_b : p->swizzle_a,
                          .along_mn = of_b ? p->mn_b : p->mn_a,
                          .unit = p->unit,
                          .start = of_b ? B_BYTE : 0};
    const uint32_t wide = 16u << l.swizzle;
    if (l.swizzle)
        l.stride = l.along_mn ? 8 * wide : 8 * wide, l.leading = l.along_mn ? 4096 : 16;
    else
        l.stride = l.along_mn ? 256 : 128, l.leading = l.along_mn ? 128 : 4096;
    if (l.swizzle && l.along_mn) l.stride = 8 * wide, l.leading = 32 * wide; /* up to 32 k of a block, then the next */
    if (!l.swizzle && l.along_mn) l.stride = 512, l.leading = 128;
    return l;
}

static void fill(const struct product *p, struct bg_case *c, uint32_t k) {
    uint64_t state = bg_seed(c->name);
    const struct bg_layout la = layout_of(p, 0), lb = layout_of(p, 1);
    const uint32_t rows_a = p->m / p->ctas, rows_b = p->n / p->ctas;
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t i = 0; i < BG_IMAGE; i++) c->image[v][i] = (uint8_t)(bg_random(&state) & 0x37);
    for (uint32_t r = 0; r < p->m; r++)
        for (uint32_t i = 0; i < k; i++) {
            a[r][i] = bg_pick((enum bg_format)p->a, bg_random(&state));
            if (!p->cells) bg_put(c->image[r / rows_a], &la, (enum bg_format)p->a, r % rows_a, i, a[r][i].code);
        }
    for (uint32_t r = 0; r < p->n; r++)
        for (uint32_t i = 0; i < k; i++) {
            b[r][i] = bg_pick((enum bg_format)p->b, bg_random(&state));
            bg_put(c->image[r / rows_b], &lb, (enum bg_format)p->b, r % rows_b, i, b[r][i].code);
        }
    for (uint32_t v = 0; v < p->ctas; v++)
        for (uint32_t l = 0; l < BG_LANES; l++)
            for (uint32_t i = 0; i < BG_COLUMNS; i++) {
                int x = (int)(bg_random(&state) % 17) - 8;
                c->cells[v][l][i] = p->kind == I8 ? (p->add == 2 ? (x < 0 ? 0x80000000u : 0x7fffff00u) : (uint32_t)x)
                                    : p->half     ? bg_f16(x) | 0xabcd0000
                                                  : bg_f32(x);
            }
    /* A in cells: in each lane the row that the lane's part of D belongs to */
    for (uint32_t v = 0; v < p->ctas && p->cells; v++)
        for (uint32_t l = 0; l < BG_LANES; l++) {
            uint32_t m, n;
            if (!bg_of_cell(p->m, p->n, p->ctas, p->ws, p->lane16, v, l, 0, &m, &n)) continue;
            for (uint32_t i = 0; i < k; i++) bg_put_cell(c->cells[v][l], A_AT, (enum bg_format)p->a, i, a[m][i].code);
        }
    /* scales: row r of the CTA in each part of 32 lanes, lane r % 32, column r / 32, a byte for each block of k */
    static const uint8_t e8[4] = {126, 127, 128, 129}, e4[4] = {0x30, 0x38, 0x3c, 0x40};
    static const double of_e8[4] = {0.5, 1, 2, 4}, of_e4[4] = {0.5, 1, 1.5, 2};
    for (uint32_t side = 0; side < 2 && p->scales; side++)
        for (uint32_t r = 0; r < (side ? p->n : p->m); r++)
            for (uint32_t q = 0; q < 4; q++) {
                uint32_t x = bg_random(&state) & 3, first = side ? p->id_b : p->id_a;
                for (uint32_t v = 0; v < p->ctas; v++)
                    for (uint32_t part = 0; part < 4 && (side || r / rows_a == v); part++) {
                        uint32_t in = side ? r : r % rows_a;
                        uint8_t *cell =
                            (uint8_t *)&c->cells[v][32 * part + in % 32][(side ? SFB_AT : SFA_AT) + in / 32];
                        cell[q] = p->ue4m3 ? e4[x] : e8[x];
                    }
                if (q >= first && q < first + p->scales)
                    (side ? scale_b : scale_a)[r][q - first] = p->ue4m3 ? of_e4[x] : of_e8[x];
            }
}

static double before(const struct product *p, uint32_t cell) {
    float f;
    if (p->half) {
        double x = ldexp((double)((cell & 0x3ff) | 0x400), (int)(cell >> 10 & 31) - 25);
        return (cell & 0x7fff) == 0 ? 0 : cell & 0x8000 ? -x : x;
    }
    if (p->kind == I8) return (double)(int32_t)cell;
    memcpy(&f, &cell, 4);
    return (double)f;
}
static uint32_t result(const struct product *p, double x) {
    if (p->half) return bg_f16(x);
    if (p->kind != I8) return bg_f32(x);
    if (p->saturate) x = x > 2147483647.0 ? 2147483647.0 : x < -2147483648.0 ? -2147483648.0 : x;
    return (uint32_t)(int64_t)x;
}
static const uint32_t lanes_left_out[8] = {0x80000001, 0, 0xffffffff, 0x00ff0f00, 1, 0xf0000000, 0x3, 0xffffffff};

int bg_products(uint32_t i, struct bg_case *c) {
    struct product p;
    if (!choose(i, &p)) return 0;
    const uint32_t k = bg_row_elements((enum bg_format)p.a), dump = p.n > 256 - D_AT ? D_AT + 256 : 256;
    c->ctas = p.ctas;
    name_of(&p, c->name, sizeof c->name);
    fill(&p, c, k);
    bg_begin(c, COLUMNS);
    bg_keep(c, dump);
    for (uint32_t v = 0; v < p.ctas; v++)
        for (uint32_t l = 0; l < BG_LANES; l++)
            for (uint32_t column = 0; column < p.n; column++) {
                uint32_t m, n, *want = &c->want[v][l][D_AT + column];
                if (!bg_of_cell(p.m, p.n, p.ctas, p.ws, p.lane16, v, l, column, &m, &n)) continue;
                if (p.masked && lanes_left_out[4 * v + l / 32] >> l % 32 & 1) continue;
                double sum = p.add ? ldexp(before(&p, *want), -p.divide) : 0,
                       sign = p.negate == 1 || p.negate == 2 ? -1 : 1;
                for (uint32_t e = 0; e < k; e++) {
                    double scale = p.scales ? scale_a[m][e * p.scales / k] * scale_b[n][e * p.scales / k] : 1;
                    sum += sign * a[m][e].value * b[n][e].value * scale;
                }
                *want = result(&p, sum);
                if (p.half) c->care[v][l][D_AT + column] = 0xffff;
            }
    const struct bg_layout la = layout_of(&p, 0), lb = layout_of(&p, 1);
    uint32_t shape = (uint32_t)kinds[p.kind].codes[p.a] << 7 | (uint32_t)kinds[p.kind].codes[p.b] << 10 |
                     (uint32_t)(p.negate & 1) << 13 | (uint32_t)(p.negate >> 1) << 14 | (uint32_t)p.mn_a << 15 |
                     (uint32_t)p.mn_b << 16 | (uint32_t)(p.n / 8) << 17 | (uint32_t)(p.m / 16) << 24;
    if (p.scales)
        shape |= (uint32_t)p.id_b << 4 | (uint32_t)!p.ue4m3 << 23 | (uint32_t)p.id_a << 29;
    else
        shape |= (uint32_t)p.saturate << 3 | (p.kind == I8 ? 2u : p.half ? 0u : 1u) << 4;
    bg_one(c);
    const uint32_t lane = p.lane16 ? 16u << 16 : 0;
    bg_add(c,
           "and.b32 %%r11, %%r1, 262143;\nshr.u32 %%r11, %%r11, 4;\ncvt.u64.u32 %%rd6, %%r11;\n"
           "add.u64 %%rd7, %%rd6, %llu;\nadd.u64 %%rd6, %%rd6, %llu;\nadd.u32 %%r12, %%r4, %u;\n"
           "add.u32 %%r13, %%r4, %u;\nadd.u32 %%r15, %%r4, %u;\nadd.u32 %%r16, %%r4, %u;\nmov.b32 %%r14, %u;\n"
           "mov.b32 %%r17, %u;\nsetp.ne.u32 add, %%r17, 0;\n",
           (unsigned long long)bg_descriptor(&lb), (unsigned long long)bg_descriptor(&la), lane + D_AT, lane + A_AT,
           SFA_AT, SFB_AT, shape, p.add);
    bg_add(c, "tcgen05.mma%s.cta_group::%u.kind::%s%s [%%r12], %s, %%rd7, %%r14, ", p.ws ? ".ws" : "", p.ctas,
           kinds[p.kind].word, p.words ? p.words : "", p.cells ? "[%r13]" : "%rd6");
    if (p.scales) bg_add(c, "[%%r15], [%%r16], ");
    for (uint32_t e = 0; p.masked && e < 4u * p.ctas; e++)
        bg_add(c, "%s%%v%u%s", e ? ", " : "{", e, e + 1 == 4u * p.ctas ? "}, " : "");
    bg_add(c, "add%s", "");
    if (p.divide) bg_add(c, ", %u", p.divide);
    bg_add(c, ";\n");
    if (p.masked) { /* the masks stand before the instruction */
        char *product = strstr(c->text, "tcgen05.mma."), line[256];
        snprintf(line, sizeof line, "%s", product);
        *product = 0;
        for (uint32_t e = 0; e < 4u * p.ctas; e++) bg_add(c, "mov.b32 %%v%u, %u;\n", e, lanes_left_out[e]);
        bg_add(c, "%s", line);
    }
    bg_commit(c);
    bg_wait(c);
    bg_dump(c, dump);
    bg_end(c);
    return 1;
}
