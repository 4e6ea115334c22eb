#!/bin/sh
# SPDX-License-Identifier: MIT
# Joined lists that share nothing are left apart on the device: the launch for queries apart forms products and the one
# that joins none, and the other way round where lists share much; results are right either way, and where some groups of
# a launch are left apart and others are not.
# Usage: joined_apart.sh ATTN DRIVER
attn=${1:?path of attn} driver=${2:?path of the driver}
"$attn" list | grep -q '^attn_mla_fwd_joined_sm90_bf16_d576 ' || exit 77
export ATTN_CUDA_IMAGE=ptx ATTNSIM_SMS=4
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# 1 if the launch of a kernel has matrix products
products() { # kernel, counts: a line of JSON
    echo "$2" | tr '{' '\n' | awk -v kernel="\"$1\"" '
        index($0, "\"kernel\":" kernel) && /grid/ { inside = 1; next }
        /"kernel":/ && /grid/ { inside = 0 }
        inside && /"kind":/ { found = 1 }
        /"sum":/ { inside = 0 }
        END { print found + 0 }'
}
check() { # operator, heads, overlap, wanted products of the launch apart and of the one that joins
    problem="$1 hq=$2 sq=16 sk=5000 d=576 topk=70 bf16"
    line=$("$attn" bench --driver "$driver" --json --overlap "$3" --kernel "attn_$1_joined_sm90_bf16_d576" "$problem") || fail "$problem: bench"
    got="$(products "attn_$1_apart_sm90_bf16_d576" "$line") $(products "attn_$1_joined_sm90_bf16_d576" "$line")"
    [ "$got" = "$4" ] || fail "$problem, overlap $3: products $got, expected $4"
}
for op in "dist 8" "dist 32" "mla_fwd 32"; do
    check $op random '1 0'
    check $op 0.9 '0 1'
done
# results: some groups apart (dist: J where unions are about the limit); lists in order of ranges; a last round in parts
while read -r limit overlap kernel problem; do
    ATTN_CUDA_L2_LIMIT=$limit "$attn" check --driver "$driver" --device cuda:0 --kernel "attn_$kernel" --seed 3 --overlap "$overlap" \
        --problem "$problem align=16" >/dev/null || fail "$kernel, overlap $overlap: $problem"
done <<END
50000000 0.3 dist_joined_sm90_bf16_d576 dist b=2 hq=32 sq=21 sk=300 d=576 topk=70 bf16 dist_norm=l1
50000000 random dist_joined_sm90_f16_d512 dist hq=8 sq=21 sk=5000 d=512 topk=70 f16
50000000 0.02 mla_fwd_joined_sm90_bf16_d576 mla_fwd b=2 hq=32 sq=13 sk=500 d=576 topk=70 bf16 sink
1000000 random mla_fwd_joined_sm90_bf16_d576 mla_fwd hq=32 sq=13 sk=500 d=576 topk=70 bf16 causal q_start=487
50000000 random mla_fwd_joined_sm90_f16_d512 mla_fwd hq=20 sq=5 sk=20000 d=512 topk=768 f16 lse_base_2
END
exit $failed
