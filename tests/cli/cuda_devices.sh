#!/bin/sh
# SPDX-License-Identifier: MIT
# The command on the stand-in CUDA driver: devices are listed, GPU kernels usable there, absence told in words.
# Usage: cuda_devices.sh /path/to/attn
attn=${1:?path of attn}
driver=${BUILD_DIR:-.}/tests/libcuda_stub.so
[ -f "$driver" ] || { echo "skipped: built without CUDA"; exit 77; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
export CUDA_STUB_DEVICES=80,90

ATTN_CUDA_DRIVER=$driver "$attn" list --devices >"$dir/devices" || fail 'list --devices: exit code'
grep -q '^cpu ' "$dir/devices" || fail 'the CPU is gone'
grep -q '^cuda:0 ' "$dir/devices" && grep -q '^cuda:1 ' "$dir/devices" || fail 'a device is not listed'
grep -q 'sm_80 108 SMs 163 KiB shared' "$dir/devices" || fail 'features of cuda:0'
grep -q 'sm_90 132 SMs 227 KiB shared' "$dir/devices" || fail 'features of cuda:1'
ATTN_CUDA_DRIVER=$driver ATTN_CUDA_SHARED_LIMIT=101376 "$attn" list --devices | grep -q 'sm_90 132 SMs 99 KiB shared' ||
    fail 'ATTN_CUDA_SHARED_LIMIT has no effect'

ATTN_CUDA_DRIVER=$driver "$attn" list --backend cuda >"$dir/with" || fail 'list --backend cuda: exit code'
ATTN_CUDA_DRIVER=/nonexistent/libcuda.so "$attn" list --backend cuda >"$dir/without" || fail 'list without a driver: exit code'
grep -q '^attn_.* yes ' "$dir/with" || fail 'no GPU kernel is usable on a device'
grep -q '^attn_.* yes ' "$dir/without" && fail 'GPU kernels are usable without a driver'
[ "$(grep -c '^attn_' "$dir/with")" = "$(grep -c '^attn_' "$dir/without")" ] || fail 'the list of kernels depends on the machine'

problem='sdpa_fwd hq=2 sq=64 d=64 bf16 causal'
ATTN_CUDA_DRIVER=$driver "$attn" plan --device cuda:1 "$problem" >"$dir/plan" || fail 'plan on cuda:1: exit code'
grep -q '^kernel *attn_sdpa_fwd_sm' "$dir/plan" || fail 'plan on cuda:1: kernel'
ATTN_CUDA_DRIVER=$driver "$attn" plan "$problem" | grep -q '^device *cpu' || fail 'the CPU is no longer the default device'
ATTN_CUDA_DRIVER=/nonexistent/libcuda.so "$attn" plan --device cuda:0 "$problem" >"$dir/out" 2>&1 && fail 'plan on an absent device'

# Bench on the stand-in: the clock is its own, tensors live there, the driver has a version.
ATTN_CUDA_DRIVER=$driver "$attn" bench --device cuda:1 --min-time 0 --runs 3 --json "$problem" >"$dir/bench" 2>"$dir/err" ||
    fail 'bench on cuda:1: exit code'
grep -q '"driver":"CUDA 13.0".*"clock":"device","host_us":[0-9].*"cache":"rotated"' "$dir/bench" || fail 'bench on cuda:1: record'
[ -s "$dir/err" ] && fail 'bench on cuda:1: warnings'
ATTN_CUDA_DRIVER=$driver "$attn" bench --device cuda:1 --cache flush --min-time 0 --runs 3 --json "$problem" |
    grep -q '"batch":1,"clock":"device".*"cache":"flushed"' || fail 'bench --cache flush on cuda:1'
ATTN_CUDA_DRIVER=$driver "$attn" bench --device cuda:1 --overhead --min-time 0 --runs 3 "$problem" >"$dir/calls" || fail 'bench --overhead on cuda:1'
grep -q ' execute_call, 1 launch, overhead -*[0-9.]*$' "$dir/calls" || fail 'bench --overhead on cuda:1: rows'
grep -q ' driver_floor, 1 launch$' "$dir/calls" || fail 'bench --overhead on cuda:1: no floor of the driver'
ATTN_CUDA_DRIVER=$driver "$attn" bench --device cuda:1 --overhead --min-time 0 --runs 3 --json --kernel '*_ordered' \
    'sdpa_bwd hq=2 sq=64 d=64 bf16' >"$dir/calls" 2>/dev/null || fail 'bench --overhead on cuda:1: backward'
grep '"measure":"execute_call"' "$dir/calls" | grep -q '"launches":[34],"overhead_us":-*[0-9]' || fail 'launches of an ordered backward'
grep '"measure":"driver_floor"' "$dir/calls" | grep -q '"launches":[34],"overhead_us":null' || fail 'floor of an ordered backward'

# Run on the stand-in: kernels do not compute there, but tensors go there and come back, and its memory is given back.
ATTN_CUDA_DRIVER=$driver "$attn" run --device cuda:1 --json "$problem" 2>/dev/null | grep -q '"device":"cuda:1".*"kernel":"attn_sdpa_fwd_sm' ||
    fail 'run on cuda:1'
ATTN_CUDA_DRIVER=/nonexistent/libcuda.so "$attn" run --device cuda:0 "$problem" >/dev/null 2>&1
[ $? = 3 ] || fail 'run on an absent device: exit code'
exit $failed
