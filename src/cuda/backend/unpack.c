/* SPDX-License-Identifier: MIT
 * Packed PTX back into text (unpack.h has the layout). Damaged bytes end in a refusal, not in a read or write outside.
 */
#include "cuda/backend/unpack.h"

#include <string.h>

enum { CODES = 1 << ATTN_CUDA_PTX_CODE_BITS, MOST_BYTES = 1 << 26 };

/* By the next CODE_BITS bits of the stream: the symbol, and above it the length of its code; 0: no code. */
struct decoder {
    uint16_t symbols[ATTN_CUDA_PTX_ALPHABETS][CODES];
};
struct bits {
    const unsigned char *next, *end;
    uint64_t waiting;
    uint32_t n_waiting, n_absent; /* n_absent: bytes past the end, read as 0 */
};

static uint32_t word(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

size_t attn_cuda_ptx_bytes(const unsigned char *packed, size_t packed_bytes, size_t *scratch_bytes) {
    if (packed_bytes < ATTN_CUDA_PTX_HEADER || memcmp(packed, ATTN_CUDA_PTX_MAGIC, 8)) return 0;
    const uint32_t text = word(packed + 8), tokens = word(packed + 12), numbers = word(packed + 16);
    if (text > MOST_BYTES || tokens > MOST_BYTES || numbers > MOST_BYTES) return 0;
    *scratch_bytes = sizeof(struct decoder) + tokens + numbers;
    return text;
}

static void refill(struct bits *b) {
    while (b->n_waiting <= 56) {
        if (b->next < b->end)
            b->waiting |= (uint64_t)*b->next++ << b->n_waiting;
        else
            b->n_absent++;
        b->n_waiting += 8;
    }
}

static uint32_t take(struct bits *b, uint32_t n) {
    const uint32_t value = (uint32_t)(b->waiting & ((1ull << n) - 1));
    b->waiting >>= n;
    b->n_waiting -= n;
    return value;
}

/* At most 12 + 24 bits a value: one refill before it is enough. A stream without a code for these bits yields symbol 0
 * and takes nothing: the caller's `faults` sees it. */
static uint32_t symbol_of(struct bits *b, const uint16_t *symbols, uint32_t *faults) {
    const uint32_t entry = symbols[b->waiting & (CODES - 1)];
    *faults |= !entry;
    take(b, entry >> 8);
    return entry & 255;
}

static uint32_t value_of(struct bits *b, const uint16_t *symbols, uint32_t *faults) {
    refill(b);
    const uint32_t symbol = symbol_of(b, symbols, faults);
    return attn_cuda_ptx_value_base(symbol) + take(b, attn_cuda_ptx_value_bits(symbol));
}

/* Canonical codes: shorter before longer, in the order of the symbols. */
static int fill_codes(uint16_t *symbols, const uint8_t *lengths, uint32_t n) {
    memset(symbols, 0, CODES * sizeof *symbols);
    uint32_t code = 0;
    for (uint32_t length = 1; length <= ATTN_CUDA_PTX_CODE_BITS; length++, code <<= 1) {
        for (uint32_t s = 0; s < n; s++) {
            if (lengths[s] != length) continue;
            if (code >> length) return -1; /* more codes than bits */
            uint32_t first = 0;            /* its first bit is the stream's lowest */
            for (uint32_t k = 0; k < length; k++) first |= (code >> k & 1) << (length - 1 - k);
            for (uint32_t k = first; k < CODES; k += 1u << length) symbols[k] = (uint16_t)(length << 8 | s);
            code++;
        }
    }
    return 0;
}

/* Nibbles from p on; returns where the bits begin, NULL on a fault. */
static const unsigned char *read_codes(struct decoder *d, const unsigned char *p, const unsigned char *end) {
    const size_t n_nibbles = 2 * (size_t)(end - p);
    size_t k = 0;
    for (uint32_t a = 0; a < ATTN_CUDA_PTX_ALPHABETS; a++) {
        const uint32_t n = attn_cuda_ptx_alphabet_size(a);
        uint8_t lengths[256] = {0};
        for (uint32_t s = 0; s < n; s++) {
            if (k >= n_nibbles) return NULL;
            lengths[s] = p[k / 2] >> 4 * (k % 2) & 15;
            k++;
            if (lengths[s]) continue;
            if (k >= n_nibbles) return NULL;
            s += p[k / 2] >> 4 * (k % 2) & 15;
            k++;
        }
        if (fill_codes(d->symbols[a], lengths, n)) return NULL;
    }
    return p + (k + 1) / 2;
}

static int unpack_bytes(struct decoder *d, const unsigned char *p, const unsigned char *end, unsigned char *out,
                        size_t bytes) {
    if (!(p = read_codes(d, p, end))) return -1;
    struct bits b = {p, end, 0, 0, 0};
    uint32_t latest[3] = {1, 1, 1}, faults = 0;
    for (size_t n = 0; n < bytes;) {
        uint32_t run = value_of(&b, d->symbols[ATTN_CUDA_PTX_RUN], &faults);
        if (faults || run > bytes - n) return -1;
        while (run > 0) {
            refill(&b); /* for four symbols */
            for (uint32_t k = run < 4 ? run : 4; k > 0; k--, run--)
                out[n++] = (unsigned char)symbol_of(&b, d->symbols[ATTN_CUDA_PTX_BYTE], &faults);
        }
        if (n == bytes) break;
        uint32_t copy = value_of(&b, d->symbols[ATTN_CUDA_PTX_COPY], &faults) + ATTN_CUDA_PTX_LEAST_COPY;
        uint32_t distance = value_of(&b, d->symbols[ATTN_CUDA_PTX_DISTANCE], &faults);
        const uint32_t which = distance < 3 ? distance : 2;
        distance = distance < 3 ? latest[distance] : distance - 2;
        for (uint32_t k = which; k > 0; k--) latest[k] = latest[k - 1];
        latest[0] = distance;
        if (faults || b.n_absent > 8 || !distance || distance > n || copy > bytes - n) return -1;
        const unsigned char *from = out + n - distance;
        if (distance >= copy)
            memcpy(out + n, from, copy);
        else /* the two overlap: a repetition */
            for (uint32_t k = 0; k < copy; k++) out[n + k] = from[k];
        n += copy;
    }
    return faults || b.n_absent > 8 ? -1 : 0;
}

static size_t write_number(char *to, uint32_t number) {
    char digits[10];
    size_t n = 0;
    do digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    for (size_t k = 0; k < n; k++) to[k] = digits[n - 1 - k];
    return n;
}

/* Tokens into text. A name takes at most NAME bytes. */
enum { NAME = 24 };
static int expand(const unsigned char *token, size_t n_tokens, const unsigned char *number, size_t n_numbers,
                  char *text, size_t bytes) {
    const unsigned char *const end = token + n_tokens, *const numbers_end = number + n_numbers;
    uint32_t counts[8][ATTN_CUDA_PTX_COUNTS] = {{0}};
    uint8_t prefix_bytes[8] = {0};
    for (uint32_t k = 0; k < ATTN_CUDA_PTX_KINDS; k++) prefix_bytes[k] = (uint8_t)strlen(attn_cuda_ptx_kind[k]);
    size_t n = 0;
    for (; token < end; token++) {
        if (n >= bytes) return -1;
        if (*token < 0x80) {
            text[n++] = (char)*token;
            continue;
        }
        const uint32_t form = *token >> 5 & 3;
        const uint32_t kind = form < 2 ? *token >> 2 & 7 : *token & 7, wide = *token >> 3 & 3;
        uint32_t count = form < 2 ? *token & 3 : ATTN_CUDA_PTX_COUNTS - 1, value;
        if (kind >= ATTN_CUDA_PTX_KINDS || form == 3 || (form == 2 && wide > 1)) return -1;
        const size_t taken = form == 0 ? 0 : form == 1 ? 1 : wide ? 4 : 2;
        if ((size_t)(numbers_end - number) < taken) return -1;
        uint32_t *own = counts[kind];
        if (form == 0)
            value = own[count] + 1;
        else if (form == 1)
            value = own[count] + number[0] - (number[0] < 128 ? 0u : 256u);
        else
            value = wide ? word(number) : (uint32_t)number[0] | (uint32_t)number[1] << 8;
        number += taken;
        attn_cuda_ptx_count(own, count, form < 2 && value < own[count] ? own[count] : value);
        char name[NAME];
        memcpy(name, attn_cuda_ptx_kind[kind], prefix_bytes[kind]);
        const size_t name_bytes = prefix_bytes[kind] + write_number(name + prefix_bytes[kind], value);
        if (name_bytes > bytes - n) return -1;
        memcpy(text + n, name, name_bytes);
        n += name_bytes;
    }
    text[n] = 0;
    return n == bytes && number == numbers_end ? 0 : -1;
}

int attn_cuda_ptx_unpack(const unsigned char *packed, size_t packed_bytes, void *scratch, char *text) {
    size_t scratch_bytes;
    const size_t bytes = attn_cuda_ptx_bytes(packed, packed_bytes, &scratch_bytes);
    if (!bytes) return -1;
    const uint32_t n_tokens = word(packed + 12), n_numbers = word(packed + 16), tokens_packed = word(packed + 20);
    if (tokens_packed > packed_bytes - ATTN_CUDA_PTX_HEADER) return -1;
    struct decoder *d = scratch;
    unsigned char *const tokens = (unsigned char *)(d + 1), *const numbers = tokens + n_tokens;
    const unsigned char *const from = packed + ATTN_CUDA_PTX_HEADER, *const middle = from + tokens_packed;
    if (unpack_bytes(d, from, middle, tokens, n_tokens)) return -1;
    if (unpack_bytes(d, middle, packed + packed_bytes, numbers, n_numbers)) return -1;
    return expand(tokens, n_tokens, numbers, n_numbers, text, bytes);
}
