/* SPDX-License-Identifier: MIT
 * The comparison: errors of rows against the size of the reference, exact places of NaN, inf and empty rows, and a text
 * that says where the wrong elements lie. The bounds are those of bounds.c. */
#include "check.h"

#include <math.h>
#include <string.h>

enum { F16_EDGE = 65000 }; /* from here on an f16 may round to infinity in one computation and not in another */

double attn_cli_check_spacing(double x, int32_t dtype) {
    static const struct {
        int digits, least;
    } types[ATTN_DTYPE_COUNT_] = {
        [ATTN_F32] = {24, -149}, [ATTN_F16] = {11, -24}, [ATTN_BF16] = {8, -133}, [ATTN_F64] = {53, -1074}};
    int e;
    if (dtype < ATTN_F32 || dtype > ATTN_F64 || !isfinite(x)) return 0;
    frexp(x, &e);
    e -= types[dtype].digits;
    return ldexp(1, x == 0 || e < types[dtype].least ? types[dtype].least : e);
}

static double worse(double error, double bound) { return error <= 0 ? 0 : bound > 0 ? error / bound : INFINITY; }

struct scan {
    const struct check_want *w;
    const double *want, *got;
    const struct check_bound *b;
    uint8_t *wrong;
    struct check_verdict *v;
    double typical, half_error; /* rms of the rows' norms; max |half - want| */
    double dot, squares;        /* for the cosine */
    double half_dot, half_squares;
};

static void blame(struct scan *s, int64_t element, double ratio, double bound, const char *why) {
    struct check_verdict *v = s->v;
    if (ratio > 1 || isnan(ratio)) {
        v->over++;
        if (s->wrong) s->wrong[element] = 1;
    }
    if (ratio > v->worst || isnan(ratio)) {
        v->worst = isnan(ratio) ? INFINITY : ratio;
        v->element = element;
        v->got = s->got[element];
        v->want = s->want[element];
        v->bound = bound;
        v->score = s->w->score[element / s->w->cols];
        snprintf(v->why, sizeof v->why, "%s", why);
    }
}

/* A score's error becomes a factor of its probability, e^error: far masks make it large. */
static double tolerance(const struct check_bound *b, double score) {
    enum { MOST = 200 };
    if (b->score_tol > 0) return b->tol + expm1(fmin(b->score_tol * score, MOST));
    return score > 8 ? expm1(fmin(b->tol * score / 8, MOST)) : b->tol;
}

/* Beyond what the dtype can hold, as a lse in base 2 of a row that a mask of f32's lowest number hides. */
static bool overflows(double want, int32_t dtype) {
    return (dtype == ATTN_F32 && fabs(want) >= 0x1.ffffffp127) || (dtype == ATTN_BF16 && fabs(want) >= 0x1.ffp127);
}

/* NaN and inf must stand where the reference has them. Returns true if the pair is settled, false if both are numbers.
 */
static bool settle(struct scan *s, int64_t element) {
    double want = s->want[element], got = s->got[element];
    if (s->b->dtype == ATTN_F16 && isfinite(want) && fabs(want) > F16_EDGE) {
        const bool known = tolerance(s->b, s->w->score[element / s->w->cols]) < 1; /* or far scores may have any size */
        if (isnan(got) || (known && isfinite(got) && fabs(want) > 70000)) blame(s, element, INFINITY, 0, "overflow");
        return true;
    }
    if (overflows(want, s->b->dtype)) want = copysign(INFINITY, want);
    if (s->b->lost_nan && isnan(want)) return true;
    if (s->b->inf_or_nan && !isfinite(want)) {
        if (isfinite(got)) blame(s, element, INFINITY, 0, "inf or NaN expected");
        return true;
    }
    if (isnan(want)) {
        if (!isnan(got)) blame(s, element, INFINITY, 0, "NaN expected");
        return true;
    }
    if (isinf(want)) {
        if (got != want) blame(s, element, INFINITY, 0, "infinity expected");
        return true;
    }
    if (isfinite(got)) return false;
    blame(s, element, INFINITY, 0, isnan(got) ? "NaN" : "infinity");
    return true;
}

static void note_error(struct scan *s, double want, double error) {
    double unit = attn_cli_check_spacing(want, s->b->dtype);
    if (error > s->v->max_err) s->v->max_err = error;
    if (unit > 0 && error / unit > s->v->max_ulp) s->v->max_ulp = error / unit;
}

static void scan_absolute(struct scan *s, int64_t row) {
    const struct check_bound *b = s->b;
    if (settle(s, row)) return;
    double want = s->want[row], error = fabs(s->got[row] - want);
    double size = fmax(fmax(1, fabs(want)), s->w->score[row] / 16), bound = b->abs * size + b->slack * fabs(want);
    note_error(s, want, error);
    blame(s, row, worse(error, bound), bound, "absolute");
}

static void scan_zero(struct scan *s, int64_t row) {
    for (int64_t x = 0; x < s->w->cols; x++) {
        int64_t element = row * s->w->cols + x;
        if (s->got[element] == s->w->plain[element]) continue; /* 0, or what an untouched accumulator held */
        blame(s, element, INFINITY, 0, "row that must be exact");
        if (s->v->element == element) s->v->want = s->w->plain[element];
    }
}

static void scan_row(struct scan *s, int64_t row) {
    const struct check_bound *b = s->b;
    const struct check_want *w = s->w;
    int64_t first = row * w->cols, numbers = 0, biggest = first;
    double errors = 0, refs = 0, peak = -1;
    for (int64_t element = first; element < first + w->cols; element++) {
        if (settle(s, element)) continue;
        double e = fabs(s->got[element] - s->want[element]);
        note_error(s, s->want[element], e);
        if (b->zero_exact && s->want[element] == 0 && e > 1e-37) blame(s, element, INFINITY, 0, "0 expected");
        if (e > peak) peak = e, biggest = element;
        errors += e * e;
        refs += s->want[element] * s->want[element];
        s->dot += s->got[element] * s->want[element];
        s->squares += s->got[element] * s->got[element] + s->want[element] * s->want[element];
        numbers++;
    }
    if (!numbers) return;
    double norm = sqrt(refs), size = fmax(fmax(norm, s->typical), fmax(w->terms[row], (norm + w->roundings[row]) / 2));
    double noise = b->eps * w->noise[row] + b->tiny * sqrt((double)w->cols) + (b->loses ? w->lost[row] : 0),
           bound = tolerance(b, w->score[row]) * size + noise, error = sqrt(errors);
    double ratio = worse(error, bound);
    if (ratio > 1) { /* mark the elements that carry the error, at least the largest */
        double share = bound / sqrt((double)numbers);
        for (int64_t element = first; element < first + w->cols; element++)
            if (element != biggest && isfinite(s->want[element]) && fabs(s->got[element] - s->want[element]) > share)
                blame(s, element, 1.0001, bound, "row norm");
    }
    blame(s, biggest, ratio, bound, "row norm");
    if (b->factor <= 0 || !w->half || ratio > 1) return;
    double floor_size = size / sqrt((double)w->cols), far = tolerance(b, w->score[row]) - b->tol;
    for (int64_t element = first; element < first + w->cols; element++) {
        if (!isfinite(s->want[element]) || !isfinite(s->got[element])) continue;
        double unit = attn_cli_check_spacing(fmax(fabs(s->want[element]), floor_size), b->unit);
        double limit = b->factor * s->half_error + 2 * unit + noise + far * floor_size;
        blame(s, element, worse(fabs(s->got[element] - s->want[element]), limit), limit, "element");
    }
}

static void measure(struct scan *s) {
    const struct check_want *w = s->w;
    double squares = 0;
    int64_t rows = 0;
    for (int64_t r = 0; r < w->rows; r++) {
        double one = 0;
        if (w->kind[r] != CHECK_ROW_NORMAL) continue;
        for (int64_t element = r * w->cols; element < (r + 1) * w->cols; element++) {
            const double want = s->want[element], half = w->half ? w->half[element] : NAN, x = want * want;
            if (!isfinite(x)) continue;
            one += x;
            if (w->half && !(fabs(half - want) <= s->half_error)) s->half_error = fabs(half - want);
            if (isfinite(half)) s->half_dot += half * want, s->half_squares += half * half + x;
        }
        squares += one;
        rows++;
    }
    if (isnan(s->half_error)) s->half_error = INFINITY; /* the 16-bit computation overflowed: it bounds nothing */
    s->typical = rows ? sqrt(squares / (double)rows) : 0;
}

int attn_cli_check_compare(const struct check_want *w, const double *want, const double *got,
                           const struct check_bound *b, uint8_t *wrong, struct check_verdict *v) {
    struct scan s = {.w = w, .want = want, .got = got, .b = b, .wrong = wrong, .v = v};
    v->n = w->rows * w->cols;
    v->cosine = -1;
    double terms = 0, noise = 0;
    if (v->n == 0) return 0;
    if (!b->absolute) measure(&s);
    for (int64_t r = 0; r < w->rows; r++) {
        if (w->kind[r] == CHECK_ROW_UNWRITTEN) continue;
        if (w->kind[r] == CHECK_ROW_ZERO)
            scan_zero(&s, r);
        else if (b->absolute)
            scan_absolute(&s, r);
        else
            scan_row(&s, r);
        terms += w->terms[r] * w->terms[r];
        noise += w->noise[r] * w->noise[r];
    }
    /* The cosine says something where the sum is not a small rest of what was added up (`squares` is those of both
     * tensors, twice those of one), consists of summands enough that their roundings average, and is more than what
     * roundings of f32 leave of numbers that cancel: some 2^-27 of `noise`. */
    const int averages = v->n >= 256 && 16 * w->peak <= terms;
    if (b->cosine > 0 && s.squares > 0 && terms < s.squares && noise * 0x1p-34 < s.squares && averages) {
        /* Probabilities that are equal are all rounded the same way, by up to 2^-8, of which 2^-17 remain here; `half`
         * has that, too. A tenth is for sums in another order. */
        const double half = s.half_squares > 0 ? 1 - 2 * s.half_dot / s.half_squares : 0,
                     limit = fmin(fmax(b->cosine, 1.1 * half), 2 * b->cosine);
        v->cosine = 1 - 2 * s.dot / s.squares;
        if (!(v->cosine <= limit)) {
            v->over = v->over ? v->over : 1;
            if (v->worst <= 1) {
                v->worst = v->cosine / limit;
                v->bound = limit;
                snprintf(v->why, sizeof v->why, "cosine distance %.2g", v->cosine);
            }
        }
    }
    return v->over > 0;
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

void attn_cli_check_place_text(const attn_tensor *view, int64_t element, const char *axes, char *buf, size_t bytes) {
    int64_t index[ATTN_MAX_RANK] = {0};
    for (int a = view->rank - 1; a >= 0; a--) {
        index[a] = element % view->shape[a];
        element /= view->shape[a];
    }
    size_t used = 0;
    buf[0] = 0;
    for (int a = 0; a < view->rank && used + 24 < bytes; a++)
        used += (size_t)snprintf(buf + used, bytes - used, "%s%c%lld", a ? " " : "", axes[a], (long long)index[a]);
}

/* The largest power of two below the extent such that all residues lie in one half or less of it. */
static int64_t residues(const uint8_t *hit, int64_t extent, int64_t *low, int64_t *high) {
    for (int64_t tile = 256; tile >= 4; tile /= 2) {
        if (tile >= extent) continue;
        *low = tile, *high = -1;
        for (int64_t x = 0; x < extent; x++)
            if (hit[x]) {
                if (x % tile < *low) *low = x % tile;
                if (x % tile > *high) *high = x % tile;
            }
        if (*high - *low < tile / 2) return tile;
    }
    return 0;
}

void attn_cli_check_cluster(const attn_tensor *view, const uint8_t *wrong, const char *axes, char *buf, size_t bytes) {
    enum { MAX_EXTENT = 1 << 16 };
    static uint8_t hit[MAX_EXTENT];
    int64_t n = 1, inner = 1;
    size_t used = 0;
    buf[0] = 0;
    for (int a = 0; a < view->rank; a++) n *= view->shape[a];
    for (int a = view->rank - 1; a >= 0; a--) {
        int64_t extent = view->shape[a] < MAX_EXTENT ? view->shape[a] : MAX_EXTENT, low = extent, high = -1, count = 0,
                rl, rh;
        memset(hit, 0, (size_t)extent);
        for (int64_t element = 0; element < n; element++)
            if (wrong[element]) hit[element / inner % view->shape[a] % extent] = 1;
        for (int64_t x = 0; x < extent; x++)
            if (hit[x]) {
                if (x < low) low = x;
                high = x;
                count++;
            }
        inner *= view->shape[a];
        if (view->shape[a] < 2 || high < 0 || used + 80 >= bytes) continue;
        const char *comma = used ? ", " : "";
        if (count == extent)
            used += (size_t)snprintf(buf + used, bytes - used, "%sall %c", comma, axes[a]);
        else if (low == high)
            used += (size_t)snprintf(buf + used, bytes - used, "%s%c %lld of %lld", comma, axes[a], (long long)low,
                                     (long long)extent);
        else
            used += (size_t)snprintf(buf + used, bytes - used, "%s%c %lld..%lld (%lld of %lld)", comma, axes[a],
                                     (long long)low, (long long)high, (long long)count, (long long)extent);
        int64_t tile = count > 1 && high - low >= 4 ? residues(hit, extent, &rl, &rh) : 0;
        if (tile)
            used += (size_t)snprintf(buf + used, bytes - used, " = %lld..%lld mod %lld", (long long)rl, (long long)rh,
                                     (long long)tile);
    }
}

const char *attn_cli_check_axes(const struct check_case *c, int32_t role) {
    const struct check_tensor *t = &c->t[role];
    bool dense = check_dense(&c->p);
    const char *s;
    switch (role) {
    case ATTN_ROLE_DSINK: return "h";
    case ATTN_ROLE_DALIBI: s = "bh"; break;
    case ATTN_ROLE_DMASK: s = "bhij"; break;
    case ATTN_ROLE_DK:
    case ATTN_ROLE_DV: s = "bhjd"; break;
    case ATTN_ROLE_DKV: s = "bj-d"; break;
    case ATTN_ROLE_DIST: s = "bit"; break;
    case ATTN_ROLE_LSE:
    case ATTN_ROLE_LSE_ROUNDED:
    case ATTN_ROLE_MAX_LOGITS: s = dense ? "bhi" : "bih"; break;
    default: s = dense ? "bhid" : "bihd"; break;
    }
    return s + ((int)strlen(s) > t->view.rank ? (int)strlen(s) - t->view.rank : 0); /* without a batch axis */
}
