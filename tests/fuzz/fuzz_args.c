/* SPDX-License-Identifier: MIT
 * Any tensors against a plan, by attn_plan_check alone. The data addresses lead nowhere: a check that reads a tensor's
 * contents crashes. What is accepted must stay inside the bytes that the tensor states. */
#include "fuzz/fuzz_bytes.h"

static const char *const problems[] = {
    "sdpa_fwd b=2 hq=4 hk=2 sq=8 sk=16 d=32 dv=32 f32",
    "sdpa_fwd b=2 hq=4 hk=2 sq=8 sk=16 d=32 dv=24 bf16 causal softcap=30 left=7",
    "sdpa_bwd b=2 hq=4 hk=2 sq=8 sk=16 d=32 dv=32 f16 causal bottom_right",
    "sdpa_bwd b=1 hq=2 hk=1 sq=5 sk=7 d=8 dv=8 f64",
    "sdpa_fwd b=0 hq=2 hk=1 sq=5 sk=7 d=8 dv=8 f32",
    "sdpa_fwd b=1 hq=2 hk=1 sq=5 sk=0 d=0 dv=8 f32",
    "mla_fwd sq=3 sk=40 hq=16 d=576 dv=512 topk=8 bf16 causal",
    "mla_bwd sq=3 sk=40 hq=16 d=512 dv=512 topk=8 f32 dkv=f32 accumulate",
    "dist b=2 sq=3 sk=40 hq=16 d=576 dv=512 topk=8 bf16",
};
enum { N_PROBLEMS = sizeof problems / sizeof *problems };

/* Flags that ask for more tensors; set on the struct, whatever the words for them are. */
static const uint64_t extras[] = {
    0,
    ATTN_SINK,
    ATTN_SEQLENS_Q | ATTN_SEQLENS_K,
    ATTN_DLSE,
    ATTN_TOPK_LENGTH,
    ATTN_GRAD_SINK | ATTN_SINK,
    ATTN_WITH_DIST,
};
enum { N_EXTRAS = sizeof extras / sizeof *extras };

static attn_plan *plan_of(size_t problem, size_t extra) {
    static attn_plan *plans[N_PROBLEMS][N_EXTRAS];
    static int tried[N_PROBLEMS][N_EXTRAS];
    if (!tried[problem][extra]) {
        attn_problem p;
        tried[problem][extra] = 1;
        FUZZ_REQUIRE(attn_problem_parse(problems[problem], &p) == ATTN_OK);
        p.flags |= extras[extra];
        attn_status status = attn_plan_create(fuzz_ctx(), ATTN_DEVICE_CPU, &p, NULL, &plans[problem][extra]);
        if (!extra) FUZZ_REQUIRE(status == ATTN_OK);
    }
    return plans[problem][extra];
}

/* First and last byte that a view touches, relative to data, or 0 if the sums do not fit in 64 bits. */
static int reach(const attn_tensor *t, int64_t *low, int64_t *high) {
    int64_t element = (int64_t)attn_dtype_bytes(t->dtype);
    *low = 0;
    *high = element;
    for (int32_t i = 0; i < t->rank; i++)
        if (t->shape[i] == 0) return *low = *high = 0, 1; /* empty: strides mean nothing */
    for (int32_t i = 0; i < t->rank; i++) {
        int64_t step;
        if (t->shape[i] == 1) continue;
        if (__builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &step) ||
            __builtin_mul_overflow(step, element, &step) ||
            __builtin_add_overflow(step < 0 ? *low : *high, step, step < 0 ? low : high))
            return 0;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};
    attn_plan *plan = plan_of(fuzz_u8(&in) % N_PROBLEMS, fuzz_u8(&in) % N_EXTRAS);
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_args args = ATTN_ARGS_INIT;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    if (!plan) return 0;
    FUZZ_REQUIRE(attn_plan_get_problem(plan, &problem) == ATTN_OK);
    memset(tensors, 0, sizeof tensors);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use = ATTN_USE_NONE;
        attn_tensor *t = &tensors[role];
        FUZZ_REQUIRE(attn_role_tensor(&problem, role, &use, t) == ATTN_OK);
        uint8_t how = fuzz_u8(&in);
        if (use == ATTN_USE_NONE && how < 250) continue;
        if (how == 251) continue; /* missing */
        t->data = (void *)(uintptr_t)(UINT64_C(0x100000000000) + (uint64_t)role * (1u << 24));
        switch (how % 16) {
        case 1: t->rank = (int32_t)fuzz_u8(&in) % 6; break;
        case 2: t->shape[fuzz_u8(&in) % ATTN_MAX_RANK] = fuzz_extent(&in); break;
        case 3: t->strides[fuzz_u8(&in) % ATTN_MAX_RANK] = fuzz_extent(&in); break;
        case 4: t->strides[fuzz_u8(&in) % ATTN_MAX_RANK] *= -1; break;
        case 5: t->dtype = (int32_t)fuzz_u8(&in) % 10 - 1; break;
        case 6: t->bytes = fuzz_u64(&in); break;
        case 7: t->bytes = (uint64_t)fuzz_extent(&in); break;
        case 8: t->data = (void *)(uintptr_t)((uint64_t)(uintptr_t)t->data + fuzz_u8(&in)); break;
        case 9: t->data = (void *)(uintptr_t)fuzz_u64(&in); break;
        case 10: t->device.type = fuzz_u8(&in); break;
        case 11: fuzz_take(&in, t->strides, sizeof t->strides); break;
        case 12: fuzz_take(&in, t, sizeof *t); break;
        case 13: t->data = role ? tensors[fuzz_u8(&in) % role].data : NULL; break;
        default: break;
        }
        if (how % 16 == 14) t->bytes = 0;
        FUZZ_REQUIRE(attn_args_set(&args, role, t) == ATTN_OK && attn_args_at(&args, role) == t);
    }
    uint8_t tail = fuzz_u8(&in);
    args.workspace = (void *)(uintptr_t)(UINT64_C(0x200000000000) + (tail & 1 ? fuzz_u8(&in) : 0));
    args.workspace_bytes = tail & 2 ? fuzz_u64(&in) : UINT64_C(1) << 40;
    if (tail & 4) args.workspace = NULL;
    if ((tail & 0x38) == 0x38) args.stream = (void *)(uintptr_t)16;
    if (tail == 255) args.size = fuzz_u8(&in) & ~7u; /* an older struct ends between members */

    attn_status status = attn_plan_check(plan, &args);
    if (status) {
        FUZZ_REQUIRE(status >= 100 && status < 200 && attn_last_error()[0]);
        return 0;
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && args.size == sizeof args; role++) {
        const attn_tensor *t = attn_args_at(&args, role);
        int64_t low, high;
        if (!t) continue;
        FUZZ_REQUIRE(reach(t, &low, &high));
        if (t->bytes) FUZZ_REQUIRE((uint64_t)high <= t->bytes);
    }
    return 0;
}
