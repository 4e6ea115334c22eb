/* SPDX-License-Identifier: MIT
 * Finds the PTX text in an image: plain text, or a PTX entry of a fatbin, as it is or compressed by LZ4 or zstd. Of
 * several entries the one that fits the device best. */
#include "driver/cu.h"
#include "machine/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { KIND_PTX = 1, KIND_CODE = 2, LZ4 = 0x2000, ZSTD = 0x8000, ONE_CHIP = 0x100000, ONE_FAMILY = 0x200000 };

static uint64_t number(const unsigned char *place, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, place, bytes);
    return v;
}
/* One LZ4 block: runs of literals and copies of what came before. 0 if it fills `out` exactly. */
static int lz4(const unsigned char *in, size_t n, unsigned char *out, size_t room) {
    const unsigned char *end = in + n;
    size_t place = 0;
    while (in < end) {
        unsigned token = *in++;
        size_t literals = token >> 4, copied = token & 15, back;
        for (unsigned part = 255; literals >= 15 && part == 255 && in < end;) literals += part = *in++;
        if (literals > (size_t)(end - in) || literals > room - place) return -1;
        memcpy(out + place, in, literals);
        place += literals, in += literals;
        if (in == end) break; /* the last run has no copy */
        if (end - in < 2) return -1;
        back = in[0] | (size_t)in[1] << 8, in += 2;
        for (unsigned part = 255; copied >= 15 && part == 255 && in < end;) copied += part = *in++;
        copied += 4;
        if (!back || back > place || copied > room - place) return -1;
        for (; copied; copied--, place++) out[place] = out[place - back]; /* the two may overlap */
    }
    return place == room ? 0 : -1;
}

static char *entry_text(const unsigned char *entry, const char **why) {
    uint64_t bytes = number(entry + 8, 8), packed = number(entry + 16, 4), whole = number(entry + 56, 8);
    const unsigned char *data = entry + number(entry + 4, 4);
    unsigned flags = (unsigned)number(entry + 40, 4);
    size_t room = flags & (LZ4 | ZSTD) ? (size_t)whole : (size_t)bytes;
    char *text = room < (size_t)1 << 30 ? calloc(1, room + 1) : NULL;
    if (!text) return NULL;
    int fault = 0;
    if (flags & ZSTD)
        fault = packed > bytes || ZSTD_decompress(text, room, data, (size_t)packed) != room;
    else if (flags & LZ4)
        fault = packed > bytes || lz4(data, (size_t)packed, (unsigned char *)text, room);
    else
        memcpy(text, data, room);
    if (fault) {
        *why = "the fatbin's PTX is damaged";
        free(text);
        return NULL;
    }
    return text;
}

/* 0: not for the device; else the larger, the newer the target, and of one target the form with more instructions. */
static unsigned fitness(const unsigned char *entry) {
    const unsigned target = (unsigned)number(entry + 28, 4), flags = (unsigned)number(entry + 40, 4);
    const unsigned device = (unsigned)(sim_profile()->major * 10 + sim_profile()->minor);
    if (target > device || (flags & ONE_CHIP && target != device)) return 0;
    if (flags & ONE_FAMILY && target / 10 != device / 10) return 0;
    return target * 4 + (flags & ONE_CHIP ? 3 : flags & ONE_FAMILY ? 2 : 1);
}

static const char *beside(void) {
    return getenv("ATTNSIM_CUBINS") ? "; none lies beside an equal file in ATTNSIM_CUBINS, either" : "";
}

char *sim_image_text(const void *image, char *why, size_t why_bytes) {
    static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
    const unsigned char *p = image;
    char *text;
    if (memcmp(p, magic, 4)) {
        if (p[0] == 0x7f) {
            if ((text = sim_cubin_text(p, 0)) != NULL) return text;
            snprintf(why, why_bytes, "machine code is not interpreted; PTX is%s", beside());
            return NULL;
        }
        size_t n = strlen(image);
        text = malloc(n + 1);
        if (text) memcpy(text, image, n + 1);
        return text;
    }
    const unsigned char *end = p + number(p + 6, 2) + number(p + 8, 8), *best = NULL, *code = NULL;
    const char *fault = NULL;
    for (p += number(p + 6, 2); p + 64 <= end;) {
        uint64_t header = number(p + 4, 4), bytes = number(p + 8, 8);
        /* where none fits, the first one: its target is then what is refused */
        if (number(p, 2) == KIND_PTX && (!best || fitness(p) > fitness(best))) best = p;
        if (number(p, 2) == KIND_CODE && !code) code = p;
        if (!header) break;
        p += header + bytes;
    }
    text = best ? entry_text(best, &fault) : NULL;
    if (!best && code) text = sim_cubin_text(code + number(code + 4, 4), number(code + 8, 8));
    if (!text)
        snprintf(why, why_bytes, "%s%s", fault ? fault : "no PTX in it, only machine code: build with code=compute_XX",
                 fault ? "" : beside());
    return text;
}
