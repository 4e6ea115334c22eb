#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a change to GPU code must pass on a machine with a GPU. Independent parts run side by side, as many as there are
# processors (the reference on the CPU takes the time, not the device), and give one line each. Exits with 77 where there is no device.
# usage: gpu_check.sh [build folder]
#   PARTS='check small cache items ptx properties tests overhead'    and sanitize, which is not in the default
#     check       every kernel against the reference            small  the same with 99 KB of shared memory per block
#     cache       the sparse backward as with sums larger than the second-level cache
#     items       the same on four multiprocessors, so that a CTA has several items
#     ptx         the same with kernels that the driver compiles from PTX
#     properties  related problems against each other           tests  programs of tests/gpu (graphs, streams, threads, 2^31 elements)
#     sanitize    check under the tools of compute-sanitizer    overhead  host time of calls, printed, not judged
#   SEEDS='1 2 3 4 5'  of check, small, cache and items; the others take the first     REPEAT=50  problems per operator, dtype and seed
#   KERNEL='*'  OPS='sdpa_fwd ...'  DTYPES='bf16 ...'  DEVICE=cuda:0      LIMIT=3600  seconds that a process may take
#   SAMPLE=3    problems per operator and dtype for sanitize, ptx and properties    JOBS=  processes at once
#   TOOLS='memcheck racecheck initcheck synccheck'    SANITIZER=  the program, if it is neither in PATH nor below /usr/local/cuda
#   MPS=1  the processes share the device through a server of their own (nvidia-cuda-mps-control) and need not take turns:
#          60 problems an operator and dtype on 16 processors in 7 s instead of 23; not for sanitize
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1:-build/release}")
parts=" ${PARTS:-check small cache items ptx properties tests overhead} "
ops=${OPS:-sdpa_fwd sdpa_bwd mla_fwd mla_bwd dist}
dtypes=${DTYPES:-bf16 f16 f32 f64}
seeds=${SEEDS:-1 2 3 4 5}
first=${seeds%% *}
sample=${SAMPLE:-3}
jobs=${JOBS:-$(nproc)}
export ATTN=$build/attn GPU_TEST_DEVICE=${DEVICE:-cuda:0} GPU_TEST_KERNEL=${KERNEL:-*} LOG=${LOG:-build/log/gpu} LIMIT=${LIMIT:-3600}
export SANITIZER=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
if ! "$ATTN" list --devices | grep -q "^$GPU_TEST_DEVICE "; then
    echo "skipped: the driver here has no $GPU_TEST_DEVICE"
    exit 77
fi
rm -rf "$LOG" && mkdir -p "$LOG" || exit 1

# One process: part, name, command. Leaves NAME.log, and in NAME.result the part, what passed and failed, and the seconds.
run() {
    local part=$1 name=$2 start=$SECONDS rc line p=0 f=0
    shift 2
    timeout "$LIMIT" "$@" >"$LOG/$name.log" 2>&1 </dev/null
    rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$LOG/$name.log" | tail -n 1)
    if [ -n "$line" ]; then
        p=${line%% *} line=${line#*, } f=${line%% *}
    elif [ $rc -eq 0 ]; then
        p=1
    fi
    [ $rc -ne 77 ] || rc=0 # nothing of this operator and dtype here
    [ $rc -ne 42 ] || echo 'ERROR: the tool reports faults' >>"$LOG/$name.log"
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    echo "$part $p $f $((SECONDS - start)) $name $rc" >"$LOG/$name.result"
}
export -f run

check() { # part, seed, problems, prefix of the command
    local part=$1 seed=$2 repeat=$3 op dtype
    shift 3
    for op in $ops; do
        for dtype in $dtypes; do
            [ -z "${rows[$op.$dtype]:-}" ] ||
                echo "run $part $part-$op-$dtype-$seed $* $ATTN check --device $GPU_TEST_DEVICE --kernel '$GPU_TEST_KERNEL' --op $op \
--dtype $dtype --repeat $repeat --seed $seed --timeout 0"
        done
    done
}
wants() { [[ $parts == *" $1 "* ]]; }
declare -A rows
while read -r name; do
    op=${name#attn_} op=${op%_sm*}
    for dtype in $dtypes; do [[ $name != *_"$dtype"_* ]] || rows[$op.$dtype]=1; done
done < <("$ATTN" list --device "$GPU_TEST_DEVICE" | awk '$2 == "cuda" { print $1 }')

if [ "${MPS:-0}" = 1 ]; then
    command -v nvidia-cuda-mps-control >/dev/null || { echo 'MPS=1, but no nvidia-cuda-mps-control in PATH' >&2; exit 1; }
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(realpath "$LOG")
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$CUDA_MPS_PIPE_DIRECTORY"' EXIT
    nvidia-cuda-mps-control -d || exit 1
fi

start=$SECONDS
{
    if wants sanitize; then # the longest first
        [ -n "$SANITIZER" ] || { echo 'no compute-sanitizer in PATH or /usr/local/cuda/bin (SANITIZER=path)' >&2; exit 1; }
        for tool in ${TOOLS:-racecheck initcheck memcheck synccheck}; do # 42 is the tool's own exit code: it saw something
            check "$tool" "$first" "$sample" "$SANITIZER" --tool "$tool" --error-exitcode 42 --print-limit 20
        done
    fi
    ! wants ptx || check ptx "$first" "$sample" env ATTN_CUDA_IMAGE=ptx
    for seed in $seeds; do
        ! wants check || check check "$seed" "${REPEAT:-50}"
        ! wants small || check small "$seed" "${REPEAT:-50}" env ATTN_CUDA_SHARED_LIMIT=101376
        ! wants cache || [[ " $ops " != *" mla_bwd "* ]] || ops=mla_bwd check cache "$seed" "${REPEAT:-50}" env ATTN_CUDA_L2_LIMIT=65536
        ! wants items || [[ " $ops " != *" mla_bwd "* ]] || ops=mla_bwd check items "$seed" "${REPEAT:-50}" env ATTN_CUDA_SM_LIMIT=4
    done
    ! wants properties || check properties "$first" "$sample" | sed 's/ check --device/ check --properties --device/; s/ --timeout 0//'
    if wants tests; then
        for test in "$build"/tests/t_gpu_*; do
            name=$(basename "$test")
            case $name:$GPU_TEST_KERNEL in
            t_gpu_large:* | t_gpu_stub:* | t_gpu_kept_graph:* | *:[!*]*) echo "run tests $name $test" ;;
            *) for op in $ops; do echo "run tests $name-$op env GPU_TEST_KERNEL='${GPU_TEST_KERNEL/#\*/attn_$op*}' $test"; done ;;
            esac
        done
    fi
} | awk '{ print (/sdpa_bwd/ ? 1 : /mla_bwd/ ? 2 : 3), $0 }' | sort -s -n -k 1,1 | cut -d ' ' -f 2- >"$LOG/list" # the longest first
[ -s "$LOG/list" ] || wants overhead || exit 1
tr '\n' '\0' <"$LOG/list" | xargs -0 -P "$jobs" -I {} bash -c '{}'
seconds=$((SECONDS - start))

failed=0 passed=0
while read -r part; do
    read -r n p f s < <(cat "$LOG"/*.result | awk -v part="$part" '$1 == part { n++; p += $2; f += $3; s += $4 } END { print n, p, f, s }')
    passed=$((passed + p)) failed=$((failed + f))
    printf '%-11s %s passed, %s failed   (%s processes, %s s of them)\n' "$part" "$p" "$f" "$n" "$s"
done < <(cut -d ' ' -f 2 "$LOG/list" | awk '!seen[$0]++')
for result in "$LOG"/*.result; do
    [ -e "$result" ] || continue # overhead alone
    read -r part p f s name rc <"$result"
    [ "$f" -gt 0 ] || continue
    echo "FAIL $name, exit $rc: $LOG/$name.log"
    grep -E '^(FAIL|=+ (Error|Invalid|Race|ERROR)|ERROR)|FAILED|over its|rerun:' "$LOG/$name.log" | head -n 6 | cut -c 1-240 | sed 's/^/    /'
done
if wants overhead; then # alone, since it is a measurement
    "$ATTN" bench --overhead --device "$GPU_TEST_DEVICE" @small >"$LOG/overhead.log" 2>&1 || failed=$((failed + 1))
    cut -c 1-150 "$LOG/overhead.log"
fi
echo "time: $seconds s with $jobs processes, $(((passed + failed) / (seconds > 0 ? seconds : 1))) a second"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
