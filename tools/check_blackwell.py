#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every sparse kernel row for Blackwell (mla_fwd, mla_bwd, dist on sm_100) against the reference, in the simulator: 100 problems a row,
each under the policies eager, late and ten seeds of random. Half of the problems have at least four tiles of keys a query and three
work tiles a pair of CTAs, on 2, 5 or 8 multiprocessors; the other half are edges: one slot, one query, no key, lengths, duplicates,
k_stride, sinks, dlse, dist as an output, accumulate, dkv in f32. Which indices are -1, and what is NaN or infinite, is the seed's choice.
Lists of rows over joined lists overlap by 0, 0.5, 0.9 and 1, at random, and as prefixes.

All of it takes days of a processor (hours on many); it runs in rounds, one policy a problem in each, so that it can be stopped at any time: --log keeps what is
done, and the next call goes on from there. What fails is printed with the command that repeats it. Exit status 1 if anything has failed
or the simulator reported anything.

usage: tools/check_blackwell.py BUILD [--kernel GLOB] [--problems 100] [--rounds 12] [--jobs N] [--log FILE] [--summary]
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import random
import re
import subprocess
import sys
import zlib

POLICIES = [("eager", 1), ("late", 1)] + [("random", seed) for seed in range(1, 11)]
OVERLAPS = ["0", "0.5", "0.9", "1", "random", "prefix"]
REDRAWS = 8  # seeds of a problem that is refused, as tensors with strides that a map does not take are


def parts_of(row):
    """Of a row's name: operator, dtype, D, heads of a work tile, whether it joins lists."""
    op = re.match(r"attn_(mla_fwd|mla_bwd|dist)", row)[1]
    dtype, dim = re.search(r"_(b?f16)_d(\d+)", row).groups()
    heads = re.search(r"_h(\d+)", row)
    return op, dtype, int(dim), int(heads[1]) if heads else 128, "_joined_" in row


def features(r, op, edge):
    """Words of a problem that any size may have."""
    words = []
    likely = 0.5 if edge else 0.3
    if r.random() < likely:
        words.append("topk_length")
    if r.random() < likely and op != "dist":
        words.append("sink")
        if op == "mla_bwd" and r.random() < 0.7:
            words.append("grad_sink")
    if r.random() < 0.2:
        words.append(r.choice(["lse_base_2", "lse_empty_plus_inf"]))
    if r.random() < 0.2:
        words.append("scale=" + r.choice(["0.1", "-0.05", "0", "2"]))
    if op == "mla_bwd":
        words += [x for x in ("dlse", "accumulate") if r.random() < likely]
        if r.random() < likely:
            words.append("dkv=f32")
        if r.random() < likely:
            words += ["with_dist"] + r.choice([[], ["dist_norm=mean"], ["dist_norm=l1"]])
    if op == "dist":
        words += r.choice([[], ["dist_norm=mean"], ["dist_norm=l1"]])
    return words


def problem_of(row, number, problems):
    """Text, data seed, multiprocessors and options of problem `number` of a row: the same in every call."""
    op, dtype, dim, heads, joined = parts_of(row)
    r = random.Random(zlib.crc32(f"{row} {number}".encode()))
    edge = number >= problems // 2
    sms = r.choice([2, 2, 5, 8]) if edge or not joined else r.choice([2, 2, 2, 5])
    tile = 256 if op == "dist" else 64
    hq = r.choice([heads, heads, heads - 1, r.randint(1, heads), 1]) if edge else r.choice([heads, heads // 2 + r.randint(1, heads // 2)])
    if not edge and op != "dist" and not joined and r.random() < 0.1:
        hq = 192 if heads == 128 else heads + 5
    group = 1
    if joined:
        group = r.choice([2, 4, 8])
        hq = r.randint(1, 128 // group) if edge or r.random() < 0.5 else 128 // group
    words = [f"hq={hq}"]
    batch = 2 if r.random() < 0.3 else 1
    if edge:
        sq = r.choice([1, 1, 2, group + 1, 3 * group])
        topk = r.choice([1, 1, 2, 63, 64, 65, 100, tile, tile + 1])
        sk = r.choice([0, 1, 2, 30, 90, 300])
    else:
        work_tiles = 3 * (sms // 2)
        sq = -(-work_tiles // batch) * group + (r.randint(0, group - 1) if joined else 0)
        topk = 4 * tile + r.randint(0, 40)
        sk = topk * r.choice([1, 2, 4]) + r.randint(0, 50)
    if joined and sq < 2:
        sq = 2
    words += ([f"b={batch}"] if batch > 1 else []) + [f"sq={sq}", f"sk={sk}", f"d={dim}", f"topk={topk}", dtype]
    if joined and r.random() < 0.6:
        words.append(f"group={group}")
    if r.random() < 0.4:
        words += ["causal", f"q_start={r.randint(0, max(sk, 1))}"] + r.choice([[], ["k_stride=2"], ["k_stride=4"]])
    words += features(r, op, edge) + ["align=16"]
    options = []
    if joined or r.random() < 0.2:
        options = ["--overlap", OVERLAPS[number % len(OVERLAPS)]]
    return f"{op} " + " ".join(words), r.randint(1, 1 << 30), sms, options


def run_one(attn, row, number, problems, turn):
    """A problem under its policy of this round."""
    policy, policy_seed = POLICIES[(number + turn) % len(POLICIES)]
    text, seed, sms, options = problem_of(row, number, problems)
    env = dict(os.environ, ATTNSIM_GPU="b200", ATTNSIM_SMS=str(sms), ATTNSIM_THREADS="1", ATTNSIM_SEED=str(policy_seed), NO_COLOR="1")
    record = {"row": row, "number": number, "turn": turn, "policy": f"{policy} {policy_seed}", "passed": 0, "failed": 0, "reports": 0}
    for _ in range(REDRAWS):
        words = ["check", "--driver", "sim", "--policy", policy, "--seed", str(seed), "--threads", "1", "--timeout", "600",
                 "--kernel", row, *options, "--problem", text]
        run = subprocess.run([attn, *words, "--json"], env=env, capture_output=True, text=True, check=False)
        found = re.search(r'"type":"kernel","kernel":"[^"]*".*?"passed":(\d+),"failed":(\d+)', run.stdout)
        if not found or int(found[1]) + int(found[2]) or run.returncode not in (0, 77):
            break
        seed += 1
    record["passed"], record["failed"] = (int(found[1]), int(found[2])) if found else (0, 1)
    record["failed"] = record["failed"] or int(run.returncode not in (0, 77))
    record["reports"] = sum(x.startswith("attnsim") for x in run.stderr.split("\n"))
    if record["failed"] or record["reports"] or not record["passed"]:
        quoted = " ".join(f"'{x}'" if " " in x or "*" in x else x for x in words)
        record["command"] = f"ATTNSIM_GPU=b200 ATTNSIM_SMS={sms} ATTNSIM_SEED={policy_seed} {attn} {quoted}"
        record["told"] = [x[:300] for x in run.stderr.split("\n") if x][:4]
    return record


def tell(rows, records):
    """Counts of each row; whether anything failed."""
    bad = 0
    print(f"{'row':42} problems  policies     runs   failed  reports  refused")
    for row in rows:
        mine = [x for x in records if x["row"] == row]
        failed, reports = sum(x["failed"] for x in mine), sum(x["reports"] for x in mine)
        refused = sum(not x["passed"] and not x["failed"] for x in mine)
        bad += failed + reports
        print(f"{row:42} {len({x['number'] for x in mine}):8} {len({x['policy'] for x in mine}):9} {len(mine):8} {failed:8} {reports:8} {refused:8}")
    print(f"{len(records)} runs, {bad} failed or reported")
    return bad


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build")
    options.add_argument("--kernel", default="*", help="rows, a glob")
    options.add_argument("--problems", type=int, default=100, help="of a row")
    options.add_argument("--rounds", type=int, default=len(POLICIES), help="policies that each problem runs under")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--log", help="JSON Lines: what is done, added to")
    options.add_argument("--summary", action="store_true", help="tell what the log has, run nothing")
    a = options.parse_args()
    attn = os.path.join(a.build, "attn")
    listed = subprocess.run([attn, "check", "--driver", "sim", "--list"], env=dict(os.environ, ATTNSIM_GPU="b200"), capture_output=True,
                            text=True, check=False).stdout
    rows = sorted(set(re.findall(r"attn_(?:mla_fwd|mla_bwd|dist)\w*_sm100_\w+", listed)))
    rows = [x for x in rows if fnmatch.fnmatchcase(x, a.kernel)]
    if not rows:
        sys.exit(f"{attn} lists no such row")
    records = []
    if a.log and os.path.exists(a.log):
        with open(a.log, encoding="utf-8") as log:
            records = [x for x in map(json.loads, log) if x["row"] in rows]
    done = {(x["row"], x["number"], x["turn"]) for x in records}
    # Problems of both halves by turns, all rows before the next one.
    half = (a.problems + 1) // 2
    order = [x for pair in zip(range(half), range(half, 2 * half)) for x in pair if x < a.problems]
    todo = [(row, number, turn) for turn in range(0 if a.summary else a.rounds) for number in order for row in rows]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        runs = [pool.submit(run_one, attn, row, number, a.problems, turn) for row, number, turn in todo if (row, number, turn) not in done]
        for run in concurrent.futures.as_completed(runs):
            record = run.result()
            records.append(record)
            if a.log:
                with open(a.log, "a", encoding="utf-8") as log:
                    log.write(json.dumps(record) + "\n")
            if record["failed"] or record["reports"]:
                print("FAIL", record["command"], *record["told"], sep="\n    ", flush=True)
    sys.exit(1 if tell(rows, records) else 0)


if __name__ == "__main__":
    main()
