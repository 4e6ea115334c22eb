#!/bin/sh
# SPDX-License-Identifier: MIT
# `attn run` on tensors small enough to know the answer by heart, through every kind of file and layout.
# Usage: run_known.sh /path/to/attn
attn=$(cd "$(dirname "${1:?path of attn}")" && pwd)/$(basename "$1")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
run() { "$attn" run "$@" 2>err || { fail "attn run $*: exit $?"; cat err; }; }
# npy FILE DTYPE SHAPE OCTAL...: a version 1 file; the header is cut to 70 characters so that its length byte is fixed
npy() {
    file=$1 dtype=$2 shape=$3
    shift 3
    { printf '\223NUMPY\001\000\106\000%-69.69s\n' "{'descr': '$dtype', 'fortran_order': False, 'shape': $shape}"
      printf "$(printf '%s' "$@")"; } >"$file"
}
# numbers FILE N: the last N f32 values of a file
numbers() { tail -c $((4 * $2)) "$1" | od -An -tf4 -v | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
same() { [ "$2" = "$3" ] || fail "$1: '$2', expected '$3'"; }

zero='\000\000\000\000' one='\000\000\200\077' three='\000\000\100\100' five='\000\000\240\100' nan='\000\000\300\177'

# Equal scores: out is the mean of the visible values, lse the log of their number.
npy q.npy '<f4' '(1, 1, 3, 1)' "$zero" "$zero" "$zero"
npy v.npy '<f4' '(1, 1, 3, 1)' "$one" "$three" "$five"
run sdpa_fwd --q q.npy --k q.npy --v v.npy --out-dir full >table
same 'full' "$(numbers full/out.npy 3)" '3 3 3'
same 'full lse' "$(numbers full/lse.npy 3)" '1.0986123 1.0986123 1.0986123'
run 'sdpa_fwd causal' --q q.npy --k q.npy --v v.npy --out-dir causal
same 'causal' "$(numbers causal/out.npy 3)" '1 2 3'
same 'causal lse' "$(numbers causal/lse.npy 3)" '0 0.6931472 1.0986123'
[ -s table ] && fail 'a table beside --out-dir'
run 'sdpa_fwd causal' --q q.npy --k q.npy --v v.npy | grep -q '^out .*f32 .*\[1,1,3,1\] .* 1 .* 3 .* 2 ' || fail 'table of outputs'
grep -q '^attn_sdpa_fwd_.*GFLOP/s' err || fail 'no kernel and speed on stderr'

# A boolean mask of two axes is broadcast; it hides everything from the last query.
npy mask.npy '|b1' '(3, 3)' '\001\000\000' '\001\000\001' '\000\000\000'
run sdpa_fwd --q q.npy --k q.npy --v v.npy --mask mask.npy --out-dir mask
same 'mask' "$(numbers mask/out.npy 3)" '1 3 0'
same 'mask lse' "$(numbers mask/lse.npy 3)" '0 0.6931472 -inf'

# Lengths as 64-bit integers; a NaN past the length must not leak.
npy vnan.npy '<f4' '(1, 1, 3, 1)' "$one" "$three" "$nan"
npy len.npy '<i8' '(1,)' '\002\000\000\000\000\000\000\000'
run sdpa_fwd --q q.npy --k q.npy --v vnan.npy --seqlens-k len.npy --out-dir len
same 'seqlens_k' "$(numbers len/out.npy 3)" '2 2 2'
npy len.npy '<i8' '(1,)' '\000\000\000\000\001\000\000\000'
"$attn" run sdpa_fwd --q q.npy --k q.npy --v v.npy --seqlens-k len.npy 2>err && fail 'a length of 2^32 was accepted'
grep -q 'seqlens_k: element 0 does not fit' err || fail 'no reason for a length of 2^32'

# [batch, seq, heads, dim] against [batch, heads, seq, dim]: two heads, two keys.
npy q2.npy '<f4' '(1, 2, 2, 1)' "$zero" "$zero" "$zero" "$zero"
npy v2.npy '<f4' '(1, 2, 2, 1)' "$one" "$three" "$three" "$five"
run 'sdpa_fwd causal' --q q2.npy --k q2.npy --v v2.npy --out-dir bhsd
run 'sdpa_fwd causal' --bshd --q q2.npy --k q2.npy --v v2.npy --out-dir bshd
same 'bhsd' "$(numbers bhsd/out.npy 4)" '1 2 3 4'
same 'bshd' "$(numbers bshd/out.npy 4)" '1 3 2 4'

# safetensors out, safetensors in, pipes; a backward without out and lse equals one with them.
run 'sdpa_fwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 3 --out fwd.safetensors
run 'sdpa_bwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 3 --out one.safetensors
run 'sdpa_bwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 3 --in fwd.safetensors --out two.safetensors
cmp one.safetensors two.safetensors || fail 'backward on given out and lse differs'
"$attn" run 'sdpa_bwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 3 --in - --out - <fwd.safetensors >three.safetensors 2>err ||
    fail 'pipes'
cmp one.safetensors three.safetensors || fail 'backward through pipes differs'
run 'sdpa_bwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 4 --out other.safetensors
cmp -s one.safetensors other.safetensors && fail 'another seed gives the same gradients'
run 'sdpa_bwd hq=2 hk=1 sq=5 sk=7 d=8 dv=16 f32' --seed 3 --outputs dq --out dq.safetensors
[ "$(wc -c <dq.safetensors)" -lt "$(wc -c <one.safetensors)" ] || fail '--outputs dq writes all'
grep -q '"dk"' dq.safetensors && fail '--outputs dq writes dk'

# Sparse: three equal scores, a slot outside the table and a repeated one. Values are the first 512 columns of kv.
run 'mla_fwd hq=2 sq=2 sk=3 topk=4 f32' --json >json
grep -q '"name":"max_logits","dtype":"f32","shape":\[1,2,2\]' json || fail 'JSON of mla_fwd'
for key in problem device kernel backend arch workspace_bytes seconds flops bytes gflops gbps outputs; do
    grep -q "\"$key\":" json || fail "JSON of run lacks $key"
done
{ printf '\223NUMPY\001\000\106\000%-69.69s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 576)}"
  head -c 2304 /dev/zero; } >qm.npy
{ printf '\223NUMPY\001\000\106\000%-69.69s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 576)}"
  printf "$one%.0s" $(awk 'BEGIN{for(i=0;i<576;i++)print i}')
  printf "$five%.0s" $(awk 'BEGIN{for(i=0;i<576;i++)print i}'); } >kv.npy
npy ind.npy '<i4' '(1, 4)' '\000\000\000\000' '\377\377\377\377' '\001\000\000\000' '\000\000\000\000'
run mla_fwd --q qm.npy --kv kv.npy --indices ind.npy --out-dir mla
same 'mla lse' "$(numbers mla/lse.npy 1)" '1.0986123'
same 'mla max_logits' "$(numbers mla/max_logits.npy 1)" '0'
case $(numbers mla/out.npy 1) in 2.333333[0-9]*) ;; *) fail "mla out $(numbers mla/out.npy 1)" ;; esac
exit $failed
