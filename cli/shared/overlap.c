/* SPDX-License-Identifier: MIT
 * Index lists of neighbouring queries that share a given part of their keys: `--overlap` of `attn check` and `attn
 * bench`. J of two lists: distinct valid keys that both name, over those that any of them names. What comes out of a
 * draw is measured, since causality, lengths and short caches bound it. */
#include "shared/cli.h"

#include <stdlib.h>
#include <string.h>

int attn_cli_overlap_parse(const char *text, struct attn_cli_overlap *out) {
    *out = (struct attn_cli_overlap){.kind = ATTN_CLI_OVERLAP_WALK};
    if (!strcmp(text, "random"))
        out->kind = ATTN_CLI_OVERLAP_RANDOM;
    else if (!strcmp(text, "prefix"))
        out->kind = ATTN_CLI_OVERLAP_PREFIX;
    else if (attn_cli_double(text, 0, 1, &out->j))
        return -1;
    snprintf(out->text, sizeof out->text, "%s", text);
    return strlen(text) < sizeof out->text ? 0 : -1;
}

/* ---- lists ---- */

struct walk {
    const attn_problem *p;
    const struct attn_cli_overlap *overlap;
    struct attn_cli_rng rng;
    int32_t *list;  /* n distinct keys of the current query, in the walk's order */
    int32_t *fresh; /* those that take others' places */
    int64_t n;
    uint8_t *member; /* [SK], 1: in the list */
    double owed;     /* keys to replace that earlier queries have rounded off */
};

/* Keys 0 .. open - 1 are admissible to query i. */
static int64_t open_keys(const attn_problem *p, int64_t i) {
    if (!(p->flags & ATTN_CAUSAL)) return p->seq_k;
    const int64_t open = (p->q_start + i + 1) / (p->k_stride > 0 ? p->k_stride : 1);
    return open < p->seq_k ? open : p->seq_k;
}

/* A key that is no member; there is one. Random places first, then the next one upwards, where members crowd. */
static int32_t draw_key(struct walk *w, int64_t open) {
    int64_t key = attn_cli_rng_below(&w->rng, open);
    for (int i = 0; i < 64 && w->member[key]; i++) key = attn_cli_rng_below(&w->rng, open);
    while (w->member[key]) key = key + 1 < open ? key + 1 : 0;
    w->member[key] = 1;
    return (int32_t)key;
}

static void clear(struct walk *w) {
    for (int64_t k = 0; k < w->n; k++) w->member[w->list[k]] = 0;
    w->n = 0;
    w->owed = 0;
}

/* Replace keys until two neighbours share J: a part r of each list, with J = (1 - r) / (1 + r). New keys are drawn
 * before old ones leave, so that none comes back at once. */
static void step(struct walk *w, int64_t open) {
    const double part = (1 - w->overlap->j) / (1 + w->overlap->j);
    w->owed += part * (double)w->n;
    int64_t m = (int64_t)w->owed;
    w->owed -= (double)m;
    if (m > open - w->n) m = open - w->n;
    for (int64_t k = 0; k < m; k++) { /* places 0 .. m-1 of a partial shuffle leave */
        const int64_t other = k + attn_cli_rng_below(&w->rng, w->n - k);
        const int32_t key = w->list[other];
        w->list[other] = w->list[k];
        w->list[k] = key;
    }
    for (int64_t k = 0; k < m; k++) w->fresh[k] = draw_key(w, open);
    for (int64_t k = 0; k < m; k++) {
        w->member[w->list[k]] = 0;
        w->list[k] = w->fresh[k];
    }
}

static void list_of_query(struct walk *w, int64_t i) {
    const int64_t open = open_keys(w->p, i), n = open < w->p->topk ? open : w->p->topk;
    if (w->overlap->kind != ATTN_CLI_OVERLAP_WALK || i == 0) clear(w);
    if (w->overlap->kind == ATTN_CLI_OVERLAP_WALK && w->n > 0) step(w, open);
    while (w->n < n) {
        const int prefix = w->overlap->kind == ATTN_CLI_OVERLAP_PREFIX;
        if (prefix) w->member[w->n] = 1;
        w->list[w->n] = prefix ? (int32_t)w->n : draw_key(w, open);
        w->n++;
    }
}

static void shuffle(struct attn_cli_rng *rng, int32_t *x, int64_t n) {
    for (int64_t k = n - 1; k > 0; k--) {
        const int64_t other = attn_cli_rng_below(rng, k + 1);
        const int32_t value = x[other];
        x[other] = x[k];
        x[k] = value;
    }
}

attn_status attn_cli_overlap_fill(const struct attn_cli_overlap *overlap, const attn_problem *p, int32_t *indices,
                                  uint64_t seed) {
    struct walk w = {.p = p, .overlap = overlap};
    attn_status status = ATTN_OK;
    attn_cli_rng_seed(&w.rng, seed ^ UINT64_C(0x6f7665726c6170)); /* no other stream's */
    w.list = malloc(((size_t)p->topk * 2 + 1) * sizeof *w.list);
    w.fresh = w.list + p->topk;
    w.member = calloc((size_t)p->seq_k + 1, 1);
    if (!w.list || !w.member) status = ATTN_E_MEMORY;
    for (int64_t row = 0; row < p->batch * p->seq_q && !status; row++) {
        int32_t *slots = indices + row * p->topk;
        list_of_query(&w, row % p->seq_q);
        memcpy(slots, w.list, (size_t)w.n * sizeof *slots);
        for (int64_t t = w.n; t < p->topk; t++) slots[t] = -1;
        shuffle(&w.rng, slots, w.n);
    }
    free(w.list);
    free(w.member);
    return status;
}

/* ---- what two lists share ---- */

static int by_key(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Valid keys of a query, ascending; a key stands as often as valid slots name it. */
static int64_t valid_keys(const attn_problem *p, const int32_t *indices, const int32_t *length, int64_t row,
                          int32_t *keys) {
    const int64_t slots = !length ? p->topk : length[row] < 0 ? 0 : length[row] < p->topk ? length[row] : p->topk;
    const int64_t open = open_keys(p, row % p->seq_q);
    int64_t n = 0;
    for (int64_t t = 0; t < slots; t++) {
        const int32_t key = indices[row * p->topk + t];
        if (key >= 0 && key < open) keys[n++] = key;
    }
    qsort(keys, (size_t)n, sizeof *keys, by_key);
    return n;
}

/* J of two ascending lists, of distinct keys; -1 if both are empty. */
static double shared_part(const int32_t *a, int64_t na, const int32_t *b, int64_t nb) {
    int64_t both = 0, any = 0;
    for (int64_t x = 0, y = 0; x < na || y < nb; any++) {
        const int32_t key = y >= nb || (x < na && a[x] < b[y]) ? a[x] : b[y];
        const int in_a = x < na && a[x] == key, in_b = y < nb && b[y] == key;
        both += in_a && in_b;
        while (x < na && a[x] == key) x++;
        while (y < nb && b[y] == key) y++;
    }
    return any ? (double)both / (double)any : -1;
}

/* The union as a multiset: a key counts as often as the list that names it most often does. Merges b into a. */
static int64_t merge(int32_t *a, int64_t na, const int32_t *b, int64_t nb, int32_t *out) {
    int64_t n = 0;
    for (int64_t x = 0, y = 0; x < na || y < nb; n++) {
        const int32_t key = y >= nb || (x < na && a[x] < b[y]) ? a[x] : b[y];
        x += x < na && a[x] == key;
        y += y < nb && b[y] == key;
        out[n] = key;
    }
    memcpy(a, out, (size_t)n * sizeof *a);
    return n;
}

attn_status attn_cli_overlap_measure(const attn_problem *p, const int32_t *indices, const int32_t *length,
                                     struct attn_cli_overlap_measured *out) {
    enum { SIZES = 4 }; /* groups of 2, 4, 8, 16 */
    *out = (struct attn_cli_overlap_measured){.j = -1};
    const size_t most = ((size_t)p->topk << SIZES) + 1, row = (size_t)p->topk;
    int32_t *memory = malloc((2 * row + (SIZES + 1) * most) * sizeof *memory);
    if (!memory) return ATTN_E_MEMORY;
    int32_t *keys = memory, *last = keys + row, *scratch = last + row, *unions = scratch + most;
    double sum = 0, length_sum[SIZES] = {0};
    int64_t pairs = 0, groups[SIZES] = {0};
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t n_last = 0, n_union[SIZES] = {0};
        for (int64_t i = 0; i < p->seq_q; i++) {
            const int64_t n = valid_keys(p, indices, length, b * p->seq_q + i, keys);
            const double j = i > 0 ? shared_part(last, n_last, keys, n) : -1;
            if (j >= 0) sum += j, pairs++;
            for (int c = 0; c < SIZES; c++) {
                const int64_t group = INT64_C(2) << c;
                n_union[c] = merge(unions + (size_t)c * most, i % group ? n_union[c] : 0, keys, n, scratch);
                if ((i + 1) % group == 0 || i + 1 == p->seq_q) length_sum[c] += (double)n_union[c], groups[c]++;
            }
            memcpy(last, keys, (size_t)n * sizeof *keys);
            n_last = n;
        }
    }
    if (pairs) out->j = sum / (double)pairs;
    for (int c = 0; c < SIZES; c++) out->union_length[c] = groups[c] ? length_sum[c] / (double)groups[c] : 0;
    free(memory);
    return ATTN_OK;
}
