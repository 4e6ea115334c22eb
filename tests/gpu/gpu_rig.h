/* SPDX-License-Identifier: MIT
 * What the GPU tests share: a device with its driver, and a walk over every kernel row that the library lists for it. A
 * row gets small problems of its operator and dtype until it has accepted a few, so that a new row is tested with no
 * further edit. Numbers against the reference are the business of `attn check`; here executions are compared. */
#ifndef GPU_RIG_H
#define GPU_RIG_H
#include "attn.h"
#include "gpu/gpu_calls.h"
#include "shared/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct gpu_rig {
    attn_ctx *ctx;
    attn_device device;
    void *library;
    cu_device handle;
    cu_context context;
    int blank; /* 1: no data in tensors and workspace, since the driver computes nothing */
#define GPU_MEMBER(symbol, parameters) cu_result(*symbol) parameters;
    GPU_CALLS(GPU_MEMBER)
#undef GPU_MEMBER
};
/* The first CUDA device, or that of GPU_TEST_DEVICE. 0 or 77 with the reason printed; the device's context is current
 * in the calling thread then. */
int gpu_rig_open(struct gpu_rig *rig);
void gpu_rig_close(struct gpu_rig *rig);
/* Fails the test if the driver's call failed. */
#define GPU_OK(call) assert_int_equal((call), 0)
cu_stream gpu_stream_new(const struct gpu_rig *rig);

/* A problem on the device: tensors there, their start values on the host, a workspace. */
struct gpu_side {
    attn_tensor tensor[ATTN_ROLE_COUNT];
    attn_args args;
    void *workspace;
};
struct gpu_case {
    const struct gpu_rig *rig;
    attn_kernel_info kernel;
    attn_plan *plan;
    attn_plan_info info;
    attn_problem problem;
    char text[360]; /* kernel and problem, for messages */
    struct attn_cli_tensors host;
    struct gpu_side side;
};
/* Call f once for every case of every CUDA row; rows that accept none of the problems fail, unless for want of an
 * image. GPU_TEST_KERNEL (a pattern) and GPU_TEST_CASES (problems per row, default 3) narrow it. */
void gpu_walk(const struct gpu_rig *rig, void (*f)(struct gpu_case *));

/* Plan, tensors with data and everything else of a case whose rig, kernel and problem
 * are set; what a case of the walk has. */
void gpu_case_open(struct gpu_case *c);
void gpu_case_close(struct gpu_case *c);

/* Another set of tensors of the case on the device, with the same start values. */
void gpu_side_make(const struct gpu_case *c, struct gpu_side *side);
void gpu_side_free(const struct gpu_case *c, struct gpu_side *side);
/* Every byte of the outputs 0xff (NaN), or their start values if they are added to; every byte of the workspace
 * `workspace`. Returns when it is done. */
void gpu_side_poison(const struct gpu_case *c, const struct gpu_side *side, int workspace);

/* The outputs' bytes one after another (malloc); gpu_outputs_bytes says how many. */
unsigned char *gpu_outputs(const struct gpu_case *c, const struct gpu_side *side);
size_t gpu_outputs_bytes(const struct gpu_case *c);
/* Both are results of the case: the same bits if its plan promises them, else equal within the rounding of sums in
 * another order. `what` goes into the message. */
void gpu_assert_same(const struct gpu_case *c, const unsigned char *a, const unsigned char *b, const char *what);
/* Root mean square difference of n elements relative to their size, where equal non-finite ones count as equal; and
 * what sums in another order may differ by. */
double gpu_distance(int32_t dtype, int64_t n, const void *a, const void *b);
double gpu_allowed(int32_t dtype);
/* Every output holds finite values other than 0, and not the poison. */
void gpu_assert_written(const struct gpu_case *c, const unsigned char *outputs);
void gpu_assert_inputs_intact(const struct gpu_case *c, const struct gpu_side *side);
/* Execute on a stream and wait. */
void gpu_execute(const struct gpu_case *c, const struct gpu_side *side, cu_stream stream);
#endif
