#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make install` says of the loader, with a stand-in for ldconfig: known folder and library, known folder alone,
# unknown folder, static library alone.   usage: loader_hint.sh BUILD_FOLDER SOURCE_FOLDER
set -eu
hint=$2/tools/loader_hint.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/ldconfig" <<'END'
#!/bin/sh
case "$*" in
-p) printf '2 libs found in cache\n\tlibattn.so.0 (libc6,x86-64) => /known/libattn.so.0\n' ;;
*) printf '/known: (from /etc/ld.so.conf:1)\n\tlibattn.so.0 -> libattn.so.0.1.0\n/fresh: (from /etc/ld.so.conf:2)\n' ;;
esac
END
chmod +x "$work/ldconfig"
says() { # FOLDER PATTERN
    printf '%s\n' "$1/libattn.a" "$1/libattn.so.0.1.0" "$1/libattn.so.0" "$1/libattn.so" >"$work/manifest"
    text=$(PATH=$work:$PATH "$hint" "$work/manifest")
    # shellcheck disable=SC2254
    case $text in $2) ;; *) echo "FAILED: $1: '$text'"; exit 1 ;; esac
}
says /known ''
says /fresh 'run ldconfig as root*/fresh/libattn.so.0'
says /elsewhere '*LD_LIBRARY_PATH*-rpath,/elsewhere*'
echo /known/libattn.a >"$work/manifest"
[ -z "$("$hint" "$work/manifest")" ] || { echo 'FAILED: without a shared library'; exit 1; }
