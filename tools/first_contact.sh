#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The day a Blackwell chip is at hand: runs there what the simulator runs of sm_100, records the answers and compares them.
#   1  every vector of tcgen05 (tests/sim/golden/blackwell_golden*.c): the device's answers go to a record, in the form of
#      tests/sim/golden/hopper_golden_h100.txt, and are compared with the statement on the host
#   2  that record in the simulator
#   3  the simulator's test kernels of sm_100 with their right numbers
#   4  every kernel row of the library for sm_100 through `attn check --device cuda:0`
# Exit status: 0 all agree, 1 something differs, 77 no such device (said in words).   usage: tools/first_contact.sh BUILD
# FIRST_CONTACT_DRIVER=libcuda.so.1 the driver; with the simulator's library this is a rehearsal.
set -u
build=${1:?usage: tools/first_contact.sh BUILD}
driver=${FIRST_CONTACT_DRIVER:-libcuda.so.1}
source=$(cd "$(dirname "$0")/.." && pwd)
golden=$build/tests/blackwell_golden
out=$build/first_contact
failed=0
if [ ! -x "$golden" ]; then
    echo "$golden is missing: build first, without ATTN_SANITIZE" >&2
    exit 2
fi
device=$("$golden" probe "$driver") || {
    status=$?
    echo "$device"
    exit $status
}
echo "$device"
mkdir -p "$out"
record=$out/blackwell_golden.txt

step() { # words, command
    local words=$1
    shift
    echo "== $words"
    "$@" || {
        echo "FAILED: $words ($*)"
        failed=1
    }
}
step 'vectors of tcgen05 on the device, against the statement on the host' "$golden" record "$driver" "$record"
sed -i "1i # $device" "$record"
echo "   the record: $record ($(grep -c . "$record") lines)"
step 'the record in the simulator' "$golden" replay "$build/libattn_sim_cuda.so" "$record"
for name in products attention pair; do
    program=$build/tests/t_sim_blackwell_$name ptx=$build/tests/blackwell_$name.ptx
    if [ -x "$program" ] && [ -f "$ptx" ]; then
        step "blackwell_$name.cu on the device" "$program" "$driver" "$ptx" "$source/tests/sim/blackwell_$name.cu" 0
    else
        echo "== blackwell_$name.cu: not built (ATTN_CUDA=OFF)"
    fi
done
rows=$("$build/attn" list --backend cuda --json 2>/dev/null | sed -nE 's/.*"name": "(attn_[a-z_]*_sm100[a-z]*_[^"]*)".*/\1/p')
if [ -z "$rows" ]; then
    echo '== kernel rows for sm_100: this build has none'
else
    echo "== kernel rows for sm_100: $(wc -l <<<"$rows")"
    case $driver in
    *attn_sim_cuda*) where=(--driver sim --threads 1 --runs 2) sq=70 sk=140 && export ATTNSIM_GPU=b200 ;; # the rows' own problems
    *) where=(--device cuda:0) sq=200 sk=300 ;;                                                           # are check_sim.sh's
    esac
    some_random() { # of random problems a row may refuse all
        "$build/attn" check "$@" --repeat "${REPEAT:-20}" || [ $? -eq 77 ]
    }
    for row in $rows; do
        [[ $row =~ ^attn_(sdpa_[a-z]*|mla_[a-z]*|dist)_.*_(bf16|f16)_d([0-9]+)(_v([0-9]+))? ]] || continue
        op=${BASH_REMATCH[1]} dtype=${BASH_REMATCH[2]} d=${BASH_REMATCH[3]} v=${BASH_REMATCH[5]:-${BASH_REMATCH[3]}}
        group=
        [[ $row != *_joined_* ]] || group=group=2
        softcap=
        [[ $row != *_mod* ]] || softcap=softcap=20
        case $op in
        sdpa_*) problem="$op hq=2 hk=1 sq=$sq sk=$sk d=$d dv=$v $dtype causal bottom_right seqlens_k sink lse_with_sink $softcap align=16" ;;
        mla_fwd) problem="$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length sink $group align=16" ;;
        mla_bwd) problem="$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length sink grad_sink with_dist $group align=16" ;;
        dist) problem="$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length $group align=16" ;;
        esac
        step "$row" "$build/attn" check "${where[@]}" --kernel "$row" --problem "$problem"
        [ "${where[0]}" = --driver ] || step "$row, random problems" some_random "${where[@]}" --kernel "$row"
    done
fi
if [ "$failed" -eq 0 ]; then
    echo 'first contact: all agree; as tests/sim/golden/blackwell_golden_CHIP.txt the record is replayed by every test run'
else
    echo "first contact: something differs; the record is $record"
fi
exit "$failed"
