/* SPDX-License-Identifier: MIT
 * Which tables of spellings and which grammars the decoder looks through. */
#include "exec/exec.h"

/* Filled before the first decode: the tables' lengths are constants of other files. */
#define N_TABLES 7
struct sim_op_table sim_tables[N_TABLES];
const uint32_t sim_n_tables = N_TABLES;

__attribute__((constructor)) static void fill(void) {
    sim_tables[0] = (struct sim_op_table){sim_ops_int, sim_n_ops_int};
    sim_tables[1] = (struct sim_op_table){sim_ops_bits, sim_n_ops_bits};
    sim_tables[2] = (struct sim_op_table){sim_ops_float, sim_n_ops_float};
    sim_tables[3] = (struct sim_op_table){sim_ops_half, sim_n_ops_half};
    sim_tables[4] = (struct sim_op_table){sim_ops_double, sim_n_ops_double};
    sim_tables[5] = (struct sim_op_table){sim_ops_control, sim_n_ops_control};
    sim_tables[6] = (struct sim_op_table){sim_ops_fp8, sim_n_ops_fp8};
}

#define BY_NAME(word)                                                                                                  \
    { #word, sim_decode_##word }
const struct sim_grammar sim_grammars[] = {
    BY_NAME(mov),
    BY_NAME(setp),
    BY_NAME(testp),
    BY_NAME(cvt),
    BY_NAME(cvta),
    {"add", sim_decode_float},
    {"sub", sim_decode_float},
    {"mul", sim_decode_float},
    {"fma", sim_decode_float},
    {"mad", sim_decode_float},
    {"div", sim_decode_float},
    {"rcp", sim_decode_float},
    {"sqrt", sim_decode_float},
    BY_NAME(ld),
    {"ldu", sim_decode_ld},
    {"st", sim_decode_st_sm90},
    BY_NAME(atom),
    {"red", sim_decode_red_sm90},
    BY_NAME(bra),
    BY_NAME(bar),
    {"barrier", sim_decode_barrier_sm90},
    BY_NAME(shfl),
    BY_NAME(vote),
    BY_NAME(match),
    BY_NAME(redux),
    BY_NAME(elect),
    {"fence", sim_decode_fence_sm90},
    {"membar", sim_decode_fence},
    BY_NAME(ldmatrix),
    BY_NAME(stmatrix),
    BY_NAME(movmatrix),
    BY_NAME(mma),
    {"wmma", sim_decode_wmma},
    {"cp", sim_decode_cp_sm90},
    {"prefetch", sim_decode_prefetch_sm90},
    {"prefetchu", sim_decode_prefetch},
    {"discard", sim_decode_nothing},
    {"applypriority", sim_decode_nothing},
    {"nanosleep", sim_decode_nothing},
    {"pmevent", sim_decode_nothing},
    BY_NAME(mbarrier),
    BY_NAME(wgmma),
    BY_NAME(tcgen05),
    BY_NAME(mapa),
    BY_NAME(getctarank),
    BY_NAME(setmaxnreg),
    BY_NAME(griddepcontrol),
    BY_NAME(createpolicy),
    {"clusterlaunchcontrol", sim_decode_launch_control},
    {"call_vprintf", sim_decode_print},
    {"call_assertfail", sim_decode_assertion},
};
const uint32_t sim_n_grammars = sizeof sim_grammars / sizeof *sim_grammars;
