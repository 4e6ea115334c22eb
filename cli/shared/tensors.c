/* SPDX-License-Identifier: MIT
 * The tensors of a problem: allocation by role, the forward that a backward's inputs come from, element access.
 * What goes into the inputs is in fill.c. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "shared/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Large tensors ask for large pages, as those of NumPy do from the same size on: rows gathered from anywhere then miss
 * fewer address translations. So does a workspace from LARGE_WORK on: what a kernel keeps in the second-level cache
 * then lies there without crowding a part of it. */
enum { LARGE = 4 << 20, LARGE_WORK = 1 << 20, LARGE_PAGE = 2 << 20 };
static void *allocate(uint64_t bytes, uint64_t large, size_t least) {
    const size_t align = bytes < large ? least : LARGE_PAGE;
    if (bytes > (uint64_t)PTRDIFF_MAX - align) return NULL;
    const size_t rounded = ((size_t)bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded ? rounded : align);
#ifdef MADV_HUGEPAGE
    if (memory && bytes >= large) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    return memory;
}

attn_status attn_cli_tensors_create(struct attn_cli_tensors *set, const attn_problem *problem) {
    return attn_cli_tensors_create_except(set, problem, 0);
}

attn_status attn_cli_tensors_create_except(struct attn_cli_tensors *set, const attn_problem *problem, uint64_t skip) {
    *set = (struct attn_cli_tensors){.problem = *problem, .args = ATTN_ARGS_INIT};
    attn_status status = attn_problem_check(problem);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        attn_tensor *t = &set->tensor[role];
        status = attn_role_tensor(problem, role, &set->use[role], t);
        if (status || set->use[role] == ATTN_USE_NONE || (skip >> role & 1)) continue;
        set->memory[role] = allocate(t->bytes, LARGE, 64);
        if (!set->memory[role]) {
            status = ATTN_E_MEMORY;
            break;
        }
        memset(set->memory[role], 0xff, (size_t)t->bytes);
        t->data = set->memory[role];
        status = attn_args_set(&set->args, role, t);
    }
    if (status) attn_cli_tensors_destroy(set);
    return status;
}

void attn_cli_tensors_destroy(struct attn_cli_tensors *set) {
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        free(set->memory[role]);
        set->memory[role] = NULL;
        set->tensor[role].data = NULL;
    }
    set->args = (attn_args)ATTN_ARGS_INIT;
}

/* The forward whose out and lse a problem reads; op NONE if it reads neither. */
static attn_problem forward_of(const attn_problem *problem) {
    attn_problem p = *problem;
    p.op = problem->op == ATTN_OP_SDPA_BWD                                 ? ATTN_OP_SDPA_FWD
           : problem->op == ATTN_OP_MLA_BWD || problem->op == ATTN_OP_DIST ? ATTN_OP_MLA_FWD
                                                                           : ATTN_OP_NONE;
    p.flags &= ~(ATTN_DLSE | ATTN_GRAD_MASK | ATTN_GRAD_ALIBI | ATTN_GRAD_SINK | ATTN_ACCUMULATE | ATTN_WITH_DIST);
    p.dkv_dtype = ATTN_DTYPE_NONE;
    p.dist_norm = ATTN_DIST_SUM;
    return p;
}

static attn_status run_forward(attn_ctx *ctx, attn_device device, const attn_problem *p, const attn_args *args) {
    attn_plan *plan = NULL;
    if (device.type == ATTN_DEVICE_TYPE_CPU) return attn_run(ctx, device, p, args);
    attn_status status = attn_plan_create(ctx, device, p, NULL, &plan);
    if (status == ATTN_E_NO_KERNEL) return attn_run(ctx, ATTN_DEVICE_CPU, p, args);
    if (!status) status = attn_cli_execute(ctx, plan, args, NULL);
    attn_plan_release(plan);
    return status;
}

attn_status attn_cli_tensors_forward_on(attn_ctx *ctx, attn_device device, struct attn_cli_tensors *set) {
    attn_problem p = forward_of(&set->problem);
    attn_status status = attn_cli_tensors_joined(ctx, set);
    if (status || p.op == ATTN_OP_NONE) return status;
    attn_args args = ATTN_ARGS_INIT;
    attn_tensor out = {0};
    void *scratch = NULL; /* dist reads lse but not out, which the forward must write somewhere */
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        int32_t use;
        attn_tensor expected;
        status = attn_role_tensor(&p, role, &use, &expected);
        if (status || use == ATTN_USE_NONE) continue;
        if (set->use[role] == ATTN_USE_IN) {
            status = attn_args_set(&args, role, &set->tensor[role]);
        } else if (use == ATTN_USE_OUT) {
            free(scratch);
            scratch = allocate(expected.bytes, LARGE, 64);
            if (!scratch) status = ATTN_E_MEMORY;
            out = expected;
            out.data = scratch;
            if (!status) status = attn_args_set(&args, role, &out);
        }
    }
    if (!status) status = run_forward(ctx, device, &p, &args);
    free(scratch);
    return status;
}

attn_status attn_cli_tensors_forward(attn_ctx *ctx, struct attn_cli_tensors *set) {
    return attn_cli_tensors_forward_on(ctx, ATTN_DEVICE_CPU, set);
}

void attn_cli_tensors_full_lengths(struct attn_cli_tensors *set) {
    const attn_problem *p = &set->problem;
    const struct {
        int32_t role;
        int64_t value;
    } lengths[] = {{ATTN_ROLE_SEQLENS_Q, p->seq_q}, {ATTN_ROLE_SEQLENS_K, p->seq_k}, {ATTN_ROLE_TOPK_LENGTH, p->topk}};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const attn_tensor *t = &set->tensor[lengths[k].role];
        if (set->use[lengths[k].role] == ATTN_USE_NONE) continue;
        for (uint64_t i = 0; i < t->bytes / 4; i++) ((int32_t *)t->data)[i] = (int32_t)lengths[k].value;
    }
}

void *attn_cli_workspace(const attn_plan_info *info, int *failed) {
    *failed = 0;
    if (!info->workspace_bytes) return NULL;
    const size_t least = info->workspace_alignment > 64 ? (size_t)info->workspace_alignment : 64;
    void *memory = allocate(info->workspace_bytes, LARGE_WORK, least);
    *failed = !memory;
    return memory;
}

double attn_cli_load(const void *data, int32_t dtype, int64_t index) {
    double value = 0;
    switch (dtype) {
    case ATTN_I32: return (double)((const int32_t *)data)[index];
    case ATTN_I64: return (double)((const int64_t *)data)[index];
    case ATTN_BOOL: return ((const unsigned char *)data)[index] != 0;
    default:
        attn_convert(&value, ATTN_F64, (const char *)data + index * (int64_t)attn_dtype_bytes(dtype), dtype, 1);
        return value;
    }
}

void attn_cli_store(void *data, int32_t dtype, int64_t index, double value) {
    switch (dtype) {
    case ATTN_I32: ((int32_t *)data)[index] = (int32_t)value; break;
    case ATTN_I64: ((int64_t *)data)[index] = (int64_t)value; break;
    case ATTN_BOOL: ((unsigned char *)data)[index] = value != 0; break;
    default: attn_convert((char *)data + index * (int64_t)attn_dtype_bytes(dtype), dtype, &value, ATTN_F64, 1);
    }
}
