#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make check` runs: build, tests, the tester on every kernel, properties, lint. One line a step, a summary at the end.
# usage: tools/check.sh [quick|check|full|lint|sim]    REPEAT=N problems per operator and dtype (quick: 10, check: 100, full: 300),
#                                                       BUILD=folder of the release build
#        NEED_SASS=1 it is a fault that machine code cannot be read, for want of nvdisasm
set -u
cd "$(dirname "$0")/.." || exit 1
tier=${1:-check}
build=${BUILD:-build/release}
jobs=${JOBS:-$(nproc)}
steps_log=build/log
# shellcheck source=tools/steps.sh
. tools/steps.sh
attn=$build/attn

lint() {
    step "include edges" tools/check_edges.py
    step "style" tools/check_style.py
    step "vocabulary" tools/check_words.py
    step "format" tools/format.sh --check
    step "public headers alone" tools/check_header.sh
    step "binary interface" tools/check_abi.sh "$build/libattn.so"
    step "python binding" tools/make_python_abi.py --check
    # all rows where all machine code was built; else those that no machine here runs, whose PTX is assembled in seconds
    if grep -qs ' all$' "$build/cuda/nvcc.txt"; then
        step "GPU kernels' registers" tools/ptxas_budget.py "$build/cuda"
    elif [ -f "$build/cuda/nvcc.txt" ]; then
        step "machine code of sm_100 rows" tools/ptxas_check.py --kernel '*_sm100_*' --jobs "$jobs" ${NEED_SASS:+--need-sass} "$build"
        if grep -qs 'no nvdisasm to look' "$steps_log/machine_code_of_sm_100_rows.log"; then
            echo '    no nvdisasm: registers and spills alone were looked at (tools/fetch_nvcc.sh --disassembler fetches it)'
            steps_skipped=$((steps_skipped + 1))
        fi
    fi
}

# Every property on every CPU kernel that runs here. A process has one thread at work: as many processes as processors.
properties() {
    local out=$build/properties backend rc
    rm -rf "$out" && mkdir -p "$out" || return 1
    for backend in ref cpu; do "$attn" list --json --backend $backend; done |
        sed -nE 's/^ *"name": "(.*)",$/\1/p' >"$out/rows"
    # shellcheck disable=SC2016
    xargs -P "$jobs" -I{} sh -c '"$1" check --properties --seed 1 --kernel "$2" >"$3/$2.log" 2>&1; rc=$?
        [ $rc -eq 0 ] || [ $rc -eq 77 ] || echo "$2: exit status $rc" >>"$3/$2.log"' _ "$attn" {} "$out" <"$out/rows"
    rc=$?
    cat "$out"/*.log | grep -vE '^[0-9]+ passed, [0-9]+ failed'
    cat "$out"/*.log | awk -v rc=$rc '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3 } /: exit status [0-9]+$/ { bad++ }
        END { if (!f) f = bad + (rc != 0); print p + 0 " passed, " f + 0 " failed"; exit f > 0 || p == 0 }'
}

# The inner loop: the command, unit tests without those that run whole operators, some problems of every CPU kernel. No
# emulated AMX, no simulator.
quick() {
    step "build ${build#build/}" tools/build.sh "${build#build/}" -- attn libattn.so attn_quick_tests || { steps_end; exit 1; }
    step "unit tests" ctest --test-dir "$build" --output-on-failure -j "$jobs" -L '^(unit|cpu|contract)$' -E 'cpu\.(sdpa|mla)_cpu'
    step "attn check, every CPU kernel" "$attn" check --backend cpu --repeat "${REPEAT:-10}" --seed 1
    lint
}

check() {
    step "build ${build#build/}" tools/build.sh "${build#build/}" || { steps_end; exit 1; }
    step "ctest" ctest --test-dir "$build" --output-on-failure -j "$jobs"
    step "attn check, every CPU kernel" "$attn" check --backend cpu --repeat "${REPEAT:-100}" --seed 1
    step "attn check, properties" properties
    lint
}

# The simulator's own tests, the GPU programs on one row each, every GPU kernel that was built.
sim() {
    step "build ${build#build/}" tools/build.sh "${build#build/}" || { steps_end; exit 1; }
    step "simulator's own tests" ctest --test-dir "$build" --output-on-failure -L sim -j "$jobs"
    [ ! -f "$build/cuda/nvcc.txt" ] || step "every GPU kernel in the simulator" tools/check_sim.sh "$build"
}

full() {
    REPEAT=${REPEAT:-300} check
    for seed in 2 3 4 5; do
        step "attn check, seed $seed" "$attn" check --backend cpu --repeat "${REPEAT:-300}" --seed "$seed"
    done
    for kind in asan ubsan tsan; do step "make $kind" tools/sanitize.sh "$kind"; done
    step "older processors" tools/check_oldcpu.sh "$attn"
    step "coverage" make --no-print-directory cov
}

case $tier in
quick) quick ;;
check) check ;;
full) full ;;
lint) lint ;;
sim) sim ;;
*) echo "usage: $0 [quick|check|full|lint|sim]" >&2; exit 2 ;;
esac
steps_end
