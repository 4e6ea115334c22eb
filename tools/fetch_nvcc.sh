#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fetches the CUDA compiler from the Python packages that its maker publishes, by pip, into a folder of the build; CMake looks
# there, and the disassembler of make ptxas-check. No driver, no libraries, nothing is installed into the system.
# usage: fetch_nvcc.sh [--disassembler] [folder, default build/nvcc]     --disassembler: nvdisasm alone, beside another compiler
set -eu
cd "$(dirname "$0")/.."
alone=
if [ "${1:-}" = --disassembler ]; then
    alone=1
    shift
fi
out=${1:-build/nvcc}
disassembler='nvidia-cuda-nvdisasm==13.5.37' # reads machine code (make ptxas-check)
packages='nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
'$disassembler
if [ -n "$alone" ] && [ -x "$out/bin/nvdisasm" ]; then
    echo "$out/bin/nvdisasm is there"
    exit 0
fi
if [ -z "$alone" ] && [ -x "$out/bin/nvcc" ] && [ "$(cat "$out/packages.txt" 2>/dev/null)" = "$packages" ]; then
    echo "$out/bin/nvcc is there"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || { echo 'python3 with pip is needed (apt-get install -y python3-pip)' >&2; exit 1; }
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
[ -z "$alone" ] || packages=$disassembler
# shellcheck disable=SC2086 # one word per package
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$fresh/wheels" $packages
for wheel in "$fresh"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$fresh/all"; done
if [ -n "$alone" ]; then
    tool=$(find "$fresh/all" -path '*/bin/nvdisasm' -type f | head -n 1)
    [ -n "$tool" ] || { echo "$packages holds no bin/nvdisasm" >&2; exit 1; }
    mkdir -p "$out/bin"
    install -m 755 "$tool" "$out/bin/nvdisasm"
    "$out/bin/nvdisasm" --version | tail -n 2
    exit 0
fi
root=$(dirname "$(dirname "$(find "$fresh/all" -path '*/bin/nvcc' -type f | head -n 1)")")
[ -f "$root/bin/nvcc" ] || { echo 'the packages hold no bin/nvcc' >&2; exit 1; }
find "$root/bin" "$root/nvvm/bin" -type f -exec chmod +x {} +
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$root" "$out"
"$out/bin/nvcc" --version | tail -n 2
printf '%s\n' "$packages" >"$out/packages.txt"
echo "$out/bin/nvcc: found by the next configuration (cmake), if none is in PATH"
