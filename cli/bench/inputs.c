/* SPDX-License-Identifier: MIT
 * Inputs of the problems that `attn bench` measures: values as in shared/fill.c, but drawn for a part of a large tensor
 * and repeated, since a benchmark needs their distribution and not their independence. */
#include "bench/bench.h"

#include <string.h>

/* Fill a role whose values are independent draws: the first million of them, then copies. The period divides no width,
 * so that rows repeat at other places. */
static attn_status fill_long(struct attn_cli_tensors *set, int32_t role) {
    const uint64_t period = 1048573;
    attn_tensor *t = &set->tensor[role];
    const uint64_t bytes = t->bytes, part = period * attn_dtype_bytes(t->dtype);
    if (bytes > part) t->bytes = part;
    attn_status status = attn_cli_tensors_fill_role(set, role, 0);
    for (uint64_t done = t->bytes; done < bytes; done += part) {
        uint64_t n = bytes - done < part ? bytes - done : part;
        memcpy((char *)t->data + done, t->data, (size_t)n);
    }
    t->bytes = bytes;
    return status;
}

static int is_long(int32_t role) {
    static const int32_t roles[] = {ATTN_ROLE_Q,    ATTN_ROLE_K,    ATTN_ROLE_V,    ATTN_ROLE_KV,
                                    ATTN_ROLE_MASK, ATTN_ROLE_DOUT, ATTN_ROLE_DLSE, ATTN_ROLE_DKV};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (roles[i] == role) return 1;
    return 0;
}

/* Roles that get no memory. */
static uint64_t left_out(const attn_problem *problem, const char *outputs) {
    if (!outputs) return UINT64_C(1) << ATTN_ROLE_LSE_ROUNDED | UINT64_C(1) << ATTN_ROLE_MAX_LOGITS;
    uint64_t skip = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use = ATTN_USE_NONE;
        attn_tensor unused;
        if (attn_role_tensor(problem, role, &use, &unused)) continue;
        if (use == ATTN_USE_OUT_OPTIONAL && !attn_cli_lists(outputs, role)) skip |= UINT64_C(1) << role;
    }
    return skip;
}

attn_status attn_cli_bench_inputs(attn_ctx *ctx, attn_device device, const attn_problem *problem, const char *outputs,
                                  const struct attn_cli_drawn *drawn, struct attn_cli_tensors *out,
                                  struct attn_cli_overlap_measured *measured) {
    attn_status status = attn_cli_tensors_create_except(out, problem, left_out(problem, outputs));
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        int32_t use = out->use[role];
        if (!out->memory[role] || (use != ATTN_USE_IN && use != ATTN_USE_INOUT_OPTIONAL)) continue;
        status = is_long(role) ? fill_long(out, role) : attn_cli_tensors_fill_role(out, role, 0);
    }
    const struct attn_cli_overlap *overlap = &drawn->overlap;
    int32_t *indices = out->memory[ATTN_ROLE_INDICES];
    if (!status && overlap->kind) status = attn_cli_overlap_fill(overlap, problem, indices, 0);
    if (status) return status;
    attn_cli_lengths_fill(out, drawn->least_length);
    if (overlap->kind) status = attn_cli_overlap_measure(problem, indices, NULL, measured);
    if (status) return status;
    return attn_cli_tensors_forward_on(ctx, device, out);
}
