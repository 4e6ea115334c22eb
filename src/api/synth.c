/* SPDX-License-Identifier: MIT
 * Tensors for measurements: row-major, with numbers that keep every kernel on its usual path (no overflow, no hidden
 * rows). */
#include "api/api.h"
#include "base/num.h"
#include "core/problem.h"

#include <math.h>
#include <string.h>

static double uniform(uint64_t *seed) { /* [-1, 1) */
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)*seed * 0x1p-63;
}

static int64_t count(const attn_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sparse: keys that query i may see at all; the lists of a real caller hold few others. */
static int64_t keys_seen(const attn_problem *p, int64_t i) {
    int64_t seen = attn_core_has(p, ATTN_CAUSAL) ? (p->q_start + i + 1) / p->k_stride : p->seq_k;
    return least(seen, p->seq_k);
}

static int32_t integer(const attn_problem *p, int32_t role, int64_t i, uint64_t *seed) {
    int64_t sequences = p->batch > 0 ? p->batch : 1, value = 0;
    switch (role) {
    case ATTN_ROLE_SEQLENS_Q: value = p->seq_q; break;
    case ATTN_ROLE_SEQLENS_K: value = p->seq_k; break;
    case ATTN_ROLE_CU_SEQLENS_Q: value = i * least(p->total_q / sequences, p->seq_q); break;
    case ATTN_ROLE_CU_SEQLENS_K: value = i * least(p->total_k / sequences, p->seq_k); break;
    case ATTN_ROLE_BLOCK_TABLE: value = p->n_pages > 0 ? i % p->n_pages : 0; break;
    case ATTN_ROLE_TOPK_LENGTH: value = p->topk; break;
    case ATTN_ROLE_JOINED: break; /* no kernel of the CPU reads them */
    default:                      /* ATTN_ROLE_INDICES */
        value = (int64_t)((uniform(seed) * 0.5 + 0.5) * (double)keys_seen(p, i / p->topk % p->seq_q));
        break;
    }
    return (int32_t)least(value, INT32_MAX);
}

static void fill(const attn_problem *p, int32_t role, attn_tensor *t) {
    uint64_t seed = 0x9e3779b97f4a7c15u * (uint64_t)(role + 1);
    int64_t n = count(t);
    double keys = (double)(p->topk > 0 ? p->topk : p->seq_k);
    double lse = log(keys > 1 ? keys : 1) + 1; /* as unit scores would give; keeps exp(score - lse) below 1 */
    if (attn_core_has(p, ATTN_LSE_BASE_2)) lse *= 1.4426950408889634;
    for (int64_t i = 0; i < n; i++) {
        if (t->dtype == ATTN_I32)
            ((int32_t *)t->data)[i] = integer(p, role, i, &seed);
        else if (t->dtype == ATTN_BOOL)
            ((uint8_t *)t->data)[i] = 1;
        else
            attn_num_store(t->data, t->dtype, i,
                           role == ATTN_ROLE_LSE      ? lse
                           : role == ATTN_ROLE_ALIBI  ? 0.0625
                           : attn_core_is_scale(role) ? 1
                                                      : uniform(&seed));
    }
}

attn_status attn_api_synth_create(struct attn_mem *mem, const attn_problem *problem, struct attn_api_synth *out) {
    memset(out, 0, sizeof *out);
    out->args.size = sizeof out->args;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct attn_core_role r;
        attn_core_role_get(problem, role, &r);
        if (r.use == ATTN_USE_NONE) continue;
        attn_tensor *t = &out->tensors[role];
        attn_status status = attn_tensor_contiguous(t, NULL, r.dtype, r.rank, r.shape);
        if (!status && t->bytes) {
            t->data = attn_base_alloc(mem, (size_t)t->bytes, 64);
            status = t->data ? ATTN_OK : ATTN_E_MEMORY;
        }
        if (!status) status = attn_args_set(&out->args, role, t);
        if (status) {
            attn_api_synth_destroy(mem, out);
            return status;
        }
        if (r.use == ATTN_USE_IN) fill(problem, role, t);
    }
    return ATTN_OK;
}

void attn_api_synth_destroy(struct attn_mem *mem, struct attn_api_synth *synth) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        attn_base_free(mem, synth->tensors[role].data, (size_t)synth->tensors[role].bytes);
    memset(synth, 0, sizeof *synth);
}
