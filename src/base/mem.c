/* SPDX-License-Identifier: MIT
 * Allocation through the context's hooks. Every block is zero-filled, so that no object is ever half-initialised. */
#include "base/mem.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (bytes > (size_t)PTRDIFF_MAX - alignment) return NULL;
    return aligned_alloc(alignment, (bytes + alignment - 1) & ~(alignment - 1)); /* C11: a multiple of alignment */
}

static void default_free(void *user, void *memory, size_t bytes) {
    (void)user;
    (void)bytes;
    free(memory);
}

void attn_base_mem_init(struct attn_mem *mem, attn_alloc_fn alloc, attn_free_fn free_fn, void *user, int64_t fail_in) {
    mem->alloc = alloc ? alloc : default_alloc;
    mem->free = free_fn ? free_fn : default_free;
    mem->user = user;
    atomic_init(&mem->fail_in, fail_in);
}

static int inject(struct attn_mem *mem) {
    if (atomic_load_explicit(&mem->fail_in, memory_order_relaxed) <= 0) return 0;
    return atomic_fetch_sub_explicit(&mem->fail_in, 1, memory_order_relaxed) == 1;
}

void *attn_base_alloc(struct attn_mem *mem, size_t bytes, size_t alignment) {
    if (bytes == 0) bytes = 1; /* attn_base_free makes the same correction: the hooks see one number twice */
    void *memory = inject(mem) ? NULL : mem->alloc(mem->user, bytes, alignment);
    if (!memory) {
        attn_base_fail(ATTN_E_MEMORY, "alloc", 0, 0, "allocation of %zu bytes (alignment %zu) failed", bytes,
                       alignment);
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

void attn_base_free(struct attn_mem *mem, void *memory, size_t bytes) {
    if (memory) mem->free(mem->user, memory, bytes ? bytes : 1);
}
