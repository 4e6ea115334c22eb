/* SPDX-License-Identifier: MIT
 * wmma.load, wmma.store, wmma.mma (PTX ISA, "Warp-level matrix multiply-accumulate": fragments). The ISA leaves open
 * which element a register holds: here element e of a matrix, by rows, is in lane e % 32, slot e / 32 of its registers;
 * a fragment with more slots than elements holds them again, as many times as fit. */
#include "exec/formats.h"
#include "machine/address.h"

#include <math.h>
#include <string.h>

static const struct shape {
    const char *word;
    uint8_t m, n, k;
} shapes[] = {{"m16n16k16", 16, 16, 16},
              {"m8n32k16", 8, 32, 16},
              {"m32n8k16", 32, 8, 16},
              {"m16n16k8", 16, 16, 8},
              {"m8n8k4", 8, 8, 4}};
enum { MOST_ELEMENTS = 512, MOST_CELLS = 256 }; /* of A or B; of C */

/* parts: elements of a register */
static uint32_t parts_of(enum ptx_type type) {
    return type == PTX_F16 || type == PTX_BF16 ? 2 : type == PTX_S8 || type == PTX_U8 ? 4 : 1;
}
static uint32_t element_bytes(enum ptx_type type) { return type == PTX_F64 ? 8 : 4 / parts_of(type); }
/* Registers of a fragment of `n` elements; those of A and B in f16 are eight whatever the shape. */
static uint32_t fragment_registers(enum ptx_type type, uint32_t n, int is_factor) {
    return is_factor && type == PTX_F16 ? 8 : n / 32 / parts_of(type);
}
static uint64_t bits_of_slot(const struct sim_warp *w, const uint32_t *list, enum ptx_type type, uint32_t slot,
                             uint32_t lane) {
    const uint32_t parts = parts_of(type), place = list[slot / parts], bits = 32 / parts;
    if (type == PTX_F64) return W64(place)[lane];
    return (uint64_t)(W32(place)[lane] >> slot % parts * bits) & (UINT64_MAX >> (64 - bits));
}
static void set_slot(struct sim_warp *w, const uint32_t *list, enum ptx_type type, uint32_t slot, uint32_t lane,
                     uint64_t value) {
    const uint32_t parts = parts_of(type), place = list[slot / parts], bits = 32 / parts, shift = slot % parts * bits;
    if (type == PTX_F64) {
        W64(place)[lane] = value;
        return;
    }
    const uint32_t mask = (UINT32_MAX >> (32 - bits)) << shift;
    W32(place)[lane] = (W32(place)[lane] & ~mask) | ((uint32_t)value << shift & mask);
}

/* ---- wmma.load, wmma.store: o[0] the address, o[1] the stride in elements; y rows, z columns, x by columns ---- */

static enum sim_step move(struct sim_warp *w, const struct sim_ins *in, uint32_t m, enum sim_access access) {
    const enum ptx_type type = (enum ptx_type)in->type;
    const uint32_t *list = w->list + in->list, *stride = W32(in->o[1]);
    const uint32_t n_slots = in->n * parts_of(type), n = (uint32_t)in->y * in->z;
    uint64_t start[SIM_LANES], addresses[SIM_LANES];
    uint8_t *bytes[SIM_LANES];
    sim_addresses(w, in, m, 0, start);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        EACH_LANE {
            const uint32_t e = (slot * SIM_LANES + l) % n, row = e / in->z, column = e % in->z;
            addresses[l] =
                start[l] + (uint64_t)(in->x ? column * stride[l] + row : row * stride[l] + column) * in->bytes;
        }
        if (sim_resolve(w, in, m, (enum ptx_space)in->space, addresses, in->bytes, access, bytes)) return SIM_FAULT;
        EACH_OF(m) {
            uint64_t v = 0;
            if (access == SIM_LOAD) {
                memcpy(&v, bytes[l], in->bytes);
                set_slot(w, list, type, slot, l, v);
            } else {
                v = bits_of_slot(w, list, type, slot, l);
                memcpy(bytes[l], &v, in->bytes);
            }
        }
    }
    if (access == SIM_STORE) w->cta->cluster->changes++;
    return SIM_NEXT;
}
SIM_HEAD(load_fragment) { return move(w, in, m, SIM_LOAD); }
SIM_HEAD(store_fragment) { return move(w, in, m, SIM_STORE); }

/* ---- wmma.mma ---- */

static double number(enum ptx_type type, uint64_t bits) {
    double wide;
    switch (type) {
    case PTX_F16: return (double)sim_from_f16((uint32_t)bits);
    case PTX_BF16: return (double)sim_from_bf16((uint32_t)bits);
    case PTX_F32: return (double)sim_float((uint32_t)bits);
    case PTX_F64: memcpy(&wide, &bits, sizeof wide); return wide;
    case PTX_S8: return (double)(int8_t)bits;
    case PTX_U8: return (double)(uint8_t)bits;
    default: return (double)(int32_t)(uint32_t)bits; /* s32 */
    }
}
static uint64_t bits_of_number(enum ptx_type type, double x, int saturates) {
    uint64_t bits;
    switch (type) {
    case PTX_F16: return sim_to_f16((float)x);
    case PTX_F32: return sim_bits_of((float)x);
    case PTX_F64: memcpy(&bits, &x, sizeof bits); return bits;
    default:
        if (saturates) x = fmin(fmax(x, INT32_MIN), INT32_MAX);
        return (uint32_t)(int64_t)x;
    }
}
static void read_factor(const struct sim_warp *w, const uint32_t *list, enum ptx_type type, int is_tf32, uint32_t n,
                        double *out) {
    for (uint32_t e = 0; e < n; e++) {
        uint64_t bits = bits_of_slot(w, list, type, e / SIM_LANES, e % SIM_LANES);
        if (is_tf32) bits &= 0xffffe000;
        out[e] = number(type, bits);
    }
}
/* target: number of the shape; type: of D; order: of C; x, y: of A and B; z: 1 saturates, 2 tf32. Sums as mma.sync. */
SIM_HEAD(multiply) {
    const struct shape *s = &shapes[in->target];
    const enum ptx_type type_a = (enum ptx_type)in->x, type_b = (enum ptx_type)in->y;
    const enum ptx_type type_c = (enum ptx_type)in->order, type_d = (enum ptx_type)in->type;
    const uint32_t n_a = (uint32_t)s->m * s->k, n_b = (uint32_t)s->k * s->n, n_c = (uint32_t)s->m * s->n;
    const uint32_t *d = w->list + in->list, *a = d + fragment_registers(type_d, n_c, 0);
    const uint32_t *b = a + fragment_registers(type_a, n_a, 1), *c = b + fragment_registers(type_b, n_b, 1);
    double left[MOST_ELEMENTS], right[MOST_ELEMENTS], cells[MOST_CELLS];
    (void)m;
    read_factor(w, a, type_a, in->z & 2, n_a, left);
    read_factor(w, b, type_b, in->z & 2, n_b, right);
    for (uint32_t e = 0; e < n_c; e++) {
        const uint32_t row = e / s->n, column = e % s->n;
        double v = number(type_c, bits_of_slot(w, c, type_c, e / SIM_LANES, e % SIM_LANES));
        for (uint32_t k = 0; k < s->k; k++) {
            const double p = left[row * s->k + k], q = right[k * s->n + column];
            v = type_d == PTX_F64 ? fma(p, q, v) : type_d == PTX_S32 ? v + p * q : (double)(float)(v + p * q);
        }
        cells[e] = v;
    }
    for (uint32_t e = 0; e < n_c; e++)
        set_slot(w, d, type_d, e / SIM_LANES, e % SIM_LANES, bits_of_number(type_d, cells[e], in->z & 1));
    return SIM_NEXT;
}

/* ---- decoding ---- */

static const struct shape *read_shape(struct sim_decoder *d) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (sim_word(d, shapes[i].word)) return &shapes[i];
    return NULL;
}
/* The last type that is left; tf32 is in registers of f32. PTX_NONE: there is none. */
static enum ptx_type read_type(struct sim_decoder *d, int *is_tf32) {
    if (sim_word(d, "tf32")) {
        *is_tf32 = 1;
        return PTX_F32;
    }
    for (uint32_t i = d->n_parts; i-- > 1;) {
        const enum ptx_type type = d->used >> i & 1 ? PTX_NONE : ptx_type_of(d->part[i]);
        if (!type) continue;
        d->used |= 1u << i;
        return type;
    }
    return PTX_NONE;
}
static int is_factor_type(enum ptx_type type, const struct shape *s, int is_tf32) {
    if (s->k == 4) return type == PTX_F64;
    if (s->k == 8) return is_tf32;
    return type == PTX_F16 || type == PTX_BF16 || type == PTX_S8 || type == PTX_U8;
}
static int is_sum_type(enum ptx_type type, const struct shape *s) {
    if (s->k == 4) return type == PTX_F64;
    return type == PTX_F32 || (s->k == 16 && (type == PTX_F16 || type == PTX_S32));
}
static void read_move(struct sim_decoder *d, struct sim_ins *in, int is_store) {
    int is_tf32 = 0;
    const int is_a = sim_word(d, "a"), is_b = sim_word(d, "b"), is_sum = sim_word(d, "c") | sim_word(d, "d");
    const struct shape *s = read_shape(d);
    if (!s || is_a + is_b + is_sum != 1 || (is_store && !is_sum)) return;
    in->x = (uint8_t)sim_word(d, "col");
    if (!in->x && !sim_word(d, "row")) return;
    in->space = PTX_GENERIC;
    if (sim_word(d, "shared") || sim_word(d, "shared::cta"))
        in->space = PTX_SHARED;
    else if (sim_word(d, "global"))
        in->space = PTX_GLOBAL;
    const enum ptx_type type = read_type(d, &is_tf32);
    if (is_sum ? !is_sum_type(type, s) : !is_factor_type(type, s, is_tf32)) return;
    sim_want(d, 2, 3);
    if (d->failed) return;
    in->y = is_b ? s->k : s->m, in->z = is_a ? s->k : s->n;
    in->type = (uint8_t)type;
    in->bytes = (uint8_t)element_bytes(type);
    sim_address(d, in, &d->o[is_store ? 0 : 1], 0);
    in->o[1] = d->n == 3 ? sim_source(d, &d->o[2], 32) : sim_constant(d, SIM_VALUE, in->x ? in->y : in->z, 0);
    in->list = d->program->n_list;
    in->n = sim_list(d, &d->o[is_store ? 1 : 0], type == PTX_F64 ? 64 : 32, !is_store);
    if (in->n != fragment_registers(type, (uint32_t)in->y * in->z, !is_sum)) return;
    in->exec = is_store ? store_fragment : load_fragment;
}
static void read_product(struct sim_decoder *d, struct sim_ins *in) {
    int is_tf32 = 0;
    enum ptx_type types[4]; /* of C, B, A, D: the words from the last one on */
    const struct shape *s = read_shape(d);
    if (!s) return;
    for (int i = 0; i < 2; i++) /* how A and B lay in memory */
        if (!sim_word(d, "row") && !sim_word(d, "col")) return;
    in->z = (uint8_t)sim_word(d, "satfinite");
    sim_word(d, "rn");
    if (s->k == 8) { /* D and C alone are not of tf32 */
        is_tf32 = sim_word(d, "tf32") && sim_word(d, "tf32");
        types[0] = read_type(d, &is_tf32), types[3] = read_type(d, &is_tf32);
        types[1] = types[2] = PTX_F32;
    } else {
        for (int i = 0; i < 3; i++) types[i] = read_type(d, &is_tf32);
    }
    if (s->k == 8) {
    } else if (types[2]) {
        types[3] = read_type(d, &is_tf32);
    } else { /* of f16 only D and C are named */
        types[3] = types[1];
        types[1] = types[2] = PTX_F16;
    }
    if (!is_factor_type(types[1], s, is_tf32) || !is_factor_type(types[2], s, is_tf32)) return;
    if (!is_sum_type(types[0], s) || !is_sum_type(types[3], s)) return;
    if ((types[0] == PTX_S32) != (parts_of(types[1]) == 4) || (types[3] == PTX_S32) != (types[0] == PTX_S32)) return;
    sim_want(d, 4, 4);
    if (d->failed) return;
    const uint32_t n_c = (uint32_t)s->m * s->n;
    const uint32_t expected[4] = {
        fragment_registers(types[3], n_c, 0), fragment_registers(types[2], (uint32_t)s->m * s->k, 1),
        fragment_registers(types[1], (uint32_t)s->k * s->n, 1), fragment_registers(types[0], n_c, 0)};
    in->list = d->program->n_list;
    for (uint32_t i = 0; i < 4; i++)
        if (sim_list(d, &d->o[i], types[0] == PTX_F64 ? 64 : 32, !i) != expected[i]) return;
    in->target = (uint32_t)(s - shapes);
    in->type = (uint8_t)types[3], in->x = (uint8_t)types[2], in->y = (uint8_t)types[1], in->order = (uint8_t)types[0];
    if (is_tf32) in->z |= 2;
    in->exec = multiply;
}
SIM_DECODER(wmma) {
    in->sync = SIM_ALIGNED;
    sim_word(d, "sync");
    sim_word(d, "aligned");
    if (sim_word(d, "load"))
        read_move(d, in, 0);
    else if (sim_word(d, "store"))
        read_move(d, in, 1);
    else if (sim_word(d, "mma"))
        read_product(d, in);
}
