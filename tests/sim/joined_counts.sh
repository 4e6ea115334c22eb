#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks of kernels that join lists have met duplicates, invalid slots, topk_length, k_stride, NaN in q and in kv in
# groups that were joined: of lists that the kernel joins itself, and of given ones, where it has met groups left apart.
# Usage: joined_counts.sh ATTN DRIVER
attn=${1:?path of attn} driver=${2:?path of the driver}
"$attn" list | grep -q '^attn_mla_bwd_joined_sm90_bf16_d576 ' || exit 77
failed=0
fail() { echo "FAILED: $*"; failed=1; }
export ATTN_CUDA_IMAGE=ptx
rules='causal k_stride=2 align=16'
for op in mla_fwd mla_bwd dist; do
    # repeat, seed, sizes, group: lists that the kernel joins; given ones, with a limit by a seed over 2^20
    for words in '16 90 sk=40 q_start=60 topk_length' "6 $((31 << 20)) sk=40 q_start=60 topk_length group=8" '4 96 sk=40 q_start=60 topk_length group=4'; do
        set -- $words
        line=$("$attn" check --driver "$driver" --device cuda:0 --kernel "attn_${op}_joined_sm90_bf16_d576" --json --repeat "$1" \
            --seed "$2" --problem "$op hq=8 sq=9 d=576 topk=12 bf16 $rules $3 $4 $5 $6") || fail "$op $words: exit code"
        counts="$counts
$(echo "$line" | grep '"type":"joined"' | sed "s/{/{\"given\":\"$6\",/")"
    done
done
echo "$counts"
# By the limit that a plan tells, eight lists of dist that share nothing are left apart.
"$attn" check --driver "$driver" --device cuda:0 --kernel attn_dist_joined_sm90_bf16_d576 --json --overlap random --seed 7 \
    --problem "dist hq=8 sq=9 sk=4000 d=576 topk=12 bf16 align=16" | grep '"type":"joined"' | grep -q '"apart":[1-9]' ||
    fail "dist: no group left apart by its own limit"
[ $failed = 0 ] || exit 1
for op in mla_fwd mla_bwd dist; do
    for key in q_nan kv_nan; do
        echo "$counts" | grep "\"$op\"" | grep -q "\"$key\":[1-9]" || fail "$op: no group with $key"
    done
    echo "$counts" | grep "\"$op\"" | grep -q '"apart":[1-9]' || fail "$op: no group left apart"
    for key in joined duplicates invalid topk_length k_stride; do
        for given in '"given":""' '"given":"group='; do
            echo "$counts" | grep "$given" | grep "\"$op\"" | grep -q "\"$key\":[1-9]" || fail "$op, $given: no group with $key"
        done
    done
done
exit $failed
