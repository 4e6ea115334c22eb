#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The quick tier on processors without AVX-512 and without AVX, emulated: an illegal instruction in common code, or a
# wrong choice of kernels, ends it.   usage: tools/check_oldcpu.sh [path of attn]   MODELS="Nehalem Haswell" REPEAT=1
set -u
cd "$(dirname "$0")/.." || exit 1
attn=${1:-build/release/attn}
if [ "$(uname -m)" != x86_64 ]; then
    echo "not an x86-64 machine: skipped"
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
for model in ${MODELS:-Nehalem Haswell}; do
    qemu-x86_64 -cpu "$model" "$attn" check --backend cpu --timeout 900 --repeat "${REPEAT:-1}" --seed 1 >"$log" 2>&1
    status=$?
    # The emulator tells at every start which parts of the model it leaves out.
    grep -vE "TCG doesn't support|qemu.*: warning:" "$log" | sed "s/^/$model: /"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        echo "$model: FAILED, status $status"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
