/* SPDX-License-Identifier: MIT
 * The problem of `attn run`: what the text leaves out is read off the given arrays, and a given optional tensor
 * switches its feature on. Does not touch data except the offsets of packed sequences. */
#include "commands/run.h"

#include <stdlib.h>
#include <string.h>

static int sparse(const char *op) { return !strncmp(op, "mla_", 4) || !strcmp(op, "dist"); }

/* Axes as (batch, heads, rows, width); missing leading axes are 1. */
static int logical(const struct attn_cli_array *a, int rows_first, int64_t out[4]) {
    if (a->rank < 2 || a->rank > 4) return -1;
    out[0] = out[1] = 1;
    for (int i = 0; i < a->rank; i++) out[4 - a->rank + i] = a->shape[i];
    if (rows_first && a->rank > 2) {
        int64_t other = out[1];
        out[1] = out[2];
        out[2] = other;
    } else if (rows_first) {
        out[1] = 1;
    }
    return 0;
}

static int has_word(const char *text, const char *word, int key) {
    size_t n = strlen(word);
    for (const char *p = text; *p;) {
        p += strspn(p, " \t\n");
        size_t length = strcspn(p, " \t\n");
        if (length >= n && !memcmp(p, word, n) && (key ? length > n && p[n] == '=' : length == n)) return 1;
        p += length;
    }
    return 0;
}

static int64_t longest(const struct attn_cli_array *offsets) {
    int64_t most = 0, n = attn_cli_array_count(offsets);
    if (offsets->dtype != ATTN_I32 && offsets->dtype != ATTN_I64) return -1;
    for (int64_t i = 1; i < n; i++) {
        int64_t d = (int64_t)(attn_cli_load(offsets->data, offsets->dtype, i) -
                              attn_cli_load(offsets->data, offsets->dtype, i - 1));
        if (d > most) most = d;
    }
    return most;
}

enum { B, HQ, HK, SQ, SK, D, DV, TOPK, N_KEYS };
static const char *const keys[N_KEYS] = {"b", "hq", "hk", "sq", "sk", "d", "dv", "topk"};

struct shapes {
    int64_t key[N_KEYS]; /* -1: unknown */
    int64_t total_q, total_k, page_size, n_pages, max_pages;
    int packed, paged;
};

static int infer_dense(const struct attn_cli_run *run, struct shapes *s) {
    const struct attn_cli_array *g = run->given;
    int64_t a[4];
    if (run->have[ATTN_ROLE_Q]) {
        if (logical(&g[ATTN_ROLE_Q], run->bshd, a)) return ATTN_ROLE_Q;
        s->key[B] = a[0], s->key[HQ] = a[1], s->key[SQ] = s->total_q = a[2], s->key[D] = a[3];
    }
    if (run->have[ATTN_ROLE_K]) {
        if (logical(&g[ATTN_ROLE_K], run->bshd, a)) return ATTN_ROLE_K;
        s->key[HK] = a[1], s->key[SK] = s->total_k = s->page_size = a[2], s->n_pages = a[0];
        if (s->key[D] < 0) s->key[D] = a[3];
    }
    if (run->have[ATTN_ROLE_V]) {
        if (logical(&g[ATTN_ROLE_V], run->bshd, a)) return ATTN_ROLE_V;
        s->key[DV] = a[3];
    }
    if (s->packed) {
        const struct attn_cli_array *cq = &g[ATTN_ROLE_CU_SEQLENS_Q], *ck = &g[ATTN_ROLE_CU_SEQLENS_K];
        if (run->have[ATTN_ROLE_CU_SEQLENS_Q]) s->key[B] = attn_cli_array_count(cq) - 1, s->key[SQ] = longest(cq);
        if (run->have[ATTN_ROLE_CU_SEQLENS_K]) s->key[SK] = longest(ck);
    }
    if (s->paged) {
        const struct attn_cli_array *table = &g[ATTN_ROLE_BLOCK_TABLE];
        if (run->have[ATTN_ROLE_BLOCK_TABLE]) s->max_pages = table->rank ? table->shape[table->rank - 1] : 0;
        s->key[SK] = s->max_pages * s->page_size;
    }
    return -1;
}

static int infer_sparse(const struct attn_cli_run *run, struct shapes *s) {
    const struct attn_cli_array *g = run->given;
    int64_t a[4];
    if (run->have[ATTN_ROLE_Q]) {
        if (logical(&g[ATTN_ROLE_Q], 1, a)) return ATTN_ROLE_Q;
        s->key[B] = a[0], s->key[HQ] = a[1], s->key[SQ] = a[2], s->key[D] = a[3];
    }
    if (run->have[ATTN_ROLE_KV]) {
        if (logical(&g[ATTN_ROLE_KV], 1, a)) return ATTN_ROLE_KV;
        s->key[SK] = a[2], s->key[D] = a[3];
    }
    if (run->have[ATTN_ROLE_INDICES]) {
        if (!g[ATTN_ROLE_INDICES].rank) return ATTN_ROLE_INDICES;
        const int rank = g[ATTN_ROLE_INDICES].rank;
        s->key[TOPK] = g[ATTN_ROLE_INDICES].shape[rank - 1];
        if (s->key[SQ] < 0 && rank > 2) s->key[SQ] = g[ATTN_ROLE_INDICES].shape[rank - 3];
        if (s->key[B] < 0 && rank > 3) s->key[B] = g[ATTN_ROLE_INDICES].shape[0];
    }
    return -1;
}

/* Optional tensors and the flag that asks for them. */
static const struct {
    int32_t role;
    uint64_t flag;
} features[] = {{ATTN_ROLE_SINK, ATTN_SINK},
                {ATTN_ROLE_SEQLENS_Q, ATTN_SEQLENS_Q},
                {ATTN_ROLE_SEQLENS_K, ATTN_SEQLENS_K},
                {ATTN_ROLE_CU_SEQLENS_Q, ATTN_PACKED},
                {ATTN_ROLE_CU_SEQLENS_K, ATTN_PACKED},
                {ATTN_ROLE_BLOCK_TABLE, ATTN_PAGED},
                {ATTN_ROLE_TOPK_LENGTH, ATTN_TOPK_LENGTH},
                {ATTN_ROLE_DLSE, ATTN_DLSE}};

static void switch_on(const struct attn_cli_run *run, const struct shapes *s, attn_problem *p) {
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        attn_problem with = *p;
        with.flags |= features[i].flag;
        /* A file of many tensors may hold some for another operator; a tensor named by itself is meant. */
        if (run->have[features[i].role] &&
            (run->files[features[i].role] || attn_problem_check(&with) != ATTN_E_FEATURE))
            *p = with;
    }
    if (run->have[ATTN_ROLE_MASK] && !p->mask_dtype) {
        int32_t dtype = run->given[ATTN_ROLE_MASK].dtype;
        p->mask_dtype = dtype == ATTN_F64 ? ATTN_F32 : dtype; /* additive masks have no f64 */
    }
    if (p->flags & ATTN_PACKED) {
        if (!p->total_q) p->total_q = s->total_q;
        if (!p->total_k && !(p->flags & ATTN_PAGED)) p->total_k = s->total_k;
    }
    if (p->flags & ATTN_PAGED) {
        if (!p->page_size) p->page_size = s->page_size;
        if (!p->n_pages) p->n_pages = s->n_pages;
        if (!p->max_pages) p->max_pages = s->max_pages;
    }
}

/* For the arrays that extents are read off. */
static const char *expected_axes(int role, int of_sparse, int rows_first) {
    if (role == ATTN_ROLE_INDICES) return "[batch, rows, 1, topk] (leading axes of extent 1 may be left out)";
    if (of_sparse || rows_first) return "[batch, rows, heads, width], [rows, heads, width] or [rows, width]";
    return "[batch, heads, rows, width], [heads, rows, width] or [rows, width]";
}

int attn_cli_run_complete(struct attn_cli_run *run, const char *text, attn_problem *out) {
    char op[24] = "", full[2048];
    struct shapes s = {.key = {-1, -1, -1, -1, -1, -1, -1, -1}};
    sscanf(text, "%23s", op);
    s.packed = has_word(text, "packed", 0) || run->have[ATTN_ROLE_CU_SEQLENS_Q] || run->have[ATTN_ROLE_CU_SEQLENS_K];
    s.paged = has_word(text, "paged", 0) || run->have[ATTN_ROLE_BLOCK_TABLE];
    int bad = sparse(op) ? infer_sparse(run, &s) : infer_dense(run, &s);
    if (bad >= 0)
        return attn_cli_die(run->command, "%s: given an array of %d ax%s, expected %s", attn_role_name(bad),
                            run->given[bad].rank, run->given[bad].rank == 1 ? "is" : "es",
                            expected_axes(bad, sparse(op), run->bshd));

    int n = snprintf(full, sizeof full, "%s", text);
    for (int i = 0; i < N_KEYS && n < (int)sizeof full; i++)
        if (s.key[i] >= 0 && !has_word(text, keys[i], 1))
            n += snprintf(full + n, sizeof full - (size_t)n, " %s=%lld", keys[i], (long long)s.key[i]);
    static const char *const types[] = {"f32", "f16", "bf16", "f64", "i32", "e4m3"};
    int typed = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) typed |= has_word(text, types[i], 0);
    if (!typed && run->have[ATTN_ROLE_Q] && n < (int)sizeof full) {
        const char *type = attn_dtype_name(run->given[ATTN_ROLE_Q].dtype);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) typed |= !strcmp(type, types[i]);
        if (!typed) return attn_cli_die(run->command, "q: expected a floating-point dtype, given %s", type);
        n += snprintf(full + n, sizeof full - (size_t)n, " %s", type);
    }
    if (n >= (int)sizeof full) return attn_cli_usage(run->command, "the problem text is too long");

    attn_status status = attn_problem_parse(full, out);
    if (status) {
        attn_cli_library(run->command, status, "problem \"%s\"", full);
        return ATTN_CLI_USAGE;
    }
    switch_on(run, &s, out);
    status = attn_problem_check(out);
    return status ? attn_cli_library(run->command, status, "problem \"%s\"", full) : ATTN_CLI_OK;
}
