/* SPDX-License-Identifier: MIT
 * Any bytes as a safetensors file. Accepted tensors must lie inside the input, not overlap, and be found by their
 * names. */
#include "fuzz/fuzz_bytes.h"
#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct attn_cli_archive archive;
    struct attn_cli_fault fault = {""};
    memset(&archive, 0, sizeof archive);
    if (attn_cli_safetensors_parse(data, size, &archive, &fault)) {
        FUZZ_REQUIRE(fault.text[0] && memchr(fault.text, 0, sizeof fault.text));
        return 0;
    }
    const uint8_t *end = data;
    unsigned sum = 0;
    for (size_t i = 0; i < archive.n_arrays; i++) {
        const struct attn_cli_array *a = &archive.arrays[i];
        const uint8_t *first = a->data;
        size_t bytes = 0;
        FUZZ_REQUIRE(a->name && a->rank >= 0 && a->rank <= ATTN_CLI_MAX_AXES);
        FUZZ_REQUIRE(attn_cli_archive_find(&archive, a->name) == a);
        FUZZ_REQUIRE(attn_cli_array_bytes(a, &bytes) == 0 && bytes == a->bytes);
        if (!bytes) continue;
        FUZZ_REQUIRE(first >= end && (size_t)(first - data) <= size && bytes <= size - (size_t)(first - data));
        end = first + bytes;
        for (size_t j = 0; j < bytes; j++) sum += first[j];
    }
    FUZZ_REQUIRE(sum < UINT32_MAX);
    FUZZ_REQUIRE(attn_cli_archive_find(&archive, "no such name \x01") == NULL);
    attn_cli_archive_free(&archive);
    return 0;
}
