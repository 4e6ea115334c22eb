/* SPDX-License-Identifier: MIT
 * Which sectors of global memory a launch touches, each once however often: a hash of pages with a bit for each sector
 * that was read, and one for each that was written. */
#include "counts/counts.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_SECTORS = 128, WORDS = PAGE_SECTORS / 64 }; /* 4096 bytes */
struct sim_footprint_page {
    uint64_t number; /* 1 + its place; 0: free */
    uint64_t bits[2][WORDS];
};

static struct sim_footprint_page *find(struct sim_footprint *f, uint64_t number) {
    uint64_t slot = (number * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (f->room - 1);
    while (f->pages[slot].number && f->pages[slot].number != number) slot = (slot + 1) & (f->room - 1);
    return &f->pages[slot];
}
static void grow(struct sim_footprint *f) {
    struct sim_footprint old = *f;
    f->room = old.room ? 2 * old.room : 1024;
    f->pages = calloc(f->room, sizeof *f->pages);
    if (!f->pages) abort();
    for (uint64_t i = 0; i < old.room; i++)
        if (old.pages[i].number) *find(f, old.pages[i].number) = old.pages[i];
    free(old.pages);
}
static struct sim_footprint_page *page(struct sim_footprint *f, uint64_t number) {
    if (2 * f->n >= f->room) grow(f);
    struct sim_footprint_page *p = find(f, number);
    if (!p->number) p->number = number, f->n++;
    return p;
}

void sim_footprint_touch(struct sim_footprint *f, uint64_t sector, int written) {
    const uint64_t bit = sector % PAGE_SECTORS;
    page(f, 1 + sector / PAGE_SECTORS)->bits[written][bit / 64] |= UINT64_C(1) << bit % 64;
}
void sim_footprint_add(struct sim_footprint *to, const struct sim_footprint *from) {
    for (uint64_t i = 0; i < from->room; i++) {
        if (!from->pages[i].number) continue;
        struct sim_footprint_page *p = page(to, from->pages[i].number);
        for (uint32_t k = 0; k < 2 * WORDS; k++)
            p->bits[k / WORDS][k % WORDS] |= from->pages[i].bits[k / WORDS][k % WORDS];
    }
}
uint64_t sim_footprint_sectors(const struct sim_footprint *f, int written) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < f->room; i++)
        for (uint32_t k = 0; k < WORDS && f->pages[i].number; k++)
            n += (uint64_t)__builtin_popcountll(f->pages[i].bits[written][k]);
    return n;
}
void sim_footprint_free(struct sim_footprint *f) {
    free(f->pages);
    *f = (struct sim_footprint){0};
}
