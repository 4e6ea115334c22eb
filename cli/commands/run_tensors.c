/* SPDX-License-Identifier: MIT
 * `attn run`: reads the given arrays and binds them to the roles of the problem - dtype conversion, axis order,
 * broadcast masks - and fills what was not given. */
#include "commands/run.h"

#include <stdlib.h>
#include <string.h>

static int reads(int32_t use) { return use == ATTN_USE_IN || use == ATTN_USE_INOUT_OPTIONAL; }

int attn_cli_run_read(struct attn_cli_run *run) {
    struct attn_cli_fault fault;
    int from_stdin = run->in && !strcmp(run->in, "-");
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (run->files[role] && !strcmp(run->files[role], "-") && from_stdin++)
            return attn_cli_usage("run", "standard input can be read only once");
    if (run->in) {
        if (attn_cli_safetensors_read(run->in, &run->archive, &fault)) return attn_cli_die("run", "%s", fault.text);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            const struct attn_cli_array *found = attn_cli_archive_find(&run->archive, attn_role_name(role));
            if (!found) continue;
            run->given[role] = *found;
            run->given[role].name = NULL; /* borrowed from the archive, which frees both */
            run->given[role].owned = NULL;
            run->have[role] = 1;
        }
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!run->files[role]) continue;
        if (attn_cli_npy_read(run->files[role], &run->given[role], &fault))
            return attn_cli_die("run", "%s", fault.text);
        run->have[role] = 1;
    }
    return ATTN_CLI_OK;
}

void attn_cli_run_free(struct attn_cli_run *run) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) attn_cli_array_free(&run->given[role]);
    attn_cli_archive_free(&run->archive);
    attn_cli_tensors_destroy(&run->set);
}

static int floating(int32_t dtype) {
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16 || dtype == ATTN_F64 || dtype == ATTN_E4M3;
}

/* The array with another element type, in its own memory. */
static int convert(struct attn_cli_array *a, int32_t dtype, const char *name) {
    int64_t n = attn_cli_array_count(a);
    if (a->dtype == dtype) return ATTN_CLI_OK;
    int narrow = a->dtype == ATTN_I64 && dtype == ATTN_I32;
    if (!narrow && !(floating(a->dtype) && floating(dtype)))
        return attn_cli_die("run", "%s: expected %s, given %s", name, attn_dtype_name(dtype),
                            attn_dtype_name(a->dtype));
    size_t bytes = (size_t)n * attn_dtype_bytes(dtype);
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) return attn_cli_die("run", "out of memory");
    for (int64_t i = 0; narrow && i < n; i++) {
        int64_t value = ((const int64_t *)a->data)[i];
        if (value < INT32_MIN || value > INT32_MAX) {
            free(memory);
            return attn_cli_die("run", "%s: element %lld does not fit 32 bits", name, (long long)i);
        }
        ((int32_t *)memory)[i] = (int32_t)value;
    }
    if (!narrow && attn_convert(memory, dtype, a->data, a->dtype, (size_t)n)) {
        free(memory);
        return attn_cli_die("run", "%s: %s", name, attn_last_error());
    }
    free(a->owned);
    a->data = a->owned = memory;
    a->bytes = bytes;
    a->dtype = dtype;
    return ATTN_CLI_OK;
}

int attn_cli_run_swaps(const struct attn_cli_run *run, int32_t role) {
    static const int32_t roles[] = {ATTN_ROLE_Q,  ATTN_ROLE_K,  ATTN_ROLE_V,  ATTN_ROLE_OUT,
                                    ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV, ATTN_ROLE_DOUT};
    int32_t op = run->set.problem.op;
    if (!run->bshd || (op != ATTN_OP_SDPA_FWD && op != ATTN_OP_SDPA_BWD)) return 0;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (roles[i] == role) return 1;
    return 0;
}

/* Strides of a buffer whose rows come before its heads. */
static void swap_strides(attn_tensor *t) {
    int h = t->rank - 3, s = t->rank - 2; /* [H,S,D] or [B,H,S,D] */
    t->strides[s] = t->shape[h] * t->shape[s + 1];
    t->strides[h] = t->shape[s + 1];
}

static int same_shape(const attn_tensor *t, const struct attn_cli_array *a, int swapped) {
    int64_t want[ATTN_MAX_RANK];
    memcpy(want, t->shape, sizeof want);
    if (swapped) {
        int64_t other = want[t->rank - 3];
        want[t->rank - 3] = want[t->rank - 2];
        want[t->rank - 2] = other;
    }
    int i = 0, k = 0;
    for (;;) { /* extents of 1 may be written or left out */
        while (i < t->rank && want[i] == 1) i++;
        while (k < a->rank && a->shape[k] == 1) k++;
        if (i == t->rank || k == a->rank) return i == t->rank && k == a->rank;
        if (want[i++] != a->shape[k++]) return 0;
    }
}

static void shape_text(const int64_t *shape, int rank, char *buf, size_t bytes) {
    int n = snprintf(buf, bytes, "[");
    for (int i = 0; i < rank; i++)
        n += snprintf(buf + n, bytes - (size_t)n, "%s%lld", i ? "," : "", (long long)shape[i]);
    snprintf(buf + n, bytes - (size_t)n, "]");
}

/* NumPy's rule: axes are matched from the right, an extent of 1 is repeated. */
static int broadcast(attn_tensor *t, const struct attn_cli_array *a) {
    if (a->rank > t->rank) return -1;
    int64_t step = 1;
    for (int i = t->rank - 1, k = a->rank - 1; i >= 0; i--, k--) {
        int64_t extent = k >= 0 ? a->shape[k] : 1;
        if (extent != t->shape[i] && extent != 1) return -1;
        t->strides[i] = extent == 1 && t->shape[i] != 1 ? 0 : step;
        step *= extent;
    }
    return 0;
}

static int bind(struct attn_cli_run *run, int32_t role) {
    struct attn_cli_array *a = &run->given[role];
    attn_tensor *t = &run->set.tensor[role];
    int swapped = attn_cli_run_swaps(run, role), code = convert(a, t->dtype, attn_role_name(role));
    if (code) return code;
    int fits;
    if (role == ATTN_ROLE_MASK) {
        fits = !broadcast(t, a);
    } else if (role == ATTN_ROLE_ALIBI) { /* the library takes [HQ], [1,HQ] and [B,HQ] */
        fits = a->rank == 1 || a->rank == 2;
        t->rank = fits ? a->rank : t->rank;
        for (int i = 0; fits && i < a->rank; i++)
            t->shape[i] = a->shape[i], t->strides[i] = i + 1 < a->rank ? a->shape[1] : 1;
    } else {
        fits = same_shape(t, a, swapped);
        if (swapped) swap_strides(t);
    }
    if (!fits) {
        char want[128], given[256];
        int64_t shape[ATTN_MAX_RANK];
        memcpy(shape, t->shape, sizeof shape);
        if (swapped) shape[t->rank - 3] = t->shape[t->rank - 2], shape[t->rank - 2] = t->shape[t->rank - 3];
        shape_text(shape, t->rank, want, sizeof want);
        shape_text(a->shape, a->rank, given, sizeof given);
        return attn_cli_die("run", "%s: expected shape %s, given %s", attn_role_name(role), want, given);
    }
    t->data = (void *)(uintptr_t)a->data; /* inputs are not written; the accumulated ones are copied below */
    t->bytes = a->bytes;
    if (run->set.use[role] == ATTN_USE_INOUT_OPTIONAL) {
        struct attn_cli_fault fault;
        if (attn_cli_array_own(a, &fault)) return attn_cli_die("run", "%s", fault.text);
        t->data = a->owned;
    }
    attn_args_set(&run->set.args, role, t);
    return ATTN_CLI_OK;
}

/* dmask and dalibi have the form of the tensor they belong to: repeated axes are summed over. */
static int bind_gradient(struct attn_cli_run *run, int32_t role, int32_t primal) {
    struct attn_cli_tensors *set = &run->set;
    if (set->use[role] == ATTN_USE_NONE || !run->have[primal] || !attn_cli_run_wanted(run, role)) return ATTN_CLI_OK;
    attn_tensor *t = &set->tensor[role];
    int32_t dtype = t->dtype;
    *t = set->tensor[primal];
    t->dtype = dtype;
    t->bytes = (uint64_t)attn_cli_array_count(&run->given[primal]) * attn_dtype_bytes(dtype);
    t->data = set->memory[role] = aligned_alloc(64, (size_t)(t->bytes + 64) / 64 * 64);
    if (!t->data) return attn_cli_die("run", "out of memory");
    attn_args_set(&set->args, role, t);
    return ATTN_CLI_OK;
}

static int supply(struct attn_cli_run *run, attn_ctx *ctx) {
    struct attn_cli_tensors *set = &run->set;
    int out = set->use[ATTN_ROLE_OUT] == ATTN_USE_IN, lse = set->use[ATTN_ROLE_LSE] == ATTN_USE_IN, any = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) any |= run->have[role];
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!reads(set->use[role]) || run->have[role] || role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE ||
            role == ATTN_ROLE_JOINED)
            continue;
        attn_status status = ATTN_OK;
        if (!any || run->have_seed)
            status = attn_cli_tensors_fill_role(set, role, (uint64_t)run->seed);
        else if (set->use[role] == ATTN_USE_IN)
            return attn_cli_usage("run", "%s is missing (--seed N would fill it with random numbers)",
                                  attn_role_name(role));
        else if (set->memory[role]) /* nothing to add to: start from 0 */
            memset(set->memory[role], 0, (size_t)set->tensor[role].bytes);
        if (status) return attn_cli_die("run", "%s: %s", attn_role_name(role), attn_status_text(status));
    }
    attn_status joined = attn_cli_tensors_joined(ctx, set);
    if (joined) return attn_cli_library("run", joined, "the joined lists");
    if (out && lse && run->have[ATTN_ROLE_OUT] != run->have[ATTN_ROLE_LSE])
        return attn_cli_usage("run", "give both out and lse, or neither to have them computed");
    if (!lse || run->have[ATTN_ROLE_LSE]) return ATTN_CLI_OK;
    attn_status status = attn_cli_tensors_forward_on(ctx, run->common.device, set);
    return status ? attn_cli_library("run", status, "the forward that lse comes from") : ATTN_CLI_OK;
}

/* Arrays that the problem does not read: a fault if named on the command line, else (one of a file of many) dropped. */
static int drop_unread(struct attn_cli_run *run, const attn_problem *problem, int32_t role) {
    int32_t use = ATTN_USE_NONE;
    attn_role_tensor(problem, role, &use, NULL);
    if (!run->have[role] || reads(use)) return ATTN_CLI_OK;
    if (run->files[role])
        return attn_cli_usage("run", "this problem does not read %s; a word in the problem text may ask for it",
                              attn_role_name(role));
    attn_cli_warn("run", "this problem does not read the %s of %s", attn_role_name(role), run->in);
    run->have[role] = 0;
    return ATTN_CLI_OK;
}

int attn_cli_run_bind(struct attn_cli_run *run, attn_ctx *ctx, const attn_problem *problem) {
    uint64_t skip = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use = ATTN_USE_NONE;
        int code = drop_unread(run, problem, role);
        if (code) return code;
        attn_role_tensor(problem, role, &use, NULL);
        int optional = use == ATTN_USE_OUT_OPTIONAL || use == ATTN_USE_INOUT_OPTIONAL;
        if (run->have[role] || (optional && !attn_cli_run_wanted(run, role))) skip |= UINT64_C(1) << role;
    }
    if (run->have[ATTN_ROLE_MASK]) skip |= UINT64_C(1) << ATTN_ROLE_DMASK;
    if (run->have[ATTN_ROLE_ALIBI]) skip |= UINT64_C(1) << ATTN_ROLE_DALIBI;
    attn_status status = attn_cli_tensors_create_except(&run->set, problem, skip);
    if (status) return attn_cli_die("run", "%s", status == ATTN_E_MEMORY ? "out of memory" : attn_last_error());
    int code = ATTN_CLI_OK;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !code; role++) {
        if (run->have[role])
            code = bind(run, role);
        else if (run->set.use[role] != ATTN_USE_NONE && attn_cli_run_swaps(run, role))
            swap_strides(&run->set.tensor[role]);
    }
    if (!code) code = bind_gradient(run, ATTN_ROLE_DMASK, ATTN_ROLE_MASK);
    if (!code) code = bind_gradient(run, ATTN_ROLE_DALIBI, ATTN_ROLE_ALIBI);
    return code ? code : supply(run, ctx);
}
