/* SPDX-License-Identifier: MIT
 * Build tool: packs the PTX of a kernel for the library (layout: src/cuda/backend/unpack.h). tools/compile_variant.sh
 * calls it. It unpacks what it has packed and fails if that is not the input.
 *
 * Copies are found through chains of positions with equal hashes of three bytes. Which of them are taken is a shortest
 * path over the positions, whose prices are the code lengths of the round before.
 * usage: pack_ptx IN.ptx OUT.packed */
#include "cuda/backend/unpack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, CHAIN = 96, LONG_COPY = 160, HASHES = 1 << 16, STEP = 64 /* of prices: 1/64 bit */ };
enum { LEAST = ATTN_CUDA_PTX_LEAST_COPY, ALPHABETS = ATTN_CUDA_PTX_ALPHABETS, COUNTS = ATTN_CUDA_PTX_COUNTS };

struct buffer {
    unsigned char *bytes;
    size_t n, room;
};
/* How the shortest path reaches a position: the last step there is a copy, or a new byte if `copy` is 0. */
struct node {
    uint32_t price, copy, distance, run; /* run: new bytes just before the position */
    uint32_t latest[3];
};
struct prices {
    uint32_t symbol[ALPHABETS][256];
};
struct tally {
    uint32_t symbol[ALPHABETS][256];
};
struct step {
    uint32_t run, copy, distance; /* distance as in the stream */
};

static void die(const char *what) {
    fprintf(stderr, "pack_ptx: %s\n", what);
    exit(1);
}

static void *memory(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) die("out of memory");
    return p;
}

static void put(struct buffer *b, unsigned byte) {
    if (b->n == b->room) {
        b->room = b->room ? 2 * b->room : 4096;
        if (!(b->bytes = realloc(b->bytes, b->room))) die("out of memory");
    }
    b->bytes[b->n++] = (unsigned char)byte;
}

static void put_word(struct buffer *b, size_t word) {
    if (word > UINT32_MAX) die("too large");
    for (int k = 0; k < 4; k++) put(b, (unsigned)(word >> 8 * k & 255));
}

/* ---- text into tokens and numbers ---- */

/* The kind of the numbered name at `text`, -1 if there is none; its number and its length. */
static int name_here(const char *text, uint32_t *number, size_t *length) {
    for (int kind = 0; kind < ATTN_CUDA_PTX_KINDS; kind++) {
        const size_t n = strlen(attn_cuda_ptx_kind[kind]);
        const char *digits = text + n;
        if (strncmp(text, attn_cuda_ptx_kind[kind], n) || *digits < '0' || *digits > '9') continue;
        const size_t n_digits = strspn(digits, "0123456789");
        if (n_digits > 9 || (*digits == '0' && n_digits > 1)) return -1; /* as characters */
        *number = (uint32_t)strtoul(digits, NULL, 10);
        *length = n + n_digits;
        return kind;
    }
    return -1;
}

static void put_name(struct buffer *tokens, struct buffer *numbers, unsigned kind, uint32_t counts[COUNTS],
                     uint32_t number) {
    for (unsigned c = 0; c < COUNTS; c++) {
        if (number != counts[c] + 1) continue;
        put(tokens, 0x80 + 4 * kind + c);
        attn_cuda_ptx_count(counts, c, number);
        return;
    }
    for (unsigned c = 0; c < COUNTS; c++) {
        const int64_t difference = (int64_t)number - counts[c];
        if (difference < -63 || difference > 20)
            continue; /* a wider range hits wrong counts more often than it saves */
        put(tokens, 0xa0 + 4 * kind + c);
        put(numbers, (unsigned)difference & 255);
        attn_cuda_ptx_count(counts, c, difference < 0 ? counts[c] : number);
        return;
    }
    put(tokens, (number < 1 << 16 ? 0xc0 : 0xc8) + kind);
    for (int k = 0; k < (number < 1 << 16 ? 2 : 4); k++) put(numbers, number >> 8 * k & 255);
    attn_cuda_ptx_count(counts, COUNTS - 1, number);
}

static void tokenize(const char *text, size_t n, struct buffer *tokens, struct buffer *numbers) {
    uint32_t counts[ATTN_CUDA_PTX_KINDS][COUNTS] = {{0}};
    for (size_t i = 0; i < n;) {
        uint32_t number;
        size_t length;
        const int kind = name_here(text + i, &number, &length);
        if (kind < 0) {
            if ((unsigned char)text[i] >= 0x80) die("a character that is not ASCII");
            put(tokens, (unsigned char)text[i++]);
            continue;
        }
        put_name(tokens, numbers, (unsigned)kind, counts[kind], number);
        i += length;
    }
}

/* ---- bytes into copies and new bytes ---- */

static uint32_t symbol_of(uint32_t value) {
    uint32_t symbol = value < 8 ? value : 8;
    while (symbol >= 8 && symbol + 1 < ATTN_CUDA_PTX_VALUES && attn_cuda_ptx_value_base(symbol + 1) <= value) symbol++;
    return symbol;
}

static uint32_t value_price(const struct prices *p, int alphabet, uint32_t value) {
    const uint32_t symbol = symbol_of(value);
    return p->symbol[alphabet][symbol] + STEP * attn_cuda_ptx_value_bits(symbol);
}

/* From counts of the symbols; those never seen stay possible. */
static void set_prices(struct prices *p, const struct tally *seen) {
    for (uint32_t a = 0; a < ALPHABETS; a++) {
        const uint32_t n = attn_cuda_ptx_alphabet_size(a);
        double sum = 0;
        for (uint32_t s = 0; s < n; s++) sum += seen->symbol[a][s] + 0.25;
        for (uint32_t s = 0; s < n; s++) {
            const double bits = log2(sum / (seen->symbol[a][s] + 0.25));
            p->symbol[a][s] = (uint32_t)(STEP * (bits < 1 ? 1 : bits > 12 ? 12 : bits));
        }
    }
}

/* A step from node i to i + length, if it is cheaper than the one known. */
static void reach(struct node *nodes, uint32_t i, uint32_t length, uint32_t price, uint32_t distance) {
    struct node *to = &nodes[i + length];
    if (price >= to->price) return;
    const struct node *from = &nodes[i];
    *to = (struct node){price, distance ? length : 0, distance, distance ? 0 : from->run + 1, {0}};
    memcpy(to->latest, from->latest, sizeof to->latest);
    if (!distance) return;
    int which = distance == from->latest[0] ? 0 : distance == from->latest[1] ? 1 : 2;
    for (; which > 0; which--) to->latest[which] = to->latest[which - 1];
    to->latest[0] = distance;
}

/* What stands in the stream for a distance: the place among the latest, or the distance + 2. */
static uint32_t distance_code(const uint32_t latest[3], uint32_t distance) {
    for (uint32_t k = 0; k < 3; k++)
        if (distance == latest[k]) return k;
    return distance + 2;
}

static uint32_t same_bytes(const unsigned char *a, const unsigned char *b, const unsigned char *b_end) {
    const unsigned char *const start = b;
    while (b < b_end && *a == *b) a++, b++;
    return (uint32_t)(b - start);
}

/* Every copy from `distance` back that starts at node i; short ones at each length. */
static uint32_t try_copy(struct node *nodes, const struct prices *p, const unsigned char *in, uint32_t i, uint32_t n,
                         uint32_t distance, uint32_t shortest) {
    if (distance > i) return 0;
    const uint32_t most = same_bytes(in + i - distance, in + i, in + n);
    const uint32_t base = nodes[i].price + value_price(p, ATTN_CUDA_PTX_RUN, nodes[i].run) +
                          value_price(p, ATTN_CUDA_PTX_DISTANCE, distance_code(nodes[i].latest, distance));
    const uint32_t each = most < LONG_COPY ? most : LONG_COPY;
    for (uint32_t length = shortest; length <= each; length++)
        reach(nodes, i, length, base + value_price(p, ATTN_CUDA_PTX_COPY, length - LEAST), distance);
    if (most > each) reach(nodes, i, most, base + value_price(p, ATTN_CUDA_PTX_COPY, most - LEAST), distance);
    return most;
}

struct chains {
    uint32_t *first, *before; /* position + 1 of the last with a hash; of the one before a position */
};

static void enter(struct chains *c, const unsigned char *in, uint32_t i, uint32_t n) {
    if (i + LEAST > n) return;
    const uint32_t hash = ((uint32_t)in[i] << 16 | (uint32_t)in[i + 1] << 8 | in[i + 2]) * 2654435761u >> 16;
    c->before[i] = c->first[hash];
    c->first[hash] = i + 1;
}

static void shortest_path(struct node *nodes, struct chains *c, const struct prices *p, const unsigned char *in,
                          uint32_t n) {
    memset(c->first, 0, HASHES * sizeof *c->first);
    for (uint32_t i = 0; i <= n; i++) nodes[i].price = UINT32_MAX;
    nodes[0] = (struct node){0, 0, 0, 0, {1, 1, 1}};
    for (uint32_t i = 0, passed_to = 0; i < n; i++) {
        enter(c, in, i, n);
        if (i < passed_to) continue; /* inside a long copy */
        const struct node *at_i = &nodes[i];
        const uint32_t new_price = at_i->price + p->symbol[ATTN_CUDA_PTX_BYTE][in[i]];
        reach(nodes, i, 1, new_price, 0);
        uint32_t longest = 0;
        for (int k = 0; k < 3; k++) {
            const uint32_t most = try_copy(nodes, p, in, i, n, at_i->latest[k], LEAST);
            if (most > longest) longest = most;
        }
        uint32_t candidate = i + LEAST <= n ? c->before[i] : 0, found = LEAST - 1;
        for (int k = 0; k < CHAIN && candidate && longest < LONG_COPY; k++, candidate = c->before[candidate - 1]) {
            const uint32_t from = candidate - 1;
            if (i + found >= n) break;
            if (in[from + found] != in[i + found]) continue; /* no longer than what is nearer */
            const uint32_t most = same_bytes(in + from, in + i, in + n);
            if (most <= found) continue;
            try_copy(nodes, p, in, i, n, i - from, found + 1);
            found = most;
            if (most > longest) longest = most;
        }
        if (longest >= LONG_COPY) passed_to = i + longest;
    }
}

/* The path backwards into steps, in order; returns how many. A last step without copy: new bytes at the end. */
static size_t read_path(const struct node *nodes, uint32_t n, struct step *steps) {
    size_t n_steps = 0;
    uint32_t i = n;
    while (i > 0) {
        const struct node *node = &nodes[i];
        struct step s = {0, node->copy, node->distance};
        i -= node->copy;
        for (; i > 0 && !nodes[i].copy; i--) s.run++;
        if (node->copy) s.distance = distance_code(nodes[i + s.run].latest, node->distance);
        steps[n_steps++] = s;
    }
    for (size_t k = 0; k < n_steps / 2; k++) {
        const struct step swapped = steps[k];
        steps[k] = steps[n_steps - 1 - k];
        steps[n_steps - 1 - k] = swapped;
    }
    return n_steps;
}

static void count(struct tally *seen, const struct step *steps, size_t n_steps, const unsigned char *in) {
    memset(seen, 0, sizeof *seen);
    for (size_t k = 0; k < n_steps; k++) {
        seen->symbol[ATTN_CUDA_PTX_RUN][symbol_of(steps[k].run)]++;
        for (uint32_t b = 0; b < steps[k].run; b++) seen->symbol[ATTN_CUDA_PTX_BYTE][*in++]++;
        if (!steps[k].copy) continue;
        seen->symbol[ATTN_CUDA_PTX_COPY][symbol_of(steps[k].copy - LEAST)]++;
        seen->symbol[ATTN_CUDA_PTX_DISTANCE][symbol_of(steps[k].distance)]++;
        in += steps[k].copy;
    }
}

/* ---- codes and bits ---- */

/* Lengths of Huffman codes of at most ATTN_CUDA_PTX_CODE_BITS bits: where a code is longer, rare symbols are counted
 * higher and it starts anew. */
static void code_lengths(const uint32_t *seen, uint32_t n, uint8_t *lengths) {
    for (uint32_t least = 0;; least = least ? 2 * least : 1) {
        uint32_t weight[512], parent[512], n_nodes = n, n_open = 0;
        uint8_t open[512] = {0};
        for (uint32_t s = 0; s < n; s++) {
            weight[s] = seen[s] ? seen[s] > least ? seen[s] : least : 0;
            open[s] = seen[s] > 0;
            n_open += open[s];
        }
        memset(lengths, 0, n);
        if (n_open == 1)
            for (uint32_t s = 0; s < n; s++) lengths[s] = open[s];
        if (n_open < 2) return;
        for (; n_open > 1; n_open--, n_nodes++) {
            uint32_t least_two[2] = {n_nodes, n_nodes};
            for (uint32_t s = 0; s < n_nodes; s++) {
                if (!open[s]) continue;
                if (least_two[0] == n_nodes || weight[s] < weight[least_two[0]]) {
                    least_two[1] = least_two[0];
                    least_two[0] = s;
                } else if (least_two[1] == n_nodes || weight[s] < weight[least_two[1]]) {
                    least_two[1] = s;
                }
            }
            for (int k = 0; k < 2; k++) {
                parent[least_two[k]] = n_nodes;
                open[least_two[k]] = 0;
            }
            weight[n_nodes] = weight[least_two[0]] + weight[least_two[1]];
            open[n_nodes] = 1;
        }
        uint32_t longest = 0;
        for (uint32_t s = 0; s < n; s++) {
            if (!seen[s]) continue;
            uint32_t length = 0;
            for (uint32_t up = s; up != n_nodes - 1; up = parent[up]) length++;
            lengths[s] = (uint8_t)length;
            if (length > longest) longest = length;
        }
        if (longest <= ATTN_CUDA_PTX_CODE_BITS) return;
    }
}

struct writer {
    struct buffer *out;
    uint64_t waiting;
    uint32_t n_waiting;
};

static void put_bits(struct writer *w, uint32_t value, uint32_t n) {
    w->waiting |= (uint64_t)value << w->n_waiting;
    for (w->n_waiting += n; w->n_waiting >= 8; w->n_waiting -= 8, w->waiting >>= 8)
        put(w->out, (unsigned)(w->waiting & 255));
}

/* Canonical, with the first bit lowest, as unpack.c fills its table. */
static void set_codes(const uint8_t *lengths, uint32_t n, uint32_t *codes) {
    uint32_t code = 0;
    for (uint32_t length = 1; length <= ATTN_CUDA_PTX_CODE_BITS; length++, code <<= 1)
        for (uint32_t s = 0; s < n; s++) {
            if (lengths[s] != length) continue;
            codes[s] = 0;
            for (uint32_t k = 0; k < length; k++) codes[s] |= (code >> k & 1) << (length - 1 - k);
            code++;
        }
}

static void put_lengths(struct writer *w, const uint8_t *lengths, uint32_t n) {
    for (uint32_t s = 0; s < n; s++) {
        put_bits(w, lengths[s], 4);
        if (lengths[s]) continue;
        uint32_t others = 0;
        while (others < 15 && s + 1 < n && !lengths[s + 1]) s++, others++;
        put_bits(w, others, 4);
    }
}

static void put_steps(struct buffer *out, const struct step *steps, size_t n_steps, const unsigned char *in,
                      const struct tally *seen) {
    static uint8_t lengths[ALPHABETS][256];
    static uint32_t codes[ALPHABETS][256];
    struct writer w = {out, 0, 0};
    for (uint32_t a = 0; a < ALPHABETS; a++) {
        const uint32_t n = attn_cuda_ptx_alphabet_size(a);
        code_lengths(seen->symbol[a], n, lengths[a]);
        set_codes(lengths[a], n, codes[a]);
        put_lengths(&w, lengths[a], n);
    }
    if (w.n_waiting) put_bits(&w, 0, 8 - w.n_waiting);
    for (size_t k = 0; k < n_steps; k++) {
        const uint32_t values[] = {steps[k].run, steps[k].copy - LEAST, steps[k].distance};
        for (uint32_t v = 0; v < 3; v++) {
            if (v && !steps[k].copy) break;
            const uint32_t alphabet = ATTN_CUDA_PTX_RUN + v, symbol = symbol_of(values[v]);
            put_bits(&w, codes[alphabet][symbol], lengths[alphabet][symbol]);
            put_bits(&w, values[v] - attn_cuda_ptx_value_base(symbol), attn_cuda_ptx_value_bits(symbol));
            for (uint32_t b = 0; !v && b < steps[k].run; b++, in++)
                put_bits(&w, codes[ATTN_CUDA_PTX_BYTE][*in], lengths[ATTN_CUDA_PTX_BYTE][*in]);
        }
        in += steps[k].copy;
    }
    if (w.n_waiting) put_bits(&w, 0, 8 - w.n_waiting);
}

static void pack_bytes(struct buffer *out, const struct buffer *in) {
    const uint32_t n = (uint32_t)in->n;
    struct node *nodes = memory(n + 1, sizeof *nodes);
    struct step *steps = memory(n + 1, sizeof *steps);
    struct chains c = {memory(HASHES, sizeof *c.first), memory(n, sizeof *c.before)};
    static struct prices prices;
    static struct tally seen;
    memset(&seen, 0, sizeof seen);
    size_t n_steps = 0;
    for (int round = 0; round < ROUNDS; round++) {
        set_prices(&prices, &seen);
        shortest_path(nodes, &c, &prices, in->bytes, n);
        n_steps = read_path(nodes, n, steps);
        count(&seen, steps, n_steps, in->bytes);
    }
    put_steps(out, steps, n_steps, in->bytes, &seen);
    free(nodes);
    free(steps);
    free(c.first);
    free(c.before);
}

static struct buffer read_file(const char *path) {
    struct buffer b = {0};
    FILE *f = fopen(path, "rb");
    if (!f) die("the input cannot be opened");
    for (int c; (c = getc(f)) != EOF;) put(&b, (unsigned)c);
    if (ferror(f)) die("the input cannot be read");
    fclose(f);
    put(&b, 0);
    b.n--;
    if (strlen((const char *)b.bytes) != b.n) die("the input is no text");
    return b;
}

static void check(const struct buffer *packed, const struct buffer *text) {
    size_t scratch_bytes;
    if (attn_cuda_ptx_bytes(packed->bytes, packed->n, &scratch_bytes) != text->n)
        die("the packed bytes have another size");
    void *scratch = memory(scratch_bytes, 1);
    char *again = memory(text->n + 1, 1);
    if (attn_cuda_ptx_unpack(packed->bytes, packed->n, scratch, again)) die("the packed bytes are damaged");
    if (memcmp(again, text->bytes, text->n + 1)) die("the packed bytes are another text");
    free(scratch);
    free(again);
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage: pack_ptx IN.ptx OUT.packed");
    struct buffer text = read_file(argv[1]), tokens = {0}, numbers = {0}, packed = {0}, bits = {0};
    tokenize((const char *)text.bytes, text.n, &tokens, &numbers);
    pack_bytes(&bits, &tokens);
    for (int k = 0; k < 8; k++) put(&packed, (unsigned char)ATTN_CUDA_PTX_MAGIC[k]);
    put_word(&packed, text.n);
    put_word(&packed, tokens.n);
    put_word(&packed, numbers.n);
    put_word(&packed, bits.n);
    pack_bytes(&bits, &numbers);
    for (size_t k = 0; k < bits.n; k++) put(&packed, bits.bytes[k]);
    check(&packed, &text);
    FILE *f = fopen(argv[2], "wb");
    if (!f || fwrite(packed.bytes, 1, packed.n, f) != packed.n || fclose(f)) die("the output cannot be written");
    free(text.bytes);
    free(tokens.bytes);
    free(numbers.bytes);
    free(packed.bytes);
    free(bits.bytes);
    return 0;
}
