#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures (first time only, or when options are given) and builds a preset quietly: what is configured for
# GPUs, warnings and errors are shown.   usage: tools/build.sh PRESET [-D...] [-- targets]
set -u
preset=$1
shift
cd "$(dirname "$0")/.." || exit 1
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
[ $# -eq 0 ] || shift
folder=build/$preset
mkdir -p build/log
if [ ! -f "$folder/build.ninja" ] || [ ${#options[@]} -gt 0 ]; then
    if ! cmake --preset "$preset" "${options[@]}" >"build/log/configure-$preset.log" 2>&1; then
        cat "build/log/configure-$preset.log" >&2
        exit 1
    fi
    sed -n 's/^-- \(CUDA: \)/\1/p' "build/log/configure-$preset.log" # what GPU kernels there will be takes the most time
elif grep -q '^SCDOC:.*=SCDOC-NOTFOUND$' "$folder/CMakeCache.txt" && command -v scdoc >/dev/null; then
    cmake "$folder" >"build/log/configure-$preset.log" 2>&1 # what makes man pages came after the first configuration
fi
exec ninja --quiet -C "$folder" -j "${JOBS:-$(nproc)}" "$@"
