/* SPDX-License-Identifier: MIT
 * Any bytes as a problem and plan options: check, flops, explain, plan, info. Nothing is executed. A problem that
 * passes the check must get a plan or a list of reasons, and its text form must mean the same. */
#include "fuzz/fuzz_bytes.h"

/* The struct as it comes, or field by field with values that pass the check often enough to reach the kernels. */
static attn_problem take_problem(struct fuzz_bytes *in) {
    attn_problem p = ATTN_PROBLEM_INIT;
    uint8_t mode = fuzz_u8(in);
    if (mode < 40) {
        fuzz_take(in, &p, sizeof p);
        if (mode < 30) p.size = sizeof p;
        if (p.size > sizeof p) p.size = sizeof p; /* a longer size promises bytes behind the struct */
        return p;
    }
    p.op = mode % 6;
    p.dtype = fuzz_u8(in) % 5;
    p.flags = fuzz_u64(in) & (mode < 230 ? ATTN_FLAGS_ALL_ : UINT64_MAX);
    if (mode < 130) p.flags &= fuzz_u64(in); /* fewer flags: a random set is nearly always refused */
    if (mode < 100) p.flags &= fuzz_u64(in);
    p.mask_dtype = fuzz_u8(in) % 9;
    if (mode < 150) p.mask_dtype = 0;
    p.batch = fuzz_extent(in);
    p.heads_q = fuzz_extent(in);
    p.heads_k = mode & 1 ? p.heads_q : fuzz_extent(in);
    p.seq_q = fuzz_extent(in);
    p.seq_k = fuzz_extent(in);
    p.dim_qk = fuzz_extent(in);
    p.dim_v = fuzz_extent(in);
    if (p.op >= ATTN_OP_MLA_FWD && mode & 2) {
        p.heads_k = 1;
        p.dim_qk = mode & 4 ? 576 : 512;
        p.dim_v = 512;
        p.topk = fuzz_extent(in);
    }
    fuzz_take(in, &p.scale, sizeof p.scale);
    if (mode & 8) fuzz_take(in, &p.softcap, sizeof p.softcap);
    p.window_left = fuzz_extent(in);
    p.window_right = fuzz_extent(in);
    if (p.op <= ATTN_OP_SDPA_BWD) p.alibi = fuzz_u8(in) % 4;
    p.dkv_dtype = p.op == ATTN_OP_MLA_BWD ? fuzz_u8(in) % 3 : 0;
    p.dist_norm = p.op >= ATTN_OP_MLA_BWD ? fuzz_u8(in) % 4 : 0;
    if (p.flags & ATTN_PACKED) {
        p.total_q = fuzz_extent(in);
        p.total_k = fuzz_extent(in);
    }
    if (p.flags & ATTN_PAGED) {
        p.page_size = fuzz_extent(in);
        p.n_pages = fuzz_extent(in);
        p.max_pages = fuzz_extent(in);
    }
    if (p.op >= ATTN_OP_MLA_FWD) {
        p.q_start = fuzz_extent(in);
        p.k_stride = fuzz_extent(in);
    }
    p.align_bytes = fuzz_u8(in) & 0x50;
    return p;
}

static void check_text(const attn_problem *p) {
    char text[1024];
    attn_problem again;
    size_t needed = 0;
    FUZZ_REQUIRE(attn_problem_format(p, text, sizeof text, &needed) == ATTN_OK && needed <= sizeof text);
    FUZZ_REQUIRE(attn_problem_parse(text, &again) == ATTN_OK);
    FUZZ_REQUIRE(attn_problem_equal(p, &again) && attn_problem_hash(p) == attn_problem_hash(&again));
    FUZZ_REQUIRE(attn_problem_check(&again) == ATTN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};
    attn_ctx *ctx = fuzz_ctx();
    attn_problem p = take_problem(&in);
    attn_device device = ATTN_DEVICE_CPU;
    attn_status checked = attn_problem_check(&p), status;
    char explanation[4096], pattern[24] = "";
    size_t needed = 0;

    if (p.size == sizeof p) { /* these three take any struct of the full size */
        double flops = attn_problem_flops(&p), bytes = attn_problem_bytes(&p);
        if (!checked) FUZZ_REQUIRE(flops >= 0 && bytes >= 0);
        (void)attn_problem_hash(&p);
    }
    if (!checked) check_text(&p);

    attn_plan_options o = {.size = sizeof o};
    uint8_t wish = fuzz_u8(&in);
    o.flags = wish & 7;
    if (wish & 8) o.backend = fuzz_u8(&in) % 5;
    if (wish & 16) {
        fuzz_take(&in, pattern, sizeof pattern - 1);
        o.kernel = pattern;
    }
    if (wish & 32) o.max_workspace_bytes = fuzz_u64(&in);
    if ((wish & 0xc0) == 0xc0) fuzz_take(&in, &device, sizeof device);

    status = attn_explain(ctx, device, &p, &o, explanation, sizeof explanation, &needed);
    if (!status) FUZZ_REQUIRE(needed > 0 && memchr(explanation, 0, sizeof explanation));

    attn_plan *plan = NULL;
    status = attn_plan_create(ctx, device, &p, &o, &plan);
    FUZZ_REQUIRE((status == ATTN_OK) == (plan != NULL));
    if (checked) FUZZ_REQUIRE(status);
    if (status) FUZZ_REQUIRE(attn_last_error()[0]);
    if (plan) {
        attn_plan_info info = {.size = sizeof info};
        attn_problem kept = ATTN_PROBLEM_INIT;
        attn_args none = ATTN_ARGS_INIT;
        FUZZ_REQUIRE(attn_plan_get_info(plan, &info) == ATTN_OK);
        FUZZ_REQUIRE(info.kernel[0] && info.workspace_alignment && info.op == p.op && info.dtype == p.dtype);
        if (o.flags & ATTN_PLAN_WORKSPACE_LIMIT) FUZZ_REQUIRE(info.workspace_bytes <= o.max_workspace_bytes);
        if (p.flags & ATTN_DETERMINISTIC) FUZZ_REQUIRE(info.deterministic);
        FUZZ_REQUIRE(attn_plan_get_problem(plan, &kept) == ATTN_OK && attn_problem_equal(&kept, &p));
        (void)attn_plan_check(plan, &none);
    }
    attn_plan_release(plan);
    return 0;
}
