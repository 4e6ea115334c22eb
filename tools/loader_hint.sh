#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# After an installation: says what is missing before programs find libattn.so at run time, or nothing.
# usage: tools/loader_hint.sh BUILD_FOLDER/install_manifest.txt
set -u
PATH=$PATH:/sbin:/usr/sbin # where ldconfig lies, which is not in every user's PATH
library=$(grep -m 1 '/libattn\.so\.[0-9]*$' "$1") || exit 0
folder=$(dirname "$library")
if ldconfig -p 2>/dev/null | grep -qF "=> $library"; then
    exit 0
elif ldconfig -v -N -X 2>/dev/null | grep -qE "^$folder:"; then
    echo "run ldconfig as root once, so that programs find $library"
else
    echo "$folder is no folder that the loader searches: set LD_LIBRARY_PATH, link with -Wl,-rpath,$folder," \
        "or add it to /etc/ld.so.conf.d and run ldconfig"
fi
