/* SPDX-License-Identifier: MIT
 * Golden cases of bulk and tensor copies: boxes of one to five dimensions in every swizzle, coordinates outside on each
 * side, rows shorter than the swizzle, stores and reductions with parts outside, plain copies. Words are those of
 * shared memory (loads) or of the output (stores). */
#include "hopper_golden.h"

#include <stdio.h>

struct box {
    const char *name;
    uint8_t type, swizzle, fill, rank, op; /* op: 0 load, 1 store, 2.. reduce */
    uint16_t dims[5], extent[5];           /* extent: of the box */
    int16_t corner[5];
    uint32_t to;      /* place in shared memory */
    uint8_t steps[5]; /* steps[4] of 3 dimensions: rows of all heads lie side by side, their stride is the larger */
};
enum { U8 = 0, U16 = 1, U32 = 2, F16 = 6, F32 = 7, BF16 = 9 };
enum { LOAD, STORE, ADD, MIN, MAX };
static const struct box boxes[] = {
    {"2d_none", U16, 0, 0, 2, LOAD, {64, 100}, {64, 32}, {0, 3}, 0, {0}},
    {"2d_32", U16, 1, 0, 2, LOAD, {64, 100}, {16, 32}, {16, 3}, 0, {0}},
    {"2d_64", U16, 2, 0, 2, LOAD, {64, 100}, {32, 32}, {32, 3}, 0, {0}},
    {"2d_128", U16, 3, 0, 2, LOAD, {64, 100}, {64, 32}, {0, 3}, 0, {0}},
    {"2d_128_at_128", U16, 3, 0, 2, LOAD, {64, 100}, {64, 16}, {0, 3}, 128, {0}},
    {"2d_128_at_640", U16, 3, 0, 2, LOAD, {64, 100}, {64, 16}, {0, 3}, 640, {0}},
    {"2d_64_at_256", U16, 2, 0, 2, LOAD, {64, 100}, {32, 16}, {0, 3}, 256, {0}},
    {"2d_128_short", U16, 3, 0, 2, LOAD, {64, 100}, {32, 16}, {0, 3}, 0, {0}},
    {"2d_64_short", U16, 2, 0, 2, LOAD, {64, 100}, {16, 16}, {0, 3}, 0, {0}},
    {"2d_before", U16, 3, 0, 2, LOAD, {64, 100}, {64, 32}, {-8, -3}, 0, {0}},
    {"2d_behind", U16, 3, 0, 2, LOAD, {56, 40}, {64, 32}, {16, 20}, 0, {0}},
    {"2d_outside", U16, 0, 0, 2, LOAD, {56, 40}, {64, 8}, {72, 50}, 0, {0}},
    {"2d_nan_f16", F16, 0, 1, 2, LOAD, {56, 40}, {64, 8}, {16, 36}, 0, {0}},
    {"2d_nan_bf16", BF16, 3, 1, 2, LOAD, {56, 40}, {64, 8}, {16, 36}, 0, {0}},
    {"1d", U32, 0, 0, 1, LOAD, {5000}, {256}, {32}, 0, {0}},
    {"1d_behind", U8, 0, 0, 1, LOAD, {5000}, {256}, {4912}, 0, {0}},
    {"3d", U16, 3, 0, 3, LOAD, {64, 10, 12}, {64, 4, 5}, {0, 8, 9}, 0, {0}},
    {"4d", U16, 3, 0, 4, LOAD, {64, 6, 5, 4}, {64, 2, 3, 2}, {0, 5, 1, -1}, 0, {0}},
    {"5d", U16, 2, 0, 5, LOAD, {32, 4, 3, 4, 3}, {32, 2, 2, 2, 2}, {0, 1, 2, 3, -1}, 0, {0}},
    {"2d_step", U16, 3, 0, 2, LOAD, {64, 100}, {64, 16}, {0, 3}, 0, {1, 3}},
    {"3d_swapped", U16, 3, 0, 3, LOAD, {64, 100, 4}, {64, 8, 2}, {0, 95, 1}, 0, {0, 0, 0, 0, 1}},
    {"store_none", U16, 0, 0, 2, STORE, {64, 100}, {64, 32}, {0, 3}, 0, {0}},
    {"store_128", U16, 3, 0, 2, STORE, {64, 100}, {64, 32}, {0, 3}, 1024, {0}},
    {"store_64_outside", U16, 2, 0, 2, STORE, {56, 40}, {32, 32}, {40, 20}, 0, {0}},
    {"store_before", U16, 0, 0, 2, STORE, {56, 40}, {64, 8}, {-8, -2}, 0, {0}},
    {"store_3d", U32, 1, 0, 3, STORE, {32, 10, 12}, {8, 4, 5}, {4, 8, 9}, 0, {0}},
    {"add_u32", U32, 0, 0, 2, ADD, {64, 30}, {32, 8}, {40, 25}, 0, {0}},
    {"min_u32", U32, 3, 0, 2, MIN, {64, 30}, {32, 8}, {0, 0}, 0, {0}},
    {"max_u32", U32, 3, 0, 2, MAX, {64, 30}, {32, 8}, {0, 0}, 0, {0}},
    {"add_f32", F32, 3, 0, 2, ADD, {64, 30}, {32, 8}, {8, 4}, 0, {0}},
    {"add_f16", F16, 3, 0, 2, ADD, {64, 30}, {64, 8}, {8, 4}, 0, {0}},
    {"add_bf16", BF16, 0, 0, 2, ADD, {64, 30}, {64, 8}, {8, 4}, 0, {0}},
    {"min_f16", F16, 3, 0, 2, MIN, {64, 30}, {64, 8}, {8, 4}, 0, {0}},
    {"max_bf16", BF16, 0, 0, 2, MAX, {64, 30}, {64, 8}, {8, 4}, 0, {0}},
    /* innermost coordinates that are no multiple of 16 bytes */
    {"odd_load", U16, 3, 0, 2, LOAD, {64, 100}, {64, 16}, {1, 3}, 0, {0}},
    {"odd_load_8", U16, 3, 0, 2, LOAD, {64, 100}, {64, 16}, {4, 3}, 0, {0}},
    {"odd_load_before", U16, 0, 0, 2, LOAD, {64, 100}, {64, 16}, {-1, 3}, 0, {0}},
    {"odd_load_1d", U32, 0, 0, 1, LOAD, {5000}, {256}, {33}, 0, {0}},
    {"odd_store", U16, 0, 0, 2, STORE, {56, 40}, {64, 8}, {-3, -2}, 0, {0}},
    {"odd_add_f16", F16, 3, 0, 2, ADD, {64, 30}, {64, 8}, {3, 4}, 0, {0}},
};

static const char *const wait_for_it =
    "bar.sync 0;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r20], 0;\n@!p bra WAIT;\n";

static void dump(struct golden_case *c, uint32_t bytes) { /* shared memory to the output, 16 bytes a thread and round */
    c->words = bytes / 4;
    golden_add(c,
               "add.u32 %%r3, %%r1, %%r2;\ncvt.u64.u32 %%rd4, %%r2;\nadd.u64 %%rd4, %%rd4, %%rd1;\nmov.u32 %%r4, 0;\n"
               "DUMP:\nld.shared.v4.b32 {%%r5, %%r6, %%r7, %%r8}, [%%r3];\n"
               "st.global.v4.b32 [%%rd4], {%%r5, %%r6, %%r7, %%r8};\nadd.u32 %%r3, %%r3, 2048;\n"
               "add.u64 %%rd4, %%rd4, 2048;\nadd.u32 %%r4, %%r4, 2048;\nsetp.lt.u32 p, %%r4, %u;\n@p bra DUMP;\n",
               bytes);
}

/* Copies without a map. */
static int plain(uint32_t i, struct golden_case *c) {
    static const char *const names[] = {"bulk_load", "bulk_store", "bulk_add_f32", "bulk_add_f16", "bulk_min_s32"};
    if (i >= 5) return 0;
    snprintf(c->name, sizeof c->name, "%s", names[i]);
    golden_begin(c, "");
    golden_fill(c, i == 2 ? 2 : i == 3 ? 0 : 5);
    if (i == 0) {
        golden_add(
            c,
            "add.u32 %%r20, %%r1, %d;\nsetp.ne.u32 p, %%r0, 0;\n@p bra SKIP;\n"
            "mbarrier.init.shared::cta.b64 [%%r20], 1;\nfence.mbarrier_init.release.cluster;\n"
            "fence.proxy.async;\nadd.u32 %%r21, %%r1, 96;\nadd.u64 %%rd5, %%rd0, 4112;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%r20], 1040;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%%r21], [%%rd5], 1040, [%%r20];\n"
            "SKIP:\n%s",
            GOLDEN_IMAGE, wait_for_it);
        dump(c, 4096);
    } else {
        static const char *const ops[] = {"", "", ".add.f32", ".add.noftz.f16", ".min.s32"};
        c->words = 1024;
        golden_add(c,
                   "setp.ne.u32 p, %%r0, 0;\n@p bra SKIP;\nadd.u32 %%r21, %%r1, 64;\nadd.u64 %%rd5, %%rd1, 48;\n"
                   "cp%s.async.bulk.global.shared::cta.bulk_group%s [%%rd5], [%%r21], 2064;\n"
                   "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nSKIP:\n",
                   i > 1 ? ".reduce" : "", ops[i]);
    }
    golden_add(c, "ret;\n}\n");
    return 1;
}

int golden_tensor(uint32_t i, struct golden_case *c) {
    static const uint8_t sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    static const char *const ops[] = {"", "", "add", "min", "max"};
    static const char *const lists[] = {"",
                                        "{%r30}",
                                        "{%r30, %r31}",
                                        "{%r30, %r31, %r32}",
                                        "{%r30, %r31, %r32, %r33}",
                                        "{%r30, %r31, %r32, %r33, %r34}"};
    uint32_t n = sizeof boxes / sizeof *boxes, bytes = 1;
    if (i >= n) return plain(i - n, c);
    const struct box *b = &boxes[i];
    snprintf(c->name, sizeof c->name, "tensor_%s", b->name);
    c->type = b->type, c->swizzle = b->swizzle, c->fill = b->fill, c->rank = b->rank, c->outputs_map = b->op != LOAD;
    bytes = sizes[b->type];
    uint64_t pitch = (b->dims[0] * sizes[b->type] + 15u) / 16 * 16;
    for (uint32_t d = 0; d < b->rank; d++) {
        c->dims[d] = b->dims[d], c->box[d] = b->extent[d], c->steps[d] = b->steps[d] ? b->steps[d] : 1;
        bytes *= (c->box[d] + c->steps[d] - 1) / c->steps[d];
        if (d) {
            c->strides[d - 1] = pitch;
            pitch *= b->dims[d];
        }
    }
    if (b->rank == 3 && b->steps[4]) c->strides[0] = b->dims[0] * 2u * b->dims[2], c->strides[1] = b->dims[0] * 2u;
    golden_begin(c, "");
    golden_fill(c, b->type == F16 ? 0 : b->type == BF16 ? 1 : b->type == F32 ? 2 : 5);
    golden_add(c, "add.u32 %%r20, %%r1, %d;\nadd.u32 %%r21, %%r1, %u;\n", GOLDEN_IMAGE, b->to);
    for (uint32_t d = 0; d < b->rank; d++) golden_add(c, "mov.s32 %%r%u, %d;\n", 30 + d, b->corner[d]);
    golden_add(c, "mov.b64 %%rd7, map;\ncvta.param.u64 %%rd7, %%rd7;\nsetp.ne.u32 p, %%r0, 0;\n@p bra SKIP;\n");
    if (b->op == LOAD)
        golden_add(
            c,
            "mbarrier.init.shared::cta.b64 [%%r20], 1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%r20], %u;\n"
            "cp.async.bulk.tensor.%ud.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%%r21], [%%rd7, %s], "
            "[%%r20];\nSKIP:\n%s",
            bytes, b->rank, lists[b->rank], wait_for_it);
    else if (b->op == STORE)
        golden_add(c, "cp.async.bulk.tensor.%ud.global.shared::cta.tile.bulk_group [%%rd7, %s], [%%r21];\n", b->rank,
                   lists[b->rank]);
    else
        golden_add(c, "cp.reduce.async.bulk.tensor.%ud.global.shared::cta.%s.tile.bulk_group [%%rd7, %s], [%%r21];\n",
                   b->rank, ops[b->op], lists[b->rank]);
    if (b->op == LOAD) {
        dump(c, 16384);
    } else {
        c->words = 8192;
        golden_add(c, "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nSKIP:\n");
    }
    golden_add(c, "ret;\n}\n");
    return 1;
}
