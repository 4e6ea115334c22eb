/* SPDX-License-Identifier: MIT
 * Any bytes as an .npy file. What is accepted must lie inside the input, be readable to its last byte and fit its
 * shape. */
#include "fuzz/fuzz_bytes.h"
#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct attn_cli_array array;
    struct attn_cli_fault fault = {""};
    memset(&array, 0, sizeof array);
    if (attn_cli_npy_parse(data, size, &array, &fault)) {
        FUZZ_REQUIRE(fault.text[0] && memchr(fault.text, 0, sizeof fault.text));
        return 0;
    }
    const uint8_t *first = array.data;
    size_t bytes = 0;
    FUZZ_REQUIRE(array.rank >= 0 && array.rank <= ATTN_CLI_MAX_AXES);
    FUZZ_REQUIRE(attn_cli_array_bytes(&array, &bytes) == 0 && bytes == array.bytes);
    if (bytes) FUZZ_REQUIRE(first >= data && (size_t)(first - data) <= size && bytes <= size - (size_t)(first - data));
    FUZZ_REQUIRE(attn_cli_array_own(&array, &fault) == 0);
    if (bytes) FUZZ_REQUIRE(!memcmp(array.data, first, bytes));
    attn_cli_array_free(&array);
    return 0;
}
