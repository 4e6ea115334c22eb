#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs kernels of other projects, proven on devices, in the PTX simulator, and prints the table of docs/sim.md.

    tests/sim/outside/table.py --sim build/release/attn-sim [--nvcc NVCC] [--cutlass CHECKOUT [--deepgemm CHECKOUT]
                               [--flashmla CHECKOUT]] [--thunderkittens CHECKOUT] [--python PYTHON] [CASE...]

Fetches nothing: a CHECKOUT is one of that project (DeepGEMM's and FlashMLA's kernels include CUTLASS); PYTHON an
interpreter that has torch, flash-attn-4, nvidia-cudnn-frontend and nvidia-cutlass-dsl (PYTHONPATH counts). What is not
named is left out. Kernels whose host code needs PyTorch run from programs of this folder. Programs are compiled to
PTX in a folder that is removed (--keep FOLDER: that one, and what is built there is used again, without nvcc where all is). PTX is taken as it is.
Each case runs under the policies eager, late and random; advice is counted, not told (of the DSL's cases at eager). --speed tells what is expected of
a B200 by counts and timeline, beside what was published. Status 1 where a result is wrong or a fault is not among those
that docs/sim.md explains."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

CASES_OF_DSL = Path(__file__).parent / "dsl.py"
POLICIES = ["eager", "late", "random:1"]
TUTORIAL = "examples/cute/tutorial/blackwell"
PROJECTS = ("cutlass", "deepgemm", "flashmla", "thunderkittens")
OWN = Path(__file__).resolve().parent

class Program(typing.NamedTuple):
    project: str
    source: str  # in the checkout, or in this folder
    gpu: str
    arguments: list
    mark: str | None  # what it prints when it is right; None: it compares nothing
    flags: tuple = ()
    header: str = ""  # a file of the checkout that becomes HEADER ...
    until: str = ""   # ... up to this text


def tutorial(name):
    return Program("cutlass", f"{TUTORIAL}/{name}.cu", "b200", ["512", "1024", "128"], "Execution is successful")


def fmha(mask, keys=256):
    return Program("cutlass", "fmha.cu.in", "b200", ["--b=1", "--h=1", "--q=256", f"--k={keys}", "--d=64", "--verify", "--iterations=1", "--warmup_iterations=0"],
                   "[OK", (f"-DMASK={mask}",), "examples/77_blackwell_fmha/77_blackwell_fmha.cu", "int main_single(")


def deepgemm(kernel, gpu, header):
    return Program("deepgemm", "deepgemm.cu.in", gpu, [], "right", (f"-DKERNEL_{kernel}", f"-DHEADER=<deep_gemm/impls/{header}.cuh>"))


def flashmla(kernel, gpu, header, width, arguments=()):
    return Program("flashmla", "flashmla.cu.in", gpu, list(arguments), "right", (f"-DKERNEL_{kernel}", f"-DWIDTH={width}", f'-DHEADER="{header}"'))


def thunderkittens(kind, block, overlap="true"):
    return Program("thunderkittens", "thunderkittens.cu.in", "b200", [], "right", (f"-DBLOCK={block}", f"-DOVERLAP={overlap}"),
                   f"kernels/gemm/{kind}_b200/{kind}_b200_gemm.cu", "__host__ int main()")


PROGRAMS = {
    "cutlass_tutorial_01": tutorial("01_mma_sm100"),
    "cutlass_tutorial_02": tutorial("02_mma_tma_sm100"),
    "cutlass_tutorial_03": tutorial("03_mma_tma_multicast_sm100"),
    "cutlass_tutorial_04": tutorial("04_mma_tma_2sm_sm100"),
    "cutlass_tutorial_05": tutorial("05_mma_tma_epi_sm100"),
    "cutlass_70_fp16": Program("cutlass", "examples/70_blackwell_gemm/70_blackwell_fp16_gemm.cu", "b200",
                               ["--m=256", "--n=256", "--k=256", "--iterations=0"], "Disposition: Passed"),
    "cutlass_77_fmha": fmha("NoMask"),
    "cutlass_77_fmha_causal": fmha("CausalMask<>"),
    "cutlass_77_fmha_causal_end": fmha("CausalMask<false>", 512),
    "cutlass_77_fmha_residual": fmha("ResidualMask", 300),
    "cutlass_wgmma_tma_sm90": Program("cutlass", "examples/cute/tutorial/hopper/wgmma_tma_sm90.cu", "h100", ["256", "256", "128"], None),
    "deepgemm_bf16_pair": deepgemm("BF16_PAIR", "b200", "sm100_bf16_gemm"),
    "deepgemm_bf16_swap": deepgemm("BF16_SWAP", "b200", "sm100_bf16_gemm"),
    "deepgemm_fp8_pair": deepgemm("FP8_PAIR", "b200", "sm100_fp8_fp4_gemm_1d1d"),
    "deepgemm_fp8_swap": deepgemm("FP8_SWAP", "b200", "sm100_fp8_fp4_gemm_1d1d"),
    "deepgemm_mqa": deepgemm("MQA", "b200", "sm100_mqa_logits"),
    "deepgemm_sm90_bf16": deepgemm("SM90_BF16", "h100", "sm90_bf16_gemm"),
    "deepgemm_sm90_fp8": deepgemm("SM90_FP8", "h100", "sm90_fp8_gemm_1d2d"),
    "deepgemm_sm90_mqa": deepgemm("SM90_MQA", "h100", "sm90_fp8_mqa_logits"),
    "flashmla_prefill_h64": flashmla("SM100_HEAD64", "b200", "sm100/prefill/sparse/fwd/head64/phase1.cuh", 576),
    "flashmla_prefill_h128": flashmla("SM100_HEAD128", "b200", "sm100/prefill/sparse/fwd/head128/phase1.cuh", 512),
    "flashmla_prefill_small": flashmla("SM100_SMALL", "b200", "sm100/prefill/sparse/fwd_for_small_topk/head128/phase1.cuh", 512),
    "flashmla_decode": flashmla("SM100_DECODE", "b200", "sm100/decode/head64/kernel.cuh", 576),
    "flashmla_sm90_prefill": flashmla("SM90", "h100", "sm90/prefill/sparse/phase1.cuh", 576),
    "thunderkittens_bf16": thunderkittens("bf16", 64),
    "thunderkittens_bf16_two": thunderkittens("bf16", 64, "false"),
    "thunderkittens_fp8": thunderkittens("fp8", 128),
}
# Kinds of faults that are true, by the start of the case's name (docs/sim.md, "Kernels of other projects")
TRUE_FAULTS = {
    "cutlass_tutorial_02": {"deadlock"},
    "cutlass_tutorial_04": {"deadlock"},
    "cutlass_tutorial_05": {"deadlock"},
    "cutlass_wgmma_tma": {"async", "protocol"},
    "cutlass_77_fmha": {"async", "race"},
    "deepgemm_bf16_pair": {"race", "async"},
    "deepgemm_fp8_swap": {"uninitialised"},
    "flashmla_prefill_small": {"barrier"},
    "deepgemm_fp8_pair": {"race", "async"},
    "flashmla_decode": {"race"},
    "thunderkittens": {"barrier", "deadlock"},
    "fa4_bwd": {"race"},
    "cudnn_bwd_h16": {"divergence"},
    "cudnn_bwd_h32": {"divergence"},
    "cudnn_bwd_h64": {"divergence"},
}


WRONG_BY_ITSELF = {"flashmla_decode"}  # its own race


def environment(report, **more):
    return os.environ | {"ATTNSIM_SMS": "4", "ATTNSIM_QUIET": "1", "ATTNSIM_REPORT": str(report), "PYTHONWARNINGS": "ignore"} | more


def findings(report):
    """(kinds of faults, number of faults, number of advices)"""
    records = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    faults = {(r["kind"], re.sub(r"\d+", "#", r["text"]), r.get("ptx_line")) for r in records if r["class"] == "fault"}  # once, under however many policies
    return {kind for kind, *_ in faults}, len(faults), sum(r["class"] != "fault" for r in records)


def row(name, policy, verdict, report, n_advices=None):
    kinds, n_faults, n_all_advices = findings(report)
    if "deadlock" in kinds:
        verdict = "ended"  # by the simulator: there is no result
    known = next((k for case, k in TRUE_FAULTS.items() if name.startswith(case)), set())
    words = ", ".join(sorted(kinds)) if kinds else ""
    print(f"| {name} | {policy} | {verdict} | {n_faults}{f' ({words})' if words else ''} | {n_all_advices if n_advices is None else n_advices} |", flush=True)
    return (verdict != "WRONG" or name in WRONG_BY_ITSELF) and kinds <= known


def includes(a, project):
    """What a project's compiler gets beside the files and the architecture."""
    if project == "cutlass":
        return ["-std=c++17", "-O2", *(f"-I{a.cutlass / i}" for i in ("include", "tools/util/include", "examples/common"))]
    usual = ["-O3", "--use_fast_math", "-DNDEBUG", "--expt-extended-lambda", "-Xcompiler", "-O0"]
    if project == "deepgemm":
        return [*usual, "-std=c++17", f"-I{a.deepgemm / 'deep_gemm/include'}", f"-I{a.cutlass / 'include'}"]
    if project == "flashmla":
        csrc = a.flashmla / "csrc"
        return [*usual, "-std=c++20", "-D_USE_MATH_DEFINES", f"-I{csrc}", f"-I{csrc / 'kerutils/include'}", f"-I{a.cutlass / 'include'}"]
    kittens = a.thunderkittens
    return [*usual, "-std=c++20", "-Xcompiler=-Wno-psabi,-fno-strict-aliasing", "-DKITTENS_BLACKWELL", f"-I{kittens / 'include'}", f"-I{kittens / 'prototype'}",
            f'-DCOMMON="{kittens / "kernels/gemm/common.cuh"}"']


def compile_program(a, p, program):
    if program.exists():
        return
    checkout, arch = getattr(a, p.project), "90a" if p.gpu == "h100" else "100a"
    source, flags = OWN / p.source if (OWN / p.source).exists() else checkout / p.source, [*includes(a, p.project), *p.flags]
    if p.header:
        text = (checkout / p.header).read_text()
        if p.until not in text:
            sys.exit(f"table: {p.header} has no {p.until}")
        program.with_suffix(".cuh").write_text(text[:text.index(p.until)])
        flags += [f'-DHEADER="{program.with_suffix(".cuh").resolve()}"', f"-I{(checkout / p.header).parent}"]
    else:
        flags.append(f"-I{source.parent}")
    command = [a.nvcc, "-x", "cu", "-w", "-lineinfo", "-cudart", "shared", "--expt-relaxed-constexpr", "-gencode", f"arch=compute_{arch},code=compute_{arch}", *flags, "-o",
               program, source, "-lcuda"]
    stubs = Path(subprocess.run(["which", a.nvcc], capture_output=True, text=True).stdout.strip()).resolve().parents[1] / "lib64/stubs"
    subprocess.run([*command, f"-L{stubs}"], check=True)


def run_programs(a, folder, names):
    good = True
    for name in names:
        p, program = PROGRAMS[name], folder / name
        compile_program(a, p, program)
        for policy in POLICIES:
            report = folder / f"{name}.{policy}.json"
            report.unlink(missing_ok=True)
            schedule, _, seed = policy.partition(":")
            done = subprocess.run([a.sim, "--gpu", p.gpu, "--policy", schedule, "--seed", seed or "1", program, *p.arguments],
                                  env=environment(report), capture_output=True, text=True, errors="replace")
            right = "no comparison" if p.mark is None else "right" if p.mark in done.stdout else "WRONG"
            good &= row(name, policy, right, report)
    return good


def run_dsl(a, folder, names):
    """A case under all policies is one process, which compiles once; what the simulator told there it does not tell again."""
    good = True
    for name in names:
        report = folder / f"{name}.json"
        report.unlink(missing_ok=True)
        command = [a.sim, "--gpu", "b200", a.python, CASES_OF_DSL, "--policies", ",".join(POLICIES), name]
        done = subprocess.run(command, env=environment(report), capture_output=True, text=True, errors="replace")
        (folder / f"{name}.out").write_text(done.stdout + done.stderr)
        told = {policy: (verdict, int(advice)) for verdict, policy, advice in
                re.findall(rf"^(right|WRONG) {name} (\S+) faults \d+ advice (\d+)", done.stdout, re.M)}
        right = all(told.get(policy, ("WRONG", 0))[0] == "right" for policy in POLICIES)
        good &= row(name, ", ".join(POLICIES), "right" if right else "WRONG", report, told.get(POLICIES[0], ("", 0))[1])
    return good


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sim", type=Path, default=Path("build/release/attn-sim"))
    a.add_argument("--nvcc", default="nvcc")
    for project in PROJECTS:
        a.add_argument(f"--{project}", type=Path)
    a.add_argument("--python")
    a.add_argument("--keep", type=Path)
    a.add_argument("--speed", action="store_true")
    a.add_argument("cases", nargs="*")
    a = a.parse_args()
    listed = subprocess.run([a.python, CASES_OF_DSL, "--list"], check=True, capture_output=True, text=True).stdout if a.python else ""
    dsl = {line.split()[0]: "speed" in line for line in listed.splitlines()}
    there = [p for p in PROJECTS if getattr(a, p) and (a.cutlass or p == "thunderkittens")]
    known = [*(name for name, program in PROGRAMS.items() if program.project in there), *dsl]
    unknown = [name for name in a.cases if name not in known]
    if unknown or not known:
        sys.exit(f"table: no such case here: {' '.join(unknown) or 'name --cutlass, another checkout or --python'}; known: {' '.join(known)}")
    names = a.cases or known
    with tempfile.TemporaryDirectory() as fresh:
        folder = a.keep or Path(fresh)
        folder.mkdir(parents=True, exist_ok=True)
        if a.speed:
            for name in (n for n in names if dsl.get(n)):
                command = [a.sim, "--gpu", "b200", "--no-races", "--counts", folder / f"{name}.counts", a.python, CASES_OF_DSL, "--speed", name]
                subprocess.run(command, env=environment(folder / "report"), check=True)
            return 0
        for project in there:
            commit = subprocess.run(["git", "-C", getattr(a, project), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
            print(f"{project} {commit or '(no commit is told)'}")
        if there and shutil.which(a.nvcc):
            nvcc = subprocess.run([a.nvcc, "--version"], check=True, capture_output=True, text=True).stdout
            print(f"nvcc {re.search(r'V([0-9.]+)', nvcc).group(1)}")
        if a.python:
            versions = subprocess.run([a.python, CASES_OF_DSL, "--versions"], check=True, capture_output=True, text=True).stdout
            print(", ".join(versions.splitlines()))
        print("\n| case | policy | result | faults | advice |\n| --- | --- | --- | --- | --- |")
        good = run_programs(a, folder, [n for n in names if n in PROGRAMS])
        return 0 if run_dsl(a, folder, [n for n in names if n in dsl]) and good else 1


if __name__ == "__main__":
    sys.exit(main())
