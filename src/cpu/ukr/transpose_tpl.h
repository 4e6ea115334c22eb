/* SPDX-License-Identifier: MIT
 * Transposes out of register squares (square_f32, square_f64 of SQUARE_F32, SQUARE_F64 rows) and a scalar rim. Sources
 * need no alignment: pairs of 16-bit numbers come as f32 and start at any even address. */
#define TRANSPOSE(suffix, T, SQUARE)                                                                                   \
    static void transpose_##suffix(T *dst, int64_t ld, const T *src, int64_t ld_src, int64_t rows, int64_t cols) {     \
        const int64_t whole_rows = rows - rows % SQUARE, whole_cols = cols - cols % SQUARE;                            \
        for (int64_t r = 0; r < whole_rows; r += SQUARE) {                                                             \
            for (int64_t c = 0; c < whole_cols; c += SQUARE)                                                           \
                square_##suffix(dst + c * ld + r, ld, src + r * ld_src + c, ld_src);                                   \
            for (int64_t c = whole_cols; c < cols; c++)                                                                \
                for (int64_t i = r; i < r + SQUARE; i++)                                                               \
                    __builtin_memcpy(&dst[c * ld + i], &src[i * ld_src + c], sizeof(T));                               \
        }                                                                                                              \
        for (int64_t r = whole_rows; r < rows; r++)                                                                    \
            for (int64_t c = 0; c < cols; c++) __builtin_memcpy(&dst[c * ld + r], &src[r * ld_src + c], sizeof(T));    \
    }
TRANSPOSE(f32, float, SQUARE_F32)
TRANSPOSE(f64, double, SQUARE_F64)
#undef TRANSPOSE
