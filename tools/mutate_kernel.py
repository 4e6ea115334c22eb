#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Leaves out, one at a time, each barrier, fence, wait and commit of a compiled kernel's PTX (and waits for one group fewer,
makes acquires and releases relaxed), runs the
kernel in the simulator on a problem and tells which edits nobody noticed. Those are either never reached by the problem,
or not needed, or a hole in the checks.

usage: tools/mutate_kernel.py BUILD KERNEL "PROBLEM" [policy ...]     e.g. build/release attn_sdpa_fwd_sm80_bf16_d64 \\
           "sdpa_fwd hq=2 hk=1 sq=70 sk=300 d=64 bf16 causal" late random
"""
import os
import re
import subprocess
import sys
import tempfile

ORDER = re.compile(r"^\s*(@!?%p\d+ )?(bar\.sync|bar\.arrive|barrier\.|bar\.warp\.sync|cp\.async\.wait_group|cp\.async\.commit_group|"
                   r"cp\.async\.wait_all|fence\.proxy|wgmma\.fence|wgmma\.wait_group|wgmma\.commit_group|mbarrier\.arrive|"
                   r"cp\.async\.bulk\.(wait|commit)_group|fence\.acq_rel|fence\.sc|membar\.|griddepcontrol\.wait)")
STRONG = re.compile(r"^(\s*(?:@!?%p\d+ )?(?:ld|st|red|atom))\.(?:acquire|release|acq_rel)\.")
WAIT = re.compile(r"(cp\.async\.wait_group\s+)(\d+)")
PLACE = re.compile(r"^\s*\.loc\s+(\d+) (\d+)")


def edits(lines):
    """(line number, what, text of the line instead)"""
    for i, line in enumerate(lines):
        if ORDER.match(line):
            yield i, "left out", "//" + line
        if STRONG.match(line):
            yield i, "relaxed", STRONG.sub(r"\1.relaxed.", line)
        if WAIT.search(line):
            yield i, "one group fewer", WAIT.sub(lambda m: m.group(1) + str(int(m.group(2)) + 1), line)


def place(lines, files, i):
    for line in reversed(lines[:i]):
        m = PLACE.match(line)
        if m:
            return f"{files.get(m.group(1), '?')}:{m.group(2)}"
    return ""


def main():
    if len(sys.argv) < 4:
        print(__doc__)
        return 2
    build, kernel, problem, *policies = sys.argv[1:]
    policies = policies or ["late", "random"]
    with open(os.path.join(build, "cuda", kernel + ".ptx"), encoding="utf-8") as f:
        lines = f.read().split("\n")
    files = dict(re.findall(r'\.file\s+(\d+) "([^"]*)"', "\n".join(lines)))

    def noticed(folder, text):
        with open(os.path.join(folder, kernel + ".ptx"), "w", encoding="utf-8") as f:
            f.write("\n".join(text))
        env = dict(os.environ, ATTNSIM_PTX=folder, ATTNSIM_QUIET="1", ATTNSIM_MAX_INSTRUCTIONS="20000000")
        for policy in policies:
            command = [os.path.join(build, "attn"), "check", "--driver", "sim", "--policy", policy, "--threads", "1", "--kernel",
                       kernel, "--problem", problem]
            if subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0:
                return True
        return False

    n, missed = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        if noticed(folder, lines):
            print(f"{kernel} fails as it is, or refuses the problem")
            return 1
        for i, what, instead in edits(lines):
            n += 1
            if not noticed(folder, lines[:i] + [instead] + lines[i + 1:]):
                missed += 1
                print(f"{kernel}.ptx:{i + 1} ({place(lines, files, i)}): {lines[i].strip()} {what}: not noticed")
    print(f"{kernel}: {n} edits, {n - missed} noticed, {missed} not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
