#!/bin/sh
# SPDX-License-Identifier: MIT
# Which rows plans choose. D 64 on an H100: tiles of 128 query rows for short causal problems and few tiles, of 192
# for the others; e4m3 at its own width, long sequences by 192 rows; f32 on wgmma where there is enough to do. D 192 on
# a B200: pairs of CTAs for long full rows. Usage: dense.sh ATTN DRIVER
attn=${1:?path of attn} driver=${2:?path of the driver}
failed=0 gpu=h100
op=sdpa_fwd
chooses() { # PROBLEM KERNEL
    got=$(ATTN_CUDA_DRIVER=$driver ATTNSIM_GPU=$gpu "$attn" plan --device cuda:0 "$op $1" | sed -n 's/^kernel *//p')
    [ "$got" = "$2" ] || { echo "FAILED: $1: $got, not $2"; failed=1; }
}
rows=attn_sdpa_fwd_wgmma_sm90
"$attn" list | grep -q "^${rows}_bf16_d64_r128 " && "$attn" list | grep -q '^attn_sdpa_fwd_fp8_sm90_e4m3_d64 ' || exit 77
for dtype in bf16 f16; do
    chooses "b=16 hq=32 sq=1024 d=64 $dtype causal" ${rows}_${dtype}_d64_r128
    chooses "b=1 hq=8 sq=1024 d=64 $dtype" ${rows}_${dtype}_d64_r128
    chooses "b=16 hq=32 sq=1024 d=64 $dtype" ${rows}_${dtype}_d64
    chooses "b=4 hq=32 sq=4096 d=64 $dtype causal" ${rows}_${dtype}_d64
    chooses "b=1 hq=32 sq=16384 d=60 $dtype" ${rows}_${dtype}_d64
done
chooses "b=4 hq=32 sq=4096 d=64 e4m3" attn_sdpa_fwd_fp8_sm90_e4m3_d64_r192
chooses "b=4 hq=32 sq=4096 d=96 e4m3" attn_sdpa_fwd_fp8_sm90_e4m3_d128_r192
chooses "b=16 hq=32 sq=1024 d=64 e4m3 causal" attn_sdpa_fwd_fp8_sm90_e4m3_d64
chooses "b=16 hq=16 sq=1024 d=128 e4m3 causal" attn_sdpa_fwd_fp8_sm90_e4m3_d128
for causal in "" " causal"; do
    chooses "b=2 hq=16 sq=4096 d=64 f32$causal" attn_sdpa_fwd_f16x2_sm90_f32_d64
    chooses "b=2 hq=16 sq=4096 d=96 f32$causal" attn_sdpa_fwd_f16x2_sm90_f32_d128
done
chooses "hq=16 sq=512 d=128 f32" attn_sdpa_fwd_f16x2_sm90_f32_d128
chooses "hq=32 hk=8 sq=1 sk=8192 d=128 f32" attn_sdpa_fwd_sm80_f32_d64
chooses "b=2 hq=16 sq=4096 d=64 f32 softcap=30" attn_sdpa_fwd_sm80_f32_d64_halves
chooses "b=2 hq=16 sq=4096 d=256 f32" attn_sdpa_fwd_sm80_f32_d128_halves
op=sdpa_bwd
for more in "" " causal" " deterministic"; do
    chooses "b=2 hq=16 sq=4096 d=64 f32$more" attn_sdpa_bwd_f16x2_sm90_f32_d64
    chooses "b=2 hq=16 sq=4096 d=128 f32$more" attn_sdpa_bwd_f16x2_sm90_f32_d128
done
chooses "b=2 hq=16 sq=4096 d=64 f32 softcap=30" attn_sdpa_bwd_sm80_f32_d64_halves_sums
op=sdpa_fwd
gpu=b200 rows=attn_sdpa_fwd_sm100
for dtype in bf16 f16; do
    wide="d=192 dv=128 $dtype"
    "$attn" list | grep -q "^${rows}_${dtype}_d192_v128_pair " || exit 77
    chooses "b=1 hq=16 sq=8192 $wide" ${rows}_${dtype}_d192_v128_pair
    chooses "b=2 hq=128 sq=4096 $wide" ${rows}_${dtype}_d192_v128_pair
    chooses "b=4 hq=32 sq=600 sk=2048 $wide" ${rows}_${dtype}_d192_v128
    chooses "b=1 hq=16 sq=8192 $wide causal" ${rows}_${dtype}_d192_v128
    chooses "b=1 hq=16 sq=8192 $wide left=4000" ${rows}_${dtype}_d192_v128
    chooses "b=1 hq=128 sq=256 sk=8192 $wide" ${rows}_${dtype}_d192_v128
done
exit $failed
