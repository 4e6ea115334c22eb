/* SPDX-License-Identifier: MIT
 * Pictures of `attn dist` and `attn demo`: steps of the axes, room for every word and for the colour scale, and the
 * system's reason where a file cannot be written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if ATTN_TEST_CLI
#include "commands/heatmap.h"

#include <cairo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void steps_are_round(void **state) {
    (void)state;
    static const int64_t rows[][2] = {
        {0, 1}, {1, 1}, {2, 2}, {3, 5}, {4, 5}, {6, 10}, {7, 10}, {13, 20}, {21, 50}, {1001, 2000}, {1 << 20, 2000000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(attn_cli_round_step(rows[i][0]), rows[i][1]);
}

/* The longest run of coloured pixels in any one column behind column `from`. */
static int longest_bar(cairo_surface_t *s, int from) {
    const unsigned char *data = cairo_image_surface_get_data(s);
    const int stride = cairo_image_surface_get_stride(s), width = cairo_image_surface_get_width(s),
              height = cairo_image_surface_get_height(s);
    int longest = 0;
    for (int x = from; x < width; x++)
        for (int y = 0, run = 0; y < height; y++) {
            const unsigned char *p = data + y * stride + 4 * x; /* blue, green, red */
            run = p[0] == 255 && p[1] == 255 && p[2] == 255 ? 0 : run + 1;
            if (run > longest) longest = run;
        }
    return longest;
}

/* Coloured pixels of the last columns: words that were cut off would reach the edge. */
static int ink_at_edge(cairo_surface_t *s) {
    const unsigned char *data = cairo_image_surface_get_data(s);
    const int stride = cairo_image_surface_get_stride(s), width = cairo_image_surface_get_width(s);
    int ink = 0;
    for (int x = width - 6; x < width; x++)
        for (int y = 0; y < cairo_image_surface_get_height(s); y++) ink += data[y * stride + 4 * x] != 255;
    return ink;
}

static void every_word_and_the_scale_have_room(void **state) {
    (void)state;
    double values[4] = {0, 0.25, 0.5, 1};
    char what[200], path[] = "/tmp/attn_t_heatmap_XXXXXX", error[320];
    memset(what, 'w', sizeof what - 1);
    what[sizeof what - 1] = 0;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct attn_cli_heatmap map = {
        .title = "one row", .rows = 1, .columns = 4, .values = values, .value_title = "probability"};
    assert_int_equal(attn_cli_heatmap_write(&map, path, error, sizeof error), 0);
    cairo_surface_t *s = cairo_image_surface_create_from_png(path);
    assert_int_equal(cairo_surface_status(s), CAIRO_STATUS_SUCCESS);
    assert_true(longest_bar(s, 70) >= 90); /* the row itself is 13 high */
    cairo_surface_destroy(s);
    map.value_title = what;
    assert_int_equal(attn_cli_heatmap_write(&map, path, error, sizeof error), 0);
    s = cairo_image_surface_create_from_png(path);
    assert_int_equal(ink_at_edge(s), 0);
    cairo_surface_destroy(s);
    remove(path);
}

static void the_reason_is_the_system_s(void **state) {
    (void)state;
    double value = 1;
    char error[320];
    const struct attn_cli_heatmap map = {.rows = 1, .columns = 1, .values = &value};
    assert_int_equal(attn_cli_heatmap_write(&map, "/nonexistent/a.png", error, sizeof error), -1);
    assert_string_equal(error, "/nonexistent/a.png: No such file or directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_round),
        cmocka_unit_test(every_word_and_the_scale_have_room),
        cmocka_unit_test(the_reason_is_the_system_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 77; }
#endif
