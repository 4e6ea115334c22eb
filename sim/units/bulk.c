/* SPDX-License-Identifier: MIT
 * Bulk copies (cp.async.bulk, with tensor maps or plain, cp.reduce.async.bulk, st.async, red.async) and their groups:
 * from the words and the lane's addresses to a transfer. */
#include "checks/report.h"
#include "machine/address.h"
#include "units/transfer.h"

#include <stdlib.h>
#include <string.h>

enum { TENSOR = 1, MULTICAST = 2, REDUCE = 4, GATHER = 8, PAIR = 16 };
enum { PREFETCH = SIM_FROM_REGISTERS + 1 };

/* An address in the list: place, offset, 1 if the register has 64 bits. */
enum { ADDRESS_WORDS = 4 };
static void add_address(struct sim_decoder *d, struct sim_ins *in, const struct ptx_operand *o) {
    sim_address(d, in, o, 0);
    sim_list_add(d, in->o[0]);
    sim_list_add(d, (uint32_t)in->imm);
    sim_list_add(d, (uint32_t)((uint64_t)in->imm >> 32));
    sim_list_add(d, in->wide);
}
static uint64_t address(const struct sim_warp *w, const struct sim_ins *in, uint32_t which, uint32_t l) {
    const uint32_t *a = w->list + in->list + which * ADDRESS_WORDS;
    uint64_t offset = (uint64_t)a[2] << 32 | a[1];
    return a[3] ? W64(a[0])[l] + offset : (uint32_t)(W32(a[0])[l] + (uint32_t)offset);
}

/* ---- groups ---- */

SIM_HEAD(commit) {
    struct sim_warp_hopper *h = w->hopper;
    (void)in;
    EACH_OF(m) h->bulk_times[l][h->bulk_committed[l]++ % SIM_RING] = h->bulk_time;
    h->bulk_time++;
    return SIM_NEXT;
}
SIM_HEAD(wait_group) { /* x: .read */
    struct sim_warp_hopper *h = w->hopper;
    const struct sim_actors *a = &w->cta->cluster->hopper->actors;
    EACH_OF(m) {
        if (h->bulk_committed[l] <= (uint32_t)in->imm) continue;
        uint32_t end = h->bulk_committed[l] - (uint32_t)in->imm;
        if (sim_flight_wait(w, SIM_FLIGHT_BULK_GROUP, l, end, in->x)) return SIM_FAULT;
        if (end > h->bulk_seen[l]) h->bulk_seen[l] = end;
        sim_learn(w, a->bulk + w->actor, h->bulk_times[l][(end - 1) % SIM_RING]);
        if (!in->x) sim_learn(w, a->stores + w->actor, h->bulk_times[l][(end - 1) % SIM_RING]);
    }
    return SIM_NEXT;
}

/* ---- copies ---- */

/* A copy of the map: parameters stand anywhere. 0, or -1 after a finding. */
static int map_at(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t address,
                  struct sim_tensor_map *map) {
    const struct sim_launch *g = w->cta->cluster->launch;
    const void *from = NULL;
    if ((address & SIM_WINDOW_MASK) == SIM_WINDOW_PARAM) {
        uint64_t offset = address & ~SIM_WINDOW_MASK;
        if (offset + SIM_TENSOR_MAP_BYTES <= g->program->kernel->param_bytes) from = g->params + offset;
    } else if (!(address & SIM_WINDOW_MASK)) {
        if (sim_global_at(w, in, l, address, SIM_TENSOR_MAP_BYTES, 64, "reads the tensor map of")) return -1;
        from = (const void *)(uintptr_t)address;
    }
    if (from && !(address & 63) && sim_tensor_read(from, map)) return 0;
    sim_find(w, in, 1u << l, SIM_F_BOUNDS, "no tensor map, or none on a multiple of 64, at 0x%llx",
             (unsigned long long)address);
    return -1;
}
static int shared_place(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t address, uint32_t align,
                        struct sim_cta **owner, uint32_t *offset) {
    *owner = sim_shared_named(w, in, l, address, 1, align, offset);
    return *owner ? 0 : -1;
}

/* op: add, min, max, and, or, xor */
static int can_reduce(enum ptx_type type, uint32_t op) {
    if (type == PTX_F16 || type == PTX_BF16) return op <= 2;
    if (type == PTX_F32 || type == PTX_F64) return op == 0;
    if (type == PTX_B32 || type == PTX_B64) return op >= 3 && op <= 5;
    return ptx_type_bytes(type) >= 4 && op <= 5;
}
static uint32_t reduction_type(uint32_t tensor_type) {
    static const uint8_t types[SIM_TENSOR_TYPES] = {
        [SIM_TENSOR_U32] = PTX_U32,   [SIM_TENSOR_S32] = PTX_S32,    [SIM_TENSOR_U64] = PTX_U64,
        [SIM_TENSOR_S64] = PTX_S64,   [SIM_TENSOR_F16] = PTX_F16,    [SIM_TENSOR_F32] = PTX_F32,
        [SIM_TENSOR_BF16] = PTX_BF16, [SIM_TENSOR_F32_FTZ] = PTX_F32};
    return types[tensor_type];
}

static struct sim_transfer *tensor_box(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t map) {
    struct sim_tensor_map copy, *m = &copy;
    if (map_at(w, in, l, map, m)) return NULL;
    if (m->interleave || m->step[0] != 1 || (m->nan && m->bytes != 2)) {
        sim_find(w, in, 1u << l, SIM_F_PROTOCOL,
                 "interleaved layouts, element strides of dimension 0 and NaN fill of wide types are not modelled");
        return NULL;
    }
    if (m->rank != in->z) {
        sim_find(w, in, 1u << l, SIM_F_BOUNDS, "%u coordinates for a tensor map of %u dimensions", in->z, m->rank);
        return NULL;
    }
    uint32_t bytes, rows = sim_tensor_rows(m, &bytes), inner = sim_tensor_in_shared(m, m->box[0]);
    const uint32_t gap = sim_tensor_gap(m);
    const uint32_t *places = w->list + in->list + in->n;
    int32_t position[SIM_TENSOR_RANK] = {0};
    for (uint32_t i = 0; i < in->z; i++) position[i] = (int32_t)W32(places[i])[l];
    if (in->x == SIM_TO_GLOBAL && position[0] < 0) { /* this and the next: an H100 calls it an illegal instruction */
        sim_find(w, in, 1u << l, SIM_F_BOUNDS, "a store of a box that begins before its rows, at %d", position[0]);
        return NULL;
    }
    if (gap ? position[0] % 128 : position[0] % (m->type == SIM_TENSOR_U4_PACKED ? 32 : 16 / m->bytes)) {
        sim_find(w, in, 1u << l, SIM_F_ALIGNMENT, "the box begins at element %d of a row, no multiple of %s",
                 position[0], gap ? "128" : "16 bytes");
        return NULL;
    }
    /* cuda.h, cuTensorMapEncodeTiled: "Load only", "Store only" */
    if (m->type == SIM_TENSOR_U4_APART ? in->x == SIM_TO_GLOBAL
                                       : gap && m->swizzle == SIM_SWIZZLE_128B_ATOM_64B && in->x != SIM_TO_GLOBAL) {
        sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "a tensor map of this type and swizzle is for %s alone",
                 in->x == SIM_TO_GLOBAL ? "loads" : "stores");
        return NULL;
    }
    uint32_t boxes = in->y & GATHER ? 4 : 1; /* four rows by number, one behind the other */
    if (boxes > 1 && (rows != 1 || in->x != SIM_TO_SHARED)) {
        sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "gather4 copies boxes of one row to shared memory");
        return NULL;
    }
    struct sim_transfer *t = sim_transfer_new(boxes * rows * ((inner + 15) / 16), boxes * rows * inner);
    for (uint32_t i = 0; i < boxes; i++) {
        uint32_t first = t->n_pieces;
        if (i) position[1] = (int32_t)W32(places[1 + i])[l];
        t->n_pieces += sim_tensor_walk(m, position, t->pieces + first);
        for (uint32_t k = first; k < t->n_pieces; k++) t->pieces[k].shared += i * bytes;
    }
    t->swizzle = m->swizzle, t->gap = gap;
    if (gap) t->bytes = t->bytes / 16 * gap; /* libraries expect the bytes of global memory */
    t->type = reduction_type(m->type);
    if (m->nan) t->fill = 0x7ff7; /* as an H100 does, in f16 and bf16 */
    return t;
}
static struct sim_transfer *range(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t global) {
    uint32_t bytes = W32(in->o[2])[l];
    if (!bytes || bytes % 16 || (in->x != SIM_TO_CLUSTER && global % 16)) {
        sim_find(w, in, 1u << l, SIM_F_ALIGNMENT, "%u bytes at 0x%llx: multiples of 16 are copied", bytes,
                 (unsigned long long)global);
        return NULL;
    }
    struct sim_transfer *t = sim_transfer_new(1, bytes);
    t->n_pieces = 1;
    t->pieces[0] = (struct sim_piece){.global = global, .n = bytes, .valid = bytes};
    return t;
}

/* The CTAs that it writes to and their mbarrier. */
static int destinations(struct sim_warp *w, const struct sim_ins *in, uint32_t l, uint64_t to, uint32_t align,
                        uint64_t barrier, struct sim_transfer *t) {
    struct sim_cta *owner, *teller;
    if (shared_place(w, in, l, to, align, &owner, &t->to) || shared_place(w, in, l, barrier, 8, &teller, &t->barrier))
        return -1;
    if (owner != teller && !(in->y & PAIR && (owner->rank ^ teller->rank) == 1)) {
        sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "writes to CTA rank %u and tells an mbarrier of rank %u", owner->rank,
                 teller->rank);
        return -1;
    }
    t->ranks = 1u << owner->rank;
    t->teller = in->y & PAIR && !(w->cta->cluster->n_ctas & 1) ? 1 + (teller->rank & 1) : 0;
    if (in->y & MULTICAST) t->ranks = W32(in->o[3])[l] & 0xffff;
    if (t->ranks >> w->cta->cluster->n_ctas || !t->ranks) {
        sim_find(w, in, 1u << l, SIM_F_BOUNDS, "multicast to mask 0x%x in a cluster of %u CTAs", t->ranks,
                 w->cta->cluster->n_ctas);
        return -1;
    }
    return 0;
}

SIM_HEAD(bulk_copy) {
    EACH_OF(m) {
        uint64_t a = address(w, in, 0, l), b = in->x == PREFETCH ? 0 : address(w, in, 1, l);
        uint32_t align = in->y & TENSOR ? 128 : 16;
        uint64_t global = in->x == SIM_TO_GLOBAL || in->x == PREFETCH ? a : b;
        struct sim_transfer *t = in->y & TENSOR ? tensor_box(w, in, l, global) : range(w, in, l, global);
        if (!t) return SIM_FAULT;
        if (in->x == PREFETCH) {
            free(t);
            continue;
        }
        t->kind = (enum sim_transfer_kind)in->x;
        if (in->y & REDUCE) {
            t->reduce = 1u + (uint32_t)in->count;
            if (!(in->y & TENSOR)) t->type = in->type;
            if (!can_reduce((enum ptx_type)t->type, in->count)) {
                sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "the tensor's type has no such reduction");
                free(t);
                return SIM_FAULT;
            }
        }
        struct sim_cta *owner = w->cta;
        int bad = 0;
        if (in->x != SIM_TO_SHARED) bad = shared_place(w, in, l, b, in->y & TENSOR ? 128 : 16, &owner, &t->from);
        if (in->x != SIM_TO_GLOBAL) bad = bad || destinations(w, in, l, a, align, address(w, in, 2, l), t);
        if (!bad && owner != w->cta) {
            sim_find(w, in, 1u << l, SIM_F_BOUNDS, "reads shared memory of another CTA");
            bad = 1;
        }
        if (bad) {
            free(t);
            return SIM_FAULT;
        }
        if (sim_transfer_start(w, in, l, t)) return SIM_FAULT;
    }
    return SIM_NEXT;
}

/* ---- st.async, red.async: values of registers ---- */

SIM_HEAD(from_registers) {
    const uint32_t *values = w->list + in->list + 2 * ADDRESS_WORDS;
    EACH_OF(m) {
        uint32_t bytes = (uint32_t)in->bytes * in->z;
        struct sim_transfer *t = sim_transfer_new(1, bytes);
        t->kind = SIM_FROM_REGISTERS;
        t->n_pieces = 1;
        t->pieces[0] = (struct sim_piece){.n = bytes, .valid = bytes};
        for (uint32_t i = 0; i < in->z; i++)
            memcpy(t->buffer + i * in->bytes,
                   in->bytes == 8 ? (const void *)&W64(values[i])[l] : (const void *)&W32(values[i])[l], in->bytes);
        if (in->y & REDUCE) t->reduce = 1u + (uint32_t)in->count, t->type = in->type;
        if (destinations(w, in, l, address(w, in, 0, l), bytes, address(w, in, 1, l), t)) {
            free(t);
            return SIM_FAULT;
        }
        if (sim_transfer_start(w, in, l, t)) return SIM_FAULT;
    }
    return SIM_NEXT;
}
static void async_word(struct sim_decoder *d, struct sim_ins *in, int reduces) {
    d->program->uses |= SIM_USES_MBARRIER | SIM_USES_BULK;
    sim_word(d, "async"), sim_word(d, "weak"), sim_word(d, "relaxed"), sim_word(d, "cluster");
    if (!sim_word(d, "mbarrier::complete_tx::bytes") || !sim_word(d, "shared::cluster")) return;
    int op = reduces ? sim_atomic_word(d) : 0;
    if (op < 0) return;
    if (reduces) in->y = REDUCE, in->count = (uint8_t)op;
    in->z = sim_word(d, "v4") ? 4 : sim_word(d, "v2") ? 2 : 1;
    in->type = (uint8_t)sim_last_type(d);
    in->bytes = (uint8_t)ptx_type_bytes((enum ptx_type)in->type);
    sim_want(d, 3, 3);
    if (d->failed || (in->bytes != 4 && in->bytes != 8)) return;
    in->list = d->program->n_list;
    add_address(d, in, &d->o[0]);
    add_address(d, in, &d->o[2]);
    if (sim_list(d, &d->o[1], 8u * in->bytes, 0) != in->z) return;
    in->exec = from_registers;
}
SIM_DECODER(st_sm90) {
    if (d->n_parts > 1 && !strcmp(d->part[1], "async"))
        async_word(d, in, 0);
    else
        sim_decode_st(d, in);
}
SIM_DECODER(red_sm90) {
    if (d->n_parts > 1 && !strcmp(d->part[1], "async"))
        async_word(d, in, 1);
    else
        sim_decode_red(d, in);
}

/* ---- words ---- */

static void group_word(struct sim_decoder *d, struct sim_ins *in, int waits) {
    sim_want(d, waits ? 1 : 0, waits ? 1 : 0);
    if (d->failed) return;
    if (waits) in->imm = (int64_t)sim_number(d, &d->o[0]);
    in->x = (uint8_t)sim_word(d, "read");
    in->exec = waits ? wait_group : commit;
}

SIM_DECODER(bulk) {
    static const char *const ranks[] = {"1d", "2d", "3d", "4d", "5d"};
    uint32_t count = 0, o = 0;
    d->program->uses |= SIM_USES_MBARRIER | SIM_USES_BULK;
    if (sim_word(d, "reduce")) in->y |= REDUCE;
    if (!sim_word(d, "async") || !sim_word(d, "bulk")) return;
    if (sim_word(d, "commit_group")) {
        group_word(d, in, 0);
        return;
    }
    if (sim_word(d, "wait_group")) {
        group_word(d, in, 1);
        return;
    }
    int prefetch = sim_word(d, "prefetch"), hint = sim_word(d, "L2::cache_hint");
    if (prefetch) sim_word(d, "L2");
    if (sim_word(d, "tensor")) {
        in->y |= TENSOR;
        for (uint8_t i = 0; i < 5; i++)
            if (sim_word(d, ranks[i])) in->z = i + 1;
        sim_word(d, "tile");
        if (sim_word(d, "tile::gather4")) in->y |= GATHER;
        if (!in->z || (in->y & GATHER && in->z != 2)) return;
    }
    int cluster = sim_word(d, "shared::cluster"), cta = sim_word(d, "shared::cta"), global = sim_word(d, "global");
    sim_word(d, "cta_group::1");
    if (sim_word(d, "cta_group::2")) in->y |= PAIR;
    int tells = sim_word(d, "mbarrier::complete_tx::bytes"), groups = sim_word(d, "bulk_group");
    if (sim_word(d, "multicast::cluster")) in->y |= MULTICAST;
    in->x = prefetch ? PREFETCH : groups ? SIM_TO_GLOBAL : global ? SIM_TO_SHARED : SIM_TO_CLUSTER;
    if (!prefetch && tells == groups) return;
    if (groups ? !global || !cta || cluster : !prefetch && !cluster && !cta) return;
    if (in->y & REDUCE) {
        int op = sim_atomic_word(d);
        if (op < 0 || op > 5) return;
        in->count = (uint8_t)op;
        sim_word(d, "noftz");
        if (!(in->y & TENSOR)) {
            enum ptx_type type = sim_last_type(d);
            in->type = (uint8_t)type;
            if (!can_reduce(type, (uint32_t)op)) return;
        }
    }
    uint32_t addresses = prefetch ? 1
                         : groups ? 2
                                  : 3,
             sized = in->y & TENSOR ? 0 : 1, masked = in->y & MULTICAST ? 1 : 0;
    sim_want(d, addresses + sized + masked + (hint ? 1u : 0u), addresses + sized + masked + (hint ? 1u : 0u));
    if (d->failed) return;
    in->list = d->program->n_list;
    for (uint32_t i = 0; i < addresses; i++) {
        if (i == (prefetch ? 1u : 2u) && sized) o++;
        add_address(d, in, &d->o[o++]);
    }
    if (sized) in->o[2] = sim_source(d, &d->o[prefetch ? 1 : 2], 32);
    if (masked) in->o[3] = sim_source(d, &d->o[addresses + sized], 16);
    if (in->y & TENSOR) {
        const struct ptx_operand *map = &d->o[in->x == SIM_TO_SHARED ? 1 : 0];
        in->n = count = d->program->n_list - in->list;
        if (map->n != (in->y & GATHER ? 5u : in->z)) sim_refuse(d, "%u coordinates", map->n);
        for (uint32_t i = 0; i < map->n && !d->failed; i++)
            sim_list_add(d, sim_source(d, &d->kernel->operands[map->first + i], 32));
    }
    in->exec = bulk_copy;
}
