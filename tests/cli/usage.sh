#!/bin/sh
# SPDX-License-Identifier: MIT
# Exit codes and messages of wrong command lines, help of every command, no colours off a terminal.
# Usage: usage.sh /path/to/attn
attn=${1:?path of attn}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# expect CODE TEXT ARGUMENTS...: exit code, and TEXT somewhere on stderr
expect() {
    code=$1 text=$2
    shift 2
    "$attn" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    [ "$got" = "$code" ] || fail "attn $*: exit $got, expected $code"
    grep -qF -- "$text" "$dir/err" || { fail "attn $*: stderr lacks '$text'"; cat "$dir/err"; }
}

expect 2 'Usage: attn'
expect 2 "attn: no command 'nonsense'" nonsense
expect 2 "attn: no command 'lis', did you mean 'list'?" lis
expect 2 "attn: no command 'bnech', did you mean 'bench'?" bnech
expect 2 "attn help: no command 'pla', did you mean 'plan'?" help pla
"$attn" nonsense 2>&1 | grep -q 'did you mean' && fail 'a hint for a word that is near no command'
expect 2 "attn: unknown option '--nonsense'" --nonsense
for c in run plan list bench env version; do
    expect 2 "attn $c: unknown option '--nonsense'" "$c" --nonsense
    expect 2 "Try 'attn $c --help'." "$c" -Z
done
expect 2 'attn run: a problem is missing' run
expect 2 'attn plan: a problem is missing' plan
expect 2 'attn bench: a problem or @FILE is missing' bench
expect 2 "attn list: unexpected argument 'x'" list x
expect 2 "attn env: unexpected argument 'x'" env x
expect 2 "unexpected argument 'hq=1' (put the problem in quotes)" run sdpa_fwd hq=1
expect 2 '--seed needs a value' run --seed
expect 2 "--seed: expected a number, given 'x'" run --seed x
expect 2 "option '--json=1' takes no value" run --json=1
expect 2 '--threads: expected a number' plan --threads 0 'dist hq=1 sq=1 sk=1 topk=1 f32'
for c in run plan; do # one limit, the context's
    expect 2 'threads is 4096; expected 0 to 1024' $c --threads 4096 'sdpa_fwd hq=1 sq=1 d=8 f32'
done
expect 2 '--device: expected cpu or cuda:N' plan --device tpu 'dist hq=1 sq=1 sk=1 topk=1 f32'
expect 2 '--device: expected cpu or cuda:N' plan --device cuda:-1 'dist hq=1 sq=1 sk=1 topk=1 f32'
expect 2 '--backend: expected ref, cpu or cuda' plan --backend gpu 'dist hq=1 sq=1 sk=1 topk=1 f32'
expect 2 "--op: expected sdpa_fwd, sdpa_bwd, mla_fwd, mla_bwd, dist or mla_join, given 'sdpa'" check --op sdpa
expect 2 "--repeat: expected 1 to 1000000000, given '0'" check --repeat 0
expect 2 "--policy: expected eager, late or random, or a list, given 'soon'" check --policy soon
expect 2 "--runs: expected 2 or 3, given '1'" check --runs 1
expect 2 "--policy: expected eager, late or random, or a list, given 'eager,late:2'" check --policy eager,late:2
expect 2 "--policy: expected eager, late or random, or a list, given 'random:1,'" check --policy random:1,
expect 2 'ATTN_E_ENUM' plan --cpu-isa mmx 'dist hq=1 sq=1 sk=1 topk=1 f32'
expect 2 'ATTN_E_TEXT' plan 'sdpa_fwd hq=1 sq=1 d=8 f32 causl'
expect 2 'ATTN_E_TEXT' plan ''
expect 3 'ATTN_E_HEADS' plan 'sdpa_fwd hq=3 hk=2 sq=1 d=8 f32'
expect 3 'ATTN_E_FEATURE' plan 'mla_fwd hq=1 sq=1 sk=1 topk=1 f32 softcap=3'
expect 3 'ATTN_E_NO_KERNEL' plan --strict --kernel nothing 'sdpa_fwd hq=1 sq=1 d=8 f32'
expect 3 'ATTN_E_NO_DEVICE' plan --device cuda:99 'sdpa_fwd hq=1 sq=1 d=8 f32'
expect 2 'exclude each other' list --ops --devices
expect 2 '--markdown and --json' list --markdown --json
expect 2 '--save-tuning needs --measure' plan --save-tuning x 'sdpa_fwd hq=1 sq=1 d=8 f32'

# --properties=PATTERN: those of the name, and nothing to run where there is none.
"$attn" check --backend cpu --properties='no such property' >"$dir/out" 2>&1
[ $? = 77 ] || fail "check --properties='no such property': expected 77, nothing to run"

# What the environment says: bad values are refused, unknown names and what cannot be met are warned of.
problem='sdpa_fwd hq=1 sq=4 d=8 f32'
export ATTN_THREAD=1
expect 0 'attn plan: warning: ATTN_THREAD is set, but no variable of libattn has this name, did you mean ATTN_THREADS?' plan "$problem"
ATTN_LOG=off "$attn" plan "$problem" >/dev/null 2>"$dir/err" || fail 'ATTN_LOG=off: exit code'
[ -s "$dir/err" ] && fail 'ATTN_LOG=off: warned'
unset ATTN_THREAD
expect 0 "attn plan: warning: preferred kernel 'nothing' cannot be met" plan --explain --kernel nothing "$problem"
[ "$(grep -c 'cannot be met' "$dir/err")" = 1 ] || fail 'a warning twice'
expect 0 "attn plan: warning: preferred kernel 'nothing' cannot be met" plan --measure --kernel nothing "$problem"
expect 0 'bottom_right aligns it with the last key' run 'sdpa_fwd hq=1 sq=1 sk=9 d=8 f32 causal'
for bad in ATTN_LOG=nonsense ATTN_LOG=info,pla ATTN_CHECK=yep ATTN_THREADS=two ATTN_THREADS=2000 ATTN_FAIL_ALLOC=x; do
    export "${bad?}"
    for c in plan run bench; do expect 3 "${bad%%=*}" $c "$problem"; done
    unset "${bad%%=*}"
done

# Help goes to stdout, exits 0 and names the command; `help CMD` is the same text.
"$attn" --help >"$dir/help" 2>"$dir/err" || fail 'attn --help: exit code'
[ -s "$dir/err" ] && fail 'attn --help writes stderr'
for c in $(sed -n 's/^  \([a-z]*\)  .*/\1/p' "$dir/help"); do
    grep -q "^  $c " "$dir/help" || fail "attn --help lacks $c"
    "$attn" "$c" --help >"$dir/one" 2>"$dir/err" || fail "attn $c --help: exit code"
    grep -qi 'usage: attn' "$dir/one" || fail "attn $c --help: no usage line on stdout"
    "$attn" help "$c" >"$dir/two" 2>/dev/null || fail "attn help $c: exit code"
    cmp -s "$dir/one" "$dir/two" || fail "attn help $c differs from attn $c --help"
done
for c in run plan list check bench dist demo env version help; do
    grep -q "^  $c " "$dir/help" || fail "attn --help lacks $c"
done
expect 2 "attn help: no command 'nonsense'" help nonsense
"$attn" --version | grep -q '^libattn [0-9]*\.[0-9]*\.[0-9]*$' || fail 'attn --version'

# No escape sequences in files.
esc=$(printf '\033')
for c in --help list env; do
    "$attn" $c 2>&1 | grep -q "$esc" && fail "attn $c: escape sequences in a pipe"
done

# Output that cannot be written is an error, not silence.
if [ -w /dev/full ]; then
    "$attn" list >/dev/full 2>"$dir/err"
    [ $? = 3 ] || fail 'attn list on a full device: exit code'
    grep -q 'standard output' "$dir/err" || fail 'attn list on a full device: no message'
fi
exit $failed
