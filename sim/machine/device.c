/* SPDX-License-Identifier: MIT
 * Device memory: a large reserved range from which blocks are cut one behind the other with a gap that nobody owns.
 * Freed blocks lose their pages and keep their addresses. */
#define _GNU_SOURCE
#include "machine/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct sim_profile profiles[] = {
    {"a100", "Simulated A100", 8, 0, 108, 163 << 10, 164 << 10, 40 << 20, 65536, 64, 1410000, 1215000, 5120,
     (size_t)40 << 30},
    {"rtx4090", "Simulated RTX 4090", 8, 9, 128, 99 << 10, 100 << 10, 72 << 20, 65536, 48, 2520000, 10501000, 384,
     (size_t)24 << 30},
    {"h100", "Simulated H100", 9, 0, 132, 227 << 10, 228 << 10, 50 << 20, 65536, 64, 1980000, 2619000, 5120,
     (size_t)80 << 30},
    {"b200", "Simulated B200", 10, 0, 148, 227 << 10, 228 << 10, 126 << 20, 65536, 64, 1965000, 3996000, 8192,
     (size_t)180 << 30},
};
const struct sim_profile *sim_profile_find(const char *word) {
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
        if (!strcmp(profiles[i].word, word)) return &profiles[i];
    return NULL;
}

enum { GAP = 1 << 16, ALIGN = 512, PAGE = 4096 };
#ifdef __SANITIZE_THREAD__ /* it takes most of the address space itself */
static const size_t RANGE = (size_t)1 << 38;
#else
static const size_t RANGE = (size_t)1 << 42;
#endif
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
/* Blocks in address order; found by readers while no launch allocates. Pointers stay valid: chunks never move. */
enum { CHUNK = 1024, CHUNKS = 65536 };
static struct sim_block *chunks[CHUNKS];
static uint64_t n_blocks, n_live;
static uint8_t *range, *top;
static size_t used[64];

static struct sim_block *block(uint64_t i) { return &chunks[i / CHUNK][i % CHUNK]; }
static size_t pages(uint64_t address, size_t bytes) {
    return (size_t)((address + bytes + PAGE - 1) / PAGE * PAGE - address / PAGE * PAGE);
}

uint64_t sim_memory_alloc(int device, size_t bytes) { return sim_memory_alloc_kind(device, bytes, SIM_DEVICE_MEMORY); }
uint64_t sim_memory_alloc_kind(int device, size_t bytes, enum sim_memory_kind kind) {
    uint64_t address = 0;
    pthread_rwlock_wrlock(&lock);
    if (!range) {
        void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) range = top = p;
    }
    size_t room = range ? (size_t)(range + RANGE - top) : 0;
    if (bytes && bytes + 2 * (size_t)GAP < room && n_blocks < (uint64_t)CHUNK * CHUNKS &&
        (chunks[n_blocks / CHUNK] || (chunks[n_blocks / CHUNK] = calloc(CHUNK, sizeof **chunks)))) {
        uint8_t *p = top + GAP;
        p += (PAGE - (uintptr_t)p % PAGE) % PAGE;
        size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
        struct sim_page **records = calloc(bytes / PAGE + 1, sizeof *records);
        if (!records) abort();
        if (!mprotect(p, whole, PROT_READ | PROT_WRITE)) {
            memset(p, 0xff, bytes <= (size_t)256 << 20 ? bytes : 0);
            top = p + whole;
            address = (uint64_t)(uintptr_t)p;
            *block(n_blocks) = (struct sim_block){address, bytes, device, 0, (uint8_t)kind, n_blocks, records};
            n_blocks++, n_live++;
            if (kind != SIM_PINNED_MEMORY) used[device & 63] += bytes;
        } else {
            free(records);
        }
    }
    pthread_rwlock_unlock(&lock);
    return address;
}

static const struct sim_block *search(uint64_t address) {
    uint64_t low = 0, high = n_blocks;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (block(middle)->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? block(low - 1) : NULL;
}

int sim_memory_free(uint64_t address) {
    int r = -1;
    pthread_rwlock_wrlock(&lock);
    struct sim_block *b = (struct sim_block *)(uintptr_t)search(address);
    if (b && b->address == address && !b->freed) {
        size_t n = pages(address, b->bytes);
        void *p = (void *)(uintptr_t)address;
        b->freed = 1;
        n_live--;
        if (b->kind != SIM_PINNED_MEMORY) used[b->device & 63] -= b->bytes;
        sim_pages_free(b->pages, b->bytes);
        free(b->pages);
        b->pages = NULL;
        /* fresh pages without rights in place of the old ones: the memory goes back, the addresses stay taken */
        if (mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED) r = 0;
    }
    pthread_rwlock_unlock(&lock);
    return r;
}
/* ---- memory of the host outside the range: a list, as programs register little ---- */

struct registered {
    struct sim_block block;
    struct registered *next;
};
static struct registered *registered; /* those no longer registered stay: workers may remember them */

static struct registered *search_registered(uint64_t address) {
    struct registered *r = registered;
    while (r && (r->block.freed || address - r->block.address >= r->block.bytes)) r = r->next;
    return r;
}
int sim_memory_register(int device, uint64_t address, size_t bytes) {
    struct registered *r = NULL;
    pthread_rwlock_wrlock(&lock);
    const uint64_t start = (uintptr_t)range, end = (uintptr_t)range + (range ? RANGE : 0);
    int taken = !bytes || (address < end && address + bytes > start);
    for (struct registered *o = registered; o && !taken; o = o->next)
        taken = !o->block.freed && address < o->block.address + o->block.bytes && o->block.address < address + bytes;
    if (!taken && (r = calloc(1, sizeof *r)) != NULL) {
        struct sim_page **records = calloc(bytes / PAGE + 1, sizeof *records);
        if (!records) abort();
        r->block = (struct sim_block){address, bytes, device, 0, SIM_REGISTERED_MEMORY, 0, records};
        r->next = registered, registered = r;
    }
    pthread_rwlock_unlock(&lock);
    return r ? 0 : -1;
}
int sim_memory_unregister(uint64_t address) {
    pthread_rwlock_wrlock(&lock);
    struct registered *r = search_registered(address);
    const int found = r && r->block.address == address;
    if (found) {
        r->block.freed = 1;
        sim_pages_free(r->block.pages, r->block.bytes);
        free(r->block.pages);
        r->block.pages = NULL;
    }
    pthread_rwlock_unlock(&lock);
    return found ? 0 : -1;
}

const struct sim_block *sim_memory_find(uint64_t address) {
    pthread_rwlock_rdlock(&lock);
    const struct registered *r = registered && address - (uintptr_t)range >= RANGE ? search_registered(address) : NULL;
    const struct sim_block *b = r ? &r->block : search(address);
    pthread_rwlock_unlock(&lock);
    return b;
}
int sim_memory_holds(uint64_t address, size_t bytes) {
    const struct sim_block *b = sim_memory_find(address);
    return b && !b->freed && address - b->address <= b->bytes && bytes <= b->bytes - (address - b->address);
}
void sim_memory_forget(void) {
    pthread_rwlock_wrlock(&lock);
    for (uint64_t i = 0; i < n_blocks; i++)
        if (block(i)->pages) sim_pages_free(block(i)->pages, block(i)->bytes);
    for (struct registered *r = registered; r; r = r->next)
        if (r->block.pages) sim_pages_free(r->block.pages, r->block.bytes);
    pthread_rwlock_unlock(&lock);
}
size_t sim_memory_used(int device) { return used[device & 63]; }
uint64_t sim_memory_live(void) { return n_live; }
