/* SPDX-License-Identifier: MIT
 * Tensor maps in the simulator: made by the driver's encoder, written by the host in the device's form, changed on the
 * way. A kernel loads a box of 8 rows of 128 bytes; each word must be the one that strides, swizzle and packing, stated
 * here again, put there. Another stores the box by a second map. usage: t_sim_maps DRIVER */
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>

static const char ptx[] =
    ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128], "
    ".param .align 64 .b8 back[128], .param .u32 bytes, .param .u32 stores)\n"
    ".maxntid 256, 1, 1\n{\n.shared .align 1024 .b8 s[1040];\n.reg .pred p, q;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
    "mov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\nsetp.eq.u32 q, %r0, 0;\nmov.b64 %rd0, map;\ncvta.param.u64 %rd0, %rd0;\n"
    "@q mbarrier.init.shared::cta.b64 [%r1+1024], 1;\n@q fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
    "ld.param.u32 %r6, [bytes];\n@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], %r6;\nmov.u32 %r2, 0;\nmov.u32 %r3, 3;\n"
    "@q cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd0, {%r2, %r3}], "
    "[%r1+1024];\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r1+1024], 0;\n@!p bra W;\n"
    "ld.param.u32 %r7, [stores];\nsetp.ne.u32 p, %r7, 0;\n@p bra STORE;\n"
    "shl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r1;\nld.shared.b32 %r5, [%r4];\nld.param.u64 %rd1, [out];\n"
    "mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd1, %rd1, %rd2;\nst.global.b32 [%rd1], %r5;\nret;\n"
    "STORE:\nmov.b64 %rd3, back;\ncvta.param.u64 %rd3, %rd3;\n@!q bra DONE;\n"
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd3, {%r2, %r2}], [%r1];\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\nret;\n}\n";

/* A pair of CTAs: rank 1 loads the box for both, the mbarrier of rank 0 is told of both. */
static const char pair_ptx[] =
    ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128], "
    ".param .align 64 .b8 back[128], .param .u32 bytes, .param .u32 stores)\n.explicitcluster\n"
    ".reqnctapercluster 2, 1, 1\n.maxntid 256, 1, 1\n{\n.shared .align 1024 .b8 s[1040];\n.reg .pred p, q, q0, q1;\n"
    ".reg .b16 %h;\n.reg .b32 %r<12>;\n.reg .b64 %rd<9>;\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\n"
    "mov.u32 %r8, %cluster_ctarank;\nsetp.eq.u32 q, %r0, 0;\nsetp.eq.and.u32 q0, %r8, 0, q;\n"
    "setp.eq.and.u32 q1, %r8, 1, q;\nmov.b64 %rd0, map;\ncvta.param.u64 %rd0, %rd0;\nadd.u32 %r9, %r1, 1024;\n"
    "mapa.shared::cluster.u32 %r9, %r9, 0;\nmov.b16 %h, 3;\n@q mbarrier.init.shared::cta.b64 [%r1+1024], 1;\n"
    "@q fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    "ld.param.u32 %r6, [bytes];\nadd.u32 %r6, %r6, %r6;\nmov.u32 %r2, 0;\nmov.u32 %r3, 3;\n"
    "@q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], %r6;\n"
    "@q1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    ".cta_group::2 [%r1], [%rd0, {%r2, %r3}], [%r9], %h;\nsetp.ne.u32 p, %r8, 0;\n@p bra MEET;\n"
    "W:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r1+1024], 0;\n@!p bra W;\nMEET:\n"
    "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nshl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r1;\n"
    "ld.shared.b32 %r5, [%r4];\nld.param.u64 %rd1, [out];\nmad.lo.u32 %r7, %r8, 256, %r0;\n"
    "mul.wide.u32 %rd2, %r7, 4;\nadd.u64 %rd1, %rd1, %rd2;\nst.global.b32 [%rd1], %r5;\nret;\n}\n";

enum { WORDS = 256, SOURCE = 4096, ROWS = 40 };
enum { ENCODED, WRITTEN, CLEARED, SPOILED, JUNK, BACK, STORED, REFUSED, PAIRED };
enum { U32 = 2, U4_PACKED = 13, U4_APART = 14, U6_APART = 15 };
/* Of a type: elements and words of global memory in a row of the box, words of 4 with data in shared memory. */
static const struct {
    unsigned elements, words, of_4;
} types[] = {[U32] = {32, 32, 4}, [U4_PACKED] = {256, 32, 4}, [U4_APART] = {128, 16, 2}, [U6_APART] = {128, 24, 3}};
static const struct {
    const char *name, *finding;
    int how, swizzle;
    unsigned row_bytes, inner; /* of the matrix in global memory: its stride, elements of a row */
    int type;
} cases[] = {
    {"flipped", NULL, ENCODED, 5, 256, 64, U32},
    {"flipped_back", NULL, BACK, 5, 256, 64, U32}, /* the store turns them */
    {"for_a_pair", NULL, PAIRED, 0, 256, 64, U32},
    {"bytes_of_two", NULL, ENCODED, 3, 256, 512, U4_PACKED},
    {"four_bits", NULL, ENCODED, 0, 128, 256, U4_APART},
    {"four_bits_128b", NULL, ENCODED, 3, 128, 256, U4_APART},
    {"four_bits_past_the_end", NULL, ENCODED, 4, 64, 128, U4_APART},
    {"six_bits", NULL, ENCODED, 0, 192, 256, U6_APART},
    {"six_bits_128b", NULL, ENCODED, 3, 96, 128, U6_APART},
    {"six_bits_stored", NULL, STORED, 3, 192, 256, U6_APART},
    {"four_bits_stored", "is for loads alone", STORED, 0, 128, 256, U4_APART},
    {"four_bits_inner", NULL, REFUSED, 0, 96, 192, U4_APART},
    {"four_bits_stride", NULL, REFUSED, 0, 80, 128, U4_APART},
    {"four_bits_swizzle", NULL, REFUSED, 2, 128, 256, U4_APART},
    {"six_bits_flip", NULL, REFUSED, 5, 192, 256, U6_APART},
    {"bytes_of_two_odd", NULL, REFUSED, 0, 256, 511, U4_PACKED},
    {"encoded", NULL, ENCODED, 0, 256, 64, U32},
    {"encoded_128b", NULL, ENCODED, 3, 256, 64, U32},
    {"atoms_32", NULL, ENCODED, 4, 256, 64, U32},
    {"atoms_64", NULL, ENCODED, 6, 256, 64, U32},
    {"overlapping_rows", NULL, ENCODED, 0, 128, 64, U32},
    {"one_row_for_all", NULL, ENCODED, 0, 0, 64, U32},
    {"written", NULL, WRITTEN, 0, 256, 64, U32},
    {"written_128b", NULL, WRITTEN, 3, 144, 32, U32},
    {"old_driver", NULL, CLEARED, 3, 256, 64, U32},
    {"spoiled", "no tensor map", SPOILED, 0, 256, 64, U32},
    {"junk", "no tensor map", JUNK, 0, 256, 64, U32},
};

/* Where the piece of 16 bytes of a line goes, as tables: the piece of the matrix that lies at place p of line r. */
static unsigned piece_at(int swizzle, unsigned r, unsigned p) {
    static const uint8_t of_16[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                        {3, 2, 1, 0, 7, 6, 5, 4}, {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                        {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
    static const uint8_t of_32[4][8] = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {2, 3, 0, 1, 6, 7, 4, 5}, {4, 5, 6, 7, 0, 1, 2, 3}, {6, 7, 4, 5, 2, 3, 0, 1}};
    static const uint8_t of_64[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}};
    return swizzle == 3                   ? of_16[r % 8][p]
           : swizzle == 4 || swizzle == 5 ? of_32[r % 4][p]
           : swizzle == 6                 ? of_64[r % 2][p]
                                          : p;
}

static int run(const char *driver, int i) {
    static _Alignas(64) uint32_t map[32], back[32], source[SOURCE], words[2 * WORDS];
    const int type = cases[i].type, how = cases[i].how, turns_back = how == BACK;
    const unsigned row_words = types[type].words, of_4 = types[type].of_4;
    uint32_t bytes = 8 * 4 * row_words, stores = how == BACK || how == STORED;
    void *module, *function;
    uint64_t from, to, n = 0;
    uint32_t junk = 5;
    setenv("ATTNSIM_QUIET", "1", 1),
        setenv("ATTNSIM_GPU", cases[i].swizzle > 3 || type > U32 || how == PAIRED ? "b200" : "h100", 1);
    for (uint32_t k = 0; k < SOURCE; k++) source[k] = 7 * k + 1;
    if (kernel_open_driver(driver) || cu.load(&module, how == PAIRED ? pair_ptx : ptx, 0, NULL, NULL) ||
        cu.function(&function, module, "k") || kernel_upload(&from, source, sizeof source) ||
        kernel_upload(&to, words, sizeof words))
        return -1;
    const unsigned stride = cases[i].row_bytes, inner = cases[i].inner;
    if (cases[i].how == WRITTEN) { /* u32, two dimensions, box 32 x 8 */
        map[0] = (uint32_t)from, map[1] = (uint32_t)(from >> 32);
        map[2] = 2 | 1 << 4 | 2 << 7 | (uint32_t)cases[i].swizzle << 13 | 1 << 17;
        map[3] = stride / 16, map[8] = inner - 1, map[9] = ROWS - 1, map[13] = 31u << 24, map[14] = 7;
        map[20] = 0xdead; /* the other half is nobody's */
    } else {
        const uint64_t dim[2] = {inner, ROWS}, strides[1] = {stride};
        const uint64_t dim_back[2] = {types[type].elements, 8}, strides_back[1] = {4 * row_words};
        const unsigned box[2] = {types[type].elements, 8}, step[2] = {1, 1};
        int r = cu.encode(map, type, 2, (void *)(uintptr_t)from, dim, strides, box, step, 0,
                          turns_back ? 0 : cases[i].swizzle, 0, 0);
        if (!r && stores)
            r = cu.encode(back, type, 2, (void *)(uintptr_t)to, dim_back, strides_back, box, step, 0, cases[i].swizzle,
                          0, 0);
        if (how == REFUSED) {
            if (r != 1) printf("FAIL %s: the map: %d\n", cases[i].name, r);
            return r != 1;
        }
        if (r) {
            printf("FAIL %s: the map: %d\n", cases[i].name, r);
            return 1;
        }
    }
    if (cases[i].how == CLEARED) map[2] &= ~(1u << 21);
    if (cases[i].how == SPOILED) map[9] ^= 1;
    for (int k = 0; k < 32 && cases[i].how == JUNK; k++) map[k] = junk *= 1664525u;
    struct kernel_launch l = {.grid = {how == PAIRED ? 2 : 1, 1, 1}, .block = {WORDS, 1, 1}};
    void *params[] = {&to, map, back, &bytes, &stores};
    int r = cu.launch(&l, function, params, NULL), bad = 0;
    const char *text = cu.report(&n, 0);
    if (cases[i].finding) {
        if (n && strstr(text, cases[i].finding)) return 0;
        printf("FAIL %s: result %d: %s\n", cases[i].name, r, text);
        return 1;
    }
    if (!r) r = cu.down(words, to, sizeof words);
    for (unsigned k = 0; k < (how == PAIRED ? 2 : 1) * WORDS && !r && !bad; k++) {
        unsigned row = k % WORDS / 32, piece = piece_at(cases[i].swizzle, row, k % 32 / 4), word = k % 4;
        if (cases[i].swizzle == 5 && row & 1) word ^= 2;
        if (how == STORED) row = k / row_words, piece = 0, word = k % row_words;
        if (how == STORED ? row > 7 : word >= of_4) continue; /* a gap */
        const uint32_t want = 7 * ((row + 3) * stride / 4 + of_4 * piece + word) + 1;
        bad = words[k] != want;
        if (bad) printf("%s: word %u is %u, not %u\n", cases[i].name, k, words[k], want);
    }
    if (!r && !n && !bad) return 0;
    printf("FAIL %s, %s: result %d, %s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r, text);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
