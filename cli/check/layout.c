/* SPDX-License-Identifier: MIT
 * Storage of a case's tensors: random strides, room around every tensor filled with a sentinel that reads as NaN in
 * every float type, an unreadable page after some of them, and the test that nothing but the result was written. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_BYTES = 192, HIGH_VARIANT_BYTE = 0x7a };

/* Odd addresses hold 0xff and even ones 0xf1..0xff, so that any element that is read from here is a NaN (or, as an
 * integer, negative). Variant 1 reads as large finite numbers: a kernel that reads its workspace or output gives
 * another result. The bytes follow the address, and so come again after PERIOD: the first ones are copied onwards. */
void attn_cli_check_sentinel(uint8_t *memory, size_t bytes, int variant) {
    enum { NAN_PERIOD = 2 * 15, HIGH_PERIOD = 2 * 0x60, PERIOD = 5 * HIGH_PERIOD /* a multiple of both */ };
    _Static_assert(PERIOD % NAN_PERIOD == 0, "both patterns come again");
    size_t done = bytes < PERIOD ? bytes : PERIOD;
    for (size_t i = 0; i < done; i++) {
        uintptr_t a = (uintptr_t)(memory + i);
        if (variant)
            memory[i] = (uint8_t)((a & 1) ? HIGH_VARIANT_BYTE : 0x11 + (a >> 1) % 0x60);
        else
            memory[i] = (uint8_t)((a & 1) ? 0xff : 0xf1 + (a >> 1) % 15);
    }
    while (done < bytes) { /* done is a multiple of PERIOD here */
        size_t piece = bytes - done < done ? bytes - done : done;
        memcpy(memory + done, memory, piece);
        done += piece;
    }
}

int64_t attn_cli_check_rows(const attn_tensor *t) {
    int64_t n = 1;
    for (int a = 0; a + 1 < t->rank; a++) n *= t->shape[a];
    return n;
}

int64_t attn_cli_check_offset(const attn_tensor *t, int64_t row) {
    int64_t offset = 0;
    for (int a = t->rank - 2; a >= 0; a--) {
        if (t->shape[a] > 1) offset += row % t->shape[a] * t->strides[a];
        row /= t->shape[a];
    }
    return offset;
}

/* ---- strides ------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t to) { return to > 1 ? (n + to - 1) / to * to : n; }

static bool may_broadcast(const struct check_case *c, int32_t role, int axis) {
    const attn_tensor *t = &c->t[role].view;
    if (t->shape[axis] < 2) return false;
    switch (role) {
    case ATTN_ROLE_MASK:
    case ATTN_ROLE_DMASK:
    case ATTN_ROLE_Q_SCALE:
    case ATTN_ROLE_K_SCALE:
    case ATTN_ROLE_V_SCALE: return true;
    case ATTN_ROLE_Q:
    case ATTN_ROLE_K:
    case ATTN_ROLE_V:
    case ATTN_ROLE_KV:
    case ATTN_ROLE_DOUT:
    case ATTN_ROLE_DLSE:
    case ATTN_ROLE_ALIBI:
    case ATTN_ROLE_INDICES:
    case ATTN_ROLE_BLOCK_TABLE: return axis + 1 < t->rank;
    default: return false;
    }
}

static void choose_broadcast(struct check_case *c, int32_t role, uint32_t forbid) {
    struct check_tensor *t = &c->t[role];
    memset(t->broadcast, 0, sizeof t->broadcast);
    bool like_mask = role == ATTN_ROLE_DMASK && c->t[ATTN_ROLE_MASK].use && attn_cli_rng_below(&c->rng, 4) > 0;
    for (int a = 0; a < t->view.rank; a++) {
        int64_t chance = role == ATTN_ROLE_MASK || role == ATTN_ROLE_DMASK ? 35 : (c->modes & CHECK_BROADCAST) ? 30 : 0;
        if (a + 1 == t->view.rank) chance /= 2;
        bool yes = attn_cli_rng_below(&c->rng, 100) < chance;
        if (like_mask) yes = c->t[ATTN_ROLE_MASK].broadcast[a];
        t->broadcast[a] = yes && !(forbid & 1u << a) && may_broadcast(c, role, a);
    }
    /* dout of one number, as a sum's gradient is. No draw: numbers of a seed stay. */
    const bool one = role == ATTN_ROLE_DOUT && (c->modes & CHECK_BROADCAST) && !forbid && c->seed >> 17 & 1;
    for (int a = 0; one && a < t->view.rank; a++) t->broadcast[a] = t->view.shape[a] > 1;
}

/* Tensors of one number per row are read and written one by one and may have any stride on every axis. */
static bool free_innermost(const struct check_case *c, int32_t role) {
    bool single = role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED || role == ATTN_ROLE_DLSE ||
                  role == ATTN_ROLE_MAX_LOGITS || (role >= ATTN_ROLE_Q_SCALE && role <= ATTN_ROLE_V_SCALE);
    return single && !c->p.align_bytes;
}

static void choose_strides(struct check_case *c, int32_t role) {
    struct check_tensor *t = &c->t[role];
    attn_tensor *v = &t->view;
    bool single = free_innermost(c, role);
    int64_t es = (int64_t)attn_dtype_bytes(v->dtype), align = c->p.align_bytes > es ? c->p.align_bytes / es : 1,
            step = 1;
    int order[ATTN_MAX_RANK], n = single ? v->rank : v->rank - 1; /* axes of which order and stride are free */
    for (int a = 0; a < n; a++) order[a] = a;
    if (c->modes & CHECK_PERMUTED)
        for (int a = n - 1; a > 0; a--) {
            int b = (int)attn_cli_rng_below(&c->rng, a + 1), x = order[a];
            order[a] = order[b];
            order[b] = x;
        }
    bool padded = (c->modes & CHECK_PADDED) && attn_cli_rng_below(&c->rng, 4) > 0;
    bool negative = (c->modes & CHECK_NEGATIVE_STRIDE) && attn_cli_rng_below(&c->rng, 2);
    if (!single) {
        v->strides[n] = t->broadcast[n] ? 0 : 1;
        step = t->broadcast[n] ? 1 : v->shape[n] > 0 ? v->shape[n] : 1;
    }
    for (int k = n - 1; k >= 0; k--) {
        int a = order[k];
        if (padded) step += attn_cli_rng_below(&c->rng, single ? 4 : 19);
        step = round_up(step, align);
        bool back = negative && attn_cli_rng_below(&c->rng, 2);
        if (t->broadcast[a]) {
            v->strides[a] = 0;
        } else if (v->shape[a] == 1) {
            v->strides[a] =
                attn_cli_rng_below(&c->rng, 2) ? step : align * 7919; /* the stride of a lone row means nothing */
        } else {
            v->strides[a] = back ? -step : step;
            if (v->shape[a] > 1) step *= v->shape[a];
        }
    }
}

/* ---- storage ------------------------------------------------------------------------------------------------- */

static int map_storage(struct check_case *c, int32_t role) {
    struct check_tensor *t = &c->t[role];
    attn_tensor *v = &t->view;
    size_t es = attn_dtype_bytes(v->dtype);
    int64_t low = 0, high = 0;
    for (int a = 0; a < v->rank; a++) {
        int64_t d = v->shape[a] > 1 ? (v->shape[a] - 1) * v->strides[a] : 0;
        if (d < 0)
            low += d;
        else
            high += d;
    }
    size_t body = (size_t)(high - low + 1) * es, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t align = c->p.align_bytes > es ? c->p.align_bytes : 64;
    bool fence = (c->modes & CHECK_AT_PAGE_END) != 0;
    size_t readable = (GUARD_BYTES + align + 64 * es + body + (fence ? 0 : GUARD_BYTES) + page - 1) / page * page;
    t->map_bytes = readable + (fence ? page : 0);
    t->use_bytes = readable;
    t->map = mmap(NULL, t->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->map == MAP_FAILED) {
        t->map = NULL;
        return -1;
    }
    if (fence && mprotect(t->map + readable, page, PROT_NONE)) return -1;
    uint8_t *first; /* lowest address of an element */
    size_t lead = (size_t)-low * es;
    if (fence) {
        first = t->map + readable - body;
        if (c->p.align_bytes > es) first -= (uintptr_t)(first + lead) % align;
    } else {
        first = t->map + GUARD_BYTES;
        first += (align - (uintptr_t)(first + lead) % align) % align;
        if ((c->modes & CHECK_UNALIGNED) && !c->p.align_bytes)
            first += (size_t)(1 + attn_cli_rng_below(&c->rng, 31)) * es;
    }
    v->data = first + lead;
    v->bytes = attn_cli_rng_below(&c->rng, 2) ? (uint64_t)(high + 1) * es : 0;
    return 0;
}

int attn_cli_check_place(struct check_case *c, int32_t role, uint32_t forbid_broadcast) {
    struct check_tensor *t = &c->t[role];
    t->n = 1;
    for (int a = 0; a < t->view.rank; a++) t->n *= t->view.shape[a];
    choose_broadcast(c, role, forbid_broadcast);
    choose_strides(c, role);
    t->val = calloc((size_t)t->n + 1, sizeof *t->val);
    if (!t->val) return -1;
    if (t->n == 0) {
        t->view.data = NULL;
        t->view.bytes = 0;
        return 0;
    }
    if (map_storage(c, role)) return -1;
    t->copy = malloc(t->use_bytes);
    if (!t->copy) return -1;
    attn_cli_check_sentinel(t->map, t->use_bytes, 0);
    memcpy(t->copy, t->map, t->use_bytes);
    return 0;
}

void attn_cli_check_drop(struct check_tensor *t) {
    if (t->map) munmap(t->map, t->map_bytes);
    free(t->copy);
    free(t->val);
    memset(t, 0, sizeof *t);
}

/* ---- element access ------------------------------------------------------------------------------------------- */

static void move_rows(const struct check_tensor *t, uint8_t *typed, bool store) {
    if (t->n == 0) return;
    const attn_tensor *v = &t->view;
    size_t es = attn_dtype_bytes(v->dtype);
    int64_t rows = attn_cli_check_rows(v), cols = v->shape[v->rank - 1];
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *line = (uint8_t *)v->data + attn_cli_check_offset(v, r) * (int64_t)es,
                *row = typed + (size_t)(r * cols) * es;
        if (v->strides[v->rank - 1] == 1 || cols == 1) {
            memcpy(store ? line : row, store ? row : line, (size_t)cols * es);
        } else {
            for (int64_t x = 0; x < cols; x++) {
                uint8_t *cell = line + x * v->strides[v->rank - 1] * (int64_t)es;
                memcpy(store ? cell : row + (size_t)x * es, store ? row + (size_t)x * es : cell, es);
            }
        }
    }
}

void attn_cli_check_load(const struct check_tensor *t, void *typed) { move_rows(t, typed, false); }

int attn_cli_check_store(struct check_tensor *t) {
    if (t->n == 0) return 0;
    uint8_t *typed = malloc((size_t)t->n * attn_dtype_bytes(t->view.dtype));
    if (!typed) return -1;
    attn_cli_check_narrow(typed, t->view.dtype, t->val, t->n);
    move_rows(t, typed, true);
    move_rows(t, typed, false); /* a broadcast axis keeps one of the values */
    attn_cli_check_widen(t->val, typed, t->view.dtype, t->n);
    free(typed);
    memcpy(t->copy, t->map, t->use_bytes);
    return 0;
}

void attn_cli_check_poison(struct check_tensor *t, int variant) {
    if (t->n == 0) return;
    attn_cli_check_sentinel(t->map, t->use_bytes, variant);
    if (t->use == ATTN_USE_INOUT_OPTIONAL) {
        attn_cli_check_store(t);
        return;
    }
    memcpy(t->copy, t->map, t->use_bytes);
}

int attn_cli_check_intact(const struct check_tensor *t, const struct check_want *w, char *what, size_t bytes) {
    if (t->n == 0) return 0;
    const attn_tensor *v = &t->view;
    size_t es = attn_dtype_bytes(v->dtype);
    if (check_is_out(t->use) && t->given) { /* put the old bytes back under everything that may be written */
        int64_t rows = attn_cli_check_rows(v), cols = v->shape[v->rank - 1];
        for (int64_t r = 0; r < rows; r++) {
            uint8_t *line = (uint8_t *)v->data + attn_cli_check_offset(v, r) * (int64_t)es;
            bool dense = v->strides[v->rank - 1] == 1;
            for (int64_t x = 0, n = 1; x < cols; x += n) { /* cells that share a verdict and are neighbours: at once */
                int64_t row = w->cols > 0 ? (r * cols + x) / w->cols : 0;
                if (dense) n = w->cols > 0 ? (row + 1) * w->cols - r * cols - x : cols - x;
                if (n > cols - x) n = cols - x;
                if (w->kind && w->kind[row] == CHECK_ROW_UNWRITTEN) continue;
                uint8_t *cell = line + x * v->strides[v->rank - 1] * (int64_t)es;
                memcpy(cell, t->copy + (cell - t->map), (size_t)n * es);
            }
        }
    }
    if (!memcmp(t->map, t->copy, t->use_bytes)) return 0;
    size_t first = 0, last = t->use_bytes - 1, count = 0;
    while (t->map[first] == t->copy[first]) first++;
    while (t->map[last] == t->copy[last]) last--;
    for (size_t i = first; i <= last; i++) count += t->map[i] != t->copy[i];
    snprintf(what, bytes,
             "%s: %zu bytes changed, from %+td to %+td bytes relative to data (%td bytes are the tensor's)",
             check_is_out(t->use) ? "written outside the result" : "input was written", count,
             t->map + first - (uint8_t *)v->data, t->map + last - (uint8_t *)v->data, (ptrdiff_t)(t->n * (int64_t)es));
    return 1;
}

void attn_cli_check_widen(double *out, const void *typed, int32_t dtype, int64_t n) {
    if (n <= 0) return;
    if (dtype == ATTN_I32)
        for (int64_t i = 0; i < n; i++) out[i] = ((const int32_t *)typed)[i];
    else if (dtype == ATTN_BOOL)
        for (int64_t i = 0; i < n; i++) out[i] = ((const uint8_t *)typed)[i];
    else
        attn_convert(out, ATTN_F64, typed, dtype, (size_t)n);
}

void attn_cli_check_narrow(void *typed, int32_t dtype, const double *in, int64_t n) {
    if (n <= 0) return;
    if (dtype == ATTN_I32)
        for (int64_t i = 0; i < n; i++) ((int32_t *)typed)[i] = (int32_t)in[i];
    else if (dtype == ATTN_BOOL)
        for (int64_t i = 0; i < n; i++) ((uint8_t *)typed)[i] = (uint8_t)in[i];
    else
        attn_convert(typed, dtype, in, ATTN_F64, (size_t)n);
}

double attn_cli_check_round(double x, int32_t dtype) {
    int digits = dtype == ATTN_F16 ? 11 : 8, least = dtype == ATTN_F16 ? -24 : -133;
    double top = dtype == ATTN_F16 ? 65520.0 : 0x1.ffp127;
    if (!check_half_dtype(dtype) || x == 0 || !isfinite(x)) return x;
    if (fabs(x) >= top) return copysign(INFINITY, x);
    uint64_t u;
    memcpy(&u, &x, 8);
    int e = (int)(u >> 52 & 0x7ff) - 1022;
    int unit = e - digits > least ? e - digits : least; /* exponent of the spacing */
    /* Adding 1.5 * 2^(52 + unit) leaves no bits below the spacing: the sum is rounded there, to even. */
    uint64_t magic_bits = (uint64_t)(52 + unit + 1023) << 52 | UINT64_C(1) << 51;
    double magic;
    memcpy(&magic, &magic_bits, 8);
    return (x + magic) - magic;
}
