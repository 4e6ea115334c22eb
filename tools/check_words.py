#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Vocabulary: words of tools/words.txt that are being replaced by the field's own terms (docs/glossary.md).

Each word has a ceiling, the number of places that still use it. A count above its ceiling fails. A count below it is
reported; --lower writes the lower number into the table, and nothing ever raises one.
usage: tools/check_words.py [--list WORD ...] [--lower]     --list prints the places of the words (all if none is named)
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join("tools", "words.txt")
ROOMS = ("src", "kernels", "cli", "sim", "tests")
CODE = (".c", ".h", ".cu")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
NAME = re.compile(r"[A-Za-z_]\w*")


class Word:
    """A line of the table. Columns stand apart by two or more blanks; `-` is an empty one."""

    def __init__(self, number, line):
        columns = re.split(r"\s{2,}", line.strip())
        if len(columns) != 7:
            raise ValueError(f"{TABLE}:{number}: {len(columns)} columns, 7 expected")
        ceiling, self.word, rooms, names, comments, self.instead, allowed = columns
        self.number, self.ceiling = number, int(ceiling)
        self.rooms = tuple(room + "/" for room in (ROOMS if rooms == "all" else rooms.split(",")))
        # a name that consists of such a word, or has it among the parts that underscores separate
        whole, names = names.startswith("="), names.lstrip("=")
        bounds = (r"\A(?:", r")\Z") if whole else (r"(?:\A|_)(?:", r")(?=_|\Z)")
        self.names = None if names == "-" else re.compile(bounds[0] + names + bounds[1], re.I)
        self.comments = None if comments == "-" else re.compile(comments, re.I)
        self.allowed = () if allowed == "-" else tuple(allowed.split(","))
        self.places = []

    def permits(self, text):
        return any(fnmatch.fnmatchcase(text, pattern) for pattern in self.allowed)

    def look_at(self, path, names, comments):
        if not path.startswith(self.rooms) or self.permits(path):
            return
        if self.names:
            self.places += [(path, n, name) for n, name in names if self.names.search(name) and not self.permits(name)]
        if self.comments:
            for n, text in comments:
                self.places += [(path, n, m.group(0)) for m in self.comments.finditer(text)]


def read_table():
    with open(os.path.join(ROOT, TABLE), encoding="utf-8") as f:
        return [Word(n, line) for n, line in enumerate(f, 1) if line.strip() and not line.startswith("#")]


def split(text):
    """Names of the code and text of the comments, each with its line. Strings are neither."""
    comments, code, end = [], [], 0
    for m in TOKEN.finditer(text):
        code.append(text[end:m.start()])
        code.append("\n" * m.group(0).count("\n") or " ")
        end = m.end()
        if m.group(0).startswith("/"):
            line = text.count("\n", 0, m.start()) + 1
            comments += [(line + k, part) for k, part in enumerate(m.group(0).split("\n"))]
    code.append(text[end:])
    names = [(n, name) for n, line in enumerate("".join(code).split("\n"), 1) for name in NAME.findall(line)]
    return names, comments


def list_files():
    """Tracked and new sources that git does not ignore; without git, all below the rooms of code."""
    try:
        out = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=True).stdout.decode()
        files = [f for f in out.split("\0") if f]
    except (OSError, subprocess.CalledProcessError):
        files = [os.path.relpath(os.path.join(folder, name), ROOT)
                 for room in ROOMS for folder, _, names in os.walk(
                     os.path.join(ROOT, room)) for name in names]
    return sorted(f for f in set(files) if f.endswith(CODE) and os.path.isfile(os.path.join(ROOT, f)))


def lower(words):
    """Writes counts that fell into the table, in the same columns."""
    path = os.path.join(ROOT, TABLE)
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    for word in words:
        if len(word.places) < word.ceiling:
            line = lines[word.number - 1]
            width = len(line) - len(line.lstrip()) + len(str(word.ceiling))
            lines[word.number - 1] = f"{len(word.places):>{width}}" + line[width:]
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(lines)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("     ")[0])
    parser.add_argument("--list", nargs="*", metavar="WORD")
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args()
    words = read_table()
    unknown = set(options.list or []) - {word.word for word in words}
    if unknown:
        parser.error(f"not in {TABLE}: {', '.join(sorted(unknown))}")
    for path in list_files():
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            names, comments = split(f.read())
        for word in words:
            word.look_at(path, names, comments)
    faults = 0
    for word in words:
        if options.list is not None and (not options.list or word.word in options.list):
            for path, line, text in word.places:
                print(f"{path}:{line}: {text}: {word.instead}")
        if len(word.places) > word.ceiling:
            faults += 1
            print(f"{TABLE}:{word.number}: `{word.word}` in {len(word.places)} places, at most {word.ceiling}; "
                  f"instead: {word.instead}   (places: tools/check_words.py --list {word.word})")
        elif len(word.places) < word.ceiling and not options.lower:
            print(f"{TABLE}:{word.number}: `{word.word}` in {len(word.places)} places, ceiling {word.ceiling}: "
                  "lower it (tools/check_words.py --lower)")
    if options.lower:
        lower(words)
    print(f"words: {len(words)} words, {sum(len(word.places) for word in words)} places, {faults} over their ceiling")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
