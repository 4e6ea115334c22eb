/* SPDX-License-Identifier: MIT
 * Tiles of the dense backward, for every kind of operands. */
#include "cpu/dense/bwd_tile.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736
enum {
    PANEL = 32,      /* columns of a product's packed operand, and the grid on which strips leave out keys */
    MOST_TILE = 192, /* rows of a tile */
    TILE_STRIP = 14  /* rows of a strip where a diagonal runs through the tile */
};

#define PAIRS    0
#define REAL     double
#define T(name)  name##_f64
#define R(name)  name##_f64
#define SMALLEST 2.2250738585072014e-308
#include "cpu/dense/bwd_tile_tpl.h"
#undef REAL
#undef T
#undef R
#undef SMALLEST
#define REAL     float
#define T(name)  name##_f32
#define R(name)  name##_f32
#define SMALLEST 1.17549435e-38f
#include "cpu/dense/bwd_tile_tpl.h"
#undef PAIRS
#undef T
#define PAIRS   1
#define T(name) name##_bf16
#include "cpu/dense/bwd_tile_tpl.h"
