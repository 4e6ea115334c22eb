#!/bin/sh
# SPDX-License-Identifier: MIT
# `attn bench` with the simulator as driver: records hold counts and no times, and products of shipped kernels are what
# the formula of their work says, with keys padded to blocks of 64. Usage: kernel_counts.sh ATTN DRIVER TOOL
attn=${1:?path of attn} driver=${2:?path of the driver} tool=${3:?path of counts_between.py}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
count() { # KERNEL PROBLEM
    ATTN_CUDA_IMAGE=ptx ATTNSIM_GPU=h100 "$attn" bench --driver "$driver" --json --kernel "$1" "$2" >"$dir/$1" || fail "$1: exit code"
}
sum() { sed -n "s/.*\"sum\":.*\"$2\":\([0-9]*\)[,}].*/\1/p" "$dir/$1"; }

"$attn" list | grep -q '^attn_mla_bwd_sm90_f16_d576_h64_even ' || exit 77
queries=3 heads=64 keys=200 blocks=4
# S and O; S, dP, dV, dK, dQ
fwd=$((queries * heads * 64 * blocks * 2 * (576 + 512)))
bwd=$((queries * heads * 64 * blocks * 2 * (3 * 576 + 2 * 512)))
problem="hq=$heads sq=$queries sk=300 d=576 topk=$keys"
count attn_mla_fwd_sm90_bf16_d576 "mla_fwd $problem bf16"
count attn_mla_bwd_sm90_f16_d576_h64_even "mla_bwd $problem f16"
got=$(sum attn_mla_fwd_sm90_bf16_d576 flops)
[ "$got" = "$fwd" ] || fail "mla_fwd: $got FLOP, not $fwd"
got=$(sum attn_mla_bwd_sm90_f16_d576_h64_even flops)
[ "$got" = "$bwd" ] || fail "mla_bwd: $got FLOP, not $bwd"
# each (query, key, column) is added once, in f32: keys that exist, not the block's
got=$(sum attn_mla_bwd_sm90_f16_d576_h64_even reduced)
[ "$got" = "$((queries * keys * 576 * 4))" ] || fail "mla_bwd: $got bytes added"

for word in '"measure":"counted"' '"median_us":null' '"note":"counted, not timed"' '"counted":{"launches":\[{"kernel":' \
    '"roles":\[{"role":"warps 0-3"' '"largest":"'; do
    grep -q "$word" "$dir/attn_mla_fwd_sm90_bf16_d576" || fail "the record has no $word"
done
ATTN_CUDA_IMAGE=ptx "$attn" bench --driver "$driver" --kernel attn_mla_fwd_sm90_bf16_d576 "mla_fwd $problem bf16" >"$dir/table" || fail 'table: exit code'
grep -q 'wgmma .* 64 x 256 x 16 .* registers ' "$dir/table" || fail 'table: no products'
grep -q 'GB/s' "$dir/table" && fail 'table: a speed'
if command -v python3 >/dev/null; then # two blocks more for each query: 64 x 64 x 5504 FLOP each
    for keys in 128 256; do
        ATTN_CUDA_IMAGE=ptx ATTNSIM_GPU=h100 "$attn" bench --driver "$driver" --json --kernel attn_mla_bwd_sm90_f16_d576_h64_even \
            "mla_bwd hq=64 sq=3 sk=300 d=576 topk=$keys f16"
    done >"$dir/two"
    python3 "$tool" 6 "$dir/two" >"$dir/between" || fail 'counts_between: exit code'
    grep -q '^  flops  *22544384.0 ' "$dir/between" || fail 'counts_between: FLOP of a block'
    grep -q '^  clocks of tensor  *5504.0$' "$dir/between" || fail 'counts_between: clocks of a block'
    head -n 1 "$dir/two" | python3 "$tool" 6 2>/dev/null && fail 'counts_between took one record'
fi
"$attn" bench --driver "$driver" --overhead "mla_fwd $problem bf16" >/dev/null 2>&1
[ $? = 2 ] || fail '--overhead: exit code'
exit $failed
