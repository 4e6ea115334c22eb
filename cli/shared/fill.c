/* SPDX-License-Identifier: MIT
 * Random but sensible inputs: normal values, masks with holes, lengths that fit, pages and indices that exist. */
#include "shared/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a floating tensor in blocks, since attn_convert is cheap per call only on long runs. */
static void fill_normal(attn_tensor *t, struct attn_cli_rng *rng, double scale, double hidden) {
    size_t size = attn_dtype_bytes(t->dtype), n = (size_t)t->bytes / size;
    double block[512];
    for (size_t i = 0; i < n; i += 512) {
        size_t m = n - i < 512 ? n - i : 512;
        for (size_t k = 0; k < m; k++) {
            block[k] = scale * attn_cli_rng_normal(rng);
            if (hidden > 0 && attn_cli_rng_uniform(rng) < hidden) block[k] = -INFINITY;
        }
        attn_convert((char *)t->data + i * size, t->dtype, block, ATTN_F64, m);
    }
}

static void fill_bool(attn_tensor *t, struct attn_cli_rng *rng) {
    for (uint64_t i = 0; i < t->bytes; i++) ((unsigned char *)t->data)[i] = attn_cli_rng_uniform(rng) < 0.85;
}

/* Slopes of Press et al. 2021 for HQ heads, repeated over the batch. */
static void fill_slopes(attn_tensor *t, int64_t heads) {
    for (int64_t i = 0, n = (int64_t)(t->bytes / 4); i < n; i++)
        ((float *)t->data)[i] = (float)exp2(-8.0 * (double)(i % heads + 1) / (double)heads);
}

static void fill_lengths(attn_tensor *t, struct attn_cli_rng *rng, int64_t bound) {
    int32_t *x = t->data;
    for (int64_t i = 0, n = (int64_t)(t->bytes / 4); i < n; i++)
        x[i] = (int32_t)(i == 0 || bound < 1 ? bound : 1 + attn_cli_rng_below(rng, bound));
}

/* Lengths near total/B, then moved between random pairs; rows that no sequence can hold (B * bound < total) stay
 * unused. */
static attn_status fill_offsets(attn_tensor *t, struct attn_cli_rng *rng, int64_t batch, int64_t bound, int64_t total) {
    int32_t *cu = t->data;
    cu[0] = 0;
    if (batch < 1) return ATTN_OK;
    int64_t *length = malloc((size_t)batch * sizeof *length);
    if (!length) return ATTN_E_MEMORY;
    for (int64_t b = 0; b < batch; b++) {
        length[b] = total / batch + (b < total % batch);
        if (length[b] > bound) length[b] = bound;
    }
    for (int64_t k = 0; k < 2 * batch; k++) {
        int64_t from = attn_cli_rng_below(rng, batch), to = attn_cli_rng_below(rng, batch);
        int64_t room = bound - length[to], most = length[from] < room ? length[from] : room;
        int64_t moved = from == to ? 0 : attn_cli_rng_below(rng, most / 2 + 1);
        length[from] -= moved;
        length[to] += moved;
    }
    for (int64_t b = 0; b < batch; b++) cu[b + 1] = cu[b] + (int32_t)length[b];
    free(length);
    return ATTN_OK;
}

static attn_status fill_pages(attn_tensor *t, struct attn_cli_rng *rng, int64_t pages) {
    int32_t *table = t->data;
    int64_t n = (int64_t)(t->bytes / 4);
    if (pages < 1) { /* no pool: every key is hidden */
        for (int64_t i = 0; i < n; i++) table[i] = -1;
        return ATTN_OK;
    }
    int32_t *order = malloc((size_t)pages * sizeof *order);
    if (!order) return ATTN_E_MEMORY;
    for (int64_t i = 0; i < pages; i++) order[i] = (int32_t)i;
    for (int64_t i = pages - 1; i > 0; i--) {
        int64_t j = attn_cli_rng_below(rng, i + 1);
        int32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (int64_t i = 0; i < n; i++) table[i] = order[i % pages];
    free(order);
    return ATTN_OK;
}

/* Distinct admissible rows in random order by a partial Fisher-Yates shuffle, undone after every query so that each
 * costs TOPK steps instead of SK. */
static attn_status fill_indices(attn_tensor *t, struct attn_cli_rng *rng, const attn_problem *p) {
    int64_t sk = p->seq_k, topk = p->topk, stride = p->k_stride > 0 ? p->k_stride : 1;
    int64_t rows = (int64_t)(t->bytes / 4) / (topk ? topk : 1);
    int32_t *order = malloc((size_t)(sk + 1) * sizeof *order);
    int64_t *taken = malloc((size_t)(topk + 1) * sizeof *taken);
    if (!order || !taken) {
        free(order);
        free(taken);
        return ATTN_E_MEMORY;
    }
    for (int64_t j = 0; j < sk; j++) order[j] = (int32_t)j;
    for (int64_t row = 0; row < rows; row++) {
        int32_t *index = (int32_t *)t->data + row * topk;
        int64_t open = sk;
        if (p->flags & ATTN_CAUSAL) {
            open = (p->q_start + row % p->seq_q + 1) / stride;
            if (open > sk) open = sk;
        }
        int64_t n = open < topk ? open : topk;
        for (int64_t s = 0; s < n; s++) {
            int64_t j = taken[s] = s + attn_cli_rng_below(rng, open - s);
            int32_t pick = order[j];
            order[j] = order[s];
            index[s] = order[s] = pick;
        }
        for (int64_t s = n; s < topk; s++) index[s] = -1;
        for (int64_t s = n; s-- > 0;) {
            int32_t back = order[taken[s]];
            order[taken[s]] = order[s];
            order[s] = back;
        }
    }
    free(order);
    free(taken);
    return ATTN_OK;
}

attn_status attn_cli_tensors_fill_role(struct attn_cli_tensors *set, int32_t role, uint64_t seed) {
    const attn_problem *p = &set->problem;
    attn_tensor *t = &set->tensor[role];
    struct attn_cli_rng rng;
    if (set->use[role] == ATTN_USE_NONE || !t->bytes) return ATTN_OK;
    /* Self-attention over packed sequences: equal totals and bounds mean the same sequences on both sides. */
    int32_t stream = role;
    if (role == ATTN_ROLE_CU_SEQLENS_K && p->total_q == p->total_k && p->seq_q == p->seq_k)
        stream = ATTN_ROLE_CU_SEQLENS_Q;
    attn_cli_rng_seed(&rng, seed * UINT64_C(0x100000001b3) + (uint64_t)stream);
    switch (role) {
    case ATTN_ROLE_MASK:
        if (t->dtype == ATTN_BOOL)
            fill_bool(t, &rng);
        else
            fill_normal(t, &rng, 1, 0.1);
        return ATTN_OK;
    case ATTN_ROLE_ALIBI: fill_slopes(t, p->heads_q); return ATTN_OK;
    case ATTN_ROLE_SEQLENS_Q: fill_lengths(t, &rng, p->seq_q); return ATTN_OK;
    case ATTN_ROLE_SEQLENS_K: fill_lengths(t, &rng, p->seq_k); return ATTN_OK;
    case ATTN_ROLE_TOPK_LENGTH: fill_lengths(t, &rng, p->topk); return ATTN_OK;
    case ATTN_ROLE_CU_SEQLENS_Q: return fill_offsets(t, &rng, p->batch, p->seq_q, p->total_q);
    case ATTN_ROLE_CU_SEQLENS_K: return fill_offsets(t, &rng, p->batch, p->seq_k, p->total_k);
    case ATTN_ROLE_BLOCK_TABLE: return fill_pages(t, &rng, p->n_pages);
    case ATTN_ROLE_INDICES: return fill_indices(t, &rng, p);
    case ATTN_ROLE_OUT:
    case ATTN_ROLE_LSE:
    case ATTN_ROLE_JOINED: return ATTN_OK;
    case ATTN_ROLE_DLSE: fill_normal(t, &rng, 0.1, 0); return ATTN_OK;
    case ATTN_ROLE_Q_SCALE:
    case ATTN_ROLE_K_SCALE:
        for (uint64_t i = 0; i < t->bytes / 4; i++)
            ((float *)t->data)[i] = (float)exp2(attn_cli_rng_uniform(&rng) - 0.5);
        return ATTN_OK;
    case ATTN_ROLE_V_SCALE: /* values of 1 are to be worth 1 */
        for (uint64_t i = 0; i < t->bytes / 4; i++) ((float *)t->data)[i] = 1;
        return ATTN_OK;
    default: fill_normal(t, &rng, 1, 0); return ATTN_OK;
    }
}

attn_status attn_cli_tensors_fill(struct attn_cli_tensors *set, uint64_t seed) {
    attn_status status = ATTN_OK;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++)
        if (set->use[role] == ATTN_USE_IN || set->use[role] == ATTN_USE_INOUT_OPTIONAL)
            status = attn_cli_tensors_fill_role(set, role, seed);
    return status;
}
