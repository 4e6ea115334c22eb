#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a change to GPU code must pass on a machine with a GPU: the tester on every kernel of the device, properties, and the
# programs of tests/gpu. Says so and exits with 77 where there is no device.
# usage: gpu_check.sh [build folder]     DEVICE=cuda:0, REPEAT=50 problems per operator and dtype, SEED=1, KERNEL='*'
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
device=${DEVICE:-cuda:0}
attn=$build/attn
steps_log=build/log/gpu
if ! "$attn" list --devices | grep -q "^$device "; then
    echo "skipped: the driver here has no $device"
    exit 77
fi
# shellcheck source=tools/steps.sh
. tools/steps.sh
export GPU_TEST_DEVICE=$device GPU_TEST_KERNEL=${KERNEL:-*}
step "attn check" "$attn" check --device "$device" --kernel "${KERNEL:-*}" --repeat "${REPEAT:-50}" --seed "${SEED:-1}"
step "attn check, properties" "$attn" check --properties --device "$device" --kernel "${KERNEL:-*}" --seed "${SEED:-1}"
for test in "$build"/tests/t_gpu_*; do
    step "$(basename "$test")" "$test"
done
steps_end
