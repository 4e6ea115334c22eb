#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# libattn.so may need the C library and nothing else, has its SONAME, a version on every symbol, and no executable stack.
# usage: needed_libraries.sh BUILD_FOLDER SOURCE_FOLDER
set -u
library=$1/libattn.so
fail() {
    echo "libattn.so: $*"
    readelf -dW "$library"
    exit 1
}
needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || fail "needs no library at all: is this readelf's output?"
for name in $needed; do
    case $name in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | ld-linux*.so.*) ;;
    *) fail "needs $name" ;;
    esac
done
soname=$(readelf -dW "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = libattn.so.0 ] || fail "SONAME is '$soname', not libattn.so.0"
readelf -dW "$library" | grep -qE 'TEXTREL|RPATH|RUNPATH' && fail "has text relocations or a search path"
readelf -lW "$library" | grep -E 'GNU_STACK.*E ' && fail "wants an executable stack"
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }')
[ "$(grep -c . <<<"$exported")" -gt 30 ] || fail "exports too little: $exported"
bad=$(grep -vE '^attn_[a-z0-9_]+@@[A-Za-z0-9_.]+$' <<<"$exported")
[ -z "$bad" ] || fail "exports without a version or under another name: $bad"
# Calls that a library must not make; memory hooks and the log are the reason for the rest of libc's names.
used=$(nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $2); print $2 }')
bad=$(grep -xE 'abort|exit|_exit|__assert_fail|system|printf|puts|putchar|setlocale' <<<"$used")
[ -z "$bad" ] || fail "calls $bad"
echo "needs: $(tr '\n' ' ' <<<"$needed")  exports: $(grep -c . <<<"$exported")"
