#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a block costs in the steady state: the difference of two counted executions of one kernel, by launch and role.

    attn bench --driver sim --json --kernel K "SHORTER PROBLEM" "LONGER PROBLEM" | tools/counts_between.py 128

divides by 128, the blocks that the longer problem has more of (over all CTAs). Starts and ends cancel. Launches are
matched by their order, which must be the same in both. A launch whose warps fall into other roles in one of them is told
as a whole.
usage: tools/counts_between.py BLOCKS [FILE]     FILE or standard input: two records of `attn bench --json`
"""
import json
import sys


def difference(shorter, longer, blocks):
    """{name: value a block} of what differs."""
    return {name: (longer[name] - shorter.get(name, 0)) / blocks for name in longer if longer[name] != shorter.get(name, 0)}


def products(record):
    return {f"{p['kind']} {p['types']} {p['m']}x{p['n']}x{p['k']} ctas {p['ctas']} A {p['a']}": p["number"] for p in record["products"]}


def same_roles(one, two):
    return [r["role"] for r in one["roles"]] == [r["role"] for r in two["roles"]]


def table(launch, other, blocks):
    """Rows of a launch and its roles: name, whole, one column a role."""
    columns = [difference({**launch["counts"], **products(launch)}, {**other["counts"], **products(other)}, blocks)]
    for one, two in zip(launch["roles"], other["roles"]) if same_roles(launch, other) else ():
        columns.append(difference({**one["counts"], **products(one)}, {**two["counts"], **products(two)}, blocks))
    names = [name for name in {**other["counts"], **products(other)} if any(name in column for column in columns)]
    return [[name] + [column.get(name, 0) for column in columns] for name in names]


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) == 2 and sys.argv[1].startswith("-") else 2
    blocks = float(sys.argv[1])
    with open(sys.argv[2]) if len(sys.argv) == 3 else sys.stdin as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    if len(records) != 2 or any(not r.get("counted") for r in records):
        print("counts_between: two counted records are expected", file=sys.stderr)
        return 2
    short, long = (r["counted"]["launches"] for r in records)
    if [x["kernel"] for x in short] != [x["kernel"] for x in long]:
        print("counts_between: the records have other launches", file=sys.stderr)
        return 1
    for one, two in zip(short, long):
        rows = table(one, two, blocks)
        if not rows:
            continue
        print(f"{one['kernel']}: counted, not timed; a block of {blocks:g}")
        if len(one["roles"]) > 1 and same_roles(one, two):
            print(f"  {'':44}{'all':>12}" + "".join(f"{role['role'][:22]:>24}" for role in one["roles"]))
        for name, whole, *roles in rows:
            print(f"  {name:44}{whole:12.1f}" + ("".join(f"{x:24.1f}" for x in roles) if len(roles) > 1 else ""))
        if one["clocks"] and two["clocks"]:
            for name, value in sorted(difference(one["clocks"], two["clocks"], blocks).items(), key=lambda x: -x[1]):
                print(f"  {'clocks of ' + name:44}{value:12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
