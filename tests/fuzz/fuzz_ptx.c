/* SPDX-License-Identifier: MIT
 * Any text as PTX: it is refused with a reason, or every kernel of it is decoded or refused with one. */
#include "../../sim/decode/decode.h"
#include "fuzz/fuzz_bytes.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char why[400] = "";
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    text[size] = 0;
    struct ptx_module *m = ptx_parse(text, why, sizeof why);
    free(text);
    FUZZ_REQUIRE(memchr(why, 0, sizeof why) != NULL);
    if (!m) {
        FUZZ_REQUIRE(why[0]);
        return 0;
    }
    for (const struct ptx_kernel *k = m->kernels; k; k = k->next) {
        struct sim_program *p = sim_decode(m, k, why, sizeof why);
        FUZZ_REQUIRE(p || why[0]);
        for (uint32_t i = 0; p && i < p->n_ins; i++) FUZZ_REQUIRE(p->ins[i].exec && p->ins[i].target <= p->n_ins);
        sim_program_free(p);
    }
    ptx_free(m);
    return 0;
}
