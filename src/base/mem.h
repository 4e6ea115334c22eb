/* SPDX-License-Identifier: MIT
 * Memory through the context's hooks, with fault injection (the n-th allocation fails). */
#ifndef ATTN_BASE_MEM_H
#define ATTN_BASE_MEM_H
#include "attn.h"
#include <stdatomic.h>

struct attn_mem {
    attn_alloc_fn alloc;
    attn_free_fn free;
    void *user;
    _Atomic int64_t fail_in; /* > 0: counts down, the allocation that reaches 0 fails; <= 0: off */
};
void attn_base_mem_init(struct attn_mem *mem, attn_alloc_fn alloc, attn_free_fn free, void *user, int64_t fail_in);
/* Zero-filled; alignment a power of two. NULL on failure, with ATTN_E_MEMORY recorded. */
void *attn_base_alloc(struct attn_mem *mem, size_t bytes, size_t alignment);
void attn_base_free(struct attn_mem *mem, void *memory, size_t bytes);
#endif
