#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Leaves out one wait, barrier, arrive or commit of a program's PTX at a time, runs the program in the simulator with
advice off and tells which of them nobody noticed.

    tests/sim/outside/mutants.py --sim SIM --gpu b200 [--kernel WORD] [--log FILE] [--sms N] [--jobs N] PROGRAM [ARGUMENT...]

The program compares its results by itself and ends with status 0 or prints WRONG. An edit is noticed where a fault is told
that the program as it is has not, in a number other than right, in a deadlock, or where it goes on for ever. Policies are
eager, late and random with two seeds; the first that notices ends the search. --kernel: the module whose first kernel's name
has that word. --log: lines of JSON, an edit each; what stands there is not run again. --jobs: edits at the same time."""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

POLICIES = [("eager", 1), ("late", 1), ("random", 1), ("random", 2)]
GUARD = r"^\s*(?P<guard>@!?%\w+\s+)?"
LEFT_OUT = re.compile(GUARD + r"(mbarrier\.arrive|mbarrier\.expect_tx|bar\.|barrier\.|cp\.async\.(bulk\.)?(commit|wait)_group|cp\.async\.wait_all|"
                      r"cp\.async\.mbarrier\.arrive|tcgen05\.(commit|wait)|wgmma\.(commit|wait)_group)[^;]*;")
WAIT = re.compile(GUARD + r"mbarrier\.(try|test)_wait[^;]*?\s(?P<done>[%\w]+)\s*,[^;]*;")
PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")


def edits(lines):
    """(number of the line, text instead, statement)"""
    for i, line in enumerate(lines):
        wait, out = WAIT.search(line), LEFT_OUT.search(line)
        if wait:
            yield i, WAIT.sub(f"setp.eq.u32 {wait['done']}, 0, 0;", line), wait.group(0).strip()
        elif out:
            yield i, LEFT_OUT.sub("", line), out.group(0).strip()


def places(lines):
    """By line: file and line of the source, and of the call that was inlined there."""
    files = {m[0]: Path(m[1]).name for m in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', "\n".join(lines), re.M)}
    place, all_of_them = "", []
    for line in lines:
        m = PLACE.search(line)
        if m:
            at = INLINED.search(line)
            place = f"{files.get(m[1], '?')}:{m[2]}" + (f" in {files.get(at[1], '?')}:{at[2]}" if at else "")
        all_of_them.append(place)
    return all_of_them


class Run:
    def __init__(self, a, folder):
        folder.mkdir()
        self.a, self.folder, self.report = a, folder, folder / "report"
        self.environment = os.environ | {"ATTNSIM_SMS": a.sms, "ATTNSIM_QUIET": "1", "ATTNSIM_REPORT": str(self.report),
                                         "ATTNSIM_ADVICE": "0", "ATTNSIM_FENCES": "0", "ATTNSIM_WAITS": "0",
                                         "ATTNSIM_MAX_INSTRUCTIONS": "20000000"}

    def __call__(self, policy, seed, *options):
        """(kinds and reasons of faults, words for what else is wrong or "")"""
        self.report.unlink(missing_ok=True)
        command = [self.a.sim, "--gpu", self.a.gpu, "--policy", policy, "--seed", str(seed), *options, *self.a.program]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, errors="replace", timeout=self.a.seconds)
        except subprocess.TimeoutExpired:
            return set(), "no end"
        records = [json.loads(line) for line in self.report.read_text().splitlines()] if self.report.exists() else []
        faults = {(r["kind"], re.sub(r"\d+|0x[0-9a-f]+", "#", r["text"])[:90]) for r in records if r["class"] == "fault"}
        wrong = "WRONG" if "WRONG" in done.stdout or self.a.mark not in done.stdout else "" if done.returncode in (0, 86) else f"status {done.returncode}"
        return faults, wrong

    def edited(self, name, text, known):
        """What notices the module of that name with that text: a policy and words, or ""."""
        (self.folder / "edited").mkdir()
        (self.folder / "edited" / name).write_text(text)
        for policy in POLICIES:
            faults, wrong = self(*policy, "--ptx", self.folder / "edited")
            new = sorted(faults - known)
            if new or wrong:
                return f"{policy[0]}: {wrong} {'; '.join(': '.join(f) for f in new[:2])}".strip()
        return ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sim", default="build/release/attn-sim")
    p.add_argument("--gpu", default="b200")
    p.add_argument("--sms", default="4")
    p.add_argument("--kernel", default="")
    p.add_argument("--mark", default="right", help="what the program prints when its results are right")
    p.add_argument("--seconds", type=int, default=300)
    p.add_argument("--log", type=Path)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("program", nargs=argparse.REMAINDER)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "as_it_is").mkdir()
        run, usual = Run(a, folder / "usual"), {}
        for policy in POLICIES:
            usual[policy], wrong = run(*policy, "--keep-ptx", folder / "as_it_is")
            if wrong:
                sys.exit(f"mutants: {a.program[0]} is not right as it is ({' '.join(map(str, policy))}: {wrong})")
        known = set().union(*usual.values())
        modules = [f for f in (folder / "as_it_is").iterdir() if a.kernel in f.name]
        if len(modules) != 1:
            sys.exit(f"mutants: --kernel must name one of {' '.join(f.stem for f in (folder / 'as_it_is').iterdir())}")
        lines = modules[0].read_text().split("\n")
        place = places(lines)
        done = {}
        if a.log and a.log.exists():
            done = {r["line"]: r for r in map(json.loads, a.log.read_text().splitlines())}

        def leave_out(i, instead, statement):
            text = "\n".join(lines[:i] + [instead] + lines[i + 1:])
            noticed = Run(a, folder / str(i)).edited(modules[0].name, text, known)
            return {"line": i + 1, "statement": statement, "place": place[i], "noticed": noticed}

        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            waited = [pool.submit(leave_out, *edit) for edit in edits(lines) if edit[0] + 1 not in done]
            for future in concurrent.futures.as_completed(waited):
                r = future.result()
                done[r["line"]] = r
                if a.log:
                    with open(a.log, "a") as log:
                        log.write(json.dumps(r) + "\n")
                print(f"{r['line']}: {r['statement'][:90]} ({r['place']}): {r['noticed'] or 'NOT NOTICED'}", flush=True)
    n = sum(bool(r["noticed"]) for r in done.values())
    print(f"{a.program[0]}: {len(done)} left out, {n} noticed, {len(done) - n} not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
