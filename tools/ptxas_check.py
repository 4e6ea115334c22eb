#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Assembles the PTX of every kernel row for its architectures and holds what ptxas says and makes against two tables.

  kernels/budget.tsv   registers, spills, stack frame, shared memory; ptxas's C75xx messages (wgmma serialised, setmaxnreg
                       ignored) are faults (tools/ptxas_budget.py)
  kernels/sass.tsv     instructions that the machine code must have or lack: UTCHMMA of the cta_group, HGMMA, HMMA

Needs a build of the kernels as PTX, which `make build` makes; nothing is linked. Results are kept in the build's kernel cache
by compiler, architecture and PTX, so that a second run assembles only what changed. nvdisasm is looked for beside nvcc, in
build/nvcc/bin (make nvcc fetches it) and in PATH; without it the instructions are not looked at, which the last line says and
which is a fault with --need-sass.
usage: tools/ptxas_check.py [--kernel GLOB] [--jobs N] [--table] [--accept] [--need-sass] [build folder (build/release)]
       --accept writes the numbers of the kernels that were assembled into the budget and leaves the others'
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import ptxas_budget

ROOT = ptxas_budget.ROOT
CLAIMS = os.path.join(ROOT, "kernels", "sass.tsv")
# An instruction of nvdisasm's listing: address, predicate, opcode with its modifiers.
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.M)
# Kept in the cache: products on tensor units, tensor memory, bulk copies, reductions.
COUNTED = re.compile(r"(UTC|LDTM|STTM|[A-Z]*MMA|UBLK|UTMA|RED|ATOM)")


def read_architectures():
    """{architecture word of a row's name: sm_ names}, as the build has them."""
    with open(os.path.join(ROOT, "cmake", "cuda.cmake"), encoding="utf-8") as f:
        found = re.findall(r"^set\(attn_cuda_cubins_(\w+) ([\w ]+)\)", f.read(), re.M)
    return {word: ["sm_" + code for code in codes.split()] for word, codes in found}


def read_rows(folder, pattern):
    """Names of the kernel rows of the build that match the pattern."""
    with open(os.path.join(folder, "cuda_variants.c"), encoding="utf-8") as f:
        return [name for name in re.findall(r"^    ROW\(\d+, (\w+),", f.read(), re.M) if fnmatch.fnmatchcase(name, pattern)]


def read_cache_entry(build, name):
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as f:
        found = re.search(rf"^{name}:\w+=(.*)$", f.read(), re.M)
    return found.group(1) if found else ""


def find_tool(name, folders):
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name)


def version_of(tool):
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d[\d.]+)", text).group(1)


def read_bare_rule():
    """The shell function by which the build strips a PTX file of source places: it decides what the library holds."""
    with open(os.path.join(ROOT, "tools", "compile_variant.sh"), encoding="utf-8") as f:
        return re.search(r"^bare\(\) \{.*?^\}$", f.read(), re.M | re.S).group(0)


class Assembler:
    """ptxas and nvdisasm on one kernel, with a folder that keeps the results."""

    def __init__(self, build):
        self.folder = os.path.join(build, "cuda")
        near_nvcc = os.path.dirname(os.path.realpath(read_cache_entry(build, "ATTN_NVCC")))
        folders = [near_nvcc, os.path.join(ROOT, "build", "nvcc", "bin")]
        self.ptxas = find_tool("ptxas", folders)
        self.nvdisasm = find_tool("nvdisasm", folders)
        if not self.ptxas:
            sys.exit("no ptxas in PATH, beside nvcc or in build/nvcc/bin (make nvcc fetches it)")
        self.version = version_of(self.ptxas)
        self.reader = version_of(self.nvdisasm) if self.nvdisasm else None
        self.bare_rule = read_bare_rule()
        cache = read_cache_entry(build, "ATTN_CUDA_CACHE")
        self.kept = os.path.join(cache or self.folder, "ptxas")
        os.makedirs(self.kept, exist_ok=True)

    def keep(self, path, text):
        with tempfile.NamedTemporaryFile("w", dir=self.kept, delete=False, encoding="utf-8") as f:
            f.write(text)
        os.replace(f.name, path)

    def assemble(self, kernel, arch):
        """ptxas's log and {opcode: count}, None without a disassembler."""
        ptx = os.path.join(self.folder, kernel + ".ptx")
        bare = subprocess.run(["bash", "-c", f'{self.bare_rule}\nbare "$1"', "bare", ptx], capture_output=True, check=True).stdout
        key = hashlib.sha256(f"{self.version} {arch}\n".encode() + bare).hexdigest()[:40]
        log_path = os.path.join(self.kept, key + ".txt")
        ops_path = os.path.join(self.kept, f"{key}.{self.reader}.json")
        if os.path.exists(log_path) and (not self.nvdisasm or os.path.exists(ops_path)):
            with open(log_path, encoding="utf-8") as f:
                log = f.read()
            if not self.nvdisasm:
                return log, None
            with open(ops_path, encoding="utf-8") as f:
                return log, json.load(f)
        with tempfile.TemporaryDirectory() as scratch:
            source, cubin = os.path.join(scratch, "k.ptx"), os.path.join(scratch, "k.cubin")
            with open(source, "wb") as f:
                f.write(bare)
            done = subprocess.run([self.ptxas, "-v", "-O3", f"-arch={arch}", "-o", cubin, source], capture_output=True, text=True)
            log = done.stdout + done.stderr
            if done.returncode:
                return log, None
            self.keep(log_path, log)
            if not self.nvdisasm:
                return log, None
            listing = subprocess.run([self.nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
        ops = collections.Counter(op.rstrip(".") for op in OPCODE.findall(listing) if COUNTED.match(op))
        self.keep(ops_path, json.dumps(ops))
        return log, ops


def read_claims():
    """[(line, pattern, architectures, instructions that are there, instructions that are not)]"""
    claims = []
    with open(CLAIMS, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.strip() and not line.startswith(("#", "kernel\t")):
                pattern, arch, has, lacks = line.rstrip("\n").split("\t")
                words = [[] if column == "-" else column.split(",") for column in (has, lacks)]
                claims.append((number, pattern, arch, *words))
    return claims


def count(ops, words):
    """Instructions of an opcode with modifiers, in any order, that the word names, and without those after "!"."""
    opcode, *modifiers = words.split(".")
    has = {m for m in modifiers if m[0] != "!"}
    lacks = {m[1:] for m in modifiers if m[0] == "!"}
    return sum(n for op, n in ops.items()
               if op.split(".")[0] == opcode and has <= set(op.split(".")) and not lacks & set(op.split(".")))


def judge_claim(claims, kernel, arch, ops):
    """Faults of one kernel against the first line that names it."""
    for number, pattern, claimed_arch, has, lacks in claims:
        if fnmatch.fnmatchcase(kernel, pattern) and fnmatch.fnmatchcase(arch, claimed_arch):
            faults = [f"no {words}" for words in has if not count(ops, words)]
            faults += [f"{count(ops, words)} {words}" for words in lacks if count(ops, words)]
            return [f"{kernel} {arch}: {fault} in the machine code (kernels/sass.tsv:{number})" for fault in faults]
    return [f"{kernel} {arch}: no line of kernels/sass.tsv names it"]


def tensor_words(ops):
    """What the machine code multiplies with, for the printed table."""
    counts = collections.Counter()
    for op, n in ops.items():
        parts = op.split(".")
        if parts[0].endswith("MMA"):
            counts[parts[0] + (".2CTA" if "2CTA" in parts else "")] += n
    return " ".join(f"{n} {op}" for op, n in sorted(counts.items())) or "-"


def main():
    parser = argparse.ArgumentParser(description="machine code of the kernels against kernels/budget.tsv and kernels/sass.tsv")
    parser.add_argument("build", nargs="?", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--kernel", default="*", metavar="GLOB")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="print every kernel, not only faults")
    parser.add_argument("--accept", action="store_true", help="write the numbers into the budget")
    parser.add_argument("--need-sass", action="store_true", help="fail where nvdisasm is missing")
    o = parser.parse_args()
    if not os.path.exists(os.path.join(o.build, "cuda", "cuda_variants.c")):
        print(f"{o.build}: built without CUDA")
        return 1
    architectures = read_architectures()
    kernels = read_rows(os.path.join(o.build, "cuda"), o.kernel)
    if not kernels:
        print(f"no kernel row matches {o.kernel}")
        return 1
    tasks = [(kernel, arch) for kernel in kernels
             for arch in architectures[re.search(r"_(sm[0-9x]+)(?=_)", kernel).group(1)]]
    assembler = Assembler(o.build)
    claims = read_claims()
    rows, faults = {}, []
    if o.need_sass and not assembler.nvdisasm:
        faults.append("no nvdisasm beside nvcc, in build/nvcc/bin or in PATH: make nvcc fetches it, tools/fetch_nvcc.sh --disassembler it alone")
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        results = list(pool.map(lambda task: assembler.assemble(*task), tasks))
    for (kernel, arch), (log, ops) in zip(tasks, results):
        ptxas_budget.read_log(log.splitlines(), f"{kernel} {arch}", rows, faults)
        if (kernel, arch) not in rows:
            faults.append(f"{kernel} {arch}: ptxas says: {log.strip()}")
        elif ops is not None:
            faults += judge_claim(claims, kernel, arch, ops)
    if o.table:
        words = {task: tensor_words(ops) for task, (_, ops) in zip(tasks, results) if ops is not None}
        ptxas_budget.print_table(rows, words)
    known_version, known = ptxas_budget.read_budget()
    if o.accept:
        ptxas_budget.write_budget(assembler.version, {**known, **rows})
    else:
        if known_version != assembler.version:
            print(f"assembled by {assembler.version}, the budget is of {known_version}: registers are not compared")
        faults += ptxas_budget.compare(rows, known, known_version == assembler.version)
        if o.kernel == "*":
            faults += ptxas_budget.unbuilt(rows, known)
    for fault in faults:
        print(fault)
    spilled = sum(1 for row in rows.values() if row["spill_stores"] or row["spill_loads"] or row["stack"])
    looked_at = sum(1 for _, ops in results if ops is not None)
    print(f"ptxas: {len(rows)} machine codes of {len(kernels)} kernels, {spilled} with spills or a stack frame, "
          + (f"instructions of {looked_at} looked at" if assembler.nvdisasm else "no nvdisasm to look at instructions")
          + f", {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
