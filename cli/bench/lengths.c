/* SPDX-License-Identifier: MIT
 * Lengths of the sequences that `attn bench` measures: at their bounds, or drawn for --lengths, and the FLOPs and bytes
 * of what they are, which attn_problem_flops, without the lengths, counts by their bounds. */
#include "bench/bench.h"

static int32_t *of_role(const struct attn_cli_tensors *set, int32_t role) {
    return set->use[role] == ATTN_USE_NONE ? NULL : set->tensor[role].data;
}

static int draws_length(const attn_problem *p) {
    return (p->flags & (ATTN_PACKED | ATTN_SEQLENS_Q | ATTN_SEQLENS_K)) != 0;
}

/* Lengths uniform in least .. bound, in their own stream of numbers: equal for queries and keys where self-attention
 * over packed sequences wants the same sequences on both sides. */
static int64_t draw(int32_t *length, int64_t n, int64_t least, int64_t bound, uint64_t stream) {
    struct attn_cli_rng rng;
    int64_t sum = 0;
    attn_cli_rng_seed(&rng, UINT64_C(0x6c656e67746873) + stream);
    if (least > bound) least = bound;
    for (int64_t b = 0; b < n; b++) {
        const int64_t x = least + attn_cli_rng_below(&rng, bound - least + 1);
        if (length) length[b] = (int32_t)x;
        sum += x;
    }
    return sum;
}
static uint64_t stream_of_keys(const attn_problem *p) {
    return p->total_q == p->total_k && p->seq_q == p->seq_k ? 0 : 1;
}

int attn_cli_lengths_fit(const attn_problem *p, int64_t least, const char *text) {
    if (!least) return ATTN_CLI_OK;
    if (!draws_length(p))
        return attn_cli_die("bench", "\"%s\": --lengths is for packed sequences, seqlens_q and seqlens_k", text);
    if (!(p->flags & ATTN_PACKED)) return ATTN_CLI_OK;
    const int64_t q = draw(NULL, p->batch, least, p->seq_q, 0);
    const int64_t k = p->flags & ATTN_PAGED ? 0 : draw(NULL, p->batch, least, p->seq_k, stream_of_keys(p));
    if (q > p->total_q || k > p->total_k)
        return attn_cli_die("bench",
                            "\"%s\": --lengths %lld draws %lld queries and %lld keys, more than total_q, total_k", text,
                            (long long)least, (long long)q, (long long)k);
    return ATTN_CLI_OK;
}

static void fill_offsets(int32_t *cu, const attn_problem *p, int64_t least, int64_t bound, uint64_t stream) {
    if (!cu) return;
    draw(cu + 1, p->batch, least, bound, stream);
    cu[0] = 0;
    for (int64_t b = 0; b < p->batch; b++) cu[b + 1] += cu[b];
}

void attn_cli_lengths_fill(struct attn_cli_tensors *set, int64_t least) {
    const attn_problem *p = &set->problem;
    attn_cli_tensors_full_lengths(set);
    if (!least) return;
    int32_t *q = of_role(set, ATTN_ROLE_SEQLENS_Q), *k = of_role(set, ATTN_ROLE_SEQLENS_K);
    const int packed = (p->flags & ATTN_PACKED) != 0, paged = (p->flags & ATTN_PAGED) != 0;
    fill_offsets(of_role(set, ATTN_ROLE_CU_SEQLENS_Q), p, least, p->seq_q, 0);
    fill_offsets(of_role(set, ATTN_ROLE_CU_SEQLENS_K), p, least, p->seq_k, stream_of_keys(p));
    if (q && !packed) draw(q, p->batch, least, p->seq_q, 0);
    if (k && (!packed || paged)) draw(k, p->batch, least, p->seq_k, 1);
}

/* The sequence's length: by offsets, by `length`, the smaller of both, or the bound. */
static int64_t length_of(const int32_t *cu, const int32_t *length, int64_t bound, int64_t b) {
    int64_t n = cu ? cu[b + 1] - cu[b] : bound;
    if (length && length[b] < n) n = length[b];
    return n < 0 ? 0 : n;
}

struct attn_cli_work attn_cli_lengths_work(const struct attn_cli_tensors *set) {
    const attn_problem *p = &set->problem;
    struct attn_cli_work work = {.flops = attn_problem_flops(p), .bytes = attn_problem_bytes(p)};
    if (!draws_length(p)) return work;
    work.flops = 0;
    if (!p->mask_dtype) work.bytes = 0; /* sequences may share a mask */
    attn_problem one = *p;
    one.flags &= ~(ATTN_PACKED | ATTN_PAGED | ATTN_SEQLENS_Q | ATTN_SEQLENS_K | ATTN_FILL_PADDING);
    one.batch = 1, one.total_q = one.total_k = 0, one.page_size = one.n_pages = one.max_pages = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        one.seq_q = length_of(of_role(set, ATTN_ROLE_CU_SEQLENS_Q), of_role(set, ATTN_ROLE_SEQLENS_Q), p->seq_q, b);
        one.seq_k = length_of(of_role(set, ATTN_ROLE_CU_SEQLENS_K), of_role(set, ATTN_ROLE_SEQLENS_K), p->seq_k, b);
        work.flops += attn_problem_flops(&one);
        if (!p->mask_dtype) work.bytes += attn_problem_bytes(&one);
        work.rows_q += one.seq_q, work.rows_k += one.seq_k;
    }
    return work;
}
