#!/bin/sh
# SPDX-License-Identifier: MIT
# plan, list and env: what they print, that their JSON parses and has the documented keys, that reasons are given.
# Usage: listings.sh /path/to/attn
attn=${1:?path of attn}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
json() { # FILE: parses, where a parser is at hand
    ! command -v python3 >/dev/null || python3 -m json.tool "$1" >/dev/null || fail "$1 is not JSON"
}
keys() {
    file=$1
    shift
    for key in "$@"; do grep -q "\"$key\":" "$file" || fail "$file lacks $key"; done
}
problem='sdpa_fwd b=2 hq=4 hk=2 sq=33 d=64 f32 causal'

"$attn" plan "$problem" >"$dir/plan" || fail 'plan: exit code'
grep -q "^problem *$problem\$" "$dir/plan" || fail 'plan: problem line'
kernel=$(sed -n 's/^kernel *//p' "$dir/plan")
case $kernel in attn_sdpa_fwd_*_f32_*) ;; *) fail "plan: kernel '$kernel'" ;; esac
"$attn" plan --json --explain "$problem" >"$dir/plan.json" || fail 'plan --json: exit code'
json "$dir/plan.json"
keys "$dir/plan.json" problem device kernel kernel_unaligned backend arch dtype math_dtype accumulator_dtype deterministic \
    bit_stable tuned alignment_bytes workspace_bytes workspace_alignment flops bytes estimate_seconds explain
grep -q "\"kernel\":\"$kernel\"" "$dir/plan.json" || fail 'plan --json: another kernel than plan'
"$attn" plan --explain "$problem" | grep -q "^> $kernel " || fail 'plan --explain: chosen kernel not marked'
"$attn" plan --explain --strict --kernel nothing "$problem" >"$dir/none" 2>/dev/null
[ $? = 3 ] || fail 'plan of nothing: exit code'
grep -q 'attn_sdpa_fwd_' "$dir/none" || fail 'plan --explain of nothing: no reasons'

# A preference moves the choice; a strict one that cannot be met fails.
"$attn" plan --backend ref --strict "$problem" | grep -q '^kernel *attn_sdpa_fwd_ref_f32_' || fail 'plan --backend ref'
"$attn" plan --kernel 'attn_*_ref_*' --strict "$problem" | grep -q '^kernel *attn_sdpa_fwd_ref_f32_' || fail 'plan --kernel'
"$attn" plan --backend cuda --strict "$problem" >/dev/null 2>&1 && fail 'plan --backend cuda --strict on a CPU'
"$attn" plan --measure --save-tuning "$dir/tuning" --json "$problem" >"$dir/measured.json" || fail 'plan --measure'
[ -s "$dir/tuning" ] || fail 'plan --save-tuning wrote nothing'
# What is printed is what was measured, then and when it is read back.
seconds=$(sed -n 's/.*"tuned":true.*"estimate_seconds":\([^,}]*\).*/\1/p' "$dir/measured.json")
awk -F '\t' -v s="$seconds" 'NF >= 5 { d = $2 - s; ok = s > 0 && d < 1e-9 && d > -1e-9 } END { exit !ok }' "$dir/tuning" ||
    fail "plan --measure: $seconds is not what --save-tuning wrote"
ATTN_TUNING=$dir/tuning "$attn" plan "$problem" | grep -q '^chosen by *measurement, .* s measured$' || fail 'plan, tuned'
"$attn" plan "$problem" | grep -q '^chosen by *estimate, .* s expected$' || fail 'plan: estimate'
"$attn" plan --measure --kernel '*_c_f32_any' "$problem" | grep -q 'not measured: no other kernel' || fail 'plan --measure of one'
ATTN_TUNING=$dir/tuning "$attn" plan "$problem" >/dev/null || fail 'plan with a tuning file'

"$attn" list >"$dir/list" || fail 'list: exit code'
"$attn" list --json >"$dir/list.json" || fail 'list --json: exit code'
json "$dir/list.json"
keys "$dir/list.json" name op backend arch dtype math_dtype accumulator_dtype deterministic bit_stable alignment_bytes usable summary
[ "$(grep -c '^attn_' "$dir/list")" = "$(grep -c '"name":' "$dir/list.json")" ] || fail 'list and list --json differ in length'
grep -q "^$kernel " "$dir/list" || fail "list lacks $kernel"
for op in sdpa_fwd sdpa_bwd mla_fwd mla_bwd dist; do
    grep -q "^attn_${op}_ref_" "$dir/list" || fail "list lacks a ref kernel of $op"
    "$attn" list --ops | grep -q "^$op " || fail "list --ops lacks $op"
done
"$attn" list --backend ref | grep '^attn_' | grep -v '_ref_' && fail 'list --backend ref lists others'
"$attn" list --kernel '*_dist_*' | grep '^attn_' | grep -v '^attn_dist_' && fail 'list --kernel lists others'
"$attn" list --problem "$problem" | grep "^$kernel " | grep -q 'accepted$' || fail 'list --problem: the chosen kernel does not accept'
"$attn" list --problem "$problem" --json >"$dir/answers.json" || fail 'list --problem --json'
json "$dir/answers.json"
keys "$dir/answers.json" accepts reason
"$attn" list --problem "$problem" | grep '^attn_.*_f16_' | grep -q 'f16' || fail 'list --problem: no reason for f16 kernels'
"$attn" list --devices | grep -q '^cpu ' || fail 'list --devices lacks the CPU'
"$attn" list --devices --json >"$dir/devices.json" && json "$dir/devices.json"
keys "$dir/devices.json" device name arch memory_bytes features
"$attn" list --markdown >"$dir/markdown" || fail 'list --markdown'
[ "$(sed -n 's/[^|]//g; 1p' "$dir/markdown")" = '||||||' ] || fail 'list --markdown: header'
sed 's/[^|]//g' "$dir/markdown" | sort -u | grep -qv '^||||||$' && fail 'list --markdown: uneven rows'
grep -q '^| `dist` | bf16 | yes |' "$dir/markdown" || fail 'list --markdown: row of dist'
"$attn" list --cpu-isa c | grep '_avx512_' | grep -q ' yes ' && fail 'list --cpu-isa c: AVX-512 kernels usable'

"$attn" env >"$dir/env" || fail 'env: exit code'
ATTN_THREADS=3 "$attn" env --json >"$dir/env.json" || fail 'env --json: exit code'
json "$dir/env.json"
keys "$dir/env.json" name type value help
for name in ATTN_LOG ATTN_KERNEL ATTN_BACKEND ATTN_CPU ATTN_THREADS ATTN_TUNING; do grep -q "^$name " "$dir/env" || fail "env lacks $name"; done
grep -A2 '"ATTN_THREADS"' "$dir/env.json" | grep -q '"value": "3"' || fail 'env does not show the value'
exit $failed
