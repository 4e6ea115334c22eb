#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Registers, spills, stack and shared memory of every device kernel, as ptxas told when it was compiled, against
kernels/budget.tsv.

Fails on spills and stack frames over the budget, on ptxas's performance warnings (C75xx: wgmma serialised, setmaxnreg ignored),
on 8 registers more than the budget, and on kernels that the budget does not name. Numbers are compared only if the compiler is
the one that the budget was written with; spills of kernels without any in the budget fail by every compiler. --accept writes the
budget anew from what was compiled; the commit says why a number rises.
For a build with machine code; tools/ptxas_check.py assembles a build's PTX and uses the functions of this file.
usage: tools/ptxas_budget.py [--accept] [--table] [folder with *.ptxas.txt (build/release/cuda)]
"""
import argparse
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGET = os.path.join(ROOT, "kernels", "budget.tsv")
COLUMNS = ["registers", "spill_stores", "spill_loads", "stack", "shared"]
SLACK = 7  # more registers than the budget that are let pass
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
LOSS = re.compile(r"\bC75\d\d\b")


def read_log(lines, name, rows, messages):
    """Adds {(kernel, arch): numbers} and the C75xx messages of one log; name is what messages are told of."""
    numbers = None
    for line in lines:
        if LOSS.search(line):
            messages.append(f"{name}: {line.strip()}")
        m = ENTRY.search(line)
        if m:
            numbers = rows.setdefault(m.groups(), dict.fromkeys(COLUMNS, 0))
            continue
        if numbers is None:
            continue
        m = FRAME.search(line)
        if m:  # a function that was not inlined has a frame of its own: the worst counts
            for column, value in zip(("stack", "spill_stores", "spill_loads"), m.groups()):
                numbers[column] = max(numbers[column], int(value))
        m = USED.search(line)
        if m:
            numbers["registers"] = max(numbers["registers"], int(m.group(1)))
            m = SHARED.search(line)
            numbers["shared"] = int(m.group(1)) if m else 0


def read_budget():
    """The compiler's version and {(kernel, arch): numbers}; version None without a file."""
    version, rows = None, {}
    if os.path.exists(BUDGET):
        for line in open(BUDGET, encoding="utf-8"):
            m = re.match(r"# nvcc (\S+)", line)
            if m:
                version = m.group(1)
            elif not line.startswith(("#", "kernel\t")) and line.strip():
                fields = line.rstrip("\n").split("\t")
                rows[fields[0], fields[1]] = dict(zip(COLUMNS, map(int, fields[2:])))
    return version, rows


def write_budget(version, rows):
    with open(BUDGET, "w", encoding="utf-8") as f:
        f.write("# What ptxas may need for each kernel. Written by tools/ptxas_budget.py --accept, held by make ptxas-check.\n")
        f.write(f"# nvcc {version}\n")
        f.write("\t".join(["kernel", "arch"] + COLUMNS) + "\n")
        for key in sorted(rows):
            f.write("\t".join(list(key) + [str(rows[key][c]) for c in COLUMNS]) + "\n")


def compare(rows, budget, same_compiler):
    """Faults of compiled kernels against the budget."""
    faults = []
    for key in sorted(rows):
        row, allowed = rows[key], budget.get(key)
        if allowed is None:
            faults.append(f"{key[0]} {key[1]}: not in kernels/budget.tsv (--accept adds it)")
            allowed = dict.fromkeys(COLUMNS, 0)
        elif same_compiler and row["registers"] > allowed["registers"] + SLACK:
            faults.append(f"{key[0]} {key[1]}: {row['registers']} registers, the budget is {allowed['registers']}")
        for column in ("stack", "spill_stores", "spill_loads"):
            if row[column] > allowed[column] and (same_compiler or not allowed[column]):
                faults.append(f"{key[0]} {key[1]}: {row[column]} bytes {column.replace('_', ' ')}, the budget is {allowed[column]}")
    return faults


def unbuilt(rows, budget):
    """Faults of a budget's lines that nothing was compiled for."""
    return [f"{key[0]} {key[1]}: in kernels/budget.tsv, but not built" for key in sorted(set(budget) - set(rows))]


def print_table(rows, remarks):
    """Every kernel's numbers, and a remark on those that have one."""
    width = max((len(key[0]) for key in rows), default=0)
    print(f"{'kernel':{width}} {'arch':7} " + " ".join(f"{c:>12}" for c in COLUMNS))
    for key in sorted(rows):
        print(f"{key[0]:{width}} {key[1]:7} " + " ".join(f"{rows[key][c]:12}" for c in COLUMNS) + f"  {remarks.get(key, '')}".rstrip())


def main():
    parser = argparse.ArgumentParser(description="ptxas's numbers against kernels/budget.tsv")
    parser.add_argument("folder", nargs="?", default=os.path.join(ROOT, "build", "release", "cuda"))
    parser.add_argument("--accept", action="store_true", help="write the budget from what was compiled")
    parser.add_argument("--table", action="store_true", help="print every kernel, not only faults")
    o = parser.parse_args()
    rows, messages = {}, []
    logs = sorted(glob.glob(os.path.join(o.folder, "*.ptxas.txt")))
    listed = os.path.join(o.folder, "cuda_variants.c")
    if os.path.exists(listed):  # logs of variants that were since renamed stay in the folder
        names = set(re.findall(r"^    ROW\(\d+, (\w+),", open(listed, encoding="utf-8").read(), re.M))
        missing = sorted(names - {os.path.basename(p)[:-len(".ptxas.txt")] for p in logs})
        if missing:
            print(f"not compiled yet: {' '.join(missing)}")
            return 1
        logs = [p for p in logs if os.path.basename(p)[:-len(".ptxas.txt")] in names]
    if not logs:
        print(f"{o.folder}: no compiled kernels (built without CUDA?)")
        return 1
    for path in logs:
        with open(path, encoding="utf-8", errors="replace") as f:
            read_log(f, os.path.basename(path), rows, messages)
    version_file = os.path.join(o.folder, "nvcc.txt")
    version = open(version_file, encoding="utf-8").read().split()[0] if os.path.exists(version_file) else "unknown"
    if not rows:
        print(f"{o.folder}: kernels are PTX alone; build with -DATTN_CUDA_CODE=all")
        return 1
    if o.table:
        print_table(rows, {})

    faults = list(messages)
    if o.accept:
        write_budget(version, rows)
    else:
        budget_version, budget = read_budget()
        if budget_version != version:
            print(f"compiled with nvcc {version}, the budget is of {budget_version}: registers are not compared")
        faults += compare(rows, budget, budget_version == version) + unbuilt(rows, budget)
    for fault in faults:
        print(fault)
    print(f"ptxas: {len(rows)} kernels in {len(logs)} images, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
