/* SPDX-License-Identifier: MIT
 * Structs of attn.h by call: their sizes, defaults and members by name, for bindings that do not read the header. */
#include "api/api.h"
#include "base/text.h"

#include <stddef.h>
#include <string.h>

/* Types of members; of arrays, that of an element. */
enum type { I32, U32, I64, U64, F64, TEXT, POINTER };
struct member {
    const char *name;
    size_t offset, bytes; /* bytes: of all elements */
    enum type type;
};
/* Pointers and functions are what is not listed. */
#define TYPE_OF(x)                                                                                                     \
    _Generic((x), int32_t: I32, uint32_t: U32, int64_t: I64, uint64_t: U64, double: F64, char *: TEXT, int64_t *: I64, \
             default: POINTER)
#define MEMBER(s, name)                                                                                                \
    { #name, offsetof(s, name), sizeof(((s *)0)->name), TYPE_OF(((s *)0)->name) }

#define M(name) MEMBER(attn_error, name)
static const struct member error_members[] = {
    M(size), M(status), M(expected), M(given), M(argument),
};
#undef M
#define M(name) MEMBER(attn_tensor, name)
static const struct member tensor_members[] = {
    M(data), M(bytes), M(device.type), M(device.index), M(dtype), M(rank), M(shape), M(strides),
};
#undef M
#define M(name) MEMBER(attn_problem, name)
static const struct member problem_members[] = {
    M(size),         M(op),        M(flags),     M(dtype),     M(mask_dtype),  M(batch),     M(heads_q), M(heads_k),
    M(seq_q),        M(seq_k),     M(dim_qk),    M(dim_v),     M(topk),        M(scale),     M(softcap), M(window_left),
    M(window_right), M(alibi),     M(dkv_dtype), M(dist_norm), M(out_dtype),   M(total_q),   M(total_k), M(page_size),
    M(n_pages),      M(max_pages), M(q_start),   M(k_stride),  M(align_bytes), M(reserved1), M(group),   M(union_limit),
};
#undef M
#define M(name) MEMBER(attn_args, name)
static const struct member args_members[] = {
    M(size),
    M(reserved0),
    M(q),
    M(k),
    M(v),
    M(kv),
    M(mask),
    M(alibi),
    M(sink),
    M(seqlens_q),
    M(seqlens_k),
    M(cu_seqlens_q),
    M(cu_seqlens_k),
    M(block_table),
    M(indices),
    M(topk_length),
    M(out),
    M(lse),
    M(lse_rounded),
    M(max_logits),
    M(dist),
    M(dout),
    M(dlse),
    M(dq),
    M(dk),
    M(dv),
    M(dkv),
    M(dmask),
    M(dalibi),
    M(dsink),
    M(workspace),
    M(workspace_bytes),
    M(stream),
    M(joined),
    M(q_scale),
    M(k_scale),
    M(v_scale),
};
#undef M
#define M(name) MEMBER(attn_ctx_options, name)
static const struct member ctx_options_members[] = {
    M(size),      M(threads), M(alloc),       M(free),        M(alloc_user), M(log),  M(log_user),      M(log_level),
    M(reserved0), M(cpu_isa), M(cuda_driver), M(tuning_file), M(submit),     M(wait), M(executor_user),
};
#undef M
#define M(name) MEMBER(attn_device_info, name)
static const struct member device_info_members[] = {
    M(size), M(device.type), M(device.index), M(arch), M(memory_bytes), M(name), M(features),
};
#undef M
#define M(name) MEMBER(attn_plan_options, name)
static const struct member plan_options_members[] = {
    M(size), M(flags), M(backend), M(effort), M(kernel), M(max_workspace_bytes), M(threads), M(reserved0),
};
#undef M
#define M(name) MEMBER(attn_plan_info, name)
static const struct member plan_info_members[] = {
    M(size),
    M(backend),
    M(device.type),
    M(device.index),
    M(op),
    M(dtype),
    M(math_dtype),
    M(accumulator_dtype),
    M(deterministic),
    M(bit_stable),
    M(tuned),
    M(alignment_bytes),
    M(workspace_bytes),
    M(workspace_alignment),
    M(flops),
    M(estimate_seconds),
    M(kernel),
    M(kernel_unaligned),
    M(arch),
    M(joins),
    M(threads),
    M(group),
    M(union_limit),
};
#undef M
#define M(name) MEMBER(attn_merge_args, name)
static const struct member merge_args_members[] = {
    M(size), M(n_parts), M(out_parts), M(lse_parts), M(out), M(lse), M(flags), M(stream),
};
#undef M
#define M(name) MEMBER(attn_kernel_info, name)
static const struct member kernel_info_members[] = {
    M(size),          M(op),         M(backend),         M(dtype),  M(math_dtype), M(accumulator_dtype),
    M(deterministic), M(bit_stable), M(alignment_bytes), M(usable), M(arch),       M(name),
    M(summary),
};
#undef M
#define M(name) MEMBER(attn_env_info, name)
static const struct member env_info_members[] = {
    M(size), M(name), M(type), M(value), M(help),
};
#undef M

struct layout {
    const char *name;
    size_t bytes;
    const struct member *members;
    size_t n;
};
#define STRUCT(s)                                                                                                      \
    { "attn_" #s, sizeof(attn_##s), s##_members, sizeof s##_members / sizeof *s##_members }
static const struct layout layouts[ATTN_STRUCT_COUNT_] = {
    [ATTN_STRUCT_ERROR] = STRUCT(error),
    [ATTN_STRUCT_TENSOR] = STRUCT(tensor),
    [ATTN_STRUCT_PROBLEM] = STRUCT(problem),
    [ATTN_STRUCT_ARGS] = STRUCT(args),
    [ATTN_STRUCT_CTX_OPTIONS] = STRUCT(ctx_options),
    [ATTN_STRUCT_DEVICE_INFO] = STRUCT(device_info),
    [ATTN_STRUCT_PLAN_OPTIONS] = STRUCT(plan_options),
    [ATTN_STRUCT_PLAN_INFO] = STRUCT(plan_info),
    [ATTN_STRUCT_MERGE_ARGS] = STRUCT(merge_args),
    [ATTN_STRUCT_KERNEL_INFO] = STRUCT(kernel_info),
    [ATTN_STRUCT_ENV_INFO] = STRUCT(env_info),
};

static size_t element_bytes(const struct member *m) {
    static const size_t bytes[] = {[I32] = 4, [U32] = 4, [I64] = 8, [U64] = 8, [F64] = 8, [POINTER] = sizeof(void *)};
    return m->type == TEXT ? m->bytes : bytes[m->type];
}

static attn_status find_struct(int32_t kind, const struct layout **out) {
    if (kind <= 0 || kind >= ATTN_STRUCT_COUNT_)
        FAIL2(ATTN_E_ENUM, "kind", ATTN_STRUCT_COUNT_ - 1, kind, "kind is %d, expected ATTN_STRUCT_ERROR (1) to %d",
              kind, ATTN_STRUCT_COUNT_ - 1);
    *out = &layouts[kind];
    return ATTN_OK;
}

/* "shape[2]": *n is the length of the name, *index 2. */
static int split(const char *text, size_t *n, int64_t *index) {
    const char *bracket = strchr(text, '[');
    *n = bracket ? (size_t)(bracket - text) : strlen(text);
    *index = -1;
    if (!bracket) return 0;
    const size_t digits = strlen(bracket + 1);
    return !digits || bracket[digits] != ']' || attn_text_int64(bracket + 1, digits - 1, index) || *index < 0;
}

/* Where a member's value is. `wanted`: bits 1 << type. */
static attn_status find(int32_t kind, const void *object, const char *text, uint32_t wanted, const char *call,
                        enum type *type, char **slot) {
    const struct layout *s = NULL;
    const char *nearest = NULL;
    int best = 3;
    size_t n;
    int64_t index;
    TRY(find_struct(kind, &s));
    if (!object) FAIL(ATTN_E_ARGUMENT, "object", "object is NULL");
    if (!text) FAIL(ATTN_E_ARGUMENT, "member", "member is NULL");
    const int bad = split(text, &n, &index);
    const struct member *m = NULL;
    for (size_t i = 0; i < s->n && !bad && !m; i++) {
        const int distance = attn_text_distance(text, n, s->members[i].name);
        if (distance == 0) m = &s->members[i];
        if (distance < best) best = distance, nearest = s->members[i].name;
    }
    if (!m)
        FAIL(ATTN_E_ARGUMENT, "member", "%s has no member '%.40s'%s%s%s", s->name, text,
             nearest ? ", did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    if (!(wanted >> m->type & 1u))
        FAIL(ATTN_E_ARGUMENT, "member", "%s of %s is not for attn_struct_%s: it is %s", m->name, s->name, call,
             m->type == TEXT      ? "text"
             : m->type == POINTER ? "a pointer"
             : m->type == F64     ? "a real number"
                                  : "an integer");
    const int64_t count = (int64_t)(m->bytes / element_bytes(m));
    if ((count > 1) != (index >= 0) || index >= count)
        FAIL2(ATTN_E_ARGUMENT, "member", count - 1, index, "%s of %s has %lld element%s: '%.40s' names none of them",
              m->name, s->name, (long long)count, count > 1 ? "s, [0] and on" : "", text);
    uint32_t size = (uint32_t)s->bytes;
    if (kind != ATTN_STRUCT_TENSOR && m->offset > 0) memcpy(&size, object, sizeof size);
    if (size < m->offset + m->bytes)
        FAIL2(ATTN_E_ABI, "size", (int64_t)(m->offset + m->bytes), size, "%s.size is %u, expected %zu or more for %s",
              s->name, size, m->offset + m->bytes, m->name);
    *type = m->type;
    *slot = (char *)object + m->offset + (size_t)(index > 0 ? index : 0) * element_bytes(m);
    return ATTN_OK;
}
#define BIT(type) (1u << (type))
#define INTEGERS  (BIT(I32) | BIT(U32) | BIT(I64) | BIT(U64))

size_t attn_sizeof(int32_t kind) { return kind > 0 && kind < ATTN_STRUCT_COUNT_ ? layouts[kind].bytes : 0; }

attn_status attn_struct_init(int32_t kind, void *object, size_t bytes) {
    const struct layout *s = NULL;
    TRY(find_struct(kind, &s));
    if (!object) FAIL(ATTN_E_ARGUMENT, "object", "object is NULL");
    if (bytes < s->bytes)
        FAIL2(ATTN_E_ABI, "bytes", (int64_t)s->bytes, (int64_t)bytes, "bytes is %zu, but %s has %zu", bytes, s->name,
              s->bytes);
    const uint32_t size = (uint32_t)s->bytes;
    memset(object, 0, s->bytes);
    if (kind != ATTN_STRUCT_TENSOR) memcpy(object, &size, sizeof size);
    return ATTN_OK;
}

attn_status attn_struct_set_int(int32_t kind, void *object, const char *member, int64_t value) {
    enum type type;
    char *slot;
    TRY(find(kind, object, member, INTEGERS, "set_int", &type, &slot));
    const int32_t low = (int32_t)value;
    const uint32_t high = (uint32_t)value;
    if ((type == I32 && low != value) || (type == U32 && (value < 0 || high != (uint64_t)value)) ||
        (type == U64 && value < 0))
        FAIL2(ATTN_E_EXTENT, "value", 0, value, "%.40s = %lld does not fit the member", member, (long long)value);
    if (type == I32 || type == U32)
        memcpy(slot, &high, sizeof high);
    else
        memcpy(slot, &value, sizeof value);
    return ATTN_OK;
}

attn_status attn_struct_set_real(int32_t kind, void *object, const char *member, double value) {
    enum type type;
    char *slot;
    TRY(find(kind, object, member, BIT(F64), "set_real", &type, &slot));
    memcpy(slot, &value, sizeof value);
    return ATTN_OK;
}

attn_status attn_struct_set_pointer(int32_t kind, void *object, const char *member, const void *value) {
    enum type type;
    char *slot;
    TRY(find(kind, object, member, BIT(POINTER), "set_pointer", &type, &slot));
    memcpy(slot, &value, sizeof value);
    return ATTN_OK;
}

attn_status attn_struct_get_int(int32_t kind, const void *object, const char *member, int64_t *out) {
    enum type type;
    char *slot;
    int32_t low;
    uint32_t high;
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    TRY(find(kind, object, member, INTEGERS, "get_int", &type, &slot));
    if (type == I32)
        memcpy(&low, slot, sizeof low), *out = low;
    else if (type == U32)
        memcpy(&high, slot, sizeof high), *out = high;
    else
        memcpy(out, slot, sizeof *out);
    return ATTN_OK;
}

attn_status attn_struct_get_real(int32_t kind, const void *object, const char *member, double *out) {
    enum type type;
    char *slot;
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    TRY(find(kind, object, member, BIT(F64), "get_real", &type, &slot));
    memcpy(out, slot, sizeof *out);
    return ATTN_OK;
}

attn_status attn_struct_get_text(int32_t kind, const void *object, const char *member, const char **out) {
    enum type type;
    char *slot;
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    TRY(find(kind, object, member, BIT(TEXT) | BIT(POINTER), "get_text", &type, &slot));
    if (type == TEXT)
        *out = slot;
    else
        memcpy(out, slot, sizeof *out);
    return ATTN_OK;
}
