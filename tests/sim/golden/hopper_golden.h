/* SPDX-License-Identifier: MIT
 * Cases of the golden vectors: each makes a kernel's text, its input and the words of output that a device gives. */
#ifndef TESTS_SIM_HOPPER_GOLDEN_H
#define TESTS_SIM_HOPPER_GOLDEN_H
#include <stddef.h>
#include <stdint.h>

enum { GOLDEN_IMAGE = 65536, GOLDEN_TEXT = 1 << 17, GOLDEN_WORDS = 1 << 15 };
struct golden_case {
    char name[96], text[GOLDEN_TEXT];
    uint32_t threads, ctas, words; /* CTAs are one cluster */
    uint64_t a, b;                 /* parameters beside the pointers */
    uint8_t image[GOLDEN_IMAGE];   /* what the kernel's input holds */
    /* tensor map over the input, if rank > 0 */
    int type, swizzle, fill;
    unsigned rank, box[5], steps[5];
    uint64_t dims[5], strides[4];
    int outputs_map; /* the map is over the output */
};
/* Makes case i; 0 when there are no more. */
int golden_wgmma(uint32_t i, struct golden_case *c);
int golden_tensor(uint32_t i, struct golden_case *c);
int golden_barrier(uint32_t i, struct golden_case *c);

/* Text with one placeholder at a time: appends, never beyond the room. */
void golden_add(struct golden_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Header, parameters in, out, a, b, map, registers; %r0 = thread, %r1 = shared base, %rd0 = in, %rd1 = out; the image
 * copied to shared memory, visible to all units. */
void golden_begin(struct golden_case *c, const char *declarations);
void golden_fill(struct golden_case *c,
                 int kind); /* image: 0 small f16, 1 small bf16, 2 f32, 3 e4m3, 4 e5m2, 5 words */
#endif
