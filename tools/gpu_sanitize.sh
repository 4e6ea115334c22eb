#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# compute-sanitizer over `attn check` on a GPU: each tool on a sample of random problems per operator. A report of a tool fails
# the step, and so does a wrong result. Many times slower than the check alone: the sample is what makes it bearable.
# usage: gpu_sanitize.sh [build folder]
#   SAMPLE=50   problems per operator and dtype            SEED=1     which ones: another seed is another sample
#   KERNEL='*'  name pattern, OPS='sdpa_fwd mla_fwd ...'   TOOLS='memcheck racecheck initcheck synccheck'   DEVICE=cuda:0
#   SANITIZER=  the program, if it is neither in PATH nor below /usr/local/cuda; LIMIT=3600 seconds for each step
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
device=${DEVICE:-cuda:0}
attn=$build/attn
sanitizer=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
steps_log=build/log/gpu-sanitize
if [ -z "$sanitizer" ]; then
    echo 'skipped: no compute-sanitizer in PATH or /usr/local/cuda/bin (SANITIZER=path)'
    exit 77
fi
if ! "$attn" list --devices | grep -q "^$device "; then
    echo "skipped: the driver here has no $device"
    exit 77
fi
# shellcheck source=tools/steps.sh
. tools/steps.sh

# Exit code 42 is the tool's own: it saw something. initcheck is asked about device memory that copies never wrote.
sanitize() { # tool, operator
    timeout "${LIMIT:-3600}" "$sanitizer" --tool "$1" --error-exitcode 42 --print-limit 20 \
        "$attn" check --device "$device" --op "$2" --kernel "${KERNEL:-*}" --repeat "${SAMPLE:-50}" --seed "${SEED:-1}" --timeout 0
    local rc=$?
    [ $rc -ne 77 ] || { echo "no kernel of $2 on this device"; return 0; }
    [ $rc -ne 42 ] || echo "ERROR: $1 reports faults"
    return $rc
}

for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
    for op in ${OPS:-sdpa_fwd sdpa_bwd mla_fwd mla_bwd dist}; do
        step "$tool $op" sanitize "$tool" "$op"
    done
done
steps_end
