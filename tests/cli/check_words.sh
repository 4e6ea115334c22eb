#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/check_words.py: finds retired words in names and comments, leaves strings and allowed names alone.
# Usage: check_words.sh /path/to/attn [source folder]
source=${2:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null 2>&1 || exit 77
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

mkdir -p "$dir/tools" "$dir/src/room" "$dir/cli"
cp "$source/tools/check_words.py" "$dir/tools/"
cat >"$dir/tools/words.txt" <<'END'
# a comment
  of      all       =of     -               a noun   -
  turned  src/room  turned  \bturned\b(?! into)  transposed  turned_ok,*/other.c
END
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
python3 "$dir/tools/check_words.py" >"$dir/out" && fail 'retired words pass'
grep -q '7 faults' "$dir/out" || fail 'count'
[ "$(grep -c '^src/room/a.c:[134]: `.*turned.*`: turned is retired, instead: transposed' "$dir/out")" = 5 ] || fail 'places'
grep -q '^cli/b.c:1: `of`: of is retired, instead: a noun' "$dir/out" || fail 'a name in another folder'
printf '/* turned into nothing */\nint offset, turned_ok;\n' >"$dir/src/room/a.c"
echo 'int turned;' >"$dir/cli/b.c"
python3 "$dir/tools/check_words.py" >"$dir/out" || fail 'allowed names'
grep -q '2 words, 3 files, 0 faults' "$dir/out" || fail 'summary'
exit $failed
