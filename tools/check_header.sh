#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The public headers must compile alone, without a warning, in every language mode that callers use.
# usage: tools/check_header.sh     CC/CXX of gcc and clang are taken as found; a missing compiler is said, not failed
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
for header in include/*.h; do
    name=$(basename "$header")
    # Every initialiser and inline function is used once, so that its expansion is compiled too.
    {
        # DLPack's structs in their published layout, which that header expects from its includer.
        [ "$name" = attn_dlpack.h ] && cat <<'C'
#include <stddef.h>
#include <stdint.h>
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;
#define ATTN_DLPACK_DECLARED
C
        echo "#include \"$name\""
        echo "#include \"$name\""
        cat <<'C'
int64_t use_header(void);
int64_t use_header(void) {
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_args a = ATTN_ARGS_INIT;
    attn_device d = ATTN_DEVICE_CPU, e = ATTN_DEVICE_CUDA(1);
    p.flags = ATTN_CAUSAL | ATTN_WITH_DIST;
    return INT64_C(0) + p.size + a.size + d.type + e.index + ATTN_ROLE_COUNT;
}
C
    } >"$work/use.c"
    cp "$work/use.c" "$work/use.cc"
    for row in "gcc c99 c" "gcc c11 c" "gcc c17 c" "clang c99 c" "clang c11 c" "clang c17 c" \
        "g++ c++11 cc" "g++ c++17 cc" "g++ c++20 cc" "clang++ c++11 cc" "clang++ c++17 cc" "clang++ c++20 cc"; do
        read -r compiler std ext <<<"$row"
        if ! command -v "$compiler" >/dev/null 2>&1; then
            echo "$name: $compiler is not installed, -std=$std not tried"
            continue
        fi
        extra="-Wall -Wextra -pedantic -Wshadow -Wconversion -Werror"
        [ "$ext" = cc ] && extra="$extra -fno-exceptions -fno-rtti"
        [ "$ext" = cc ] && [ "$name" = attn.h ] && extra="$extra -Wold-style-cast"
        [ "$ext" = c ] && extra="$extra -Wstrict-prototypes"
        # shellcheck disable=SC2086
        if $compiler -std="$std" $extra -Iinclude -c "$work/use.$ext" -o "$work/use.o"; then
            passed=$((passed + 1))
        else
            echo "$name: $compiler -std=$std FAILED"
            failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
