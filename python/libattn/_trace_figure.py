# SPDX-License-Identifier: MIT
"""The picture of a trace: time by problem, and rates over operations per byte. Imported when a figure is asked for."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from matplotlib import colormaps
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from ._trace import Trace


def draw(trace: Trace, path: str | os.PathLike[str] | None, records: list[tuple[str, float, float]], most: int) -> Any:
    """See Trace.figure."""
    shown = trace.problems[:most]
    rows = max(4, len(shown))
    figure = Figure(figsize=(10, 3.5 + 0.42 * rows))
    times, rates = figure.subplots(2, 1, height_ratios=(rows, 10))
    colours = colormaps["tab20"]
    total = sum(problem.seconds for problem in trace.problems) or 1.0
    for row, problem in enumerate(shown):
        times.barh(row, 1e3 * problem.seconds, color=colours(row % 20), alpha=0.5)
        times.text(0, row, f" {problem.problem}   {problem.kernel}, {problem.calls} calls, {problem.seconds / total:.0%}",
                   va="center", fontsize=7)
        rate = problem.flops / problem.median / 1e12
        if rate and problem.bytes:
            rates.scatter(problem.flops / problem.bytes, rate, color=colours(row % 20), s=40, zorder=3, edgecolor="black",
                          linewidth=0.5)
    times.set(xlabel="ms of all calls", yticks=[], title=f"{sum(x.calls for x in trace.problems)} executions of "
              f"{len(trace.problems)} problems, {1e3 * total:.2f} ms")
    times.invert_yaxis()
    if records:
        rates.scatter([x for _, x, _ in records], [y for _, _, y in records], marker="x", color="grey", s=20,
                      label="attn bench")
        # What was reached bounds both roofs from below: the best rate, and the best traffic.
        best, traffic = max(y for _, _, y in records), max(y / x for _, x, y in records)
        reach = [min(x for _, x, _ in records) / 2, best / traffic, 2 * max(x for _, x, _ in records)]
        rates.plot(reach, [min(best, traffic * x) for x in reach], color="grey", linewidth=1,
                   label=f"best of attn bench: {best:.3g} TFLOP/s, {1e3 * traffic:.3g} GB/s")
        rates.legend(fontsize=7)
    if records or any(problem.flops for problem in shown):
        rates.set(xscale="log", yscale="log")
    rates.set(xlabel="operations per byte of least traffic", ylabel="TFLOP/s, median call")
    rates.grid(alpha=0.3, which="both")
    figure.tight_layout()
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
