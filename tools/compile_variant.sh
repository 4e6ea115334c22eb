#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles one variant of a device kernel: OUT.ptx, from it OUT.fatbin (machine code of each architecture, and the PTX), and
# OUT.ptxas.txt with what ptxas said (tools/ptxas_budget.py reads it). Compiled before with the same compiler, flags and
# sources: copied from CACHE.  usage: compile_variant.sh CACHE VERSION NVCC ROOT SOURCE OUT COMPUTE SM,SM... FLAGS...
set -u
cache=$1 version=$2 nvcc=$3 root=$4 source=$5 out=$6 compute=$7 codes=$8
shift 8
flags=("$@")
log=$out.ptxas.txt
# Paths must not matter: a checkout elsewhere has the same kernels. All headers count, used or not.
key_of() {
    {
        echo "$version $compute $codes"
        printf '%s\n' "${flags[@]}" | sed "s|$root||"
        cat "$0" "$source"
        find "$root/kernels" -name '*.h' -o -name '*.cuh' | LC_ALL=C sort | xargs cat
    } | sha256sum | cut -c1-40
}
{ # read whole before it runs: an edit meanwhile does no harm
if [ -n "$cache" ]; then
    key=$(key_of)
    if [ -e "$cache/$key/done" ] && cp "$cache/$key/fatbin" "$out.fatbin" && cp "$cache/$key/ptx" "$out.ptx" &&
        cp "$cache/$key/ptxas.txt" "$log"; then
        exit 0
    fi
fi
if ! { "$nvcc" "$@" -arch="$compute" -ptx -o "$out.ptx" "$source" &&
    "$nvcc" -O3 -Xptxas -v -Xfatbin -compress-all -fatbin -gencode "arch=$compute,code=[$codes,$compute]" -o "$out.fatbin" \
        "$out.ptx"; } >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$out.fatbin" "$out.ptx" "$log"
    exit 1
fi
grep -E 'warning|C7[0-9]{3}' "$log" >&2
if [ -n "$cache" ] && [ "$key" = "$(key_of)" ]; then # not if a source was edited meanwhile
    mkdir -p "$cache" && fresh=$(mktemp -d "$cache/new.XXXXXX") || exit 0
    cp "$out.fatbin" "$fresh/fatbin" && cp "$out.ptx" "$fresh/ptx" && cp "$log" "$fresh/ptxas.txt" && touch "$fresh/done" &&
        mv -T "$fresh" "$cache/$key" 2>/dev/null
    rm -rf "$fresh"
fi
exit 0
}
