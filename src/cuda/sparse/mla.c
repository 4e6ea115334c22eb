/* SPDX-License-Identifier: MIT
 * What every sparse MLA operator on CUDA shares on the host: inputs and rules of a problem as parameters, and the
 * refusals that do not depend on a kernel's features. */
#include "cuda/sparse/mla.h"
#include "core/problem.h"

#include <inttypes.h>
#include <math.h>

static const double LOG2E = 1.44269504088896340736;

int attn_cuda_mla_refuse_dim(const attn_problem *p, int32_t dim, struct attn_text *why) {
    if (p->dim_qk == dim) return 0;
    attn_text_add(why, "dim_qk is %" PRId64 ", this variant is for %" PRId32, p->dim_qk, dim);
    return 1;
}

int attn_cuda_mla_refuse(const attn_problem *p, struct attn_text *why) {
    const struct {
        const char *name;
        int64_t value, most;
    } rows[] = {
        {"seq_k", p->seq_k, INT64_C(1) << 31}, /* an index is int32 */
        {"topk", p->topk, ATTN_CUDA_MAX_LENGTH},
        {"heads_q", p->heads_q, ATTN_CUDA_MAX_LENGTH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value > rows[i].most) {
            attn_text_add(why, "%s is %" PRId64 ", at most %" PRId64, rows[i].name, rows[i].value, rows[i].most);
            return 1;
        }
    if (fabs(p->scale) > 1e30) {
        attn_text_add(why, "scale %g is outside what single precision holds", p->scale);
        return 1;
    }
    return 0;
}

void attn_cuda_mla_inputs(struct kp_mla *kp, const attn_problem *p, const attn_args *args) {
    kp->q = attn_cuda_view(p, args, ATTN_ROLE_Q);
    kp->kv = attn_cuda_view(p, args, ATTN_ROLE_KV);
    kp->indices = attn_cuda_view(p, args, ATTN_ROLE_INDICES);
    kp->topk_length = attn_cuda_view(p, args, ATTN_ROLE_TOPK_LENGTH);
    kp->sink = attn_cuda_address(args->sink);
    if (args->sink) kp->sink_head = args->sink->strides[0];
    kp->batch = p->batch;
    kp->seq_q = p->seq_q;
    kp->seq_k = p->seq_k;
    kp->q_start = p->q_start;
    kp->k_stride = p->k_stride < 1 ? 1 : p->k_stride;
    kp->heads_q = (int32_t)p->heads_q;
    kp->dim_qk = (int32_t)p->dim_qk;
    kp->topk = (int32_t)p->topk;
    kp->flags = (attn_core_has(p, ATTN_CAUSAL) ? KP_MLA_CAUSAL : 0u) |
                (attn_core_has(p, ATTN_LSE_WITH_SINK) ? KP_LSE_WITH_SINK : 0u) |
                (attn_core_has(p, ATTN_LSE_BASE_2) ? KP_LSE_BASE_2 : 0u) |
                (attn_core_has(p, ATTN_LSE_EMPTY_PLUS_INF) ? KP_LSE_EMPTY_PLUS_INF : 0u);
    kp->scale = (float)p->scale;
    kp->scale_log2 = (float)(p->scale * LOG2E);
}

void attn_cuda_mla_bwd_tensors(struct kp_mla_bwd *kp, const attn_problem *p, const attn_args *args) {
    attn_cuda_mla_inputs(&kp->in, p, args);
    kp->out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp->dout = attn_cuda_view(p, args, ATTN_ROLE_DOUT);
    kp->lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp->dlse = attn_cuda_view(p, args, ATTN_ROLE_DLSE);
    kp->dq = attn_cuda_view(p, args, ATTN_ROLE_DQ);
    kp->dkv = attn_cuda_view(p, args, ATTN_ROLE_DKV);
    kp->dist = attn_cuda_view(p, args, ATTN_ROLE_DIST);
    kp->dsink = attn_cuda_address(args->dsink);
    if (args->dsink) kp->dsink_head = args->dsink->strides[0];
}

int64_t attn_cuda_mla_capacity(const struct kp_mla_config *c, int64_t shared_bytes, const struct attn_cuda_limits *l) {
    const int64_t fit = l->shared_per_sm / (shared_bytes + 1024); /* the system keeps 1 KiB of each CTA's */
    return l->n_sms * (fit < 1 ? 1 : fit < c->ctas ? fit : c->ctas);
}

int64_t attn_cuda_mla_splits(int64_t work_tiles, int64_t tiles, int64_t capacity, int64_t most, double start,
                             double merge) {
    int64_t best = 1;
    double least = 0;
    if (work_tiles >= capacity) return 1;
    for (int64_t s = 1; s <= most && s <= tiles; s++) {
        const int64_t rounds = (work_tiles * s + capacity - 1) / capacity, share = (tiles + s - 1) / s;
        const double cost = (double)rounds * ((double)share + start) + (s > 1 ? merge * (double)(2 + s) : 0);
        if (s == 1 || cost < least) least = cost, best = s;
    }
    return best;
}
