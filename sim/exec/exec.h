/* SPDX-License-Identifier: MIT
 * What the files of handlers share: the shape of handlers over lanes, tables and grammars they offer to the decoder. */
#ifndef SIM_EXEC_H
#define SIM_EXEC_H
#include "decode/decode.h"

void sim_release_dependents(struct sim_cta *cta); /* once for each CTA */
enum sim_step sim_exec_exit(struct sim_warp *w, const struct sim_ins *in, uint32_t m);

/* What atom does to one place of 4 or 8 bytes: in->x, type and bytes say what (mem.c); flush:
 * sums of f32 lose subnormal numbers. The old value. */
uint64_t sim_exchange(uint8_t *target, const struct sim_ins *in, uint64_t b, uint64_t c, int flush);
int sim_atomic_word(struct sim_decoder *d); /* the operation's number, or -1 */
int sim_rounding(struct sim_decoder *d);    /* the host's name of the rounding that the opcode asks for */

/* Special registers that do not change while a CTA lives (special.c). */
int sim_special_of(const char *name); /* -1: unknown */
int sim_special_wide(int special);
void sim_special_fill(int special, const struct sim_warp *w, uint32_t *words);

/* d = expression of a, b, c; TYPE is the element's C type, WHERE the place's accessor: W32 or W64. Lanes that are not
 * in m keep their value. */
#define SIM_HEAD(name) static enum sim_step name(struct sim_warp *w, const struct sim_ins *in, uint32_t m)
#define SIM_LOOP(statement)                                                                                            \
    if (m == SIM_ALL) {                                                                                                \
        SIM_IVDEP EACH_LANE { statement; }                                                                             \
    } else {                                                                                                           \
        EACH_OF(m) { statement; }                                                                                      \
    }                                                                                                                  \
    return SIM_NEXT;
#define SIM_OP1(name, D, A, expression)                                                                                \
    SIM_HEAD(name) {                                                                                                   \
        D *out = (D *)(void *)(w->r + in->o[0]);                                                                       \
        const A *pa = (const A *)(const void *)(w->r + in->o[1]);                                                      \
        SIM_LOOP(A a = pa[l]; out[l] = (D)(expression))                                                                \
    }
#define SIM_OP2(name, D, A, B, expression)                                                                             \
    SIM_HEAD(name) {                                                                                                   \
        D *out = (D *)(void *)(w->r + in->o[0]);                                                                       \
        const A *pa = (const A *)(const void *)(w->r + in->o[1]);                                                      \
        const B *pb = (const B *)(const void *)(w->r + in->o[2]);                                                      \
        SIM_LOOP(A a = pa[l]; B b = pb[l]; out[l] = (D)(expression))                                                   \
    }
#define SIM_OP3(name, D, A, B, C, expression)                                                                          \
    SIM_HEAD(name) {                                                                                                   \
        D *out = (D *)(void *)(w->r + in->o[0]);                                                                       \
        const A *pa = (const A *)(const void *)(w->r + in->o[1]);                                                      \
        const B *pb = (const B *)(const void *)(w->r + in->o[2]);                                                      \
        const C *pc = (const C *)(const void *)(w->r + in->o[3]);                                                      \
        SIM_LOOP(A a = pa[l]; B b = pb[l]; C c = pc[l]; out[l] = (D)(expression))                                      \
    }

extern const struct sim_op sim_ops_int[], sim_ops_bits[], sim_ops_float[], sim_ops_half[], sim_ops_double[],
    sim_ops_control[], sim_ops_fp8[];
extern const uint32_t sim_n_ops_int, sim_n_ops_bits, sim_n_ops_float, sim_n_ops_half, sim_n_ops_double,
    sim_n_ops_control, sim_n_ops_fp8;

/* Decoders of instructions with a grammar of their own. */
#define SIM_DECODER(name) void sim_decode_##name(struct sim_decoder *d, struct sim_ins *in)
SIM_DECODER(mov);
SIM_DECODER(setp);
SIM_DECODER(testp);
SIM_DECODER(cvt);
SIM_DECODER(cvta);
SIM_DECODER(float);
SIM_DECODER(ld);
SIM_DECODER(st);
SIM_DECODER(atom);
SIM_DECODER(red);
SIM_DECODER(bra);
SIM_DECODER(bar);
SIM_DECODER(barrier);
SIM_DECODER(shfl);
SIM_DECODER(vote);
SIM_DECODER(match);
SIM_DECODER(redux);
SIM_DECODER(elect);
SIM_DECODER(fence);
SIM_DECODER(ldmatrix);
SIM_DECODER(stmatrix);
SIM_DECODER(movmatrix);
SIM_DECODER(mma);
SIM_DECODER(wmma);
SIM_DECODER(cp);
SIM_DECODER(prefetch);
SIM_DECODER(nothing);
/* sm_90: those that end in _sm90 go on to the older ones where the words are theirs. */
SIM_DECODER(fence_sm90);
SIM_DECODER(barrier_sm90);
SIM_DECODER(cp_sm90);
SIM_DECODER(prefetch_sm90);
SIM_DECODER(st_sm90);
SIM_DECODER(red_sm90);
SIM_DECODER(copy_arrival);
SIM_DECODER(bulk);
SIM_DECODER(mbarrier);
SIM_DECODER(wgmma);
SIM_DECODER(tcgen05);
SIM_DECODER(tensor_product); /* tcgen05.mma, .cp, .shift, .ld, .st */
SIM_DECODER(tensor_copy);
SIM_DECODER(tensor_shift);
SIM_DECODER(tensor_load);
SIM_DECODER(tensor_store);
SIM_DECODER(mapa);
SIM_DECODER(getctarank);
SIM_DECODER(setmaxnreg);
SIM_DECODER(griddepcontrol);
SIM_DECODER(launch_control);
SIM_DECODER(mov_128);
SIM_DECODER(createpolicy);
SIM_DECODER(print); /* system.c: of calls, no instructions of PTX */
SIM_DECODER(assertion);
#endif
