#!/bin/sh
# SPDX-License-Identifier: MIT
# Which rows plans choose for lists whose overlap is not known, on profiles of an H100 and a B200: queries of 33 to 64
# heads are joined in pairs only if the problem hands the pairs over. Usage: joined_choice.sh ATTN DRIVER
attn=${1:?path of attn} driver=${2:?path of the driver}
failed=0
chooses() { # GPU PROBLEM KERNEL
    got=$(ATTN_CUDA_DRIVER=$driver ATTNSIM_GPU=$1 "$attn" plan --device cuda:0 "$2" | sed -n 's/^kernel *//p')
    [ "$got" = "$3" ] || { echo "FAILED: $1, $2: $got, not $3"; failed=1; }
}
"$attn" list | grep -q '^attn_mla_bwd_joined_sm100_bf16_d576 ' && "$attn" list | grep -q '^attn_mla_bwd_sm100_f16_d512_h64 ' || exit 77
for heads in 33 64; do
    problem="mla_bwd hq=$heads sq=4096 sk=32768 topk=2048"
    chooses b200 "$problem d=576 bf16" attn_mla_bwd_sm100_bf16_d576_h64
    chooses b200 "$problem d=512 f16" attn_mla_bwd_sm100_f16_d512_h64
    chooses b200 "$problem d=576 bf16 group=2" attn_mla_bwd_joined_sm100_bf16_d576
    chooses b200 "$problem d=512 f16 group=2" attn_mla_bwd_joined_sm100_f16_d512
    chooses h100 "$problem d=576 bf16 group=2" attn_mla_bwd_joined_sm90_bf16_d576_h64
done
chooses h100 "mla_bwd hq=64 sq=4096 sk=32768 topk=2048 d=576 bf16" attn_mla_bwd_sm90_bf16_d576_h64_alt
for heads in 8 32; do # few heads: taken to share what neighbours of a selection share
    chooses b200 "mla_bwd hq=$heads sq=4096 sk=32768 topk=2048 d=576 bf16" attn_mla_bwd_joined_sm100_bf16_d576
    chooses b200 "mla_bwd hq=$heads sq=4096 sk=32768 topk=2048 d=576 bf16 deterministic" attn_mla_bwd_joined_sm100_bf16_d576_det
done
"$attn" list | grep -q '^attn_mla_fwd_joined_sm100_bf16_d576 ' || exit $failed
for heads in 8 32; do # rows that do not exist are multiplied without neighbours; few queries are cut into parts there
    chooses b200 "mla_fwd hq=$heads sq=4096 sk=32768 topk=2048 d=576 bf16" attn_mla_fwd_joined_sm100_bf16_d576
done
for heads in 33 64; do
    problem="mla_fwd hq=$heads sq=4096 sk=32768 topk=2048"
    chooses b200 "$problem d=576 bf16" attn_mla_fwd_sm100_bf16_d576_h64
    chooses b200 "$problem d=512 f16" attn_mla_fwd_sm100_f16_d512_h64
    chooses b200 "$problem d=576 bf16 group=2" attn_mla_fwd_joined_sm100_bf16_d576
done
chooses b200 "mla_fwd hq=64 sq=4 sk=32768 topk=2048 d=512 f16" attn_mla_fwd_sm100_f16_d512_h128 # a pair a query
chooses b200 "mla_fwd hq=192 sq=4096 sk=32768 topk=2048 d=512 f16" attn_mla_fwd_sm100_f16_d512_h128
chooses b200 "dist hq=64 sq=4096 sk=32768 topk=2048 d=576 bf16" attn_dist_sm100_bf16_d576_h64
chooses b200 "dist hq=64 sq=4096 sk=32768 topk=2048 d=576 bf16 group=2" attn_dist_joined_sm100_bf16_d576
chooses b200 "dist hq=16 sq=4096 sk=32768 topk=2048 d=512 f16" attn_dist_joined_sm100_f16_d512
chooses b200 "mla_fwd hq=65 sq=4096 sk=32768 topk=2048 d=576 bf16" attn_mla_fwd_sm100_bf16_d576_h128
exit $failed
