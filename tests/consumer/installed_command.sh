#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The installed command, moved, in an empty folder: it finds its lists and the demo's tensors; man pages came along; and
# tools/uninstall.sh removes every file and folder again, but nothing else.
# usage: installed_command.sh BUILD_FOLDER SOURCE_FOLDER
set -eu
build=$1
source=$2
[ -x "$build/attn" ] || exit 77
manifest() { cksum "$build/install_manifest.txt" 2>&1 || true; } # `make uninstall` reads it: not for tests to write
before=$(manifest)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
DESTDIR=$work/stage "${CMAKE:-cmake}" --install "$build" --component Unspecified --prefix /opt/some >"$work/log" || {
    cat "$work/log"
    exit 1
}
[ "$(manifest)" = "$before" ] || fail "the manifest of make install was overwritten"
find "$work/stage" ! -type d -printf '/%P\n' >"$work/manifest"

# Nothing of the sources or of the build folder may be needed.
cp -r "$work/stage/opt/some" "$work/moved"
mkdir "$work/empty"
cd "$work/empty"
quick="--runs 1 --min-time 0 --warm --threads 1"
# shellcheck disable=SC2086
"$work/moved/bin/attn" bench $quick --json @calls >"$work/records" || fail "attn bench @calls"
[ "$(wc -l <"$work/records")" = "$(grep -c '^[^#]' "$source/bench/cases/calls.txt")" ] || fail "attn bench @calls: records"
"$work/moved/bin/attn" demo --threads 2 --out pictures >"$work/demo" || fail "attn demo: $(cat "$work/demo")"
grep -q '^All comparisons are within their bounds' "$work/demo" || fail "attn demo: no summary"
for role in lse max_logits; do # bounds by role (docs/numerics.md), not that of the dtype for all
    grep -q "^ *$role *max abs error .* (bound 1.0e-05)" "$work/demo" || fail "attn demo: bound of $role"
done
grep -q '^ *dist *max row error .* (bound 2.0e-05)' "$work/demo" || fail "attn demo: bound of dist"
for list in "$source"/bench/cases/*.txt; do
    cmp "$list" "$work/moved/share/attn/cases/$(basename "$list")" || fail "list not installed"
done
rm -r "$work/moved/share/attn"
"$work/moved/bin/attn" demo >/dev/null 2>"$work/err" && fail "attn demo without tensors"
grep -q 'share/attn/examples/alice_minilm.safetensors cannot be read; --data FILE' "$work/err" || fail "$(cat "$work/err")"
"$work/moved/bin/attn" bench @calls >/dev/null 2>&1 && fail "attn bench without lists"
# The build's command finds them from anywhere, too.
"$build/attn" bench --runs 1 --min-time 0 --warm --kernel nothing @calls >/dev/null 2>"$work/err" || true
grep -q "no kernel matching 'nothing'" "$work/err" || fail "attn bench @calls in the build folder: $(cat "$work/err")"

if command -v scdoc >/dev/null; then
    for page in "$source"/docs/man/*.scd; do
        page=$(basename "$page" .scd)
        [ -s "$work/stage/opt/some/share/man/man${page##*.}/$page" ] || fail "no man page $page"
    done
fi

mkdir -p "$work/stage/opt/some/share/attn/kept"
DESTDIR=$work/stage "$source/tools/uninstall.sh" "$work/manifest"
[ -z "$(find "$work/stage" ! -type d)" ] || fail "files are left: $(find "$work/stage" ! -type d)"
left=$(find "$work/stage" -type d -path '*/attn*')
[ "$left" = "$(printf '%s\n' "$work/stage/opt/some/share/attn" "$work/stage/opt/some/share/attn/kept")" ] ||
    fail "folders: $left"
[ -d "$work/stage/opt/some/lib" ] || fail "a folder of others was removed"
DESTDIR=$work/stage "$source/tools/uninstall.sh" "$work/manifest" 2>/dev/null && fail "uninstalled twice"
exit 0
