/* SPDX-License-Identifier: MIT
 * Allocation through the context's hooks. Every block is zero-filled, so that no object is ever half-initialised. */
#include "base/mem.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Blocks from LARGE on, workspaces as a rule, ask for large pages: what a kernel keeps in the second-level cache then
 * does not crowd a part of it. Not under AddressSanitizer, which would not see accesses between a block's end and its
 * rounded end. */
enum { LARGE = 1 << 20, LARGE_PAGE = 2 << 20 };
#if defined(MADV_HUGEPAGE) && !defined(__SANITIZE_ADDRESS__)
static int wants_large_pages(size_t bytes, size_t alignment) { return bytes >= LARGE && alignment <= LARGE_PAGE; }
static void advise_large_pages(void *memory, size_t bytes) { (void)madvise(memory, bytes, MADV_HUGEPAGE); }
#else
static int wants_large_pages(size_t bytes, size_t alignment) { return (void)bytes, (void)alignment, 0; }
static void advise_large_pages(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

static void *default_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    const int large = wants_large_pages(bytes, alignment);
    if (large) alignment = LARGE_PAGE;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (bytes > (size_t)PTRDIFF_MAX - alignment) return NULL;
    bytes = (bytes + alignment - 1) & ~(alignment - 1); /* C11: a multiple of alignment */
    void *memory = aligned_alloc(alignment, bytes);
    if (memory && large) advise_large_pages(memory, bytes);
    return memory;
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
