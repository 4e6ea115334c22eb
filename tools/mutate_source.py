#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in a kernel's source, one at a time, and tells which of them the simulator reports on a problem.

A table (tests/sim/mutants/*.txt) names the kernel, its source, defines, problem, environment and perhaps seeds, and the faults: a line
`@ what | verdict | file`, the text that is there (`-`, its first place) and the text in its place (`+`, or none). Each is compiled to PTX beside the build and run under the policy late
with the first seed, random with the others (1, 2 and 3 if the table names none). Exit status 1 if a fault whose verdict is "caught" was not, the kernel fails as it is, or nothing ran:
a row that refuses the problem, or a build without it (status 77 of attn check), reports nothing.

usage: tools/mutate_source.py TABLE BUILD [number ..]     e.g. tests/sim/mutants/mla_bwd_sm100.txt build/release
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_table(path):
    table, faults = {}, []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("@ "):
            what, verdict, file = (x.strip() for x in line[2:].split(" | "))
            faults.append({"what": what, "verdict": verdict, "file": file, "-": [], "+": []})
        elif line[:1] in ("-", "+") and faults:
            faults[-1][line[0]].append(line[1:])
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


class NothingRan(Exception):
    """attn check had no problem to try (status 77)."""


def reports(table, build, folder):
    """What was reported under the first policy that did, or None."""
    env = dict(os.environ, ATTNSIM_PTX=str(folder), ATTNSIM_MAX_INSTRUCTIONS="200000000")
    env.update(x.split("=", 1) for x in table["environment"].split())
    for number, seed in enumerate(table.get("seeds", "1 2 3").split()):
        policy = "random" if number else "late"
        command = [str(build / "attn"), "check", "--driver", "sim", "--policy", policy, "--seed", seed, "--threads", "1",
                   "--kernel", table["kernel"], "--problem", table["problem"]]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if run.returncode == 77:
            raise NothingRan((run.stderr + run.stdout).strip().split("\n")[-1][:160])
        if run.returncode != 0:
            told = [x for x in (run.stderr + run.stdout).split("\n") if x.startswith(("attnsim", "FAIL"))]
            return policy + ": " + (told[0][:160] if told else f"exit status {run.returncode}")
    return None


def plant(tree, fault):
    path = tree / fault["file"]
    text, old, new = path.read_text(encoding="utf-8"), "\n".join(fault["-"]), "\n".join(fault["+"])
    if old not in text:
        return False
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return True


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    table, faults = read_table(pathlib.Path(sys.argv[1]))
    build, chosen = pathlib.Path(sys.argv[2]).resolve(), {int(x) for x in sys.argv[3:]}
    wrong = caught = tried = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, fault in enumerate([None] + faults):
            if chosen and number not in chosen:
                continue
            tree, folder = pathlib.Path(scratch) / "tree", pathlib.Path(scratch) / "ptx"
            shutil.rmtree(tree, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(ROOT / "kernels", tree / "kernels")
            folder.mkdir()
            if fault and not plant(tree, fault):
                print(f"{number} {fault['what']}: its text is not in {fault['file']}")
                wrong += 1
                continue
            built = compile_ptx(table, tree, folder)
            if built.returncode != 0:
                print(f"{number}: does not compile: {built.stderr[:300]}")
                wrong += 1
                continue
            try:
                told = reports(table, build, folder)
            except NothingRan as reason:
                print(f"{number}: nothing ran: {reason}", flush=True)
                wrong += 1
                continue
            if not fault:
                print(f"0 as it is: {told or 'nothing reported'}")
                wrong += told is not None
                continue
            tried += 1
            caught += told is not None
            wrong += told is None and fault["verdict"] == "caught"
            print(f"{number} {fault['what']}: {told or 'NOTHING REPORTED'} (expected: {fault['verdict']})", flush=True)
    print(f"{tried} faults, {caught} reported, {wrong} against the table")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
