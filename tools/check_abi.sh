#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The binary interface against its record: abi.txt (exported functions) and tools/abi_layout.txt (structs, constants).
# Additions are recorded with --update; a removal or a changed line is a break and needs a new major version.
# usage: tools/check_abi.sh [--update] [path of libattn.so]     without the library only the header is compared
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
update=0
if [ "${1:-}" = --update ]; then update=1; shift; fi
library=${1:-}
failed=0

tools/abi_layout.py functions >"$work/functions" || exit 1
tools/abi_layout.py layout "${CC:-cc}" >"$work/layout" || exit 1
if [ $update = 1 ]; then
    cp "$work/functions" abi.txt
    cp "$work/layout" tools/abi_layout.txt
    echo "abi: recorded $(wc -l <abi.txt) functions and $(wc -l <tools/abi_layout.txt) lines of layout"
fi

compare() { # record, found, words
    if ! diff -u --label "recorded: $1" --label "found: $3" "$1" "$2"; then
        echo "abi: $3 and $1 differ (an intended addition: tools/check_abi.sh --update)"
        failed=1
    fi
}
compare abi.txt "$work/functions" "functions declared in include/attn.h"
compare tools/abi_layout.txt "$work/layout" "layout of the structs and constants"
if [ -n "$library" ]; then
    nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
    LC_ALL=C sort abi.txt >"$work/recorded"
    LC_ALL=C sort -o "$work/exported" "$work/exported"
    compare "$work/recorded" "$work/exported" "symbols exported by $library"
    if nm -D --defined-only "$library" | awk '$2 ~ /[BDGSC]/' | grep .; then
        echo "abi: $library exports data; only functions may be exported"
        failed=1
    fi
fi
[ $failed -eq 0 ] && echo "abi: $(wc -l <abi.txt) functions, $(wc -l <tools/abi_layout.txt) lines of layout, as recorded"
exit $failed
