/* SPDX-License-Identifier: MIT
 * Heat map drawing. Layout: title on top, column labels rotated above the cells, row labels left, colour scale right.
 * Colours follow the square root of the value, so that small weights stay visible beside one large weight. */
#include "commands/heatmap.h"
#include "io/io.h"

#include <cairo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_AXIS = 1600, MARGIN = 14, SCALE_WIDTH = 16, SCALE_ROOM = 96, SCALE_LEAST = 100 };

/* Light to dark, lightness falling evenly; linear between the stops. */
static const double ramp[][3] = {{0.98, 0.98, 0.97}, {0.80, 0.88, 0.95}, {0.50, 0.72, 0.88},
                                 {0.22, 0.51, 0.76}, {0.10, 0.30, 0.58}, {0.04, 0.12, 0.33}};

static void set_colour(cairo_t *cr, double value, double top) {
    if (isnan(value)) {
        cairo_set_source_rgb(cr, 0.85, 0.10, 0.10);
        return;
    }
    double x = top > 0 && value > 0 ? sqrt(value / top) : 0;
    if (x > 1) x = 1;
    int last = (int)(sizeof ramp / sizeof ramp[0]) - 1;
    int i = (int)(x * last);
    if (i >= last) i = last - 1;
    double f = x * last - i;
    cairo_set_source_rgb(cr, ramp[i][0] + f * (ramp[i + 1][0] - ramp[i][0]),
                         ramp[i][1] + f * (ramp[i + 1][1] - ramp[i][1]),
                         ramp[i][2] + f * (ramp[i + 1][2] - ramp[i][2]));
}

struct axis {
    int64_t n, group, cells; /* cells = ceil(n / group) */
    const char *const *labels;
    double label_room;
    int64_t label_every; /* rows or columns from one label to the next */
};

static const char *label_of(const struct axis *a, int64_t index, char *buf, size_t bytes) {
    if (a->labels) return a->labels[index];
    snprintf(buf, bytes, "%lld", (long long)index);
    return buf;
}

int64_t attn_cli_round_step(int64_t least) {
    static const int64_t leading[] = {1, 2, 5};
    for (int64_t power = 1; power <= INT64_MAX / 10; power *= 10)
        for (int i = 0; i < 3; i++)
            if (leading[i] * power >= least) return leading[i] * power;
    return least;
}

static double text_width(cairo_t *cr, const char *text) {
    cairo_text_extents_t e;
    cairo_text_extents(cr, text, &e);
    return e.x_advance;
}

static void plan_axis(struct axis *a, int64_t n, const char *const *labels, cairo_t *cr, double cell, double font) {
    a->n = n;
    a->group = n > MAX_AXIS ? (n + MAX_AXIS - 1) / MAX_AXIS : 1;
    a->cells = n ? (n + a->group - 1) / a->group : 0;
    a->labels = labels;
    a->label_every = (cell >= font ? 1 : (int64_t)ceil((font + 2) / cell)) * a->group;
    if (!labels) a->label_every = attn_cli_round_step(a->label_every);
    a->label_room = 0;
    for (int64_t i = 0; i < n; i += a->label_every) {
        char buf[32];
        double w = text_width(cr, label_of(a, i, buf, sizeof buf));
        if (w > a->label_room) a->label_room = w;
    }
}

static double cell_value(const struct attn_cli_heatmap *m, const struct axis *row, const struct axis *col, int64_t r,
                         int64_t c) {
    double best = 0;
    for (int64_t i = r * row->group; i < (r + 1) * row->group && i < m->rows; i++)
        for (int64_t j = c * col->group; j < (c + 1) * col->group && j < m->columns; j++) {
            double v = m->values[i * m->columns + j];
            if (isnan(v)) return v;
            if (v > best) best = v;
        }
    return best;
}

static double scale_height(double height) { return height < SCALE_LEAST ? SCALE_LEAST : height; }

enum { LINE = 320 };
static void second_line(const struct attn_cli_heatmap *m, const struct axis *row, const struct axis *col,
                        char line[LINE]) {
    snprintf(line, LINE, "rows: %s    columns: %s    colour: %s%s", m->row_title ? m->row_title : "row",
             m->column_title ? m->column_title : "column", m->value_title ? m->value_title : "value",
             row->group > 1 || col->group > 1 ? "    (each cell is the largest value of a group)" : "");
}

/* A PNG in memory, so that writing the file reports the system's own reason. */
struct png {
    unsigned char *data;
    size_t n, room;
};
static cairo_status_t keep(void *closure, const unsigned char *data, unsigned int n) {
    struct png *png = closure;
    if (n > png->room - png->n) {
        size_t room = (png->room + n) * 2;
        unsigned char *larger = realloc(png->data, room);
        if (!larger) return CAIRO_STATUS_NO_MEMORY;
        png->data = larger;
        png->room = room;
    }
    memcpy(png->data + png->n, data, n);
    png->n += n;
    return CAIRO_STATUS_SUCCESS;
}

static void draw(cairo_t *cr, const struct attn_cli_heatmap *m, const struct axis *row, const struct axis *col,
                 double cell, double font, double x0, double y0, double top) {
    char buf[96];
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_antialias(cr, CAIRO_ANTIALIAS_NONE);
    for (int64_t r = 0; r < row->cells; r++)
        for (int64_t c = 0; c < col->cells; c++) {
            set_colour(cr, cell_value(m, row, col, r, c), top);
            cairo_rectangle(cr, x0 + (double)c * cell, y0 + (double)r * cell, cell, cell);
            cairo_fill(cr);
        }
    cairo_set_antialias(cr, CAIRO_ANTIALIAS_DEFAULT);
    cairo_set_source_rgb(cr, 0.1, 0.1, 0.1);
    for (int64_t r = 0; r < row->n; r += row->label_every) {
        const char *text = label_of(row, r, buf, sizeof buf);
        cairo_move_to(cr, x0 - 6 - text_width(cr, text), y0 + ((double)(r / row->group) + 0.5) * cell + font * 0.35);
        cairo_show_text(cr, text);
    }
    for (int64_t c = 0; c < col->n; c += col->label_every) {
        cairo_save(cr);
        cairo_translate(cr, x0 + ((double)(c / col->group) + 0.5) * cell + font * 0.35, y0 - 6);
        cairo_rotate(cr, -M_PI / 2);
        cairo_move_to(cr, 0, 0);
        cairo_show_text(cr, label_of(col, c, buf, sizeof buf));
        cairo_restore(cr);
    }
    double width = (double)col->cells * cell, height = (double)row->cells * cell;
    cairo_set_line_width(cr, 1);
    cairo_rectangle(cr, x0 - 0.5, y0 - 0.5, width + 1, height + 1);
    cairo_stroke(cr);

    /* Colour scale, five ticks, high enough for their numbers also beside one row. */
    double sx = x0 + width + 18, high = scale_height(height);
    for (int i = 0; i < 200; i++) {
        set_colour(cr, top * (1 - i / 199.0), top);
        cairo_rectangle(cr, sx, y0 + high * i / 200.0, SCALE_WIDTH, high / 200.0 + 1);
        cairo_fill(cr);
    }
    cairo_set_source_rgb(cr, 0.1, 0.1, 0.1);
    for (int i = 0; i <= 4; i++) {
        snprintf(buf, sizeof buf, "%.3g", top * (4 - i) / 4.0);
        cairo_move_to(cr, sx + SCALE_WIDTH + 5, y0 + high * i / 4.0 + font * 0.35);
        cairo_show_text(cr, buf);
    }

    double y = MARGIN + 15;
    if (m->title) {
        cairo_set_font_size(cr, 15);
        cairo_move_to(cr, MARGIN, y);
        cairo_show_text(cr, m->title);
        y += 18;
    }
    cairo_set_font_size(cr, 11);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    char line[LINE];
    second_line(m, row, col, line);
    cairo_move_to(cr, MARGIN, y);
    cairo_show_text(cr, line);
}

int attn_cli_heatmap_write(const struct attn_cli_heatmap *m, const char *path, char *error, int error_bytes) {
    if (m->rows < 1 || m->columns < 1) {
        snprintf(error, (size_t)error_bytes, "nothing to draw: %lld x %lld", (long long)m->rows, (long long)m->columns);
        return -1;
    }
    double font = 11;
    int64_t longest = m->rows > m->columns ? m->rows : m->columns;
    double cell = longest <= 100 ? 13 : longest <= 400 ? 4 : longest <= 800 ? 2 : 1;

    /* A scratch surface to measure text before the picture's size is known. */
    cairo_surface_t *scratch = cairo_image_surface_create(CAIRO_FORMAT_RGB24, 8, 8);
    cairo_t *measure = cairo_create(scratch);
    cairo_select_font_face(measure, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(measure, font);
    struct axis row, col;
    plan_axis(&row, m->rows, m->row_labels, measure, cell, font);
    plan_axis(&col, m->columns, m->column_labels, measure, cell, font);
    cairo_set_font_size(measure, 15);
    double title_width = m->title ? text_width(measure, m->title) : 0;
    char line[LINE];
    second_line(m, &row, &col, line);
    cairo_set_font_size(measure, 11);
    double line_width = text_width(measure, line);
    cairo_destroy(measure);
    cairo_surface_destroy(scratch);

    double top = 0;
    for (int64_t i = 0; i < m->rows * m->columns; i++)
        if (m->values[i] > top) top = m->values[i];

    double x0 = MARGIN + row.label_room + 8, y0 = MARGIN + 44 + col.label_room + 8;
    double width = x0 + (double)col.cells * cell + SCALE_ROOM, height = y0 + (double)row.cells * cell + MARGIN;
    double least = 2 * MARGIN + fmax(fmax(title_width, line_width), 560);
    if (width < least) width = least;
    height = fmax(height, y0 + scale_height(0) + MARGIN);

    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width), (int)ceil(height));
    cairo_t *cr = cairo_create(surface);
    cairo_select_font_face(cr, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, font);
    draw(cr, m, &row, &col, cell, font, x0, y0, top);
    cairo_status_t status = cairo_status(cr);
    struct png png = {0};
    if (!status) status = cairo_surface_write_to_png_stream(surface, keep, &png);
    cairo_destroy(cr);
    cairo_surface_destroy(surface);
    struct attn_cli_fault fault;
    if (status) snprintf(error, (size_t)error_bytes, "cannot draw %s: %s", path, cairo_status_to_string(status));
    int failed = status || attn_cli_file_write(path, &(struct attn_cli_piece){png.data, png.n}, 1, &fault);
    if (failed && !status) snprintf(error, (size_t)error_bytes, "%s", fault.text);
    free(png.data);
    return failed ? -1 : 0;
}
