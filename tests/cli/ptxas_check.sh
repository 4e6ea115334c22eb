#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/ptxas_check.py and tools/ptxas_gate.sh on an assembler and a disassembler that repeat what the PTX file holds: each
# kind of fault is told, and nothing else.   Usage: ptxas_check.sh /path/to/attn [source folder]
source=${2:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null 2>&1 || exit 77
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

bin=$dir/build/nvcc/bin
build=$dir/build/release
mkdir -p "$dir/tools" "$dir/cmake" "$dir/kernels" "$bin" "$build/cuda"
cp "$source/tools/ptxas_check.py" "$source/tools/ptxas_budget.py" "$source/tools/compile_variant.sh" "$dir/tools/"
cp "$source/cmake/cuda.cmake" "$dir/cmake/"
cat >"$bin/ptxas" <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo 'release 13.0, V13.0.88'; exit 0; }
while [ $# -gt 1 ]; do
    [ "$1" != -o ] || cubin=$2
    shift
done
echo run >>"$RUNS"
cat "$1" >"$cubin"
cat "$1"
END
printf '#!/bin/sh\n[ "$1" != --version ] || { echo V13.5.37; exit 0; }\ncat "$2"\n' >"$bin/nvdisasm"
chmod +x "$bin/ptxas" "$bin/nvdisasm"
printf 'ATTN_NVCC:FILEPATH=/nowhere/bin/nvcc\nATTN_CUDA_CACHE:PATH=\n' >"$build/CMakeCache.txt"
printf '    ROW(0, attn_f_sm100_x, 1, 0),\n    ROW(1, attn_g_sm90_x, 1, 0),\n' >"$build/cuda/cuda_variants.c"
export RUNS="$dir/runs"

ptx() { # name, architecture, registers, spilled bytes, opcode, message
    cat >"$build/cuda/$1.ptx" <<END
ptxas info    : Compiling entry function '$1' for '$2'
    0 bytes stack frame, $4 bytes spill stores, $4 bytes spill loads
ptxas info    : Used $3 registers, used 3 barriers
$6
        /*bfc0*/              @!P1 $5 gdesc[UR14], gdesc[UR4] ;
.loc 1 $(date +%N) 3
END
}
budget() { # spilled bytes of f
    printf '# nvcc 13.0.88\nkernel\tarch\n' >"$dir/kernels/budget.tsv"
    printf 'attn_f_sm100_x\tsm_100a\t100\t%s\t%s\t0\t0\nattn_g_sm90_x\tsm_90a\t168\t0\t0\t0\t0\n' "$1" "$1" >>"$dir/kernels/budget.tsv"
}
claims() { # what f has, what it lacks
    printf 'kernel\tarch\thas\tlacks\nattn_f_*\t*\t%s\t%s\nattn_g_*\t*\tHGMMA\t-\n' "$1" "$2" >"$dir/kernels/sass.tsv"
}
check() { python3 "$dir/tools/ptxas_check.py" "$@" "$build" >"$dir/out" 2>&1; }
passes() { check --need-sass || { cat "$dir/out"; fail "$1"; }; }
told() { # what is wrong, the words that tell it
    check --need-sass && fail "$1 passes"
    grep -qE "$2" "$dir/out" || { cat "$dir/out"; fail "$1 is not told"; }
    grep -q ', 1 faults$' "$dir/out" || { cat "$dir/out"; fail "$1: other faults, too"; }
}

budget 0
claims UTCHMMA.2CTA -
ptx attn_f_sm100_x sm_100a 107 0 UTCHMMA.A.2CTA ''
ptx attn_g_sm90_x sm_90a 168 0 HGMMA.64x64x16.F32.BF16 ''
passes 'two kernels inside the budget'
runs=$(wc -l <"$RUNS")
ptx attn_f_sm100_x sm_100a 107 0 UTCHMMA.A.2CTA '' # another place in the source
passes 'two kernels once more'
[ "$(wc -l <"$RUNS")" -eq "$runs" ] || fail 'PTX that was assembled before is assembled again'

ptx attn_f_sm100_x sm_100a 108 0 UTCHMMA.2CTA ''
told 'eight registers more' 'attn_f_sm100_x sm_100a: 108 registers, the budget is 100'
ptx attn_f_sm100_x sm_100a 100 0 UTCHMMA ''
told 'the wrong cta_group' 'attn_f_sm100_x sm_100a: no UTCHMMA.2CTA .*sass.tsv:2'
claims UTCHMMA UTCHMMA.2CTA
passes 'one CTA as claimed'
ptx attn_f_sm100_x sm_100a 100 0 UTCHMMA.2CTA ''
told 'a pair that is not claimed' 'attn_f_sm100_x sm_100a: 1 UTCHMMA.2CTA in'
claims UTCHMMA.!2CTA -
told 'no instruction of one CTA' 'attn_f_sm100_x sm_100a: no UTCHMMA.!2CTA in'
claims - -
passes 'nothing claimed'
sed -i 2d "$dir/kernels/sass.tsv"
told 'a kernel without a claim' 'attn_f_sm100_x sm_100a: no line of kernels/sass.tsv'
claims - -
ptx attn_f_sm100_x sm_100a 100 0 UTCHMMA "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"
told 'C7508' 'attn_f_sm100_x sm_100a: .*C7508'

ptx attn_f_sm100_x sm_100a 100 8 UTCHMMA ''
check --need-sass && fail 'spills pass'
[ "$(grep -c '8 bytes spill \(stores\|loads\), the budget is 0' "$dir/out")" -eq 2 ] || fail 'spills are not told'
budget 8
passes 'spills that the budget names'
budget 0
check --accept --kernel '*_sm100_*' || fail '--accept'
grep -q '^attn_f_sm100_x	sm_100a	100	8	8	0	0$' "$dir/kernels/budget.tsv" || fail '--accept does not write'
grep -q '^attn_g_sm90_x	sm_90a	168' "$dir/kernels/budget.tsv" || fail '--accept of some kernels drops the others'
check --kernel 'nothing*' && fail 'a pattern that matches nothing passes'

if ! command -v nvdisasm >/dev/null 2>&1; then
    rm "$bin/nvdisasm"
    check || { cat "$dir/out"; fail 'no disassembler, none needed'; }
    check --need-sass && fail 'no disassembler, one needed'
fi

# The gate of a build with machine code.
printf 'ptxas info : Used 8 registers\n' >"$dir/k.ptxas.txt"
touch "$dir/k.fatbin"
"$source/tools/ptxas_gate.sh" "$dir/k.ptxas.txt" || fail 'a log without messages'
[ -e "$dir/k.fatbin" ] || fail 'the image is gone'
printf '(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n' >>"$dir/k.ptxas.txt"
"$source/tools/ptxas_gate.sh" "$dir/k.ptxas.txt" 2>"$dir/out" && fail 'C7510 passes'
grep -q C7510 "$dir/out" || fail 'C7510 is not told'
[ ! -e "$dir/k.fatbin" ] || fail 'the image stays'
exit $failed
