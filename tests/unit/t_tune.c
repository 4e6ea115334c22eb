/* SPDX-License-Identifier: MIT
 * The tuning table and its file: put, find, save and load, refused files leave the table alone, failing allocations
 * leak nothing. */
#include "attn.h"
#include "base/err.h"
#include "base/mem.h"
#include "core/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t blocks;
static void *count_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *p = NULL;
    if (posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes)) return NULL;
    blocks++;
    return p;
}
static void count_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    blocks--;
    free(memory);
}

static attn_problem problem(int64_t sq) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = ATTN_F16, p.batch = 1, p.heads_q = p.heads_k = 4;
    p.seq_q = p.seq_k = sq, p.dim_qk = p.dim_v = 64;
    return p;
}

static struct attn_mem mem;
static char folder[64];
static int set_up(void **state) {
    struct attn_core_tuning *t;
    attn_base_mem_init(&mem, count_alloc, count_free, NULL, 0);
    if (attn_core_tuning_create(&mem, &t)) return -1;
    *state = t;
    strcpy(folder, "t_tune_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static int tear_down(void **state) {
    attn_core_tuning_destroy(&mem, *state);
    char command[96];
    snprintf(command, sizeof command, "%s/file", folder);
    unlink(command);
    return rmdir(folder) || blocks ? -1 : 0; /* no temporary file is left, no block either */
}

static void put_and_find(void **state) {
    struct attn_core_tuning *t = *state;
    attn_problem p = problem(128), q = problem(256);
    assert_null(attn_core_tuning_find(t, &p, "cpu", 2));
    assert_int_equal(attn_core_tuning_put(&mem, t, &p, "cpu", 2, "k_a", 1e-3), ATTN_OK);
    const char *first = attn_core_tuning_find(t, &p, "cpu", 2);
    assert_string_equal(first, "k_a");
    assert_null(attn_core_tuning_find(t, &p, "cpu", 4));
    assert_null(attn_core_tuning_find(t, &p, "other cpu", 2));
    assert_null(attn_core_tuning_find(t, &q, "cpu", 2));
    p.scale = 5; /* unread: the same problem */
    assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), "k_a");
    assert_int_equal(attn_core_tuning_put(&mem, t, &p, "cpu", 2, "k_b", 1e-4), ATTN_OK);
    assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), "k_b");
    assert_string_equal(first, "k_a"); /* handed-out names stay */
    for (int64_t i = 0; i < 300; i++) {
        q = problem(i);
        assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu", 2, i % 2 ? "odd" : "even", 1), ATTN_OK);
    }
    for (int64_t i = 0; i < 300; i++) {
        q = problem(i);
        assert_string_equal(attn_core_tuning_find(t, &q, "cpu", 2), i % 2 ? "odd" : "even");
    }
    assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu", 2, "two words", 1), ATTN_E_ARGUMENT);
    assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu\n", 2, "k", 1), ATTN_E_ARGUMENT);
    assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu", 0, "k", 1), ATTN_E_ARGUMENT);
    assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu", 2, "k", NAN), ATTN_E_ARGUMENT);
    q.dtype = 99;
    assert_int_equal(attn_core_tuning_put(&mem, t, &q, "cpu", 2, "k", 1), ATTN_E_ENUM);
}

static void file_round_trip(void **state) {
    struct attn_core_tuning *t = *state, *u;
    char path[96];
    snprintf(path, sizeof path, "%s/file", folder);
    for (int64_t i = 1; i < 40; i++) {
        attn_problem p = problem(i * 7);
        p.flags = ATTN_SCALE, p.scale = 1.0 / (double)i;
        assert_int_equal(
            attn_core_tuning_put(&mem, t, &p, "Some CPU @ 2.0GHz", (int32_t)i, i % 3 ? "k_a" : "k_b", 1.0 / (double)i),
            ATTN_OK);
    }
    assert_int_equal(attn_core_tuning_save(t, path), ATTN_OK);
    assert_int_equal(attn_core_tuning_save(t, path), ATTN_OK); /* over itself */
    assert_int_equal(attn_core_tuning_create(&mem, &u), ATTN_OK);
    assert_int_equal(attn_core_tuning_load(&mem, u, path), ATTN_OK);
    for (int64_t i = 1; i < 40; i++) {
        attn_problem p = problem(i * 7);
        p.flags = ATTN_SCALE, p.scale = 1.0 / (double)i;
        assert_string_equal(attn_core_tuning_find(u, &p, "Some CPU @ 2.0GHz", (int32_t)i), i % 3 ? "k_a" : "k_b");
    }
    attn_core_tuning_destroy(&mem, u);
    FILE *f = fopen(path, "r");
    char line[64];
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "attn-tuning 1\n");
    fclose(f);
}

static void bad_files(void **state) {
    struct attn_core_tuning *t = *state;
    attn_problem p = problem(128);
    assert_int_equal(attn_core_tuning_put(&mem, t, &p, "cpu", 2, "kept", 1), ATTN_OK);
#define LINE(kernel, seconds, threads) kernel "\t" seconds "\t" threads "\tcpu\tsdpa_fwd hq=4 sq=128 d=64 f16\n"
#define GOOD                           LINE("wins", "0.5", "2")
    static const struct {
        const char *text;
        int64_t line;
    } rows[] = {
        {"", 0},
        {"attn-tuning 2\n", 1},
        {"attn-tuning 1 \n", 1},
        {"attn-tuning 1\n" GOOD "nonsense\n", 3},
        {"attn-tuning 1\n" GOOD "\n# words\n" LINE("k", "abc", "2"), 5},
        {"attn-tuning 1\n" GOOD LINE("k", "nan", "2"), 3},
        {"attn-tuning 1\n" GOOD LINE("k", "-1", "2"), 3},
        {"attn-tuning 1\n" GOOD LINE("k", "1", "0"), 3},
        {"attn-tuning 1\n" GOOD LINE("k", "1", "2147483648"), 3},
        {"attn-tuning 1\n" GOOD LINE("", "1", "1"), 3},
        {"attn-tuning 1\n" GOOD LINE("a b", "1", "1"), 3},
        {"attn-tuning 1\n" GOOD "k\t1\t1\tcpu\tsdpa_fwd hq=4 sq=128 d=64 f16\textra\n", 3},
        {"attn-tuning 1\n" GOOD "k\t1\t1\tcpu\tsdpa_fwd hq=4 sq=128 d=64\n", 3},
        {"attn-tuning 1\n" GOOD "k\t1\t1\tcpu\tsdpa_fwd hq=4 hk=3 sq=128 d=64 f16\n", 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(attn_core_tuning_parse(&mem, t, rows[i].text, strlen(rows[i].text)), ATTN_E_IO);
        if (rows[i].line > 1) assert_int_equal(attn_base_error_get()->given, rows[i].line);
        char number[16];
        snprintf(number, sizeof number, "line %d", rows[i].line > 1 ? (int)rows[i].line : 1);
        assert_non_null(strstr(attn_base_error_get()->text, number));
        assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), "kept");
    }
    static const char nul[] = "attn-tuning 1\nk\0\t1\n";
    assert_int_equal(attn_core_tuning_parse(&mem, t, nul, sizeof nul - 1), ATTN_E_IO);
    char *wide = malloc(5000);
    memset(wide, 'x', 5000);
    memcpy(wide, "attn-tuning 1\n", 14);
    assert_int_equal(attn_core_tuning_parse(&mem, t, wide, 5000), ATTN_E_IO);
    free(wide);
    assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), "kept");
    /* The same line alone is fine, with or without the last newline, in either line-end style. */
    static const char good[] = "attn-tuning 1\r\n# comment\r\n\r\n" GOOD;
    assert_int_equal(attn_core_tuning_parse(&mem, t, good, sizeof good - 2), ATTN_OK);
    assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), "wins");

    assert_int_equal(attn_core_tuning_load(&mem, t, "does/not/exist"), ATTN_E_IO);
    assert_non_null(strstr(attn_base_error_get()->text, "does/not/exist"));
    assert_int_equal(attn_core_tuning_load(&mem, t, "."), ATTN_E_IO);
    assert_int_equal(attn_core_tuning_save(t, "does/not/exist"), ATTN_E_IO);
}

/* Whatever allocation fails, the call says so, the table still answers as before and nothing leaks (tear_down counts).
 */
static void failing_allocations(void **state) {
    (void)state;
    static const char text[] = "attn-tuning 1\n" GOOD LINE("k2", "1", "3") LINE("k3", "1", "4");
    int succeeded = 0;
    for (int64_t n = 1; !succeeded && n < 20; n++) {
        struct attn_mem failing;
        struct attn_core_tuning *t;
        attn_problem p = problem(128), q = problem(5);
        attn_base_mem_init(&failing, count_alloc, count_free, NULL, 0);
        assert_int_equal(attn_core_tuning_create(&failing, &t), ATTN_OK);
        assert_int_equal(attn_core_tuning_put(&failing, t, &p, "cpu", 2, "kept", 1), ATTN_OK);
        for (int i = 0; i < 14; i++) { /* 15 of 16 places taken: the text needs a larger table */
            q.seq_q++;
            assert_int_equal(attn_core_tuning_put(&failing, t, &q, "cpu", 2, "kept", 1), ATTN_OK);
        }
        atomic_store(&failing.fail_in, n);
        attn_status status = attn_core_tuning_parse(&failing, t, text, sizeof text - 1);
        succeeded = status == ATTN_OK;
        if (!succeeded) assert_int_equal(status, ATTN_E_MEMORY);
        assert_string_equal(attn_core_tuning_find(t, &p, "cpu", 2), succeeded ? "wins" : "kept");
        attn_core_tuning_destroy(&failing, t);
        if (succeeded) assert_int_equal(n, 5); /* three names and one table were allocated */
    }
    assert_true(succeeded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(put_and_find, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failing_allocations, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
