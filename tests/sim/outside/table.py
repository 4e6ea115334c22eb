#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs kernels of other projects, proven on devices, in the PTX simulator, and prints the table of docs/sim.md.

    tests/sim/outside/table.py --sim build/release/attn-sim [--cutlass CHECKOUT --nvcc NVCC] [--python PYTHON] [CASE...]

Fetches nothing: CHECKOUT is a checkout of CUTLASS; PYTHON an interpreter that has torch, flash-attn-4,
nvidia-cudnn-frontend and nvidia-cutlass-dsl (PYTHONPATH counts). What is not named is left out. Programs are compiled to
PTX in a folder that is removed (--keep FOLDER: that one, and what is built there is used again). PTX is taken as it is.
Each case runs under the policies eager, late and random; advice is counted, not told. --speed tells what is expected of
a B200 by counts and timeline, beside what was published. Status 1 where a result is wrong or a fault is not among those
that docs/sim.md explains."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CASES_OF_DSL = Path(__file__).parent / "dsl.py"
POLICIES = ["eager", "late", "random:1"]
TUTORIAL = "examples/cute/tutorial/blackwell"
# source, device, arguments, what the program prints when it is right (None: it compares nothing)
PROGRAMS = {
    "cutlass_tutorial_01": (f"{TUTORIAL}/01_mma_sm100.cu", "b200", ["512", "1024", "128"], "Execution is successful"),
    "cutlass_tutorial_02": (f"{TUTORIAL}/02_mma_tma_sm100.cu", "b200", ["512", "1024", "128"], "Execution is successful"),
    "cutlass_tutorial_03": (f"{TUTORIAL}/03_mma_tma_multicast_sm100.cu", "b200", ["512", "1024", "128"], "Execution is successful"),
    "cutlass_tutorial_04": (f"{TUTORIAL}/04_mma_tma_2sm_sm100.cu", "b200", ["512", "1024", "128"], "Execution is successful"),
    "cutlass_tutorial_05": (f"{TUTORIAL}/05_mma_tma_epi_sm100.cu", "b200", ["512", "1024", "128"], "Execution is successful"),
    "cutlass_70_fp16": ("examples/70_blackwell_gemm/70_blackwell_fp16_gemm.cu", "b200",
                        ["--m=256", "--n=256", "--k=256", "--iterations=0"], "Disposition: Passed"),
    "cutlass_77_fmha": ("examples/77_blackwell_fmha/77_blackwell_fmha.cu", "b200",
                        ["--b=1", "--h=1", "--q=256", "--k=256", "--d=64", "--verify", "--iterations=1", "--warmup_iterations=0"], "[OK"),
    "cutlass_wgmma_tma_sm90": ("examples/cute/tutorial/hopper/wgmma_tma_sm90.cu", "h100", ["256", "256", "128"], None),
}
# Kinds of faults that are true, by the start of the case's name (docs/sim.md, "Kernels of other projects")
TRUE_FAULTS = {
    "cutlass_tutorial_02": {"deadlock"},
    "cutlass_tutorial_04": {"deadlock"},
    "cutlass_tutorial_05": {"deadlock"},
    "cutlass_wgmma_tma": {"async", "protocol"},
    "fa4_bwd": {"race"},
    "cudnn_bwd_h64": {"divergence"},
}


def environment(report, **more):
    return os.environ | {"ATTNSIM_SMS": "4", "ATTNSIM_QUIET": "1", "ATTNSIM_REPORT": str(report), "PYTHONWARNINGS": "ignore"} | more


def findings(report):
    """(kinds of faults, number of faults, number of advices)"""
    records = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    faults = [r["kind"] for r in records if r["class"] == "fault"]
    return set(faults), len(faults), len(records) - len(faults)


def row(name, policy, verdict, report):
    kinds, n_faults, n_advices = findings(report)
    if "deadlock" in kinds:
        verdict = "ended"  # by the simulator: there is no result
    known = next((k for case, k in TRUE_FAULTS.items() if name.startswith(case)), set())
    words = ", ".join(sorted(kinds)) if kinds else ""
    print(f"| {name} | {policy} | {verdict} | {n_faults}{f' ({words})' if words else ''} | {n_advices} |", flush=True)
    return verdict != "WRONG" and kinds <= known


def compile_program(nvcc, checkout, source, arch, program):
    if program.exists():
        return
    include = ["include", "tools/util/include", "examples/common", str(Path(source).parent)]
    command = [nvcc, "-std=c++17", "-O2", "-w", "-lineinfo", "-cudart", "shared", "--expt-relaxed-constexpr", "-gencode",
               f"arch=compute_{arch},code=compute_{arch}", *(f"-I{checkout / i}" for i in include), "-o", program, checkout / source, "-lcuda"]
    stubs = Path(subprocess.run(["which", nvcc], capture_output=True, text=True).stdout.strip()).resolve().parents[1] / "lib64/stubs"
    subprocess.run([*command, f"-L{stubs}"], check=True)


def run_programs(a, folder, names):
    good = True
    for name in names:
        source, gpu, arguments, mark = PROGRAMS[name]
        program = folder / name
        compile_program(a.nvcc, a.cutlass, source, "90a" if gpu == "h100" else "100a", program)
        for policy in POLICIES:
            report = folder / f"{name}.{policy}.json"
            report.unlink(missing_ok=True)
            schedule, _, seed = policy.partition(":")
            done = subprocess.run([a.sim, "--gpu", gpu, "--policy", schedule, "--seed", seed or "1", program, *arguments],
                                  env=environment(report), capture_output=True, text=True, errors="replace")
            right = "no comparison" if mark is None else "right" if mark in done.stdout else "WRONG"
            good &= row(name, policy, right, report)
    return good


def run_dsl(a, folder, names):
    good = True
    for name in names:
        for policy in POLICIES:
            report = folder / f"{name}.{policy}.json"
            report.unlink(missing_ok=True)
            command = [a.sim, "--gpu", "b200", a.python, CASES_OF_DSL, "--policies", policy, name]
            done = subprocess.run(command, env=environment(report), capture_output=True, text=True, errors="replace")
            right = "right" if re.search(rf"^right {name} ", done.stdout, re.M) else "WRONG"
            good &= row(name, policy, right, report)
    return good


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sim", type=Path, default=Path("build/release/attn-sim"))
    a.add_argument("--nvcc", default="nvcc")
    a.add_argument("--cutlass", type=Path)
    a.add_argument("--python")
    a.add_argument("--keep", type=Path)
    a.add_argument("--speed", action="store_true")
    a.add_argument("cases", nargs="*")
    a = a.parse_args()
    listed = subprocess.run([a.python, CASES_OF_DSL, "--list"], check=True, capture_output=True, text=True).stdout if a.python else ""
    dsl = {line.split()[0]: "speed" in line for line in listed.splitlines()}
    known = [*(PROGRAMS if a.cutlass else ()), *dsl]
    unknown = [name for name in a.cases if name not in known]
    if unknown or not known:
        sys.exit(f"table: no such case here: {' '.join(unknown) or 'name --cutlass or --python'}; known: {' '.join(known)}")
    names = a.cases or known
    with tempfile.TemporaryDirectory() as fresh:
        folder = a.keep or Path(fresh)
        folder.mkdir(parents=True, exist_ok=True)
        if a.speed:
            for name in (n for n in names if dsl.get(n)):
                command = [a.sim, "--gpu", "b200", "--no-races", "--counts", folder / f"{name}.counts", a.python, CASES_OF_DSL, "--speed", name]
                subprocess.run(command, env=environment(folder / "report"), check=True)
            return 0
        if a.cutlass:
            commit = subprocess.run(["git", "-C", a.cutlass, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
            nvcc = subprocess.run([a.nvcc, "--version"], check=True, capture_output=True, text=True).stdout
            print(f"CUTLASS {commit or '(no commit is told)'}, nvcc {re.search(r'V([0-9.]+)', nvcc).group(1)}")
        if a.python:
            versions = subprocess.run([a.python, CASES_OF_DSL, "--versions"], check=True, capture_output=True, text=True).stdout
            print(", ".join(versions.splitlines()))
        print("\n| case | policy | result | faults | advice |\n| --- | --- | --- | --- | --- |")
        good = run_programs(a, folder, [n for n in names if n in PROGRAMS])
        return 0 if run_dsl(a, folder, [n for n in names if n in dsl]) and good else 1


if __name__ == "__main__":
    sys.exit(main())
