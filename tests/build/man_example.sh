#!/bin/sh
# SPDX-License-Identifier: MIT
# The example of attn(3) compiles as it stands against the header and the static library, and computes what it should.
# usage: man_example.sh BUILD_FOLDER SOURCE_FOLDER
build=$1 source=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
# Every function has a place in the page's list.
for name in $(sed -n 's/^ATTN_API .*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' "$source/include/attn.h"); do
    sed -n '/^## Functions/,/^## Rules/p' "$source/docs/man/attn.3.scd" | grep -qw "$name" || { echo "attn.3.scd lacks $name"; exit 1; }
done
# The block between the fences; a backslash is written twice in the page's source.
sed -n '/^```$/,/^```$/p' "$source/docs/man/attn.3.scd" | sed '/^```$/d; s/\\\\/\\/g' >"$dir/example.c"
[ -s "$dir/example.c" ] || { echo 'no example in attn.3.scd'; exit 1; }
${CC:-cc} -std=gnu17 -Wall -Wextra -Werror -I"$source/include" "$dir/example.c" "$build/libattn.a" -lpthread -lm -ldl \
    -o "$dir/example" || exit 1
result=$("$dir/example") || exit 1
echo "$result"
# The first query sees the first key only: out = v = 1. Its lse is the score itself, sum over c of q*k / 8, with
# q = (c mod 7) / 7 and k = (c mod 11) / 11 for c < 64.
echo "$result" | awk 'BEGIN { for (c = 0; c < 64; c++) s += (c % 7) / 7 * (c % 11) / 11 }
    { if ($0 !~ /^attn_sdpa_fwd_.*_f32_.*: out\[0\] = 1, lse/) exit 1; e = $NF - s / 8; exit !(e < 1e-4 && e > -1e-4) }' ||
    { echo 'expected out[0] = 1 and the lse above'; exit 1; }
