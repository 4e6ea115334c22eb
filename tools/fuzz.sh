#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a libFuzzer target for a while. New inputs are kept under build/fuzz-corpus; a finding is left there as crash-*
# and can be replayed with the plain build: build/release/fuzz/fuzz_<name> FILE
# usage: tools/fuzz.sh NAME|all SECONDS
set -u
cd "$(dirname "$0")/.." || exit 1
wanted=$1
seconds=$2
tools/build.sh fuzz || exit 1
names=$(for f in tests/fuzz/fuzz_*.c; do basename "$f" .c | sed 's/^fuzz_//'; done)
if [ "$wanted" != all ]; then
    grep -qx "$wanted" <<<"$names" || { echo "no target '$wanted'; there are:" $names >&2; exit 2; }
    names=$wanted
fi
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=1
passed=0
failed=0
for name in $names; do
    found=build/fuzz-corpus/$name
    log=build/log/fuzz-$name.log
    mkdir -p "$found" build/log
    if build/fuzz/fuzz/fuzz_"$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=8192 \
        -print_final_stats=1 -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "$name: no finding in $(sed -n 's/^Done \(.*\)/\1/p' "$log")"
    else
        failed=$((failed + 1))
        echo "$name: FINDING, log $log"
        grep -nE 'ERROR|runtime error|fuzz_.*\.c:[0-9]+: |Test unit written|SUMMARY' "$log" | head -n 8
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
