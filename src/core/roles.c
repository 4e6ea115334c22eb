/* SPDX-License-Identifier: MIT
 * The table of roles: which operator takes which tensor, under what name, with what axes and dtype. Argument checks,
 * views, byte counts and the public role functions all read this table; attn.h prints it for people. */
#include "attn.h"

#include "base/err.h"
#include "core/joined.h"
#include "core/plan.h"
#include "core/problem.h"

#include <inttypes.h>
#include <string.h>

/* Axis letters:  b B   h HQ  g HK  q SQ  k SK  d D  v DV  t TOPK  1 one  j SK along a row
 *                B B+1 p pages  s page_size  m max_pages  Q total_q  K total_k
 *                n groups of queries  w words of a joined list
 * dtype:         t problem's   f f32   s f32, or f64 for f64   i i32   m mask_dtype   k dkv_dtype   o out_dtype
 *                r problem's, or bf16 for e4m3
 * use, one letter per operator in the order of ATTN_OP_*:  - none  i input  o output  ? optional output */
struct row {
    const char *name;
    size_t offset;
    const char *use;
    uint64_t flag; /* needed for any use; 0 = none */
    const char *dense, *packed, *sparse;
    char dtype;
};
#define ROLE(member) #member, offsetof(attn_args, member)
static const struct row table[ATTN_ROLE_COUNT] = {
    [ATTN_ROLE_Q] = {ROLE(q), "iiiii-", 0, "bhqd", "hQd", "bqhd", 't'},
    [ATTN_ROLE_K] = {ROLE(k), "ii----", 0, "bgkd", "gKd", "", 't'},
    [ATTN_ROLE_V] = {ROLE(v), "ii----", 0, "bgkv", "gKv", "", 't'},
    [ATTN_ROLE_KV] = {ROLE(kv), "--iii-", 0, "", "", "bk1d", 't'},
    [ATTN_ROLE_MASK] = {ROLE(mask), "ii----", 0, "bhqj", "bhqj", "", 'm'},
    [ATTN_ROLE_ALIBI] = {ROLE(alibi), "ii----", 0, "h", "h", "", 'f'},
    [ATTN_ROLE_SINK] = {ROLE(sink), "iiii--", ATTN_SINK, "h", "h", "h", 'f'},
    [ATTN_ROLE_SEQLENS_Q] = {ROLE(seqlens_q), "ii----", ATTN_SEQLENS_Q, "b", "b", "", 'i'},
    [ATTN_ROLE_SEQLENS_K] = {ROLE(seqlens_k), "ii----", ATTN_SEQLENS_K, "b", "b", "", 'i'},
    [ATTN_ROLE_CU_SEQLENS_Q] = {ROLE(cu_seqlens_q), "ii----", ATTN_PACKED, "B", "B", "", 'i'},
    [ATTN_ROLE_CU_SEQLENS_K] = {ROLE(cu_seqlens_k), "ii----", ATTN_PACKED, "B", "B", "", 'i'},
    [ATTN_ROLE_BLOCK_TABLE] = {ROLE(block_table), "i-----", ATTN_PAGED, "bm", "bm", "", 'i'},
    [ATTN_ROLE_INDICES] = {ROLE(indices), "--iiii", 0, "", "", "bq1t", 'i'},
    [ATTN_ROLE_TOPK_LENGTH] = {ROLE(topk_length), "--iiii", ATTN_TOPK_LENGTH, "", "", "bq", 'i'},
    [ATTN_ROLE_OUT] = {ROLE(out), "oioi--", 0, "bhqv", "hQv", "bqhv", 'o'},
    [ATTN_ROLE_LSE] = {ROLE(lse), "?i?ii-", 0, "bhq", "hQ", "bqh", 's'},
    [ATTN_ROLE_LSE_ROUNDED] = {ROLE(lse_rounded), "?-----", 0, "bhq", "hQ", "", 'r'},
    [ATTN_ROLE_MAX_LOGITS] = {ROLE(max_logits), "o-?---", ATTN_MAX_LOGITS, "bhq", "hQ", "bqh", 's'},
    [ATTN_ROLE_DIST] = {ROLE(dist), "---oo-", ATTN_WITH_DIST, "", "", "bqt", 'f'},
    [ATTN_ROLE_DOUT] = {ROLE(dout), "-i-i--", 0, "bhqv", "hQv", "bqhv", 't'},
    [ATTN_ROLE_DLSE] = {ROLE(dlse), "-i-i--", ATTN_DLSE, "bhq", "hQ", "bqh", 's'},
    [ATTN_ROLE_DQ] = {ROLE(dq), "-?-?--", 0, "bhqd", "hQd", "bqhd", 't'},
    [ATTN_ROLE_DK] = {ROLE(dk), "-?----", 0, "bgkd", "gKd", "", 't'},
    [ATTN_ROLE_DV] = {ROLE(dv), "-?----", 0, "bgkv", "gKv", "", 't'},
    [ATTN_ROLE_DKV] = {ROLE(dkv), "---?--", 0, "", "", "bk1d", 'k'},
    [ATTN_ROLE_DMASK] = {ROLE(dmask), "-o----", ATTN_GRAD_MASK, "bhqj", "bhqj", "", 's'},
    [ATTN_ROLE_DALIBI] = {ROLE(dalibi), "-o----", ATTN_GRAD_ALIBI, "h", "h", "", 's'},
    [ATTN_ROLE_DSINK] = {ROLE(dsink), "-o-o--", ATTN_GRAD_SINK, "h", "h", "h", 's'},
    [ATTN_ROLE_JOINED] = {ROLE(joined), "--iiio", 0, "", "", "bnw", 'i'},
    [ATTN_ROLE_Q_SCALE] = {ROLE(q_scale), "i-----", 0, "bh", "bh", "", 'f'},
    [ATTN_ROLE_K_SCALE] = {ROLE(k_scale), "i-----", 0, "bg", "bg", "", 'f'},
    [ATTN_ROLE_V_SCALE] = {ROLE(v_scale), "i-----", 0, "bg", "bg", "", 'f'},
};

static int in_range(int32_t role) { return role >= 0 && role < ATTN_ROLE_COUNT; }

static int32_t use_of(const attn_problem *p, int32_t role) {
    if (p->op <= ATTN_OP_NONE || p->op >= ATTN_OP_COUNT_) return ATTN_USE_NONE;
    const struct row *r = &table[role];
    /* what that operator computes, and what any mla_fwd may leave out */
    const int free =
        (p->op == ATTN_OP_DIST && role == ATTN_ROLE_DIST) || (p->op == ATTN_OP_MLA_FWD && role == ATTN_ROLE_MAX_LOGITS);
    const uint64_t flag = free ? 0 : r->flag;
    if (flag && !attn_core_has(p, flag)) return ATTN_USE_NONE;
    if (role == ATTN_ROLE_MASK && !p->mask_dtype) return ATTN_USE_NONE;
    if (role == ATTN_ROLE_ALIBI && !p->alibi) return ATTN_USE_NONE;
    if (role == ATTN_ROLE_JOINED && !p->group) return ATTN_USE_NONE;
    if (attn_core_is_scale(role) && p->dtype != ATTN_E4M3) return ATTN_USE_NONE;
    if (role == ATTN_ROLE_CU_SEQLENS_K && attn_core_has(p, ATTN_PAGED)) return ATTN_USE_NONE; /* no rows of keys */
    switch (r->use[p->op - 1]) {
    case 'i': return ATTN_USE_IN;
    case 'o': return ATTN_USE_OUT;
    case '?':
        return role == ATTN_ROLE_DKV && attn_core_has(p, ATTN_ACCUMULATE) ? ATTN_USE_INOUT_OPTIONAL
                                                                          : ATTN_USE_OUT_OPTIONAL;
    default: return ATTN_USE_NONE;
    }
}

static int32_t dtype_of(const attn_problem *p, char letter) {
    switch (letter) {
    case 't': return p->dtype;
    case 'm': return p->mask_dtype;
    case 'k': return p->dkv_dtype ? p->dkv_dtype : p->dtype;
    case 'o': return p->out_dtype ? p->out_dtype : attn_core_plain_dtype(p);
    case 'r': return attn_core_plain_dtype(p);
    case 'i': return ATTN_I32;
    case 's': return p->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    default: return ATTN_F32;
    }
}

static int64_t extent_of(const attn_problem *p, char axis) {
    switch (axis) {
    case 'b': return p->batch;
    case 'B': return p->batch + 1;
    case 'h': return p->heads_q;
    case 'g': return p->heads_k;
    case 'q': return p->seq_q;
    case 'k':
    case 'j': return p->seq_k;
    case 'd': return p->dim_qk;
    case 'v': return p->dim_v;
    case 't': return p->topk;
    case 'p': return p->n_pages;
    case 's': return p->page_size;
    case 'm': return p->max_pages;
    case 'Q': return p->total_q;
    case 'K': return p->total_k;
    case 'n': return attn_core_joined_layout(p).groups;
    case 'w': return attn_core_joined_layout(p).words;
    default: return 1;
    }
}

const char *attn_core_role_axes(const attn_problem *p, int32_t role) {
    if (!in_range(role)) return "";
    const struct row *r = &table[role];
    if (p->op != ATTN_OP_SDPA_FWD && p->op != ATTN_OP_SDPA_BWD) return r->sparse;
    if (attn_core_has(p, ATTN_PAGED) && role == ATTN_ROLE_K) return "pgsd";
    if (attn_core_has(p, ATTN_PAGED) && role == ATTN_ROLE_V) return "pgsv";
    return attn_core_has(p, ATTN_PACKED) ? r->packed : r->dense;
}

int attn_core_role_has_rows(const attn_problem *p, int32_t role) {
    const char *axes = attn_core_role_axes(p, role);
    size_t n = strlen(axes);
    return n && (axes[n - 1] == 'd' || axes[n - 1] == 'v');
}

void attn_core_role_get(const attn_problem *p, int32_t role, struct attn_core_role *out) {
    *out = (struct attn_core_role){0};
    if (!in_range(role)) return;
    out->use = use_of(p, role);
    if (out->use == ATTN_USE_NONE) return;
    out->dtype = dtype_of(p, table[role].dtype);
    out->element = (uint8_t)attn_dtype_bytes(out->dtype);
    out->has_rows = (uint8_t)attn_core_role_has_rows(p, role);
    const char *axes = attn_core_role_axes(p, role);
    for (; axes[out->rank] && out->rank < ATTN_MAX_RANK; out->rank++)
        out->shape[out->rank] = extent_of(p, axes[out->rank]);
    int64_t step = 1;
    int over = 0;
    for (int32_t a = out->rank - 1; a >= 0; a--) {
        out->strides[a] = step;
        over |= __builtin_mul_overflow(step, out->shape[a], &step);
    }
    over |= step > INT64_C(1) << 48;
    out->bytes = over ? 0 : step * out->element;
}

void attn_core_expect(const attn_problem *p, struct attn_core_expected *out) {
    _Static_assert(ATTN_ROLE_COUNT <= 32, "a role has a bit");
    out->needed = 0;
    out->n_usable = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        attn_core_role_get(p, role, &out->role[role]);
        const int32_t use = out->role[role].use;
        out->unwanted[role] = use == ATTN_USE_NONE ? UINTPTR_MAX : 0;
        if (use != ATTN_USE_NONE) out->usable[out->n_usable++] = (uint8_t)role;
        if (use == ATTN_USE_IN || use == ATTN_USE_OUT) out->needed |= UINT32_C(1) << role;
    }
}

const char *attn_role_name(int32_t role) { return in_range(role) ? table[role].name : NULL; }

attn_status attn_args_set(attn_args *args, int32_t role, const attn_tensor *tensor) {
    if (!args) FAIL(ATTN_E_ARGUMENT, "args", "args is NULL");
    if (!in_range(role))
        FAIL2(ATTN_E_ENUM, "role", ATTN_ROLE_COUNT - 1, role, "role is %" PRId32 ", expected 0 to %d", role,
              ATTN_ROLE_COUNT - 1);
    size_t end = table[role].offset + sizeof tensor;
    if (args->size < end)
        FAIL2(ATTN_E_ABI, "size", (int64_t)end, args->size, "args.size is %" PRIu32 ", expected at least %zu for %s",
              args->size, end, table[role].name);
    memcpy((char *)args + table[role].offset, &tensor, sizeof tensor);
    return ATTN_OK;
}

const attn_tensor *attn_args_at(const attn_args *args, int32_t role) {
    const attn_tensor *tensor = NULL;
    if (args && in_range(role) && args->size >= table[role].offset + sizeof tensor)
        memcpy(&tensor, (const char *)args + table[role].offset, sizeof tensor);
    return tensor;
}

attn_status attn_role_tensor(const attn_problem *problem, int32_t role, int32_t *use, attn_tensor *out) {
    if (!use) FAIL(ATTN_E_ARGUMENT, "use", "use is NULL");
    if (!in_range(role))
        FAIL2(ATTN_E_ENUM, "role", ATTN_ROLE_COUNT - 1, role, "role is %" PRId32 ", expected 0 to %d", role,
              ATTN_ROLE_COUNT - 1);
    attn_problem p;
    TRY(attn_core_problem_normalise(problem, &p));
    struct attn_core_role r;
    attn_core_role_get(&p, role, &r);
    *use = r.use;
    if (r.use == ATTN_USE_NONE || !out) return ATTN_OK;
    attn_tensor t = {.dtype = r.dtype, .rank = r.rank};
    int64_t step = 1, count = 1;
    for (int32_t a = r.rank - 1; a >= 0; a--) {
        t.shape[a] = r.shape[a];
        t.strides[a] = step;
        step *= r.shape[a] > 1 ? r.shape[a] : 1; /* an empty axis counts as 1, so that no stride becomes 0 */
        count *= r.shape[a];
    }
    t.bytes = (uint64_t)count * attn_dtype_bytes(r.dtype);
    *out = t;
    return ATTN_OK;
}
