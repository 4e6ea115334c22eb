/* SPDX-License-Identifier: MIT
 * Finds the PTX text in an image: plain text, or the uncompressed PTX entry of a fatbin. Compressed entries are refused
 * in words; the library hands out plain PTX with ATTN_CUDA_IMAGE=ptx. */
#include "cu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_PTX = 1, COMPRESSED = 0x8000 | 0x2000 };

static uint64_t number(const unsigned char *at, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, at, bytes);
    return v;
}
char *sim_image_text(const void *image, char *why, size_t why_bytes) {
    static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
    const unsigned char *p = image;
    char *text;
    if (memcmp(p, magic, 4)) {
        if (p[0] == 0x7f) {
            snprintf(why, why_bytes, "machine code is not interpreted; PTX is");
            return NULL;
        }
        size_t n = strlen(image);
        text = malloc(n + 1);
        if (text) memcpy(text, image, n + 1);
        return text;
    }
    const unsigned char *end = p + number(p + 6, 2) + number(p + 8, 8);
    snprintf(why, why_bytes, "the fatbin has no PTX");
    for (p += number(p + 6, 2); p + 64 <= end;) {
        uint64_t header = number(p + 4, 4), bytes = number(p + 8, 8);
        if (number(p, 2) == KIND_PTX) {
            if (!(number(p + 40, 4) & COMPRESSED)) {
                text = calloc(1, (size_t)bytes + 1);
                if (text) memcpy(text, p + header, (size_t)bytes);
                return text;
            }
            snprintf(why, why_bytes, "the fatbin's PTX is compressed: set ATTN_CUDA_IMAGE=ptx");
        }
        if (!header) break;
        p += header + bytes;
    }
    return NULL;
}
