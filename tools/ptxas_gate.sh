#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails the build of a kernel's machine code if ptxas said that it lost what the kernel is built on (C75xx: wgmma serialised,
# setmaxnreg ignored), and removes the image, so that the next build compiles and complains again.
# usage: ptxas_gate.sh OUT.ptxas.txt
set -u
grep -E '\bC75[0-9]{2}\b' "$1" >&2 || exit 0
echo "${1%.ptxas.txt}: refused for ptxas's message above" >&2
rm -f "${1%.ptxas.txt}.fatbin"
exit 1
