#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every GPU kernel row of a build in the PTX simulator: fixed small problems of the row's own width, problems that reach what
# those do not (tests/sim/tier/reach.txt), random problems. A problem runs twice, each time under another of the policies eager,
# late and random (which two differs from row to row). A row that accepts none, a wrong number, a finding of the simulator,
# and a kernel of whose PTX instructions too few were executed (tests/sim/tier/reached.tsv; when all rows run) are failures.
# Problems of a row that differ in no variable of the environment share a process, unless one of them fails.
# Seconds of the processor for each process are in the file seconds beside the logs, those for each problem in the file
# problems.   usage: tools/check_sim.sh BUILD
# ALL=1: each problem three times, under all policies; COVERAGE=0: instructions are not noted; KERNEL='*' rows; JOBS processes
# POLICIES='eager late random': all problems three times under one policy, then under the next
# REPEAT=3 random problems per operator and dtype; SEED=1; SEEDS='1 2 3' of the policy random alone, in place of SEED
# FIXED=0: random problems alone; OPS='sdpa_fwd dist': these operators; OUT: folder of the logs
# PER_OP=200: so many random problems per operator, shared over its dtypes, in place of REPEAT
set -u
build=${1:?usage: tools/check_sim.sh BUILD}
here=$(dirname "$0")/..
attn=$build/attn
jobs=${JOBS:-$(nproc)}
kernel=${KERNEL:-*} policies=${POLICIES:-tier} repeat=${REPEAT:-3} seed=${SEED:-1}
seeds=${SEEDS:-$seed} fixed=${FIXED:-1} ops=${OPS:-sdpa_fwd sdpa_bwd mla_fwd mla_bwd dist mla_join} per_op=${PER_OP:-0}
all=${ALL:-0} coverage=${COVERAGE:-1}
[ "$policies" = tier ] || all=1
out=${OUT:-$build/sim}
export ATTNSIM_THREADS=1 NO_COLOR=1
rm -rf "$out"
mkdir -p "$out"
[ "$coverage" = 0 ] || export ATTNSIM_COVERAGE=${ATTNSIM_COVERAGE:-$out/coverage}

# Text of a problem for each operator, behind the environment that it runs in; @W: the row's width, @H: its heads, @G: its group, @A: the
# alignment that it asks for (a strict plan refuses tensors without it, and which have it is the seed's choice).
problems() {
    case $1 in
    sdpa_fwd) cat <<'LIST'
sdpa_fwd b=2 hq=2 hk=1 sq=35 sk=70 d=@W causal @A
sdpa_fwd b=1 hq=4 hk=2 sq=70 sk=133 d=@W causal bottom_right left=50 sink @A
sdpa_fwd b=1 hq=4 hk=1 sq=2 sk=600 d=@W seqlens_k @A
sdpa_fwd b=2 hq=2 sq=20 sk=77 d=@W softcap=20 alibi=linear mask=f32
sdpa_fwd b=3 hq=2 hk=1 sq=40 sk=60 total_q=70 total_k=90 d=@W packed causal @A
sdpa_fwd b=2 hq=2 hk=1 sq=3 sk=60 d=@W paged page_size=16 n_pages=12 max_pages=4 seqlens_k
sdpa_fwd b=3 hq=2 hk=1 sq=40 sk=60 total_q=70 d=@W packed paged page_size=16 n_pages=12 max_pages=4 seqlens_k causal bottom_right
LIST
        ;;
    sdpa_bwd) cat <<'LIST'
sdpa_bwd b=2 hq=2 hk=1 sq=35 sk=70 d=@W causal @A
sdpa_bwd b=1 hq=2 hk=1 sq=70 sk=133 d=@W causal bottom_right left=50 sink grad_sink dlse
sdpa_bwd b=1 hq=2 sq=40 sk=67 d=@W softcap=20 mask=f32 grad_mask alibi=linear grad_alibi
sdpa_bwd b=1 hq=2 sq=64 sk=64 d=@W deterministic @A
sdpa_bwd b=3 hq=2 hk=1 sq=40 sk=60 total_q=70 total_k=90 d=@W packed causal @A
sdpa_bwd b=1 hq=2 hk=1 sq=140 sk=270 d=@W causal bottom_right left=150 sink lse_with_sink dlse @A
LIST
        ;;
    mla_fwd) cat <<'LIST'
mla_fwd hq=@H sq=3 sk=200 d=@W topk=90 causal q_start=190 @A
mla_fwd hq=@H sq=2 sk=150 d=@W topk=130 topk_length sink @A
mla_fwd hq=@H sq=1 sk=900 d=@W topk=500 @A
ATTN_CUDA_L2_LIMIT=65536 mla_fwd hq=@H sq=3 sk=120 d=@W topk=200 causal q_start=110 topk_length sink @A
ATTNSIM_SMS=4 mla_fwd hq=100 sq=5 sk=400 d=@W topk=260 topk_length sink @A
LIST
        ;;
    mla_bwd) cat <<'LIST'
ATTNSIM_SMS=1 ATTN_CUDA_CHUNK_LIMIT=1 mla_bwd hq=@H sq=3 sk=200 d=@W topk=90 causal q_start=190 @A
mla_bwd hq=@H sq=3 sk=150 d=@W topk=66 topk_length deterministic @A
ATTN_CUDA_L2_LIMIT=65536 mla_bwd hq=@H sq=20 sk=2000 d=@W topk=3 deterministic @A
ATTNSIM_SMS=5 ATTN_CUDA_CHUNK_LIMIT=1 mla_bwd hq=@H sq=7 sk=90 d=@W topk=66 topk_length deterministic @A
mla_bwd hq=@H sq=2 sk=90 d=@W topk=64 sink grad_sink dlse @A
mla_bwd hq=7 sq=0 sk=90 d=@W topk=300 dkv=f32 sink grad_sink @A
mla_bwd hq=@H sq=2 sk=90 d=@W topk=64 dkv=f32 accumulate with_dist @A
ATTN_CUDA_L2_LIMIT=65536 mla_bwd hq=@H sq=3 sk=60 d=@W topk=90 topk_length with_dist dist_norm=l1 sink grad_sink @A
ATTNSIM_SMS=4 mla_bwd hq=7 sq=9 sk=200 d=@W topk=200 topk_length sink grad_sink dlse @A
ATTNSIM_SMS=4 mla_bwd hq=100 b=2 sq=4 sk=90 d=@W topk=130 topk_length sink grad_sink dlse @A
ATTN_CUDA_L2_LIMIT=65536 mla_bwd hq=@H b=2 sq=3 sk=70 d=@W topk=66 causal q_start=60 dkv=f32 accumulate dlse @A
LIST
        ;;
    dist) cat <<'LIST'
dist hq=@H sq=3 sk=200 d=@W topk=90 causal q_start=190 @A
dist hq=@H sq=2 sk=150 d=@W topk=130 topk_length dist_norm=l1 @A
ATTNSIM_SMS=4 dist hq=@H sq=5 sk=900 d=@W topk=700 topk_length dist_norm=mean @A
LIST
        ;;
    mla_join) cat <<'LIST'
mla_join b=2 sq=19 sk=300 topk=130 topk_length group=@G
ATTNSIM_SMS=1 mla_join sq=18 sk=2147483648 topk=30 causal q_start=190 group=@G union_limit=300
mla_join sq=9 sk=40 topk=200 causal q_start=30 k_stride=2 topk_length group=@G
LIST
        ;;
    esac
}

seeds_of() { [[ $1 = *random ]] && echo "$seeds" || echo "$seed"; }
op_and_dtype='s/^attn_(sdpa_fwd|sdpa_bwd|mla_fwd|mla_bwd|dist|mla_join)_.*_(bf16|f16|f32|f64|i32|e4m3)_.*/\1 \2/'

# One line a problem, or a process of random ones: policy, turn, seed, log, row, arguments, separated by tabs.
plan() {
    local row op dtype width heads group align policy text n one_seed dtypes number
    for policy in $policies; do
        for one_seed in $(seeds_of "$policy"); do plan_random && plan_fixed; done
    done
}
# Lines of tests/sim/tier/reach.txt for the row, each with the data that a seed of its own gives.
replace() { # in text: @word, and what is added to it, by number + that
    while [[ $text =~ @$1([+-][0-9]+)? ]]; do text=${text/"${BASH_REMATCH[0]}"/$(($2${BASH_REMATCH[1]}))}; done
}
reach() {
    local globs glob d v data text overlap matches=0
    d=$(sed -nE 's/.*_d([0-9]+).*/\1/p' <<<"$row") v=$(sed -nE 's/.*_d[0-9]+_v([0-9]+).*/\1/p' <<<"$row")
    n=0
    while read -r data text; do
        if [[ $data == attn_* ]]; then
            globs="$data $text" matches=0
            for glob in $globs; do
                # shellcheck disable=SC2053
                [[ $row != $glob ]] || matches=1
            done
        fi
        [[ $data == [0-9]* && $matches == 1 ]] || continue
        n=$((n + 1))
        replace D "$d"
        replace V "${v:-$d}"
        replace H "${heads:-64}"
        replace G "$group"
        overlap=
        [[ ! $text =~ overlap=[^[:space:]]+ ]] || overlap=$'\t'--${BASH_REMATCH[0]} text=${text/"${BASH_REMATCH[0]} "/}
        capped
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$policy" $((number + n)) "$data" "$row.reach$n" "$row" \
            "--problem=ATTNSIM_SEED=$one_seed $text $dtype$overlap"
    done <"$here/tests/sim/tier/reach.txt"
}
capped() { # text, which a row that serves softcap alone takes
    [[ $row != attn_sdpa_bwd_*_mod* && $row != attn_sdpa_fwd_sm100_*_mod || $text = *softcap=* ]] || text+=" softcap=20"
}
is_variation() { [[ $row != attn_sdpa_* && ($row = *_sm100_f16_* || $row = *_joined_sm100_*_det) ]]; } # of the variable row
# Of the variables policy and one_seed. Random problems run on several rows a process: first, so that none is left for last.
plan_random() {
    number=0
    [ "$repeat" = 0 ] || while read -r row; do
        n=$(((repeat + 1) / 2)) # they fit the row, all but the last of eight
        ! is_variation || n=1
        number=$((number + 1))
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$policy" $number "$one_seed" "random.$row" "$row" "--repeat=$n"
    done < <(grep _sm100_ "$out/rows")
    [ "$repeat$per_op" = 00 ] || while read -r op dtype; do
        n=$repeat
        dtypes=$(sed -E "$op_and_dtype" "$out/rows" | sort -u | grep -c "^$op ")
        [ "$per_op" = 0 ] || n=$(((per_op + dtypes - 1) / dtypes))
        number=$((number + 1))
        printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$policy" $number "$one_seed" "random.$op.$dtype" "$kernel" "--repeat=$n" \
            "--op=$op" "--dtype=$dtype"
    done < <(grep -v _sm100_ "$out/rows" | sed -E "$op_and_dtype" | sort -u)
}
plan_fixed() {
    number=0
    [ "$fixed" = 0 ] || while read -r row; do
        op=$(sed -E 's/^attn_(sdpa_fwd|sdpa_bwd|mla_fwd|mla_bwd|dist|mla_join)_.*/\1/' <<<"$row")
        dtype=$(sed -E 's/.*_(bf16|f16|f32|f64|i32|e4m3)_.*/\1/' <<<"$row")
        width=$(sed -E 's/.*_d([0-9]+)(_v([0-9]+))?.*/\1 dv=\3/; s/ dv=$//' <<<"$row")
        heads=$(sed -nE 's/.*_h([0-9]+).*/\1/p' <<<"$row")
        group=$(sed -nE 's/.*_g([0-9]+)$/\1/p' <<<"$row")
        align=
        [[ $row != *_joined_* ]] || heads=${heads:-8} align=align=16
        [[ $row = attn_mla_bwd_sm90_* || $row = *_wgmma_sm90_* || $row = *_sm100_* ]] && align=align=16
        n=0
        while read -r text; do
            n=$((n + 1))
            text=${text//@W/$width}
            text=${text//@H/${heads:-64}}
            text=${text//@G/$group}
            text=${text//@A/$align}
            capped
            printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$policy" $((number + n)) "$one_seed" "$row.$n" "$row" "--problem=ATTNSIM_SEED=$one_seed $text $dtype"
        done < <(problems "$op")
        reach
        number=$((number + 1))
    done <"$out/rows"
}

# Of the plan one line a process: policy, log, row, variables, arguments, separated by tabs. Problems follow their options.
gather() {
    awk -F '\t' -v OFS='\t' -v all="$all" '
        BEGIN { split("eager,late late,random random,eager", pair, " ") }
        function put(key, head, argument) {
            if (!(key in text)) {
                order[++n] = key
                text[key] = head
            }
            text[key] = text[key] OFS argument
        }
        {
            policies = $1 != "tier" ? $1 : all ? "eager,late,random" : pair[$2 % 3 + 1]
            options = "--policy=" policies OFS "--seed=" $3
            if ($6 !~ /^--problem=/) {
                for (i = 6; i <= NF; i++) options = options OFS $i
                put("random" NR, $1 OFS $1 "." $3 "." $4 OFS $5 OFS, options)
                next
            }
            problem = substr($6, 11)
            world = ""
            while (match(problem, /^[A-Z0-9_]+=[^ ]* +/)) {
                world = world substr(problem, 1, RLENGTH)
                problem = substr(problem, RLENGTH + 1)
            }
            key = $1 OFS $5 OFS world OFS $7
            sub(/^.*\./, "", $4)
            put(key, $1 OFS $1 "." $5 "." $4 OFS $5 OFS world, "--problem=" problem OFS options ($7 == "" ? "" : OFS $7))
        }
        END { for (i = 1; i <= n; i++) print text[order[i]] }'
}

run_check() { # name, row, arguments; of `world` too
    local rc log=$out/$1 TIMEFORMAT="%U %S $1"
    { time env "${world[@]}" "$attn" check --driver sim --runs $((all + 2)) --kernel "$2" --threads 1 --timeout 600 --json \
        "${@:3}" >"$log.json" 2>"$log.err"; } 2>>"$out/seconds"
    rc=$?
    [ -s "$log.err" ] || rm -f "$log.err"
    return $rc
}
tell_failure() { # policy, name, row, exit code, arguments
    echo "FAIL $1 ${2#"$1".} ($4): ${world[*]} $attn check --driver sim --runs $((all + 2)) --kernel '$3' ${*:5}"
    head -n 12 "$out/$2.err" 2>/dev/null | cut -c1-300
    [ "$4" -lt 2 ] || echo '{"type":"kernel","kernel":"'"$3"'","passed":0,"failed":1}' >>"$out/$2.json"
}
one() { # a line of gather's
    local policy name row variables rest rc i n=0 from=0
    local -a words world
    IFS=$'\x1f' read -r policy name row variables rest <<<"${1//$'\t'/$'\x1f'}"
    IFS=$'\x1f' read -ra words <<<"$rest"
    read -ra world <<<"$variables"
    [[ $row != *_sm100_* ]] || world+=(ATTNSIM_GPU=b200)
    run_check "$name" "$row" "${words[@]}" && return
    rc=$?
    [ $rc -ne 77 ] || return 0
    for i in "${words[@]}"; do [[ $i != --problem=* ]] || n=$((n + 1)); done
    if [ $n -lt 2 ]; then
        tell_failure "$policy" "$name" "$row" $rc "${words[@]}"
        return 0
    fi
    n=0
    for ((i = 1; i <= ${#words[@]}; i++)); do # which of them fail alone
        [[ $i == "${#words[@]}" || ${words[i]} == --problem=* ]] || continue
        n=$((n + 1))
        run_check "$name.$n" "$row" "${words[@]:from:i-from}"
        rc=$?
        [ $rc -eq 0 ] || [ $rc -eq 77 ] || tell_failure "$policy" "$name.$n" "$row" $rc "${words[@]:from:i-from}" >&3
        from=$i
    done 3>"$out/$name.alone"
    if [ -s "$out/$name.alone" ]; then
        cat "$out/$name.alone"
        rm "$out/$name.json" # its problems have logs of their own
    else
        tell_failure "$policy" "$name" "$row" 1 "${words[@]}"
    fi
    rm "$out/$name.alone"
}

# Rows of Blackwell run on its profile, all others on Hopper's.
for gpu in h100 b200; do
    ATTNSIM_GPU=$gpu "$attn" check --driver sim --list --kernel "$kernel" 2>"$out/list.err" | grep -v 'not usable' |
        grep -E "^attn_(${ops// /|})_" | { [ $gpu = h100 ] && cat || grep _sm100_; }
done >"$out/rows"
if [ ! -s "$out/rows" ]; then
    echo "no rows: $(head -n 1 "$out/list.err")"
    echo '0 passed, 1 failed'
    exit 1
fi
export attn out all
export -f one run_check tell_failure
plan | gather | tr '\n' '\0' | xargs -0 -P "$jobs" -I{} bash -c 'one "$1"' _ {}

grep -h '^{"type":"problem"' "$out"/*.json | sed -E 's/.*"seconds":([0-9.]+),"problem":"(.*)"}$/\1 \2/' >"$out/problems"

# Problems that passed and failed, and rows that a policy never ran.
failed=0 passed=0
if [ "$kernel$fixed" = '*1' ] && [ -x "$build/tests/t_sim_merge" ]; then # attn_merge has no row
    if ATTNSIM_PTX=$build/cuda "$build/tests/t_sim_merge" >"$out/merge.log" 2>&1; then
        passed=1
    else
        failed=1
        echo "FAIL $build/tests/t_sim_merge"
        tail -n 12 "$out/merge.log" | cut -c1-300
    fi
fi
for policy in $policies; do
    sums=$(cat "$out/$policy".*.json | sed -nE 's/.*"type":"kernel","kernel":"([^"]*)".*"passed":([0-9]+),"failed":([0-9]+).*/\1 \2 \3/p' |
        awk '{ p[$1] += $2; f[$1] += $3 } END { for (k in p) print k, p[k], f[k] }')
    idle=$(awk 'NR == FNR { if ($2 + $3 > 0) seen[$1] = 1; next } !($1 in seen)' <(echo "$sums") "$out/rows")
    p=$(awk '{ s += $2 } END { print s + 0 }' <<<"$sums")
    f=$(awk '{ s += $3 } END { print s + 0 }' <<<"$sums")
    if [ -n "$idle" ] && grep -qs '^ATTN_CUDA_VARIANTS:[A-Z]*=[^.]' "$build/CMakeCache.txt"; then
        echo "$policy: $(wc -l <<<"$idle") rows accepted no problem: this build has a part of the images"
    elif [ -n "$idle" ] && [ "$fixed" = 0 ]; then
        echo "$policy: $(wc -l <<<"$idle") rows were dealt no problem"
    elif [ -n "$idle" ]; then
        echo "$policy: rows that accepted no problem: $idle"
        f=$((f + $(wc -l <<<"$idle")))
    fi
    echo "$policy: $p passed, $f failed, $(wc -l <"$out/rows") rows"
    [ "$fixed" = 1 ] || awk '{ sub(/^attn_/, "", $1); match($1, /^(sdpa|mla)_[a-z]+|^dist/); op = substr($1, 1, RLENGTH)
            p[op] += $2; f[op] += $3 } END { for (op in p) print "  " op ": " p[op] " passed, " f[op] " failed" }' <<<"$sums"
    passed=$((passed + p)) failed=$((failed + f))
done
if [ "$coverage" != 0 ]; then # of all rows, which is what the floors are for, or of some
    floors=()
    [ "$kernel$fixed$repeat${OPS:-}" != "*13" ] || grep -qs '^ATTN_CUDA_VARIANTS:[A-Z]*=[^.]' "$build/CMakeCache.txt" ||
        floors=(--floors "$here/tests/sim/tier/reached.tsv" --ptx "$build/cuda")
    python3 "$here/tools/sim_coverage.py" "$ATTNSIM_COVERAGE" --unreachable "$here/tests/sim/tier/unreachable.tsv" "${floors[@]}" || failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
