/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA, deterministic: how many queries a launch of a main kernel takes that walks the rows of
 * the chunk before beside its own items, and how many multiprocessors do which. Times are in rounds of items. */
#include "cuda/sparse/mla_bwd.h"

#include <math.h>

/* Rounds of a chunk, at most. What a launch costs beside them, in tiles of an item. With no main kernel beside it, how
 * fast a multiprocessor adds rows, memory being what bounds all of them, in parts of the speed of one among few. */
enum { MAX_ROUNDS = 16 };
static const double LAUNCH = 9, WALK_ALONE = 0.43;

double attn_cuda_mla_bwd_workers(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t items, int64_t rows,
                                 int64_t *workers) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1, clusters = attn_cuda_mla_bwd_clusters(m, n_sms);
    const int64_t least = attn_cuda_blocks(items, clusters);
    double best = INFINITY; /* stays so where all multiprocessors are wanted for items: nobody walks */
    *workers = attn_cuda_lesser(clusters, items) * cluster;
    if (rows <= 0) return (double)least;
    for (int64_t rounds = least; rounds <= 2 * least + 1; rounds++) {
        const int64_t n = attn_cuda_blocks(items, rounds) * cluster;
        if (n >= n_sms) continue;
        const double time = fmax((double)rows * m->walk / (double)(n_sms - n), (double)rounds);
        if (time < best) best = time, *workers = n;
    }
    return best;
}

int64_t attn_cuda_mla_bwd_chunk(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t queries,
                                int64_t head_blocks, int64_t tiles, int64_t most) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1;
    const double alone = m->walk / (WALK_ALONE * (double)n_sms), launch = LAUNCH / (double)tiles;
    int64_t chunk = 0, workers;
    /* Less a little, for which several launches are not worth it. */
    double best = 0.97 * (double)(queries * head_blocks) * ((double)cluster / (double)n_sms + alone);
    for (int64_t walkers = cluster; walkers <= n_sms / 2; walkers += cluster)
        for (int64_t rounds = 1; rounds <= MAX_ROUNDS; rounds++) {
            const int64_t n = rounds * ((n_sms - walkers) / cluster) / head_blocks;
            if (n < 1) continue;
            if (n > most || n >= queries) break;
            const int64_t launches = attn_cuda_blocks(queries, n), items = n * head_blocks;
            const int64_t last = (queries - (launches - 1) * n) * head_blocks;
            double time = (double)launches * launch + (double)last * alone;
            time += attn_cuda_mla_bwd_workers(m, n_sms, items, 0, &workers);
            time += (double)(launches - 2) * fmax((double)items * m->walk / (double)walkers, (double)rounds);
            if (time < best) time += attn_cuda_mla_bwd_workers(m, n_sms, last, items, &workers);
            if (time < best) best = time, chunk = n;
        }
    return chunk;
}
