#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/first_contact.sh: without a driver it must say so in words and exit with status 77; with the simulator as DRIVER a rehearsal on one
# row must leave a report with all its parts, of which a tool's finding makes a failure.   usage: first_contact.sh KIT BUILD [DRIVER]
kit=$1 build=$2 driver=${3-}
if [ -z "$driver" ]; then
    words=$(FIRST_CONTACT_DRIVER=/nowhere/libcuda.so.1 "$kit" "$build")
    status=$?
    echo "$words"
    [ $status -eq 77 ] || exit 1
    case $words in
    'no Blackwell device: the driver cannot be opened'*) exit 0 ;;
    esac
    exit 1
fi
row=attn_sdpa_fwd_sm100_bf16_d128
"$build/attn" list --backend cuda --json | grep -q "\"$row\"" && command -v python3 >/dev/null || exit 77
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
cases=$(dirname "$kit")/../bench/cases

# What is expected is measured, and what is measured is expected.
list() { sort -u | sed 's/ *$//'; }
awk '/^--overlap/ { j = $2 } /^[a-z]/ { print $0 "\t" (j ? j : "-") }' "$cases/blackwell.txt" | list >"$dir/listed"
grep -E '^[a-z_]+ [a-z]+=' "$cases/blackwell_expected.tsv" | cut -f 1,2 | list >"$dir/expected"
cmp -s "$dir/listed" "$dir/expected" || { fail 'blackwell.txt and blackwell_expected.tsv differ'; diff "$dir/listed" "$dir/expected"; }

cat >"$dir/tool" <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo 'Version stand-in'; exit 0; }
tool=$2
shift 6
"$@" || exit
[ "$tool" != "$FINDS" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 42; }
END
chmod +x "$dir/tool"
rehearse() { # the tool that finds something, or none; the rest of the environment
    env FIRST_CONTACT_DRIVER="$driver" FIRST_CONTACT_OUT="$dir/out" SANITIZER="$dir/tool" ROWS=$row PARTS='rows sanitize bench' FINDS="$1" \
        "$kit" "$build" >"$dir/told" 2>&1
}
has() { grep -qE -- "$1" "$dir/out/report.md" || fail "the report has no line like: $1"; }
rehearse none || fail 'a rehearsal of one row: exit status'
for line in '^Outcome: all agree$' '^A rehearsal in the simulator' '^\| date \| 2' '^\| device \| device 0: ' '^\| attn \| attn ' \
    '^\| compute-sanitizer \| Version stand-in \|' "^\| $row \| passed \|" "^\| memcheck $row \| passed \|" "^\| racecheck $row \| passed \|" \
    "^\| synccheck $row \| passed \|" "^\| initcheck $row \| passed \|" \
    '^\| `sdpa_fwd hq=64 hk=8 sq=8192 d=128 bf16` \| - \| sdpa_fwd_sm100_bf16_d128 \| [1-9][0-9]* \| 1708 \| .* \| 1702 \(cuDNN\) \|$' \
    '^Nothing\.$' '^## If a step had no end$'; do
    has "$line"
done
[ "$(grep -c '"measure":"counted"' "$dir/out/attn.jsonl")" -eq 2 ] || fail 'records of both problems of the row'
rehearse racecheck && fail 'a finding of a tool: exit status'
has '^Outcome: something differs$'
has "^\| racecheck $row \| \*\*failed, status 42\*\* \|"
has "^racecheck $row: "
has "^\| memcheck $row \| passed \|"
[ $failed -eq 0 ] || cat "$dir/told" "$dir/out/report.md"
exit $failed
