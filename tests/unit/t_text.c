/* SPDX-License-Identifier: MIT
 * Text building and scanning: cut buffers, numbers at the ends of their ranges, other locales, patterns. */
#include "base/text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void builder_counts_what_it_cuts(void **state) {
    (void)state;
    for (size_t cap = 0; cap <= 12; cap++) {
        char buf[16];
        memset(buf, '#', sizeof buf);
        struct attn_text t = attn_text_over(buf, cap);
        attn_text_add(&t, "%s", "abc");
        attn_text_add(&t, "%d", 4567);
        attn_text_add(&t, "%s", "");
        attn_text_add(&t, "z");
        assert_int_equal(t.len, 8);
        if (cap) {
            assert_int_equal(strlen(buf), cap > 8 ? 8 : cap - 1);
            assert_memory_equal(buf, "abc4567z", cap > 8 ? 8 : cap - 1);
        }
        for (size_t i = cap; i < sizeof buf; i++) assert_int_equal(buf[i], '#');
    }
    struct attn_text none = attn_text_over(NULL, 0);
    attn_text_add(&none, "%s", "twelve chars");
    assert_int_equal(none.len, 12);
    struct attn_text mute = attn_text_mute(); /* only whether there were any */
    assert_int_equal(mute.len, 0);
    attn_text_add(&mute, "%s", "twelve chars");
    assert_true(mute.len > 0 && !mute.buf && !mute.cap);
}

static const char *shown(double value) {
    static char buf[64];
    struct attn_text t = attn_text_over(buf, sizeof buf);
    attn_text_add_double(&t, value);
    return buf;
}

static void doubles_are_short_and_exact(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0, "0"},
        {-0.0, "-0"},
        {1, "1"},
        {100, "100"},
        {0.1, "0.1"},
        {-2.5, "-2.5"},
        {30, "30"},
        {1.0 / 3, "0.3333333333333333"},
        {1e22, "1e+22"},
        {5e-324, "5e-324"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {0.08838834764831845, "0.08838834764831845"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_string_equal(shown(rows[i].value), rows[i].text);
    assert_string_equal(shown((double)INFINITY), "inf");
    assert_string_equal(shown(-(double)INFINITY), "-inf");
    assert_string_equal(shown((double)NAN), "nan");
    uint64_t seed = 5;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double value, back;
        memcpy(&value, &seed, 8);
        if (!isfinite(value)) continue;
        const char *text = shown(value);
        assert_int_equal(attn_text_double(text, strlen(text), &back), 0);
        assert_memory_equal(&back, &value, 8);
    }
}

static int parse_double(const char *s, double *out) { return attn_text_double(s, strlen(s), out); }
static int parse_int(const char *s, int64_t *out) { return attn_text_int64(s, strlen(s), out); }

static void doubles_in_full_or_not_at_all(void **state) {
    (void)state;
    double d = 7;
    static const char *const bad[] = {"",         "+",  "-",     ".",      "e5",   "1e",    "1e+",
                                      "1.5x",     " 1", "1 ",    "0x10",   "1,5",  "1.2.3", "--1",
                                      "infinity", "in", "1e999", "-1e999", "nanx", "1_0",   "+-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!parse_double(bad[i], &d)) fail_msg("\"%s\" was read as %g", bad[i], d);
        assert_true(d == 7);
    }
    assert_true(!parse_double("1.5", &d) && d == 1.5);
    assert_true(!parse_double("-.5e1", &d) && d == -5);
    assert_true(!parse_double("5.", &d) && d == 5);
    assert_true(!parse_double("+1E-2", &d) && d == 0.01);
    assert_true(!parse_double("1e-999", &d) && d == 0);
    assert_true(!parse_double("4.9e-324", &d) && d == 5e-324);
    assert_true(!parse_double("-inf", &d) && isinf(d) && d < 0);
    assert_true(!parse_double("nan", &d) && isnan(d));
    assert_true(!attn_text_double("12345", 2, &d) && d == 12); /* only n characters count */
    char longer[400];
    memset(longer, '1', sizeof longer);
    assert_int_equal(attn_text_double(longer, sizeof longer, &d), -1);
}

static void integers_to_the_ends(void **state) {
    (void)state;
    int64_t v = 7;
    static const char *const bad[] = {"",
                                      "-",
                                      "+",
                                      "1.0",
                                      "1e3",
                                      " 1",
                                      "1 ",
                                      "0x1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999",
                                      "1a",
                                      "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!parse_int(bad[i], &v)) fail_msg("\"%s\" was read as %lld", bad[i], (long long)v);
        assert_int_equal(v, 7);
    }
    assert_true(!parse_int("9223372036854775807", &v) && v == INT64_MAX);
    assert_true(!parse_int("-9223372036854775808", &v) && v == INT64_MIN);
    assert_true(!parse_int("-0", &v) && v == 0);
    assert_true(!parse_int("+007", &v) && v == 7);
    assert_true(!attn_text_int64("1234", 2, &v) && v == 12);
}

/* With a decimal comma in the process's locale, texts stay as they are. */
static void locale_does_not_matter(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8",  "de_DE",      "fr_FR.UTF-8",
                                        "fr_FR.utf8",  "ps_AF.UTF-8", "fa_IR.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) found = setlocale(LC_ALL, names[i]);
    if (!found) skip();
    char probe[16];
    double d = 0;
    snprintf(probe, sizeof probe, "%.1f", 0.5);
    assert_string_not_equal(probe, "0.5"); /* the locale does use another sign */
    assert_string_equal(shown(0.25), "0.25");
    assert_string_equal(shown(1.5e-300), "1.5e-300");
    assert_int_equal(parse_double("0.75", &d), 0);
    assert_true(d == 0.75);
    assert_int_equal(parse_double(probe, &d), -1);
    setlocale(LC_ALL, "C");
}

static void words_by_blanks(void **state) {
    (void)state;
    const char *cursor = " \t a=1\n bc  ", *word;
    assert_int_equal(attn_text_word(&cursor, &word), 3);
    assert_true(attn_text_equal(word, 3, "a=1"));
    assert_int_equal(attn_text_word(&cursor, &word), 2);
    assert_true(attn_text_equal(word, 2, "bc") && !attn_text_equal(word, 2, "b") && !attn_text_equal(word, 1, "bc"));
    assert_int_equal(attn_text_word(&cursor, &word), 0);
    assert_int_equal(attn_text_word(&cursor, &word), 0);
    assert_int_equal(*cursor, 0);
}

static void patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        int match;
    } rows[] = {
        {"*", "", 1},
        {"", "", 1},
        {"", "a", 0},
        {"?", "", 0},
        {"a", "a", 1},
        {"a", "b", 0},
        {"*_avx2_*", "attn_sdpa_avx2_f32", 1},
        {"*_avx2_*", "attn_sdpa_avx512_f32", 0},
        {"a*b*c", "aXXbYYbZc", 1},
        {"a*b*c", "aXXbYYbZ", 0},
        {"???", "abc", 1},
        {"???", "abcd", 0},
        {"*aab", "aaaaab", 1},
        {"**", "x", 1},
        {"a?c*", "abc", 1},
        {"*?", "a", 1},
        {"*?", "", 0},
        {"a*", "ba", 0},
        {"*.", "a.b.", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (attn_text_match(rows[i].pattern, rows[i].name) != rows[i].match)
            fail_msg("%s on %s", rows[i].pattern, rows[i].name);
    /* A pattern that would take exponential time with backtracking. */
    char name[300];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(attn_text_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builder_counts_what_it_cuts),
        cmocka_unit_test(doubles_are_short_and_exact),
        cmocka_unit_test(doubles_in_full_or_not_at_all),
        cmocka_unit_test(integers_to_the_ends),
        cmocka_unit_test(locale_does_not_matter),
        cmocka_unit_test(words_by_blanks),
        cmocka_unit_test(patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
