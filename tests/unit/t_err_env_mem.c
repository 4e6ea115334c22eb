/* SPDX-License-Identifier: MIT
 * The thread's error record and its public readers, status names, the environment table, the log, the memory hooks and
 * the processors that control groups grant. */
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/processors.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- errors ---- */

static attn_status refuse(int64_t rank) {
    FAIL2(ATTN_E_SHAPE, "q", 4, rank, "q: rank is %lld; expected %d", (long long)rank, 4);
}
static attn_status pass_on(int64_t rank) {
    TRY(refuse(rank));
    return ATTN_OK;
}

static void *other_thread(void *unused) {
    (void)unused;
    attn_error e = {.size = sizeof e};
    int clean = attn_last_error()[0] == 0 && !attn_last_error_detail(&e) && e.status == ATTN_OK && !e.argument[0];
    refuse(9);
    return clean && strstr(attn_last_error(), "rank is 9") ? "ok" : NULL;
}

static void error_record_per_thread(void **state) {
    (void)state;
    assert_int_equal(pass_on(3), ATTN_E_SHAPE);
    assert_string_equal(attn_last_error(), "q: rank is 3; expected 4");
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, &result);
    assert_non_null(result);
    assert_string_equal(attn_last_error(), "q: rank is 3; expected 4");
    attn_error e = {.size = sizeof e};
    assert_int_equal(attn_last_error_detail(&e), ATTN_OK);
    assert_int_equal(e.status, ATTN_E_SHAPE);
    assert_int_equal(e.expected, 4);
    assert_int_equal(e.given, 3);
    assert_string_equal(e.argument, "q");
}

static void error_record_wraps_itself_and_cuts(void **state) {
    (void)state;
    refuse(3);
    attn_base_fail(ATTN_E_IO, attn_base_error_get()->argument, 0, 0, "outer (%s)", attn_last_error());
    assert_string_equal(attn_last_error(), "outer (q: rank is 3; expected 4)");
    assert_string_equal(attn_base_error_get()->argument, "q");
    size_t n = sizeof attn_base_error_get()->text;
    char *longer = malloc(n + 100);
    memset(longer, 'x', n + 99);
    longer[n + 99] = 0;
    attn_base_fail(ATTN_E_IO, longer, 0, 0, "%s", longer);
    assert_int_equal(strlen(attn_last_error()), n - 1);
    assert_int_equal(strlen(attn_base_error_get()->argument), 31);
    free(longer);
    attn_base_fail(ATTN_E_IO, NULL, 0, 0, "no argument");
    assert_string_equal(attn_base_error_get()->argument, "");
    struct attn_base_error saved = *attn_base_error_get();
    refuse(1);
    attn_base_error_restore(&saved);
    assert_string_equal(attn_last_error(), "no argument");
}

/* The size rule on output: a shorter caller gets what fits and nothing behind it is touched. */
static void structs_out_by_size(void **state) {
    (void)state;
    refuse(3);
    union {
        attn_error e;
        unsigned char bytes[sizeof(attn_error) + 32];
    } u;
    for (uint32_t size = 8; size <= sizeof u; size++) {
        memset(&u, 0xaa, sizeof u);
        u.e.size = size;
        assert_int_equal(attn_last_error_detail(&u.e), ATTN_OK);
        assert_int_equal(u.e.size, size);
        assert_int_equal(u.e.status, ATTN_E_SHAPE);
        if (size >= 24) assert_int_equal(u.e.given, 3);
        for (size_t i = size < sizeof(attn_error) ? size : sizeof(attn_error); i < sizeof u; i++)
            assert_int_equal(u.bytes[i], 0xaa);
    }
    for (uint32_t size = 0; size < 8; size++) {
        memset(&u, 0xaa, sizeof u);
        u.e.size = size;
        assert_int_equal(attn_last_error_detail(&u.e), ATTN_E_ABI);
        for (size_t i = 4; i < sizeof u; i++) assert_int_equal(u.bytes[i], 0xaa);
    }
    assert_int_equal(attn_last_error_detail(NULL), ATTN_E_ARGUMENT);
}

static void every_status_has_words(void **state) {
    (void)state;
    int n = 0;
    for (int32_t s = -5; s < 1000; s++) {
        if (!strcmp(attn_status_name(s), "ATTN_E_?")) continue;
        n++;
        assert_true(strlen(attn_status_text(s)) > 5);
        assert_string_not_equal(attn_status_text(s), attn_status_text(-1));
        for (int32_t t = s + 1; t < 1000; t++) {
            if (!strcmp(attn_status_name(t), "ATTN_E_?")) continue;
            assert_string_not_equal(attn_status_name(s), attn_status_name(t));
            assert_string_not_equal(attn_status_text(s), attn_status_text(t));
        }
    }
    assert_int_equal(n, 28);
    assert_string_equal(attn_status_name(ATTN_OK), "ATTN_OK");
    assert_string_equal(attn_status_name(ATTN_E_TENSOR_DEVICE), "ATTN_E_TENSOR_DEVICE");
    assert_string_equal(attn_status_name(501), "ATTN_E_?");
}

/* ---- environment ---- */

static void env_table_is_whole(void **state) {
    (void)state;
    assert_int_equal(attn_env_count(), ATTN_ENV_COUNT);
    for (int32_t i = 0; i < attn_env_count(); i++) {
        attn_env_info info = {.size = sizeof info};
        const struct attn_env_row *row = &attn_env_table[i];
        assert_non_null(row->name);
        setenv(row->name, "seven", 1);
        assert_int_equal(attn_env_get_info(i, &info), ATTN_OK);
        assert_string_equal(info.name, row->name); /* not cut */
        assert_string_equal(info.help, row->help);
        assert_string_equal(info.type, row->type);
        assert_string_equal(info.value, "seven");
        assert_true(!strncmp(info.name, "ATTN_", 5) && strlen(info.help) > 20);
        unsetenv(row->name);
        assert_int_equal(attn_env_get_info(i, &info), ATTN_OK);
        assert_string_equal(info.value, "");
    }
    attn_env_info info = {.size = sizeof info};
    assert_int_equal(attn_env_get_info(-1, &info), ATTN_E_ARGUMENT);
    assert_int_equal(attn_env_get_info(attn_env_count(), &info), ATTN_E_ARGUMENT);
}

static void env_values(void **state) {
    (void)state;
    unsetenv("ATTN_THREADS");
    assert_null(attn_base_env(ATTN_ENV_THREADS));
    assert_int_equal(attn_base_env_int(ATTN_ENV_THREADS, 5), 5);
    setenv("ATTN_THREADS", "", 1);
    assert_null(attn_base_env(ATTN_ENV_THREADS));
    setenv("ATTN_THREADS", "12", 1);
    assert_int_equal(attn_base_env_int(ATTN_ENV_THREADS, 5), 12);
    setenv("ATTN_THREADS", "12x", 1);
    assert_int_equal(attn_base_env_int(ATTN_ENV_THREADS, 5), 5);
    unsetenv("ATTN_THREADS");
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "", "2", "ON "};
    for (size_t i = 0; i < 4; i++) {
        setenv("ATTN_POISON", yes[i], 1);
        assert_true(attn_base_env_bool(ATTN_ENV_POISON));
    }
    for (size_t i = 0; i < 5; i++) {
        setenv("ATTN_POISON", no[i], 1);
        assert_false(attn_base_env_bool(ATTN_ENV_POISON));
    }
    size_t cursor = 0;
    assert_null(attn_base_env_unknown(&cursor));
    setenv("ATTN_POISO", "1", 1); /* a beginning of a known name is not that name */
    setenv("ATTN_OF_OTHERS", "2", 1);
    setenv("ATTN_CUDA_CODE", "ptx", 1); /* read by the build, and documented */
    int found = 0;
    cursor = 0;
    for (const char *entry; (entry = attn_base_env_unknown(&cursor)) != NULL;)
        found |= !strcmp(entry, "ATTN_POISO=1") ? 1 : !strcmp(entry, "ATTN_OF_OTHERS=2") ? 2 : 4;
    assert_int_equal(found, 3);
    unsetenv("ATTN_POISO");
    unsetenv("ATTN_OF_OTHERS");
    unsetenv("ATTN_POISON");
    cursor = 0;
    assert_null(attn_base_env_unknown(&cursor));
    assert_string_equal(attn_base_env_nearest("ATTN_POISO=1"), "ATTN_POISON");
    assert_string_equal(attn_base_env_nearest("ATTN_THREAD=1"), "ATTN_THREADS");
    assert_string_equal(attn_base_env_nearest("ATTN_CUDA_SHARD_LIMITS"), "ATTN_CUDA_SHARED_LIMIT");
    assert_null(attn_base_env_nearest("ATTN_IMPLEMENTATION=flash"));
}

/* Every variable of type bool or int but ATTN_THREADS, whose range the context knows. */
static void env_values_are_judged(void **state) {
    (void)state;
    static const char *const good[2][3] = {{"on", "0", "off"}, {"0", "7", ""}}, *const bad[2][3] = {
                                                                                    {"2", "ON", "yep"},
                                                                                    {"seven", "-1", "1x"}};
    for (int id = 0; id < ATTN_ENV_COUNT; id++) {
        const struct attn_env_row *row = &attn_env_table[id];
        int is_int = !strcmp(row->type, "int");
        if ((!is_int && strcmp(row->type, "bool") != 0) || id == ATTN_ENV_THREADS) continue;
        for (int i = 0; i < 3; i++) {
            setenv(row->name, good[is_int][i], 1);
            assert_int_equal(attn_base_env_check(), ATTN_OK);
            setenv(row->name, bad[is_int][i], 1);
            assert_int_equal(attn_base_env_check(), ATTN_E_ARGUMENT);
            assert_non_null(strstr(attn_base_error_get()->text, row->name));
            assert_string_equal(attn_base_error_get()->argument, row->name);
        }
        unsetenv(row->name);
    }
}

/* ---- log ---- */

static char last_area[32], last_text[4096];
static int n_lines;
static void sink(void *user, int32_t level, const char *area, const char *text) {
    (void)level;
    n_lines++;
    *(int *)user = level;
    snprintf(last_area, sizeof last_area, "%s", area);
    snprintf(last_text, sizeof last_text, "%s", text);
}

static void log_levels_and_areas(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int32_t level;
        const char *areas;
    } rows[] = {
        {NULL, 0, ""},
        {"", 0, ""},
        {"off", 0, ""},
        {"warn", 1, ""},
        {"info", 2, ""},
        {"debug", 3, ""},
        {"info,plan", 2, "plan"},
        {"debug,plan,pool", 3, "plan,pool"},
        {"off,plan", 0, ""},
        {"debug,check,cpu,ctx,cuda,env,execute,measure,plan,pool", 3,
         "check,cpu,ctx,cuda,env,execute,measure,plan,pool"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attn_log log = {.level = 77};
        assert_int_equal(attn_base_log_parse(&log, rows[i].spec), rows[i].spec && !*rows[i].spec ? -1 : 0);
        assert_int_equal(log.level, rows[i].level);
        assert_string_equal(log.areas, rows[i].areas);
    }
    static const char *const bad[] = {
        "loud",
        "loud,plan",
        "Info",
        "info,pla",
        "info,plan,",
        "info,,plan",
        "info,check, cpu",
        ("debug,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,plan,"
         "plan,plan,plan,plan,plan,plan,plan")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct attn_log log = {.level = 77};
        assert_int_equal(attn_base_log_parse(&log, bad[i]), -1);
        assert_int_equal(log.level, ATTN_LOG_OFF);
        assert_string_equal(log.areas, "");
    }
    int level = 0;
    struct attn_log log = {.sink = sink, .user = &level};
    attn_base_log_parse(&log, "info,plan,pool");
    n_lines = 0;
    attn_base_log(&log, ATTN_LOG_DEBUG, "plan", "no");
    attn_base_log(&log, ATTN_LOG_INFO, "cuda", "no");
    attn_base_log(&log, ATTN_LOG_INFO, "pla", "no");
    attn_base_log(&log, ATTN_LOG_OFF, "plan", "no");
    assert_int_equal(n_lines, 0);
    attn_base_log(&log, ATTN_LOG_INFO, "pool", "a %d\nb", 5);
    assert_int_equal(n_lines, 1);
    assert_int_equal(level, ATTN_LOG_INFO);
    assert_string_equal(last_area, "pool");
    assert_string_equal(last_text, "a 5 b");
    attn_base_log(&log, ATTN_LOG_WARN, "plan", "w");
    assert_int_equal(level, ATTN_LOG_WARN);
    char longer[5000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    attn_base_log(&log, ATTN_LOG_WARN, "plan", "%s", longer);
    assert_true(strlen(last_text) > 1000 && strlen(last_text) < sizeof longer - 1);
}

/* ---- memory ---- */

struct tally {
    size_t live, bytes, alignment;
};
static void *count_alloc(void *user, size_t bytes, size_t alignment) {
    struct tally *t = user;
    void *p = NULL;
    if (posix_memalign(&p, alignment < 8 ? 8 : alignment, bytes + 64)) return NULL;
    memset(p, 0xcc, bytes + 64);
    t->live++;
    t->bytes += bytes;
    t->alignment = alignment;
    return p;
}
static void count_free(void *user, void *memory, size_t bytes) {
    struct tally *t = user;
    t->live--;
    t->bytes -= bytes;
    free(memory);
}

static void memory_through_hooks(void **state) {
    (void)state;
    struct tally t = {0};
    struct attn_mem mem;
    attn_base_mem_init(&mem, count_alloc, count_free, &t, 0);
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *p = attn_base_alloc(&mem, bytes, 64);
        assert_non_null(p);
        assert_int_equal(t.alignment, 64);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(p[i], 0);
        if (bytes) assert_int_equal(p[bytes], 0xcc);
        attn_base_free(&mem, p, bytes);
        assert_int_equal(t.live + t.bytes, 0);
    }
    attn_base_free(&mem, NULL, 10);
    assert_int_equal(t.live, 0);
}

static void memory_by_default(void **state) {
    (void)state;
    struct attn_mem mem;
    attn_base_mem_init(&mem, NULL, NULL, NULL, 0);
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        unsigned char *p = attn_base_alloc(&mem, 1001, alignment);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % alignment, 0);
        for (size_t i = 0; i < 1001; i++) assert_int_equal(p[i], 0);
        memset(p, 1, 1001);
        attn_base_free(&mem, p, 1001);
    }
    assert_null(attn_base_alloc(&mem, SIZE_MAX - 8, 64));
    assert_int_equal(attn_base_error_get()->status, ATTN_E_MEMORY);
    assert_null(attn_base_alloc(&mem, SIZE_MAX / 2, 64));
}

static void nth_allocation_fails_once(void **state) {
    (void)state;
    for (int64_t nth = -1; nth <= 4; nth++) {
        struct tally t = {0};
        struct attn_mem mem;
        attn_base_mem_init(&mem, count_alloc, count_free, &t, nth);
        for (int64_t i = 1; i <= 6; i++) {
            void *p = attn_base_alloc(&mem, 8, 8);
            assert_int_equal(p == NULL, i == nth);
            if (!p) assert_non_null(strstr(attn_last_error(), "8 bytes"));
            attn_base_free(&mem, p, 8);
        }
        assert_int_equal(t.live, 0);
    }
}

/* ---- processors ---- */

static void put(const char *root, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}
static int32_t quota_of(const char *root, const char *groups) {
    char path[512];
    put(root, "groups", groups);
    snprintf(path, sizeof path, "%s/groups", root);
    return attn_base_cpu_quota(path, root);
}
static void processors_of_control_groups(void **state) {
    (void)state;
    char root[] = "/tmp/attn_groups_XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    put(root, "a/b/cpu.max", "250000 100000\n");
    put(root, "a/cpu.max", "max 100000\n");
    put(root, "c/d/cpu.max", "max 100000\n");
    put(root, "c/cpu.max", "50000 100000\n");
    put(root, "e/cpu.max", "nonsense\n");
    put(root, "cpu/x/cpu.cfs_quota_us", "400000\n");
    put(root, "cpu/x/cpu.cfs_period_us", "100000\n");
    put(root, "cpu/y/cpu.cfs_quota_us", "-1\n");
    put(root, "cpu/y/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of(root, "0::/a/b\n"), 3); /* rounded up */
    assert_int_equal(quota_of(root, "0::/a\n"), INT32_MAX);
    assert_int_equal(quota_of(root, "0::/c/d\n"), 1); /* of the group around it */
    assert_int_equal(quota_of(root, "0::/e\n"), INT32_MAX);
    assert_int_equal(quota_of(root, "0::/absent\n"), INT32_MAX);
    assert_int_equal(quota_of(root, "4:cpu,cpuacct:/x\n0::/\n"), 4);
    assert_int_equal(quota_of(root, "4:cpuacct,cpu:/x/below\n"), 4);
    assert_int_equal(quota_of(root, "4:cpuset:/x\n"), INT32_MAX);
    assert_int_equal(quota_of(root, "1:cpu:/y\n"), INT32_MAX);
    assert_int_equal(quota_of(root, "no colons\n"), INT32_MAX);
    assert_int_equal(attn_base_cpu_quota("/nonexistent", root), INT32_MAX);
    assert_true(attn_base_processors() >= 1);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void) {
    for (const char *entry; (entry = attn_base_env_unknown(&(size_t){0}));) { /* such as a test runner's own */
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
        if (unsetenv(name)) break;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_record_per_thread),   cmocka_unit_test(error_record_wraps_itself_and_cuts),
        cmocka_unit_test(structs_out_by_size),       cmocka_unit_test(every_status_has_words),
        cmocka_unit_test(env_table_is_whole),        cmocka_unit_test(env_values),
        cmocka_unit_test(env_values_are_judged),     cmocka_unit_test(log_levels_and_areas),
        cmocka_unit_test(memory_through_hooks),      cmocka_unit_test(memory_by_default),
        cmocka_unit_test(nth_allocation_fails_once), cmocka_unit_test(processors_of_control_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
