/* SPDX-License-Identifier: MIT
 * Any text into attn_problem_parse. What parses must print to a text that parses back to an equal problem with an equal
 * hash; what fails must leave the result alone. Not here: whether the problem makes sense to a plan (fuzz_plan.c). */
#include "fuzz/fuzz_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size);
    attn_problem p, again, before;
    memset(&p, 0x5a, sizeof p);
    before = p;
    attn_status status = attn_problem_parse(text, &p);
    if (status) {
        FUZZ_REQUIRE(!memcmp(&p, &before, sizeof p));
        FUZZ_REQUIRE(attn_last_error()[0]);
    } else {
        size_t needed = 0, short_needed = 0;
        char room[16], *form;
        FUZZ_REQUIRE(p.size == sizeof p);
        attn_problem_format(&p, NULL, 0, &needed);
        FUZZ_REQUIRE(needed > 1);
        form = malloc(needed);
        if (!form) abort();
        FUZZ_REQUIRE(attn_problem_format(&p, form, needed, NULL) == ATTN_OK);
        FUZZ_REQUIRE(strlen(form) + 1 == needed);
        status = attn_problem_format(&p, room, sizeof room, &short_needed);
        FUZZ_REQUIRE(short_needed == needed && memchr(room, 0, sizeof room));
        FUZZ_REQUIRE((status == ATTN_OK) == (needed <= sizeof room));
        FUZZ_REQUIRE(attn_problem_parse(form, &again) == ATTN_OK);
        FUZZ_REQUIRE(attn_problem_equal(&p, &again));
        FUZZ_REQUIRE(attn_problem_hash(&p) == attn_problem_hash(&again));
        (void)attn_problem_check(&p);
        free(form);
    }
    free(text);
    return 0;
}
