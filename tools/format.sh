#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs clang-format over all C sources but include/attn.h, whose tables are laid out by hand.
# usage: tools/format.sh [--check]     --check changes nothing and fails if a file would change
set -u
cd "$(dirname "$0")/.." || exit 1
if ! command -v clang-format >/dev/null 2>&1; then
    echo "clang-format is missing: apt-get install -y clang-format" >&2
    exit 1
fi
mapfile -t files < <(find include src cli bench tests tools examples kernels sim cmake \( -name '*.c' -o -name '*.h' \) \
    -not -path include/attn.h 2>/dev/null | sort)
if [ "${1:-}" = --check ]; then
    # Other versions lay out a few constructs differently; only this one is the measure.
    if ! clang-format --version | grep -q 'version 14\.'; then
        echo "format: skipped, the measure is clang-format 14"
        exit 0
    fi
    said=$(printf '%s\0' "${files[@]}" |
        xargs -0 -n 20 -P "${JOBS:-$(nproc)}" clang-format --dry-run -Werror 2>&1)
    status=$?
    # A diagnostic names its file; the rest of it is the line as it stands and a marker.
    bad=$(sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: .*/\1/p' <<<"$said" | sort -u)
    [ -z "$bad" ] || sed 's/$/: run make format/' <<<"$bad"
    [ $status -eq 0 ] || [ -n "$bad" ] || printf '%s\n' "$said"
    echo "format: ${#files[@]} files, $(grep -c . <<<"$bad") faults"
    [ $status -eq 0 ]
else
    # Long macros and broken comments settle only after several passes.
    for _ in $(seq 20); do
        clang-format -i "${files[@]}"
        mapfile -t files < <(for f in "${files[@]}"; do
            clang-format --dry-run -Werror "$f" >/dev/null 2>&1 || echo "$f"
        done)
        [ ${#files[@]} -gt 0 ] || exit 0
    done
    echo "format: does not settle: ${files[*]}" >&2
    exit 1
fi
