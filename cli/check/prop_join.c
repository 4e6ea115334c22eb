/* SPDX-License-Identifier: MIT
 * Properties of joined lists: what a kernel has written is decoded and counted, without a reference. */
#include "prop.h"

#include <stdlib.h>
#include <string.h>

static attn_problem random_problem(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    p.heads_q = p.heads_k = p.dim_qk = p.dim_v = 0;
    p.group = INT64_C(2) << prop_below(r, 4);
    p.seq_q = 1 + prop_below(r, 3 * p.group);
    if (prop_below(r, 2)) p.flags |= ATTN_TOPK_LENGTH;
    if (prop_below(r, 2)) {
        p.flags |= ATTN_CAUSAL;
        p.k_stride = 1 + 3 * prop_below(r, 2);
        p.q_start = prop_below(r, 2 * p.seq_k);
    }
    return p;
}

/* Lists as the seed gives them or a walk, some keys named again, some slots invalid. */
static int make(struct prop_run *r, struct attn_cli_tensors *set, const attn_problem *p) {
    static const struct attn_cli_overlap walk = {.kind = ATTN_CLI_OVERLAP_WALK, .j = 0.8};
    if (attn_cli_prop_make(r, set, p, r->seed)) return PROP_FAIL;
    int32_t *slot = set->memory[ATTN_ROLE_INDICES];
    const int64_t n = attn_cli_prop_count(set, ATTN_ROLE_INDICES);
    if (prop_below(r, 2) && attn_cli_overlap_fill(&walk, p, slot, r->seed)) return PROP_FAIL;
    const int again = prop_below(r, 2) != 0, bad = prop_below(r, 2) != 0;
    for (int64_t x = 1; x < n; x++) {
        if (again && x % p->topk && prop_below(r, 4) == 0) slot[x] = slot[x - 1 - prop_below(r, x % p->topk)];
        if (bad && prop_below(r, 5) == 0) slot[x] = prop_below(r, 2) ? -1 : (int32_t)p->seq_k;
    }
    return 0;
}

/* A group's words, and where its parts lie. */
struct decoded {
    const attn_problem *p;
    const int32_t *word, *indices, *length;
    int64_t b, first, queries, keys, bits, slots, row;
};
static int64_t groups_of(const attn_problem *p) { return p->batch * ((p->seq_q + p->group - 1) / p->group); }
static int64_t words_of(const struct attn_cli_tensors *set) {
    const attn_tensor *t = &set->tensor[ATTN_ROLE_JOINED];
    return t->shape[t->rank - 1];
}
static struct decoded decode(const struct attn_cli_tensors *set, int64_t number) {
    const attn_problem *p = &set->problem;
    const int64_t groups = (p->seq_q + p->group - 1) / p->group, most = (p->group * p->topk + 127) / 128 * 128;
    struct decoded d = {
        .p = p, .indices = set->memory[ATTN_ROLE_INDICES], .length = set->memory[ATTN_ROLE_TOPK_LENGTH]};
    d.word = (const int32_t *)set->memory[ATTN_ROLE_JOINED] + number * words_of(set);
    d.b = number / groups, d.first = number % groups * p->group;
    d.queries = p->seq_q - d.first < p->group ? p->seq_q - d.first : p->group;
    d.keys = 32, d.bits = d.keys + most, d.slots = d.bits + most / 64 * 2 * p->group, d.row = (p->topk + 7) / 8 * 4;
    return d;
}
static int bit_of(const struct decoded *d, int64_t entry, int64_t q) {
    return (uint32_t)d->word[d->bits + (entry / 64 * d->p->group + q) * 2 + entry % 64 / 32] >> entry % 32 & 1;
}
static int64_t entry_of(const struct decoded *d, int64_t q, int64_t t) {
    return (uint32_t)d->word[d->slots + q * d->row + t / 2] >> (t % 2 * 16) & 0xffff;
}
static int valid(const struct decoded *d, int64_t q, int64_t t, int32_t *key) {
    const attn_problem *p = d->p;
    const int64_t row = d->b * p->seq_q + d->first + q, stride = p->k_stride ? p->k_stride : 1;
    *key = d->indices[row * p->topk + t];
    if ((d->length && t >= d->length[row]) || *key < 0 || *key >= p->seq_k) return 0;
    return !(p->flags & ATTN_CAUSAL) || p->q_start + d->first + q + 1 >= stride * (*key + (int64_t)1);
}

/* Each valid slot has an entry of its key with its query's bit, no two of a query the same one, and no bit is left. */
static int check_group(struct prop_run *r, const struct decoded *d, uint8_t *taken, int32_t *count) {
    const attn_problem *p = d->p;
    const int64_t n = d->word[0];
    int64_t slots = 0, bits = 0, expected = 0;
    if (n < 0 || n > p->group * p->topk || d->word[1] || d->word[2] != d->queries)
        return attn_cli_prop_failed(r, "a header has %d entries, flags %d, %d queries", d->word[0], d->word[1],
                                    d->word[2]);
    memset(taken, 0, (size_t)(n * p->group) + 1);
    memset(count, 0, (size_t)((p->seq_k + 1) * (p->group + 1)) * sizeof *count);
    for (int64_t q = 0; q < d->queries; q++)
        for (int64_t t = 0; t < d->row * 2; t++) {
            int32_t key = -1;
            const int64_t e = entry_of(d, q, t);
            if (t >= p->topk || !valid(d, q, t, &key)) {
                if (e != 0xffff) return attn_cli_prop_failed(r, "an invalid slot has entry %d", (int)e);
                continue;
            }
            slots++;
            if (e >= n) return attn_cli_prop_failed(r, "a slot has entry %d of %d", (int)e, (int)n);
            if (d->word[d->keys + e] != key || !bit_of(d, e, q) || taken[e * p->group + q]++)
                return attn_cli_prop_failed(
                    r, "slot %d of query %d: entry %d has key %d for %d, or its bit is not the slot's", (int)t, (int)q,
                    (int)e, d->word[d->keys + e], key);
            int32_t *most = &count[key * (p->group + 1) + p->group], uses = ++count[key * (p->group + 1) + q];
            if (uses > *most) *most = uses, expected++;
        }
    if (n != expected) return attn_cli_prop_failed(r, "%d entries, expected %d", (int)n, (int)expected);
    for (int64_t e = 0; e < (n + 127) / 128 * 128; e++) {
        int own = 0;
        for (int64_t q = 0; q < p->group; q++) own += bit_of(d, e, q);
        if (e < n ? !own : own || d->word[d->keys + e] != -1)
            return attn_cli_prop_failed(r, "entry %d of %d has %d bits and key %d", (int)e, (int)n, own,
                                        d->word[d->keys + e]);
        bits += own;
    }
    return bits == slots ? 0 : attn_cli_prop_failed(r, "%d bits for %d valid slots", (int)bits, (int)slots);
}

static int each_slot_once(struct prop_run *r) {
    const attn_problem p = random_problem(r);
    struct attn_cli_tensors set;
    if (make(r, &set, &p)) return PROP_FAIL;
    uint8_t *taken = malloc((size_t)(p.group * p.topk * p.group) + 1);
    int32_t *count = malloc((size_t)((p.seq_k + 1) * (p.group + 1)) * sizeof *count);
    int got = taken && count ? attn_cli_prop_execute(r, &set, NULL) : attn_cli_prop_failed(r, "out of memory");
    for (int64_t g = 0; !got && g < groups_of(&p); g++) {
        const struct decoded d = decode(&set, g);
        got = check_group(r, &d, taken, count);
    }
    free(taken), free(count);
    attn_cli_tensors_destroy(&set);
    return got;
}

/* Slots in another order: the same entries in the same order, bits included. */
static int order_of_slots(struct prop_run *r) {
    const attn_problem p = random_problem(r);
    struct attn_cli_tensors x, y;
    if (make(r, &x, &p)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &p, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    const int32_t *from = x.memory[ATTN_ROLE_INDICES], *length = x.memory[ATTN_ROLE_TOPK_LENGTH];
    for (int64_t row = 0; row < p.batch * p.seq_q; row++) { /* those before the length turn round, the others stay */
        const int64_t n = length && length[row] < p.topk ? length[row] : p.topk, turn = prop_below(r, n);
        int32_t *to = (int32_t *)y.memory[ATTN_ROLE_INDICES] + row * p.topk;
        for (int64_t t = 0; t < p.topk; t++) to[t] = from[row * p.topk + (t < n ? (t + turn) % n : t)];
    }
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    for (int64_t g = 0; !got && g < groups_of(&p); g++) {
        const struct decoded a = decode(&x, g), b = decode(&y, g);
        const int64_t padded = (a.word[0] + 127) / 128 * 128;
        if (memcmp(a.word, b.word, 32 * 4) || memcmp(a.word + a.keys, b.word + a.keys, (size_t)padded * 4) ||
            memcmp(a.word + a.bits, b.word + a.bits, (size_t)(padded / 64 * 2 * p.group) * 4))
            got = attn_cli_prop_failed(r, "entries of group %d depend on the order of slots", (int)g);
    }
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* With a limit, groups over it say so and no more; the others are as without one. */
static int limited(struct prop_run *r) {
    const attn_problem p = random_problem(r);
    attn_problem q = p;
    q.union_limit = 1 + prop_below(r, 2 * p.topk);
    struct attn_cli_tensors x, y;
    if (make(r, &x, &p)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    memcpy(y.memory[ATTN_ROLE_INDICES], x.memory[ATTN_ROLE_INDICES], (size_t)x.tensor[ATTN_ROLE_INDICES].bytes);
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    for (int64_t g = 0; !got && g < groups_of(&p); g++) {
        const struct decoded a = decode(&x, g), b = decode(&y, g);
        const int apart = a.word[0] > q.union_limit;
        if (b.word[0] != a.word[0] || b.word[1] != apart || memcmp(a.word + 2, b.word + 2, 30 * 4))
            got = attn_cli_prop_failed(r, "header of group %d: %d entries, flags %d, limit %d", (int)g, b.word[0],
                                       b.word[1], (int)q.union_limit);
        const size_t rest = (size_t)(words_of(&x) - 32) * 4;
        if (!got && !apart && memcmp(a.word + 32, b.word + 32, rest))
            got = attn_cli_prop_failed(r, "group %d differs without being apart", (int)g);
    }
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

const struct prop attn_cli_props_join[] = {
    {"each valid slot is one bit of one entry", ATTN_OP_MLA_JOIN, each_slot_once, 0},
    {"entries do not depend on the order of slots", ATTN_OP_MLA_JOIN, order_of_slots, 0},
    {"a limit leaves groups apart", ATTN_OP_MLA_JOIN, limited, 0},
    {0},
};
