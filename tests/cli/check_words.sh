#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/check_words.py: counts names and comments, leaves strings and allowed names alone, fails above a ceiling.
# Usage: check_words.sh /path/to/attn [source folder]
source=${2:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null 2>&1 || exit 77
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

mkdir -p "$dir/tools" "$dir/src/room" "$dir/cli"
cp "$source/tools/check_words.py" "$dir/tools/"
table() {
    cat >"$dir/tools/words.txt" <<END
# a comment
  $1  of      all       =of     -               a noun   -
  $2  turned  src/room  turned  \\bturned\\b(?! into)  transposed  turned_ok,*/other.c
END
}
cat >"$dir/src/room/a.c" <<'END'
/* turned once, and turned
 * turned into nothing */
int turned_q, q_turned, returned, turned_ok;
const char *text = "turned", c = 'o'; // turned
int of, offset, of_x; /* of */
END
echo 'int turned;' >"$dir/src/room/other.c"
echo 'int turned, of;' >"$dir/cli/b.c"
# of in two files; turned three times in comments and in two names
table 2 5
python3 "$dir/tools/check_words.py" >"$dir/out" || fail 'counts at their ceilings'
grep -q '7 places, 0 over' "$dir/out" || fail 'count'
[ "$(python3 "$dir/tools/check_words.py" --list turned | grep -c '^src/room/a.c:[134]: ')" = 5 ] || fail 'list'
table 2 4
python3 "$dir/tools/check_words.py" >"$dir/out" && fail 'a count above its ceiling passes'
grep -q '`turned` in 5 places, at most 4' "$dir/out" || fail 'which word'
python3 "$dir/tools/check_words.py" --lower >/dev/null
grep -q '^  4  turned' "$dir/tools/words.txt" || fail 'a ceiling rose'
table 3 5
python3 "$dir/tools/check_words.py" >/dev/null || fail 'a count below its ceiling'
python3 "$dir/tools/check_words.py" --lower >/dev/null
grep -q '^  2  of' "$dir/tools/words.txt" || fail 'a ceiling that did not fall'
exit $failed
