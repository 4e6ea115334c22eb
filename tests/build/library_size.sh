#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library without symbols stays small: 12 MB with every kernel as PTX, 24 MB with machine code beside it.
# Usage: library_size.sh /path/to/build
build=${1:?build folder}
library=$build/libattn.so
grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release$' "$build/CMakeCache.txt" || { echo 'skipped: not a release build'; exit 77; }
[ -f "$library" ] || { echo 'skipped: no shared library'; exit 77; }
command -v strip >/dev/null || { echo 'skipped: no strip'; exit 77; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
limit=12
[ -z "$(find "$build" -path '*/cuda/*.fatbin' -size +0 2>/dev/null | head -n 1)" ] || limit=24
strip -s -o "$dir/libattn.so" "$library" || exit 1
bytes=$(wc -c <"$dir/libattn.so")
kernels=$(find "$build" -path '*/cuda/*.ptx.packed' 2>/dev/null | wc -l)
echo "libattn.so: $bytes bytes without symbols, $kernels kernels, at most $limit MB"
[ "$bytes" -le $((limit * 1000000)) ] || { echo 'FAILED: libattn.so is too large'; exit 1; }
