/* SPDX-License-Identifier: MIT
 * The problem struct: copy by the size rule, every check that needs no device, the normalised form, hash and equality.
 * Its text form is problem_text.c; counts of operations and bytes are flops.c. */
#include "core/problem.h"

#include "attn.h"
#include "base/err.h"
#include "core/joined.h"
#include "core/plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define OP(name)   (1u << ATTN_OP_##name)
#define OPS_DENSE  (OP(SDPA_FWD) | OP(SDPA_BWD))
#define OPS_SPARSE (OP(MLA_FWD) | OP(MLA_BWD) | OP(DIST))
#define OPS_SCORES (OPS_DENSE | OPS_SPARSE)
#define OPS_LISTS  (OPS_SPARSE | OP(MLA_JOIN))
#define OPS_ALL    (OPS_DENSE | OPS_LISTS)

/* Any single extent. With the limit on products below and ATTN_UNBOUNDED windows, index sums stay inside int64_t. */
#define MAX_EXTENT  (INT64_C(1) << 48)
#define MAX_PRODUCT (INT64_MAX / 16)

/* lse_with_sink and lse_empty_plus_inf describe the lse of a problem, so backward operators and dist take the latter
 * too: they accept either infinity on input, and the problem of a forward becomes its backward by changing op alone. */
const struct attn_core_flag attn_core_flags[] = {
    {ATTN_CAUSAL, "ATTN_CAUSAL", "causal", OPS_ALL},
    {ATTN_BOTTOM_RIGHT, "ATTN_BOTTOM_RIGHT", "bottom_right", OPS_DENSE},
    {ATTN_SCALE, "ATTN_SCALE", "", OPS_SCORES},
    {ATTN_WINDOW_LEFT, "ATTN_WINDOW_LEFT", "", OPS_DENSE},
    {ATTN_WINDOW_RIGHT, "ATTN_WINDOW_RIGHT", "", OPS_DENSE},
    {ATTN_SINK, "ATTN_SINK", "sink", OPS_DENSE | OP(MLA_FWD) | OP(MLA_BWD)},
    {ATTN_LSE_WITH_SINK, "ATTN_LSE_WITH_SINK", "lse_with_sink", OPS_DENSE},
    {ATTN_LSE_BASE_2, "ATTN_LSE_BASE_2", "lse_base_2", OPS_SCORES},
    {ATTN_LSE_EMPTY_PLUS_INF, "ATTN_LSE_EMPTY_PLUS_INF", "lse_empty_plus_inf", OPS_SCORES},
    {ATTN_DETERMINISTIC, "ATTN_DETERMINISTIC", "deterministic", OPS_ALL},
    {ATTN_SEQLENS_Q, "ATTN_SEQLENS_Q", "seqlens_q", OPS_DENSE},
    {ATTN_SEQLENS_K, "ATTN_SEQLENS_K", "seqlens_k", OPS_DENSE},
    {ATTN_PACKED, "ATTN_PACKED", "packed", OPS_DENSE},
    {ATTN_PAGED, "ATTN_PAGED", "paged", OP(SDPA_FWD)},
    {ATTN_TOPK_LENGTH, "ATTN_TOPK_LENGTH", "topk_length", OPS_LISTS},
    {ATTN_ACCUMULATE, "ATTN_ACCUMULATE", "accumulate", OP(MLA_BWD)},
    {ATTN_DLSE, "ATTN_DLSE", "dlse", OP(SDPA_BWD) | OP(MLA_BWD)},
    {ATTN_GRAD_MASK, "ATTN_GRAD_MASK", "grad_mask", OP(SDPA_BWD)},
    {ATTN_GRAD_ALIBI, "ATTN_GRAD_ALIBI", "grad_alibi", OP(SDPA_BWD)},
    {ATTN_GRAD_SINK, "ATTN_GRAD_SINK", "grad_sink", OP(SDPA_BWD) | OP(MLA_BWD)},
    {ATTN_WITH_DIST, "ATTN_WITH_DIST", "with_dist", OP(MLA_BWD)},
    {ATTN_FILL_PADDING, "ATTN_FILL_PADDING", "fill_padding", OPS_DENSE},
    {ATTN_MAX_LOGITS, "ATTN_MAX_LOGITS", "max_logits", OP(SDPA_FWD)},
};
const int32_t attn_core_n_flags = (int32_t)(sizeof attn_core_flags / sizeof *attn_core_flags);

const char *attn_core_op_name(int32_t op) {
    static const char *const names[ATTN_OP_COUNT_] = {
        [ATTN_OP_SDPA_FWD] = "sdpa_fwd", [ATTN_OP_SDPA_BWD] = "sdpa_bwd", [ATTN_OP_MLA_FWD] = "mla_fwd",
        [ATTN_OP_MLA_BWD] = "mla_bwd",   [ATTN_OP_DIST] = "dist",         [ATTN_OP_MLA_JOIN] = "mla_join",
    };
    return op > ATTN_OP_NONE && op < ATTN_OP_COUNT_ ? names[op] : "?";
}

/* Attention over index lists; has_lists: also what only reads the lists. */
static int has_lists(int32_t op) { return op >= ATTN_OP_NONE && op < ATTN_OP_COUNT_ && (OPS_LISTS >> op & 1u); }
static int is_sparse(int32_t op) { return op == ATTN_OP_MLA_FWD || op == ATTN_OP_MLA_BWD || op == ATTN_OP_DIST; }
static int is_half(int32_t dtype) { return dtype == ATTN_F16 || dtype == ATTN_BF16; }
static int in_ops(uint32_t ops, int32_t op) { return (ops >> op & 1u) != 0; }

/* ---- the size rule (as openat2(2) treats struct open_how) ---- */

#define MAX_STRUCT_BYTES 4096 /* a larger size is garbage: looking for a zero tail would read foreign memory */

attn_status attn_core_struct_copy(void *dst, size_t known, const void *src, const char *what) {
    if (!src) FAIL(ATTN_E_ARGUMENT, what, "%s is NULL", what);
    uint32_t size;
    memcpy(&size, src, sizeof size);
    if (size < sizeof size || size > MAX_STRUCT_BYTES)
        FAIL2(ATTN_E_ABI, "size", (int64_t)known, size,
              "%s.size is %" PRIu32 ", expected sizeof = %zu: set it with the INIT macro or to sizeof", what, size,
              known);
    if (size % sizeof(void *)) /* would end inside a member, half a pointer for instance */
        FAIL2(ATTN_E_ABI, "size", (int64_t)known, size,
              "%s.size is %" PRIu32 ", expected a multiple of %zu: set it with the INIT macro or to sizeof", what, size,
              sizeof(void *));
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)src)[i])
            FAIL2(ATTN_E_ABI, "size", (int64_t)known, size,
                  "%s is %" PRIu32
                  " bytes long and byte %zu is set, but this library knows only %zu bytes: the header is newer "
                  "than the library",
                  what, size, i, known);
    memset(dst, 0, known);
    memcpy(dst, src, size < known ? size : known);
    size = (uint32_t)known;
    memcpy(dst, &size, sizeof size);
    return ATTN_OK;
}

/* ---- checks, in the order they are made ---- */

/* Fields that only some operators, or only problems with a flag, read. They must be 0 elsewhere: a number that would be
 * ignored is a mistake worth hearing about. (scale and the windows are exempt: their flags say whether they are set.)
 */
struct field {
    const char *name;
    size_t offset;
    uint32_t ops;
    uint64_t flag; /* 0 = always read by `ops` */
    attn_status status;
    int64_t low, high;
};
#define FIELD(member) #member, offsetof(attn_problem, member)
static const struct field extents[] = {
    {FIELD(batch), OPS_ALL, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(heads_q), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(heads_k), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(seq_q), OPS_ALL, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(seq_k), OPS_ALL, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(dim_qk), OPS_DENSE, 0, ATTN_E_EXTENT, 0, 512},
    {FIELD(dim_v), OPS_DENSE, 0, ATTN_E_EXTENT, 0, 512},
};
/* q_start and k_stride: bounds that keep q_start + i + 1 and k_stride * (idx + 1) inside int64_t, idx being int32. */
static const struct field conditional[] = {
    {FIELD(total_q), OPS_DENSE, ATTN_PACKED, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(total_k), OPS_DENSE, ATTN_PACKED, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(page_size), OP(SDPA_FWD), ATTN_PAGED, ATTN_E_EXTENT, 1, MAX_EXTENT},
    {FIELD(n_pages), OP(SDPA_FWD), ATTN_PAGED, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(max_pages), OP(SDPA_FWD), ATTN_PAGED, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(topk), OPS_LISTS, 0, ATTN_E_SPARSE, 1, MAX_EXTENT},
    {FIELD(q_start), OPS_LISTS, 0, ATTN_E_SPARSE, 0, INT64_C(1) << 60},
    {FIELD(k_stride), OPS_LISTS, 0, ATTN_E_SPARSE, 0, INT64_C(1) << 31},
    {FIELD(heads_q), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(heads_k), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(dim_qk), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(dim_v), OPS_SCORES, 0, ATTN_E_EXTENT, 0, MAX_EXTENT},
    {FIELD(group), OPS_LISTS, 0, ATTN_E_SPARSE, 0, ATTN_JOINED_MAX_GROUP},
    {FIELD(union_limit), OP(MLA_JOIN), 0, ATTN_E_SPARSE, 0, MAX_EXTENT},
};

static int64_t field_value(const attn_problem *p, const struct field *f) {
    int64_t value;
    memcpy(&value, (const char *)p + f->offset, sizeof value);
    return value;
}

static const char *flag_name(uint64_t bit) {
    for (int32_t i = 0; i < attn_core_n_flags; i++)
        if (attn_core_flags[i].bit == bit) return attn_core_flags[i].name;
    return "?";
}

static attn_status check_range(const attn_problem *p, const struct field *f) {
    int64_t value = field_value(p, f);
    if (value < f->low)
        FAIL2(f->status, f->name, f->low, value, "%s is %" PRId64 ", expected %" PRId64 " or more", f->name, value,
              f->low);
    if (value > f->high)
        FAIL2(f->status, f->name, f->high, value, "%s is %" PRId64 ", expected at most %" PRId64 " for %s", f->name,
              value, f->high, attn_core_op_name(p->op));
    return ATTN_OK;
}

static attn_status check_conditional(const attn_problem *p, const struct field *f) {
    const char *op = attn_core_op_name(p->op);
    if (in_ops(f->ops, p->op) && (!f->flag || attn_core_has(p, f->flag))) return check_range(p, f);
    int64_t value = field_value(p, f);
    if (!value) return ATTN_OK;
    if (in_ops(f->ops, p->op))
        FAIL2(ATTN_E_FEATURE, f->name, 0, value, "%s is %" PRId64 ", but it is read only with %s, which is not set",
              f->name, value, flag_name(f->flag));
    FAIL2(ATTN_E_FEATURE, f->name, 0, value, "%s is %" PRId64 ", but %s has no %s: expected 0", f->name, value, op,
          f->name);
}

/* dtype sets as bits 1 << ATTN_F32 ... */
#define DT(name) (1u << ATTN_##name)
static attn_status check_enum(const char *name, int64_t value, uint32_t allowed, const char *choices) {
    if (value >= 0 && value < 32 && (allowed >> value & 1u)) return ATTN_OK;
    FAIL2(ATTN_E_ENUM, name, 0, value, "%s is %" PRId64 ", expected %s", name, value, choices);
}
static attn_status check_dtype(const char *name, int32_t value, uint32_t allowed, const char *choices) {
    const char *word = attn_dtype_name(value);
    if (*word == '?' || (value >= 0 && value < 32 && (allowed >> value & 1u)))
        return check_enum(name, value, allowed, choices);
    FAIL2(ATTN_E_ENUM, name, 0, value, "%s is %s (%" PRId32 "), expected %s", name, word, value, choices);
}

static attn_status check_lacks(const attn_problem *p, const char *name, int64_t value, uint32_t ops) {
    if (!value || in_ops(ops, p->op)) return ATTN_OK;
    FAIL2(ATTN_E_FEATURE, name, 0, value, "%s is %" PRId64 ", but %s has no such feature: expected 0", name, value,
          attn_core_op_name(p->op));
}

static attn_status check_kinds(const attn_problem *p) {
    const char *op = attn_core_op_name(p->op);
    if (p->reserved1)
        FAIL2(ATTN_E_ABI, "reserved1", 0, p->reserved1, "reserved1 is %" PRIu32 ", expected 0", p->reserved1);
    TRY(check_enum("op", p->op, OPS_ALL, "an operator, ATTN_OP_SDPA_FWD (1) to ATTN_OP_MLA_JOIN (6)"));
    if (p->op == ATTN_OP_MLA_JOIN)
        TRY(check_dtype("dtype", p->dtype, DT(I32), "i32 (5), the dtype of the lists that mla_join reads and writes"));
    else
        TRY(check_dtype("dtype", p->dtype, DT(F32) | DT(F16) | DT(BF16) | DT(F64) | DT(E4M3),
                        "f32 (1), f16 (2), bf16 (3), f64 (4) or e4m3 (8)"));
    if (p->dtype == ATTN_E4M3 && p->op != ATTN_OP_SDPA_FWD)
        FAIL(ATTN_E_FEATURE, "dtype", "dtype is e4m3, but %s works on f32, f16, bf16%s", op,
             is_sparse(p->op) ? "" : " or f64");
    if (is_sparse(p->op) && p->dtype == ATTN_F64)
        FAIL(ATTN_E_FEATURE, "dtype", "dtype is f64, but %s works on f32, f16 or bf16", op);

    uint64_t unknown = p->flags & ~ATTN_FLAGS_ALL_;
    if (unknown) FAIL(ATTN_E_ENUM, "flags", "flags has unknown bits 0x%" PRIx64, unknown);
    for (int32_t i = 0; i < attn_core_n_flags; i++)
        if (attn_core_has(p, attn_core_flags[i].bit) && !in_ops(attn_core_flags[i].ops, p->op))
            FAIL(ATTN_E_FEATURE, "flags", "%s is set, but %s does not have it", attn_core_flags[i].name, op);

    TRY(check_dtype("mask_dtype", p->mask_dtype, DT(DTYPE_NONE) | DT(F32) | DT(F16) | DT(BF16) | DT(BOOL),
                    "none (0), f32 (1), f16 (2), bf16 (3) or bool (7)"));
    TRY(check_lacks(p, "mask_dtype", p->mask_dtype, OPS_DENSE));
    TRY(check_enum("alibi", p->alibi, (1u << ATTN_ALIBI_COUNT_) - 1,
                   "ATTN_ALIBI_NONE (0), _LINEAR (1) or _DISTANCE (2)"));
    TRY(check_lacks(p, "alibi", p->alibi, OPS_DENSE));
    TRY(check_dtype("dkv_dtype", p->dkv_dtype, DT(DTYPE_NONE) | DT(F32) | (1u << p->dtype),
                    "none (0), f32 (1) or the problem's dtype"));
    TRY(check_lacks(p, "dkv_dtype", p->dkv_dtype, OP(MLA_BWD)));
    const int e4m3 = p->dtype == ATTN_E4M3;
    TRY(check_dtype("out_dtype", p->out_dtype,
                    DT(DTYPE_NONE) | (1u << attn_core_plain_dtype(p)) | (e4m3 || is_half(p->dtype) ? DT(F32) : 0),
                    e4m3                ? "none (0), bf16 (3) or f32 (1) from e4m3 inputs"
                    : is_half(p->dtype) ? "none (0), the problem's dtype or f32 (1)"
                                        : "none (0) or the problem's dtype"));
    TRY(check_lacks(p, "out_dtype", p->out_dtype, OP(SDPA_FWD) | OP(MLA_FWD)));
    TRY(check_enum("dist_norm", p->dist_norm, (1u << ATTN_DIST_COUNT_) - 1, "ATTN_DIST_SUM (0), _MEAN (1) or _L1 (2)"));
    return check_lacks(p, "dist_norm", p->dist_norm, OP(DIST) | (attn_core_has(p, ATTN_WITH_DIST) ? OP(MLA_BWD) : 0));
}

static attn_status check_extents(const attn_problem *p) {
    static const struct field negative[] = {{FIELD(dim_qk), 0, 0, ATTN_E_EXTENT, 0, INT64_MAX},
                                            {FIELD(dim_v), 0, 0, ATTN_E_EXTENT, 0, INT64_MAX}};
    for (size_t i = 0; i < sizeof negative / sizeof *negative; i++) TRY(check_range(p, &negative[i]));
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        if (in_ops(extents[i].ops, p->op)) TRY(check_range(p, &extents[i]));
    if (is_sparse(p->op) && p->dim_qk != 512 && p->dim_qk != 576)
        FAIL2(ATTN_E_EXTENT, "dim_qk", 576, p->dim_qk, "dim_qk is %" PRId64 ", expected 576 or 512 for %s", p->dim_qk,
              attn_core_op_name(p->op));
    if (is_sparse(p->op) && p->dim_v != 512)
        FAIL2(ATTN_E_EXTENT, "dim_v", 512, p->dim_v, "dim_v is %" PRId64 ", expected 512 for %s", p->dim_v,
              attn_core_op_name(p->op));
    return ATTN_OK;
}

static attn_status check_numbers(const attn_problem *p) {
    if (attn_core_has(p, ATTN_SCALE) && !isfinite(p->scale))
        FAIL(ATTN_E_SCALE, "scale", "scale is %g, expected a finite number", p->scale);
    if (!isfinite(p->softcap) || p->softcap < 0)
        FAIL(ATTN_E_SOFTCAP, "softcap", "softcap is %g, expected 0 (off) or a finite positive number", p->softcap);
    if (p->softcap > 0 && has_lists(p->op))
        FAIL(ATTN_E_FEATURE, "softcap", "softcap is %g, but %s has no softcap: expected 0", p->softcap,
             attn_core_op_name(p->op));
    return ATTN_OK;
}

static attn_status check_heads(const attn_problem *p) {
    const char *op = attn_core_op_name(p->op);
    int64_t hq = p->heads_q, hk = p->heads_k;
    if (p->op == ATTN_OP_MLA_JOIN) return ATTN_OK; /* has none: a conditional field */
    if (is_sparse(p->op)) {
        if (hk != 1) FAIL2(ATTN_E_HEADS, "heads_k", 1, hk, "heads_k is %" PRId64 ", expected 1 for %s", hk, op);
        if (hq < 1 || (hq > 128 && hq % 64))
            FAIL2(ATTN_E_HEADS, "heads_q", 128, hq,
                  "heads_q is %" PRId64 ", expected 1 to 128 or a multiple of 64 for %s", hq, op);
        return ATTN_OK;
    }
    if (hq == 0 && hk == 0) return ATTN_OK; /* no heads: nothing to compute */
    if (hk == 0) FAIL2(ATTN_E_HEADS, "heads_k", hq, hk, "heads_k is 0, expected a divisor of heads_q = %" PRId64, hq);
    if (hk > hq || hq % hk)
        FAIL2(ATTN_E_HEADS, "heads_k", hq, hk, "heads_k is %" PRId64 ", expected a divisor of heads_q = %" PRId64, hk,
              hq);
    return ATTN_OK;
}

static attn_status check_combinations(const attn_problem *p) {
    static const struct {
        uint64_t have, with, without; /* fault: `have` set and `with` set (if any) and `without` not set (if any) */
        const char *text;
    } rules[] = {
        {ATTN_PAGED, 0, ATTN_SEQLENS_K,
         "ATTN_PAGED without ATTN_SEQLENS_K: the pages do not say how many keys they hold"},
        {ATTN_FILL_PADDING, 0, ATTN_PACKED,
         "ATTN_FILL_PADDING without ATTN_PACKED: only packed tensors have rows of no sequence"},
        {ATTN_LSE_WITH_SINK, 0, ATTN_SINK, "ATTN_LSE_WITH_SINK without ATTN_SINK: there is no sink to include"},
        {ATTN_GRAD_SINK, 0, ATTN_SINK, "ATTN_GRAD_SINK without ATTN_SINK: there is no sink to differentiate"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (attn_core_has(p, rules[i].have) && (!rules[i].with || attn_core_has(p, rules[i].with)) &&
            (!rules[i].without || !attn_core_has(p, rules[i].without)))
            FAIL(ATTN_E_FEATURE, "flags", "%s", rules[i].text);
    if (attn_core_has(p, ATTN_GRAD_MASK) && !p->mask_dtype)
        FAIL(ATTN_E_FEATURE, "flags", "ATTN_GRAD_MASK with mask_dtype 0: there is no mask to differentiate");
    if (attn_core_has(p, ATTN_GRAD_MASK) && p->mask_dtype == ATTN_BOOL)
        FAIL(ATTN_E_FEATURE, "flags", "ATTN_GRAD_MASK with a bool mask: it has no gradient");
    if (attn_core_has(p, ATTN_GRAD_ALIBI) && !p->alibi)
        FAIL(ATTN_E_FEATURE, "flags", "ATTN_GRAD_ALIBI with alibi 0: there are no slopes to differentiate");
    if (attn_core_has(p, ATTN_PAGED) && p->total_k)
        FAIL2(ATTN_E_FEATURE, "total_k", 0, p->total_k,
              "total_k is %" PRId64 ", but paged keys lie in a pool: expected 0", p->total_k);
    int64_t keys; /* keys past the table would be looked up outside it */
    if (attn_core_has(p, ATTN_PAGED) && !__builtin_mul_overflow(p->page_size, p->max_pages, &keys) && keys < p->seq_k)
        FAIL2(ATTN_E_EXTENT, "seq_k", keys, p->seq_k,
              "seq_k is %" PRId64 ", expected at most page_size * max_pages = %" PRId64 " * %" PRId64 " = %" PRId64,
              p->seq_k, p->page_size, p->max_pages, keys);
    return ATTN_OK;
}

/* A group's lists must fit the shared memory of a multiprocessor, and an entry's number 15 bits. Attention without
 * joined lists has group 0. */
static attn_status check_group(const attn_problem *p) {
    const int makes = p->op == ATTN_OP_MLA_JOIN;
    if (!p->group && !makes) return ATTN_OK;
    if (p->group < 2 || (p->group & (p->group - 1)))
        FAIL2(ATTN_E_SPARSE, "group", 2, p->group, "group is %" PRId64 ", expected 2, 4, 8 or 16%s", p->group,
              makes ? "" : ", or 0 without joined lists");
    if (p->topk > ATTN_JOINED_MAX_SLOTS / p->group)
        FAIL2(ATTN_E_SPARSE, "topk", ATTN_JOINED_MAX_SLOTS / p->group, p->topk,
              "topk is %" PRId64 ", expected at most %" PRId64 " in groups of %" PRId64 ": group * topk is at most %d",
              p->topk, ATTN_JOINED_MAX_SLOTS / p->group, p->group, (int)ATTN_JOINED_MAX_SLOTS);
    return ATTN_OK;
}

static attn_status check_product(const char *what, const int64_t *extent, int32_t n) {
    int64_t product = 1;
    for (int32_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(product, extent[i] > 1 ? extent[i] : 1, &product) || product > MAX_PRODUCT)
            FAIL(ATTN_E_EXTENT, what, "%s would have more than %" PRId64 " elements", what, MAX_PRODUCT);
    return ATTN_OK;
}

/* Every tensor, and the index spaces that kernels count through even where no tensor has them (packed bounds). */
static attn_status check_products(const attn_problem *p) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct attn_core_role r;
        attn_core_role_get(p, role, &r);
        if (r.use != ATTN_USE_NONE) TRY(check_product(attn_role_name(role), r.shape, r.rank));
    }
    int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    TRY(check_product("seq_q", (const int64_t[]){p->batch, p->heads_q, p->seq_q, dim}, 4));
    TRY(check_product("seq_k", (const int64_t[]){p->batch, p->heads_q, p->seq_k, dim}, 4));
    return check_product("topk", (const int64_t[]){p->batch, p->heads_q, p->seq_q, p->topk}, 4);
}

static attn_status check(const attn_problem *p) {
    TRY(check_kinds(p));
    TRY(check_extents(p));
    TRY(check_numbers(p));
    TRY(check_heads(p));
    for (size_t i = 0; i < sizeof conditional / sizeof *conditional; i++) TRY(check_conditional(p, &conditional[i]));
    TRY(check_combinations(p));
    TRY(check_group(p));
    if (p->align_bytes & (p->align_bytes - 1))
        FAIL2(ATTN_E_ALIGNMENT, "align_bytes", 0, p->align_bytes,
              "align_bytes is %" PRIu32 ", expected 0 or a power of two", p->align_bytes);
    return check_products(p);
}

attn_status attn_problem_check(const attn_problem *problem) {
    attn_problem p;
    TRY(attn_core_struct_copy(&p, sizeof p, problem, "problem"));
    return check(&p);
}

/* ---- normal form, meaning ---- */

static int64_t window(const attn_problem *p, uint64_t flag, int64_t value) {
    if (!attn_core_has(p, flag) || value > ATTN_UNBOUNDED) return ATTN_UNBOUNDED;
    return value < -ATTN_UNBOUNDED ? -ATTN_UNBOUNDED : value;
}

/* No packed sequence has more rows than all together: time, grids and workspaces follow the bound. A mask has its
 * extent. One row is left, as an empty axis is another case to kernels. */
static void bound_packed(const attn_problem *p, int64_t total, int64_t *bound) {
    const int64_t most = total < 1 ? 1 : total;
    if (attn_core_has(p, ATTN_PACKED) && !p->mask_dtype && *bound > most) *bound = most;
}

/* What it makes passes the checks again and is not changed by a second pass. */
static void fill(attn_problem *p) {
    /* D = 0: every product is 0 and 1/sqrt(0) would make it NaN, so any finite scale is right. */
    if (!attn_core_has(p, ATTN_SCALE)) p->scale = p->dim_qk > 0 ? 1.0 / sqrt((double)p->dim_qk) : 1.0;
    if (p->softcap == 0) p->softcap = 0; /* -0 */
    p->window_left = window(p, ATTN_WINDOW_LEFT, p->window_left);
    p->window_right = window(p, ATTN_WINDOW_RIGHT, p->window_right);
    if (attn_core_has(p, ATTN_CAUSAL) && !has_lists(p->op)) p->window_right = 0;
    if (p->op == ATTN_OP_MLA_BWD && !p->dkv_dtype) p->dkv_dtype = p->dtype;
    if (p->out_dtype == attn_core_plain_dtype(p)) p->out_dtype = 0;
    if (p->k_stride == 0 && has_lists(p->op)) p->k_stride = 1;
    bound_packed(p, p->total_q, &p->seq_q);
    if (!attn_core_has(p, ATTN_PAGED)) bound_packed(p, p->total_k, &p->seq_k);
}

attn_status attn_core_problem_normalise(const attn_problem *in, attn_problem *out) {
    attn_problem p;
    TRY(attn_core_struct_copy(&p, sizeof p, in, "problem"));
    TRY(check(&p));
    fill(&p);
    *out = p;
    return ATTN_OK;
}

attn_status attn_core_problem_meaning(const attn_problem *in, attn_problem *out) {
    attn_problem p;
    TRY(attn_core_struct_copy(&p, sizeof p, in, "problem"));
    fill(&p);
    if (isnan(p.scale)) p.scale = (double)NAN; /* one NaN stands for all; a problem with any is refused by the check */
    if (isnan(p.softcap)) p.softcap = (double)NAN;
    if (p.scale == 0) p.scale = 0; /* -0 */
    if (p.k_stride == 0) p.k_stride = 1;
    uint64_t implied = ATTN_SCALE | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT;
    if (has_lists(p.op)) {
        if (!attn_core_has(&p, ATTN_CAUSAL)) p.q_start = 0, p.k_stride = 1;
    } else {
        implied |= ATTN_CAUSAL;
        if (p.window_left == ATTN_UNBOUNDED && p.window_right == ATTN_UNBOUNDED && !p.alibi)
            implied |= ATTN_BOTTOM_RIGHT;
    }
    p.flags &= ~implied;
    *out = p;
    return ATTN_OK;
}

_Static_assert(sizeof(attn_problem) == 3 * 8 + 8 * 8 + 4 * 8 + 4 * 4 + 7 * 8 + 2 * 4 + 2 * 8,
               "padding would enter hash and equality");

static uint64_t mix(uint64_t h) { /* finaliser of splitmix64 (Steele, Lea, Flood 2014) */
    h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 31);
}

uint64_t attn_problem_hash(const attn_problem *problem) {
    attn_problem p;
    if (attn_core_problem_meaning(problem, &p)) return 0;
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15), word;
    for (size_t i = 0; i < sizeof p; i += sizeof word) {
        memcpy(&word, (const char *)&p + i, sizeof word);
        h = mix(h ^ word) + UINT64_C(0x9e3779b97f4a7c15);
    }
    return h;
}

int attn_problem_equal(const attn_problem *a, const attn_problem *b) {
    attn_problem x, y;
    if (attn_core_problem_meaning(a, &x) || attn_core_problem_meaning(b, &y)) return 0;
    return !memcmp(&x, &y, sizeof x);
}
