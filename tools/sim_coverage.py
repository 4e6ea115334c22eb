#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Percent of each kernel's PTX instructions that the simulator executed, of the files that ATTNSIM_COVERAGE=FOLDER left
(sim/checks/coverage.h), and on request the lines that it never reached.

usage: tools/sim_coverage.py FOLDER [--kernel GLOB] [--lines] [--least PERCENT] [--floors FILE] [--ptx FOLDER]
                             [--unreachable FILE]
  --lines          lines of the sources that no lane ever reached, with those of the PTX; partly reached ones marked ~
  --least PERCENT  fail if a kernel has less
  --floors FILE    fail if a kernel has less than the first line for it says: kernels (globs), percent, what is not
                   reached and why, separated by tabs; lines that begin with # are comments
  --ptx FOLDER     kernels with a file NAME.ptx there count, too, if they never ran
  --unreachable FILE
                   instructions that no problem reaches, by lines of the sources: kernels (globs), file, a part of the
                   line's text, reason, separated by tabs; file -: the text is an instruction, with those behind it up to
                   the next branch. They count as reached, and --lines leaves them out; fail if
                   a kernel has more than 5 % of them or, with --floors, if no kernel that ran has such a line
"""
import argparse
import fnmatch
import functools
import os
import sys

MOST_UNREACHABLE = 5  # percent of a kernel
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


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


def tell_listed(listed, n):
    return f" and {100 * listed / n:.1f} % unreachable" if listed else ""


def floors_of(path):
    """[(globs, percent)]"""
    out = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                globs, percent, _ = line.rstrip("\n").split("\t")
                out.append((globs.split(), float(percent)))
    return out


def floor_of(floors, name):
    return next((least for globs, least in floors if any(fnmatch.fnmatch(name, g) for g in globs)), 0)


@functools.lru_cache(maxsize=None)
def source_lines(path):
    for base in ("", ROOT):
        full = os.path.join(base, path)
        if os.path.isfile(full):
            with open(full, encoding="utf-8", errors="replace") as f:
                return f.read().split("\n")
    return []


def text_of(place):
    """Of FILE:LINE"""
    path, _, number = place.rpartition(":")
    lines = source_lines(path)
    return lines[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(lines) else ""


class Unreachable:
    def __init__(self, path):
        self.entries = []
        if not path:
            return
        with open(path, encoding="utf-8") as f:
            for line in f:
                if line.strip() and not line.startswith("#"):
                    globs, file, text, reason = line.rstrip("\n").split("\t")
                    if not reason:
                        raise ValueError(f"{path}: no reason for {text}")
                    self.entries.append({"globs": globs.split(), "file": file, "text": text, "ran": 0, "found": 0})

    def take(self, name, table):
        """The kernel's instructions that are listed and were not executed."""
        mine = [e for e in self.entries if any(fnmatch.fnmatch(name, g) for g in e["globs"])]
        out = set()
        for e in mine:
            e["ran"] = 1
        out |= self.ways(mine, table)
        for key, executed in table.items():
            for e in mine:
                file = key[2].rpartition(":")[0]
                if (file == e["file"] or file.endswith("/" + e["file"])) and e["text"] in text_of(key[2]):
                    e["found"] = 1
                    if not executed:
                        out.add(key)
        return out

    @staticmethod
    def ways(mine, table):
        """What no lane executed from a listed instruction to the next branch."""
        out, on_way = set(), False
        listed = {e["text"]: e for e in mine if e["file"] == "-"}
        for key in sorted(table, key=lambda k: int(k[0])):
            if key[1] in listed:
                listed[key[1]]["found"], on_way = 1, True
            on_way = on_way and not table[key]
            if on_way:
                out.add(key)
            on_way = on_way and not key[1].startswith("bra")
        return out

    def stale(self):
        return [f"{e['file']}: {e['text']}" for e in self.entries if e["ran"] and not e["found"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--kernel", default="*")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--floors")
    parser.add_argument("--ptx")
    parser.add_argument("--unreachable")
    a = parser.parse_args()
    files = sorted(os.listdir(a.folder)) if os.path.isdir(a.folder) else []
    names = [n[:-4] for n in files if n.endswith(".cov") and fnmatch.fnmatch(n[:-4], a.kernel)]
    never = [n[:-4] for n in sorted(os.listdir(a.ptx)) if n.endswith(".ptx")] if a.ptx else []
    never = [n for n in never if n not in names and fnmatch.fnmatch(n, a.kernel)]
    floors = [(["*"], a.least)] if a.least or not a.floors else floors_of(a.floors)
    if not names:
        print(f"no kernel {a.kernel} in {a.folder}")
        return 1
    unreachable = Unreachable(a.unreachable)
    total = done = without = short_of_95 = 0
    below = [f"{name} never ran" for name in never if floor_of(floors, name) > 0]
    for name in names:
        table = read(os.path.join(a.folder, name + ".cov"))
        n, hit = len(table), sum(table.values())
        listed = unreachable.take(name, table)
        total, done, without = total + n, done + hit, without + len(listed)
        short_of_95 += 100 * (hit + len(listed)) < 95 * n
        if 100 * (hit + len(listed)) < floor_of(floors, name) * n:
            below.append(f"{name}: {100 * (hit + len(listed)) / n:.1f} %, not {floor_of(floors, name):g} %")
        if 100 * len(listed) > MOST_UNREACHABLE * n:
            below.append(f"{name}: {100 * len(listed) / n:.1f} % listed as unreachable, at most {MOST_UNREACHABLE} %")
        print(f"{name:60} {hit:7} of {n:7} {100 * hit / max(n, 1):6.1f} %{tell_listed(len(listed), n)}")
        if a.lines:
            tell_lines({key: executed for key, executed in table.items() if key not in listed})
    if len(names) > 1:
        print(f"{'all':60} {done:7} of {total:7} {100 * done / max(total, 1):6.1f} %{tell_listed(without, total)}")
        print(f"{short_of_95} of {len(names)} kernels below 95 %")
    if a.floors:
        below += [f"no such line among the instructions: {text}" for text in unreachable.stale()]
    if below and not a.floors and not a.unreachable:
        print(f"{len(below)} below {a.least:g} %")
    elif below:
        print("\n".join(["instructions reached, less than the floor:"] + below))
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
