#!/bin/sh
# SPDX-License-Identifier: MIT
# `attn dist`: extents read off the tensors, every dtype, one head of several, what is refused.
# Usage: dist_pictures.sh /path/to/attn SOURCE_FOLDER
attn=${1:?path of attn}
data=${2:?source folder}/examples/alice_minilm.safetensors
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# 12 heads of 71 tokens, 32 wide, f32: nothing of that is in the problem's text.
"$attn" dist sdpa_fwd --in "$data" --prefix layer3. --head 5 --out "$dir/read.npy" --png "$dir/read.png" || fail 'extents of tensors'
"$attn" dist 'sdpa_fwd hq=12 sq=71 d=32 f32' --in "$data" --prefix layer3. --head 5 --out "$dir/said.npy" || fail 'extents of the text'
cmp "$dir/read.npy" "$dir/said.npy" || fail 'extents of tensors give other numbers'
head -c 8 "$dir/read.png" | grep -q PNG || fail 'no picture'
for dtype in f16 bf16 f64; do
    "$attn" dist "sdpa_fwd $dtype" --in "$data" --prefix layer3. --head 5 --out "$dir/$dtype.npy" || fail "dense $dtype"
    [ "$(wc -c <"$dir/$dtype.npy")" = "$(wc -c <"$dir/read.npy")" ] || fail "dense $dtype: another size"
done
# The rounding of f32 inputs to f64 is none; that to bf16 shows.
cmp -s "$dir/f64.npy" "$dir/read.npy" || fail 'f64 of f32 tensors differs'
cmp -s "$dir/bf16.npy" "$dir/read.npy" && fail 'bf16 inputs were not rounded'
"$attn" dist 'sdpa_fwd d=33' --in "$data" --prefix layer3. --out "$dir/x.npy" 2>"$dir/err" && fail 'd=33 of 32'
grep -q "attn dist: 'layer3.q' has" "$dir/err" || fail "no reason: $(cat "$dir/err")"
"$attn" dist sdpa_fwd --in "$data" --prefix layer9. --out "$dir/x.npy" 2>"$dir/err" && fail 'no layer 9'
grep -q '^attn dist: ' "$dir/err" || fail "no reason: $(cat "$dir/err")"
for dtype in f32 f16 bf16; do
    "$attn" dist "dist sq=5 sk=40 hq=4 topk=8 $dtype" --png "$dir/sparse.png" --out "$dir/sparse.npy" || fail "sparse $dtype"
done
"$attn" dist 'sdpa_fwd hq=1 sq=1 sk=9 d=8 bf16' --png /nonexistent/a.png 2>"$dir/err"
[ $? = 3 ] || fail 'a folder that is not there: exit code'
grep -q '/nonexistent/a.png: No such file or directory' "$dir/err" || fail 'a folder that is not there: reason'
exit $failed
