#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in kernel sources, one at a time, and tells which of them tools/check_sim.sh reports.

A table (tests/sim/mutants/tier.txt) names the faults: a line `@ what | verdict | file | images | rows`, the text that is there (`-`) and the text in
its place (`+`, or none). The images are compiled to PTX with the flags of the build, and take the place of the library's where the rows are run.
A row's problems are those of the tier; RANDOM=1 adds the random ones. PTX=FOLDER keeps the PTX in FOLDER/NUMBER; what lies there is not compiled
again (no compiler and no build.ninja is needed then). RUN=0 compiles alone. Exit status 1 if a fault whose verdict begins with "caught" was not.

usage: tests/sim/mutants/plant_tier.py TABLE BUILD [number ..]     e.g. tests/sim/mutants/tier.txt build/release 3 8
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]


def read_table(path):
    faults = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("@ "):
            what, verdict, file, images, rows = (x.strip() for x in line[2:].split(" | "))
            faults.append({"what": what, "verdict": verdict, "file": file, "images": images.split(), "rows": rows.split(), "-": [], "+": []})
        elif line[:1] in ("-", "+") and faults:
            faults[-1][line[0]].append(line[1:])
    return faults


def compile_ptx(ninja, image, tree, folder):
    """With the command of the build, on the copy of the sources."""
    found = re.search(rf"compile_variant\.sh \S+ \S+ (\S+) \S+ (\S+) (\S+) \S*/cuda/{image} (\S+) \S+ ([^\n&]*)", ninja)
    if not found:
        return f"{image} is not an image of this build"
    nvcc, root, source, compute, flags = found.groups()
    flags = [x.replace(root, str(tree)) for x in flags.split() if x not in ("-Werror", "all-warnings")]
    command = [nvcc, "-ptx", "-lineinfo", f"-arch={compute}", *flags, "-o", str(folder / f"{image}.ptx"), source.replace(root, str(tree))]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return built.stderr[:300] if built.returncode else ""


def told(build, rows, folder, out):
    """The first row that the tier fails on, and what it says; or None."""
    for row in rows:
        env = dict(os.environ, ATTNSIM_PTX=str(folder), KERNEL=row, COVERAGE="0", OUT=str(out), ATTNSIM_MAX_INSTRUCTIONS="400000000")
        env.setdefault("REPEAT", "6" if os.environ.get("RANDOM") else "0")
        run = subprocess.run([str(ROOT / "tools/check_sim.sh"), str(build)], env=env, capture_output=True, text=True, check=False)
        failed = [x for x in run.stdout.split("\n") if x.startswith("FAIL ")]
        if failed:
            return failed[0][:160]
        if run.returncode:
            return None if "accepted no problem" in run.stdout else run.stdout[-160:]
    return None


def plant(tree, fault):
    path, old = tree / fault["file"], "\n".join(fault["-"])
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        return f"its text does not stand once in {fault['file']}"
    path.write_text(text.replace(old, "\n".join(fault["+"])), encoding="utf-8")
    return ""


def make_images(build, fault, scratch, folder):
    """Words for what went wrong, or "": the fault's images lie in the folder."""
    missing = [image for image in fault["images"] if not (folder / f"{image}.ptx").exists()]
    if not missing:
        return ""
    shutil.copytree(ROOT / "kernels", scratch / "tree" / "kernels")
    ninja = (build / "build.ninja").read_text(encoding="utf-8")
    trouble = plant(scratch / "tree", fault)
    for image in missing:
        trouble = trouble or compile_ptx(ninja, image, scratch / "tree", folder)
    return trouble


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    faults, build = read_table(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    chosen, keep = {int(x) for x in sys.argv[3:]}, os.environ.get("PTX")
    wrong = caught = tried = 0
    for number, fault in enumerate(faults, 1):
        if chosen and number not in chosen:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(keep or scratch).resolve() / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            trouble = make_images(build, fault, pathlib.Path(scratch), folder)
            if trouble:
                print(f"{number} {fault['what']}: {trouble}", flush=True)
                wrong += 1
                continue
            if os.environ.get("RUN") == "0":
                continue
            report = told(build, fault["rows"], folder, pathlib.Path(scratch) / "out")
        tried += 1
        caught += report is not None
        wrong += report is None and fault["verdict"].startswith("caught")
        print(f"{number} {fault['what']}: {report or 'NOTHING REPORTED'} (expected: {fault['verdict']})", flush=True)
    print(f"{tried} faults, {caught} reported, {wrong} against the table")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
