#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Removes the files that a manifest of `cmake --install` lists, below $DESTDIR, and the folders named attn that it
# leaves empty.   usage: tools/uninstall.sh BUILD_FOLDER/install_manifest.txt
set -eu
manifest=$1
[ -f "$manifest" ] || { echo "nothing was installed from $(dirname "$manifest")" >&2; exit 1; }
while IFS= read -r file || [ -n "$file" ]; do
    [ -z "$file" ] || printf '%s%s\0' "${DESTDIR:-}" "$file"
done <"$manifest" >"$manifest.removed"
xargs -0 rm -f <"$manifest.removed"
# innermost first, since a longer path sorts behind its folder
xargs -0 dirname -z <"$manifest.removed" | grep -z '/attn\(/\|$\)' | sort -zru |
    xargs -0r rmdir --ignore-fail-on-non-empty 2>/dev/null || true
rm -f "$manifest.removed" "$manifest"
