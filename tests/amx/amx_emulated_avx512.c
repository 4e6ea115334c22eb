/* SPDX-License-Identifier: MIT
 * See amx_emulated.h. The product follows the pseudocode of TDPBF16PS in Intel's SDM, volume 2: for an element, two
 * chains of fused multiply-adds from 0, one over the low and one over the high halves, their sum, and its sum with the
 * old value; round to nearest even, denormal inputs and results count as 0. */
#include "amx/amx_emulated.h"

#include "cpu/amx/tile.h"

#include <immintrin.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static _Thread_local struct {
    int configured;
    uint8_t rows[TILES], row_bytes[TILES], written[TILES];
    _Alignas(64) uint8_t data[TILES][ROWS][ROW_BYTES];
} unit;
static _Atomic long products;

void (*attn_amx_emulated_fault)(const char *words) = NULL;
int attn_amx_emulated_permit = 1;
int attn_amx_emulated_configured(void) { return unit.configured; }
long attn_amx_emulated_products(void) { return atomic_load(&products); }

static int fault(int wrong, const char *words) {
    if (!wrong) return 0;
    if (attn_amx_emulated_fault) {
        attn_amx_emulated_fault(words);
        return 1;
    }
    fprintf(stderr, "AMX: %s\n", words);
    abort();
}
static int unusable(int t) {
    return fault(t < 0 || t >= TILES, "no such tile") || fault(!unit.configured, "no tile is configured") ||
           fault(!unit.rows[t], "the tile has no shape");
}

void attn_amx_emulated_config(const struct tile_shapes *shapes) {
    int odd = shapes->start_row != 0;
    for (int i = 0; i < 14; i++) odd |= shapes->reserved[i] != 0;
    for (int t = 0; t < 16; t++) {
        const int rows = shapes->rows[t], bytes = shapes->row_bytes[t];
        odd |= t >= TILES && (rows || bytes);
        if (fault(rows > ROWS || bytes > ROW_BYTES, "a tile is larger than 16 rows of 64 bytes")) return;
        odd |= (rows == 0) != (bytes == 0);
    }
    if (fault(shapes->palette != 1 || odd, "the configuration is not one of palette 1")) return;
    if (fault(unit.configured, "configured again before the release")) return;
    memset(&unit, 0, sizeof unit);
    unit.configured = 1;
    for (int t = 0; t < TILES; t++) {
        unit.rows[t] = shapes->rows[t];
        unit.row_bytes[t] = (uint8_t)shapes->row_bytes[t];
    }
}

void attn_amx_emulated_release(void) {
    if (!fault(!unit.configured, "released without a configuration")) memset(&unit, 0, sizeof unit);
}

void attn_amx_emulated_zero(int t) {
    if (unusable(t)) return;
    memset(unit.data[t], 0, sizeof unit.data[t]);
    unit.written[t] = 1;
}

void attn_amx_emulated_load(int t, const void *base, int64_t stride) {
    if (unusable(t)) return;
    attn_amx_emulated_zero(t);
    for (int i = 0; i < unit.rows[t]; i++) /* byte by byte as far as a sanitizer is concerned */
        memcpy(unit.data[t][i], (const char *)base + i * stride, unit.row_bytes[t]);
}

void attn_amx_emulated_store(int t, void *base, int64_t stride) {
    if (unusable(t) || fault(!unit.written[t], "a tile is stored that was never written")) return;
    const int64_t apart = stride < 0 ? -stride : stride;
    if (fault(unit.rows[t] > 1 && apart < unit.row_bytes[t], "rows of a stored tile overlap")) return;
    for (int i = 0; i < unit.rows[t]; i++) memcpy((char *)base + i * stride, unit.data[t][i], unit.row_bytes[t]);
}

/* Called through a pointer that the compiler cannot see through: its arithmetic stays between the two changes of mode.
 */
static void multiply(int c, int a, int b) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int i = 0; i < unit.rows[c]; i++) {
        const __mmask16 columns = (__mmask16)((1u << unit.row_bytes[c] / 4) - 1);
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int l = 0; l < unit.row_bytes[a] / 4; l++) {
            int32_t pair;
            memcpy(&pair, &unit.data[a][i][4 * l], sizeof pair);
            const __m512i x = _mm512_set1_epi32(pair), y = _mm512_maskz_loadu_epi32(columns, unit.data[b][l]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                                  _mm512_castsi512_ps(_mm512_and_si512(y, high)), odd);
        }
        const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(unit.data[c][i]), _mm512_add_ps(even, odd));
        _mm512_mask_storeu_ps(unit.data[c][i], columns, sum);
    }
}
static void (*volatile multiply_apart)(int c, int a, int b) = multiply;

void attn_amx_emulated_dpbf16(int c, int a, int b) {
    enum { FLUSH_ROUND_NEAREST_MASK_ALL = 0x9fc0 };
    if (unusable(c) || unusable(a) || unusable(b)) return;
    if (fault(c == a || c == b || a == b, "a product of tiles that are not distinct")) return;
    if (fault(unit.rows[c] != unit.rows[a] || unit.row_bytes[c] != unit.row_bytes[b] ||
                  unit.row_bytes[a] / 4 != unit.rows[b] || unit.row_bytes[a] % 4 || unit.row_bytes[c] % 4,
              "the shapes of a product do not fit"))
        return;
    if (fault(!unit.written[c] || !unit.written[a] || !unit.written[b], "a tile is used that was never written"))
        return;
    const uint32_t mode = _mm_getcsr();
    _mm_setcsr(FLUSH_ROUND_NEAREST_MASK_ALL);
    multiply_apart(c, a, b);
    _mm_setcsr(mode);
    atomic_fetch_add_explicit(&products, 1, memory_order_relaxed);
}
