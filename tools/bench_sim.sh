#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Speed of the PTX simulator with all checks on: one kernel of each operator, three runs each, processor time of one core.
# Fails below MIN million warp instructions a second.   usage: tools/bench_sim.sh BUILD   POLICY=late MIN=0
set -u
attn=${1:?usage: tools/bench_sim.sh BUILD}/attn
export ATTNSIM_STATS=1 ATTNSIM_THREADS=1
bad=0
printf '%-34s %16s %10s %22s\n' kernel instructions seconds 'million a second'
while IFS='|' read -r kernel problem; do
    line=$("$attn" check --driver sim --policy "${POLICY:-late}" --threads 1 --kernel "$kernel" --problem "$problem" 2>&1 |
        sed -nE 's/.*launches, ([0-9]+) warp instructions in ([0-9.]+) s.*, ([0-9.]+) million.*/\1 \2 \3/p')
    if [ -z "$line" ]; then
        echo "$kernel: no figure (not in this build?)"
        continue
    fi
    read -r n seconds rate <<<"$line"
    printf '%-34s %16s %10s %22s\n' "$kernel" "$n" "$seconds" "$rate"
    awk -v r="$rate" -v m="${MIN:-0}" 'BEGIN { exit !(r < m) }' && bad=1
done <<'LIST'
attn_sdpa_fwd_sm80_bf16_d128|sdpa_fwd hq=4 hk=2 sq=384 sk=384 d=128 bf16 causal
attn_sdpa_fwd_sm80_f16_d64_full|sdpa_fwd hq=4 hk=2 sq=256 sk=256 d=64 f16 causal softcap=20
attn_sdpa_fwd_sm80_f32_d64|sdpa_fwd hq=4 hk=2 sq=128 sk=128 d=64 f32 causal
attn_sdpa_fwd_sm80_f64_d64|sdpa_fwd hq=4 hk=2 sq=64 sk=128 d=64 f64 causal
attn_sdpa_bwd_sm80_bf16_d128|sdpa_bwd hq=4 hk=2 sq=256 sk=256 d=128 bf16 causal
attn_mla_fwd_sm80_bf16_d576_h64|mla_fwd hq=64 sq=8 sk=300 d=576 topk=200 bf16
attn_mla_bwd_sm80_bf16_d576_h64|mla_bwd hq=64 sq=4 sk=300 d=576 topk=128 bf16
attn_dist_sm80_bf16_d576_h64|dist hq=64 sq=8 sk=300 d=576 topk=200 bf16
LIST
exit $bad
