/* SPDX-License-Identifier: MIT
 * The .npy reader and writer: what NumPy writes is read, what is wrong is refused with a text, round trips are exact.
 */
#include "io/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A .npy image of the given version and header text; `payload` bytes of data behind it. Returns its size. */
static size_t image(unsigned char *buf, int version, const char *header, const void *payload, size_t bytes) {
    size_t n = strlen(header), start = version == 1 ? 10 : 12;
    memcpy(buf, "\x93NUMPY", 6);
    buf[6] = (unsigned char)version;
    buf[7] = 0;
    for (size_t i = 8; i < start; i++) buf[i] = (unsigned char)(n >> (8 * (i - 8)));
    memcpy(buf + start, header, n);
    memcpy(buf + start + n, payload, bytes);
    return start + n + bytes;
}

static void reads_every_dtype(void **state) {
    (void)state;
    static const struct {
        const char *code;
        int32_t dtype;
        size_t size;
    } rows[] = {{"<f2", ATTN_F16, 2},  {"<f4", ATTN_F32, 4},  {"<f8", ATTN_F64, 8},  {"<i4", ATTN_I32, 4},
                {"<i8", ATTN_I64, 8},  {"|b1", ATTN_BOOL, 1}, {"|u1", ATTN_BOOL, 1}, {"<V2", ATTN_BF16, 2},
                {"|V2", ATTN_BF16, 2}, {"|V1", ATTN_E4M3, 1}, {"<V1", ATTN_E4M3, 1}};
    unsigned char buf[512], payload[48];
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (unsigned char)(i * 7 + 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int version = 1; version <= 3; version++) {
            char header[128];
            struct attn_cli_array a;
            struct attn_cli_fault fault;
            snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }   \n",
                     rows[i].code);
            size_t n = image(buf, version, header, payload, 6 * rows[i].size);
            assert_int_equal(attn_cli_npy_parse(buf, n, &a, &fault), 0);
            assert_int_equal(a.dtype, rows[i].dtype);
            assert_int_equal(a.rank, 2);
            assert_int_equal(a.shape[0], 2);
            assert_int_equal(a.shape[1], 3);
            assert_int_equal(a.bytes, 6 * rows[i].size);
            assert_memory_equal(a.data, payload, a.bytes);
            assert_int_equal(attn_cli_array_count(&a), 6);
        }
}

static void reads_odd_shapes(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        int rank;
        int64_t count;
    } rows[] = {{"()", 0, 1},
                {"(5,)", 1, 5},
                {"(0,)", 1, 0},
                {"(3, 0, 9223372036854775807)", 3, 0},
                {"(5L,)", 1, 5},
                {"(1, 5)", 2, 5},
                {"(1,1,1,1,1,1,1,5)", 8, 5}};
    unsigned char buf[512];
    const float payload[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char header[160];
        struct attn_cli_array a;
        struct attn_cli_fault fault;
        snprintf(header, sizeof header, "{\"shape\": %s, \"descr\": \"<f4\", \"fortran_order\": False}", rows[i].shape);
        size_t n = image(buf, 1, header, payload, (size_t)rows[i].count * 4);
        assert_int_equal(attn_cli_npy_parse(buf, n, &a, &fault), 0);
        assert_int_equal(a.rank, rows[i].rank);
        assert_int_equal(attn_cli_array_count(&a), rows[i].count);
    }
    /* Column order of a vector is row order. */
    struct attn_cli_array a;
    struct attn_cli_fault fault;
    size_t n = image(buf, 1, "{'descr': '<f4', 'fortran_order': True, 'shape': (5, 1)}", payload, 20);
    assert_int_equal(attn_cli_npy_parse(buf, n, &a, &fault), 0);
}

static void refuses_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header, *word; /* a word that the text must contain */
    } rows[] = {
        {"", "header"},
        {"{}", "header"},
        {"{'descr': '<f4', 'fortran_order': False}", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5)}", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), 'more': 1}", "header"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)} x", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-5,)}", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,5)}", "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "header"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (5,)}", "header"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (5,)}", "header"},
        {"{'descr': '<f4', 'fortran_order': 1, 'shape': (5,)}", "header"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (5,)}", "big-endian"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (5,)}", "<c8"},
        {"{'descr': 'f4', 'fortran_order': False, 'shape': (5,)}", "f4"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (5, 1, 2)}", "column"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", "20"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", "20"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", "20"},
    };
    unsigned char buf[512];
    const float payload[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attn_cli_array a;
        struct attn_cli_fault fault = {""};
        size_t n = image(buf, 1, rows[i].header, payload, 20);
        if (attn_cli_npy_parse(buf, n, &a, &fault) == 0 || !strstr(fault.text, rows[i].word))
            fail_msg("header %s gave '%s'", rows[i].header, fault.text);
    }
}

static void refuses_cut_files(void **state) {
    (void)state;
    unsigned char buf[512];
    const float payload[5] = {1, 2, 3, 4, 5};
    for (int version = 1; version <= 3; version++) {
        size_t n = image(buf, version, "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", payload, 20);
        for (size_t cut = 0; cut < n; cut++) {
            unsigned char *exact = malloc(cut + 1); /* so that a sanitizer sees any read past the end */
            assert_non_null(exact);
            memcpy(exact, buf, cut);
            struct attn_cli_array a;
            struct attn_cli_fault fault = {""};
            assert_int_equal(attn_cli_npy_parse(exact, cut, &a, &fault), -1);
            assert_true(fault.text[0] != 0);
            free(exact);
        }
    }
    struct attn_cli_array a;
    struct attn_cli_fault fault;
    size_t n = image(buf, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", payload, 20);
    buf[6] = 4;
    assert_int_equal(attn_cli_npy_parse(buf, n, &a, &fault), -1);
    buf[6] = 1, buf[7] = 1;
    assert_int_equal(attn_cli_npy_parse(buf, n, &a, &fault), -1);
}

static void round_trip(void **state) {
    (void)state;
    char path[] = "/tmp/attn-npy-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unsigned char payload[192];
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (unsigned char)(i * 11);
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_I32, ATTN_I64, ATTN_BOOL};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        for (int rank = 0; rank <= ATTN_CLI_MAX_AXES; rank++) {
            struct attn_cli_array a = {.data = payload, .dtype = dtypes[i], .rank = rank}, b;
            struct attn_cli_fault fault;
            for (int k = 0; k < rank; k++) a.shape[k] = k == 0 ? 4 : k == 2 ? 3 : 1;
            assert_int_equal(attn_cli_array_bytes(&a, &a.bytes), 0);
            assert_int_equal(attn_cli_npy_write(path, &a, &fault), 0);
            assert_int_equal(attn_cli_npy_read(path, &b, &fault), 0);
            assert_int_equal(b.dtype, a.dtype);
            assert_int_equal(b.rank, a.rank);
            for (int k = 0; k < rank; k++) assert_int_equal(b.shape[k], a.shape[k]);
            assert_int_equal(b.bytes, a.bytes);
            assert_memory_equal(b.data, payload, b.bytes);
            assert_int_equal((uintptr_t)b.data % 64, 0);
            attn_cli_array_free(&b);
        }
    unlink(path);
}

static void file_faults(void **state) {
    (void)state;
    struct attn_cli_array a = {.dtype = ATTN_F32, .rank = 1, .shape = {3}, .bytes = 8}; /* bytes do not fit the shape */
    struct attn_cli_fault fault = {""};
    assert_int_equal(attn_cli_npy_write("/tmp/attn-never-written.npy", &a, &fault), -1);
    assert_int_not_equal(access("/tmp/attn-never-written.npy", F_OK), 0);
    a.bytes = 12;
    a.data = "123412341234";
    assert_int_equal(attn_cli_npy_write("/nonexistent/x.npy", &a, &fault), -1);
    assert_non_null(strstr(fault.text, "/nonexistent/x.npy"));
    assert_int_equal(attn_cli_npy_read("/nonexistent/x.npy", &a, &fault), -1);
    assert_int_equal(attn_cli_npy_read("/", &a, &fault), -1); /* a folder opens but does not read */
    void *data;
    size_t bytes;
    assert_int_equal(attn_cli_file_read("/dev/zero", 100000, &data, &bytes, &fault), -1);
    assert_non_null(strstr(fault.text, "100000"));
    if (access("/dev/full", W_OK) == 0) {
        struct attn_cli_piece piece = {"x", 1};
        assert_int_equal(attn_cli_file_write("/dev/full", &piece, 1, &fault), -1);
        assert_int_equal(access("/dev/full", F_OK), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_every_dtype),   cmocka_unit_test(reads_odd_shapes),
                                       cmocka_unit_test(refuses_bad_headers), cmocka_unit_test(refuses_cut_files),
                                       cmocka_unit_test(round_trip),          cmocka_unit_test(file_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
