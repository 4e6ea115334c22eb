#!/bin/sh
# SPDX-License-Identifier: MIT
# CUDA programs of this folder, compiled to PTX and run by attn-sim: right output and status under every policy, or, of a
# program with a fault planted into it, that fault with its line, and a status that is not 0.
#   usage: programs.sh NVCC ATTN_SIM SOURCE EXPECTED [-DNAME MARK]     EXPECTED: right, or a kind of finding; MARK: text of its line
set -u
nvcc=$1 sim=$2 source=$3 expected=$4 define=${5:-} mark=${6:-}
command -v c++ >/dev/null || { echo 'no C++ compiler for the host: skipped'; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# shellcheck disable=SC2086 # no word where nothing is defined
"$nvcc" -std=c++17 -O2 -lineinfo -gencode arch=compute_90,code=compute_90 $define --cudart none \
    -L"$(dirname "$sim")/attn-sim-libraries" -l:libcudart.so.13 -o "$folder/program" "$source" || exit 1
if [ "$expected" = right ]; then
    "$sim" --runs 4 "$folder/program" >"$folder/out" 2>"$folder/words"
    status=$?
    cat "$folder/out" "$folder/words"
    [ $status -eq 0 ] && [ "$(grep -c '^right$' "$folder/out")" -eq 4 ] && [ "$(grep -c 'faults 0' "$folder/words")" -eq 4 ]
    exit
fi
line=$(grep -n "$mark" "$source" | head -n 1 | cut -d: -f1)
"$sim" "$folder/program" >"$folder/out" 2>"$folder/words"
status=$?
cat "$folder/out" "$folder/words"
grep -A 1 "^attnsim: $expected: " "$folder/words" | grep -q "$(basename "$source"):$line" || { echo "no $expected at line $line"; exit 1; }
case $(tail -n 1 "$folder/out") in # 86 where the program itself has noticed nothing
right) [ $status -eq 86 ] ;;
*) [ $status -eq 1 ] ;;
esac
