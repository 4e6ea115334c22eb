#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the binary interface that include/attn.h declares: functions, struct layouts, constants.

usage: tools/abi_layout.py functions            names declared with ATTN_API, sorted
       tools/abi_layout.py layout [compiler]    "struct.member offset size" and "CONSTANT value", from a compiled program
Reads the header's text for names only; offsets, sizes and values come from the compiler.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include", "attn.h")


def plain_text():
    with open(HEADER, encoding="utf-8") as f:
        return re.sub(r"//[^\n]*|/\*.*?\*/", " ", f.read(), flags=re.S)


def functions(text):
    names = re.findall(r"ATTN_API\b[^;{]*?\b(attn_\w+)\s*\(", text)
    if not names:
        sys.exit("no ATTN_API function found: has the header's form changed?")
    return sorted(set(names))


def structs(text):
    """[(name, [members])] of every struct with a body."""
    found = []
    for name, body in re.findall(r"typedef struct (attn_\w+)\s*\{(.*?)\}\s*\1\s*;", text, re.S):
        members = []
        for declaration in body.split(";"):
            declaration = declaration.strip()
            if not declaration:
                continue
            for i, part in enumerate(declaration.split(",")):
                part = re.sub(r"\[[^\]]*\]", "", part)
                words = re.findall(r"\w+", part)
                if not words:
                    sys.exit(f"cannot read member {declaration!r} of {name}")
                members.append(words[-1])
        found.append((name, members))
    return found


def constants(text):
    names = []
    for body in re.findall(r"\benum\s*\{(.*?)\}", text, re.S):
        names += re.findall(r"\b(ATTN_\w+)\s*(?:=[^,]*)?(?:,|$)", body.strip())
    skip = {"ATTN_H", "ATTN_API"}
    names += [n for n in re.findall(r"^#define (ATTN_\w+)[ \t]+[^\n]*\d", text, re.M)
              if n not in skip and not n.endswith("_INIT") and not n.startswith("ATTN_DEVICE_C")]
    seen = []
    for n in names:
        if n not in seen:
            seen.append(n)
    # Counts grow with every addition that keeps old programs working, the version with every release.
    return [n for n in seen if not n.endswith("_COUNT_") and n not in ("ATTN_ROLE_COUNT", "ATTN_FLAGS_ALL_")
            and not n.startswith("ATTN_VERSION_")]


def layout(text, compiler):
    lines = ['#include "attn.h"', "#include <stdio.h>", "#include <inttypes.h>", "int main(void) {"]
    for name, members in structs(text):
        lines.append(f'    printf("{name} size %zu align %zu\\n", sizeof({name}), _Alignof({name}));')
        for member in members:
            lines.append(f'    printf("{name}.{member} offset %zu size %zu\\n", offsetof({name}, {member}), '
                         f"sizeof((({name} *)0)->{member}));")
    for name in constants(text):
        lines.append(f'    printf("{name} %" PRIu64 "\\n", (uint64_t)({name}));')
    lines += ["    return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        subprocess.run([compiler, "-std=c11", "-I", os.path.dirname(HEADER), source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "functions":
        print("\n".join(functions(plain_text())))
    elif what == "layout":
        sys.stdout.write(layout(plain_text(), sys.argv[2] if len(sys.argv) > 2 else "cc"))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
