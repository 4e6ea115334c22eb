/* SPDX-License-Identifier: MIT
 * Check of an execution's tensors against its plan: nothing is read or written through them here. In the order of the
 * role table: presence, then per tensor dtype, rank, shape, strides, address, bytes, device; then overlap of outputs,
 * workspace, stream, and last which of the plan's two kernels these tensors can have. */
#include "core/plan.h"

#include "attn.h"
#include "base/err.h"
#include "base/text.h"
#include "core/dout.h"
#include "core/problem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The first tensors of attn_args stand in the order of the roles, one pointer each: read as an array. Those that came
 * later stand at the end of the struct. */
#define TENSORS_FROM offsetof(attn_args, q)
enum { N_ARRAY = ATTN_ROLE_DSINK + 1 };
#define IN_ORDER(member, role)                                                                                         \
    _Static_assert(offsetof(attn_args, member) == TENSORS_FROM + (role) * sizeof(void *), #member)
IN_ORDER(mask, ATTN_ROLE_MASK);
IN_ORDER(seqlens_q, ATTN_ROLE_SEQLENS_Q);
IN_ORDER(indices, ATTN_ROLE_INDICES);
IN_ORDER(out, ATTN_ROLE_OUT);
IN_ORDER(dout, ATTN_ROLE_DOUT);
IN_ORDER(dq, ATTN_ROLE_DQ);
IN_ORDER(dmask, ATTN_ROLE_DMASK);
IN_ORDER(dsink, N_ARRAY - 1);
_Static_assert(ATTN_ROLE_COUNT == N_ARRAY + 4, "joined and the scales of e4m3 came later");

/* A tensor that passed, as bytes: elements lie in [low, high). */
struct placed {
    const attn_tensor *t;
    int32_t role;
    bool output, has_rows;
    int64_t element;     /* bytes */
    uintptr_t low, high; /* low == high: no elements */
};

static bool is_output(int32_t use) {
    return use == ATTN_USE_OUT || use == ATTN_USE_OUT_OPTIONAL || use == ATTN_USE_INOUT_OPTIONAL;
}

struct shape_text {
    char s[120];
};
static struct shape_text shape_of(const int64_t *shape, int32_t rank) {
    struct shape_text out;
    struct attn_text text = attn_text_over(out.s, sizeof out.s);
    for (int32_t a = 0; a < rank; a++) attn_text_add(&text, "%s%" PRId64, a ? "," : "[", shape[a]);
    attn_text_add(&text, "]");
    return out;
}

/* A tensor that is missing or not wanted. */
static attn_status fail_presence(const attn_problem *p, const attn_tensor *t, int32_t role) {
    const char *name = attn_role_name(role), *op = attn_core_op_name(p->op);
    struct attn_core_role r;
    attn_core_role_get(p, role, &r);
    if (t) FAIL(ATTN_E_ARGUMENT, name, "%s is given, but this %s problem does not use it: expected NULL", name, op);
    FAIL(ATTN_E_ARGUMENT, name, "%s is NULL, but this %s problem needs it: expected shape %s of %s", name, op,
         shape_of(r.shape, r.rank).s, attn_dtype_name(r.dtype));
}

/* The batch axis may be left out by sparse operators with B = 1, and be added to slopes ([HQ] to [1,HQ] or [B,HQ]). */
static bool shape_fits(const attn_problem *p, const attn_tensor *t, int32_t role, const struct attn_core_role *r) {
    int32_t skip_want = 0, skip_given = 0;
    if (t->rank == r->rank + 1 && (role == ATTN_ROLE_ALIBI || role == ATTN_ROLE_DALIBI)) {
        if (t->shape[0] != 1 && t->shape[0] != p->batch) return false;
        skip_given = 1;
    } else if (t->rank == r->rank - 1 && p->op >= ATTN_OP_MLA_FWD && p->batch == 1 &&
               attn_core_role_axes(p, role)[0] == 'b') {
        skip_want = 1;
    } else if (t->rank != r->rank) {
        return false;
    }
    for (int32_t a = skip_given; a < t->rank; a++)
        if (t->shape[a] != r->shape[a - skip_given + skip_want]) return false;
    return true;
}

/* expected and given of the error record: the two ranks, or the first extents that differ. */
static attn_status fail_shape(const attn_problem *p, const attn_tensor *t, int32_t role,
                              const struct attn_core_role *r) {
    const char *name = attn_role_name(role), *also = "";
    int64_t expected = r->rank, given = t->rank;
    if (t->rank == r->rank)
        for (int32_t a = 0; a < r->rank; a++)
            if (t->shape[a] != r->shape[a]) {
                expected = r->shape[a];
                given = t->shape[a];
                break;
            }
    if (role == ATTN_ROLE_ALIBI || role == ATTN_ROLE_DALIBI) also = " or that with a leading 1 or B";
    if (p->op >= ATTN_OP_MLA_FWD && p->batch == 1 && attn_core_role_axes(p, role)[0] == 'b')
        also = " or that without the batch axis";
    if (t->rank != r->rank)
        FAIL2(ATTN_E_SHAPE, name, expected, given,
              "%s has rank %" PRId32 " and shape %s, expected rank %" PRId32 " and shape %s%s", name, t->rank,
              shape_of(t->shape, t->rank).s, r->rank, shape_of(r->shape, r->rank).s, also);
    FAIL2(ATTN_E_SHAPE, name, expected, given, "%s has shape %s, expected %s%s", name, shape_of(t->shape, t->rank).s,
          shape_of(r->shape, r->rank).s, also);
}

/* An output's elements are told apart for sure when its axes nest: taken by growing stride, each stride is larger than
 * the way through all axes before it. Every slice, permutation and step of an ordinary buffer nests. An axis of stride
 * 0 is allowed for dmask only, which sums over it. */
static attn_status check_nesting(const attn_tensor *t, int32_t role) {
    const char *name = attn_role_name(role);
    int64_t reach = 0; /* through the axes done so far, in elements */
    bool done[ATTN_MAX_RANK] = {false};
    for (;;) {
        int32_t next = -1;
        for (int32_t a = 0; a < t->rank; a++)
            if (!done[a] && t->shape[a] > 1 && (next < 0 || llabs(t->strides[a]) < llabs(t->strides[next]))) next = a;
        if (next < 0) return ATTN_OK;
        done[next] = true;
        int64_t stride = llabs(t->strides[next]);
        if (stride == 0 && role == ATTN_ROLE_DMASK) continue;
        if (stride <= reach)
            FAIL2(ATTN_E_STRIDE, name, reach + 1, stride,
                  "%s is an output, but its elements overlap: stride %" PRId64 " of axis %" PRId32
                  ", expected at least %" PRId64 " in size",
                  name, t->strides[next], next, reach + 1);
        reach += (t->shape[next] - 1) * stride;
    }
}

static attn_status check_strides(const attn_tensor *t, int32_t role, bool output) {
    int32_t last = t->rank - 1;
    int64_t inner = t->strides[last];
    bool broadcast = role == ATTN_ROLE_MASK || role == ATTN_ROLE_DMASK;
    bool one_per_row = role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED || role == ATTN_ROLE_DLSE ||
                       role == ATTN_ROLE_MAX_LOGITS || attn_core_is_scale(role); /* read and written one by one: free */
    if (role == ATTN_ROLE_DOUT && attn_core_dout_is_one(t)) return ATTN_OK;
    if (!one_per_row && t->shape[last] > 1 && inner != 1 && !(broadcast && inner == 0))
        FAIL2(ATTN_E_STRIDE, attn_role_name(role), 1, inner, "%s has innermost stride %" PRId64 ", expected 1%s",
              attn_role_name(role), inner,
              broadcast                ? " or 0"
              : role == ATTN_ROLE_DOUT ? ", or 0 on every axis"
                                       : "");
    return output ? check_nesting(t, role) : ATTN_OK;
}

/* Where the elements lie, relative to data: [*before, *after) in bytes, before <= 0. */
static attn_status check_span(const attn_tensor *t, int32_t role, int64_t element, int64_t *before, int64_t *after) {
    int64_t low = 0, high = 0;
    bool over = false;
    for (int32_t a = 0; a < t->rank; a++) {
        if (t->shape[a] <= 1) continue;
        int64_t way;
        over |= t->strides[a] == INT64_MIN || __builtin_mul_overflow(t->shape[a] - 1, t->strides[a], &way);
        if (over) break;
        over |= __builtin_add_overflow(way < 0 ? low : high, way, way < 0 ? &low : &high);
    }
    over |= high == INT64_MAX; /* a flag from above, or no room for the last element */
    over = over || __builtin_mul_overflow(low, element, before) || __builtin_mul_overflow(high + 1, element, after);
    over = over || *before == INT64_MIN; /* its size is no int64_t */
    if (!over) {
        uintptr_t end, data = (uintptr_t)t->data;
        over = __builtin_add_overflow(data, (uintptr_t)*after, &end) || (uintptr_t) - *before > data;
    }
    if (over)
        FAIL(ATTN_E_STRIDE, attn_role_name(role), "%s has strides that lead outside the address space",
             attn_role_name(role));
    return ATTN_OK;
}

static attn_status fail_bytes(const attn_tensor *t, const char *name, int64_t before, int64_t after) {
    if (before)
        FAIL2(ATTN_E_BUFFER, name, after, (int64_t)t->bytes,
              "%s needs %" PRId64 " bytes from its data on (and %" PRId64
              " before it, for its negative strides), but %" PRIu64 " are given",
              name, after, -before, t->bytes);
    FAIL2(ATTN_E_BUFFER, name, after, (int64_t)t->bytes,
          "%s needs %" PRId64 " bytes for its shape %s and strides, but %" PRIu64 " are given", name, after,
          shape_of(t->shape, t->rank).s, t->bytes);
}

#define NAME attn_role_name(place->role)
static attn_status check_memory(const struct attn_plan *plan, struct placed *place) {
    const attn_tensor *t = place->t;
    for (int32_t a = 0; a < t->rank; a++)
        if (t->shape[a] == 0) return ATTN_OK; /* no elements, no storage, no strides */
    if (!t->data)
        FAIL(ATTN_E_ARGUMENT, NAME, "%s.data is NULL, but its shape %s has elements", NAME,
             shape_of(t->shape, t->rank).s);
    int64_t before = 0, after = 0;
    TRY(check_span(t, place->role, place->element, &before, &after));
    TRY(check_strides(t, place->role, place->output));
    int64_t off = (int64_t)((uintptr_t)t->data & (uintptr_t)(place->element - 1)); /* sizes are powers of two */
    if (off)
        FAIL2(ATTN_E_ALIGNMENT, NAME, place->element, off,
              "%s.data = %p is %" PRId64 " bytes past a multiple of %" PRId64 ", the size of its elements", NAME,
              t->data, off, place->element);
    if (t->bytes && t->bytes < (uint64_t)after) return fail_bytes(t, NAME, before, after);
    attn_device want = plan->device->id;
    if (t->device.type != want.type || t->device.index != want.index)
        FAIL2(ATTN_E_TENSOR_DEVICE, NAME, want.type, t->device.type,
              "%s lives on device type %" PRId32 " number %" PRId32 ", expected that of the plan, type %" PRId32
              " number %" PRId32 " (0 = CPU, 1 = CUDA)",
              NAME, t->device.type, t->device.index, want.type, want.index);
    place->low = (uintptr_t)t->data - (uintptr_t)-before;
    place->high = (uintptr_t)t->data + (uintptr_t)after;
    return ATTN_OK;
}

/* A contiguous tensor of the role's shape, in few comparisons: it keeps all rules. */
static bool is_contiguous(const struct attn_plan *plan, const struct attn_core_role *r, struct placed *place) {
    const attn_tensor *t = place->t;
    const attn_device want = plan->device->id;
    const uintptr_t data = (uintptr_t)t->data;
    if (!r->bytes || t->rank != r->rank) return false;
    uint64_t differs =
        (uint32_t)((t->dtype ^ r->dtype) | (t->device.type ^ want.type) | (t->device.index ^ want.index));
    for (int32_t a = 0; a < r->rank; a++)
        differs |= (uint64_t)((t->shape[a] ^ r->shape[a]) | (t->strides[a] ^ r->strides[a]));
    if (differs || !data || data >> 60 || data & (uintptr_t)(place->element - 1)) return false;
    if (t->bytes && t->bytes < (uint64_t)r->bytes) return false;
    place->low = data;
    place->high = data + (uintptr_t)r->bytes;
    return true;
}

/* The usual tensor in one pass: the shape of the role, an axis of stride 1 and others outside it in their order, none
 * of them huge. It keeps all rules; of what is not usual, the rules are asked one by one, and they know the words. */
static bool is_usual(const struct attn_plan *plan, const struct attn_core_role *r, struct placed *place) {
    const attn_tensor *t = place->t;
    const attn_device want = plan->device->id;
    const uintptr_t data = (uintptr_t)t->data;
    const uint64_t huge = UINT64_C(1) << 31;
    uint64_t reach = 0; /* through the axes done so far, in elements */
    if (t->dtype != r->dtype || t->rank != r->rank || t->shape[t->rank - 1] < 1) return false;
    if (t->shape[t->rank - 1] > 1 && t->strides[t->rank - 1] != 1) return false;
    for (int32_t a = t->rank - 1; a >= 0; a--) {
        const uint64_t n = (uint64_t)t->shape[a], stride = (uint64_t)t->strides[a];
        if (t->shape[a] != r->shape[a] || n == 0 || n > huge) return false;
        if (n == 1) continue;
        if (stride <= reach || stride > huge) return false;
        reach += (n - 1) * stride;
    }
    const uint64_t bytes = (reach + 1) * (uint64_t)place->element; /* below 2^62 + 2^32 elements */
    if (!data || reach >> 56 || data >> 60 || data & (uintptr_t)(place->element - 1)) return false;
    if ((t->bytes && t->bytes < bytes) || t->device.type != want.type || t->device.index != want.index) return false;
    place->low = data;
    place->high = data + (uintptr_t)bytes;
    return true;
}

static attn_status check_tensor(const struct attn_plan *plan, const struct attn_core_role *r, struct placed *place) {
    const attn_tensor *t = place->t;
    place->element = r->element;
    place->output = is_output(r->use);
    place->has_rows = r->has_rows;
    if (is_contiguous(plan, r, place) || is_usual(plan, r, place)) return ATTN_OK;
    if (t->dtype != r->dtype)
        FAIL2(ATTN_E_DTYPE, NAME, r->dtype, t->dtype, "%s has dtype %s (%" PRId32 "), expected %s", NAME,
              attn_dtype_name(t->dtype), t->dtype, attn_dtype_name(r->dtype));
    if (t->rank < 1 || t->rank > ATTN_MAX_RANK)
        FAIL2(ATTN_E_SHAPE, NAME, r->rank, t->rank, "%s has rank %" PRId32 ", expected %" PRId32, NAME, t->rank,
              r->rank);
    if (!shape_fits(&plan->problem, t, place->role, r)) return fail_shape(&plan->problem, t, place->role, r);
    return check_memory(plan, place);
}
#undef NAME

/* ---- overlap ---- */

/* Is the byte at `address` part of an element of the tensor? A yes is certain: the address is written as data plus
 * whole strides, largest first. For nesting axes a no is certain too. */
static bool holds_byte(const struct placed *x, uintptr_t address) {
    if (address < x->low || address >= x->high) return false;
    uint64_t rest = address - x->low; /* from the lowest element, strides taken as positive */
    bool done[ATTN_MAX_RANK] = {false};
    for (;;) {
        int32_t next = -1;
        for (int32_t a = 0; a < x->t->rank; a++)
            if (!done[a] && x->t->shape[a] > 1 && x->t->strides[a] &&
                (next < 0 || llabs(x->t->strides[a]) > llabs(x->t->strides[next])))
                next = a;
        if (next < 0) return rest < (uint64_t)x->element;
        done[next] = true;
        uint64_t stride = (uint64_t)llabs(x->t->strides[next]) * (uint64_t)x->element;
        uint64_t steps = rest / stride, most = (uint64_t)x->t->shape[next] - 1;
        rest -= (steps < most ? steps : most) * stride;
    }
}

/* The corners of a tensor are its 2^rank elements at either end of each axis. */
static bool corner_in(const struct placed *x, const struct placed *other) {
    for (uint32_t corner = 0; corner < 1u << x->t->rank; corner++) {
        uintptr_t address = (uintptr_t)x->t->data;
        for (int32_t a = 0; a < x->t->rank; a++)
            if (corner >> a & 1 && x->t->shape[a] > 1)
                address += (uintptr_t)((x->t->shape[a] - 1) * x->t->strides[a] * x->element);
        if (holds_byte(other, address) || holds_byte(other, address + (uintptr_t)x->element - 1)) return true;
    }
    return false;
}

/* Two tensors are refused when their address ranges meet and a corner of one is an element of the other. Slices of one
 * packed buffer, whose ranges interleave without a common element, therefore pass; equal addresses, contiguous tensors
 * that meet and shifted copies of one layout are refused. A common element that is a corner of neither is not found. */
static attn_status check_overlap(const struct placed *all, int32_t n) {
    int meet = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; all[i].output && j < n; j++)
            meet |= (i != j) & (all[i].low < all[j].high) & (all[j].low < all[i].high);
    if (!meet) return ATTN_OK;
    for (int32_t i = 0; i < n; i++) {
        if (!all[i].output) continue;
        for (int32_t j = 0; j < n; j++) {
            const struct placed *x = &all[i], *y = &all[j];
            if (i == j || (y->output && j < i) || x->low >= y->high || y->low >= x->high) continue;
            if (!corner_in(x, y) && !corner_in(y, x)) continue;
            const char *name = attn_role_name(x->role);
            FAIL(ATTN_E_OVERLAP, name,
                 "%s is an output, but shares memory with %s: bytes [%#" PRIxPTR ", %#" PRIxPTR ") and [%#" PRIxPTR
                 ", %#" PRIxPTR "), expected separate elements",
                 name, attn_role_name(y->role), x->low, x->high, y->low, y->high);
        }
    }
    return ATTN_OK;
}

static attn_status check_workspace(const struct attn_plan *plan, const attn_args *args, const struct placed *all,
                                   int32_t n) {
    uint64_t need = plan->workspace_bytes;
    if (!need) return ATTN_OK;
    uint64_t given = args->workspace ? args->workspace_bytes : 0;
    if (!args->workspace)
        FAIL2(ATTN_E_WORKSPACE, "workspace", (int64_t)need, 0,
              "workspace is NULL, but the plan needs %" PRIu64 " bytes", need);
    if (given < need)
        FAIL2(ATTN_E_WORKSPACE, "workspace", (int64_t)need, (int64_t)given,
              "the plan needs %" PRIu64 " bytes of workspace, but workspace_bytes is %" PRIu64, need, given);
    uintptr_t low = (uintptr_t)args->workspace, off = low % ATTN_WORKSPACE_ALIGNMENT, high;
    if (off)
        FAIL2(ATTN_E_WORKSPACE, "workspace", ATTN_WORKSPACE_ALIGNMENT, (int64_t)off,
              "workspace = %p is %" PRIuPTR " bytes past a multiple of %d", args->workspace, off,
              ATTN_WORKSPACE_ALIGNMENT);
    if (__builtin_add_overflow(low, need, &high))
        FAIL(ATTN_E_WORKSPACE, "workspace", "workspace = %p with %" PRIu64 " bytes leaves the address space",
             args->workspace, need);
    /* Seen as a tensor of bytes; the same rule as above. */
    attn_tensor t = {.data = args->workspace, .rank = 1, .shape = {(int64_t)need}, .strides = {1}};
    struct placed w = {.t = &t, .element = 1, .low = low, .high = high};
    for (int32_t i = 0; i < n; i++) {
        if (all[i].low >= high || low >= all[i].high) continue;
        if (corner_in(&w, &all[i]) || corner_in(&all[i], &w))
            FAIL(ATTN_E_OVERLAP, "workspace", "the workspace [%#" PRIxPTR ", %#" PRIxPTR ") shares memory with %s", low,
                 high, attn_role_name(all[i].role));
    }
    return ATTN_OK;
}

/* ---- alignment ---- */

/* The first tensor with rows whose address or outer stride is no multiple of `alignment`, or NULL; *off is the
 * remainder, *axis the axis or -1 for the address. */
static const struct placed *misaligned(const struct placed *all, int32_t n, int64_t alignment, int64_t *off,
                                       int32_t *axis) {
    const uint64_t rest = (uint64_t)alignment - 1; /* a power of two */
    for (int32_t i = 0; i < n; i++) {
        const attn_tensor *t = all[i].t;
        if (all[i].low == all[i].high || !all[i].has_rows) continue;
        if (all[i].role == ATTN_ROLE_DOUT && attn_core_dout_is_one(t)) continue; /* the row made of it is aligned */
        *axis = -1;
        *off = (int64_t)((uintptr_t)t->data & rest);
        for (int32_t a = 0; a < t->rank - 1 && !*off; a++) {
            if (t->shape[a] <= 1) continue;
            *off = (int64_t)((uint64_t)llabs(t->strides[a]) * (uint64_t)all[i].element & rest);
            *axis = a;
        }
        if (*off) return &all[i];
    }
    return NULL;
}

static attn_status fail_alignment(const struct placed *bad, int64_t want, int64_t off, int32_t axis, const char *who) {
    const char *name = attn_role_name(bad->role);
    if (axis < 0)
        FAIL2(ATTN_E_ALIGNMENT, name, want, off,
              "%s.data is %" PRId64 " bytes past a multiple of %" PRId64 ", which %s", name, off, want, who);
    FAIL2(ATTN_E_ALIGNMENT, name, want, off,
          "%s has stride %" PRId64 " in axis %" PRId32 ", %" PRId64 " bytes past a multiple of %" PRId64 ", which %s",
          name, bad->t->strides[axis], axis, off, want, who);
}

static attn_status choose_kernel(const struct attn_plan *plan, const attn_args *args, const struct placed *all,
                                 int32_t n, const struct attn_kernel **kernel) {
    const attn_problem *p = &plan->problem;
    const struct placed *bad;
    int64_t off = 0;
    int32_t axis = -1;
    *kernel = plan->kernel;
    if (p->align_bytes > 1 && (bad = misaligned(all, n, p->align_bytes, &off, &axis)) != NULL)
        return fail_alignment(bad, p->align_bytes, off, axis, "align_bytes promised");
    if (plan->kernel->alignment_bytes > p->align_bytes &&
        (bad = misaligned(all, n, plan->kernel->alignment_bytes, &off, &axis)) != NULL) {
        if (!plan->unaligned)
            return fail_alignment(bad, plan->kernel->alignment_bytes, off, axis, "the plan's only kernel needs");
        *kernel = plan->unaligned;
    }
    if (*kernel == plan->kernel && plan->kernel->refuses_strides) {
        char reason[256];
        struct attn_text why = attn_text_over(reason, sizeof reason);
        int32_t role = 0;
        if (!plan->kernel->refuses_strides(p, args, &role, &why)) return ATTN_OK;
        if (!plan->unaligned)
            FAIL(ATTN_E_STRIDE, attn_role_name(role), "the plan's only kernel, %s, cannot take %s: %s",
                 plan->kernel->name, attn_role_name(role), reason);
        *kernel = plan->unaligned;
    }
    return ATTN_OK;
}

/* Loops that compilers vectorise; the first role that is wrong is looked for only if there is one. */
static attn_status check_presence(const attn_problem *p, const struct attn_core_expected *expected,
                                  const attn_tensor *const *given) {
    uintptr_t stray = 0;
    uint32_t present = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) stray |= (uintptr_t)given[role] & expected->unwanted[role];
    for (int32_t i = 0; i < expected->n_usable; i++)
        present |= (uint32_t)(given[expected->usable[i]] != NULL) << expected->usable[i];
    const uint32_t missing = expected->needed & ~present;
    if (!stray && !missing) return ATTN_OK;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if ((given[role] && expected->unwanted[role]) || missing >> role & 1)
            return fail_presence(p, given[role], role);
    return ATTN_OK;
}

attn_status attn_core_args_check(const struct attn_plan *plan, const attn_args *args,
                                 const struct attn_kernel **kernel) {
    const attn_tensor *given[ATTN_ROLE_COUNT];
    struct attn_core_expected own;
    const struct attn_core_expected *expected = plan->expected;
    struct placed all[ATTN_ROLE_COUNT];
    int32_t n = 0;
    if (args->reserved0)
        FAIL2(ATTN_E_ABI, "reserved0", 0, args->reserved0, "args.reserved0 is %" PRIu32 ", expected 0",
              args->reserved0);
    if (!expected) {
        attn_core_expect(&plan->problem, &own);
        expected = &own;
    }
    memcpy(given, (const char *)args + TENSORS_FROM, N_ARRAY * sizeof *given);
    given[ATTN_ROLE_JOINED] = args->joined;
    given[ATTN_ROLE_Q_SCALE] = args->q_scale;
    given[ATTN_ROLE_K_SCALE] = args->k_scale;
    given[ATTN_ROLE_V_SCALE] = args->v_scale;
    TRY(check_presence(&plan->problem, expected, given));
    for (int32_t i = 0; i < expected->n_usable; i++) {
        const int32_t role = expected->usable[i];
        if (!given[role]) continue;
        all[n] = (struct placed){.t = given[role], .role = role};
        TRY(check_tensor(plan, &expected->role[role], &all[n++]));
    }
    TRY(check_overlap(all, n));
    TRY(check_workspace(plan, args, all, n));
    if (args->stream && plan->device->id.type == ATTN_DEVICE_TYPE_CPU)
        FAIL(ATTN_E_ARGUMENT, "stream", "stream is %p, but plans for the CPU have none: expected NULL", args->stream);
    return choose_kernel(plan, args, all, n, kernel);
}

/* ---- merge ---- */

/* One tensor of a merge, under the name of the role that it is like. */
static attn_status check_part(const struct attn_plan *plan, const attn_tensor *t, int32_t role, bool output,
                              int32_t rank, const int64_t *shape, struct placed *to) {
    const char *name = attn_role_name(role);
    if (!t) FAIL(ATTN_E_ARGUMENT, name, "a part's %s is NULL", name);
    const bool wide = t->dtype == ATTN_F32 || t->dtype == ATTN_F64;
    if (!wide && (role == ATTN_ROLE_LSE || (t->dtype != ATTN_F16 && t->dtype != ATTN_BF16)))
        FAIL2(ATTN_E_DTYPE, name, ATTN_F32, t->dtype, "%s has dtype %s (%" PRId32 "), expected %s", name,
              attn_dtype_name(t->dtype), t->dtype, role == ATTN_ROLE_LSE ? "f32 or f64" : "f32, f16, bf16 or f64");
    struct attn_core_role r = {.use = output ? ATTN_USE_OUT : ATTN_USE_IN,
                               .dtype = t->dtype,
                               .rank = rank,
                               .element = (uint8_t)attn_dtype_bytes(t->dtype),
                               .has_rows = role == ATTN_ROLE_OUT};
    memcpy(r.shape, shape, (size_t)rank * sizeof *shape);
    *to = (struct placed){.t = t, .role = role};
    return check_tensor(plan, &r, to);
}

static bool is_one_view(const attn_tensor *a, const attn_tensor *b) {
    bool one = a->data == b->data && a->dtype == b->dtype;
    for (int32_t x = 0; x < a->rank && one; x++) one = a->shape[x] <= 1 || a->strides[x] == b->strides[x];
    return one;
}

static attn_status check_apart(const struct placed *result, const struct placed *other) {
    const char *name = attn_role_name(result->role);
    if (result->low >= other->high || other->low >= result->high) return ATTN_OK;
    if (result->role == other->role && is_one_view(result->t, other->t)) return ATTN_OK;
    if (!corner_in(result, other) && !corner_in(other, result)) return ATTN_OK;
    FAIL(ATTN_E_OVERLAP, name, "%s shares memory with %s of a part, expected the same view or separate elements", name,
         attn_role_name(other->role));
}

attn_status attn_core_merge_check(const struct attn_core_device *device, const attn_merge_args *a) {
    const struct attn_plan plan = {.device = (struct attn_core_device *)device}; /* what check_tensor reads of one */
    const attn_tensor *like = a->out ? a->out : a->lse;
    const uint64_t unknown = a->flags & ~(ATTN_LSE_BASE_2 | ATTN_LSE_EMPTY_PLUS_INF);
    struct placed out = {0}, lse = {0}, part;
    if (unknown)
        FAIL(ATTN_E_FEATURE, "flags",
             "flags are %#" PRIx64 ", expected ATTN_LSE_BASE_2, ATTN_LSE_EMPTY_PLUS_INF or none", a->flags);
    if (a->stream && device->id.type == ATTN_DEVICE_TYPE_CPU)
        FAIL(ATTN_E_ARGUMENT, "stream", "stream is %p, but a merge on the CPU has none: expected NULL", a->stream);
    if (a->n_parts < 1)
        FAIL2(ATTN_E_ARGUMENT, "n_parts", 1, a->n_parts, "n_parts is %" PRId32 ", expected 1 or more", a->n_parts);
    if (!like) FAIL(ATTN_E_ARGUMENT, "out", "out and lse are NULL: nothing is to be merged");
    if (!a->lse_parts) FAIL(ATTN_E_ARGUMENT, "lse_parts", "lse_parts is NULL");
    if (!a->out_parts != !a->out)
        FAIL(ATTN_E_ARGUMENT, "out_parts", "out_parts is %s, but out is %s", a->out_parts ? "given" : "NULL",
             a->out ? "given" : "NULL");
    const int32_t least = a->out ? 2 : 1, most = ATTN_MAX_RANK - 2 + least;
    if (like->rank < least || like->rank > most)
        FAIL2(ATTN_E_SHAPE, a->out ? "out" : "lse", most, like->rank,
              "%s has rank %" PRId32 ", expected %" PRId32 " to %" PRId32, a->out ? "out" : "lse", like->rank, least,
              most);
    const int32_t rank = like->rank - (a->out ? 1 : 0); /* of lse */
    for (int32_t x = 0; x < like->rank; x++)
        if (like->shape[x] < 0)
            FAIL2(ATTN_E_SHAPE, a->out ? "out" : "lse", 0, like->shape[x], "axis %" PRId32 " has extent %" PRId64, x,
                  like->shape[x]);
    if (a->out) TRY(check_part(&plan, a->out, ATTN_ROLE_OUT, true, rank + 1, like->shape, &out));
    if (a->lse) TRY(check_part(&plan, a->lse, ATTN_ROLE_LSE, true, rank, like->shape, &lse));
    if (a->out && a->lse) TRY(check_apart(&out, &lse));
    for (int32_t i = 0; i < a->n_parts; i++) {
        TRY(check_part(&plan, a->lse_parts[i], ATTN_ROLE_LSE, false, rank, like->shape, &part));
        if (a->out) TRY(check_apart(&out, &part));
        if (a->lse) TRY(check_apart(&lse, &part));
        if (!a->out) continue;
        TRY(check_part(&plan, a->out_parts[i], ATTN_ROLE_OUT, false, rank + 1, like->shape, &part));
        TRY(check_apart(&out, &part));
        if (a->lse) TRY(check_apart(&lse, &part));
    }
    return ATTN_OK;
}
