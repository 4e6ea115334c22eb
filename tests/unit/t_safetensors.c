/* SPDX-License-Identifier: MIT
 * The safetensors reader and writer: good files, every kind of hostile header, exact round trips. */
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

static const unsigned char payload[24] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                          13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};

/* malloc'ed exactly, so that a sanitizer sees any read past the end. */
static unsigned char *image(const char *header, uint64_t length, size_t data_bytes, size_t *n) {
    size_t h = strlen(header);
    unsigned char *buf = malloc(8 + h + data_bytes + 1);
    assert_non_null(buf);
    for (int i = 0; i < 8; i++) buf[i] = (unsigned char)(length >> (8 * i));
    memcpy(buf + 8, header, h);
    memcpy(buf + 8 + h, payload, data_bytes);
    *n = 8 + h + data_bytes;
    return realloc(buf, *n);
}

static void reads_good_files(void **state) {
    (void)state;
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
                         "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                         "\"empty\":{\"dtype\":\"BF16\",\"shape\":[3,0],\"data_offsets\":[8,8]}}   ";
    size_t n;
    unsigned char *buf = image(header, strlen(header), 24, &n);
    struct attn_cli_archive archive;
    struct attn_cli_fault fault;
    assert_int_equal(attn_cli_safetensors_parse(buf, n, &archive, &fault), 0);
    assert_int_equal(archive.n_arrays, 3);
    const struct attn_cli_array *a = attn_cli_archive_find(&archive, "a"), *b = attn_cli_archive_find(&archive, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_null(attn_cli_archive_find(&archive, "c"));
    assert_int_equal(a->dtype, ATTN_I64);
    assert_int_equal(a->rank, 0);
    assert_memory_equal(a->data, payload, 8);
    assert_int_equal(b->dtype, ATTN_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->bytes, 16);
    assert_memory_equal(b->data, payload + 8, 16);
    assert_int_equal(attn_cli_archive_find(&archive, "empty")->bytes, 0);
    attn_cli_archive_free(&archive);
    free(buf);
}

static void refuses_hostile_files(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *word;
    } rows[] = {
        {"", 8, "{"},
        {"[]", 8, "{"},
        {" {}", 0, "{"},
        {"{\"a\":", 8, "header"},
        {"{}", 8, "belong to no tensor"},
        {"{\"a\":1}", 8, "'a'"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[]}}", 8, "'a'"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8],\"x\":1}}", 8, "'a'"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8,9]}}", 8, "'a'"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0.0,8]}}", 8, "'a'"},
        {"{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "F8_E5M2"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[-1],\"data_offsets\":[0,8]}}", 8, "natural"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[1.5],\"data_offsets\":[0,8]}}", 8, "natural"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}}", 8, "axes"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "does not fit"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2305843009213693952,8],\"data_offsets\":[0,8]}}", 8, "does not fit"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[-8,0]}}", 8, "do not lie"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,0]}}", 8, "do not lie"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}}", 8, "do not lie"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[9223372036854775800,9223372036854775807]}}", 8,
         "do not lie"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,99999999999999999999]}}", 8, "header"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}", 16, "no tensor"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 16, "no tensor"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[4,12]}}",
         12, "overlaps"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}",
         8, "overlaps"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}",
         16, "duplicate"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attn_cli_archive archive;
        struct attn_cli_fault fault = {""};
        size_t n;
        unsigned char *buf = image(rows[i].header, strlen(rows[i].header), rows[i].data_bytes, &n);
        if (attn_cli_safetensors_parse(buf, n, &archive, &fault) == 0 || !strstr(fault.text, rows[i].word))
            fail_msg("header %s gave '%s'", rows[i].header, fault.text);
        assert_null(archive.arrays); /* nothing is kept */
        free(buf);
    }
}

static void refuses_bad_lengths(void **state) {
    (void)state;
    const char *header = "{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}";
    size_t h = strlen(header), n;
    static const uint64_t lengths[] = {0, 1, UINT64_MAX, UINT64_MAX - 7, 100000001, (uint64_t)1 << 63};
    struct attn_cli_archive archive;
    struct attn_cli_fault fault = {""};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char *buf = image(header, lengths[i], 8, &n);
        assert_int_equal(attn_cli_safetensors_parse(buf, n, &archive, &fault), -1);
        free(buf);
    }
    for (size_t cut = 0; cut < 8 + h + 8; cut++) {
        unsigned char *buf = image(header, h, 8, &n);
        buf = realloc(buf, cut ? cut : 1);
        assert_int_equal(attn_cli_safetensors_parse(buf, cut, &archive, &fault), -1);
        free(buf);
    }
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    char *header = malloc(DEPTH + 8);
    assert_non_null(header);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = 0;
    size_t n;
    unsigned char *buf = image(header, strlen(header), 0, &n);
    struct attn_cli_archive archive;
    struct attn_cli_fault fault = {""};
    assert_int_equal(attn_cli_safetensors_parse(buf, n, &archive, &fault), -1);
    free(buf);
    free(header);
}

static void round_trip(void **state) {
    (void)state;
    char path[] = "/tmp/attn-st-XXXXXX", one[] = "q", two[] = "k \"\\\xc3\xa9", three[] = "none";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct attn_cli_array arrays[] = {
        {.name = one, .data = payload, .bytes = 3, .dtype = ATTN_BOOL, .rank = 1, .shape = {3}}, /* misaligns the next
                                                                                                  */
        {.name = two, .data = payload, .bytes = 24, .dtype = ATTN_F64, .rank = 3, .shape = {1, 3, 1}},
        {.name = three, .data = NULL, .bytes = 0, .dtype = ATTN_F16, .rank = 2, .shape = {0, 7}}};
    struct attn_cli_archive archive;
    struct attn_cli_fault fault = {""};
    assert_int_equal(attn_cli_safetensors_write(path, arrays, 3, &fault), 0);
    assert_int_equal(attn_cli_safetensors_read(path, &archive, &fault), 0);
    assert_int_equal(archive.n_arrays, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct attn_cli_array *a = attn_cli_archive_find(&archive, arrays[i].name);
        assert_non_null(a);
        assert_int_equal(a->dtype, arrays[i].dtype);
        assert_int_equal(a->rank, arrays[i].rank);
        for (int k = 0; k < a->rank; k++) assert_int_equal(a->shape[k], arrays[i].shape[k]);
        assert_int_equal(a->bytes, arrays[i].bytes);
        if (a->bytes) assert_memory_equal(a->data, payload, a->bytes);
        assert_int_equal((uintptr_t)a->data % attn_dtype_bytes(a->dtype), 0);
    }
    attn_cli_archive_free(&archive);
    arrays[1].name = one;
    assert_int_equal(attn_cli_safetensors_write(path, arrays, 3, &fault), -1); /* the same name twice */
    arrays[1].name = two;
    arrays[1].bytes = 16;
    assert_int_equal(attn_cli_safetensors_write(path, arrays, 3, &fault), -1);
    unlink(path);
    assert_int_equal(attn_cli_safetensors_read(path, &archive, &fault), -1);
    assert_non_null(strstr(fault.text, path));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_good_files), cmocka_unit_test(refuses_hostile_files),
                                       cmocka_unit_test(refuses_bad_lengths), cmocka_unit_test(deep_nesting_is_refused),
                                       cmocka_unit_test(round_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
