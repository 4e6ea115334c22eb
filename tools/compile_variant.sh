#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles one variant of a device kernel:
#   OUT.ptx         PTX with the places in the CUDA sources, for reading
#   OUT.ptx.packed  its instructions alone for the library, packed by PACK (cmake/pack_ptx.c)
#   OUT.fatbin      machine code of each architecture, compressed; empty where none is asked for
#   OUT.ptxas.txt   what ptxas said (tools/ptxas_budget.py reads it)
# CACHE keeps results by compiler, flags and sources, and machine code by the PTX without places, so that an edit which
# changes no instruction costs no machine code.
# usage: compile_variant.sh CACHE VERSION NVCC PACK ROOT SOURCE OUT COMPUTE SM,SM... FLAGS...   (SM -: no machine code)
set -u
cache=$1 version=$2 nvcc=$3 pack=$4 root=$5 source=$6 out=$7 compute=$8 codes=$9
shift 9
flags=("$@")
log=$out.ptxas.txt
results=(fatbin ptx ptxas.txt)
compress=(-Xfatbin -compress-all)
[ "${version%%.*}" -lt 13 ] || compress+=(-compress-mode=size) # a sixth less; what 12 makes by default more drivers read
# A source and the headers that it includes, directly or not, as paths below the root. A header counts also where a
# condition leaves it out. An include that is not below the root stops the build: its changes would not be seen.
sources_of() {
    local all=${source#"$root/"} level=${source#"$root/"}
    while [ -n "$level" ]; do
        level=$(cd "$root" && xargs grep -ohE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]+"' <<<"$level" |
            sed 's/^[^"]*"//; s/"$//' | LC_ALL=C sort -u | comm -23 - <(LC_ALL=C sort <<<"$all"))
        [ -z "$level" ] || all+=$'\n'$level
    done
    LC_ALL=C sort <<<"$all"
}
# Paths must not matter: a checkout elsewhere has the same kernels.
key_of() {
    local files
    files=$(sources_of)
    {
        echo "$version $compute $codes"
        printf '%s\n' "${flags[@]}" | sed "s|$root||; /^-Werror$/d; /^all-warnings$/d" # what warns is not kept
        cat "$0"
        (cd "$root" && xargs cat <<<"$files") || return 1
    } | sha256sum | cut -c1-40
}
# Instructions alone: no places, no labels and sections for debuggers, no comments.
bare() {
    sed -E '/^[[:space:]]*\.(loc|file)[[:space:]]/d; /^\$L__(tmp|func_begin|func_end|info_string)[A-Za-z0-9_]*:$/d
            s|[[:space:]]*//.*$||; /^[[:space:]]*$/d' "$1" |
        awk '/^[[:space:]]*\.section/ { skip = 1 } !skip { print } skip && /^[[:space:]]*\}/ { skip = 0 }'
}
take() { # folder: its files become the outputs; 0 if it has them
    local name
    [ -e "$1/done" ] || return 1
    for name in "${@:2}"; do cp "$1/$name" "$out.$name" || return 1; done
}
keep() { # folder, files: the outputs become its files, all at once
    local fresh name
    mkdir -p "$(dirname "$1")" && fresh=$(mktemp -d "$cache/new.XXXXXX") || return 0
    for name in "${@:2}"; do cp "$out.$name" "$fresh/$name" || { rm -rf "$fresh"; return 0; }; done
    touch "$fresh/done" && mv -T "$fresh" "$1" 2>/dev/null
    rm -rf "$fresh"
}
fail() {
    cat "$log" >&2
    rm -f "$out.bare.ptx" "$out.ptx.packed" "${results[@]/#/$out.}"
    exit 1
}
# The instructions alone, packed, into OUT.ptx.packed; kept by the PTX and by what packs it.
pack_ptx() {
    local kept=
    bare "$out.ptx" >"$out.bare.ptx" || return 1
    [ -z "$cache" ] || kept=$cache/packed/$(cd "$root" &&
        cat cmake/pack_ptx.c src/cuda/backend/unpack.[ch] "$out.bare.ptx" | sha256sum | cut -c1-40)
    if [ -z "$kept" ] || ! take "$kept" ptx.packed; then
        "$pack" "$out.bare.ptx" "$out.ptx.packed" >>"$log" 2>&1 || return 1
        [ -z "$kept" ] || keep "$kept" ptx.packed
    fi
    rm -f "$out.bare.ptx"
}
{ # read whole before it runs: an edit meanwhile does no harm
if [ -n "$cache" ]; then
    key=$(set -o pipefail; key_of) || { echo "a source that $source includes is missing" >&2; exit 1; }
    if take "$cache/$key" "${results[@]}"; then
        pack_ptx || fail
        exit 0
    fi
fi
"$nvcc" "${flags[@]}" -lineinfo -arch="$compute" -ptx -o "$out.ptx" "$source" >"$log" 2>&1 || fail
warned=$(grep -c warning "$log")
sed -E -i "/^[[:space:]]*\.file[[:space:]]/ { s|\"$root/|\"|; s|\"/.*/include/|\"|; s|(\"[^\"]*\").*|\1| }" "$out.ptx"
bare "$out.ptx" >"$out.bare.ptx"
[ "$codes" != - ] || : >"$out.fatbin" || fail
machine=
[ -z "$cache" ] || [ "$codes" = - ] || machine=$cache/machine/$({ echo "$version $compute $codes ${compress[*]}"; cat "$out.bare.ptx"; } | sha256sum | cut -c1-40)
if [ "$codes" != - ] && { [ -z "$machine" ] || ! take "$machine" fatbin ptxas.txt; }; then
    "$nvcc" -O3 -Xptxas -v "${compress[@]}" -fatbin -gencode "arch=$compute,code=[$codes]" -o "$out.fatbin" \
        "$out.bare.ptx" >>"$log" 2>&1 || fail
    grep -E 'warning|C7[0-9]{3}' "$log" >&2
    [ -z "$machine" ] || keep "$machine" fatbin ptxas.txt
fi
pack_ptx || fail
# not if a source was edited meanwhile
if [ -n "$cache" ] && [ "$warned" -eq 0 ] && [ "$key" = "$(key_of)" ]; then keep "$cache/$key" "${results[@]}"; fi
exit 0
}
