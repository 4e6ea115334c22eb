/* SPDX-License-Identifier: MIT
 * ld and st in all spaces, single and vectors; atom and red; fences and prefetches. */
#include "checks/global.h"
#include "checks/report.h"
#include "checks/spin.h"
#include "exec/formats.h"
#include "machine/address.h"

#include <math.h>
#include <string.h>

/* ---- ld, st ---- */

/* A strong load of global memory: what its value was released with is taken after it. */
static enum sim_step load_strong(struct sim_warp *w, const struct sim_ins *in, uint32_t m,
                                 const uint64_t address[SIM_LANES], uint8_t *from[SIM_LANES]) {
    EACH_OF(m) {
        uint64_t v = 0;
        if (in->bytes == 8)
            v = __atomic_load_n((const uint64_t *)(const void *)from[l], __ATOMIC_ACQUIRE);
        else if (in->bytes == 4)
            v = __atomic_load_n((const uint32_t *)(const void *)from[l], __ATOMIC_ACQUIRE);
        else
            memcpy(&v, from[l], in->bytes);
        if (in->y) v = (uint64_t)((int64_t)(v << (64 - 8 * in->bytes)) >> (64 - 8 * in->bytes));
        if (in->x == 64)
            W64(w->list[in->list])[l] = v;
        else
            W32(w->list[in->list])[l] = in->x == 16 ? (uint32_t)v & 0xffff : (uint32_t)v;
    }
    if (w->cta->cluster->launch->signals) sim_sync_after(w, in, m, address);
    return SIM_NEXT;
}

/* One register of 128 bits (PTX ISA: ld, st, type .b128): lane l has the 64-bit words 2 l and 2 l + 1 of its place. */
SIM_HEAD(load_128) {
    uint64_t address[SIM_LANES], *out = W64(w->list[in->list]);
    uint8_t *from[SIM_LANES];
    sim_addresses(w, in, m, 0, address);
    if (sim_resolve(w, in, m, (enum ptx_space)in->space, address, 16, SIM_LOAD, from)) return SIM_FAULT;
    EACH_OF(m) memcpy(out + 2 * l, from[l], 16);
    if (in->order & SIM_SYNC_OBJECT && w->cta->cluster->launch->signals) sim_sync_after(w, in, m, address);
    return SIM_NEXT;
}
SIM_HEAD(store_128) {
    uint64_t address[SIM_LANES];
    const uint64_t *words = W64(w->list[in->list]);
    uint8_t *to[SIM_LANES];
    sim_addresses(w, in, m, 0, address);
    if (sim_resolve(w, in, m, (enum ptx_space)in->space, address, 16, SIM_STORE, to)) return SIM_FAULT;
    if (in->space != PTX_LOCAL) w->cta->cluster->changes++;
    if (in->order & SIM_SYNC_OBJECT && w->cta->cluster->launch->signals) sim_sync_before(w, in, m, address, 0);
    EACH_OF(m) memcpy(to[l], words + 2 * l, 16);
    return SIM_NEXT;
}

/* One element of each lane, of type T, to registers of type R. */
#define ELEMENTS(T, R)                                                                                                 \
    {                                                                                                                  \
        R *out = (R *)(void *)W32(place);                                                                              \
        EACH_OF(m) {                                                                                                   \
            T v;                                                                                                       \
            memcpy(&v, from[l] + step, sizeof v);                                                                      \
            out[l] = (R)v;                                                                                             \
        }                                                                                                              \
        continue;                                                                                                      \
    }

/* count elements of `bytes` each; x: bits of the registers; y: sign-extend. */
SIM_HEAD(load) {
    uint64_t address[SIM_LANES];
    uint8_t *from[SIM_LANES];
    sim_addresses(w, in, m, 0, address);
    if (sim_resolve(w, in, m, (enum ptx_space)in->space, address, (uint32_t)in->bytes * in->count, SIM_LOAD, from))
        return SIM_FAULT;
    if (in->order & SIM_SYNC_OBJECT) return load_strong(w, in, m, address, from);
    if (in->bytes == 4 && in->x == 32 && in->count == 4) {
        const uint32_t *list = w->list + in->list;
        uint32_t *out[4] = {W32(list[0]), W32(list[1]), W32(list[2]), W32(list[3])}, v[4];
        EACH_OF(m) {
            memcpy(v, from[l], sizeof v);
            out[0][l] = v[0], out[1][l] = v[1], out[2][l] = v[2], out[3][l] = v[3];
        }
        return SIM_NEXT;
    }
    for (uint32_t i = 0; i < in->count; i++) {
        uint32_t place = w->list[in->list + i], step = i * in->bytes;
        if (in->bytes == 4 && in->x == 32) ELEMENTS(uint32_t, uint32_t)
        if (in->bytes == 8 && in->x == 64) ELEMENTS(uint64_t, uint64_t)
        if (in->bytes == 2 && in->x == 16) ELEMENTS(uint16_t, uint32_t)
        EACH_OF(m) {
            uint64_t v = 0;
            memcpy(&v, from[l] + step, in->bytes);
            if (in->y) v = (uint64_t)((int64_t)(v << (64 - 8 * in->bytes)) >> (64 - 8 * in->bytes));
            if (in->x == 64)
                W64(place)[l] = v;
            else
                W32(place)[l] = in->x == 16 ? (uint32_t)v & 0xffff : (uint32_t)v;
        }
    }
    return SIM_NEXT;
}
/* What may poll: strong, or volatile in shared memory. */
SIM_HEAD(load_poll) {
    const enum sim_step step = load(w, in, m);
    return step == SIM_NEXT ? sim_spin_poll(w, in, m) : step;
}
SIM_HEAD(load_param) { /* the same bytes for all lanes, at an offset checked when decoded */
    const uint8_t *from = w->cta->cluster->launch->params + in->imm;
    for (uint32_t i = 0; i < in->count; i++, from += in->bytes) {
        uint32_t place = w->list[in->list + i];
        uint64_t v = 0;
        memcpy(&v, from, in->bytes);
        if (in->y) v = (uint64_t)((int64_t)(v << (64 - 8 * in->bytes)) >> (64 - 8 * in->bytes));
        if (in->x == 64)
            EACH_OF(m) W64(place)[l] = v;
        else
            EACH_OF(m) W32(place)[l] = in->x == 16 ? (uint32_t)v & 0xffff : (uint32_t)v;
    }
    return SIM_NEXT;
}
SIM_HEAD(store) {
    uint64_t address[SIM_LANES];
    uint8_t *to[SIM_LANES];
    sim_addresses(w, in, m, 0, address);
    if (sim_resolve(w, in, m, (enum ptx_space)in->space, address, (uint32_t)in->bytes * in->count, SIM_STORE, to))
        return SIM_FAULT;
    if (in->space != PTX_LOCAL) w->cta->cluster->changes++;
    if (in->order & SIM_SYNC_OBJECT && w->cta->cluster->launch->signals) sim_sync_before(w, in, m, address, 0);
    for (uint32_t i = 0; i < in->count; i++) {
        uint32_t place = w->list[in->list + i], step = i * in->bytes;
        if (in->bytes == 4 && in->x == 32) {
            const uint32_t *words = W32(place);
            EACH_OF(m) memcpy(to[l] + step, &words[l], 4);
            continue;
        }
        EACH_OF(m) {
            if (in->x == 64)
                memcpy(to[l] + step, &W64(place)[l], in->bytes);
            else
                memcpy(to[l] + step, &W32(place)[l], in->bytes);
        }
    }
    return SIM_NEXT;
}

static void read_space(struct sim_decoder *d, struct sim_ins *in) {
    static const struct {
        const char *word;
        enum ptx_space space;
    } spaces[] = {{"global", PTX_GLOBAL},      {"shared", PTX_SHARED},
                  {"shared::cta", PTX_SHARED}, {"shared::cluster", PTX_SHARED_CLUSTER},
                  {"param", PTX_PARAM},        {"local", PTX_LOCAL},
                  {"const", PTX_CONST}};
    in->space = PTX_GENERIC;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (sim_word(d, spaces[i].word)) in->space = (uint8_t)spaces[i].space;
}
/* Order and scope; strong: atomics are so without a word. */
static void read_order(struct sim_decoder *d, struct sim_ins *in, int strong) {
    static const char *const words[] = {"weak", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"};
    int sys = sim_word(d, "volatile") | sim_word(d, "mmio");
    int acquire = sim_word(d, "acquire"), release = sim_word(d, "release"), both = sim_word(d, "acq_rel");
    strong |= sys | acquire | release | both | sim_word(d, "relaxed");
    int near = (sim_word(d, "cta") | sim_word(d, "cluster")) && !sys;
    sim_word(d, "gpu"), sim_word(d, "sys");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sim_word(d, words[i]);
    sim_hint(d);
    in->z = (uint8_t)strong; /* may poll */
    if (in->space != PTX_GLOBAL && in->space != PTX_GENERIC) return;
    in->order = (uint8_t)(strong ? near ? SIM_STRONG_NEAR : SIM_STRONG : 0);
    if (!strong || near) return;
    if (acquire || both) in->order |= SIM_ACQUIRE;
    if (release || both) in->order |= SIM_RELEASE;
    if (acquire || release || both) d->program->uses |= SIM_USES_SYNC;
}

static void load_or_store(struct sim_decoder *d, struct sim_ins *in, int is_store) {
    read_space(d, in);
    read_order(d, in, 0);
    in->count = sim_word(d, "v8") ? 8 : sim_word(d, "v4") ? 4 : sim_word(d, "v2") ? 2 : 1;
    enum ptx_type type = sim_last_type(d);
    in->bytes = (uint8_t)ptx_type_bytes(type);
    in->y = type == PTX_S8 || type == PTX_S16 || type == PTX_S32;
    sim_want(d, 2, 3); /* the third is a cache policy */
    if (d->failed) return;
    const struct ptx_operand *a = &d->o[is_store ? 0 : 1], *v = &d->o[is_store ? 1 : 0];
    const struct ptx_operand *e = v->kind == PTX_VECTOR ? d->kernel->operands + v->first : v;
    unsigned bits = 0;
    for (uint32_t i = 0; i < (v->kind == PTX_VECTOR ? v->n : 1); i++)
        if (sim_bits(d, &e[i])) bits = sim_bits(d, &e[i]);
    if (!bits) bits = 8u * in->bytes < 16 ? 16 : 8u * in->bytes;
    const int whole = in->bytes == 16 && bits == 128 && in->count == 1 && in->space != PTX_PARAM;
    if ((in->bytes > 8 && !whole) || in->count * in->bytes > 32 || bits < 8u * in->bytes) {
        sim_refuse(d, "%u elements of %u bytes in registers of %u bits", in->count, in->bytes, bits);
        return;
    }
    in->x = (uint8_t)bits;
    if (in->space == PTX_PARAM && a->var && a->var->space == PTX_LOCAL) in->space = PTX_LOCAL; /* of a call */
    sim_address(d, in, a, 0);
    in->list = d->program->n_list;
    in->n = sim_list(d, v, bits, !is_store);
    if (in->n != in->count) sim_refuse(d, "%u registers for %u elements", in->n, in->count);
    in->exec = whole ? is_store ? store_128 : load_128 : is_store ? store : load;
    if (in->exec == load && in->z && in->space != PTX_LOCAL && in->space != PTX_PARAM) in->exec = load_poll;
    if (in->order & SIM_STRONG && in->count == 1) in->order |= SIM_SYNC_OBJECT;
    if (in->space == PTX_PARAM && !is_store && a->reg == PTX_NO_REG) {
        uint64_t from = (a->var ? a->var->address : 0) + a->value, end = from + (uint64_t)in->bytes * in->count;
        if (end > d->kernel->param_bytes)
            sim_refuse(d, "reads to byte %u of %u of the parameters", (unsigned)end, d->kernel->param_bytes);
        in->imm = (int64_t)from;
        in->exec = load_param;
    }
}
SIM_DECODER(ld) { load_or_store(d, in, 0); }
SIM_DECODER(st) { load_or_store(d, in, 1); }

/* ---- atom, red ---- */

enum atomic_op { A_ADD, A_MIN, A_MAX, A_AND, A_OR, A_XOR, A_EXCH, A_CAS, A_INC, A_DEC };

static uint32_t half_of(enum ptx_type t, uint8_t op, uint32_t a, uint32_t b) {
    a &= 0xffff, b &= 0xffff;
    float x = t == PTX_F16 ? sim_from_f16(a) : sim_from_bf16(a), y = t == PTX_F16 ? sim_from_f16(b) : sim_from_bf16(b);
    float r = op == A_ADD ? x + y : op == A_MIN ? fminf(x, y) : fmaxf(x, y);
    return t == PTX_F16 ? sim_to_f16(r) : sim_to_bf16(r);
}
static uint64_t combine(const struct sim_ins *in, uint64_t old, uint64_t b, uint64_t c) {
    enum ptx_type t = (enum ptx_type)in->type;
    switch ((enum atomic_op)in->x) {
    case A_EXCH: return b;
    case A_CAS: return old == b ? c : old;
    case A_AND: return old & b;
    case A_OR: return old | b;
    case A_XOR: return old ^ b;
    case A_INC: return (uint32_t)old >= (uint32_t)b ? 0 : old + 1;
    case A_DEC: return (uint32_t)old == 0 || (uint32_t)old > (uint32_t)b ? b : old - 1;
    default: break;
    }
    if (t == PTX_F32) {
        float x = sim_float((uint32_t)old), y = sim_float((uint32_t)b);
        return sim_bits_of(in->x == A_ADD ? x + y : in->x == A_MIN ? fminf(x, y) : fmaxf(x, y));
    }
    if (t == PTX_F64) {
        double x, y;
        memcpy(&x, &old, 8), memcpy(&y, &b, 8);
        x += y;
        memcpy(&old, &x, 8);
        return old;
    }
    if (t == PTX_F16 || t == PTX_BF16) return half_of(t, in->x, (uint32_t)old, (uint32_t)b);
    if (t == PTX_F16X2 || t == PTX_BF16X2) {
        t = t == PTX_F16X2 ? PTX_F16 : PTX_BF16;
        return half_of(t, in->x, (uint32_t)old, (uint32_t)b) | half_of(t, in->x, (uint32_t)old >> 16, (uint32_t)b >> 16)
                                                                   << 16;
    }
    if (in->x == A_ADD) return old + b;
    int less = t == PTX_S32 ? (int32_t)old < (int32_t)b : t == PTX_S64 ? (int64_t)old < (int64_t)b : old < b;
    return (in->x == A_MIN) == less ? old : b;
}

/* Sums of f32 in global memory flush subnormal numbers, those in shared memory do not. */
static uint64_t combine_flushed(uint64_t old, uint64_t b) {
    float sum = sim_flush(sim_float((uint32_t)old)) + sim_flush(sim_float((uint32_t)b));
    return sim_bits_of(sim_flush(sum));
}

uint64_t sim_exchange(uint8_t *target, const struct sim_ins *in, uint64_t b, uint64_t c, int flush) {
    if (in->bytes == 8) {
        uint64_t *p = (uint64_t *)(void *)target, old = __atomic_load_n(p, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(p, &old, combine(in, old, b, c), 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
        return old;
    }
    if (in->bytes == 2) {
        uint16_t *p = (uint16_t *)(void *)target, old = __atomic_load_n(p, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(p, &old, (uint16_t)combine(in, old, b, c), 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_RELAXED)) {
        }
        return old;
    }
    uint32_t *p = (uint32_t *)(void *)target, old = __atomic_load_n(p, __ATOMIC_RELAXED), next;
    do next = (uint32_t)(flush ? combine_flushed(old, b) : combine(in, old, b, c));
    while (!__atomic_compare_exchange_n(p, &old, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return old;
}

/* Two lanes of one instruction that add reals to one place: the machine promises no order. */
static void watch_lanes(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint8_t *const place[SIM_LANES]) {
    EACH_OF(m)
    for (uint32_t k = 0; k < l; k++)
        if (m >> k & 1 && place[k] == place[l]) {
            sim_find(w, in, 1u << l | 1u << k, SIM_F_RACE,
                     "lanes %u and %u add to the same place by one instruction, and the order of sums decides bits", k,
                     l);
            return;
        }
}

/* list: results (if y), then sources of each element, then of cas the second source. */
SIM_HEAD(atomic) {
    uint64_t address[SIM_LANES];
    uint8_t *to[SIM_LANES];
    const uint32_t *list = w->list + in->list;
    uint32_t results = in->y ? in->count : 0;
    int adds_f32 = in->type == PTX_F32 && in->x == A_ADD && in->space != PTX_SHARED;
    sim_addresses(w, in, m, 0, address);
    if (sim_resolve(w, in, m, (enum ptx_space)in->space, address, (uint32_t)in->bytes * in->count, SIM_ATOMIC_ACCESS,
                    to))
        return SIM_FAULT;
    int changes = !results;
    if (w->cta->cluster->launch->options.ordered_sums && in->x == A_ADD && in->type >= PTX_F16)
        watch_lanes(w, in, m, to);
    const int syncs = in->order & SIM_SYNC_OBJECT && w->cta->cluster->launch->signals;
    if (syncs) sim_sync_before(w, in, m, address, 1);
    for (uint32_t i = 0; i < in->count; i++) EACH_OF(m) {
            uint32_t b = list[results + i], c = in->x == A_CAS ? list[results + 1] : b;
            int flush = adds_f32 && (address[l] & SIM_WINDOW_MASK) != SIM_WINDOW_SHARED;
            const uint64_t x = in->bytes == 8 ? W64(b)[l] : W32(b)[l], y = in->bytes == 8 ? W64(c)[l] : W32(c)[l];
            const uint64_t old = sim_exchange(to[l] + in->bytes * i, in, x, y, flush);
            if (!results) continue;
            changes |= in->type >= PTX_F16 || combine(in, old, x, y) != old;
            if (in->bytes == 8)
                W64(list[i])[l] = old;
            else
                W32(list[i])[l] = (uint32_t)old;
        }
    if (syncs && results) sim_sync_after(w, in, m, address);
    w->cta->cluster->changes += (uint64_t)changes;
    return changes ? SIM_NEXT : sim_spin_poll(w, in, m); /* one that leaves what it found may poll */
}

int sim_atomic_word(struct sim_decoder *d) {
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};
    for (int i = 0; i < (int)(sizeof ops / sizeof *ops); i++)
        if (sim_word(d, ops[i])) return i;
    return -1;
}

static void atomic_form(struct sim_decoder *d, struct sim_ins *in, int has_result) {
    read_space(d, in);
    read_order(d, in, 1);
    int op = sim_atomic_word(d), found = op >= 0;
    in->x = found ? (uint8_t)op : 0;
    sim_word(d, "noftz");
    in->count = sim_word(d, "v8") ? 8 : sim_word(d, "v4") ? 4 : sim_word(d, "v2") ? 2 : 1;
    enum ptx_type type = sim_last_type(d);
    in->type = (uint8_t)type;
    in->bytes = (uint8_t)ptx_type_bytes(type);
    in->y = (uint8_t)has_result;
    int half = type == PTX_F16 || type == PTX_BF16;
    uint32_t first = has_result ? 1 : 0, sources = in->x == A_CAS ? 2 : 1;
    sim_want(d, first + 1 + sources, first + 2 + sources);
    if (!found || d->failed || (in->bytes != 4 && in->bytes != 8 && !half) || in->count * in->bytes > 16) return;
    if (half && in->x > A_MAX) return;
    if (type == PTX_F32 && in->x > A_MAX) return;
    if (type == PTX_F64 && in->x != A_ADD) return;
    if ((type == PTX_F16X2 || type == PTX_BF16X2) && in->x > A_MAX) return;
    sim_address(d, in, &d->o[first], 0);
    in->list = d->program->n_list;
    if (has_result && sim_list(d, &d->o[0], 8u * in->bytes, 1) != in->count) return;
    for (uint32_t i = 0; i < sources; i++)
        if (sim_list(d, &d->o[first + 1 + i], 8u * in->bytes, 0) != in->count) return;
    in->exec = atomic;
    if (in->order & SIM_STRONG && in->count == 1 && type < PTX_F16) in->order |= SIM_SYNC_OBJECT;
}
SIM_DECODER(atom) { atomic_form(d, in, 1); }
SIM_DECODER(red) {
    if (sim_word(d, "async")) return;
    atomic_form(d, in, 0);
}

/* ---- what orders or warms caches and computes nothing ---- */

SIM_HEAD(no_effect) {
    (void)w, (void)in, (void)m;
    return SIM_NEXT;
}
SIM_HEAD(fence) {
    (void)in, (void)m;
    if (w->cta->cluster->launch->signals) sim_sync_fence(w);
    return SIM_NEXT;
}
SIM_DECODER(fence) { /* of a CTA or cluster: barriers order those here */
    static const char *const words[] = {"sc", "acq_rel", "acquire", "release"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sim_word(d, words[i]);
    int near = sim_word(d, "cta") | sim_word(d, "cluster"), far = sim_word(d, "gl") | sim_word(d, "gpu");
    far |= sim_word(d, "sys");
    if (far) d->program->uses |= SIM_USES_SYNC;
    in->exec = far && !near ? fence : no_effect;
}
SIM_DECODER(prefetch) {
    static const char *const words[] = {"global", "local", "L1", "L2"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sim_word(d, words[i]);
    sim_hint(d);
    in->exec = no_effect;
}
SIM_DECODER(nothing) {
    d->used = ~0u;
    in->exec = no_effect;
}
