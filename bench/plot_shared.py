#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TFLOP/s over J for each number of heads, drawn from records of `attn bench --json @shared`. Standard library only.

    python3 bench/plot_shared.py [FILE...]     writes docs/joined_lists.svg and its line in docs/joined_lists.md; without files,
                                               of bench/results/**/*.jsonl

Of each operator a panel for each number of keys. A line is the kernel that joins lists, the same line dashed the fastest that
keeps queries apart; random lists stand at the J that they have. Of a device's runs with three shares of keys or more the
newest is drawn.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- made by bench/plot_shared.py -->", "<!-- /made by bench/plot_shared.py -->"
OPS = ("mla_fwd", "mla_bwd", "dist")
COLOURS = {8: "#0072b2", 16: "#009e73", 32: "#d55e00", 64: "#cc79a7", 128: "#555555"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 200, 46, 34, 58
RANDOM = {8192: 1 / 7, 32768: 1 / 31}  # J of two random lists of 2048 keys


def read(paths):
    """{(device, run): (date, {(op, sk, hq, asked overlap): {"joined" or "apart": TFLOP/s}})}, of lists of 2048 keys."""
    found, dates = {}, {}
    for path in paths:
        for line in path.read_text().splitlines():
            r = json.loads(line) if line.strip() else {}
            words = r.get("problem", "").split()
            value = dict(w.split("=", 1) for w in words if "=" in w)
            if not r.get("overlap") or not r.get("tflops") or r.get("impl") != "attn" or words[0] not in OPS:
                continue
            if value.get("topk") != "2048" or value.get("sq") != "4096" or "group" in value:
                continue
            run = r["device"], r["run"]
            dates[run] = max(r["date"], dates.get(run, ""))
            cell = found.setdefault(run, {}).setdefault((words[0], int(value["sk"]), int(value["hq"]), r["overlap"]["asked"]), {})
            column = "joined" if "_joined_" in r["kernel"] else "apart"
            cell[column] = max(r["tflops"], cell.get(column, 0))
    return {run: (dates[run], cells) for run, cells in found.items() if len({key[3] for key in cells}) >= 3}


def place(asked, sk):
    return RANDOM.get(sk) if asked == "random" else 1.0 if asked == "prefix" else float(asked)


def panel(cells, op, sk, x0, y0, most):
    def at(j, rate):
        return f"{x0 + j * WIDTH:.1f},{y0 + HEIGHT - rate / most * HEIGHT:.1f}"

    out = [f'<text x="{x0 + WIDTH / 2}" y="{y0 - 8}" text-anchor="middle" font-weight="bold">{op}, {sk // 1024}k keys</text>']
    for y in range(0, int(most) + 1, 100):
        line = y0 + HEIGHT - y / most * HEIGHT
        out.append(f'<path d="M{x0} {line:.1f}h{WIDTH}" stroke="#ddd"/><text x="{x0 - 6}" y="{line + 4:.1f}" text-anchor="end">{y}</text>')
    for j in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<text x="{x0 + j * WIDTH}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{j}</text>')
    for heads, colour in COLOURS.items():
        for column, dash in (("joined", ""), ("apart", ' stroke-dasharray="5 4" opacity="0.7"')):
            points = sorted((place(key[3], sk), cell[column]) for key, cell in cells.items()
                            if key[:3] == (op, sk, heads) and column in cell and place(key[3], sk) is not None)
            if points:
                out.append(f'<polyline points="{" ".join(at(j, rate) for j, rate in points)}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
                out += [f'<circle cx="{p[0]}" cy="{p[1]}" r="2.2" fill="{colour}"/>' for p in (at(*q).split(",") for q in points)]
    return out


def drawing(device, run, date, cells):
    sizes = sorted({key[1] for key in cells})
    ops = [op for op in OPS if any(key[0] == op for key in cells)]
    most = max(rate for cell in cells.values() for rate in cell.values()) * 1.05
    width = max(LEFT + len(sizes) * (WIDTH + GAP), 680)
    height = TOP + len(ops) * (HEIGHT + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for row, op in enumerate(ops):
        for column, sk in enumerate(sizes):
            out += panel(cells, op, sk, LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP), most)
    x, y = LEFT, height - 30
    for heads, colour in COLOURS.items():
        out.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="2"/><text x="{x + 23}" y="{y}">{heads} heads</text>')
        x += 92
    out.append(f'<text x="{x}" y="{y}">dashed: queries apart</text>')
    out.append(f'<text x="{LEFT}" y="{y + 20}">TFLOP/s of each query\'s own keys over J of two neighbours; {device}, run {run} ({date[:10]})</text></svg>')
    return "\n".join(out) + "\n"


def main():
    paths = [pathlib.Path(p) for p in sys.argv[1:]] or sorted((ROOT / "bench/results").glob("**/*.jsonl"))
    runs = read(paths)
    if not runs:
        print("no run with three shares of keys or more is recorded")
        return
    (device, run), (date, cells) = max(runs.items(), key=lambda item: item[1][0])
    (ROOT / "docs/joined_lists.svg").write_text(drawing(device, run, date, cells))
    page = ROOT / "docs/joined_lists.md"
    head, rest = page.read_text().split(BEGIN, 1)
    text = f"\n![TFLOP/s over J, a line for each number of heads](joined_lists.svg)\n\n{device}, run {run} ({date[:10]}).\n"
    page.write_text(head + BEGIN + text + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
