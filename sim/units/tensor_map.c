/* SPDX-License-Identifier: MIT
 * Tensor maps in the form of 128 bytes that a device of sm_100 reads, as host code that writes its own maps shows it:
 * 16 words of 32 bits, the other 64 bytes are not the device's.
 *   0, 1  address
 *   2     2 in bits 0-3, rank - 1 in 4-6, type in 7-10, interleave in 11-12, swizzle in 13-14, its atom in 15 and 19,
 *         NaN fill in 16, promotion in 17-18; bit 21 is passed over: host code clears it for old drivers
 *   3-7   strides / 16, their bits 32-35 in word 7
 *   8-12  sizes - 1
 *   13    box of dimension 0, - 1, in bits 24-31, element strides - 1 in bits 0-14
 *   14    boxes of the others - 1
 * A driver of CUDA 13.0 gives the same places for an H200, but 0 in bits 0-3 and NaN fill in 15. The second bit of the
 * atom is this driver's own. A map that this driver has made carries a check in the second half. */
#include "units/tensor_map.h"

#include <string.h>

#define MAGIC UINT64_C(0x70616d54416d6953) /* "SimATmap" */
enum { FORM = 2, IGNORED = 1 << 21, WORDS = 16 };
enum { AT_RANK = 4, AT_TYPE = 7, AT_INTERLEAVE = 11, AT_SWIZZLE = 13 };
enum { AT_ATOM = 15, AT_FILL = 16, AT_L2 = 17, AT_ATOM_2 = 19 };
#define KNOWN 0x000fffffu /* bits of word 2 */

/* Of cuTensorMapEncodeTiled by the device's number, which is that of tensormap.replace (PTX ISA), and bytes. */
static const struct {
    uint8_t type, bytes;
} types[] = {{SIM_TENSOR_U8, 1},       {SIM_TENSOR_U16, 2},       {SIM_TENSOR_U32, 4},      {SIM_TENSOR_S32, 4},
             {SIM_TENSOR_U64, 8},      {SIM_TENSOR_S64, 8},       {SIM_TENSOR_F16, 2},      {SIM_TENSOR_F32, 4},
             {SIM_TENSOR_F32_FTZ, 4},  {SIM_TENSOR_F64, 8},       {SIM_TENSOR_BF16, 2},     {SIM_TENSOR_TF32, 4},
             {SIM_TENSOR_TF32_FTZ, 4}, {SIM_TENSOR_U4_PACKED, 1}, {SIM_TENSOR_U4_APART, 1}, {SIM_TENSOR_U6_APART, 1}};
_Static_assert(sizeof types / sizeof *types == SIM_TENSOR_TYPES, "a number for each type");

/* Swizzles of cuTensorMapEncodeTiled: width and atom as the map has them. */
static const struct {
    uint8_t width, atom;
} swizzles[SIM_SWIZZLES] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 1}, {3, 2}, {3, 3}};

struct form {
    uint32_t word[WORDS];
    uint64_t magic;
    uint32_t check, rest[13];
};
_Static_assert(sizeof(struct form) == 128, "a tensor map has 128 bytes");

static uint32_t check_of(const struct form *f) {
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < WORDS; i++) h = (h ^ (f->word[i] & ~(i == 2 ? (uint32_t)IGNORED : 0))) * 16777619u;
    return h ? h : 1;
}

void sim_tensor_write(const struct sim_tensor_map *m, void *out) {
    struct form f = {.magic = MAGIC};
    uint32_t type = 0;
    while (types[type].type != m->type) type++;
    const uint32_t atom = swizzles[m->swizzle].atom;
    f.word[0] = (uint32_t)m->address, f.word[1] = (uint32_t)(m->address >> 32);
    f.word[2] = FORM | (m->rank - 1u) << AT_RANK | type << AT_TYPE | (uint32_t)m->interleave << AT_INTERLEAVE |
                (uint32_t)swizzles[m->swizzle].width << AT_SWIZZLE | (atom & 1) << AT_ATOM |
                (uint32_t)m->nan << AT_FILL | (uint32_t)m->l2 << AT_L2 | atom >> 1 << AT_ATOM_2;
    for (uint32_t i = 0; i + 1 < m->rank; i++) {
        f.word[3 + i] = (uint32_t)(m->stride[i] >> 4);
        f.word[7] |= (uint32_t)(m->stride[i] >> 36) << (4 * i);
        f.word[14] |= (m->box[i + 1] - 1u) << (8 * i);
    }
    for (uint32_t i = 0; i < m->rank; i++) f.word[8 + i] = m->last[i], f.word[13] |= (m->step[i] - 1u) << (3 * i);
    f.word[13] |= (m->box[0] - 1u) << 24;
    f.check = check_of(&f);
    memcpy(out, &f, sizeof f);
}

int sim_tensor_read(const void *from, struct sim_tensor_map *m) {
    struct form f;
    memcpy(&f, from, sizeof f);
    const uint32_t w = f.word[2] & ~(uint32_t)IGNORED, type = w >> AT_TYPE & 15,
                   atom = (w >> AT_ATOM & 1) | (w >> AT_ATOM_2 & 1) << 1;
    if (f.magic == MAGIC && f.check != check_of(&f)) return 0;
    memset(m, 0, sizeof *m);
    m->address = (uint64_t)f.word[1] << 32 | f.word[0];
    m->rank = (uint8_t)((w >> AT_RANK & 7) + 1), m->interleave = w >> AT_INTERLEAVE & 3, m->nan = w >> AT_FILL & 1;
    m->l2 = w >> AT_L2 & 3;
    while (m->swizzle < SIM_SWIZZLES &&
           (swizzles[m->swizzle].width != (w >> AT_SWIZZLE & 3) || swizzles[m->swizzle].atom != atom))
        m->swizzle++;
    if ((w & 15) != FORM || w & ~KNOWN || m->rank > SIM_TENSOR_RANK || type >= SIM_TENSOR_TYPES || m->interleave > 2 ||
        m->swizzle == SIM_SWIZZLES || !m->address || m->address % 16 || f.word[13] >> 15 & 0x1ff || f.word[15])
        return 0;
    m->type = types[type].type, m->bytes = types[type].bytes;
    for (uint32_t i = 0; i < m->rank; i++) {
        m->last[i] = f.word[8 + i], m->step[i] = (uint8_t)((f.word[13] >> (3 * i) & 7) + 1);
        m->box[i] = (uint16_t)((i ? f.word[14] >> (8 * (i - 1)) & 255 : f.word[13] >> 24) + 1);
        if (i) m->stride[i - 1] = ((uint64_t)(f.word[7] >> (4 * (i - 1)) & 15) << 32 | f.word[2 + i]) << 4;
    }
    return 1;
}
