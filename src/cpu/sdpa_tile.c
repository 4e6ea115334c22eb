/* SPDX-License-Identifier: MIT
 * Tiles of the dense backward, for both compute types. */
#include "cpu/sdpa_tile.h"

#include <math.h>
#include <string.h>

#define REAL     float
#define T(name)  name##_f32
#define SMALLEST 1.17549435e-38f
#include "cpu/sdpa_tile_tpl.h"
#undef REAL
#undef T
#undef SMALLEST
#define REAL     double
#define T(name)  name##_f64
#define SMALLEST 2.2250738585072014e-308
#include "cpu/sdpa_tile_tpl.h"
