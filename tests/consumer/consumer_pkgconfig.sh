#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs with DESTDIR, moves the tree, and builds the consumers by pkg-config: shared and static, C and C++.
# The component has its own manifest.   usage: consumer_pkgconfig.sh BUILD_FOLDER SOURCE_FOLDER
set -eu
build=$1
source=$2/tests/consumer
command -v pkg-config >/dev/null || exit 77
manifest() { cksum "$build/install_manifest.txt" 2>&1 || true; } # `make uninstall` reads it: not for tests to write
before=$(manifest)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DESTDIR=$work/stage "${CMAKE:-cmake}" --install "$build" --component Unspecified --prefix /opt/somewhere >"$work/install.log" || {
    cat "$work/install.log"
    exit 1
}
mv "$work/stage/opt/somewhere" "$work/moved" # the .pc file must not remember the prefix
export PKG_CONFIG_PATH PKG_CONFIG_LIBDIR=/nonexistent
pc=$(find "$work/moved" -name attn.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
libdir=$(pkg-config --variable=libdir attn)
pkg-config --print-errors --exists "attn >= 0.1"
[ "$(pkg-config --modversion attn)" = "$(sed -n 's/^#define ATTN_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' "$2/include/attn.h" | paste -sd.)" ]

cc=${CC:-cc}
case $cc in *clang*) cxx=clang++ ;; *) cxx=g++ ;; esac
command -v $cxx >/dev/null || cxx=c++
warn="-Wall -Wextra -pedantic -Werror"
set -x
# shellcheck disable=SC2046,SC2086
{
    $cc -std=c99 $warn "$source/consumer.c" -o "$work/shared_c" $(pkg-config --cflags --libs attn) -lm
    $cc -std=c99 $warn "$source/consumer.c" -o "$work/static_c" $(pkg-config --cflags attn) "$libdir/libattn.a" \
        $(pkg-config --static --libs-only-l attn | sed 's/-lattn//')
    $cxx -std=c++11 $warn "$source/consumer_cpp.cc" -o "$work/shared_cpp" $(pkg-config --cflags --libs attn)
}
readelf -d "$work/shared_c" | grep -q 'libattn\.so\.0'
if readelf -d "$work/static_c" | grep -q libattn; then exit 1; fi
LD_LIBRARY_PATH=$libdir "$work/shared_c"
"$work/static_c"
LD_LIBRARY_PATH=$libdir "$work/shared_cpp"
# the command finds nothing of the build folder
if [ -x "$work/moved/bin/attn" ]; then "$work/moved/bin/attn" version; fi
[ "$(manifest)" = "$before" ]
