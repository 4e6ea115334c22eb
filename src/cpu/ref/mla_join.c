/* SPDX-License-Identifier: MIT
 * Joined lists, reference (docs/joined_lists.md). A task is one group: its valid slots are sorted by key, query and
 * slot, which numbers a query's uses of a key; the entries are sorted by use, half and key; each slot's entry is looked
 * up. */
#include "core/joined.h"
#include "cpu/ref/mla.h"

#include <string.h>

struct job {
    const struct attn_cpu_ref_sparse *m;
    struct attn_core_joined layout;
    struct attn_view joined;
};

struct layout {
    int64_t slots, entries, key, end;
};

static struct layout lay_out(const attn_problem *p) {
    struct layout offsets = {0};
    offsets.slots = attn_cpu_ref_take(&offsets.end, p->group * p->topk);
    offsets.entries = attn_cpu_ref_take(&offsets.end, p->group * p->topk);
    offsets.key = attn_cpu_ref_take(&offsets.end, attn_cpu_ref_slot_doubles(p));
    return offsets;
}

int64_t attn_cpu_ref_mla_join_doubles(const attn_problem *p) { return lay_out(p).end; }

/* Ascending; a heap, so that nothing is allocated and the time has a bound. */
static void sift(uint64_t *x, int64_t root, int64_t n) {
    const uint64_t value = x[root];
    for (int64_t child; (child = 2 * root + 1) < n; root = child) {
        child += child + 1 < n && x[child + 1] > x[child];
        if (x[child] <= value) break;
        x[root] = x[child];
    }
    x[root] = value;
}
static void sort(uint64_t *x, int64_t n) {
    for (int64_t root = n / 2; root-- > 0;) sift(x, root, n);
    for (int64_t last = n; last-- > 1;) {
        const uint64_t value = x[0];
        x[0] = x[last];
        x[last] = value;
        sift(x, 0, last);
    }
}

/* A slot: key (31 bits), query of the group (4), slot (14). */
static uint64_t slot_of(uint64_t key, int64_t query, int64_t t) {
    return key << 18 | (uint64_t)query << 14 | (uint64_t)t;
}
static int64_t key_of(uint64_t slot) { return (int64_t)(slot >> 18); }
static int64_t query_of(uint64_t slot) { return (int64_t)(slot >> 14 & 15); }

/* An entry: use (14 bits), half (2), key (31), bits of the queries (16). Their order is that of the entries. */
static uint64_t entry_of(uint64_t use, uint64_t key, uint64_t bits, int64_t group) {
    const uint64_t first = bits & ((UINT64_C(1) << group / 2) - 1), second = bits >> group / 2;
    const uint64_t half = first && second ? 0 : first ? 1 : 2;
    return use << 49 | half << 47 | key << 16 | bits;
}

/* Slots of one key from x on: returns where the next key begins, and the number of uses of each query. */
static int64_t run_of(const uint64_t *slots, int64_t n, int64_t x, int64_t uses[ATTN_JOINED_MAX_GROUP]) {
    const int64_t key = key_of(slots[x]);
    memset(uses, 0, ATTN_JOINED_MAX_GROUP * sizeof *uses);
    for (; x < n && key_of(slots[x]) == key; ++x) uses[query_of(slots[x])]++;
    return x;
}
static uint64_t bits_of(const int64_t uses[ATTN_JOINED_MAX_GROUP], int64_t use) {
    uint64_t bits = 0;
    for (int q = 0; q < ATTN_JOINED_MAX_GROUP; ++q) bits |= (uint64_t)(uses[q] > use) << q;
    return bits;
}

static int64_t list_entries(const uint64_t *slots, int64_t n, int64_t group, uint64_t *entries) {
    int64_t uses[ATTN_JOINED_MAX_GROUP], n_entries = 0;
    for (int64_t x = 0, end; x < n; x = end) {
        uint64_t bits;
        end = run_of(slots, n, x, uses);
        for (int64_t use = 0; (bits = bits_of(uses, use)) != 0; ++use)
            entries[n_entries++] = entry_of((uint64_t)use, (uint64_t)key_of(slots[x]), bits, group);
    }
    sort(entries, n_entries);
    return n_entries;
}

static int64_t find(const uint64_t *entries, int64_t n, uint64_t entry) {
    int64_t low = 0;
    for (int64_t high = n; low < high;) {
        const int64_t middle = low + (high - low) / 2;
        if (entries[middle] < entry)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void write_entries(const struct attn_core_joined *l, int64_t group, const uint64_t *entries, int64_t n,
                          int32_t *out) {
    const int64_t padded = attn_cpu_ref_blocks(n, ATTN_JOINED_PAD) * ATTN_JOINED_PAD;
    memset(out + l->bits, 0, (size_t)(padded / ATTN_JOINED_BLOCK * 2 * group) * sizeof *out);
    for (int64_t e = 0; e < padded; ++e) out[l->keys + e] = e < n ? (int32_t)(entries[e] >> 16 & INT32_MAX) : -1;
    for (int64_t e = 0; e < n; ++e)
        for (int64_t q = 0; q < group; ++q) {
            const int64_t word = (e / ATTN_JOINED_BLOCK * group + q) * 2 + e % ATTN_JOINED_BLOCK / 32;
            out[l->bits + word] |= (int32_t)((entries[e] >> q & 1) << e % 32);
        }
}

static void write_slots(const struct attn_core_joined *l, const attn_problem *p, int64_t queries, const uint64_t *slots,
                        int64_t n, const uint64_t *entries, int64_t n_entries, int32_t *out) {
    uint16_t *map = (uint16_t *)(out + l->slots);
    int64_t uses[ATTN_JOINED_MAX_GROUP];
    for (int64_t x = 0; x < queries * l->slots_row * 2; ++x) map[x] = ATTN_JOINED_NO_SLOT;
    for (int64_t x = 0, end; x < n; x = end) {
        int64_t use = 0;
        end = run_of(slots, n, x, uses);
        for (int64_t y = x; y < end; ++y) {
            const int64_t q = query_of(slots[y]);
            use = y > x && query_of(slots[y - 1]) == q ? use + 1 : 0;
            const uint64_t entry = entry_of((uint64_t)use, (uint64_t)key_of(slots[y]), bits_of(uses, use), p->group);
            map[q * l->slots_row * 2 + (int64_t)(slots[y] & 0x3fff)] = (uint16_t)find(entries, n_entries, entry);
        }
    }
}

static void run_task(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const attn_problem *p = job->m->p;
    const struct layout offsets = lay_out(p);
    const int64_t b = task / job->layout.groups, group = task % job->layout.groups, first = group * p->group;
    const int64_t queries = p->seq_q - first < p->group ? p->seq_q - first : p->group;
    uint64_t *slots = (uint64_t *)(scratch + offsets.slots), *entries = (uint64_t *)(scratch + offsets.entries);
    int32_t *key = (int32_t *)(scratch + offsets.key), *out = (int32_t *)attn_view_row(&job->joined, b, 0, group);
    int64_t n = 0;
    memset(out, 0, ATTN_JOINED_HEADER * sizeof *out);
    for (int64_t q = 0; q < queries; ++q) {
        attn_cpu_ref_slots(job->m, b, first + q, key);
        for (int64_t t = 0; t < p->topk; ++t) {
            if (key[t] < 0) continue;
            slots[n++] = slot_of((uint64_t)key[t], q, t);
            out[ATTN_JOINED_VALID + q]++;
        }
    }
    sort(slots, n);
    const int64_t n_entries = list_entries(slots, n, p->group, entries);
    out[0] = (int32_t)n_entries;
    out[ATTN_JOINED_QUERIES] = (int32_t)queries;
    if (p->union_limit && n_entries > p->union_limit) {
        out[ATTN_JOINED_FLAGS] = ATTN_JOINED_APART;
        return;
    }
    write_entries(&job->layout, p->group, entries, n_entries, out);
    write_slots(&job->layout, p, queries, slots, n, entries, n_entries, out);
}

attn_status attn_cpu_ref_mla_join(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args) {
    (void)k;
    struct attn_cpu_ref_sparse m;
    if (p->batch <= 0 || p->seq_q <= 0) return ATTN_OK;
    attn_cpu_ref_sparse_init(&m, p, args);
    const struct job job = {&m, attn_core_joined_layout(p), attn_core_view(p, args, ATTN_ROLE_JOINED)};
    const struct attn_cpu_ref_tasks tasks = {p->batch * job.layout.groups, lay_out(p).end, run_task, &job};
    attn_cpu_ref_run(dev, args, &tasks);
    return ATTN_OK;
}
