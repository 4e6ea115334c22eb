#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds a sanitizer preset and runs the check tier under it; tsan runs what has threads in it.
# usage: tools/sanitize.sh asan|ubsan|tsan     REPEAT=N problems per operator and dtype (asan, ubsan: 10, tsan: 4)
set -u
cd "$(dirname "$0")/.." || exit 1
kind=$1
steps_log=build/log/$kind
# shellcheck source=tools/steps.sh
. tools/steps.sh
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=second_deadlock_stack=1:halt_on_error=1
export GPU_TEST_CASES=${GPU_TEST_CASES:-1} # problems per GPU row on the stand-in driver: their inputs are slow to make here
run=()
if [ "$kind" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    run=(setarch "$(uname -m)" -R) # thread sanitizer's shadow cannot follow far-randomised addresses
fi
step "build $kind" tools/build.sh "$kind" || { steps_end; exit 1; }
jobs=${JOBS:-$(nproc)}
attn=build/$kind/attn
if [ "$kind" = tsan ]; then
    step "tests with threads" "${run[@]}" ctest --test-dir build/tsan --output-on-failure -j "$jobs" \
        -R 'pool|execute|ctx|plan|thread|run|log|err|trace|concurr'
    step "attn check, 4 threads" "${run[@]}" "$attn" check --threads 4 --timeout 900 --backend cpu --repeat "${REPEAT:-4}" --seed 1
else
    step "ctest" ctest --test-dir "build/$kind" --output-on-failure -j "$jobs"
    step "attn check" "$attn" check --timeout 900 --backend cpu --repeat "${REPEAT:-10}" --seed 1
fi
steps_end
