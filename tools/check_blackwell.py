#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every kernel row for Blackwell (mla_fwd, mla_bwd, dist, sdpa_fwd, sdpa_bwd on sm_100) against the reference, in the simulator:
100 problems a row, each under the policies eager, late and ten seeds of random. Half of the problems have at least four tiles of keys a
query and three work tiles (dense backward: and three steps of queries) a CTA or pair of CTAs, on 2, 5 or 8 multiprocessors; the other half
are edges. Sparse: one slot, one query, no key, lengths, duplicates, k_stride, sinks, dlse, dist as an output, accumulate, dkv in f32, and
lists of rows over joined lists that overlap by 0, 0.5, 0.9 and 1, at random, and as prefixes. Dense: every form of visibility, heads, lengths,
packing, sinks, lse, scale, softcap (rows that serve it), head dims to the row's own, each a fixed number of times a row. What indices, values and memory are like is the
seed's choice; which listed values of `attn check --coverage` were hit is kept, and --summary tells what was not. Seeds of these have 30 bits;
--rare problems more have seeds of all 49 bits, whose upper ones choose rows of very different sizes, infinities in q and k, lists with a hole.

A run is a problem under three policies (the three executions of a case take one each), four runs are all twelve. They go in rounds, all
rows and problems before the next round, so that it can be stopped at any time: --log keeps what is done, and the next call goes on from
there; --seconds stops it. What fails is printed with the command that repeats it. Exit status 1 if anything has failed or the simulator
reported anything.

usage: tools/check_blackwell.py BUILD [--kernel GLOB] [--problems 100] [--rare 12] [--rounds 4] [--jobs N] [--seconds S] [--log FILE] [--summary]
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
import time
import zlib

POLICIES = ["eager", "late"] + [f"random:{seed}" for seed in range(1, 11)]
ROUNDS = 4  # of three policies: one of each execution of a case
OVERLAPS = ["0", "0.5", "0.9", "1", "random", "prefix"]
REDRAWS = 40  # seeds of a problem that is refused, as tensors with strides that a map does not take are


def parts_of(row):
    """Of a sparse row's name: operator, dtype, D, heads of a work tile, whether it joins lists."""
    op = re.match(r"attn_(mla_fwd|mla_bwd|dist)", row)[1]
    dtype, dim = re.search(r"_(b?f16)_d(\d+)", row).groups()
    heads = re.search(r"_h(\d+)", row)
    return op, dtype, int(dim), int(heads[1]) if heads else 128, "_joined_" in row


def is_edge(number, problems):
    """Of the first `problems` the second half, of the rest every other one."""
    return number % 2 == 1 if number >= problems else number >= problems // 2


def data_seed(r, number, problems):
    return r.getrandbits(49) if number >= problems else r.randint(1, 1 << 30)


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


def sparse_problem(row, number, problems):
    """Text, data seed, multiprocessors and options of problem `number` of a row: the same in every call."""
    op, dtype, dim, heads, joined = parts_of(row)
    r = random.Random(zlib.crc32(f"{row} {number}".encode()))
    edge = is_edge(number, problems)
    sms = r.choice([2, 2, 5, 8]) if edge or not joined else r.choice([2, 2, 2, 5])
    tile = 256 if op == "dist" else 64
    hq = r.choice([heads, heads, heads - 1, r.randint(1, heads), 1]) if edge else r.choice([heads, heads // 2 + r.randint(1, heads // 2)])
    if not edge and op != "dist" and not joined and r.random() < 0.1:
        hq = 192 if heads == 128 else heads + 5
    group = 1
    if joined:
        group = r.choice([2, 4, 8] if op == "mla_bwd" else [2, 4, 8, 16])
        hq = r.randint(1, 128 // group) if edge or r.random() < 0.5 else 128 // group
    words = [f"hq={hq}"]
    batch = 2 if r.random() < 0.3 else 1
    if edge:
        sq = r.choice([1, 1, 2, group + 1, 3 * group])
        topk = r.choice([1, 1, 2, 63, 64, 65, 100, tile, tile + 1])
        sk = r.choice([0, 1, 2, 30, 90, 300])
    else:
        work_tiles = 3 * (sms if op == "mla_fwd" and heads == 64 and not joined else sms // 2)
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
    return f"{op} " + " ".join(words), data_seed(r, number, problems), sms, options


def dealt(row, number, what, choices):
    """A choice for one of a row's problems: as many problems get each as it is listed, in an order of chance."""
    block, place = divmod(number, len(choices))
    order = list(range(len(choices)))
    random.Random(zlib.crc32(f"{row} {what} {block}".encode())).shuffle(order)
    return choices[order[place]]


def dense_words(r, row, number, edge, sq, sk):
    """Words of visibility, results and scores."""
    op = row[5:13]
    near = max(sk - 60, 1)  # of a window that leaves a query its four tiles of keys
    side = r.choice([0, 1, 16, 63, 64, 100, 127, 128, 129, 300]) if edge else near
    hidden = r.choice([-1, -3, -17])
    words = dealt(row, number, "visibility", [
        [], ["causal", "bottom_right"], [f"left={side}"], ["causal"] if edge or sq >= sk else [], [f"right={side}"],
        [f"left={side}", f"right={side // 2 + 3}"], ["causal", f"left={side}"] + ["bottom_right"] * (sq < sk or number % 3 == 0),
        [f"left={r.choice([1000000007, 1 << 62])}"],
        (["bottom_right"] if number % 2 else []) + r.choice([[f"left={hidden}", "right=200"], [f"right={hidden}", "left=300"]]) if edge
        else ["causal", "bottom_right"]])
    sink = dealt(row, number, "sink", [0, 0, 1, 0, 2])
    words = words + [[], ["sink"], ["sink", "lse_with_sink"]][sink]
    words += dealt(row, number, "lse", [[], ["lse_base_2"], [], ["lse_empty_plus_inf"], [], ["lse_base_2", "lse_empty_plus_inf"]])
    capped = "_mod" in row  # rows that serve softcap alone
    words += dealt(row, number, "scale", [[], [], ["scale=-0.2"], [], ["scale=0.7"], [], ["scale=0.05"]]
                   + [["scale=0"]] * (op == "sdpa_bwd" and not capped))
    if capped:
        words += dealt(row, number, "softcap", [["softcap=20"], ["softcap=0.5"], ["softcap=50"], ["softcap=2"], ["softcap=500"]])
    words += ["deterministic"] * (number % 4 == 1 and (op == "sdpa_fwd" or row.endswith("_ordered")))
    if op == "sdpa_fwd":
        return words + ["max_logits"] * (number % 3 == 0)
    words += ["grad_sink"] * (sink > 0 and number % 3 > 0)
    return words + ["dlse"] * (sink != 1 and number % 5 < 3)


def dense_problem(row, number, problems):
    """As sparse_problem, of a dense row."""
    op = re.match(r"attn_(sdpa_fwd|sdpa_bwd)", row)[1]
    dtype, dim, dim_v = re.search(r"_(b?f16)_d(\d+)(?:_v(\d+))?", row).groups()
    dim, dim_v = int(dim), int(dim_v or dim)
    r = random.Random(zlib.crc32(f"{row} {number}".encode()))
    edge = is_edge(number, problems)
    sms = r.choice([2, 2, 5, 8]) if edge else r.choice([2, 2, 2, 5])
    pair = dim > 64 if op == "sdpa_bwd" else row.endswith("_pair")
    d = dealt(row, number, "d", [dim, dim, r.choice([x for x in (64, 80, 96, 128, 160, 192) if x <= dim]), dim, r.choice([1, 8, 32, 40, 64]),
                         r.randint(1, dim)])
    dv = min(d, dim_v) if number % 3 else r.randint(1, dim_v)
    if d == 192 and number % 3:
        dv = 128
    group = dealt(row, number, "group", [1, 2, 4, 1, 3, 8, 1])
    batch = dealt(row, number, "batch", [1, 1, 2, 1, 3])
    if edge:
        sq = dealt(row, number, "sq", [1, 2, 31, 64, 65, 127, 128, 129, 200, 255, 256, 257, r.randint(1, 400), r.randint(1, 100), 300, 0])
        sk = dealt(row, number, "sk", [1, 2, 40, 63, 64, 65, 127, 128, 129, 255, 256, 257, r.randint(1, 300), 520, r.randint(1, 130), 1030, 0])
        hk = r.choice([1, 1, 2])
        if group * hk * batch * sq * sk > 1 << 20:
            group, batch = min(group, 2), 1
    elif op == "sdpa_fwd":
        sk = 512 + r.randint(0, 150)
        sq = r.choice([r.randint(1, 100), r.randint(100, 256), r.randint(257, 300), sk])
        if pair and number % 2:
            sq *= 2
        tiles = -(-3 * (sms // 2) // (batch * -(-sq // 512))) if pair else -(-3 * sms // (batch * -(-sq // 256)))
        hk = max(1, -(-tiles // group))
    else:
        sk = 512 + r.randint(0, 150)
        steps = -(-3 // group)
        sq = 128 * (steps - 1) + r.randint(1, 128)
        if number % 5 == 3:
            sq = sk
        hk = -(-3 * sms // (batch * -(-sk // 256) * 2 if pair else batch * -(-sk // 128)))
    storage = dealt(row, number, "storage", [[], ["seqlens_q"], [], ["seqlens_k"], ["packed"], [], ["seqlens_q", "seqlens_k"],
                               ["packed", r.choice(["seqlens_q", "seqlens_k"])], ["packed", "fill_padding"]])
    words = [f"b={batch}"] * (batch > 1) + [f"hq={group * hk}", f"hk={hk}", f"sq={sq}", f"sk={sk}", f"d={d}", f"dv={dv}", dtype]
    if "packed" in storage:
        less_q, less_k = (r.randint(0, n * (batch - 1) // 2) for n in (sq, sk))
        words += [f"total_q={max(batch * sq - less_q, 0)}", f"total_k={max(batch * sk - less_k, 0)}"]
    words += storage + dense_words(r, row, number, edge, sq, sk) + [dealt(row, number, "align", ["align=16"] * 3 + ["align=128"])]
    return f"{op} " + " ".join(words), data_seed(r, number, problems), sms, []


def problem_of(row, number, problems):
    return (dense_problem if "_sdpa_" in row else sparse_problem)(row, number, problems)


def policies_of(number, turn):
    """The three of a problem's round: all rounds together take each policy once."""
    return [POLICIES[(number + turn + ROUNDS * i) % len(POLICIES)] for i in range(3)]


def hit_values(text):
    """Of --coverage: `what value` of each that a kernel's case has hit."""
    hit = []
    for line in text.split("\n"):
        found = re.match(r"  (?:dense|sparse|all) +(\S+) +(.*)", line)
        for value in found[2].split() if found else ():
            name, cases, accepted = re.match(r"(.*):(\d+)\((\d+)\)$", value).groups()
            if int(cases) and int(accepted):
                hit.append(f"{found[1]} {name}")
    return hit


class Runner:
    """Runs of the attn command, until the deadline."""

    def __init__(self, attn, problems, seconds):
        self.attn, self.problems = attn, problems
        self.deadline = time.monotonic() + seconds if seconds else None

    def left(self):
        return self.deadline - time.monotonic() if self.deadline else 600

    def run(self, row, number, turn):
        """A problem under its policies of this round; None: there was no time for it."""
        policies = policies_of(number, turn)
        text, seed, sms, options = problem_of(row, number, self.problems)
        env = dict(os.environ, ATTNSIM_GPU="b200", ATTNSIM_SMS=str(sms), ATTNSIM_THREADS="1", ATTNSIM_SEED="1", ATTNSIM_ADVICE="0",
                   NO_COLOR="1")
        record = {"row": row, "number": number, "turn": turn, "policies": policies, "passed": 0, "failed": 0, "reports": 0}
        begin = time.monotonic()
        for _ in range(REDRAWS):
            words = ["check", "--driver", "sim", "--policy", ",".join(policies), "--seed", str(seed), "--threads", "1", "--timeout", "600",
                     "--kernel", row, *options, "--problem", text]
            if self.left() < 1:
                return None
            try:
                run = subprocess.run([self.attn, *words, "--coverage"], env=env, capture_output=True, text=True, check=False,
                                     timeout=self.left())
            except subprocess.TimeoutExpired:
                return None
            found = re.search(re.escape(row) + r" +(\d+) passed +(\d+) failed", run.stdout)
            if not found or int(found[1]) + int(found[2]) or run.returncode not in (0, 77):
                break
            seed += 1
        record["passed"], record["failed"] = (int(found[1]), int(found[2])) if found else (0, 1)
        record["failed"] = record["failed"] or int(run.returncode not in (0, 77))
        record["reports"] = sum(x.startswith("attnsim") for x in run.stderr.split("\n"))
        record["seconds"] = round(time.monotonic() - begin, 2)
        record["hit"] = hit_values(run.stdout) if turn == 0 else []
        if record["failed"] or record["reports"] or not record["passed"]:
            quoted = " ".join(f"'{x}'" if " " in x or "*" in x else x for x in words)
            record["command"] = f"ATTNSIM_GPU=b200 ATTNSIM_SMS={sms} ATTNSIM_SEED=1 ATTNSIM_ADVICE=0 {self.attn} {quoted}"
            record["told"] = [x[:300] for x in (run.stderr + run.stdout).split("\n") if x][:6]
        return record


def never_hit(attn, records):
    """Of each operator, the listed values that its rows take and no problem of it has hit."""
    for op in sorted({re.match(r"attn_(dist|[a-z]+_[a-z]+)_", x["row"])[1] for x in records}):
        hit = {value for x in records if x["row"].startswith(f"attn_{op}_") for value in x.get("hit", ())}
        lists = subprocess.run([attn, "check", "--backend", "ref", "--op", op, "--dtype", "bf16", "--repeat", "1", "--coverage"],
                               capture_output=True, text=True, check=False).stdout
        listed = [(m[1], re.sub(r":\d+\(\d+\)$", "", v)) for m in re.finditer(r"  (?:dense|sparse|all) +(\S+) +(.*)", lists)
                  for v in m[2].split()]
        print(f"{op}: {len(listed)} listed values, hit {sum(f'{w} {v}' in hit for w, v in listed)}; never: "
              + ", ".join(f"{w} {v}" for w, v in listed if f"{w} {v}" not in hit))


def tell(attn, rows, records):
    """Counts of each row; whether anything failed."""
    bad = 0
    print(f"{'row':42} problems  x policies  executions  failed  reports  refused  seconds each")
    for row in rows:
        mine = [x for x in records if x["row"] == row]
        failed, reports = sum(x["failed"] for x in mine), sum(x["reports"] for x in mine)
        refused = sum(not x["passed"] and not x["failed"] for x in mine)
        bad += failed + reports
        taken = [x for x in mine if x["passed"]]
        each = sum(x["seconds"] for x in mine) / len(mine) if mine else 0
        print(f"{row:42} {len({x['number'] for x in taken}):8} {len({p for x in taken for p in x['policies']}):11} "
              f"{sum(len(x['policies']) for x in taken):11} {failed:7} {reports:8} {refused:8} {each:13.2f}")
    print(f"{len(records)} runs, {sum(len(x['policies']) for x in records if x['passed'])} executions, {bad} failed or reported, "
          f"{sum(x['seconds'] for x in records) / 3600:.2f} hours of a core")
    never_hit(attn, records)
    return bad


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build")
    options.add_argument("--kernel", default="*", help="rows, a glob")
    options.add_argument("--problems", type=int, default=100, help="of a row")
    options.add_argument("--rare", type=int, default=12, help="problems more of a row, with seeds of 49 bits")
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of three policies each")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--seconds", type=float, help="stop by then")
    options.add_argument("--log", action="append", default=[], help="JSON Lines: what is done; the first is added to")
    options.add_argument("--summary", action="store_true", help="tell what the logs have, run nothing")
    a = options.parse_args()
    attn = os.path.join(a.build, "attn")
    listed = subprocess.run([attn, "check", "--driver", "sim", "--list"], env=dict(os.environ, ATTNSIM_GPU="b200"), capture_output=True,
                            text=True, check=False).stdout
    rows = sorted(set(re.findall(r"attn_(?:mla_fwd|mla_bwd|dist|sdpa_fwd|sdpa_bwd)\w*_sm100_\w+", listed)))
    rows = [x for x in rows if fnmatch.fnmatchcase(x, a.kernel)]
    if not rows:
        sys.exit(f"{attn} lists no such row")
    records = []
    for file in a.log:
        if os.path.exists(file):
            with open(file, encoding="utf-8") as log:
                records += [x for x in map(json.loads, log) if x["row"] in rows]
    if a.summary:
        sys.exit(1 if tell(attn, rows, records) else 0)
    done = {(x["row"], x["number"], x["turn"]) for x in records}
    # Problems of both halves by turns, all rows before the next one.
    half = (a.problems + 1) // 2
    order = [x for pair in zip(range(half), range(half, 2 * half)) for x in pair if x < a.problems]
    order += range(a.problems, a.problems + a.rare)
    todo = [(row, number, turn) for turn in range(a.rounds) for number in order for row in rows]
    runner = Runner(attn, a.problems, a.seconds)
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        runs = [pool.submit(runner.run, row, number, turn) for row, number, turn in todo if (row, number, turn) not in done]
        for run in concurrent.futures.as_completed(runs):
            record = run.result()
            if not record:
                continue
            records.append(record)
            if a.log:
                with open(a.log[0], "a", encoding="utf-8") as log:
                    log.write(json.dumps(record) + "\n")
            if record["failed"] or record["reports"]:
                print("FAIL", record["command"], *record["told"], sep="\n    ", flush=True)
    sys.exit(1 if tell(attn, rows, records) else 0)


if __name__ == "__main__":
    main()
