#!/bin/sh
# SPDX-License-Identifier: MIT
# Random problems fit the row that --kernel names, also rows that few draws fit: of eight problems the row takes six at
# least; the last one stays as drawn.
# Usage: fitting_draws.sh ATTN DRIVER
attn=${1:?path of attn} driver=${2:?path of the driver}
export ATTN_CUDA_IMAGE=ptx
failed=0 tried=0
check() { # device, fewest of passed, pattern, options
    device=$1 least=$2 pattern=$3
    shift 3
    "$attn" list | grep -q "^$pattern " || return
    tried=1
    passed=$(ATTNSIM_GPU=$device "$attn" check --driver "$driver" --device cuda:0 --kernel "$pattern" --seed 3 --json "$@" |
        sed -n 's/.*"type":"kernel".*"passed":\([0-9]*\),.*/\1/p')
    [ "${passed:-0}" -ge "$least" ] || { echo "FAILED: $pattern: passed ${passed:-none} of 8, expected $least"; failed=1; }
}
check h100 6 attn_dist_joined_sm90_bf16_d576 --repeat 8
check h100 6 attn_sdpa_fwd_fp8_sm90_e4m3_d128 --repeat 8
check b200 6 attn_dist_sm100_bf16_d512_h64 --repeat 8
[ $tried = 1 ] || exit 77
exit $failed
