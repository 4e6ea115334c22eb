/* SPDX-License-Identifier: MIT
 * clusterlaunchcontrol: a cluster takes the place in the grid of one that has not started, and 128-bit registers as far
 * as its answers need them. The answer is written to shared memory by a unit of its own, which tells an mbarrier; what
 * it holds is nobody's business but of query_cancel. */
#include "checks/report.h"
#include "exec/exec.h"
#include "machine/address.h"
#include "units/transfer.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER_BYTES = 16, ANSWER_MARK = 0xc1c0, EVERYBODY = 1 };
struct answer {
    uint32_t mark, id[3]; /* mark + 1: a cluster was taken, its first CTA has this id */
};

/* o[0]: where to, o[1]: mbarrier; target: its offset; y: to all CTAs of the cluster. */
SIM_HEAD(try_cancel) {
    struct sim_launch *g = w->cta->cluster->launch;
    struct sim_cluster *c = w->cta->cluster;
    EACH_OF(m) {
        if (c->hopper->launch_refused) {
            sim_find(w, in, 1u << l, SIM_F_PROTOCOL,
                     "asks for a cluster though the cluster has seen that none is left");
            return SIM_FAULT;
        }
        uint64_t address = in->wide ? W64(in->o[0])[l] : W32(in->o[0])[l],
                 bar = in->wide ? W64(in->o[1])[l] : W32(in->o[1])[l];
        struct sim_transfer *t = sim_transfer_new(1, ANSWER_BYTES);
        t->kind = SIM_FROM_UNIT;
        t->n_pieces = 1;
        t->pieces[0] = (struct sim_piece){.n = ANSWER_BYTES, .valid = ANSWER_BYTES};
        address += (uint64_t)in->imm, bar += in->target;
        if (in->space == PTX_GENERIC) address &= ~SIM_WINDOW_MASK, bar &= ~SIM_WINDOW_MASK;
        struct sim_cta *owner = sim_shared_at(w, in, l, address, ANSWER_BYTES, ANSWER_BYTES, &t->to);
        struct sim_cta *teller = owner ? sim_shared_at(w, in, l, bar, 8, 8, &t->barrier) : NULL;
        if (!teller) {
            free(t);
            return SIM_FAULT;
        }
        if (owner != w->cta || teller != w->cta) {
            sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "the answer and its mbarrier must lie in the CTA's own memory");
            free(t);
            return SIM_FAULT;
        }
        t->ranks = in->y & EVERYBODY ? (1u << c->n_ctas) - 1 : 1u << w->cta->rank;
        const uint64_t x = g->grid[0] / g->cluster[0], y = g->grid[1] / g->cluster[1], z = g->grid[2] / g->cluster[2];
        const uint64_t number = atomic_fetch_add(&g->next_cluster, 1);
        struct answer answer = {.mark = ANSWER_MARK};
        if (number < x * y * z)
            answer =
                (struct answer){ANSWER_MARK + 1,
                                {(uint32_t)(number % x) * g->cluster[0], (uint32_t)(number / x % y) * g->cluster[1],
                                 (uint32_t)(number / x / y) * g->cluster[2]}};
        memcpy(t->buffer, &answer, sizeof answer);
        if (sim_transfer_start(w, in, l, t)) return SIM_FAULT;
    }
    return SIM_NEXT;
}

static int read_answer(struct sim_warp *w, const struct sim_ins *in, uint32_t l, struct answer *a) {
    memcpy(a, W64(in->o[1]) + 2 * l, sizeof *a);
    if (a->mark - ANSWER_MARK <= 1) return 0;
    sim_find(w, in, 1u << l, SIM_F_PROTOCOL, "0x%x... is no answer of try_cancel", a->mark);
    return -1;
}
SIM_HEAD(is_canceled) {
    EACH_OF(m) {
        struct answer a;
        if (read_answer(w, in, l, &a)) return SIM_FAULT;
        uint32_t taken = a.mark == ANSWER_MARK + 1;
        w->p[in->o[0]] = (w->p[in->o[0]] & ~(1u << l)) | taken << l;
        if (!taken && w->cta->cluster->hopper) w->cta->cluster->hopper->launch_refused = 1;
    }
    return SIM_NEXT;
}
/* PTX ISA: clusterlaunchcontrol.query_cancel.get_first_ctaid: where no cluster was taken the result is undefined, here
 * the pattern of registers that nobody wrote. */
SIM_HEAD(first_ctaid) { /* list: n targets; x: the first of them */
    EACH_OF(m) {
        struct answer a;
        if (read_answer(w, in, l, &a)) return SIM_FAULT;
        if (a.mark == ANSWER_MARK) memset(a.id, 0xfb, sizeof a.id);
        for (uint32_t i = 0; i < in->n; i++) W32(w->list[in->list + i])[l] = i + in->x < 3 ? a.id[i + in->x] : 0;
    }
    return SIM_NEXT;
}

SIM_DECODER(launch_control) {
    if (sim_word(d, "try_cancel")) {
        d->program->uses |= SIM_USES_MBARRIER | SIM_USES_BULK;
        if (!sim_word(d, "async") || !sim_word(d, "mbarrier::complete_tx::bytes") || !sim_word(d, "b128")) return;
        in->space = sim_word(d, "shared::cta") ? PTX_SHARED : PTX_GENERIC;
        in->y = sim_word(d, "multicast::cluster::all") ? EVERYBODY : 0;
        sim_want(d, 2, 2);
        if (d->failed) return;
        sim_address(d, in, &d->o[1], 1);
        in->target = (uint32_t)in->imm;
        uint8_t wide = in->wide;
        sim_address(d, in, &d->o[0], 0);
        if (wide != in->wide) sim_refuse(d, "addresses of different widths");
        in->exec = try_cancel;
        return;
    }
    if (!sim_word(d, "query_cancel")) return;
    static const char *const parts[] = {"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"};
    int part = -1, canceled = sim_word(d, "is_canceled"), all = sim_word(d, "get_first_ctaid");
    for (int i = 0; i < 3; i++)
        if (sim_word(d, parts[i])) part = i;
    if (!sim_word(d, "b128") || !sim_word(d, canceled ? "pred" : "b32")) return;
    if (all && !sim_word(d, "v4")) return;
    sim_want(d, 2, 2);
    if (d->failed) return;
    if (sim_bits(d, &d->o[1]) != 128) {
        sim_refuse(d, "an answer is a register of 128 bits");
        return;
    }
    in->o[1] = sim_source(d, &d->o[1], 128);
    in->list = d->program->n_list;
    if (canceled) {
        in->o[0] = sim_target(d, &d->o[0], 1);
        in->exec = is_canceled;
    } else if (all || part >= 0) {
        in->n = sim_list(d, &d->o[0], 32, 1);
        in->x = all ? 0 : (uint8_t)part;
        if (in->n != (all ? 4u : 1u)) sim_refuse(d, "%u registers", in->n);
        in->exec = first_ctaid;
    }
}

/* ---- mov.b128: two registers of 64 bits and one of 128 ---- */

SIM_HEAD(pack_128) {
    EACH_OF(m)
    for (uint32_t i = 0; i < 2; i++) W64(in->o[0])[2 * l + i] = W64(w->list[in->list + i])[l];
    return SIM_NEXT;
}
SIM_HEAD(unpack_128) {
    EACH_OF(m)
    for (uint32_t i = 0; i < 2; i++) W64(w->list[in->list + i])[l] = W64(in->o[1])[2 * l + i];
    return SIM_NEXT;
}
SIM_DECODER(mov_128) {
    const struct ptx_operand *to = &d->o[0], *from = &d->o[1];
    int unpacks = to->kind == PTX_VECTOR;
    in->list = d->program->n_list;
    if (sim_list(d, unpacks ? to : from, 64, unpacks) != 2 || sim_bits(d, unpacks ? from : to) != 128) {
        sim_refuse(d, "128 bits are moved from or to two registers of 64");
        return;
    }
    if (unpacks)
        in->o[1] = sim_source(d, from, 128);
    else
        in->o[0] = sim_target(d, to, 128);
    in->exec = unpacks ? unpack_128 : pack_128;
}
