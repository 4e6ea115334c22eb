/* SPDX-License-Identifier: MIT
 * Structs by call: every member that tools/abi_layout.txt lists is known with its offset, values go in and come back,
 * and what does not fit is refused by name. */
#include "attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[ATTN_STRUCT_COUNT_] = {
    [ATTN_STRUCT_ERROR] = "attn_error",
    [ATTN_STRUCT_TENSOR] = "attn_tensor",
    [ATTN_STRUCT_PROBLEM] = "attn_problem",
    [ATTN_STRUCT_ARGS] = "attn_args",
    [ATTN_STRUCT_CTX_OPTIONS] = "attn_ctx_options",
    [ATTN_STRUCT_DEVICE_INFO] = "attn_device_info",
    [ATTN_STRUCT_PLAN_OPTIONS] = "attn_plan_options",
    [ATTN_STRUCT_PLAN_INFO] = "attn_plan_info",
    [ATTN_STRUCT_MERGE_ARGS] = "attn_merge_args",
    [ATTN_STRUCT_KERNEL_INFO] = "attn_kernel_info",
    [ATTN_STRUCT_ENV_INFO] = "attn_env_info",
};
static int kind_of(const char *name) {
    for (int kind = 1; kind < ATTN_STRUCT_COUNT_; kind++)
        if (!strcmp(names[kind], name)) return kind;
    return 0;
}

/* Some setter takes the member, and it writes at its offset. */
static void try_member(int kind, const char *member, size_t offset, size_t bytes) {
    union {
        unsigned char b[1024];
        uint64_t align;
    } x;
    char name[128];
    const char *text = NULL;
    snprintf(name, sizeof name, "%s%s", member,
             !strcmp(member, "device")                   ? ".type"
             : bytes == 32 && kind == ATTN_STRUCT_TENSOR ? "[0]"
                                                         : "");
    assert_int_equal(attn_struct_init(kind, &x, sizeof x), ATTN_OK);
    if (!strcmp(member, "size")) return;
    static const double one = 1;
    if (!attn_struct_set_int(kind, &x, name, 1)) {
        assert_int_equal(x.b[offset], 1);
    } else if (!attn_struct_set_real(kind, &x, name, one)) {
        assert_memory_equal(x.b + offset, &one, sizeof one);
    } else if (!attn_struct_set_pointer(kind, &x, name, &one)) {
        const void *pointer = &one;
        assert_memory_equal(x.b + offset, &pointer, sizeof pointer);
    } else if (attn_struct_get_text(kind, &x, name, &text) || (const unsigned char *)text != x.b + offset) {
        fail_msg("%s.%s: %s", names[kind], name, attn_last_error());
    }
}

static void every_member_is_known(void **state) {
    (void)state;
    char path[600], line[200], name[100];
    const char *source = getenv("SOURCE_DIR");
    if (!source) skip();
    snprintf(path, sizeof path, "%s/tools/abi_layout.txt", source);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int members = 0, structs = 0;
    while (fgets(line, sizeof line, file)) {
        size_t offset, bytes;
        if (sscanf(line, "%99s size %zu", name, &bytes) == 2 && kind_of(name)) {
            assert_int_equal(attn_sizeof(kind_of(name)), bytes);
            structs++;
        }
        char *dot = strchr(line, '.');
        if (!dot || sscanf(dot + 1, "%99s offset %zu size %zu", name, &offset, &bytes) != 3) continue;
        *dot = 0;
        if (!kind_of(line)) continue;
        try_member(kind_of(line), name, offset, bytes);
        members++;
    }
    fclose(file);
    assert_true(members > 100);
    assert_int_equal(structs, ATTN_STRUCT_COUNT_ - 1);
}

static void a_problem_by_call(void **state) {
    (void)state;
    attn_problem p, want;
    int64_t n;
    double real;
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=4 sq=9 d=64 bf16 softcap=30", &want), ATTN_OK);
    memset(&p, 0xff, sizeof p);
    assert_int_equal(attn_struct_init(ATTN_STRUCT_PROBLEM, &p, sizeof p), ATTN_OK);
    assert_int_equal(p.size, sizeof p);
    static const struct {
        const char *member;
        int64_t value;
    } rows[] = {{"op", ATTN_OP_SDPA_FWD},
                {"dtype", ATTN_BF16},
                {"batch", 1},
                {"heads_q", 4},
                {"heads_k", 4},
                {"seq_q", 9},
                {"seq_k", 9},
                {"dim_qk", 64},
                {"dim_v", 64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(attn_struct_set_int(ATTN_STRUCT_PROBLEM, &p, rows[i].member, rows[i].value), ATTN_OK);
        assert_int_equal(attn_struct_get_int(ATTN_STRUCT_PROBLEM, &p, rows[i].member, &n), ATTN_OK);
        assert_int_equal(n, rows[i].value);
    }
    assert_int_equal(attn_struct_set_real(ATTN_STRUCT_PROBLEM, &p, "softcap", 30), ATTN_OK);
    assert_int_equal(attn_struct_get_real(ATTN_STRUCT_PROBLEM, &p, "softcap", &real), ATTN_OK);
    assert_true(real == 30);
    assert_memory_equal(&p, &want, sizeof p);
    attn_tensor t;
    assert_int_equal(attn_struct_init(ATTN_STRUCT_TENSOR, &t, sizeof t), ATTN_OK);
    assert_int_equal(attn_struct_set_int(ATTN_STRUCT_TENSOR, &t, "strides[3]", -7), ATTN_OK);
    assert_int_equal(attn_struct_set_int(ATTN_STRUCT_TENSOR, &t, "device.index", 2), ATTN_OK);
    assert_int_equal(attn_struct_set_pointer(ATTN_STRUCT_TENSOR, &t, "data", &p), ATTN_OK);
    assert_true(t.strides[3] == -7 && t.device.index == 2 && t.data == &p);
    attn_plan_options o;
    const char *text = NULL;
    assert_int_equal(attn_struct_init(ATTN_STRUCT_PLAN_OPTIONS, &o, sizeof o), ATTN_OK);
    assert_int_equal(attn_struct_set_pointer(ATTN_STRUCT_PLAN_OPTIONS, &o, "kernel", "*_c_*"), ATTN_OK);
    assert_int_equal(attn_struct_get_text(ATTN_STRUCT_PLAN_OPTIONS, &o, "kernel", &text), ATTN_OK);
    assert_string_equal(text, "*_c_*");
}

static void fails(attn_status got, attn_status want, const char *word) {
    if (got != want || !strstr(attn_last_error(), word))
        fail_msg("%s, expected %s with '%s': %s", attn_status_name(got), attn_status_name(want), word,
                 attn_last_error());
}

static void faults(void **state) {
    (void)state;
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_tensor t = {0};
    int64_t n;
    double real;
    const char *text;
    enum { P = ATTN_STRUCT_PROBLEM, T = ATTN_STRUCT_TENSOR };
    assert_int_equal(attn_sizeof(0), 0);
    assert_int_equal(attn_sizeof(ATTN_STRUCT_COUNT_), 0);
    fails(attn_struct_init(99, &p, sizeof p), ATTN_E_ENUM, "kind is 99");
    fails(attn_struct_init(P, &p, sizeof p - 8), ATTN_E_ABI, "attn_problem has");
    fails(attn_struct_init(P, NULL, sizeof p), ATTN_E_ARGUMENT, "object");
    fails(attn_struct_set_int(P, &p, "head_q", 1), ATTN_E_ARGUMENT, "did you mean heads_q?");
    fails(attn_struct_set_int(P, &p, "nothing_like_it", 1), ATTN_E_ARGUMENT, "no member");
    fails(attn_struct_set_int(P, &p, NULL, 1), ATTN_E_ARGUMENT, "member is NULL");
    fails(attn_struct_set_int(P, NULL, "op", 1), ATTN_E_ARGUMENT, "object is NULL");
    fails(attn_struct_set_int(P, &p, "softcap", 1), ATTN_E_ARGUMENT, "a real number");
    fails(attn_struct_set_real(P, &p, "seq_q", 1), ATTN_E_ARGUMENT, "an integer");
    fails(attn_struct_set_pointer(P, &p, "seq_q", &p), ATTN_E_ARGUMENT, "an integer");
    fails(attn_struct_set_int(T, &t, "data", 1), ATTN_E_ARGUMENT, "a pointer");
    fails(attn_struct_set_int(P, &p, "dtype", INT64_C(1) << 31), ATTN_E_EXTENT, "does not fit");
    fails(attn_struct_set_int(P, &p, "align_bytes", -1), ATTN_E_EXTENT, "does not fit");
    fails(attn_struct_set_int(P, &p, "flags", -1), ATTN_E_EXTENT, "does not fit");
    fails(attn_struct_set_int(T, &t, "shape", 1), ATTN_E_ARGUMENT, "elements");
    fails(attn_struct_set_int(T, &t, "shape[4]", 1), ATTN_E_ARGUMENT, "elements");
    fails(attn_struct_set_int(T, &t, "shape[", 1), ATTN_E_ARGUMENT, "no member");
    fails(attn_struct_set_int(T, &t, "shape[x]", 1), ATTN_E_ARGUMENT, "no member");
    fails(attn_struct_set_int(P, &p, "op[0]", 1), ATTN_E_ARGUMENT, "element");
    fails(attn_struct_get_int(P, &p, "op", NULL), ATTN_E_ARGUMENT, "out is NULL");
    fails(attn_struct_get_real(P, &p, "op", &real), ATTN_E_ARGUMENT, "an integer");
    fails(attn_struct_get_text(P, &p, "op", &text), ATTN_E_ARGUMENT, "an integer");
    p.size = (uint32_t)offsetof(attn_problem, group);
    fails(attn_struct_get_int(P, &p, "group", &n), ATTN_E_ABI, "expected");
    assert_int_equal(attn_struct_set_int(P, &p, "dtype", INT32_MIN), ATTN_OK);
    assert_int_equal(attn_struct_get_int(P, &p, "dtype", &n), ATTN_OK);
    assert_true(n == INT32_MIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_member_is_known), cmocka_unit_test(a_problem_by_call),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
