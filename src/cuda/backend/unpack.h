/* SPDX-License-Identifier: MIT
 * Packed PTX: the form in which the library carries the text of its kernels. The build writes it (cmake/pack_ptx.c),
 * the library turns it back into the same text when a kernel is loaded.
 *
 * Two steps. PTX numbers its registers in several interleaved counts (%r12, %r2868, %r13, %r2869), which hides from a
 * dictionary coder that the lines repeat. Step 1 writes each register as a token: which of the four latest counts of
 * its kind it continues, and by how much. Step 2 codes the tokens, and the numbers that some of them need, by copies
 * of earlier bytes and Huffman codes.
 *
 * Layout, little-endian: magic[8]; bytes of the text, of the tokens, of the numbers and of the packed tokens, four
 * bytes each; packed tokens; packed numbers.
 *
 * Tokens. Below 0x80: the character itself. Else a name of kind k (attn_cuda_ptx_kind) with a number:
 *   0x80 + 4k + c   the successor of the c-th latest count
 *   0xa0 + 4k + c   count c plus a signed byte of the numbers
 *   0xc0 + k        two bytes of the numbers, 0xc8 + k: four; a new count in place of the oldest
 * A count moves to the number where that is larger, and becomes the latest.
 *
 * Packed bytes. First the lengths of the Huffman codes of four alphabets, in the order of enum attn_cuda_ptx_alphabet,
 * as nibbles, lower one first: a code length, or 0 and then how many unused symbols more follow (0 to 15); an odd end
 * is filled up. Then bits, lowest first: a run of new bytes (its length, then that many symbols), a copy (length less
 * ATTN_CUDA_PTX_LEAST_COPY; distance: 0 to 2 is one of the three latest, else distance + 2), and so on until all bytes
 * are there; the last copy is missing where a run ends them. Codes are canonical, of at most ATTN_CUDA_PTX_CODE_BITS
 * bits, and stand in the stream with their first bit first. Values: attn_cuda_ptx_value_bits(). */
#ifndef ATTN_CUDA_UNPACK_H
#define ATTN_CUDA_UNPACK_H
#include <stddef.h>
#include <stdint.h>

#define ATTN_CUDA_PTX_MAGIC "attnptx\1"
enum attn_cuda_ptx_alphabet { ATTN_CUDA_PTX_BYTE, ATTN_CUDA_PTX_RUN, ATTN_CUDA_PTX_COPY, ATTN_CUDA_PTX_DISTANCE };
enum {
    ATTN_CUDA_PTX_ALPHABETS = 4,
    ATTN_CUDA_PTX_HEADER = 24,    /* bytes */
    ATTN_CUDA_PTX_KINDS = 7,      /* of numbered names */
    ATTN_CUDA_PTX_COUNTS = 4,     /* of a kind */
    ATTN_CUDA_PTX_VALUES = 48,    /* symbols of the alphabets other than bytes */
    ATTN_CUDA_PTX_CODE_BITS = 12, /* longest code */
    ATTN_CUDA_PTX_LEAST_COPY = 3
};
/* What stands before the number. */
static const char *const attn_cuda_ptx_kind[ATTN_CUDA_PTX_KINDS] = {"%r", "%f", "%rd", "%p", "%fd", "%rs", "$L__BB0_"};

/* A value below 8 is its symbol. Symbol s from 8 on: e = 3 + (s - 8) / 2, the value is 2^e, plus 2^(e-1) for odd s,
 * plus what as many bits say as are returned. */
static inline uint32_t attn_cuda_ptx_value_bits(uint32_t symbol) { return symbol < 8 ? 0 : 2 + (symbol - 8) / 2; }
static inline uint32_t attn_cuda_ptx_value_base(uint32_t symbol) {
    return symbol < 8 ? symbol : (2 + (symbol & 1)) << attn_cuda_ptx_value_bits(symbol);
}
static inline uint32_t attn_cuda_ptx_alphabet_size(uint32_t alphabet) {
    return alphabet == ATTN_CUDA_PTX_BYTE ? 256 : ATTN_CUDA_PTX_VALUES;
}
/* The counts of one kind, the latest first. */
static inline void attn_cuda_ptx_count(uint32_t counts[ATTN_CUDA_PTX_COUNTS], uint32_t c, uint32_t number) {
    for (; c > 0; c--) counts[c] = counts[c - 1];
    counts[0] = number;
}

/* Bytes of the text without its final 0, and of the memory that unpacking needs; 0: not packed PTX. */
size_t attn_cuda_ptx_bytes(const unsigned char *packed, size_t packed_bytes, size_t *scratch_bytes);
/* The text, closed by a 0: `text` has room for it and that 0. Returns 0, or -1 if the packed bytes are damaged. */
int attn_cuda_ptx_unpack(const unsigned char *packed, size_t packed_bytes, void *scratch, char *text);
#endif
