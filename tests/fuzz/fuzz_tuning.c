/* SPDX-License-Identifier: MIT
 * Any bytes as a tuning file. A refused text must leave the table as it was: the entry put there first is still found.
 */
#include "fuzz/fuzz_bytes.h"

#include "base/mem.h"
#include "core/tune.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct attn_mem mem;
    struct attn_core_tuning *table = NULL;
    attn_problem p;
    attn_base_mem_init(&mem, NULL, NULL, NULL, 0);
    FUZZ_REQUIRE(attn_core_tuning_create(&mem, &table) == ATTN_OK);
    FUZZ_REQUIRE(attn_problem_parse("sdpa_fwd b=1 hq=2 sq=3 sk=4 d=5 f32", &p) == ATTN_OK);
    FUZZ_REQUIRE(attn_core_tuning_put(&mem, table, &p, "a device", 3, "attn_a_kernel", 0.5) == ATTN_OK);
    attn_status status = attn_core_tuning_parse(&mem, table, (const char *)data, size);
    const char *found = attn_core_tuning_find(table, &p, "a device", 3);
    FUZZ_REQUIRE(found);
    if (status) FUZZ_REQUIRE(!strcmp(found, "attn_a_kernel") && attn_last_error()[0]);
    attn_core_tuning_destroy(&mem, table);
    return 0;
}
