/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md): the index lists of a group of neighbouring queries as one list of entries, by
 * bitmaps over a range of keys in shared memory. A CTA takes groups in turn. Every chip.
 *
 *   MARK   slot (query r, key) sets bit `key` of r's bitmap
 *   SCAN   32 keys a thread: bits that queries of the first and of the second half have, of one alone -> their places
 *   EMIT   keys of set bits at their places, through shared memory; a ballot for each query: its bits of 32 entries
 *   TABLE  the entry of each key of the union, where the bitmaps were
 *   SLOTS  a slot's entry, from the table; where shared memory has no room for one: the place of the key's word and
 *          the bits below it
 *
 * Where one range has all keys, and there is room for a table:
 *   pairs         SCAN leaves ranks, for 16 keys of each kind their bits and place in a word. SLOTS comes before EMIT:
 *                 a slot finds its entry there, and puts its key at the entry's place if the other query's does not
 *   groups of 16  MARK sets bits in 16 bits a key, which EMIT reads for all queries at once, transposes, and replaces
 *                 by the entry, so that they become the table
 *
 * The places depend on the bits alone, and these on no order of threads. One range has all keys of most problems.
 * Of others, keys above a range are left for the next one, which begins at the smallest of them. Lists that name keys
 * again, of which fewer bits are set than they have valid slots, take the general way, too: uses are numbered, and
 * those of one number are marked, scanned and emitted together.
 *
 * Shared memory: 8 KiB, and for 32 keys of a range 4 bytes a query, 8 more with four queries or more, and 8; 64 where
 * that is less and a table is used, of pairs 32. */
#include "kernels/device/grid.h"
#include "kernels/sm80/mla_join_one_range.h"
#include "kernels/sm80/mla_join_ranges.h"

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS)
    CFG(const __grid_constant__ struct kp_mla_join p) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ struct statics statics;
    struct group_lists j = {&p, statics.lists, statics.share, dynamic};
    j.words = (uint32_t)p.words;
    j.bitmap = (uint32_t *)(dynamic + KP_MLA_JOIN_STAGE);
    j.half = j.bitmap + GROUP * j.words;
    j.place = (uint2 *)(GROUP > 2 ? j.half + 2 * j.words : j.half);
    j.ranks = j.half;
    const bool whole = (int64_t)p.words * 32 >= p.in.seq_k;
    bool cleared = whole;
    if (CFG_EARLY) grid_release();
    if (whole) clear_bits(&j);
    if (CFG_EARLY) grid_wait();
    load_lists(&p, &statics.lists[0], p.from + blockIdx.x);
    __syncthreads();
    for (int64_t group = p.from + blockIdx.x; group < p.until; group += gridDim.x) {
        struct lists *next = &statics.lists[j.l == statics.lists];
        enum left left = ALL;
        j.out = j.l->out;
        if (whole) {
            if (!cleared) {
                clear_bits(&j);
                __syncthreads();
            }
            left = whole_way(&j, next, group + gridDim.x);
        } else {
            load_lists(&p, next, group + gridDim.x);
        }
        if (left == ALL) general_way(&j);
        if (left != NOTHING) __syncthreads();
        cleared = left == NOTHING;
        j.l = next;
    }
}
