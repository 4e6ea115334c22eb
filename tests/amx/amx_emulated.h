/* SPDX-License-Identifier: MIT
 * The tile instructions of cpu/amx/tile.h on arrays, for processors without AMX. Arithmetic as documented; in addition
 * everything that the processor would fault on, and a few things that it would not but no kernel of ours means (a tile
 * used before it was written, a second configuration before the release), end in a message. Needs AVX-512. */
#ifndef ATTN_TESTS_AMX_EMULATED_H
#define ATTN_TESTS_AMX_EMULATED_H

/* Called with the words; NULL: they are printed and the program aborts. If it returns, the instruction does nothing. */
extern void (*attn_amx_emulated_fault)(const char *words);

/* What the system answers when tiles are asked for; 0: refused. Looked at once, by the first context. */
extern int attn_amx_emulated_permit;

int attn_amx_emulated_configured(void); /* of the calling thread */

/* Executed by all threads so far: shows that the tests reached the tiles. */
long attn_amx_emulated_products(void);
#endif
