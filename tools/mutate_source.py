#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in a kernel's source, one at a time, and tells which of them the simulator reports on a problem, and where.

A table (tests/sim/mutants/*.txt) names the kernel, its source, defines, problem, environment and perhaps seeds, and the faults: a line
`@ what | verdict | file`, the text that is there (`-`, its first place), the text in its place (`+`, or none) and perhaps `? SEED PROBLEM`, a
problem of its own, tried where the table's reports nothing. Each is compiled to PTX and run under the policy late with the first seed,
random with the others (1, 2 and 3 if the table names none). Exit status 1 if a fault whose verdict is "caught" was not, the kernel fails
as it is, on faults' own problems, too, a fault changes no instruction of the row (its text's first place is in code of another), or
nothing ran: a row that refuses the problem, or a build without it (status 77 of attn check), reports nothing.

Whether the report names the right place is told of the first finding, by the lines of CUDA source that it names (FILE:LINE and the
calls that were inlined there; of a race both sides; of a deadlock the waits of all warps):
  line      one of them is a changed line or at most 3 lines from one
  name      one of them, or a line beside it, has a name that the changed lines have: a barrier, a place in tensor or shared memory
  function  one of them is at most 12 lines from a changed line, in the same function
  other     none of these
  numbers   there is no finding: the results are wrong, which names no line
The first three are right. "others'": the share that would be right of the findings of the table's other faults, which measures how much
the rule lets pass.

usage: tools/mutate_source.py [--only N,N..] [--record FILE] TABLE.. BUILD     e.g. tests/sim/mutants/mla_bwd_sm100.txt build/release
       tools/mutate_source.py --sum FILE                                      what the records of earlier runs add up to
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BESIDE, NEAR = 3, 12
RIGHT = ("line", "name", "function")
NAME = re.compile(r"\b(?!CFG_|KP_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
PLACES = re.compile(r"\(([\w.]+:\d+(?: in [\w.]+:\d+)*)\)")


def read_table(path):
    table, faults = {}, []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("@ "):
            what, verdict, file = (x.strip() for x in line[2:].split(" | "))
            faults.append({"what": what, "verdict": verdict, "file": file, "-": [], "+": [], "?": []})
        elif line[:1] in ("-", "+") and faults:
            faults[-1][line[0]].append(line[1:])
        elif line.startswith("? ") and faults:
            faults[-1]["?"].append(line[2:].split(" ", 1))
        elif line and not line.startswith("#"):
            key, value = line.split(" ", 1)
            table[key] = value
    return table, faults


def compile_ptx(table, tree, folder):
    name = table["kernel"]
    defines = [f"-DCFG={name}"] + [f"-DCFG_{d}" for d in table["define"].split()]
    command = [os.environ.get("NVCC", "nvcc"), "-O3", "-std=c++17", "-I.", "-arch=compute_100a", "-lineinfo", "-ptx", *defines,
               "-o", str(folder / f"{name}.ptx"), table["source"]]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def instructions_of(folder, table):
    """The PTX without places in the sources: what a fault must change."""
    text = (folder / f"{table['kernel']}.ptx").read_text(encoding="utf-8")
    return [x for x in text.split("\n") if not re.match(r"\s*(//|\.loc|\.file|\.section|\.b8|\.b32|\.b64|\$L__)", x)]


class NothingRan(Exception):
    """attn check had no problem to try (status 77)."""


def first_finding(text):
    """What is told first: a finding with the lines behind it, or the line of a failed problem."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("attnsim"):
            end = next((j for j in range(i + 1, len(lines)) if not lines[j].startswith(" ")), len(lines))
            return "\n".join(lines[i:end])
    return next((x for x in lines if x.startswith("FAIL")), "")


def reports(table, own, build, folder):
    """The policy under which something was reported first, and what; or None. own: (seed, problem) of problems behind the table's."""
    env = dict(os.environ, ATTNSIM_PTX=str(folder), ATTNSIM_MAX_INSTRUCTIONS="200000000")
    env.update(x.split("=", 1) for x in table["environment"].split())
    runs = [("random" if n else "late", seed, table["problem"]) for n, seed in enumerate(table.get("seeds", "1 2 3").split())]
    for policy, seed, problem in runs + [("late", *x) for x in own]:
        command = [str(build / "attn"), "check", "--driver", "sim", "--policy", policy, "--seed", seed, "--threads", "1",
                   "--kernel", table["kernel"], "--problem", problem]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if run.returncode == 77:
            raise NothingRan((run.stderr + run.stdout).strip().split("\n")[-1][:160])
        if run.returncode != 0:
            return policy, first_finding(run.stderr + run.stdout) or f"exit status {run.returncode}"
    return None


def plant(tree, fault):
    """Changes the file: (the changed lines of the new text, the words of those of both); None if the old text is not there."""
    path = tree / fault["file"]
    text, old, new = path.read_text(encoding="utf-8"), "\n".join(fault["-"]), "\n".join(fault["+"])
    if old not in text:
        return None
    before = text[:text.index(old)]
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    same = len(os.path.commonprefix([old, new]))
    same -= len(old[:same]) - old[:same].rfind("\n") - 1  # whole lines
    same_end = len(os.path.commonprefix([old[:same - 1:-1] if same else old[::-1], new[:same - 1:-1] if same else new[::-1]]))
    first = before.count("\n") + 1 + old[:same].count("\n")
    changed = range(first, first + new[same:len(new) - same_end].count("\n") + 1)
    begin, end = before.rfind("\n") + 1, text.find("\n", len(before) + len(old))
    words = text[begin:end] + before[begin:] + new + text[len(before) + len(old):end]
    return changed, words


def function_of(lines, number):
    """Range of lines of the function around a line, or of what stands between two: they end in a } without indentation."""
    begin = next((i + 1 for i in range(number - 1, 0, -1) if lines[i - 1].startswith("}")), 1)
    end = next((i for i in range(number, len(lines) + 1) if lines[i - 1].startswith("}")), len(lines))
    return range(begin, end + 1)


class Judge:
    """What a place of the source is to a planted fault."""

    def __init__(self, tree, table, fault, planted):
        self.changed, words = planted
        self.file, self.names = os.path.basename(fault["file"]), set(NAME.findall(words))
        folder = (tree / table["source"]).parent
        self.sources = {x.name: x.read_text(encoding="utf-8").split("\n") for x in [*sorted(folder.iterdir()), tree / fault["file"]]
                        if x.is_file()}
        self.function = function_of(self.sources[self.file], self.changed[0])

    def kind(self, file, line):
        lines = self.sources.get(file, [])
        away = min(abs(line - x) for x in self.changed) if file == self.file else 1 << 30
        if away <= BESIDE:
            return "line"
        if any(self.names & set(NAME.findall(x)) for x in lines[max(line - 2, 0):line + 1]):
            return "name"
        return "function" if away <= NEAR and line in self.function else "other"

    def judge(self, places):
        kinds = {self.kind(*x) for x in places}
        return next((x for x in RIGHT if x in kinds), "other")


def places_of(finding):
    """(file, line) of each place that a finding names, once."""
    words = [x for m in PLACES.finditer(finding) for x in m[1].split(" in ")]
    return [(file, int(line)) for file, line in (x.split(":") for x in dict.fromkeys(words))]


def judges_of(records):
    """{(table, number): its judge}, of records with places."""
    judges = {}
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch)
        shutil.copytree(ROOT / "kernels", tree / "kernels")
        for name in {x["table"] for x in records}:
            table, faults = read_table(ROOT / name)
            for number in {x["number"] for x in records if x["table"] == name}:
                fault = faults[number - 1]
                planted = plant(tree, fault)
                if planted:
                    judges[name, number] = Judge(tree, table, fault, planted)
                    shutil.copy(ROOT / fault["file"], tree / fault["file"])
    return judges


def tell(records):
    """Counts of the records, and how many findings name the right place, and how many of other faults of their table would."""
    reported = [x for x in records if x["policy"]]
    found = [x for x in reported if x["finding"].startswith("attnsim")]
    print(f"{len(records)} faults, {len(reported)} reported: {len(found)} by a finding, {len(reported) - len(found)} by wrong numbers alone")
    judges = judges_of(found)
    kinds, chances = collections.Counter(), []
    for x in found:
        judge = judges.get((x["table"], x["number"]))
        if not judge:
            print(f"{x['table']} {x['number']}: its text is no longer there")
            continue
        kinds[judge.judge(places_of(x["finding"]))] += 1
        others = [y for y in found if y["table"] == x["table"] and y["number"] != x["number"]]
        if others:
            chances.append(sum(judge.judge(places_of(y["finding"])) in RIGHT for y in others) / len(others))
    if kinds:
        right, told = sum(kinds[x] for x in RIGHT), sum(kinds.values())
        print(f"findings that name the right place: {right} of {told}, {100 * right / told:.0f} % ("
              + ", ".join(f"{x} {kinds[x]}" for x in RIGHT + ("other",)) + ")"
              + (f"; others' {100 * sum(chances) / len(chances):.0f} %" if chances else ""))


def try_fault(table, own, build, fault, scratch, right):
    """(record, place) of one fault, or of the kernel as it is; (None, why there is none). right: instructions of the latter."""
    tree, folder = scratch / "tree", scratch / "ptx"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "kernels", tree / "kernels")
    folder.mkdir()
    planted = plant(tree, fault) if fault else None
    if fault and not planted:
        return None, f"its text is not in {fault['file']}"
    built = compile_ptx(table, tree, folder)
    if built.returncode != 0:
        return None, f"does not compile: {built.stderr[:300]}"
    if fault and instructions_of(folder, table) == right:
        return ({"policy": None, "finding": None}, None) if fault["verdict"] != "caught" else (None, "changes no instruction of this row")
    try:
        policy, finding = reports(table, own, build, folder) or (None, None)
    except NothingRan as reason:
        return None, f"nothing ran: {reason}"
    place = None
    if fault and finding:
        found = finding.startswith("attnsim")
        place = Judge(tree, table, fault, planted).judge(places_of(finding)) if found else "numbers"
    return {"policy": policy, "finding": finding}, place


def try_table(path, build, chosen, keep):
    """Records of a table's faults; how many went against it."""
    table, faults = read_table(path)
    records, wrong = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        compile_ptx(table, ROOT, pathlib.Path(scratch))
        right = instructions_of(pathlib.Path(scratch), table)
        for number, fault in enumerate([None] + faults):
            if chosen and number not in chosen:
                continue
            own = fault["?"] if fault else [x for f in faults for x in f["?"]]
            record, place = try_fault(table, own, build, fault, pathlib.Path(scratch), right)
            if not record:
                print(f"{number} {fault['what'] if fault else 'as it is'}: {place}", flush=True)
                wrong += 1
                continue
            told = f"{record['policy']}: {record['finding'][:160].splitlines()[0]}" if record["policy"] else None
            if not fault:
                print(f"0 as it is: {told or 'nothing reported'}")
                wrong += told is not None
                continue
            wrong += told is None and fault["verdict"] == "caught"
            print(f"{number} {fault['what']}: {told or 'NOTHING REPORTED'} (expected: {fault['verdict']}"
                  + (f"; place: {place})" if told else ")"), flush=True)
            record = {"table": str(path.resolve().relative_to(ROOT)), "number": number, **record}
            records.append(record)
            if keep:
                with open(keep, "a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    return records, wrong


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("paths", nargs="*", metavar="TABLE.. BUILD")
    options.add_argument("--only", default="", metavar="N,N..", help="these faults of each table, 0: the kernel as it is")
    options.add_argument("--record", metavar="FILE", help="JSON Lines: what was reported, added to")
    options.add_argument("--sum", metavar="FILE", help="tell what such a file has, run nothing")
    o = options.parse_args()
    if o.sum:
        with open(o.sum, encoding="utf-8") as file:
            newest = {(x["table"], x["number"]): x for x in map(json.loads, file)}
        tell(list(newest.values()))
        return 0
    if len(o.paths) < 2:
        options.error("a table and a build are needed")
    build, chosen = pathlib.Path(o.paths[-1]).resolve(), {int(x) for x in o.only.split(",") if x}
    records, wrong = [], 0
    for path in map(pathlib.Path, o.paths[:-1]):
        if len(o.paths) > 2:
            print(f"== {path.name}")
        found, against = try_table(path, build, chosen, o.record)
        records += found
        wrong += against
    tell(records)
    print(f"{wrong} against the table" + ("s" if len(o.paths) > 2 else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
