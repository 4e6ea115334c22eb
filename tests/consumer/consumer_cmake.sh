#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs, moves the tree, and builds the consumers by find_package(attn), shared and static; a newer version than the
# installed one must be refused.   usage: consumer_cmake.sh BUILD_FOLDER SOURCE_FOLDER
set -eu
build=$1
source=$2/tests/consumer
cmake=${CMAKE:-cmake}
manifest() { cksum "$build/install_manifest.txt" 2>&1 || true; } # `make uninstall` reads it: not for tests to write
before=$(manifest)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --component Unspecified --prefix "$work/first" >"$work/install.log" || {
    cat "$work/install.log"
    exit 1
}
mv "$work/first" "$work/moved"
cc=${CC:-cc}
case $cc in *clang*) cxx=clang++ ;; *) cxx=g++ ;; esac
command -v $cxx >/dev/null || cxx=c++
export CC=$cc CXX=$cxx
set -x
"$cmake" -G Ninja -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" -DWANTED_VERSION=0.1 \
    -DCMAKE_C_FLAGS=-Werror -DCMAKE_CXX_FLAGS=-Werror
"$cmake" --build "$work/build"
for program in shared_c static_c shared_cpp static_cpp; do "$work/build/$program"; done
readelf -d "$work/build/shared_cpp" | grep -q 'libattn\.so\.0'
if readelf -d "$work/build/static_cpp" | grep -q libattn; then exit 1; fi
if "$cmake" -G Ninja -S "$source" -B "$work/newer" -DCMAKE_PREFIX_PATH="$work/moved" -DWANTED_VERSION=0.99 \
    >"$work/newer.log" 2>&1; then
    echo "version 0.99 was found, installed is an older one"
    exit 1
fi
[ "$(manifest)" = "$before" ]
