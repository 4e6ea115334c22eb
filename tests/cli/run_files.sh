#!/bin/sh
# SPDX-License-Identifier: MIT
# `attn run` on files that are cut, wrong or hostile, and on tensors that do not fit: exit 3 or 2, a reason, no output file.
# Usage: run_files.sh /path/to/attn
attn=$(cd "$(dirname "${1:?path of attn}")" && pwd)/$(basename "$1")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# refused CODE TEXT ARGUMENTS...
refused() {
    code=$1 text=$2
    shift 2
    rm -f result.safetensors
    "$attn" run --out result.safetensors "$@" >out 2>err
    got=$?
    [ "$got" = "$code" ] || { fail "attn run $*: exit $got, expected $code"; cat err; }
    grep -qF -- "$text" err || { fail "attn run $*: stderr lacks '$text'"; cat err; }
    [ -e result.safetensors ] && fail "attn run $*: wrote a result"
    [ -s out ] && fail "attn run $*: wrote on stdout"
}

"$attn" run 'sdpa_fwd hq=2 sq=3 d=4 dv=4 f32' --out-dir good 2>/dev/null || fail 'no tensors to start from'
good=good/out.npy

: >empty
head -c 5 "$good" >cut5
head -c 70 "$good" >cut70
head -c 130 "$good" >cut130
{ cat "$good"; printf x; } >long
sed 's/<f4/>f4/' "$good" >big
sed 's/False/True /' "$good" >columns
sed 's/<f4/<c8/' "$good" >complex
sed 's/(1, 2,/(-1,2,/' "$good" >negative
printf '\223NUMPY\011\000\010\000{      }' >version
for f in empty cut5; do refused 3 'not a .npy file' sdpa_fwd --q $f --k "$good" --v "$good"; done
refused 3 'ends beyond the file' sdpa_fwd --q cut70 --k "$good" --v "$good"
refused 3 'bytes of data' sdpa_fwd --q cut130 --k "$good" --v "$good"
refused 3 'bytes of data' sdpa_fwd --q long --k "$good" --v "$good"
refused 3 "big-endian data is not read; in Python, x.astype('<f4')" sdpa_fwd --q big --k "$good" --v "$good"
refused 3 'column-major (fortran_order) data is not read; in Python, numpy.ascontiguousarray(x)' sdpa_fwd --q columns --k "$good" --v "$good"
refused 3 '<c8' sdpa_fwd --q complex --k "$good" --v "$good"
refused 3 'header' sdpa_fwd --q negative --k "$good" --v "$good"
refused 3 'version 9.0' sdpa_fwd --q version --k "$good" --v "$good"
# No axes, and five: what was expected stands there, in the order that was asked for.
sed 's/(1, 2, 3, 4), }/(),           }/' "$good" | head -c 132 >scalar
refused 3 'q: given an array of 0 axes, expected [batch, heads, rows, width], [heads, rows, width] or [rows, width]' \
    sdpa_fwd --q scalar --k "$good" --v "$good"
refused 3 'k: given an array of 0 axes, expected [batch, rows, heads, width],' sdpa_fwd --bshd --q "$good" --k scalar --v "$good"
refused 3 'indices: given an array of 0 axes, expected [batch, rows, 1, topk]' mla_fwd --q "$good" --kv "$good" --indices scalar
refused 3 'nowhere.npy' sdpa_fwd --q nowhere.npy --k "$good" --v "$good"

refused 3 'not a safetensors file' sdpa_fwd --in empty
refused 3 'not a safetensors file' sdpa_fwd --in "$good"
printf '\002\000\000\000\000\000\000\000{}' >none
refused 2 'lacks' sdpa_fwd --in none
printf '\377\377\377\377\377\377\377\377{}' >huge
refused 3 'not a safetensors file' sdpa_fwd --in huge
# header TEXT [DATA]: a safetensors file; the length byte is written as octal
header() { printf "\\$(printf '%03o' ${#1})\000\000\000\000\000\000\000%s%s" "$1" "$2"; }
header '{"q":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}' 12 >st
refused 3 'do not lie in' sdpa_fwd --in st
header '{"q":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}' 1234 >st
refused 3 'does not fit' sdpa_fwd --in st
header '{"q":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"k":{"dtype":"F32","shape":[1,1],"data_offsets":[2,6]}}' 123456 >st
refused 3 'overlaps' sdpa_fwd --in st
header '{"q":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"q":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}' 12345678 >st
refused 3 'duplicate' sdpa_fwd --in st
header '{"q":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}' 12345678 >st
refused 3 'belong to no tensor' sdpa_fwd --in st

refused 2 'v is missing' sdpa_fwd --q "$good" --k "$good"
refused 2 'does not read kv' sdpa_fwd --q "$good" --k "$good" --v "$good" --kv "$good"
refused 3 'q: expected shape [1,2,5,4], given [1,2,3,4]' 'sdpa_fwd sq=5' --q "$good" --k "$good" --v "$good"
refused 3 'sink: expected shape [2], given [1,2,3,4]' sdpa_fwd --q "$good" --k "$good" --v "$good" --sink "$good"
refused 3 'seqlens_k: expected i32, given f32' sdpa_fwd --q "$good" --k "$good" --v "$good" --seqlens-k "$good"
refused 3 'mask: expected shape' sdpa_fwd --q "$good" --k "$good" --v "$good" --mask "$good"
refused 2 'give both out and lse' sdpa_bwd --q "$good" --k "$good" --v "$good" --dout "$good" --fwd-out "$good"
refused 2 'standard input can be read only once' sdpa_fwd --q - --k - --v "$good"
refused 2 "--outputs: no tensor 'nothing'" 'sdpa_fwd hq=1 sq=1 d=8 f32' --outputs out,nothing
refused 3 'ATTN_E_NO_DEVICE' 'sdpa_fwd hq=1 sq=1 d=8 f32' --device cuda:99

# Joined lists as an input: made by mla_join or of the lists, with one result; of another group, or not read.
mla='mla_fwd hq=2 sq=9 sk=90 topk=20 d=512 f32'
"$attn" run 'mla_join sq=9 sk=90 topk=20 group=4' --seed 3 --out-dir lists 2>err || fail 'mla_join: exit code'
grep -q '^3 of 3 groups of 4 queries joined, unions of ' err || fail 'mla_join: no word of its groups'
for words in '' '--joined lists/joined.npy'; do
    "$attn" run "$mla group=4" --seed 3 --out-dir "mla${words:+-given}" $words 2>err || { fail "mla_fwd $words: exit code"; cat err; }
done
cmp -s mla/out.npy mla-given/out.npy || fail 'joined lists change the result'
refused 3 'joined: expected shape [1,5,' "$mla group=2" --seed 3 --joined lists/joined.npy
refused 2 'this problem does not read joined' "$mla" --seed 3 --joined lists/joined.npy

"$attn" run 'sdpa_fwd hq=1 sq=1 d=8 f32' --out nowhere/x 2>err
[ $? = 3 ] || fail 'a path that cannot be written: exit code'
grep -q 'nowhere/x' err || fail 'a path that cannot be written: no reason'
"$attn" run 'sdpa_fwd hq=1 sq=1 d=8 f32' --json --out - >out 2>err
[ $? = 2 ] || fail '--json and --out -: exit code'
exit $failed
