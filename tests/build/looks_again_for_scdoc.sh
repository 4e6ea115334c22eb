#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tools/build.sh configures a folder again that was configured without scdoc, once there is one, and no other folder.
# With stand-ins for cmake, ninja and scdoc.   usage: looks_again_for_scdoc.sh BUILD_FOLDER SOURCE_FOLDER
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/build/release" "$work/bin"
cp "$2/tools/build.sh" "$work/tools"
: >"$work/build/release/build.ninja"
for tool in cmake ninja scdoc; do printf '#!/bin/sh\necho %s "$@" >>"%s/calls"\n' $tool "$work" >"$work/bin/$tool"; done
chmod +x "$work"/bin/*
expect() { # CALLS OF CMAKE, CACHE LINE
    : >"$work/calls"
    echo "$2" >"$work/build/release/CMakeCache.txt"
    PATH=$work/bin:$PATH "$work/tools/build.sh" release -- attn >/dev/null
    grep -q '^ninja .* attn$' "$work/calls" || { echo "FAILED: $2: nothing was built"; exit 1; }
    [ "$(grep -c '^cmake' "$work/calls")" = "$1" ] || { echo "FAILED: $2: $(cat "$work/calls")"; exit 1; }
}
expect 1 'SCDOC:FILEPATH=SCDOC-NOTFOUND'
expect 0 'SCDOC:FILEPATH=/usr/bin/scdoc'
expect 0 'ATTN_WERROR:BOOL=ON'
