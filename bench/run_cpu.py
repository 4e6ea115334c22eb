#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure a list on two processors of a machine that others use, too: attn and the peers of peers_cpu.py in the same seconds.

    cc -O2 bench/cpu_limits.c -o cpu_limits -lpthread
    python3 bench/run_cpu.py --attn build/attn --limits ./cpu_limits --cpus 4-9 --run-id R @cpu > R.jsonl

A neighbour on the same host takes a processor's tile unit or its clock away, for some milliseconds or for seconds, and some
processor is disturbed nearly always. Noise only ever adds time. So

- a visit, some executions of one problem by one implementation within a fraction of a second, runs on the two processors that a
  probe (cpu_limits probe: multiply-adds and tile products, some milliseconds) found fastest just before, never on two that
  halve each other (cpu_limits pairs, once at the beginning);
- implementations take turns visit by visit, and passes go through the list until the time is up;
- the time of a record is the lowest 10th percentile of any visit, of each implementation alike; its note says of how many.
  The longer an execution, the less likely it is to pass undisturbed: @cpu_short has problems of a few milliseconds.

Decode is bound by memory: a plain read of as many bytes as K and V (cpu_limits read) takes its turns like an implementation and is
written as measure "limit", as are the limits of the pair (cpu_limits limits). --samples FILE keeps every visit.
"""
import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

import peers_cpu
from peers_timing import problems, quantile
from peers_torch import canonical, flops, parse, traffic

CLOSE = 0.9  # of the best rates seen: good enough to go on


class Machine:
    """The processors that may be used, and what they did at the last probe."""

    def __init__(self, limits, cpus):
        self.limits, self.cpus = limits, cpus
        self.best = {"fma": 0.0, "amx": 0.0}
        self.bound = set()  # pairs that take something from each other: two threads of one core, say

    def find_bound(self):
        out = subprocess.run([self.limits, "pairs", *map(str, self.cpus)], capture_output=True, text=True, check=True).stdout
        for r in map(json.loads, out.splitlines()):
            if r["together"] < 0.75 * sum(r["alone"]):
                self.bound.add(tuple(r["pair"]))

    def probe(self, cpus):
        out = subprocess.run([self.limits, "probe", *map(str, cpus)], capture_output=True, text=True, check=True).stdout
        rates = {r.pop("cpu"): r for r in map(json.loads, out.splitlines())}
        for r in rates.values():
            for kind in self.best:
                self.best[kind] = max(self.best[kind], r[kind])
        return rates

    def share(self, rates, kinds):
        """How near the worst of the rates is to the best that was seen."""
        return min(r[kind] / self.best[kind] if self.best[kind] else 1.0 for r in rates.values() for kind in kinds)

    def pair(self, kinds, patience):
        """The best two processors, and their rates."""
        end = time.monotonic() + patience
        while True:
            rates = self.probe(self.cpus)
            order = sorted(self.cpus, key=lambda c: -self.share({c: rates[c]}, kinds))
            two = [order[0], next((c for c in order[1:] if tuple(sorted((c, order[0]))) not in self.bound), order[1])]
            rates = {c: rates[c] for c in two}
            if self.share(rates, kinds) >= CLOSE or time.monotonic() > end:
                return sorted(two), rates
            time.sleep(0.1)


def move(cpus):
    """All threads of this process, those of the runtimes' pools, too."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:
            pass  # it ended meanwhile


class Attn:
    """A visit is a process of its own."""

    def __init__(self, path, line, runs, seconds, impl="attn", outputs=None):
        self.impl, self.outputs = impl, outputs
        self.command = [path, "bench", "--json", "--threads", "2", "--run-id", "visit", "--cache", "warm", "--runs", str(runs),
                        "--min-time", "0.05", "--max-time", str(seconds), line]
        if outputs:
            self.command[2:2] = ["--outputs", outputs]
        self.record = None

    def __call__(self, machine, pair):
        out = subprocess.run(["taskset", "-c", ",".join(map(str, pair)), *self.command], capture_output=True, text=True).stdout
        records = [r for r in map(json.loads, out.splitlines()) if r.get("median_us")]
        self.record = records[0]
        return [records[0][k] for k in ("median_us", "p10_us", "p90_us", "n")]


class Peer:
    """An operator of a runtime in this process; it is made once and kept."""

    def __init__(self, impl, name, make, runs, seconds):
        self.impl, self.name, self.make, self.runs, self.seconds = impl, name, make, runs, seconds
        self.call = None

    def __call__(self, machine, pair):
        move(pair)
        try:
            self.call = self.call or self.make()
            x = peers_cpu.measure(self.call, self.runs, 0.05, self.seconds, 0)
        finally:
            move([c for c in machine.cpus if c not in pair])
            time.sleep(0.02)  # pools spin on for a while
        return [quantile(x, q) * 1e6 for q in (0.5, 0.1, 0.9)] + [len(x)]


class Read:
    """As many bytes as K and V have."""

    impl = "read"

    def __init__(self, limits, p):
        width = {"f32": 4, "f64": 8}.get(p["dtype"], 2)
        self.bytes = p["b"] * p["hk"] * p["sk"] * (p["d"] + p["dv"]) * width
        self.limits = limits

    def __call__(self, machine, pair):
        out = subprocess.run([self.limits, "read", str(self.bytes), *map(str, pair)], capture_output=True, text=True, check=True)
        us = self.bytes / json.loads(out.stdout)["value"] * 1e-3
        return us, us, us, 7


def implementations(line, args):
    p = parse(line)
    yield Attn(args.attn, line, args.runs, args.visit)
    for outputs in args.outputs if "_fwd" in line.split()[0] else ():
        yield Attn(args.attn, line, args.runs, args.visit, f"attn --outputs {outputs}", outputs)
    for other in args.beside:
        yield Attn(other, line, args.runs, args.visit, pathlib.Path(other).name)
    if p is None:
        return
    found = list(peers_cpu.peers(p, 2, args.only.split(",")))
    for operator in ("GroupQueryAttention", "MultiHeadAttention"):  # ONNX Runtime's fastest one that can say it
        if any(name.startswith(operator) for _, name, _ in found):
            found = [x for x in found if x[0] != "onnxruntime" or x[1].startswith(operator)]
    for impl, name, make in found:
        yield Peer(impl, name, make, args.runs, args.visit)
    if p["op"] == "sdpa_fwd" and p["sq"] == 1:
        yield Read(args.limits, p)


def kinds_of(line):
    return ("fma",) if " f64" in line else ("fma", "amx")


def visit(machine, row, who, args, turn):
    kinds = kinds_of(row["line"])
    pair, before = machine.pair(kinds, args.patience)
    move([c for c in machine.cpus if c not in pair])
    try:
        us, p10, p90, n = who(machine, pair)
    except Exception as error:  # whatever a runtime says: no such kernel, unknown type, memory
        print(f"{row['line']}: {who.impl}: {str(error).splitlines()[:1]}", file=sys.stderr)
        row["impls"] = [x for x in row["impls"] if x is not who]
        return
    row["visits"].append({"who": who, "us": us, "p10": p10, "p90": p90, "n": n, "pair": pair, "pass": turn, "before": before,
                          "at": round(time.monotonic() - args.begin, 2)})


def records(row, args, date):
    """One per implementation."""
    for who in row["impls"]:
        own = [v for v in row["visits"] if v["who"] is who]
        if not own:
            continue
        best = min(own, key=lambda v: v["p10"])
        us, p = best["p10"], parse(row["line"])
        r = {"run": args.run_id, "date": date, "commit": None, "device": args.device, "driver": None,
             "problem": canonical(p) if p else row["line"], "impl": who.impl, "kernel": getattr(who, "name", "plain read"),
             "measure": "limit" if isinstance(who, Read) else "execution"}
        if isinstance(who, Attn):
            words = who.record
            r.update(commit=words["commit"], problem=words["problem"], kernel=words["kernel"])
            work, traffic_bytes = (words["tflops"] or 0) * words["median_us"], words["gbps"] * words["median_us"]
        elif isinstance(who, Read):
            work, traffic_bytes = 0, who.bytes * 1e-3
        else:
            work, traffic_bytes = flops(p) * 1e-6, traffic(p) * 1e-3
        r.update(median_us=round(us, 3), p10_us=round(us, 3), p90_us=round(best["p90"], 3), n=best["n"], batch=1,
                 clock="host", host_us=None, cache="warm", tflops=round(work / us, 6), gbps=round(traffic_bytes / us, 3),
                 limit_share=None, note=f"caches warm, 2 threads, lowest 10th percentile of {len(own)} visits")
        if getattr(who, "outputs", None):
            r["note"] += f", outputs {who.outputs}"
        yield r


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM|@NAME|FILE")
    parser.add_argument("--attn", required=True, help="the command")
    parser.add_argument("--beside", action="append", default=[], help="another build, listed by the name of its file")
    parser.add_argument("--outputs", action="append", default=[], help="measure attn's forwards with these outputs, too: out")
    parser.add_argument("--limits", required=True, help="cpu_limits, compiled")
    parser.add_argument("--cpus", required=True, help="processors to choose from, as 4-9 or 0,2,4")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--device", default=peers_cpu.device_name(),
                        help="name in the records: what is known of a processor whose own name does not tell")
    parser.add_argument("--seconds", type=float, default=150, help="time for all passes (default 150)")
    parser.add_argument("--runs", type=int, default=5, help="executions of a visit, at least (default 5)")
    parser.add_argument("--visit", type=float, default=0.15, help="seconds of a visit, where these are enough (default 0.15)")
    parser.add_argument("--patience", type=float, default=0.3, help="seconds to wait for undisturbed processors (default 0.3)")
    parser.add_argument("--only", default=peers_cpu.default_peers(),
                        help="peers, default onnxruntime,torch and, with ONEDNN_LIBRARY, onednn")
    parser.add_argument("--samples", type=argparse.FileType("w"), help="every visit, one line of JSON each")
    args = parser.parse_args()
    cpus = []
    for part in args.cpus.split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    args.begin = time.monotonic()
    machine = Machine(args.limits, cpus)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine.find_bound()
    rows = [{"line": line, "impls": list(implementations(line, args)), "visits": []} for _, line in problems(args.problems)]
    found = {}
    turn = 0
    while time.monotonic() - args.begin < args.seconds:
        for row in rows:
            for who in row["impls"][::-1 if turn % 2 else 1]:
                if time.monotonic() - args.begin < args.seconds:
                    visit(machine, row, who, args, turn)
        pair, _ = machine.pair(("fma", "amx"), 1)
        out = subprocess.run([args.limits, "limits", *map(str, pair)], capture_output=True, text=True).stdout
        for r in map(json.loads, out.splitlines()):
            if r["limit"] not in found or r["value"] > found[r["limit"]]["value"]:
                found[r["limit"]] = r
        turn += 1
    for row in rows:
        for r in records(row, args, date):
            print(json.dumps({**r, "device": args.device}))
        if args.samples:
            for v in row["visits"]:
                words = {k: x for k, x in v.items() if k != "who"}
                print(json.dumps({"problem": row["line"], "impl": v["who"].impl, "kernel": getattr(v["who"], "name", ""), **words}),
                      file=args.samples)
    for r in found.values():
        print(json.dumps({"run": args.run_id, "date": date, "device": args.device, "measure": "limit", **r,
                          "note": "best of the passes; processors together"}))


if __name__ == "__main__":
    main()
