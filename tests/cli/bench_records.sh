#!/bin/sh
# SPDX-License-Identifier: MIT
# `attn bench`: records have exactly the documented keys, lists are read, wrong lists are refused before anything runs.
# Checks no time. Usage: bench_records.sh /path/to/attn [source folder]
attn=$(cd "$(dirname "${1:?path of attn}")" && pwd)/$(basename "$1")
source=${2:-$(cd "$(dirname "$0")/../.." && pwd)}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
quick='--min-time 0 --runs 2 --warm'

cat >"$dir/list.txt" <<'END'
# two problems
sdpa_fwd hq=2 sq=9 d=16 f32   # the first

	sdpa_bwd hq=2 sq=9 d=16 f32 causal
END
printf 'dist hq=2 sq=3 sk=9 topk=4 f32\r' >"$dir/crlf.txt"
"$attn" bench $quick --json --run-id id7 "@$dir/list.txt" "@$dir/crlf.txt" >"$dir/records" || fail 'bench @list: exit code'
[ "$(wc -l <"$dir/records")" = 3 ] || fail 'bench @list: not three records'
for key in run date commit device driver problem impl kernel measure median_us p10_us p90_us n batch clock host_us cache \
    tflops gbps limit_share launches overhead_us note overlap joined; do
    [ "$(grep -c "\"$key\":" "$dir/records")" = 3 ] || fail "a record lacks $key"
done
[ "$(head -n 1 "$dir/records" | grep -o '"[a-z0-9_]*":' | wc -l)" = 25 ] || fail 'a record has other keys'
grep -q '"run":"id7".*"problem":"sdpa_bwd hq=2 sq=9 d=16 f32 causal".*"n":2,.*"limit_share":null' "$dir/records" || fail 'second record'
if command -v python3 >/dev/null; then
    python3 - "$dir/records" <<'END' || fail 'records do not hold together'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    assert r["p10_us"] <= r["median_us"] <= r["p90_us"] and r["median_us"] > 0, r
    assert r["measure"] == "execution" and r["batch"] == 1 and r["clock"] == "host" and r["cache"] == "warm", r
    assert r["tflops"] > 0 and r["gbps"] > 0 and "warm" in r["note"] and "thread" in r["note"], r
END
fi
"$attn" bench $quick --json --backend ref --strict 'sdpa_fwd hq=2 sq=9 d=16 f32' | grep -q '"impl":"ref"' || fail 'impl of a ref kernel'

# Lists that mla_join joins, and a limit that none passes; attention that is handed joined lists and keeps queries apart.
"$attn" bench $quick --json --overlap prefix 'mla_join sq=9 sk=90 topk=20 group=4' |
    grep -q '"joined":{"group":4,"groups":3,"apart":0,"entries_mean":20.0,"entries_most":20}' || fail 'joined groups of mla_join'
"$attn" bench $quick --json --overlap prefix 'mla_join sq=9 sk=90 topk=20 group=4 union_limit=19' |
    grep -q '"joined":{"group":4,"groups":3,"apart":3,"entries_mean":null,"entries_most":0}' || fail 'groups left apart'
"$attn" bench $quick --json 'mla_fwd hq=2 sq=9 sk=90 topk=20 f32 group=4' | grep -q '"joined":null' || fail 'joined lists that are not read'

# Outputs that are left out.
"$attn" bench $quick --json --outputs out 'sdpa_fwd hq=2 sq=9 d=16 f32' | grep -q '"note":".*, outputs out"' || fail '--outputs out'
"$attn" bench $quick --outputs out,lsd 'sdpa_fwd hq=2 sq=9 d=16 f32' 2>&1 | grep -q "no tensor 'lsd'" || fail '--outputs with a wrong name'
"$attn" bench $quick --outputs out 'sdpa_bwd hq=2 sq=9 d=16 f32' 2>&1 | grep -q "'out' is no output of this sdpa_bwd" || fail '--outputs with an input'

# Every kernel that accepts; the same number as list --problem counts.
problem='mla_fwd hq=2 sq=3 sk=9 topk=4 f32'
accepting=$("$attn" list --problem "$problem" | grep -c ' accepted$')
"$attn" bench $quick --json --kernel '*' "$problem" >"$dir/all" 2>/dev/null || fail 'bench --kernel: exit code'
[ "$(wc -l <"$dir/all")" = "$accepting" ] || fail "bench --kernel '*': $(wc -l <"$dir/all") records, $accepting kernels accept"
"$attn" bench $quick --threads 1 "$problem" | grep -q '^  attn_mla_fwd_' || fail 'table of bench'
"$attn" bench --min-time 0 --runs 1 --json "$problem" | grep -q 'cache flushed' || fail 'note of a cold run'

# Hardly any time is timed, and each run has the caches overwritten before: it ends all the same.
timeout 60 "$attn" bench --min-time 0.01 --runs 2 'sdpa_fwd hq=1 sq=0 d=8 f32' >"$dir/out" || fail 'bench of no queries does not end'

# Calls instead of executions.
"$attn" bench --overhead --min-time 0 --runs 2 --json "$problem" >"$dir/calls" || fail 'bench --overhead: exit code'
for call in plan_create plan_check execute_call run_call; do
    [ "$(grep -c "\"measure\":\"$call\".*\"tflops\":null,\"gbps\":null" "$dir/calls")" = 1 ] || fail "no record of $call"
done
[ "$(wc -l <"$dir/calls")" = 4 ] || fail 'bench --overhead: not four records'
"$attn" bench --overhead --min-time 0 --runs 2 "$problem" >"$dir/table" || fail 'bench --overhead: table'
grep -q '^  kernel *median us *p10 us *p90 us *n  call$' "$dir/table" || fail 'bench --overhead: heading'
awk '/ plan_check$/ { found = $2 >= 0.01 && $2 < 1000 } END { exit !found }' "$dir/table" || fail 'bench --overhead: not in us'
"$attn" bench --overhead --warm "$problem" >/dev/null 2>&1
[ $? = 2 ] || fail '--overhead with --warm: exit code'
"$attn" bench --cache rotate "$problem" >/dev/null 2>&1
[ $? = 2 ] || fail '--cache rotate on a CPU: exit code'
"$attn" bench --cache hot "$problem" >/dev/null 2>&1
[ $? = 2 ] || fail '--cache hot: exit code'

echo 'sdpa_fwd hq=2 sq=9 d=16 f32
sdpa_fwd hq=2 sq=9 d=16 f32 nonsense' >"$dir/bad.txt"
"$attn" bench $quick --json "@$dir/bad.txt" >"$dir/out" 2>"$dir/err"
[ $? = 3 ] || fail 'a bad list: exit code'
grep -q 'bad.txt line 2' "$dir/err" || fail 'a bad list: no line number'
[ -s "$dir/out" ] && fail 'a bad list was measured in part'
"$attn" bench @nowhere 2>/dev/null && fail '@nowhere was found'
"$attn" bench $quick --kernel nothing "$problem" >/dev/null 2>"$dir/err" && fail 'no matching kernel: exit code'
grep -q "no kernel matching 'nothing'" "$dir/err" || fail 'no matching kernel: no reason'
"$attn" bench --device cuda:7 "$problem" >/dev/null 2>&1
[ $? = 3 ] || fail 'bench on cuda: exit code'

# Lists that share keys: the records hold what was asked for and what the lists have; a list sets it line by line.
sparse='dist sq=32 sk=4096 hq=1 d=512 topk=64 f32'
"$attn" bench $quick --json --overlap 0.9 "$sparse" >"$dir/out" || fail 'bench --overlap: exit code'
grep -q '"overlap":{"asked":"0.9","j":0.9' "$dir/out" || fail 'bench --overlap: not in the record'
printf '%s\n--overlap prefix # all\n%s\n' "$sparse" "$sparse" >"$dir/shared.txt"
"$attn" bench $quick --json "@$dir/shared.txt" >"$dir/out" || fail 'a list with --overlap: exit code'
grep -c '"overlap":null' "$dir/out" | grep -qx 1 || fail 'a list with --overlap: the line before it'
grep -q '"overlap":{"asked":"prefix","j":1.0,"union_length":\[64.0,64.0,64.0,64.0\]}' "$dir/out" ||
    fail 'a list with --overlap: the line after it'
"$attn" bench $quick --overlap 0.9 'sdpa_fwd hq=2 sq=9 d=16 f32' >/dev/null 2>"$dir/err" && fail 'dense with --overlap: exit code'
grep -q 'for problems with index lists' "$dir/err" || fail 'dense with --overlap: no reason'
printf -- '--overlap 1.5\n' >"$dir/bad.txt"
"$attn" bench $quick "@$dir/bad.txt" 2>"$dir/err"
grep -q 'bad.txt line 1: --overlap wants' "$dir/err" || fail 'a bad overlap in a list: no reason'

# Drawn lengths: within their bounds, the FLOPs are theirs; sums that have no room and problems without lengths are refused.
packed='sdpa_fwd b=4 hq=2 sq=200 d=16 f32 causal packed total_q=600 total_k=600'
"$attn" bench $quick --json --lengths 16 "$packed" >"$dir/out" || fail 'bench --lengths: exit code'
rows=$(sed -nE 's/.*counted by lengths: ([0-9]+) queries, ([0-9]+) keys.*/\1 \2/p' "$dir/out")
case $rows in
"${rows% *} ${rows% *}") [ "${rows% *}" -ge 64 ] && [ "${rows% *}" -le 600 ] || fail "bench --lengths: $rows" ;;
*) fail "bench --lengths: queries and keys of self-attention differ: $rows" ;;
esac
"$attn" bench $quick --json --lengths 200 "$(echo "$packed" | sed 's/600/800/g')" >"$dir/out" || fail 'bench --lengths at the bound: exit code'
"$attn" bench $quick --json 'sdpa_fwd b=4 hq=2 sq=200 d=16 f32 causal' >>"$dir/out"
[ "$(sed -nE 's/.*"tflops":([^,]*),.*"median_us".*//; s/.*"median_us":([^,]*),.*"tflops":([^,]*),.*/\1 \2/p' "$dir/out" |
    awk '{print sprintf("%.4g", $1 * $2)}' | sort -u | wc -l)" = 1 ] || fail 'bench --lengths: other FLOPs than four such sequences'
"$attn" bench $quick --lengths 200 "$packed" >/dev/null 2>"$dir/err" && fail 'lengths without room: exit code'
grep -q 'draws 800 queries and 800 keys' "$dir/err" || fail 'lengths without room: no reason'
"$attn" bench $quick --lengths 16 'sdpa_fwd hq=2 sq=9 d=16 f32' >/dev/null 2>"$dir/err" && fail 'no lengths: exit code'
grep -q 'is for packed sequences, seqlens_q and seqlens_k' "$dir/err" || fail 'no lengths: no reason'
printf -- '--lengths 99\n%s\n' 'sdpa_fwd hq=2 sq=9 d=16 f32' >"$dir/bad.txt"
"$attn" bench $quick "@$dir/bad.txt" 2>"$dir/err"
grep -q 'is for packed sequences' "$dir/err" || fail 'lengths in a list: no reason'

# The shipped lists parse and each problem has a kernel.
for list in dense backward features f32 f64 dsa shared decode small calls blackwell cpu cpu_short; do
    file=$source/bench/cases/$list.txt
    [ -s "$file" ] || { fail "no $file"; continue; }
    sed 's/#.*//; /^--overlap /d; /^--lengths /d' "$file" | grep '[^[:space:]]' | while read -r text; do
        "$attn" plan "$text" >/dev/null || echo "$list: $text"
    done >"$dir/refused"
    [ -s "$dir/refused" ] && { fail "problems without a plan:"; cat "$dir/refused"; }
done
exit $failed
