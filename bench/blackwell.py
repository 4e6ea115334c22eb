#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures bench/cases/blackwell.txt on a B200, peers beside it, and prints a table with predictions and published speed, as markdown.

    bench/blackwell.py --attn build/release/attn --out FOLDER [--device cuda:0] [--flash-mla flash_mla/_C_legacy.abi3.so]

FOLDER gets attn.jsonl and peers.jsonl, records of one run that bench/table.py joins. Each problem is measured on the row whose
prediction bench/cases/blackwell_expected.tsv has; peers by peers_torch.py, peers_flash.py and peers_sparse.py, where PyTorch and their
packages load, each compared with the formula first. --rehearse: in the simulator, on small problems, counted instead of timed, the
timeline's clocks at the same rate. --rows GLOB: rows by name. Exit status 1 if a problem could not be measured on its row."""
import argparse
import datetime
import fnmatch
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MULTIPROCESSORS, CLOCK = 148, 1.85e9
PACKAGES = ("torch", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "flash-attn-4", "sgl-flash-mla")
PER_PAIR = {"sdpa_fwd": lambda d, dv: 2 * (d + dv), "sdpa_bwd": lambda d, dv: 2 * (3 * d + 2 * dv), "mla_fwd": lambda d, dv: 2 * (d + dv),
            "mla_bwd": lambda d, dv: 2 * (3 * d + 2 * dv), "dist": lambda d, dv: 2 * d}


def read_expected():
    rows = []
    for line in (HERE / "cases/blackwell_expected.tsv").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "problem\t")):
            problem, overlap, kernel, clocks, published, peer, source = line.split("\t")
            rows.append({"problem": problem, "overlap": None if overlap == "-" else overlap, "kernel": kernel, "clocks": float(clocks),
                         "published": published, "peer": peer, "source": source})
    return rows


def extents(problem):
    return {k: int(v) for k, v in re.findall(r"\b(\w+)=(\d+)", problem)}


def block_flops(problem):
    """FLOPs of a query and 64 of its slots, or of 128 x 128 cells of a head's scores."""
    op, e = problem.split()[0], extents(problem)
    is_dense = op.startswith("sdpa")
    pairs = 128 * 128 if is_dense else 64 * e["hq"]
    return pairs * PER_PAIR[op](e["d"], e.get("dv", e["d"] if is_dense else 512))


def tflops_at(flops, clocks):
    return flops / clocks * MULTIPROCESSORS * CLOCK / 1e12


def small(problem):
    """The same kind of problem, for the simulator."""
    sizes = {"sq": 512, "hq": 2} if problem.startswith("sdpa") else {"sq": 4, "sk": 512, "topk": 256}
    if "hk=" in problem:
        sizes["hk"] = 1
    return re.sub(r"\b(\w+)=(\d+)", lambda m: f"{m[1]}={min(int(m[2]), sizes.get(m[1], int(m[2])))}", problem) + " align=16"


def measure(args, row, problem):
    """The record of one problem on its row, or why there is none."""
    command = [args.attn, "bench", "--json", "--run-id", args.run_id, "--kernel", row["kernel"], "--strict"]
    command += ["--driver", args.driver] if args.rehearse else ["--device", args.device]
    command += ["--overlap", row["overlap"]] if row["overlap"] else []
    env = dict(os.environ, ATTNSIM_GPU="b200", ATTNSIM_POLICY="eager") if args.rehearse else None
    try:
        run = subprocess.run([*command, problem], env=env, capture_output=True, text=True, check=False, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return f"no end after {args.limit} s"
    lines = [x for x in run.stdout.splitlines() if x.startswith("{")]
    print(f"{row['kernel']}: {problem}: status {run.returncode}\n{run.stderr}", file=sys.stderr)
    if run.returncode or not lines:
        return (run.stderr.strip().splitlines() or [f"status {run.returncode}"])[0][:160]
    with open(args.out / "attn.jsonl", "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return json.loads(lines[0])


def reached(record):
    """TFLOP/s: of a device, or of the simulator's timeline."""
    if record["tflops"] is not None:
        return record["tflops"]
    clocks = record["counted"]["sum"]["counts"]["timeline"]
    return tflops_at(record["flops"], clocks)


def measure_peers(args):
    """(words about each script, its records)."""
    probe = subprocess.run([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda'); print(torch.cuda.get_device_name())"],
                           capture_output=True, text=True, check=False)
    if probe.returncode:
        return ["No peer was measured, PyTorch has no device here: " + (probe.stderr.strip().splitlines() or ["?"])[-1][:160]], []
    words, records = [], []
    for script, more in (("peers_torch.py", []), ("peers_flash.py", ["--check"]),
                         ("peers_sparse.py", ["--check"] + (["--flash-mla", args.flash_mla] if args.flash_mla else []))):
        command = [sys.executable, str(HERE / script), "--run-id", args.run_id, *more, "@blackwell"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=args.limit * 4)
            out, told, status = run.stdout, run.stderr, f"status {run.returncode}"
        except subprocess.TimeoutExpired as ended:
            out, told, status = ((x or b"").decode() for x in (ended.stdout, ended.stderr, b"no end in time"))
        mine = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
        records += mine
        timed = sum(x["median_us"] is not None for x in mine)
        complaints = [x for x in told.splitlines() if "does not load" in x] + ([status] if status != "status 0" else [])
        words.append(f"{script}: {timed} of {len(mine)} records have times" + "".join(f"; {x[:160]}" for x in complaints))
        print(f"{script}: {status}\n{told}", file=sys.stderr)
    with open(args.out / "peers.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(x) + "\n" for x in records)
    return words, records


def same_problem(words, record, overlap):
    """A peer writes the problem in its own order and leaves out what is the default."""
    asked = (record.get("overlap") or {}).get("asked")
    known = dict(w.split("=") for w in record["problem"].split() if "=" in w)
    bare = {w for w in record["problem"].split() if "=" not in w}
    wanted = dict(w.split("=") for w in words.split() if "=" in w)
    return asked == overlap and bare == {w for w in words.split() if "=" not in w} and all(known.get(k, v) == v for k, v in wanted.items())


def tell_versions():
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name}: not installed")
    print(f"Python {sys.version.split()[0]}; " + "; ".join(found) + ".\n")


def number(x):
    return "-" if x is None else f"{x:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--driver", default="sim", help="of a rehearsal")
    parser.add_argument("--rows", default="*", metavar="GLOB")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--flash-mla")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a problem may take (default 300)")
    args = parser.parse_args()
    args.run_id = datetime.datetime.now(datetime.timezone.utc).strftime("b200-%Y%m%dT%H%M%S")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "attn.jsonl").unlink(missing_ok=True)
    rows = [x for x in read_expected() if fnmatch.fnmatchcase(x["kernel"], args.rows)]
    if args.rehearse:
        print("A rehearsal: small problems in the simulator, TFLOP/s of its timeline with starts and ends, no speed of a device.\n")
    print(f"Run {args.run_id}, attn.jsonl and peers.jsonl. ", end="")
    tell_versions()
    measured = [measure(args, x, small(x["problem"]) if args.rehearse else x["problem"]) for x in rows]
    words, peers = measure_peers(args)
    print("\n".join(words) + "\n")
    what = "counted" if args.rehearse else "measured"
    print(f"TFLOP/s:\n\n| problem | lists share | row | {what} | predicted | {what} / predicted | peers here | published |\n"
          "|---|---|---|---|---|---|---|---|")
    bad = 0
    for row, record in zip(rows, measured):
        predicted = tflops_at(block_flops(row["problem"]), row["clocks"])
        told = isinstance(record, str)
        bad += told
        beside = [f"{x['impl']} {number(x['tflops'])}" for x in peers
                  if x["median_us"] is not None and same_problem(row["problem"], x, row["overlap"])]
        published = row["published"] + ("" if row["peer"] == "-" else f" ({row['peer']})")
        share = "-" if told or args.rehearse else f"{reached(record) / predicted:.2f}"
        print(f"| `{row['problem']}` | {row['overlap'] or '-'} | {row['kernel'][5:]} | {record if told else number(reached(record))} | "
              f"{number(predicted)} | {share} | {', '.join(beside) or '-'} | {published} |")
    print(f"\nPredictions: the simulator's timeline of steady blocks ({sorted({x['source'].split(',')[0] for x in rows})[0]}) at "
          f"{MULTIPROCESSORS} multiprocessors and {CLOCK / 1e9} GHz; what is joined does not count the join." if rows else
          "\nNo problem of the list is of these rows.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
