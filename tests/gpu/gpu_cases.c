/* SPDX-License-Identifier: MIT
 * The problems that the walk offers to each kernel row, and the walk. Their numbers are odd enough to leave partial
 * tiles, and small. */
#include "gpu/gpu_rig.h"

#include <stdlib.h>
#include <string.h>

/* Problem texts without dtype; %d takes a width (dense: head dim, sparse: heads) from the operator's list, largest
 * first: a row that refuses what is too large for it gets its own size. */
struct forms {
    int32_t op;
    int widths[16];
    const char *text[10];
};
static const struct forms forms[] = {
    {ATTN_OP_SDPA_FWD,
     {512, 256, 192, 160, 128, 96, 80, 64, 32, 16},
     {"sdpa_fwd b=2 hq=6 hk=2 sq=200 sk=333 d=%d causal bottom_right", "sdpa_fwd b=1 hq=8 hk=2 sq=3 sk=3000 d=%d",
      "sdpa_fwd b=2 hq=4 sq=150 sk=150 d=%d left=70 sink seqlens_k",
      "sdpa_fwd b=1 hq=2 sq=130 sk=140 d=%d softcap=20 mask=f32 alibi=linear",
      "sdpa_fwd b=3 hq=4 hk=1 sq=100 sk=120 total_q=170 total_k=210 d=%d packed causal",
      "sdpa_fwd b=2 hq=4 hk=2 sq=5 sk=200 d=%d paged page_size=16 n_pages=40 max_pages=13 seqlens_k",
      "sdpa_fwd b=3 hq=4 hk=2 sq=70 sk=200 total_q=110 d=%d packed paged page_size=16 n_pages=40 max_pages=13 seqlens_k "
      "causal bottom_right",
      "sdpa_fwd b=1 hq=4 sq=256 sk=256 d=%d align=16", "sdpa_fwd b=2 hq=4 hk=2 sq=150 sk=170 d=%d causal softcap=20"}},
    {ATTN_OP_SDPA_BWD,
     {512, 256, 192, 160, 128, 96, 80, 64, 32, 16},
     {"sdpa_bwd b=2 hq=6 hk=2 sq=200 sk=333 d=%d causal bottom_right",
      "sdpa_bwd b=1 hq=4 sq=260 sk=130 d=%d deterministic",
      "sdpa_bwd b=2 hq=4 sq=150 sk=150 d=%d left=70 sink grad_sink dlse seqlens_k",
      "sdpa_bwd b=1 hq=2 sq=130 sk=140 d=%d softcap=20 mask=f32 grad_mask alibi=linear grad_alibi",
      "sdpa_bwd b=3 hq=4 hk=1 sq=100 sk=120 total_q=170 total_k=210 d=%d packed causal",
      "sdpa_bwd b=1 hq=4 sq=256 sk=256 d=%d align=16", "sdpa_bwd b=2 hq=4 hk=2 sq=150 sk=170 d=%d causal softcap=20",
      "sdpa_bwd b=1 hq=4 sq=200 sk=130 d=%d softcap=2 deterministic"}},
    {ATTN_OP_MLA_FWD,
     {192, 128, 64, 16, 1},
     {"mla_fwd hq=%d sq=9 sk=700 d=576 topk=320 causal q_start=690",
      "mla_fwd hq=%d sq=5 sk=300 d=512 topk=130 topk_length sink", "mla_fwd hq=%d sq=1 sk=5000 d=576 topk=2048",
      "mla_fwd hq=%d sq=64 sk=1024 d=576 topk=512 align=16", "mla_fwd hq=%d sq=16 sk=40000 d=576 topk=1500 topk_length",
      "mla_fwd hq=%d sq=16 sk=45000 d=512 topk=2048 causal q_start=44990"}},
    {ATTN_OP_MLA_BWD,
     {192, 128, 64, 16, 1},
     {"mla_bwd hq=%d sq=9 sk=700 d=576 topk=320 causal q_start=690",
      "mla_bwd hq=%d sq=7 sk=300 d=576 topk=130 topk_length deterministic",
      "mla_bwd hq=%d sq=5 sk=300 d=512 topk=128 sink grad_sink dlse",
      "mla_bwd hq=%d sq=5 sk=300 d=576 topk=128 dkv=f32 accumulate with_dist",
      "mla_bwd hq=%d sq=64 sk=1024 d=576 topk=512 align=16"}},
    {ATTN_OP_DIST,
     {192, 128, 64, 16, 1},
     {"dist hq=%d sq=9 sk=700 d=576 topk=320 causal q_start=690",
      "dist hq=%d sq=5 sk=300 d=512 topk=130 topk_length dist_norm=l1",
      "dist hq=%d sq=64 sk=1024 d=576 topk=512 dist_norm=mean align=16"}},
    {ATTN_OP_MLA_JOIN,
     {16, 8, 4, 2},
     {"mla_join sq=37 sk=700 topk=320 causal q_start=690 group=%d",
      "mla_join b=2 sq=19 sk=300 topk=130 topk_length group=%d union_limit=300",
      "mla_join sq=64 sk=1000000 topk=512 group=%d", "mla_join sq=9 sk=40 topk=200 topk_length group=%d"}},
};

/* A refusal that another chip, or a build with all images, would not give. */
static int of_the_chip(const char *why) { return strstr(why, "the device lacks") || strstr(why, "the device gives"); }
static int of_the_build(const char *why) { return strstr(why, "no image") != NULL; }

/* The widest problem of the form that the row accepts; 0 if none, and then why: the refusal of the chip or the build,
 * if one of the row's forms met it, else the last. */
static int find_problem(const struct gpu_rig *rig, int32_t index, const attn_kernel_info *k, const struct forms *f,
                        const char *form, attn_problem *out, char *why, size_t bytes) {
    for (int w = 0; f->widths[w]; w++) {
        char text[256];
        size_t n = 0;
        for (const char *from = form; *from && n + 12 < sizeof text;) /* not printf: the format is data */
            if (!strncmp(from, "%d", 2))
                n += (size_t)snprintf(text + n, sizeof text - n, "%d", f->widths[w]), from += 2;
            else
                text[n++] = *from++;
        snprintf(text + n, sizeof text - n, " %s", attn_dtype_name(k->dtype));
        if (attn_problem_parse(text, out) || attn_problem_check(out)) fail_msg("%s: %s", text, attn_last_error());
        if (!attn_kernel_supports(rig->ctx, rig->device, index, out)) return 1;
        if (!of_the_chip(why) && !of_the_build(why)) snprintf(why, bytes, "%s", attn_last_error());
    }
    return 0;
}

void gpu_case_close(struct gpu_case *c) {
    gpu_side_free(c, &c->side);
    attn_cli_tensors_destroy(&c->host);
    attn_plan_release(c->plan);
}

void gpu_case_open(struct gpu_case *c) {
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = c->kernel.name};
    char problem[sizeof c->text - 80];
    attn_problem_format(&c->problem, problem, sizeof problem, NULL);
    snprintf(c->text, sizeof c->text, "%.60s on \"%s\"", c->kernel.name, problem);
    c->info.size = sizeof c->info;
    if (attn_plan_create(c->rig->ctx, c->rig->device, &c->problem, &only, &c->plan) ||
        attn_plan_get_info(c->plan, &c->info) || attn_cli_tensors_create(&c->host, &c->problem) ||
        (!c->rig->blank && (attn_cli_tensors_fill(&c->host, 7) || attn_cli_tensors_forward(c->rig->ctx, &c->host))))
        fail_msg("%s: %s", c->text, attn_last_error());
    gpu_side_make(c, &c->side);
}

void gpu_walk(const struct gpu_rig *rig, void (*f)(struct gpu_case *)) {
    const char *pattern = getenv("GPU_TEST_KERNEL"), *most = getenv("GPU_TEST_CASES");
    int64_t per_row = 3;
    int rows = 0, cases = 0, without = 0, idle = 0;
    if (most) assert_int_equal(attn_cli_int(most, 1, 8, &per_row), 0);
    for (int32_t i = 0, n = attn_kernel_count(rig->ctx); i < n; i++) {
        attn_kernel_info k = {.size = sizeof k};
        char why[600] = "";
        int64_t done = 0;
        assert_int_equal(attn_kernel_get_info(rig->ctx, i, &k), ATTN_OK);
        if (k.backend != ATTN_BACKEND_CUDA || !k.usable || (pattern && !attn_cli_match(pattern, k.name))) continue;
        for (size_t o = 0; o < sizeof forms / sizeof *forms; o++)
            for (int t = 0; forms[o].op == k.op && done < per_row && forms[o].text[t]; t++) {
                struct gpu_case c = {.rig = rig, .kernel = k};
                if (!find_problem(rig, i, &k, &forms[o], forms[o].text[t], &c.problem, why, sizeof why)) continue;
                gpu_case_open(&c);
                f(&c);
                gpu_case_close(&c);
                done++;
            }
        rows += done > 0;
        cases += (int)done;
        if (done || of_the_chip(why)) continue; /* another chip's */
        if (of_the_build(why)) {
            without++;
            continue;
        }
        idle++;
        print_error("%s accepts none of the test's problems: %s\n", k.name, why);
    }
    print_message("%d cases on %d rows; %d rows without an image in this build\n", cases, rows, without);
    assert_int_equal(idle, 0);
    if (!rows) skip();
}
