/* SPDX-License-Identifier: MIT
 * attn_dlpack.h against an own declaration of DLPack's published layout: devices, types, strides, offsets, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef enum { kDLCPU = 1 } DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
#define ATTN_DLPACK_DECLARED
#include "attn_dlpack.h"

static int64_t shape[5] = {2, 7, 3, 8, 1}, strides[5] = {500, 24, 8, 1, 1};
static float storage[1200];

static DLTensor sample(void) {
    DLTensor d = {storage, {kDLCPU, 0}, 4, {2, 32, 1}, shape, strides, 0};
    return d;
}

static void a_view_is_exact(void **state) {
    (void)state;
    DLTensor d = sample();
    attn_tensor t;
    d.byte_offset = 40;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_OK);
    assert_ptr_equal(t.data, (char *)storage + 40);
    assert_int_equal(t.bytes, 0);
    assert_int_equal(t.device.type, ATTN_DEVICE_TYPE_CPU);
    assert_int_equal(t.dtype, ATTN_F32);
    assert_int_equal(t.rank, 4);
    assert_memory_equal(t.shape, shape, 4 * sizeof *shape);
    assert_memory_equal(t.strides, strides, 4 * sizeof *strides);
}

static void absent_strides_are_row_major(void **state) {
    (void)state;
    DLTensor d = sample();
    attn_tensor t, c;
    d.strides = NULL;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_OK);
    assert_int_equal(attn_tensor_contiguous(&c, storage, ATTN_F32, 4, shape), ATTN_OK);
    assert_memory_equal(t.strides, c.strides, sizeof t.strides);
    int64_t hollow[3] = {4, 0, 5};
    d.shape = hollow;
    d.ndim = 3;
    d.data = NULL;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_OK);
    assert_null(t.data);
    assert_int_equal(t.shape[1], 0);
}

static void types_and_devices(void **state) {
    (void)state;
    static const struct {
        uint8_t code, bits;
        int32_t dtype;
    } types[] = {
        {2, 16, ATTN_F16}, {2, 32, ATTN_F32}, {2, 64, ATTN_F64}, {4, 16, ATTN_BF16}, {0, 32, ATTN_I32},
        {0, 64, ATTN_I64}, {6, 8, ATTN_BOOL}, {1, 8, ATTN_BOOL}, {0, 8, 0},          {1, 32, 0},
        {2, 8, 0},         {3, 64, 0},        {5, 64, 0},        {4, 32, 0},
    };
    attn_tensor t;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        DLTensor d = sample();
        d.dtype.code = types[i].code;
        d.dtype.bits = types[i].bits;
        assert_int_equal(attn_tensor_from_dlpack(&d, &t), types[i].dtype ? ATTN_OK : ATTN_E_DTYPE);
        if (types[i].dtype) assert_int_equal(t.dtype, types[i].dtype);
    }
    for (int32_t type = 0; type < 20; type++) {
        DLTensor d = sample();
        memcpy(&d.device.device_type, &type, sizeof type);
        d.device.device_id = 3;
        int host = type == 1 || type == 3, cuda = type == 2 || type == 13;
        assert_int_equal(attn_tensor_from_dlpack(&d, &t), host || cuda ? ATTN_OK : ATTN_E_TENSOR_DEVICE);
        if (host) assert_true(t.device.type == ATTN_DEVICE_TYPE_CPU && t.device.index == 0);
        if (cuda) assert_true(t.device.type == ATTN_DEVICE_TYPE_CUDA && t.device.index == 3);
    }
}

static void refusals_leave_out_alone(void **state) {
    (void)state;
    attn_tensor t, before;
    memset(&before, 0x5a, sizeof before);
    t = before;
    DLTensor d = sample();
    d.dtype.lanes = 4;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_DTYPE);
    d = sample();
    d.ndim = 5;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_SHAPE);
    d.ndim = 0;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_SHAPE);
    d = sample();
    d.shape = NULL;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_ARGUMENT);
    d = sample();
    d.data = NULL;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_ARGUMENT);
    int64_t bad[2] = {-1, 4}, huge[2] = {INT64_MAX / 4, INT64_MAX / 4};
    d = sample();
    d.ndim = 2;
    d.shape = bad;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_SHAPE);
    d.shape = huge;
    d.strides = NULL;
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_E_SHAPE);
    assert_int_equal(attn_tensor_from_dlpack(NULL, &t), ATTN_E_ARGUMENT);
    assert_int_equal(attn_tensor_from_dlpack(&d, NULL), ATTN_E_ARGUMENT);
    assert_memory_equal(&t, &before, sizeof t);
}

static void axes_exchange(void **state) {
    (void)state;
    DLTensor d = sample();
    attn_tensor t, before;
    static const int32_t bhsd[] = {0, 2, 1, 3}, cycle[] = {1, 2, 3, 0}, twice[] = {0, 1, 1, 3}, out[] = {0, 1, 2, 4},
                         low[] = {0, 1, 2, -1};
    assert_int_equal(attn_tensor_from_dlpack(&d, &t), ATTN_OK);
    before = t;
    assert_int_equal(attn_tensor_permute(&t, bhsd), ATTN_OK);
    assert_true(t.shape[1] == 3 && t.shape[2] == 7 && t.strides[1] == 8 && t.strides[2] == 24 && t.shape[3] == 8);
    assert_int_equal(attn_tensor_permute(&t, bhsd), ATTN_OK);
    assert_memory_equal(&t, &before, sizeof t);
    assert_int_equal(attn_tensor_permute(&t, cycle), ATTN_OK);
    assert_true(t.shape[0] == 7 && t.shape[1] == 3 && t.shape[2] == 8 && t.shape[3] == 2 && t.strides[3] == 500);
    before = t;
    assert_int_equal(attn_tensor_permute(&t, twice), ATTN_E_ARGUMENT);
    assert_int_equal(attn_tensor_permute(&t, out), ATTN_E_ARGUMENT);
    assert_int_equal(attn_tensor_permute(&t, low), ATTN_E_ARGUMENT);
    assert_int_equal(attn_tensor_permute(&t, NULL), ATTN_E_ARGUMENT);
    assert_memory_equal(&t, &before, sizeof t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_is_exact),   cmocka_unit_test(absent_strides_are_row_major),
        cmocka_unit_test(types_and_devices), cmocka_unit_test(refusals_leave_out_alone),
        cmocka_unit_test(axes_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
