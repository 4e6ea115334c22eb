/* SPDX-License-Identifier: MIT
 * What every dense operator on CUDA shares on the host: views as device code reads them, the inputs and rules of a
 * problem as parameters, and the refusals that do not depend on a kernel's features. */
#include "cuda/dense/sdpa.h"
#include "core/problem.h"
#include "core/view.h"

#include <inttypes.h>
#include <math.h>

_Static_assert(KP_F32 == ATTN_F32 && KP_F16 == ATTN_F16 && KP_BF16 == ATTN_BF16 && KP_F64 == ATTN_F64 &&
                   KP_BOOL == ATTN_BOOL,
               "kernels/params/params.h repeats attn.h");

enum { MAX_LENGTH = ATTN_CUDA_MAX_LENGTH, FAR = ATTN_CUDA_FAR };
static const double LOG2E = 1.44269504088896340736;

/* ------------------------------------------------------------------ refusals ----------------------- */

int attn_cuda_refuse_image(const struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                           struct attn_text *why) {
    const int64_t given = attn_cuda_limits_of(dev)->shared_per_block;
    if (shared_bytes > given) {
        attn_text_add(why, "needs %" PRId64 " bytes of shared memory, the device gives %" PRId64, shared_bytes, given);
        return 1;
    }
    if (!attn_cuda_variant_of(dev, symbol)) {
        attn_text_add(why, "this build has no image of %s", symbol);
        return 1;
    }
    return 0;
}

int attn_cuda_sdpa_refuse(const attn_problem *p, int64_t dim, int64_t dim_v, struct attn_text *why) {
    const struct {
        const char *name;
        int64_t value, most;
    } rows[] = {
        {"dim_qk", p->dim_qk, dim},      {"dim_v", p->dim_v, dim_v},          {"seq_q", p->seq_q, MAX_LENGTH},
        {"seq_k", p->seq_k, MAX_LENGTH}, {"heads_q", p->heads_q, MAX_LENGTH}, {"batch", p->batch, MAX_LENGTH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value > rows[i].most) {
            attn_text_add(why, "%s is %" PRId64 ", at most %" PRId64, rows[i].name, rows[i].value, rows[i].most);
            return 1;
        }
    if (fabs(p->scale) > 1e30 || (p->softcap > 0 && (p->softcap < 1e-30 || p->softcap > 1e30))) {
        attn_text_add(why, "scale %g or softcap %g is outside what single precision holds", p->scale, p->softcap);
        return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------ parameters --------------------- */

struct kp_view attn_cuda_view(const attn_problem *p, const attn_args *args, int32_t role) {
    const struct attn_view v = attn_core_view(p, args, role);
    const uint64_t bits = (uint64_t)(uintptr_t)v.data | (uint64_t)((v.batch | v.head | v.row) * v.element_bytes);
    return (struct kp_view){.data = (uint64_t)(uintptr_t)v.data,
                            .batch = v.batch,
                            .head = v.head,
                            .row = v.row,
                            .column = (int32_t)v.column,
                            .dtype = v.dtype,
                            .chunk = bits % 16 == 0  ? 16
                                     : bits % 4 == 0 ? 4
                                                     : v.element_bytes};
}

uint64_t attn_cuda_address(const attn_tensor *t) { return t ? (uint64_t)(uintptr_t)t->data : 0; }

static int32_t clamp_window(int64_t x) { return (int32_t)(x > FAR ? FAR : x < 2 - FAR ? 2 - FAR : x); }

void attn_cuda_sdpa_tensors(struct kp_sdpa *kp, const attn_problem *p, const attn_args *a) {
    kp->q = attn_cuda_view(p, a, ATTN_ROLE_Q);
    kp->k = attn_cuda_view(p, a, ATTN_ROLE_K);
    kp->v = attn_cuda_view(p, a, ATTN_ROLE_V);
    kp->mask = attn_cuda_view(p, a, ATTN_ROLE_MASK);
    kp->seqlens_q = attn_cuda_address(a->seqlens_q);
    kp->seqlens_k = attn_cuda_address(a->seqlens_k);
    kp->cu_seqlens_q = attn_cuda_address(a->cu_seqlens_q);
    kp->cu_seqlens_k = attn_cuda_address(a->cu_seqlens_k);
    kp->block_table = attn_cuda_address(a->block_table);
    if (a->block_table && a->block_table->shape[0] > 1) kp->table_batch = a->block_table->strides[0];
    kp->alibi = attn_cuda_address(a->alibi);
    if (a->alibi) {
        kp->alibi_head = a->alibi->strides[a->alibi->rank - 1];
        if (a->alibi->rank == 2 && a->alibi->shape[0] > 1) kp->alibi_batch = a->alibi->strides[0];
    }
    kp->sink = attn_cuda_address(a->sink);
    if (a->sink) kp->sink_head = a->sink->strides[0];
    if (attn_core_has(p, ATTN_PAGED) && !kp->block_table) kp->seq_k = 0; /* an empty table names no key */
}

void attn_cuda_sdpa_numbers(struct kp_sdpa *kp, const attn_problem *p) {
    kp->total_q = p->total_q;
    kp->total_k = p->total_k;
    kp->page_size = p->page_size < FAR ? p->page_size : FAR; /* lengths are shorter: one page then */
    kp->n_pages = p->n_pages;
    kp->batch = (int32_t)p->batch;
    kp->heads_q = (int32_t)p->heads_q;
    kp->heads_k = (int32_t)p->heads_k;
    kp->seq_q = (int32_t)p->seq_q;
    kp->seq_k = (int32_t)p->seq_k;
    kp->dim_qk = (int32_t)p->dim_qk;
    kp->dim_v = (int32_t)p->dim_v;
    kp->window_left = clamp_window(p->window_left);
    kp->window_right = clamp_window(p->window_right);
    kp->alibi_form = p->alibi;
    kp->flags = (attn_core_has(p, ATTN_BOTTOM_RIGHT) ? KP_SDPA_BOTTOM_RIGHT : 0u) |
                (attn_core_has(p, ATTN_LSE_WITH_SINK) ? KP_LSE_WITH_SINK : 0u) |
                (attn_core_has(p, ATTN_LSE_BASE_2) ? KP_LSE_BASE_2 : 0u) |
                (attn_core_has(p, ATTN_LSE_EMPTY_PLUS_INF) ? KP_LSE_EMPTY_PLUS_INF : 0u);
    kp->scale = (float)p->scale;
    kp->scale_log2 = (float)(fabs(p->scale) * LOG2E);
    kp->softcap = (float)p->softcap;
    kp->softcap_inverse = p->softcap > 0 ? (float)(1 / p->softcap) : 0;
}

int64_t attn_cuda_section(int64_t heads, int64_t unit, int64_t fit) {
    const int64_t most = INT32_MAX / unit * unit, units = (heads + unit - 1) / unit, near = fit < 1 ? 1 : fit;
    int64_t best = near, idle = INT64_MAX; /* heads that the last section has too few */
    if (near + near / 3 >= units) return heads < most ? heads : most;
    for (int64_t d = 0; idle > 0 && d <= near / 3 && d < 64; d++)
        for (int64_t n = near + d;; n = near - d) {
            const int64_t lacks = (units + n - 1) / n * n - units;
            if (lacks < idle) best = n, idle = lacks;
            if (n <= near) break;
        }
    return best * unit < most ? best * unit : most;
}

struct kp_divisor attn_cuda_divisor(int64_t d) {
    uint32_t bits = 0;
    while (d > (int64_t)1 << bits) bits++;
    return (struct kp_divisor){(uint32_t)((((uint64_t)1 << (31 + bits)) + (uint64_t)d - 1) / (uint64_t)d), 31 + bits};
}

void attn_cuda_sdpa_inputs(struct kp_sdpa *kp, const attn_problem *p, const attn_args *args) {
    attn_cuda_sdpa_numbers(kp, p);
    attn_cuda_sdpa_tensors(kp, p, args);
}

void attn_cuda_sdpa_results(struct kp_sdpa_fwd *kp, const attn_problem *p, const attn_args *args) {
    kp->out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp->lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp->lse_rounded = attn_cuda_view(p, args, ATTN_ROLE_LSE_ROUNDED);
    kp->max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    kp->slack = kp->max_logits.data ? 0 : 8;
}

void attn_cuda_sdpa_gradients(struct kp_sdpa_bwd *kp, const attn_problem *p, const attn_args *args) {
    const attn_tensor *dalibi = args->dalibi, *dsink = args->dsink;
    kp->out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp->lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp->dout = attn_cuda_view(p, args, ATTN_ROLE_DOUT);
    kp->dlse = attn_cuda_view(p, args, ATTN_ROLE_DLSE);
    kp->dq = attn_cuda_view(p, args, ATTN_ROLE_DQ);
    kp->dk = attn_cuda_view(p, args, ATTN_ROLE_DK);
    kp->dv = attn_cuda_view(p, args, ATTN_ROLE_DV);
    kp->dmask = attn_cuda_view(p, args, ATTN_ROLE_DMASK);
    if (p->dim_qk == 0) kp->dq.data = kp->dk.data = 0;
    if (p->dim_v == 0) kp->dv.data = 0;
    kp->dalibi = attn_cuda_address(dalibi);
    if (dalibi) {
        kp->dalibi_head = dalibi->strides[dalibi->rank - 1];
        kp->dalibi_per_batch = dalibi->rank == 2 && dalibi->shape[0] != 1;
        if (kp->dalibi_per_batch) kp->dalibi_batch = dalibi->strides[0];
    }
    kp->dsink = attn_cuda_address(dsink);
    if (dsink) kp->dsink_head = dsink->strides[0];
}

/* ------------------------------------------------------------------ merging of key splits ---------- */

/* The image for sm_90 waits for the forward by itself and may be launched before its end. */
static int merges_early(const struct attn_core_device *dev, int32_t dtype) {
    return dtype != ATTN_F64 && attn_cuda_limits_of(dev)->early_launch && (dev->features & ATTN_CUDA_SM90A) &&
           attn_cuda_variant_of(dev, "attn_sdpa_combine_sm90_any");
}

static const char *merge_symbol(int32_t dtype, int early) {
    return dtype == ATTN_F64 ? "attn_sdpa_combine_smxx_f64"
           : early           ? "attn_sdpa_combine_sm90_any"
                             : "attn_sdpa_combine_smxx_any";
}

const char *attn_cuda_sdpa_merge_symbol(const struct attn_core_device *dev, int32_t dtype) {
    return merge_symbol(dtype, merges_early(dev, dtype));
}

struct attn_cuda_work attn_cuda_sdpa_merge(const struct attn_core_device *dev, int32_t dtype,
                                           const struct kp_sdpa_fwd *kp) {
    const int64_t rows = (int64_t)kp->in.batch * kp->in.heads_q * kp->in.seq_q, each = KP_SDPA_MERGE_ROWS(kp->splits),
                  ctas = (rows + each - 1) / each;
    const int early = merges_early(dev, dtype);
    const struct attn_cuda_grid grid = {.x = (uint32_t)(ctas < INT32_MAX ? ctas : INT32_MAX),
                                        .y = 1,
                                        .z = 1,
                                        .threads = 32 * KP_SDPA_MERGE_WARPS,
                                        .early = (uint8_t)early};
    return (struct attn_cuda_work){attn_cuda_variant_of(dev, merge_symbol(dtype, early)), kp, sizeof *kp, grid};
}
