/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA, deterministic, overlapped sums: how many queries a launch of a main kernel takes that
 * also sums the rows that the chunk before stored, and how many SMs do which. Times are in rounds of work tiles. */
#include "cuda/sparse/mla_bwd.h"

#include <math.h>

/* Rounds of a chunk, at most. What a launch costs in addition, in key tiles. How fast an SM sums rows when all SMs do,
 * which memory bounds, as a fraction of the speed of one among few. */
enum { MAX_ROUNDS = 16 };
static const double LAUNCH = 9, SUM_ALONE = 0.43;

double attn_cuda_mla_bwd_workers(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t work_tiles,
                                 int64_t rows, int64_t *workers) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1, clusters = attn_cuda_mla_bwd_clusters(m, n_sms);
    const int64_t least = attn_cuda_blocks(work_tiles, clusters);
    double best = INFINITY; /* stays so where all SMs are wanted for work tiles: none sums */
    *workers = attn_cuda_lesser(clusters, work_tiles) * cluster;
    if (rows <= 0) return (double)least;
    for (int64_t rounds = least; rounds <= 2 * least + 1; rounds++) {
        const int64_t n = attn_cuda_blocks(work_tiles, rounds) * cluster;
        if (n >= n_sms) continue;
        const double time = fmax((double)rows * m->sum_time / (double)(n_sms - n), (double)rounds);
        if (time < best) best = time, *workers = n;
    }
    return best;
}

int64_t attn_cuda_mla_bwd_chunk(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t queries,
                                int64_t head_blocks, int64_t tiles, int64_t most) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1;
    const double alone = m->sum_time / (SUM_ALONE * (double)n_sms), launch = LAUNCH / (double)tiles;
    int64_t chunk = 0, workers;
    /* Less a little, for which several launches are not worth it. */
    double best = 0.97 * (double)(queries * head_blocks) * ((double)cluster / (double)n_sms + alone);
    for (int64_t summing_ctas = cluster; summing_ctas <= n_sms / 2; summing_ctas += cluster)
        for (int64_t rounds = 1; rounds <= MAX_ROUNDS; rounds++) {
            const int64_t n = rounds * ((n_sms - summing_ctas) / cluster) / head_blocks;
            if (n < 1) continue;
            if (n > most || n >= queries) break;
            const int64_t launches = attn_cuda_blocks(queries, n), work_tiles = n * head_blocks;
            const int64_t last = (queries - (launches - 1) * n) * head_blocks;
            double time = (double)launches * launch + (double)last * alone;
            time += attn_cuda_mla_bwd_workers(m, n_sms, work_tiles, 0, &workers);
            time +=
                (double)(launches - 2) * fmax((double)work_tiles * m->sum_time / (double)summing_ctas, (double)rounds);
            if (time < best) time += attn_cuda_mla_bwd_workers(m, n_sms, last, work_tiles, &workers);
            if (time < best) best = time, chunk = n;
        }
    return chunk;
}
