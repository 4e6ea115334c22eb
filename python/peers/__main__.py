# SPDX-License-Identifier: MIT
"""Others' own test files on libattn.compat, from checkouts that you have: FlashMLA's, flash-attention's, TileLang's, miles'.

usage: python python/peers [--flash-mla FOLDER] [--flash-attention FOLDER] [--tilelang FOLDER] [--miles FOLDER]
                           [--record FILE] [--device cuda|cpu] [--suites NAME ...] [--jobs N] [--limit SECONDS] [--fewer N] [--list]

The cases and the reasons for them: selection.py, or --list. Nothing is fetched, and nothing of the checkouts is kept but names
of cases. Needs torch, pytest, einops, triton and rich. Exit status 0: nothing failed, every refusal has its row in docs/python.md.
"""

import argparse
import collections
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from selection import SUITES

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUTS = ("flash_mla", "flash_attention", "tilelang", "miles")
RESULTS = ("passed", "failed", "refused", "skipped", "late", "unknown")  # late: cut off by --limit

FAULTS = ("failed", "late", "unknown")
CROWDED = "out of memory"


def list_cases():
    """The selection in words."""
    for suite in SUITES.values():
        print(f"{suite.name}: {suite.file} of {suite.checkout}")
        for cases in suite.cases:
            values = "; ".join(f"{name} {', '.join(map(str, kept))}" for name, kept in cases.values.items())
            count = len(cases.calls) or (f"1 of {cases.every}" if cases.every > 1 else "all")
            print(f"  {cases.function:44} {count:<9} {cases.reason}")
            if values:
                print(f"  {'':44} {'':9} {values}")
        for function, reason in suite.left_out.items():
            print(f"  {function:44} none      {reason}")


def documented(path):
    """Features whose refusal docs/python.md states: the words in backticks of the third column, by published name."""
    with open(path, encoding="utf-8") as file:
        table = file.read().split("| module | served | refused by exception |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| `([\w.]+)`[^|]*\|[^|]*\|([^|]*)\|$", table, re.M)
    return {name: set(re.findall(r"`(\w+)`", refused)) for name, refused in rows}


def environment_of(suite, words, path, share, shares):
    """Of one process."""
    checkout = os.path.abspath(getattr(words, suite.checkout))
    roots = [HERE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | suite.environment | {
        "PEERS_SUITE": suite.name, "PEERS_CHECKOUT": checkout, "PEERS_DEVICE": words.device, "PEERS_LINES": path,
        "PEERS_SHARE": f"{share}/{shares}", "PEERS_FEWER": str(words.fewer), "PEERS_JOBS": str(words.jobs), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // words.jobs)),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(root) for root in roots), "NO_COOLDOWN": "1"}  # fmt: skip


def run_share(suite, words, share, shares, folder, deadline, known=()):
    """One process's share of a suite, but for cases that are known; after a fault of the GPU the rest goes on in a fresh process."""
    path, output = os.path.join(folder, f"{suite.name}.{share}.{shares}".replace(" ", "_")), ""
    environment = environment_of(suite, words, path, share, shares)
    with open(path, "w", encoding="utf-8") as file:
        for line in known:
            print(json.dumps(line), file=file)
    command = [sys.executable, os.path.join(HERE, "script.py")]
    if suite.form == "pytest":
        file = os.path.join(environment["PEERS_CHECKOUT"], suite.file)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
                   folder, "--import-mode=importlib", "--capture=fd", "--show-capture=no", "--tb=line", file]  # fmt: skip
    for _ in range(20):
        status = "time"
        try:
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=max(1.0, deadline - perf_counter()))  # fmt: skip
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace")
        if status != 3:
            break
    found, before = {}, {line["case"] for line in known}
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["case"] not in before:
                found[line["case"]] = line
    for line in found.values():
        if line["result"] == "started":
            line.update(
                {"result": "late"}
                if status == "time"
                else {"result": "failed", "reason": f"process ended: {output[-600:]}"}
            )
    if not found and status not in (0, 5):  # 5: pytest had nothing to do
        found["load"] = {"case": "load", "result": "late" if status == "time" else "failed", "reason": output[-2000:]}
    return [{"suite": suite.name, **line} for line in found.values()], status == "time"


def run_all(words, folder, deadline):
    """Two suites at a time, each in shares; what found no room beside other processes runs again, alone."""
    start, lines, count = perf_counter(), [], (words.jobs + 1) // 2
    with ThreadPoolExecutor(words.jobs) as pool:
        running = {
            name: [
                pool.submit(run_share, SUITES[name], words, share, count, folder, deadline) for share in range(count)
            ]
            for name in words.suites
        }
        for name, shares in running.items():
            found, late = zip(*(share.result() for share in shares))
            lines += [line for share in found for line in share]
            took = f"{sum(map(len, found))} cases, {perf_counter() - start:.0f} s"
            print(f"{name}: {took}{', out of time' * any(late)}", flush=True)
    for name in words.suites:
        mine = [line for line in lines if line["suite"] == name]
        crowded = {
            line["case"] for line in mine if line["result"] == "failed" and CROWDED in (line.get("reason") or "")
        }
        if crowded and words.jobs > 1:
            known = [line for line in mine if line["case"] not in crowded]
            again, _ = run_share(SUITES[name], words, 0, 1, folder, deadline, known)
            lines = [line for line in lines if line["suite"] != name or line["case"] not in crowded]
            lines += [line | {"alone": True} for line in again]
            print(f"{name}: {len(again)} cases again, alone, {perf_counter() - start:.0f} s", flush=True)
    return lines


def check_rows(lines, rows):
    """A refusal that no row of docs/python.md states is a failure."""
    for line in lines:
        published = SUITES[line["suite"]].published
        if line["result"] == "refused" and not any(line["feature"] in rows.get(name, ()) for name in published):
            line.update(result="failed", reason=f"no row of docs/python.md states this refusal: {line['reason']}")


def summary(lines, words, took):
    """Printed and recorded: counts of each suite, refusals by feature, failures by name."""
    table = {
        name: collections.Counter(line["result"] for line in lines if line["suite"] == name) for name in words.suites
    }
    print(f"{'':26}" + "".join(f"{word:>9}" for word in RESULTS))
    for name, counts in table.items():
        print(f"{name:26}" + "".join(f"{counts[word]:9}" for word in RESULTS))
    refused = collections.Counter((line["suite"], line["feature"]) for line in lines if line["result"] == "refused")
    for (name, feature), count in refused.items():
        print(f"refused  {name}: {feature} ({count})")
    for line in lines:
        if line["result"] in FAULTS:
            reason = (line.get("reason") or "").strip().splitlines()
            print(f"{line['result']:8} {line['suite']}: {line['case'][:150]}: {' '.join(reason[:1])}")
    total = sum(table.values(), collections.Counter())
    print(", ".join(f"{total[word]} {word}" for word in RESULTS[:4]) + f" in {took:.1f}s")
    return {"counts": {name: dict(counts) for name, counts in table.items()},
            "refused": [{"suite": name, "feature": feature, "cases": n} for (name, feature), n in refused.items()]}  # fmt: skip


def commit_of(folder):
    """None of a folder that is no checkout by itself."""
    found = subprocess.run(
        ["git", "-C", folder, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.split("\n")
    return found[1] if os.path.realpath(found[0]) == os.path.realpath(folder) else None


def environment(words):
    """What ran."""
    import libattn
    import torch

    gpu = torch.cuda.get_device_name() if words.device == "cuda" else None
    checkouts = {name: commit_of(getattr(words, name)) for name in CHECKOUTS if getattr(words, name)}
    return {"libattn": libattn.version(), "python": platform.python_version(), "torch": torch.__version__, "device": words.device,
            "gpu": gpu, "fewer": words.fewer, "checkouts": checkouts}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in CHECKOUTS:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--record")
    parser.add_argument("--suites", nargs="+", choices=SUITES, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of all suites together")
    parser.add_argument("--fewer", type=int, default=1, help="one of N of the selection's cases")
    parser.add_argument("--docs", default=os.path.join(HERE, "..", "..", "docs", "python.md"))
    parser.add_argument("--list", action="store_true", help="print the selection and its reasons")
    words = parser.parse_args()
    if words.list:
        list_cases()
        return 0
    words.suites = words.suites or [name for name, suite in SUITES.items() if getattr(words, suite.checkout)]
    missing = {SUITES[name].checkout for name in words.suites if not getattr(words, SUITES[name].checkout)}
    if missing or not words.suites:
        parser.error(
            f"a checkout is missing: --{' --'.join(missing or CHECKOUTS).replace('_', '-')}"
        )
    start = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lines = run_all(words, folder, start + words.limit)
    check_rows(lines, documented(words.docs))
    took = perf_counter() - start
    record = summary(lines, words, took)
    if words.record:
        with open(words.record, "w", encoding="utf-8") as file:
            json.dump(
                {"environment": environment(words), "seconds": round(took, 1), **record, "cases": lines}, file, indent=1
            )
            file.write("\n")
    return int(any(line["result"] in FAULTS for line in lines))


if __name__ == "__main__":
    sys.exit(main())
