/* SPDX-License-Identifier: MIT
 * See slab.h: a short list of free blocks, the best fit first. */
#include "machine/slab.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 128, KEPT = 256, LAST_BASE = 1 << 22 };
struct slab {
    size_t bytes;
    uint32_t top;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *kept[KEPT];
static uint32_t n_kept, highest;

uint32_t sim_slab_base(void) {
    pthread_mutex_lock(&lock);
    if (highest > LAST_BASE) { /* times are kept in 24 bits: from the start again, blocks are wiped as they are taken */
        highest = 0;
    }
    uint32_t base = highest;
    pthread_mutex_unlock(&lock);
    return base;
}

void *sim_slab_take(size_t bytes, uint32_t base) {
    struct slab *s = NULL;
    uint32_t best = KEPT;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n_kept; i++)
        if (kept[i]->bytes >= bytes && kept[i]->bytes <= 2 * bytes + 4096 &&
            (best == KEPT || kept[i]->bytes < kept[best]->bytes))
            best = i;
    if (best < KEPT) {
        s = kept[best];
        kept[best] = kept[--n_kept];
    }
    pthread_mutex_unlock(&lock);
    if (!s) {
        bytes = (bytes + HEAD - 1) / HEAD * HEAD;
        s = aligned_alloc(HEAD, HEAD + bytes);
        if (!s) abort();
        s->bytes = bytes;
        s->top = UINT32_MAX;
    }
    if (s->top > base) memset((char *)s + HEAD, 0, s->bytes);
    return (char *)s + HEAD;
}

void sim_slab_give(void *block, uint32_t top) {
    if (!block) return;
    struct slab *s = (struct slab *)(void *)((char *)block - HEAD);
    s->top = top;
    pthread_mutex_lock(&lock);
    if (top != UINT32_MAX && top > highest) highest = top;
    if (n_kept < KEPT) {
        kept[n_kept++] = s;
        s = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(s);
}
