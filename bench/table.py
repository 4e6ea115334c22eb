#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ratio tables from records of `attn bench --json` and of the peers measured beside it. Standard library only.

    python3 bench/table.py [FILE...]     print the tables of these files; without files, of bench/results/**/*.jsonl
    python3 bench/table.py --write       put the tables and their summary into docs/benchmarks.md and one line per machine
                                         into README.md, between their markers (make figures)
    python3 bench/table.py --check       fail if that would change them

Records join on run + device + problem (+ the state of the caches). Of a problem measured in several runs the newest run
counts; of several kernels of ours in one run the fastest, of several processes of a kernel the median. A ratio is the peer's time over ours: above 1 we are faster.
Problems of the sparse operators join on what `overlap` asked for, too. Those of bench/cases/dsa.txt are listed alone as well.
"""
import argparse
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- made by bench/table.py -->", "<!-- /made by bench/table.py -->"
OURS = "attn"
# What processors call themselves does not say what they are.
MACHINES = {"AMD EPYC": "AMD EPYC (Zen 4)", "Intel(R) Xeon(R) Processor": "Intel Xeon (Emerald Rapids)", "NVIDIA H100 80GB HBM3": "NVIDIA H100"}
FRONT = ("forward bf16", "forward f16", "forward f32", "backward bf16", "backward f32", "decode bf16")


def is_ours(impl):
    """attn, attn with other options (a column of its own, no peer), and the reference."""
    return impl in (OURS, "ref") or impl.startswith(OURS + " ")


def shorter(problem):
    """The text without words that say what leaving them out means: records of hand-written texts join with the library's."""
    words = problem.split()
    value = dict(w.split("=", 1) for w in words if "=" in w)
    mla = not words[0].startswith("sdpa")
    same_as = {"b": "1", "hk": "1" if mla else value.get("hq"), "sk": value.get("sq"),
               "d": "576" if mla else None, "dv": "512" if mla else value.get("d")}
    return " ".join(w for w in words if not ("=" in w and w.split("=", 1)[1] == same_as.get(w.split("=", 1)[0])))


def fastest(by_kernel):
    """Of each kernel's processes the one in the middle, of two the slower; of these the fastest."""
    middle = [sorted(records, key=lambda r: r["median_us"])[len(records) // 2] for records in by_kernel.values()]
    return min(middle, key=lambda r: r["median_us"])


def read(paths):
    """Records with times, by (device, problem, cache) and then by run."""
    table = {}
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                r = json.loads(line)
                if not r.get("median_us") or r.get("measure", "execution") != "execution":
                    continue
                shared = f" overlap={r['overlap']['asked']}" if r.get("overlap") else ""
                key = (r["device"], shorter(r["problem"]) + shared, r.get("cache", ""))
                by_impl = table.setdefault(key, {}).setdefault(r["run"], {})
            except (ValueError, KeyError, TypeError) as fault:
                sys.exit(f"{path}:{number}: not a record: {fault!r}")
            by_impl.setdefault(r["impl"], {}).setdefault(r.get("kernel"), []).append(r)
    for runs in table.values():
        for by_impl in runs.values():
            by_impl.update({impl: fastest(by_kernel) for impl, by_kernel in by_impl.items()})
    return table


def newest(runs):
    """The newest run that holds ours and a peer; None if there is none."""
    joined = [by_impl for by_impl in runs.values() if OURS in by_impl and not all(map(is_ours, by_impl))]
    return max(joined, key=lambda by_impl: by_impl[OURS]["date"], default=None)


def alone(table):
    """{device: [(words of the problem as listed, newest record of ours)]} of bench/cases/dsa.txt, caches as in a long run."""
    listed = [line for line in (ROOT / "bench/cases/dsa.txt").read_text().splitlines() if line and line[0] != "#"]
    ours = {}
    for (device, problem, cache), runs in table.items():
        records = [by_impl[OURS] for by_impl in runs.values() if OURS in by_impl]
        if cache == "rotated" and records:
            # some runs ask for other kernels than a plan would take: the last one that was about as fast as any ever was
            best = min(r["median_us"] for r in records)
            kernel = max((r for r in records if r["median_us"] <= 1.05 * best), key=lambda r: r["date"])["kernel"]
            ours[device, frozenset(problem.split())] = max((r for r in records if r["kernel"] == kernel), key=lambda r: r["date"])
    out = {}
    for device in sorted({device for device, _ in ours}):
        rows = [(line, ours[device, key]) for line in listed if (device, key := frozenset(shorter(line).split())) in ours]
        if rows:
            out[device] = rows
    return out


def listed(name):
    """The problems of bench/cases/NAME.txt as sets of words."""
    lines = (ROOT / f"bench/cases/{name}.txt").read_text().splitlines()
    return {frozenset(line.split()) - {"b=1"} for line in lines if line.startswith("sdpa_")}


FEATURES = listed("features") - listed("dense") - listed("backward")


def group_of(problem):
    """Which table a problem belongs to: (order, heading, unit)."""
    words = problem.split()
    value = dict(w.split("=", 1) for w in words if "=" in w)
    dtype = next((w for w in words if w in ("bf16", "f16", "f32", "f64")), "?")
    few = int(value.get("sq", 1)) <= 4 and words[0] == "sdpa_fwd"
    small = not few and int(value.get("sq", 1)) <= 512 and words[0].startswith("sdpa")
    name = {"sdpa_fwd": "forward", "sdpa_bwd": "backward", "mla_fwd": "sparse MLA forward", "mla_bwd": "sparse MLA backward",
            "dist": "attention distribution"}.get(words[0], words[0])
    if few:
        return (2, f"decode {dtype}", "gbps")
    order = {"sdpa_fwd": 0, "sdpa_bwd": 1, "mla_fwd": 3, "mla_bwd": 4, "dist": 5}.get(words[0], 6)
    of_list = ", other shapes" if frozenset(words) in FEATURES else ""
    return (order, f"{'small ' if small else ''}{name} {dtype}{of_list}", "tflops")


def number(x):
    return "-" if x is None else f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def geomean(x):
    return math.exp(sum(math.log(v) for v in x) / len(x))


def tables(table):
    """{device: [(heading, unit, (ours with other options, peers), rows)]}; a row is (problem, {impl: figure}, {peer: ratio}, run)."""
    found = {}
    for (device, problem, _), runs in table.items():
        best = newest(runs)
        if best:
            found.setdefault(device, {}).setdefault(group_of(problem), []).append((problem, best))
    out = {}
    for device, groups in sorted(found.items()):
        for (_, heading, unit), items in sorted(groups.items()):
            impls = sorted({impl for _, b in items for impl in b} - {OURS, "ref"})
            others, peers = [x for x in impls if is_ours(x)], [x for x in impls if not is_ours(x)]
            rows = []
            for problem, b in items:
                ours = b[OURS]
                # gbps of peers that do not count bytes: the work is the same, so times tell
                figures = {impl: ours[unit] * ours["median_us"] / r["median_us"] for impl, r in b.items() if ours.get(unit)}
                ratios = {impl: b[impl]["median_us"] / ours["median_us"] for impl in peers if impl in b}
                rows.append((problem, figures, ratios, ours))
            out.setdefault(device, []).append((heading, unit, (others, peers), rows))
    return out


def markdown_alone(device_rows):
    lines = []
    for device, rows in device_rows.items():
        lines += [f"## {device}: sparse operators", "", "| problem | TFLOP/s | kernel | run |", "|---|---|---|---|"]
        lines += [f"| `{line}` | {number(r['tflops'])} | {r['kernel']} | {r['run']} ({r['date'][:10]}) |" for line, r in rows] + [""]
    return "\n".join(lines).rstrip() + "\n"


def summary_alone(device_rows):
    """One line per operator, and one more for the deterministic ones; s_q and topk are those of the list."""
    lines = ["| device | work | heads | rows of kv: TFLOP/s |", "|---|---|---|---|"]
    for device, rows in device_rows.items():
        groups = {}
        for line, r in rows:
            words = line.split()
            value = dict(w.split("=", 1) for w in words if "=" in w)
            name = group_of(line)[1] + (" deterministic" if "deterministic" in words else "")
            groups.setdefault((name, value["hq"]), []).append(f"{int(value['sk']) // 1024}k: {number(r['tflops'])}")
        lines += [f"| {MACHINES.get(device, device)} | {name} | {heads} | {', '.join(cells)} |" for (name, heads), cells in groups.items()]
    return "\n".join(lines) + "\n"


def markdown(device_tables):
    lines = []
    for device, groups in device_tables.items():
        lines += [f"## {device}", ""]
        for heading, unit, (others, peers), rows in groups:
            runs = sorted({(r[3]["date"][:10], r[3]["run"]) for r in rows})
            word = "TFLOP/s" if unit == "tflops" else "GB/s"
            lines += [f"### {heading}, {word}", "", "| problem | attn | " + " | ".join(others + peers) + " | attn / best |",
                      "|---|---|" + "---|" * (len(others + peers) + 1)]
            for problem, figures, ratios, _ in rows:
                cells = [number(figures.get(OURS))] + [number(figures.get(p)) for p in others + peers] + [f"{min(ratios.values()):.2f}"]
                lines.append(f"| `{problem}` | " + " | ".join(cells) + " |")
            lines += ["", "Ratios: " + "; ".join(
                f"{peer} geometric mean {geomean(x):.2f}, lowest {min(x):.2f}"
                for peer in peers if (x := [r[2][peer] for r in rows if peer in r[2]])) +
                f"; best of all {geomean([min(r[2].values()) for r in rows]):.2f}, lowest {min(min(r[2].values()) for r in rows):.2f}.",
                f"Kernels: {', '.join(sorted({r[3]['kernel'] for r in rows}))}.",
                f"Runs: {', '.join(f'{run} ({date})' for date, run in runs)}; {rows[0][3].get('note', '')}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(device_tables):
    lines = ["| device | work | problems | attn against the best peer of each: geometric mean | lowest | highest |",
             "|---|---|---|---|---|---|"]
    for device, groups in device_tables.items():
        for heading, _, (_, peers), rows in groups:
            x = [min(r[2].values()) for r in rows]
            lines.append(f"| {MACHINES.get(device, device)} | {heading} | {len(rows)} | {geomean(x):.2f} ({', '.join(peers)}) | {min(x):.2f} | {max(x):.2f} |")
    return "\n".join(lines) + "\n"


def front(device_tables):
    """One line per machine: of each kind of work in FRONT, geometric mean and lowest ratio to the best peer."""
    lines = ["| | " + " | ".join(FRONT) + " |", "|---|" + "---|" * len(FRONT)]
    for device, groups in sorted(device_tables.items(), key=lambda kv: MACHINES.get(kv[0], kv[0])):
        cells = {}
        for heading, _, _, rows in groups:
            x = [min(r[2].values()) for r in rows]
            cells[heading] = f"{geomean(x):.2f}" + (f" ({min(x):.2f})" if len(x) > 1 else "")
        lines.append(f"| {MACHINES.get(device, device)} | " + " | ".join(cells.get(heading, "-") for heading in FRONT) + " |")
    return "\n".join(lines) + "\n"


def replaced(path, text):
    old = path.read_text()
    if BEGIN not in old or END not in old:
        sys.exit(f"{path.relative_to(ROOT)} lacks the markers {BEGIN} and {END}")
    head, rest = old.split(BEGIN, 1)
    return old, head + BEGIN + "\n" + text + END + rest.split(END, 1)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if (args.write or args.check) and args.files:
        parser.error("--write and --check take the files of bench/results")
    paths = args.files or sorted((ROOT / "bench/results").glob("**/*.jsonl"))
    records = read(paths)
    made, lone = tables(records), alone(records)
    page = "\n".join(text for text in (markdown(made) if made else "", markdown_alone(lone) if lone else "") if text)
    if not args.write and not args.check:
        print(page or "no problem was measured by attn and by a peer in one run, none of bench/cases/dsa.txt by attn")
        return
    short = summary(made) + ("\nSparse MLA, 4096 queries of 2048 random rows each, D 576:\n\n" + summary_alone(lone) if lone else "")
    page = "## Summary\n\n" + short + "\n" + page
    stale = 0
    for path, text in ((ROOT / "docs/benchmarks.md", page), (ROOT / "README.md", front(made))):
        old, new = replaced(path, text)
        if old == new:
            continue
        stale += 1
        print(f"{path.relative_to(ROOT)}: {'out of date, run make figures' if args.check else 'written'}")
        if args.write:
            path.write_text(new)
    sys.exit(1 if args.check and stale else 0)


if __name__ == "__main__":
    main()
