#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Percent of each kernel's PTX instructions that the simulator executed, of the files that ATTNSIM_COVERAGE=FOLDER left
(sim/checks/coverage.h), and on request the lines that it never reached.

usage: tools/sim_coverage.py FOLDER [--kernel GLOB] [--lines] [--least PERCENT]
  --lines          lines of the sources that no lane ever reached, with those of the PTX; partly reached ones marked ~
  --least PERCENT  fail if a kernel has less
"""
import argparse
import fnmatch
import os
import sys


def read(path):
    """{(PTX line, instruction, place, call): executed}; copies of an inlined function count once."""
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = f.read().split("\n")
    n = int(lines[0].split()[1])
    rows, flags = lines[2:2 + n], lines[1]
    if len(rows) != n or len(flags) != n:
        raise ValueError(f"{path}: {len(rows)} instructions, {len(flags)} digits, not {n}")
    out = {}
    for flag, row in zip(flags, rows):
        key = tuple(row.split("\t"))
        out[key] = out.get(key, False) or flag == "1"
    return out


def short(place):
    return "/".join(place.split("/")[-2:])


def ranges(numbers):
    out, numbers = [], sorted(numbers)
    for x in numbers:
        if out and x <= out[-1][1] + 3:  # .loc and labels lie between
            out[-1][1] = x
        else:
            out.append([x, x])
    return " ".join(f"{a}-{b}" if a != b else str(a) for a, b in out)


def tell_lines(table):
    places = {}
    for (line, _, place, call), executed in table.items():
        places.setdefault((place, call), []).append((int(line), executed))
    for (place, call), found in sorted(places.items(), key=lambda x: min(x[1])):
        missed = [line for line, executed in found if not executed]
        if not missed:
            continue
        where = short(place) if place != "-" else "no line of the sources"
        inside = f" in {short(call)}" if call != "-" else ""
        mark = " " if len(missed) == len(found) else "~"
        print(f"  {mark} {where}{inside}: {len(missed)} of {len(found)} instructions, PTX {ranges(missed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--kernel", default="*")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--least", type=float, default=0)
    a = parser.parse_args()
    files = sorted(os.listdir(a.folder)) if os.path.isdir(a.folder) else []
    names = [n[:-4] for n in files if n.endswith(".cov") and fnmatch.fnmatch(n[:-4], a.kernel)]
    if not names:
        print(f"no kernel {a.kernel} in {a.folder}")
        return 1
    total = done = below = 0
    for name in names:
        table = read(os.path.join(a.folder, name + ".cov"))
        n, hit = len(table), sum(table.values())
        total, done = total + n, done + hit
        below += 100 * hit < a.least * n
        print(f"{name:60} {hit:7} of {n:7} {100 * hit / max(n, 1):6.1f} %")
        if a.lines:
            tell_lines(table)
    if len(names) > 1:
        print(f"{'all':60} {done:7} of {total:7} {100 * done / max(total, 1):6.1f} %")
    if below:
        print(f"{below} below {a.least:g} %")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
