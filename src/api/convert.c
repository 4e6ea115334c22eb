/* SPDX-License-Identifier: MIT
 * Element types: names, sizes, conversion of arrays; row-major tensors; the library's version. */
#include "api/api.h"
#include "base/num.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ATTN_DTYPE_COUNT_] = {
    [ATTN_DTYPE_NONE] = {"?", 0}, [ATTN_F32] = {"f32", 4},   [ATTN_F16] = {"f16", 2},
    [ATTN_BF16] = {"bf16", 2},    [ATTN_F64] = {"f64", 8},   [ATTN_I32] = {"i32", 4},
    [ATTN_I64] = {"i64", 8},      [ATTN_BOOL] = {"bool", 1}, [ATTN_E4M3] = {"e4m3", 1},
};

static int known(int32_t dtype) { return dtype > ATTN_DTYPE_NONE && dtype < ATTN_DTYPE_COUNT_; }

const char *attn_dtype_name(int32_t dtype) { return known(dtype) ? dtypes[dtype].name : "?"; }
size_t attn_dtype_bytes(int32_t dtype) { return known(dtype) ? dtypes[dtype].bytes : 0; }

uint32_t attn_version(void) {
    return (uint32_t)ATTN_VERSION_MAJOR << 16 | (uint32_t)ATTN_VERSION_MINOR << 8 | (uint32_t)ATTN_VERSION_PATCH;
}

/* Elements go through memcpy because dst and src may be the same storage seen as two types. Each loop runs upwards and
 * reads element i before it writes it, which is what conversion in place to a narrower type needs. */
#define LOOP(src_type, dst_type, expression)                                                                           \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        src_type x;                                                                                                    \
        memcpy(&x, src + i * sizeof(src_type), sizeof x);                                                              \
        dst_type y = (expression);                                                                                     \
        memcpy(dst + i * sizeof(dst_type), &y, sizeof y);                                                              \
    }                                                                                                                  \
    break
#define PAIR(to, from) ((to)*ATTN_DTYPE_COUNT_ + (from))

static void convert(char *dst, int32_t to, const char *src, int32_t from, size_t n) {
    switch (PAIR(to, from)) {
    case PAIR(ATTN_F32, ATTN_F16): LOOP(uint16_t, float, attn_num_f16_f32(x));
    case PAIR(ATTN_F32, ATTN_BF16): LOOP(uint16_t, float, attn_num_bf16_f32(x));
    case PAIR(ATTN_F32, ATTN_F64): LOOP(double, float, (float)x);
    case PAIR(ATTN_F64, ATTN_F16): LOOP(uint16_t, double, (double)attn_num_f16_f32(x));
    case PAIR(ATTN_F64, ATTN_BF16): LOOP(uint16_t, double, (double)attn_num_bf16_f32(x));
    case PAIR(ATTN_F64, ATTN_F32): LOOP(float, double, (double)x);
    case PAIR(ATTN_F16, ATTN_F32): LOOP(float, uint16_t, attn_num_f32_f16(x));
    case PAIR(ATTN_F16, ATTN_F64): LOOP(double, uint16_t, attn_num_f64_f16(x));
    case PAIR(ATTN_F16, ATTN_BF16): LOOP(uint16_t, uint16_t, attn_num_f32_f16(attn_num_bf16_f32(x)));
    case PAIR(ATTN_BF16, ATTN_F32): LOOP(float, uint16_t, attn_num_f32_bf16(x));
    case PAIR(ATTN_BF16, ATTN_F64): LOOP(double, uint16_t, attn_num_f64_bf16(x));
    case PAIR(ATTN_BF16, ATTN_F16): LOOP(uint16_t, uint16_t, attn_num_f32_bf16(attn_num_f16_f32(x)));
    case PAIR(ATTN_F32, ATTN_E4M3): LOOP(uint8_t, float, attn_num_e4m3[x]);
    case PAIR(ATTN_F64, ATTN_E4M3): LOOP(uint8_t, double, (double)attn_num_e4m3[x]);
    case PAIR(ATTN_F16, ATTN_E4M3): LOOP(uint8_t, uint16_t, attn_num_f32_f16(attn_num_e4m3[x]));
    case PAIR(ATTN_BF16, ATTN_E4M3): LOOP(uint8_t, uint16_t, attn_num_f32_bf16(attn_num_e4m3[x]));
    case PAIR(ATTN_E4M3, ATTN_F32): LOOP(float, uint8_t, attn_num_f64_e4m3((double)x));
    case PAIR(ATTN_E4M3, ATTN_F64): LOOP(double, uint8_t, attn_num_f64_e4m3(x));
    case PAIR(ATTN_E4M3, ATTN_F16): LOOP(uint16_t, uint8_t, attn_num_f64_e4m3((double)attn_num_f16_f32(x)));
    case PAIR(ATTN_E4M3, ATTN_BF16): LOOP(uint16_t, uint8_t, attn_num_f64_e4m3((double)attn_num_bf16_f32(x)));
    default: memmove(dst, src, n * dtypes[to].bytes); break; /* the same type */
    }
}

static int floating(int32_t dtype) { return (dtype >= ATTN_F32 && dtype <= ATTN_F64) || dtype == ATTN_E4M3; }

attn_status attn_convert(void *dst, int32_t dst_dtype, const void *src, int32_t src_dtype, size_t n) {
    if (!floating(dst_dtype))
        FAIL(ATTN_E_ENUM, "dst_dtype", "dst_dtype %d is not f32, f16, bf16, f64 or e4m3", dst_dtype);
    if (!floating(src_dtype))
        FAIL(ATTN_E_ENUM, "src_dtype", "src_dtype %d is not f32, f16, bf16, f64 or e4m3", src_dtype);
    if (n == 0) return ATTN_OK;
    if (!dst) FAIL(ATTN_E_ARGUMENT, "dst", "dst is NULL");
    if (!src) FAIL(ATTN_E_ARGUMENT, "src", "src is NULL");
    size_t to = dtypes[dst_dtype].bytes, from = dtypes[src_dtype].bytes;
    if (n > PTRDIFF_MAX / 8) FAIL(ATTN_E_EXTENT, "n", "n = %zu elements is more than memory can hold", n);
    uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
    if (d == s ? to > from : d < s + n * from && s < d + n * to)
        FAIL(ATTN_E_OVERLAP, "dst",
             "dst and src overlap; only the same address is allowed, and a dst element that is not wider");
    convert(dst, dst_dtype, src, src_dtype, n);
    return ATTN_OK;
}

attn_status attn_tensor_contiguous(attn_tensor *out, void *data, int32_t dtype, int32_t rank, const int64_t *shape) {
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    if (!shape) FAIL(ATTN_E_ARGUMENT, "shape", "shape is NULL");
    if (!known(dtype)) FAIL(ATTN_E_ENUM, "dtype", "dtype %d is unknown", dtype);
    if (rank < 1 || rank > ATTN_MAX_RANK)
        FAIL2(ATTN_E_SHAPE, "rank", ATTN_MAX_RANK, rank, "rank is %d; expected 1 to %d", rank, ATTN_MAX_RANK);
    attn_tensor t = {.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1, elements = 1; /* strides count a zero extent as 1: only their product must fit */
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (shape[i] < 0)
            FAIL2(ATTN_E_SHAPE, "shape", 0, shape[i], "shape[%d] is %lld; expected >= 0", i, (long long)shape[i]);
        t.shape[i] = shape[i];
        t.strides[i] = stride;
        elements *= shape[i] != 0;
        if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride) || stride > INT64_MAX / 8)
            FAIL(ATTN_E_SHAPE, "shape", "the tensor's bytes exceed 63 bits");
    }
    t.bytes = (uint64_t)(elements * stride) * dtypes[dtype].bytes;
    *out = t;
    return ATTN_OK;
}
