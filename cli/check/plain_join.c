/* SPDX-License-Identifier: MIT
 * The tester's own joined lists, from docs/joined_lists.md: shares nothing with the library but that page. Each slot is
 * a tuple (use, key, query, slot); sorted tuples give the entries, sorted entries the words of a group. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER = 32, BLOCK = 64, PAD = 128, VALID = 16 };

struct use_of_key {
    int64_t use, half, key, query, slot, entry;
};

static int compare(int64_t a, int64_t b) { return (a > b) - (a < b); }
static int by_entry(const void *a, const void *b) {
    const struct use_of_key *x = a, *y = b;
    int c = compare(x->use, y->use);
    if (!c) c = compare(x->half, y->half);
    if (!c) c = compare(x->key, y->key);
    return c ? c : compare(x->query, y->query);
}

/* Valid slots of a group, each with the number of the query's earlier slots of that key. */
static int64_t list_uses(const struct check_case *c, int64_t b, int64_t first, int64_t queries, struct use_of_key *u) {
    int64_t n = 0;
    for (int64_t q = 0; q < queries; q++) {
        const int64_t start = n;
        for (int64_t t = 0, key; t < c->p.topk; t++) {
            if (!attn_cli_check_slot(c, b, first + q, t, &key)) continue;
            int64_t use = 0;
            for (int64_t x = start; x < n; x++) use += u[x].key == key;
            u[n++] = (struct use_of_key){.use = use, .key = key, .query = q, .slot = t};
        }
    }
    return n;
}

static bool one_entry(const struct use_of_key *a, const struct use_of_key *b) {
    return a->use == b->use && a->key == b->key;
}

/* Tuples in the order of their entries, which they get the numbers of. Returns how many entries there are. */
static int64_t number(struct use_of_key *u, int64_t n, int64_t group) {
    qsort(u, (size_t)n, sizeof *u, by_entry); /* half is 0 yet: tuples of an entry come together */
    for (int64_t x = 0, end; x < n; x = end) {
        bool first = false, second = false;
        for (end = x; end < n && one_entry(&u[x], &u[end]); end++)
            u[end].query < group / 2 ? (first = true) : (second = true);
        for (int64_t y = x; y < end; y++) u[y].half = first && second ? 0 : first ? 1 : 2;
    }
    qsort(u, (size_t)n, sizeof *u, by_entry);
    int64_t entries = 0;
    for (int64_t x = 0; x < n; x++) u[x].entry = x > 0 && one_entry(&u[x - 1], &u[x]) ? entries - 1 : entries++;
    return entries;
}

struct group_words {
    double *word;
    uint8_t *kind;
};
static void put(struct group_words *g, int64_t word, double value) {
    g->word[word] = value;
    g->kind[word] = CHECK_ROW_NORMAL;
}
/* Words are int32; bits and pairs of 16 bits are put together without a sign. */
static double add_bits(double word, uint64_t bits) {
    const uint32_t sum = (uint32_t)(int32_t)word | (uint32_t)bits;
    return (double)(int32_t)sum;
}

static void write_group(const attn_problem *p, struct group_words *g, const struct use_of_key *u, int64_t n,
                        int64_t queries, int64_t entries) {
    const int64_t most = (p->group * p->topk + PAD - 1) / PAD * PAD, padded = (entries + PAD - 1) / PAD * PAD;
    const int64_t bits = HEADER + most, slots = bits + most / BLOCK * p->group * 2, row = (p->topk + 7) / 8 * 4;
    for (int64_t w = 0; w < HEADER; w++) put(g, w, 0);
    put(g, 0, (double)entries);
    put(g, 1, p->union_limit && entries > p->union_limit);
    put(g, 2, (double)queries);
    for (int64_t x = 0; x < n; x++) g->word[VALID + u[x].query]++;
    if (g->word[1] != 0) return;
    for (int64_t e = 0; e < padded; e++) put(g, HEADER + e, -1);
    for (int64_t w = 0; w < padded / BLOCK * p->group * 2; w++) put(g, bits + w, 0);
    for (int64_t w = 0; w < queries * row; w++) put(g, slots + w, -1);
    for (int64_t x = 0; x < n; x++) {
        const int64_t e = u[x].entry, q = u[x].query, t = u[x].slot;
        double *bit = &g->word[bits + (e / BLOCK * p->group + q) * 2 + e % BLOCK / 32],
               *slot = &g->word[slots + q * row + t / 2];
        g->word[HEADER + e] = (double)u[x].key;
        *bit = add_bits(*bit, UINT64_C(1) << e % 32);
        const uint32_t other = (uint32_t)(int32_t)*slot & (t % 2 ? 0xffffu : 0xffff0000u);
        *slot = (double)(int32_t)(other | (uint32_t)e << (t % 2 ? 16 : 0));
    }
}

int attn_cli_check_plain_join(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_want *w = &c->want[ATTN_ROLE_JOINED];
    const attn_tensor *view = &c->t[ATTN_ROLE_JOINED].view;
    const int64_t groups = (p->seq_q + p->group - 1) / p->group, words = view->shape[view->rank - 1];
    struct use_of_key *u = malloc(((size_t)(p->group * p->topk) + 1) * sizeof *u);
    if (!u) return -1;
    memset(w->kind, CHECK_ROW_UNWRITTEN, (size_t)w->rows);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t first = group * p->group, at_word = (b * groups + group) * words;
            const int64_t queries = p->seq_q - first < p->group ? p->seq_q - first : p->group;
            const int64_t n = list_uses(c, b, first, queries, u);
            struct group_words g = {w->plain + at_word, w->kind + at_word};
            write_group(p, &g, u, n, queries, number(u, n, p->group));
        }
    free(u);
    return 0;
}
