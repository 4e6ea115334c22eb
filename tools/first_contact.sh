#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The day a Blackwell chip is at hand: runs there what the simulator runs of sm_100, compares, measures, and writes one report.
#   vectors    every vector of tcgen05 (tests/sim/golden/blackwell_golden*.c): the device's answers go to a record, in the form of
#              tests/sim/golden/hopper_golden_h100.txt, are compared with the statement on the host and replayed in the simulator
#   kernels    the simulator's test kernels of sm_100 with their right numbers
#   rows       every kernel row of the library for sm_100 through `attn check --device cuda:0`
#   sanitize   one problem a row under memcheck, racecheck, synccheck and initcheck of compute-sanitizer
#   bench      bench/cases/blackwell.txt beside predictions, published speed and peers that load (bench/blackwell.py)
# Exit status: 0 all agree, 1 something differs, 77 no such device (said in words).   usage: tools/first_contact.sh BUILD
# FIRST_CONTACT_OUT=BUILD/first_contact where report.md, the record, logs and measurements go
# FIRST_CONTACT_DRIVER=libcuda.so.1 the driver; with the simulator's library this is a rehearsal.
# PARTS='vectors kernels rows sanitize bench'   ROWS='*' rows by name   REPEAT=20 random problems a row
# LIMIT=300 seconds of a step, then it counts as hanging   SANITIZER= the program, if not in PATH or /usr/local/cuda
# TOOLS='memcheck racecheck synccheck initcheck'   FLASH_MLA= shared object with torch.ops.flash_mla_legacy, for bench
set -u
build=${1:?usage: tools/first_contact.sh BUILD}
driver=${FIRST_CONTACT_DRIVER:-libcuda.so.1}
parts=" ${PARTS:-vectors kernels rows sanitize bench} "
limit=${LIMIT:-300}
source=$(cd "$(dirname "$0")/.." && pwd)
golden=$build/tests/blackwell_golden
out=${FIRST_CONTACT_OUT:-$build/first_contact}
failed=0 number=0
if [ ! -x "$golden" ]; then
    echo "$golden is missing: build first, without ATTN_SANITIZE" >&2
    exit 2
fi
device=$("$golden" probe "$driver") || {
    status=$?
    echo "$device"
    exit $status
}
case $driver in
*attn_sim_cuda*) rehearsal=1 where=(--driver sim --threads 1 --runs 2) sq=70 sk=140 && export ATTNSIM_GPU=b200 ;; # the rows' own
*) rehearsal= where=(--device cuda:0) sq=200 sk=300 ;;                                                            # problems are check_sim.sh's
esac
sanitizer=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
mkdir -p "$out" && rm -rf "$out/log" "$out/failed.md" && mkdir "$out/log" || exit 2
record=$out/blackwell_golden.txt report=$out/report.md

wants() { [[ $parts == *" $1 "* ]]; }
tell() { printf '%s\n' "$@" >>"$report"; }
{ # the head; line 3 is written again at the end
    printf '# First contact with Blackwell\n\nOutcome: not finished\n\n'
    [ -z "$rehearsal" ] || printf 'A rehearsal in the simulator: nothing here was measured on a device.\n\n'
    printf '| | |\n|---|---|\n| date | %s |\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    printf '| device | %s |\n' "$device"
    [ -n "$rehearsal" ] || nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null |
        sed 's/^/| nvidia-smi: name, driver, most clock, power | /; s/$/ |/'
    printf '| attn | %s |\n' "$("$build/attn" --version | head -n 1)"
    printf '| kernels | %s |\n' "$(head -n 1 "$build/cuda/nvcc.txt" 2>/dev/null || echo 'none built')"
    printf '| compute-sanitizer | %s |\n' "$([ -z "$sanitizer" ] && echo 'not found' || "$sanitizer" --version 2>/dev/null | grep -i version | tail -n 1)"
    printf '| parts asked for |%s|\n' "$parts"
} >"$report"
echo "$device"

step() { # words, command; a row of the table, its log, and at the end of the report what failed.   accept=77: a status that is no fault
    local words=$1 start=$SECONDS rc outcome log
    shift
    number=$((number + 1)) log=$out/log/$number.log
    echo "== $words"
    timeout "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    case $rc in
    0) outcome=passed ;;
    "${accept:-0}") outcome='nothing to do' ;;
    124 | 137) outcome="**no end after $limit s**" ;;
    *) outcome="**failed, status $rc**" ;;
    esac
    cat "$log"
    tell "| $words | $outcome | $((SECONDS - start)) |"
    [[ $outcome == \** ]] || return 0
    failed=1
    echo "FAILED: $words ($*)"
    printf '\n%s: %s, log/%s.log\n\n    %s\n\n' "$words" "$outcome" "$number" "$*" >>"$out/failed.md"
    grep -E '^(FAIL|ERROR|attnsim|=+ (Error|Invalid|Race|ERROR))|CUDA_ERROR|failed' "$log" | head -n 6 | cut -c 1-200 | sed 's/^/    /' >>"$out/failed.md"
}
table() { tell '' "## $1" '' '| step | outcome | seconds |' '|---|---|---|'; }

table 'Vectors and kernels of the simulator'
if wants vectors; then
    step 'vectors of tcgen05 on the device, against the statement on the host' "$golden" record "$driver" "$record"
    sed -i "1i # $device" "$record"
    echo "   the record: $record ($(grep -c . "$record") lines)"
    step 'the record in the simulator' "$golden" replay "$build/libattn_sim_cuda.so" "$record"
fi
for name in products attention pair; do
    wants kernels || continue
    program=$build/tests/t_sim_blackwell_$name ptx=$build/tests/blackwell_$name.ptx
    if [ -x "$program" ] && [ -f "$ptx" ]; then
        step "blackwell_$name.cu on the device" "$program" "$driver" "$ptx" "$source/tests/sim/blackwell_$name.cu" 0
    else
        tell "| blackwell_$name.cu | not built (ATTN_CUDA=OFF) | |"
    fi
done

problem_of() { # a row: its problem, or nothing
    [[ $1 =~ ^attn_(sdpa_[a-z]*|mla_[a-z]*|dist)_.*_(bf16|f16)_d([0-9]+)(_v([0-9]+))? ]] || return
    local op=${BASH_REMATCH[1]} dtype=${BASH_REMATCH[2]} d=${BASH_REMATCH[3]} v=${BASH_REMATCH[5]:-${BASH_REMATCH[3]}} group= softcap=
    [[ $1 != *_joined_* ]] || group=group=2
    [[ $1 != *_mod* ]] || softcap=softcap=20
    case $op in
    sdpa_*) echo "$op hq=2 hk=1 sq=$sq sk=$sk d=$d dv=$v $dtype causal bottom_right seqlens_k sink lse_with_sink $softcap align=16" ;;
    mla_fwd) echo "$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length sink $group align=16" ;;
    mla_bwd) echo "$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length sink grad_sink with_dist $group align=16" ;;
    dist) echo "$op hq=40 sq=5 sk=$sk d=$d topk=200 $dtype causal q_start=100 topk_length $group align=16" ;;
    esac
}
rows=()
while read -r row; do
    # shellcheck disable=SC2053 # a pattern
    [[ $row != ${ROWS:-*} ]] || rows+=("$row")
done < <("$build/attn" list --backend cuda --json 2>/dev/null | sed -nE 's/.*"name": "(attn_[a-z_]*_sm100[a-z]*_[^"]*)".*/\1/p')
table "Kernel rows: ${#rows[@]}"
[ "${#rows[@]}" -gt 0 ] || tell '| none: this build has no kernel for sm_100, or ROWS names none | | |'
for row in "${rows[@]}"; do
    wants rows || continue
    problem=$(problem_of "$row")
    [ -n "$problem" ] || continue
    step "$row" "$build/attn" check "${where[@]}" --kernel "$row" --problem "$problem"
    # of random problems a row may refuse all
    [ -n "$rehearsal" ] || accept=77 step "$row, random problems" "$build/attn" check "${where[@]}" --kernel "$row" --repeat "${REPEAT:-20}"
done

table 'compute-sanitizer, one problem a row'
if ! wants sanitize; then
    tell '| not asked for | | |'
elif [ -z "$sanitizer" ]; then
    tell '| skipped: no compute-sanitizer in PATH or /usr/local/cuda/bin (SANITIZER=path) | | |'
elif [ -n "$rehearsal" ] && [ -z "${SANITIZER:-}" ]; then
    tell '| skipped: it sees devices, not the simulator (SANITIZER=path rehearses this part) | | |'
else
    for row in "${rows[@]}"; do
        problem=$(problem_of "$row")
        for tool in ${TOOLS:-memcheck racecheck synccheck initcheck}; do # 42: it saw something
            [ -z "$problem" ] || step "$tool $row" "$sanitizer" --tool "$tool" --error-exitcode 42 --print-limit 20 \
                "$build/attn" check "${where[@]}" --kernel "$row" --problem "$problem"
        done
    done
fi

tell '' '## Speed' ''
if wants bench; then
    echo '== speed'
    "$source/bench/blackwell.py" --attn "$build/attn" --out "$out" --rows "${ROWS:-*}" ${rehearsal:+--rehearse} \
        ${FLASH_MLA:+--flash-mla "$FLASH_MLA"} >"$out/speed.md" 2>"$out/log/bench.log" || {
        failed=1
        printf '\nSpeed: a row could not be measured, log/bench.log\n\n' >>"$out/failed.md"
    }
    cat "$out/speed.md"
    cat "$out/speed.md" >>"$report"
else
    tell 'Not asked for.'
fi

tell '' '## What failed' ''
cat "$out/failed.md" >>"$report" 2>/dev/null || tell 'Nothing.'
tell '' '## If a step had no end' '' "docs/sim.md (\"What to look at first\") says more. Of a row: the command above with --timeout 60 ends it; the same
problem with --driver sim --trace-barriers FILE, ATTNSIM_GPU=b200, tells which phases each role passes."
if [ "$failed" -eq 0 ]; then
    words='all agree; as tests/sim/golden/blackwell_golden_CHIP.txt the record is replayed by every test run'
else
    words="something differs; the record is $record"
fi
sed -i "3s|.*|Outcome: ${words%%;*}|" "$report"
echo "first contact: $words; the report is $report"
exit "$failed"
