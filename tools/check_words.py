#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Vocabulary: words of tools/words.txt, which the field's own terms have replaced (docs/glossary.md), do not come back.

Prints each place that uses one, in names of the code or in comments, with the term to use instead.
usage: tools/check_words.py
"""
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
        if len(columns) != 6:
            raise ValueError(f"{TABLE}:{number}: {len(columns)} columns, 6 expected")
        self.word, rooms, names, comments, self.instead, allowed = columns
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


def main():
    words = read_table()
    files = list_files()
    for path in files:
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            names, comments = split(f.read())
        for word in words:
            word.look_at(path, names, comments)
    places = sorted(((path, line, text, word) for word in words for path, line, text in word.places), key=lambda x: x[:3])
    for path, line, text, word in places:
        print(f"{path}:{line}: `{text}`: {word.word} is retired, instead: {word.instead}")
    print(f"words: {len(words)} words, {len(files)} files, {len(places)} faults")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
