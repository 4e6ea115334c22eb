/* SPDX-License-Identifier: MIT
 * Joined lists on the CPU (docs/joined_lists.md). A task is one group. Its valid slots, taken query by query, are
 * sorted by key by a stable radix sort, so that the slots of a key stand by query and, within a query, in their order:
 * that numbers a query's uses of a key. Entries of one use and half then have ascending keys, and counting them gives
 * their places. Workspace per thread: 16 bytes a slot of a group, and 4 for each kind of entry. */
#include "attn.h"
#include "core/joined.h"
#include "core/problem.h"
#include "cpu/sparse/gather.h"

#include <string.h>

enum {
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS,
    KINDS = 3 /* of entries: of both queries' parts, the first, the second */
};

struct slot {
    int32_t key;
    uint16_t query, t;
};

struct lists_job {
    const attn_problem *p;
    const attn_args *a;
    struct attn_core_joined layout;
    struct attn_view joined;
    int32_t digits; /* of a key */
    int64_t n_tasks;
    struct attn_cpu_counter next;
};

struct layout {
    uint64_t slots, sorted, places, count, bytes;
};

static struct layout lay_out(const attn_problem *p) {
    struct layout l = {0};
    l.slots = mla_take(&l.bytes, p->group * p->topk * (int64_t)sizeof(struct slot));
    l.sorted = mla_take(&l.bytes, p->group * p->topk * (int64_t)sizeof(struct slot));
    l.places = mla_take(&l.bytes, KINDS * p->topk * (int64_t)sizeof(int32_t)); /* of a use and half */
    l.count = mla_take(&l.bytes, DIGITS * (int64_t)sizeof(int32_t));
    return l;
}

static int32_t crew_of(const attn_problem *p, int32_t threads) {
    enum { SLOT_FLOPS = 100 }; /* operations of that time */
    const double slots = (double)p->batch * (double)p->seq_q * (double)p->topk;
    const int32_t crew = attn_cpu_crew(threads, SLOT_FLOPS * slots, 0, 1e9);
    return attn_cpu_at_most(crew, p->batch * attn_core_joined_layout(p).groups);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return lay_out(p).bytes * (uint64_t)crew_of(p, dev->threads);
}

/* Stable, by one digit of the keys from `shift` on. */
static void sort_digit(const struct slot *from, int64_t n, int shift, int32_t *count, struct slot *to) {
    memset(count, 0, DIGITS * sizeof *count);
    for (int64_t x = 0; x < n; ++x) count[from[x].key >> shift & (DIGITS - 1)]++;
    for (int32_t digit = 0, sum = 0; digit < DIGITS; ++digit) {
        const int32_t number = count[digit];
        count[digit] = sum;
        sum += number;
    }
    for (int64_t x = 0; x < n; ++x) to[count[from[x].key >> shift & (DIGITS - 1)]++] = from[x];
}

/* The slots of one key: of each query the first in the sorted array, and how many. */
struct run {
    int64_t first[ATTN_JOINED_MAX_GROUP];
    int32_t uses[ATTN_JOINED_MAX_GROUP];
};
static int64_t run_of(const struct slot *slots, int64_t n, int64_t x, struct run *run) {
    const int32_t key = slots[x].key;
    memset(run->uses, 0, sizeof run->uses);
    for (; x < n && slots[x].key == key; ++x)
        if (run->uses[slots[x].query]++ == 0) run->first[slots[x].query] = x;
    return x;
}
static uint32_t bits_of(const struct run *run, int64_t group, int32_t use) {
    uint32_t bits = 0;
    for (int64_t q = 0; q < group; ++q) bits |= (uint32_t)(run->uses[q] > use) << q;
    return bits;
}
static int half_of(uint32_t bits, int64_t group) {
    const uint32_t first = bits & ((1u << group / 2) - 1), second = bits >> group / 2;
    return first && second ? 0 : first ? 1 : 2;
}

/* Numbers of entries by use and half become their first places. Returns how many entries there are. */
static int64_t count_entries(const struct slot *slots, int64_t n, int64_t group, int32_t *places, int64_t topk) {
    struct run run;
    uint32_t bits;
    int64_t sum = 0;
    memset(places, 0, (size_t)(KINDS * topk) * sizeof *places);
    for (int64_t x = 0, end; x < n; x = end) {
        end = run_of(slots, n, x, &run);
        for (int32_t use = 0; use < topk && (bits = bits_of(&run, group, use)) != 0; ++use)
            places[use * KINDS + half_of(bits, group)]++;
    }
    for (int64_t kind = 0; kind < KINDS * topk; ++kind) {
        const int32_t number = places[kind];
        places[kind] = (int32_t)sum;
        sum += number;
    }
    return sum;
}

static void place_entries(const struct attn_core_joined *l, const struct slot *slots, int64_t n, int64_t group,
                          int32_t *places, int64_t topk, int32_t *out) {
    uint16_t *map = (uint16_t *)(out + l->slots);
    struct run run;
    uint32_t bits;
    for (int64_t x = 0, end; x < n; x = end) {
        end = run_of(slots, n, x, &run);
        for (int32_t use = 0; use < topk && (bits = bits_of(&run, group, use)) != 0; ++use) {
            const int32_t e = places[use * KINDS + half_of(bits, group)]++;
            int32_t *block = out + l->bits + e / ATTN_JOINED_BLOCK * group * 2 + e % ATTN_JOINED_BLOCK / 32;
            out[l->keys + e] = slots[x].key;
            for (int64_t q = 0; q < group; ++q) {
                if (!(bits >> q & 1)) continue;
                const struct slot *slot = &slots[run.first[q] + use];
                block[q * 2] |= (int32_t)(1u << e % 32);
                map[q * l->slots_row * 2 + slot->t] = (uint16_t)e;
            }
        }
    }
}

static void task(const struct lists_job *j, const struct layout *l, char *ws, int64_t number) {
    const attn_problem *p = j->p;
    const int64_t b = number / j->layout.groups, group = number % j->layout.groups, first = group * p->group;
    const int64_t queries = mla_min(p->seq_q - first, p->group);
    struct slot *slots = (struct slot *)(ws + l->slots), *sorted = (struct slot *)(ws + l->sorted);
    int32_t *places = (int32_t *)(ws + l->places), *count = (int32_t *)(ws + l->count);
    int32_t *out = (int32_t *)attn_view_row(&j->joined, b, 0, group);
    int64_t n = 0;
    memset(out, 0, ATTN_JOINED_HEADER * sizeof *out);
    for (int64_t q = 0; q < queries; ++q) {
        const struct mla_query query = attn_cpu_mla_query(p, j->a, b, first + q);
        const int64_t before = n;
        for (int64_t t = 0; t < query.n_slots; ++t) {
            if (query.idx[t] < 0 || query.idx[t] >= query.n_keys) continue;
            slots[n++] = (struct slot){query.idx[t], (uint16_t)q, (uint16_t)t};
        }
        out[ATTN_JOINED_VALID + q] = (int32_t)(n - before);
    }
    for (int32_t digit = 0; digit < j->digits; ++digit) {
        sort_digit(slots, n, digit * DIGIT_BITS, count, sorted);
        struct slot *other = slots;
        slots = sorted, sorted = other;
    }
    const int64_t n_entries = count_entries(slots, n, p->group, places, p->topk);
    out[0] = (int32_t)n_entries;
    out[ATTN_JOINED_QUERIES] = (int32_t)queries;
    if (p->union_limit && n_entries > p->union_limit) {
        out[ATTN_JOINED_FLAGS] = ATTN_JOINED_APART;
        return;
    }
    const int64_t padded = mla_round(n_entries, ATTN_JOINED_PAD);
    for (int64_t e = n_entries; e < padded; ++e) out[j->layout.keys + e] = -1;
    memset(out + j->layout.bits, 0, (size_t)(padded / ATTN_JOINED_BLOCK * 2 * p->group) * sizeof *out);
    memset(out + j->layout.slots, 0xff, (size_t)(queries * j->layout.slots_row) * sizeof *out);
    place_entries(&j->layout, slots, n, p->group, places, p->topk, out);
}

static void job(void *arg, int32_t worker) {
    struct lists_job *j = arg;
    const struct layout l = lay_out(j->p);
    char *ws = (char *)j->a->workspace + l.bytes * (uint64_t)worker;
    for (int64_t number; (number = attn_cpu_next(&j->next)) < j->n_tasks;) task(j, &l, ws, number);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    (void)k;
    struct lists_job j = {.p = p, .a = args, .layout = attn_core_joined_layout(p)};
    j.n_tasks = p->batch * j.layout.groups;
    if (j.n_tasks <= 0) return ATTN_OK;
    j.joined = attn_core_view(p, args, ATTN_ROLE_JOINED);
    for (int bits = 0; bits < 31 && (p->seq_k - 1) >> bits > 0; bits += DIGIT_BITS) j.digits++;
    attn_cpu_pool_run(attn_cpu_pool_of(dev), crew_of(p, dev->threads), job, &j);
    return ATTN_OK;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    (void)k, (void)dev, (void)p, (void)why;
    return 1;
}

/* Some 15 ns a slot. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)k, (void)amount;
    return 1e-6 + 15e-9 * (double)p->batch * (double)p->seq_q * (double)p->topk / crew_of(p, dev->threads);
}

const struct attn_kernel attn_cpu_mla_join_rows[] = {
    {.name = "attn_mla_join_c_i32_any",
     .arch = "c",
     .summary = "groups of 2, 4, 8 or 16 queries, any indices and strides; a stable radix sort for each group",
     .op = ATTN_OP_MLA_JOIN,
     .backend = ATTN_BACKEND_CPU,
     .dtype = ATTN_I32,
     .math_dtype = ATTN_I32,
     .accumulator_dtype = ATTN_I32,
     .device_type = ATTN_DEVICE_TYPE_CPU,
     .deterministic = 1,
     .bit_stable = 1,
     .features = ATTN_CPU_C,
     .supports = supports,
     .estimate = estimate,
     .workspace = workspace,
     .launch = launch},
};
const int32_t attn_cpu_n_mla_join_rows = sizeof attn_cpu_mla_join_rows / sizeof attn_cpu_mla_join_rows[0];
