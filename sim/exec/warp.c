/* SPDX-License-Identifier: MIT
 * Branches, exits, and what lanes of a warp do together: votes, shuffles, matches, reductions, elections. The loop in
 * warp.c has made sure that every member is here. */
#include "checks/report.h"
#include "exec/exec.h"
#include "exec/formats.h"

#include <math.h>
#include <string.h>

/* ---- control ---- */

SIM_HEAD(branch) {
    (void)in;
    w->taken = m;
    return SIM_JUMP;
}
enum sim_step sim_exec_exit(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    (void)in;
    w->taken = m;
    return SIM_EXIT;
}
SIM_HEAD(trap) {
    sim_find(w, in, m, SIM_F_TRAP, "the kernel trapped");
    return SIM_FAULT;
}
SIM_HEAD(breakpoint) { /* without a debugger: PTX ISA, brkpt */
    sim_find(w, in, m, SIM_F_TRAP, "the kernel reached a breakpoint");
    return SIM_FAULT;
}
SIM_DECODER(bra) {
    sim_word(d, "uni");
    sim_want(d, 1, 1);
    if (d->failed) return;
    if (d->o[0].kind != PTX_LABEL) sim_refuse(d, "the target is no label");
    in->target = (uint32_t)d->o[0].value;
    in->exec = branch;
}

/* ---- collectives ---- */

static uint32_t members_of(const struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    return W32(in->o[5])[__builtin_ctz(m)];
}
/* The member mask must name every lane that executes, and no lane that has ended. */
static int bad_members(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    uint32_t members = members_of(w, in, m);
    if (!(m & ~members) && !(members & ~m)) return 0;
    sim_find(w, in, m, SIM_F_DIVERGENCE, "the member mask is %08x, the lanes that execute it are %08x", members, m);
    return 1;
}

/* PTX ISA: a lane waits for those that its own mask names. So lanes with different masks are groups of their own. */
static inline enum sim_step each_group(struct sim_warp *w, const struct sim_ins *in, uint32_t m, sim_exec exec) {
    const uint32_t *masks = W32(in->o[5]), expected = masks[__builtin_ctz(m)];
    uint32_t differs = 0;
    enum sim_step step;
    EACH_LANE differs |= masks[l] ^ expected;
    if (!differs) return exec(w, in, m); /* the common case */
    do {
        const uint32_t first = masks[__builtin_ctz(m)];
        uint32_t others = 0;
        EACH_LANE others |= (uint32_t)(masks[l] != first) << l;
        step = exec(w, in, m & ~others);
        m &= others;
    } while (m && step == SIM_NEXT);
    return step;
}
/* The handler `name` of an instruction for its groups; name_group is that of one. */
#define EACH_GROUP(name)                                                                                               \
    SIM_HEAD(name) { return each_group(w, in, m, name##_group); }

enum { UP, DOWN, BUTTERFLY, INDEX };
SIM_HEAD(shuffle_group) {
    uint32_t *out = W32(in->o[0]), from[SIM_LANES], valid = 0;
    const uint32_t *b = W32(in->o[2]), *c = W32(in->o[3]);
    bad_members(w, in, m);
    memcpy(from, W32(in->o[1]), sizeof from);
    EACH_OF(m) {
        uint32_t bv = b[l] & 31, cv = c[l] & 31, segment = c[l] >> 8 & 31;
        uint32_t top = (l & segment) | (cv & ~segment), bottom = l & segment, j;
        int ok;
        switch (in->x) {
        case UP: j = l - bv, ok = (int)j >= (int)top; break;
        case DOWN: j = l + bv, ok = j <= top; break;
        case BUTTERFLY: j = l ^ bv, ok = j <= top; break;
        default: j = bottom | (bv & ~segment), ok = j <= top; break;
        }
        if (!ok) j = l;
        if (!(m >> (j & 31) & 1))
            sim_find(w, in, 1u << l, SIM_F_DIVERGENCE, "reads the register of lane %u, which does not take part", j);
        out[l] = from[j & 31];
        valid |= (uint32_t)ok << l;
    }
    if (in->y) w->p[in->o[4]] = (w->p[in->o[4]] & ~m) | (valid & m);
    return SIM_NEXT;
}
EACH_GROUP(shuffle)
SIM_DECODER(shfl) {
    static const char *const modes[] = {"up", "down", "bfly", "idx"};
    sim_word(d, "sync");
    for (uint8_t i = 0; i < 4; i++)
        if (sim_word(d, modes[i])) in->x = i;
    if (sim_last_type(d) != PTX_B32) return;
    sim_want(d, 5, 6);
    if (d->failed) return;
    in->y = d->n == 6;
    const struct ptx_operand *o = d->o + in->y;
    in->o[0] = sim_target(d, &d->o[0], 32);
    if (in->y) in->o[4] = sim_target(d, &d->o[1], 1);
    in->o[1] = sim_source(d, &o[1], 32);
    in->o[2] = sim_source(d, &o[2], 32);
    in->o[3] = sim_source(d, &o[3], 32);
    in->o[5] = sim_source(d, &o[4], 32);
    in->sync = SIM_MEMBERS;
    in->exec = shuffle;
}

enum { BALLOT, ANY, ALL_LANES, UNI };
SIM_HEAD(vote_group) {
    uint32_t p = w->p[in->o[1]] ^ (in->y ? SIM_ALL : 0);
    bad_members(w, in, m);
    p &= m;
    if (in->x == BALLOT) {
        uint32_t *out = W32(in->o[0]);
        EACH_OF(m) out[l] = p;
        return SIM_NEXT;
    }
    int yes = in->x == ANY ? p != 0 : in->x == ALL_LANES ? p == m : p == m || p == 0;
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | (yes ? m : 0);
    return SIM_NEXT;
}
EACH_GROUP(vote)
SIM_DECODER(vote) {
    static const char *const modes[] = {"ballot", "any", "all", "uni"};
    sim_word(d, "sync");
    for (uint8_t i = 0; i < 4; i++)
        if (sim_word(d, modes[i])) in->x = i;
    sim_last_type(d);
    sim_want(d, 3, 3);
    if (d->failed) return;
    struct ptx_operand p = d->o[1];
    in->y = p.negated;
    p.negated = 0;
    in->o[0] = sim_target(d, &d->o[0], in->x == BALLOT ? 32 : 1);
    in->o[1] = sim_source(d, &p, 1);
    in->o[5] = sim_source(d, &d->o[2], 32);
    in->sync = SIM_MEMBERS;
    in->exec = vote;
}

SIM_HEAD(match_lanes_group) {
    uint32_t *out = W32(in->o[0]), result[SIM_LANES] = {0};
    bad_members(w, in, m);
    EACH_OF(m) {
        uint32_t equal = 0;
        for (uint32_t k = 0; k < SIM_LANES; k++)
            if (m >> k & 1)
                equal |=
                    (uint32_t)(in->wide ? W64(in->o[1])[k] == W64(in->o[1])[l] : W32(in->o[1])[k] == W32(in->o[1])[l])
                    << k;
        result[l] = in->x && equal != m ? 0 : equal;
    }
    EACH_OF(m) out[l] = result[l];
    if (in->y) {
        uint32_t all = result[__builtin_ctz(m)] == m ? m : 0;
        w->p[in->o[4]] = (w->p[in->o[4]] & ~m) | all;
    }
    return SIM_NEXT;
}
EACH_GROUP(match_lanes)
SIM_DECODER(match) {
    sim_word(d, "sync");
    in->x = (uint8_t)sim_word(d, "all");
    if (!in->x) sim_word(d, "any");
    unsigned bits = 8 * ptx_type_bytes(sim_last_type(d));
    sim_want(d, 3, 4);
    if (d->failed) return;
    in->wide = bits == 64;
    in->y = d->n == 4;
    in->o[0] = sim_target(d, &d->o[0], 32);
    if (in->y) in->o[4] = sim_target(d, &d->o[1], 1);
    in->o[1] = sim_source(d, &d->o[1 + in->y], bits);
    in->o[5] = sim_source(d, &d->o[2 + in->y], 32);
    in->sync = SIM_MEMBERS;
    in->exec = match_lanes;
}

enum { R_ADD, R_MIN, R_MAX, R_AND, R_OR, R_XOR };
SIM_HEAD(reduce_group) {
    uint32_t *out = W32(in->o[0]), r = 0;
    const uint32_t *a = W32(in->o[1]);
    int first = 1;
    bad_members(w, in, m);
    EACH_OF(m) {
        uint32_t v = a[l];
        int less = in->y ? (int32_t)v < (int32_t)r : v < r;
        if (first)
            r = v, first = 0;
        else
            r = in->x == R_ADD   ? r + v
                : in->x == R_MIN ? (less ? v : r)
                : in->x == R_MAX ? (less ? r : v)
                : in->x == R_AND ? r & v
                : in->x == R_OR  ? r | v
                                 : r ^ v;
    }
    EACH_OF(m) out[l] = r;
    return SIM_NEXT;
}
/* PTX ISA: redux.sync of type .f32: min and max; a NaN loses to every number, with .NaN it wins. z: 1 .abs, 2 .NaN */
SIM_HEAD(reduce_f32_group) {
    uint32_t *out = W32(in->o[0]), nan = 0;
    const float *a = F32(in->o[1]);
    float r = sim_float(0x7fffffff);
    bad_members(w, in, m);
    EACH_OF(m) {
        float v = in->z & 1 ? fabsf(a[l]) : a[l];
        if (v != v)
            nan = 1;
        else if (r != r || (in->x == R_MIN ? v < r || (v == r && signbit(v)) : v > r || (v == r && signbit(r))))
            r = v;
    }
    EACH_OF(m) out[l] = nan && in->z & 2 ? 0x7fffffff : sim_bits_of(r);
    return SIM_NEXT;
}
EACH_GROUP(reduce)
EACH_GROUP(reduce_f32)
SIM_DECODER(redux) {
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor"};
    int found = 0;
    sim_word(d, "sync");
    for (uint8_t i = 0; i < 6; i++)
        if (sim_word(d, ops[i])) in->x = i, found = 1;
    enum ptx_type type = sim_last_type(d);
    sim_want(d, 3, 3);
    if (d->failed || !found) return;
    const int real = type == PTX_F32;
    if (real && in->x != R_MIN && in->x != R_MAX) return;
    if (real) in->z = (uint8_t)(sim_word(d, "abs") | sim_word(d, "NaN") << 1);
    in->y = type == PTX_S32;
    in->o[0] = sim_target(d, &d->o[0], 32);
    in->o[1] = sim_source(d, &d->o[1], 32);
    in->o[5] = sim_source(d, &d->o[2], 32);
    in->sync = SIM_MEMBERS;
    in->exec = real ? reduce_f32 : reduce;
}

/* The leader: the seed turns the choice, since the machine promises none. */
SIM_HEAD(elect_one_group) {
    bad_members(w, in, m);
    uint32_t leader = (uint32_t)__builtin_ctz(m);
    EACH_OF(m) W32(in->o[0])[l] = leader;
    w->p[in->o[1]] = (w->p[in->o[1]] & ~m) | 1u << leader;
    return SIM_NEXT;
}
EACH_GROUP(elect_one)
SIM_DECODER(elect) {
    sim_word(d, "sync");
    sim_want(d, 3, 3);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], 32);
    in->o[1] = sim_target(d, &d->o[1], 1);
    in->o[5] = sim_source(d, &d->o[2], 32);
    in->sync = SIM_MEMBERS;
    in->exec = elect_one;
}
SIM_HEAD(active_mask) {
    uint32_t *out = W32(in->o[0]);
    EACH_OF(m) out[l] = m;
    return SIM_NEXT;
}

const struct sim_op sim_ops_control[] = {
    {"ret", "", sim_exec_exit}, {"ret.uni", "", sim_exec_exit}, {"exit", "", sim_exec_exit},
    {"trap", "", trap},         {"brkpt", "", breakpoint},      {"activemask.b32", "W", active_mask},
};
const uint32_t sim_n_ops_control = sizeof sim_ops_control / sizeof *sim_ops_control;
