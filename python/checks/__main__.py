# SPDX-License-Identifier: MIT
"""Everything that the Python package promises on a device, checked by one command; the record is JSON.

usage: python python/checks [--device cuda:0|cpu] [--record FILE] [--groups torch hf ...] [--jobs N] [--limit SECONDS]

Each group runs in a process of its own, since a fault of a GPU ends all further work of its process: the rest of
the group goes on in a fresh one. Needs torch; the group hf transformers, the group jax JAX. Exit status 0: nothing failed.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

GROUPS = ("start", "torch", "options", "sparse", "graphs", "hf", "compat", "jax")
HERE = os.path.dirname(os.path.abspath(__file__))


def load(group):
    """Names of a group's checks, which are loaded."""
    import record

    importlib.import_module(f"{group}_checks")
    return list(record.CHECKS)


def child(group, device, names, path):
    """Run checks one after another, a line of JSON each; status 3 after a fault of the device."""
    with open(path, "a", encoding="utf-8") as lines:
        import record

        known = load(group)
        for name in names or known:
            print(json.dumps({"start": name}), file=lines, flush=True)
            found, usable = record.run(name, device)
            print(json.dumps(found), file=lines, flush=True)
            if not usable:
                os._exit(3)


def read(path):
    """Finished checks, and the one that was running when the process ended."""
    finished, running = [], None
    with open(path, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            running = line.get("start")
            if running is None:
                finished.append(line)
    return finished, running


def run_group(group, device, deadline, folder):
    """All checks of a group, in as many processes as faults make necessary."""
    finished, remaining = [], None
    for attempt in range(20):
        path = os.path.join(folder, f"{group}.{attempt}")
        open(path, "w", encoding="utf-8").close()
        command = [sys.executable, HERE, "--device", device, "--child", group, path, *(remaining or [])]
        output = ""
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=max(1.0, deadline - perf_counter()),
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, output = "time", (late.stdout or b"").decode(errors="replace")
        now, running = read(path)
        finished += now
        if status == 0:
            break
        if running is not None:
            why = "out of time" if status == "time" else f"the process ended with status {status}: {output[-1500:]}"
            finished.append({"name": running, "result": "failed", "reason": why, "figures": {}, "seconds": 0.0})
        if status == "time" or not finished:
            if not finished:
                finished.append(
                    {"name": "load", "result": "failed", "reason": output[-1500:], "figures": {}, "seconds": 0.0}
                )
            break
        names = remaining or listed(group)
        remaining = [name for name in names if name not in {line["name"] for line in finished}]
        if not remaining:
            break
    return [{"group": group, **line} for line in finished]


def listed(group):
    """Names of a group's checks, asked of a process of its own."""
    found = subprocess.run([sys.executable, HERE, "--list", group], capture_output=True, text=True, check=False)
    return found.stdout.split()


def environment(device):
    """What ran: versions, processor, GPU."""
    import libattn
    import torch

    found = {
        "libattn": libattn.version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "library_bytes": os.path.getsize(libattn._library.lib._name),
    }
    for name in ("transformers", "jax", "numpy", "triton"):
        try:
            found[name] = importlib.import_module("importlib.metadata").version(name)
        except ImportError:
            found[name] = None
    if device.startswith("cuda"):
        found.update(
            gpu=torch.cuda.get_device_name(device),
            cuda=torch.version.cuda,
            devices=[vars(known) for known in libattn.devices()],
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--record")
    parser.add_argument("--groups", nargs="+", default=GROUPS)
    parser.add_argument("--jobs", type=int, default=min(len(GROUPS), os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--list", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.list:
        print(*load(words.list))
        return 0
    if words.child:
        group, path, *names = words.child
        child(group, words.device, names, path)
        return 0
    start = perf_counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(words.jobs) as pool:
        groups = pool.map(lambda group: run_group(group, words.device, start + words.limit, folder), words.groups)
        checks = [line for group in groups for line in group]
    took = perf_counter() - start
    count = {word: sum(line["result"] == word for line in checks) for word in ("passed", "failed", "skipped")}
    if words.record:
        with open(words.record, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "environment": environment(words.device),
                    "seconds": round(perf_counter() - start, 1),
                    **count,
                    "checks": checks,
                },
                file,
                indent=1,
            )
            file.write("\n")
    for line in checks:
        figures = line["figures"]
        text = line.get("reason") or (f"worst error {max(figures.values()):.2e} of {len(figures)}" if figures else "")
        text = "; ".join(
            [*text.splitlines()[:1], *(f"{name} {value}" for name, value in line.get("measured", {}).items())]
        )
        print(f"{line['result']:7} {line['group']:7} {line['name']:24} {line['seconds']:6.1f} s  {text}")
    print(
        f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped in {took:.1f}s"
    )
    return int(count["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
