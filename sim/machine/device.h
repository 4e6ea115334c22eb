/* SPDX-License-Identifier: MIT
 * A simulated GPU: its profile and its memory. Addresses are the host's own and never used twice, so that a pointer to
 * freed memory is known as such. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct sim_profile {
    const char *word, *name;
    int major, minor, n_sms, shared_per_block, shared_per_sm, l2_bytes, registers_per_sm, warps_per_sm;
    int clock_khz, memory_clock_khz, bus_bits;
    size_t bytes;
};
const struct sim_profile *sim_profile_find(const char *word); /* "h100"; NULL if unknown */

enum sim_memory_kind { SIM_DEVICE_MEMORY, SIM_PINNED_MEMORY, SIM_MANAGED_MEMORY, SIM_REGISTERED_MEMORY };
struct sim_block {
    uint64_t address, bytes;
    int device;
    uint8_t freed, kind;
    uint64_t number;         /* of the allocation */
    struct sim_page **pages; /* records of its words (global.h), by page; owned */
};
/* 0 = no memory. Contents are a NaN pattern. */
uint64_t sim_memory_alloc(int device, size_t bytes);
uint64_t sim_memory_alloc_kind(int device, size_t bytes, enum sim_memory_kind kind);
int sim_memory_free(uint64_t address); /* 0, or -1: no live block begins there */
/* Memory of the host as a block that kernels may use: 0, or -1: some of it is one. And no longer: 0, or -1. */
int sim_memory_register(int device, uint64_t address, size_t bytes);
int sim_memory_unregister(uint64_t address);
/* The block that holds the address or, if none does, the last one that begins before it; NULL if there is none. */
const struct sim_block *sim_memory_find(uint64_t address);
/* 1 if [address, address + bytes) lies in one live block. */
int sim_memory_holds(uint64_t address, size_t bytes);
size_t sim_memory_used(int device);
uint64_t sim_memory_live(void);                             /* blocks not freed */
void sim_memory_forget(void);                               /* drops all records of accesses */
void sim_pages_free(struct sim_page **pages, size_t bytes); /* global.c: of a block of that many bytes */
#endif
