#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure a list on two processors of a machine that others use, too: attn, ONNX Runtime and PyTorch in the same seconds.

    cc -O2 -mavx512f bench/cpu_limits.c -o cpu_limits -lpthread
    python3 bench/run_cpu.py --attn build/attn --limits ./cpu_limits --cpus 4-9 --run-id R @cpu > R.jsonl

A neighbour on the same host takes a processor's tile unit or its clock away for seconds at a time. So

- each measurement, a few executions of one problem by one implementation (a visit), stands between two probes of its two
  processors (cpu_limits probe: multiply-adds and tile products, some milliseconds), and counts only if both probes found
  both processors within 8 % of the best that this run has seen of any (tiles: problems in 16 bits);
- the pair of the moment's two best processors is chosen before each visit; where there is none, a few seconds are waited;
- implementations take turns visit by visit, passes go through the list until the time is up, and a record's time is the
  median over the visits that count of the median of each; its note says how many. A problem that found no undisturbed
  processors has no record.

Decode is bound by memory: a plain read of as many bytes as K and V (cpu_limits read) takes its turns like an implementation and is
written as measure "limit", as are the limits of the pair (cpu_limits limits). --samples FILE keeps every visit.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

import peers_cpu
from peers_torch import canonical, flops, parse, problems, quantile, traffic

CLOSE = 0.92


class Machine:
    """The processors that may be used, and what they did at the last probe."""

    def __init__(self, limits, cpus):
        self.limits, self.cpus = limits, cpus
        self.best = {"fma": 0.0, "amx": 0.0}

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
            two = sorted(self.cpus, key=lambda c: -self.share({c: rates[c]}, kinds))[:2]
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

    impl = "attn"

    def __init__(self, path, line, runs, seconds):
        self.command = [path, "bench", "--json", "--threads", "2", "--run-id", "visit", "--cache", "warm", "--runs", str(runs),
                        "--min-time", "0.05", "--max-time", str(seconds), line]
        self.record = None

    def __call__(self, machine, pair):
        out = subprocess.run(["taskset", "-c", ",".join(map(str, pair)), *self.command], capture_output=True, text=True).stdout
        records = [r for r in map(json.loads, out.splitlines()) if r.get("median_us")]
        self.record = records[0]
        return records[0]["median_us"], records[0]["n"]


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
        return quantile(x, 0.5) * 1e6, len(x)


class Read:
    """As many bytes as K and V have."""

    impl = "read"

    def __init__(self, limits, p):
        width = {"f32": 4, "f64": 8}.get(p["dtype"], 2)
        self.bytes = p["b"] * p["hk"] * p["sk"] * (p["d"] + p["dv"]) * width
        self.limits = limits

    def __call__(self, machine, pair):
        out = subprocess.run([self.limits, "read", str(self.bytes), *map(str, pair)], capture_output=True, text=True, check=True)
        return self.bytes / json.loads(out.stdout)["value"] * 1e-3, 7


def implementations(line, args):
    p = parse(line)
    yield Attn(args.attn, line, args.runs, args.visit)
    if p is None:
        return
    for impl, name, make in peers_cpu.peers(p, 2, args.only.split(",")):
        yield Peer(impl, name, make, args.runs, args.visit)
    if p["op"] == "sdpa_fwd" and p["sq"] == 1:
        yield Read(args.limits, p)


def kinds_of(line):
    return ("fma", "amx") if "16" in line.split()[-1] or "16 " in line + " " else ("fma",)


def pruned(row):
    """After a pass: of the operators of one runtime only the fastest goes on."""
    best = {}
    for x in row["impls"]:
        times = [v["us"] for v in row["visits"] if v["who"] is x and v["us"]]
        if isinstance(x, Attn) or isinstance(x, Read):
            best[x] = x
        elif times and (x.impl not in best or min(times) < best[x.impl][0]):
            best[x.impl] = (min(times), x)
    return [x for x in row["impls"] if x in best or best.get(x.impl, (0, None))[1] is x]


def visit(machine, row, who, args, turn):
    kinds = kinds_of(row["line"])
    pair, before = machine.pair(kinds, args.patience)
    move([c for c in machine.cpus if c not in pair])
    try:
        us, n = who(machine, pair)
    except Exception as error:  # whatever a runtime says: no such kernel, unknown type, memory
        print(f"{row['line']}: {who.impl}: {str(error).splitlines()[:1]}", file=sys.stderr)
        row["impls"] = [x for x in row["impls"] if x is not who]
        return
    row["visits"].append({"who": who, "us": us, "n": n, "pair": pair, "pass": turn, "before": before,
                          "after": machine.probe(pair), "at": round(time.monotonic() - args.begin, 2)})


def share_of(machine, row, v):
    return min(machine.share(v[when], kinds_of(row["line"])) for when in ("before", "after"))


def records(machine, row, args, date):
    """One per implementation that was visited undisturbed."""
    for who in row["impls"]:
        own = [v for v in row["visits"] if v["who"] is who]
        good = [v for v in own if share_of(machine, row, v) >= CLOSE]
        if not good:
            continue
        times = sorted(v["us"] for v in good)
        us, p = quantile(times, 0.5), parse(row["line"])
        r = {"run": args.run_id, "date": date, "commit": None, "device": peers_cpu.device_name(), "driver": None,
             "problem": canonical(p) if p else row["line"], "impl": who.impl, "kernel": getattr(who, "name", "plain read"),
             "measure": "limit" if isinstance(who, Read) else "execution"}
        if isinstance(who, Attn):
            own_words = who.record
            r.update(commit=own_words["commit"], problem=own_words["problem"], kernel=own_words["kernel"])
            work, traffic_bytes = (own_words["tflops"] or 0) * own_words["median_us"], own_words["gbps"] * own_words["median_us"]
        else:
            work, traffic_bytes = (flops(p) * 1e-6, traffic(p) * 1e-3)
        if isinstance(who, Read):
            work, traffic_bytes = 0, who.bytes * 1e-3
        r.update(median_us=round(us, 3), p10_us=round(quantile(times, 0.1), 3), p90_us=round(quantile(times, 0.9), 3),
                 n=sum(v["n"] for v in good), batch=1, clock="host", host_us=None, cache="warm",
                 tflops=round(work / us, 6), gbps=round(traffic_bytes / us, 3), limit_share=None,
                 note=f"caches warm, 2 threads, median of {len(good)} undisturbed visits of {len(own)}")
        yield r


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM|@NAME|FILE")
    parser.add_argument("--attn", required=True, help="the command")
    parser.add_argument("--limits", required=True, help="cpu_limits, compiled")
    parser.add_argument("--cpus", required=True, help="processors to choose from, as 4-9 or 0,2,4")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--seconds", type=float, default=150, help="time for all passes (default 150)")
    parser.add_argument("--runs", type=int, default=3, help="executions of a visit, at least (default 3)")
    parser.add_argument("--visit", type=float, default=0.25, help="seconds of a visit, where more than 3 runs (default 0.25)")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds to wait for undisturbed processors (default 1)")
    parser.add_argument("--only", default="onnxruntime,torch", help="peers, default onnxruntime,torch")
    parser.add_argument("--samples", type=argparse.FileType("w"), help="every visit, one line of JSON each")
    args = parser.parse_args()
    cpus = []
    for part in args.cpus.split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    args.begin = time.monotonic()
    machine = Machine(args.limits, cpus)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = [{"line": line, "impls": list(implementations(line, args)), "visits": []} for line in problems(args.problems)]
    found = {}
    turn = 0
    while time.monotonic() - args.begin < args.seconds:
        for row in rows:
            for who in row["impls"][::-1 if turn % 2 else 1]:
                if time.monotonic() - args.begin < args.seconds:
                    visit(machine, row, who, args, turn)
        if turn == 0:
            for row in rows:
                row["impls"] = pruned(row)
        pair, _ = machine.pair(("fma", "amx"), 2 * args.patience)
        out = subprocess.run([args.limits, "limits", *map(str, pair)], capture_output=True, text=True).stdout
        for r in map(json.loads, out.splitlines()):
            if r["limit"] not in found or r["value"] > found[r["limit"]]["value"]:
                found[r["limit"]] = r
        turn += 1
    for row in rows:
        for r in records(machine, row, args, date):
            print(json.dumps(r))
        if args.samples:
            for v in row["visits"]:
                words = {k: x for k, x in v.items() if k != "who"}
                print(json.dumps({"problem": row["line"], "impl": v["who"].impl, "kernel": getattr(v["who"], "name", ""),
                                  "share": round(share_of(machine, row, v), 3), **words}), file=args.samples)
    for r in found.values():
        print(json.dumps({"run": args.run_id, "date": date, "device": peers_cpu.device_name(), "measure": "limit", **r,
                          "note": "best of the passes; processors together"}))


if __name__ == "__main__":
    main()
