/* SPDX-License-Identifier: MIT
 * Address spaces: the windows of generic addresses, shared memory of the cluster, parameters, local memory, and blocks
 * of global memory, the last few of which each worker remembers. */
#include "machine/address.h"
#include "checks/global.h"
#include "checks/report.h"
#include "counts/counts.h"
#include "machine/device.h"
#include "units/hopper.h"

#include <inttypes.h>

void sim_addresses(const struct sim_warp *w, const struct sim_ins *in, uint32_t m, unsigned slot,
                   uint64_t address[SIM_LANES]) {
    if (in->wide) {
        const uint64_t *base = (const uint64_t *)(const void *)(w->r + in->o[slot]);
        EACH_LANE address[l] = base[l] + (uint64_t)in->imm;
    } else {
        const uint32_t *base = w->r + in->o[slot];
        EACH_LANE address[l] = (uint32_t)(base[l] + (uint32_t)in->imm);
    }
    (void)m;
}

static int bad_alignment(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address, uint32_t align,
                         const char *what) {
    sim_find(w, in, 1u << lane, SIM_F_ALIGNMENT, "%s address 0x%" PRIx64 " is no multiple of %u", what, address, align);
    return -1;
}

struct sim_cta *sim_shared_named(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                                 uint32_t bytes, uint32_t align, uint32_t *offset) {
    const struct sim_cluster *c = w->cta->cluster;
    uint32_t rank = (uint32_t)(address >> SIM_RANK_SHIFT), low = (uint32_t)address & ((1u << SIM_RANK_SHIFT) - 1);
    if (address >> 32 || rank >= c->n_ctas || low < SIM_SHARED_BASE ||
        low - SIM_SHARED_BASE + (uint64_t)bytes > c->ctas[rank].shared_bytes) {
        sim_find(w, in, 1u << lane, SIM_F_BOUNDS,
                 "%u bytes at shared address 0x%" PRIx64 ": the CTA has %u bytes from 0x%x on, the cluster %u CTAs",
                 bytes, address, w->cta->shared_bytes, (w->cta->rank << SIM_RANK_SHIFT) + SIM_SHARED_BASE, c->n_ctas);
        return NULL;
    }
    if (low & (align - 1)) {
        bad_alignment(w, in, lane, address, align, "shared");
        return NULL;
    }
    if (!c->ctas[rank].n_live) {
        sim_find(w, in, 1u << lane, SIM_F_BOUNDS, "shared memory of CTA rank %u, which has ended", rank);
        return NULL;
    }
    *offset = low - SIM_SHARED_BASE;
    return &c->ctas[rank];
}
struct sim_cta *sim_shared_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address,
                              uint32_t bytes, uint32_t align, uint32_t *offset) {
    struct sim_cta *owner = sim_shared_named(w, in, lane, address, bytes, align, offset);
    if (owner && owner != w->cta && owner->hopper) {
        owner->hopper->remote_times[w->actor] = w->known[w->actor];
        owner->hopper->remote_statements[w->actor] = in->statement;
    }
    return owner;
}

const struct sim_block *sim_block_of(struct sim_worker *k, uint64_t address, uint64_t bytes) {
    for (uint32_t i = 0; i < SIM_RECENT; i++) {
        const struct sim_block *b = k->recent[i];
        if (b && address - b->address < b->bytes && bytes <= b->bytes - (address - b->address)) return b;
    }
    const struct sim_block *b = sim_memory_find(address);
    if (!b || b->freed || address - b->address >= b->bytes || bytes > b->bytes - (address - b->address)) return NULL;
    k->recent[k->next_recent++ % SIM_RECENT] = b;
    return b;
}

int sim_global_at(struct sim_warp *w, const struct sim_ins *in, uint32_t lane, uint64_t address, uint64_t bytes,
                  uint32_t align, const char *does) {
    if (address & (align - 1)) return bad_alignment(w, in, lane, address, align, "global");
    if (!bytes || sim_block_of(w->cta->cluster->worker, address, bytes)) return 0;
    const struct sim_block *b = sim_memory_find(address);
    if (!b)
        sim_find(w, in, 1u << lane, SIM_F_BOUNDS, "%s %" PRIu64 " bytes at 0x%" PRIx64 ", which is no device memory",
                 does, bytes, address);
    else if (b->freed && address - b->address < b->bytes)
        sim_find(w, in, 1u << lane, SIM_F_FREED,
                 "%s %" PRIu64 " bytes at offset %" PRIu64 " of allocation %" PRIu64 " (%" PRIu64
                 " bytes), which was freed",
                 does, bytes, address - b->address, b->number, b->bytes);
    else
        sim_find(w, in, 1u << lane, SIM_F_BOUNDS,
                 "%s %" PRIu64 " bytes at 0x%" PRIx64 ", offset %" PRIu64 " of allocation %" PRIu64 " of %" PRIu64
                 " bytes",
                 does, bytes, address, address - b->address, b->number, b->bytes);
    return -1;
}

const struct sim_block *sim_block_of_lanes(struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES],
                                           uint32_t bytes) {
    uint64_t low = UINT64_MAX, high = 0, any = 0;
    if (m == SIM_ALL) {
        EACH_LANE {
            low = address[l] < low ? address[l] : low;
            high = address[l] > high ? address[l] : high;
            any |= address[l];
        }
    } else {
        EACH_OF(m) {
            low = address[l] < low ? address[l] : low;
            high = address[l] > high ? address[l] : high;
            any |= address[l];
        }
    }
    return any & (bytes - 1) ? NULL : sim_block_of(w->cta->cluster->worker, low, high - low + bytes);
}

static int resolve_global(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                          uint32_t bytes, enum sim_access access, uint8_t *out[SIM_LANES]) {
    EACH_LANE out[l] = (uint8_t *)(uintptr_t)address[l];
    const struct sim_block *b = sim_block_of_lanes(w, m, address, bytes);
    if (!b) {
        EACH_OF(m)
        if (sim_global_at(w, in, l, address[l], bytes, bytes, access == SIM_LOAD ? "reads" : "writes")) return -1;
    }
    if (w->cta->cluster->launch->deed) sim_global_touch(w, in, m, address, NULL, bytes, access, b);
    if (w->counts) sim_count_global(w, m, address, bytes, (int)access);
    return 0;
}

/* The common case, without a branch per lane. */
int sim_own_offsets(const struct sim_warp *w, uint32_t m, const uint64_t address[SIM_LANES], uint32_t bytes,
                    uint32_t offset[SIM_LANES]) {
    const uint64_t base = ((uint64_t)w->cta->rank << SIM_RANK_SHIFT) + SIM_SHARED_BASE;
    const uint64_t room = w->cta->shared_bytes, below = room >= bytes ? room - bytes + 1 : 0;
    uint64_t bad[SIM_LANES], any = 0;
    EACH_LANE {
        uint64_t o = address[l] - base;
        offset[l] = (uint32_t)o;
        bad[l] = (uint64_t)(o >= below) | (o & (bytes - 1));
    }
    EACH_LANE any |= bad[l] & (0 - (uint64_t)(m >> l & 1));
    return !any;
}

static int resolve_shared(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                          uint32_t bytes, enum sim_access access, uint8_t *out[SIM_LANES]) {
    int races = w->cta->cluster->launch->options.races;
    uint32_t offset[SIM_LANES];
    if (w->counts) sim_count_shared(w, m, address, bytes, (int)access);
    if (sim_own_offsets(w, m, address, bytes, offset)) {
        uint8_t *shared = w->cta->shared;
        EACH_LANE out[l] = shared + offset[l];
        if (races) sim_shared_touch_lanes(w, in, w->cta, m, offset, bytes, access);
        return 0;
    }
    EACH_OF(m) {
        struct sim_cta *owner = sim_shared_at(w, in, l, address[l], bytes, bytes, &offset[l]);
        if (!owner) return -1;
        if (races) sim_shared_touch(w, in, owner, l, offset[l], bytes, access);
        out[l] = owner->shared + offset[l];
    }
    return 0;
}

static int resolve_small(struct sim_warp *w, const struct sim_ins *in, uint32_t m, enum ptx_space space,
                         const uint64_t address[SIM_LANES], uint32_t bytes, enum sim_access access,
                         uint8_t *out[SIM_LANES]) {
    const struct sim_launch *g = w->cta->cluster->launch;
    const struct ptx_kernel *k = g->program->kernel;
    uint32_t room = space == PTX_PARAM ? k->param_bytes : k->local_bytes;
    EACH_OF(m) {
        if (address[l] > room || bytes > room - address[l]) {
            sim_find(w, in, 1u << l, SIM_F_BOUNDS, "%u bytes at offset %" PRIu64 " of %u bytes of %s", bytes,
                     address[l], room, space == PTX_PARAM ? "parameters" : "local memory");
            return -1;
        }
        if (address[l] & (bytes - 1)) return bad_alignment(w, in, l, address[l], bytes, "local or parameter");
        out[l] = space == PTX_PARAM ? (uint8_t *)(uintptr_t)g->params + address[l]
                                    : w->local + (size_t)l * room + address[l];
    }
    if (w->counts && space == PTX_LOCAL) sim_count_local(w, m, bytes);
    if (space == PTX_PARAM && access != SIM_LOAD) {
        sim_find(w, in, m, SIM_F_BOUNDS, "writes to parameters");
        return -1;
    }
    return 0;
}

/* Generic: the lanes of each window in turn. */
static int resolve_generic(struct sim_warp *w, const struct sim_ins *in, uint32_t m, const uint64_t address[SIM_LANES],
                           uint32_t bytes, enum sim_access access, uint8_t *out[SIM_LANES]) {
    static const struct {
        uint64_t window;
        enum ptx_space space;
    } windows[] = {
        {0, PTX_GLOBAL}, {SIM_WINDOW_SHARED, PTX_SHARED}, {SIM_WINDOW_LOCAL, PTX_LOCAL}, {SIM_WINDOW_PARAM, PTX_PARAM}};
    uint64_t inside[SIM_LANES];
    uint32_t left = m;
    EACH_LANE inside[l] = address[l] & ~SIM_WINDOW_MASK;
    for (size_t i = 0; i < 4 && left; i++) {
        uint32_t these = 0;
        EACH_OF(left) these |= (uint32_t)((address[l] & SIM_WINDOW_MASK) == windows[i].window) << l;
        if (these && sim_resolve(w, in, these, windows[i].space, inside, bytes, access, out)) return -1;
        left &= ~these;
    }
    if (!left) return 0;
    return resolve_global(w, in, left, address, bytes, access, out);
}

int sim_resolve(struct sim_warp *w, const struct sim_ins *in, uint32_t m, enum ptx_space space,
                const uint64_t address[SIM_LANES], uint32_t bytes, enum sim_access access, uint8_t *out[SIM_LANES]) {
    switch (space) {
    case PTX_GLOBAL:
    case PTX_CONST: return resolve_global(w, in, m, address, bytes, access, out);
    case PTX_SHARED:
    case PTX_SHARED_CLUSTER: return resolve_shared(w, in, m, address, bytes, access, out);
    case PTX_PARAM:
    case PTX_LOCAL: return resolve_small(w, in, m, space, address, bytes, access, out);
    default: return resolve_generic(w, in, m, address, bytes, access, out);
    }
}
