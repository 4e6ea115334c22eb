/* SPDX-License-Identifier: MIT
 * Memory of a parsed module: blocks in a chain that go together. Nothing is freed one by one. */
#include "ptx/ptx.h"

#include <stdlib.h>
#include <string.h>

struct block {
    struct block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};
enum { BLOCK = 1 << 18 };

void *ptx_alloc(struct ptx_module *m, size_t bytes) {
    struct block *b = m->memory;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!b || b->size - b->used < bytes) {
        size_t size = bytes > BLOCK ? bytes : BLOCK;
        b = calloc(1, sizeof *b + size);
        if (!b) abort();
        b->size = size;
        b->next = m->memory;
        m->memory = b;
    }
    void *memory = b->bytes + b->used;
    b->used += bytes;
    return memory;
}

char *ptx_word(struct ptx_module *m, const char *text, size_t n) {
    char *word = ptx_alloc(m, n + 1);
    memcpy(word, text, n);
    return word;
}

void *ptx_grow(struct ptx_module *m, void *array, uint32_t n, size_t size) {
    if (n & (n - 1) || (n && n < 8)) return array; /* room up to the next power of two, at least 8 */
    void *larger = ptx_alloc(m, (n < 8 ? 8 : 2 * (size_t)n) * size);
    if (n) memcpy(larger, array, n * size);
    return larger;
}

void ptx_free(struct ptx_module *m) {
    if (!m) return;
    for (struct block *b = m->memory, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(m->text);
    free(m);
}
