# SPDX-License-Identifier: MIT
"""What a program asks of the library, and which kernel served it: a table of the problems that ran, and a picture."""
from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _engine, _library
from ._library import lib
from ._listing import parse


@dataclass
class Problem:
    """All executions of one problem by one kernel."""

    problem: str  #: docs/problem-text.md
    kernel: str
    times: list[float] = field(default_factory=list)  #: seconds of each execution, in order

    @property
    def calls(self) -> int:
        """Number of executions."""
        return len(self.times)

    @property
    def seconds(self) -> float:
        """Seconds of all executions."""
        return sum(self.times)

    @property
    def median(self) -> float:
        """Seconds of the middle execution."""
        return sorted(self.times)[len(self.times) // 2]

    @property
    def flops(self) -> float:
        """Floating-point operations of one execution, by the usual count."""
        return float(lib.attn_problem_flops(parse(self.problem)))

    @property
    def bytes(self) -> float:
        """Least traffic of one execution: every input read once, every output written once."""
        return float(lib.attn_problem_bytes(parse(self.problem)))


@dataclass
class Trace:
    """Problems of a recording, those with the most time first. str() is a table."""

    problems: list[Problem] = field(default_factory=list)
    plans: int = 0  #: plans that were made
    plan_seconds: float = 0.0

    def add(self, events: list[dict[str, Any]]) -> None:
        """Take in events of a Chrome trace as ATTN_TRACE writes it."""
        known = {(x.problem, x.kernel): x for x in self.problems}
        for event in events:
            seconds, key = event["dur"] * 1e-6, (event["args"]["problem"], event["name"])
            if event["cat"] == "plan":
                self.plans, self.plan_seconds = self.plans + 1, self.plan_seconds + seconds
            else:
                known.setdefault(key, Problem(*key)).times.append(seconds)
        self.problems = sorted(known.values(), key=lambda x: -x.seconds)

    def __str__(self) -> str:
        rows = [("calls", "total ms", "median us", "TFLOP/s", "GB/s", "kernel", "problem")]
        rows += [(str(x.calls), f"{1e3 * x.seconds:.2f}", f"{1e6 * x.median:.1f}", f"{x.flops / x.median / 1e12:.3f}",
                  f"{x.bytes / x.median / 1e9:.1f}", x.kernel, x.problem) for x in self.problems]
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(row[:5], widths)), row[5].ljust(widths[5]), row[6]])
                 for row in rows]
        total = sum(x.seconds for x in self.problems)
        return "\n".join([*lines, f"{sum(x.calls for x in self.problems)} executions in {1e3 * total:.2f} ms, "
                          f"{self.plans} plans in {1e3 * self.plan_seconds:.2f} ms"])

    def figure(self, path: str | os.PathLike[str] | None = None, bench: str | os.PathLike[str] | None = None,
               most: int = 12) -> Any:
        """Time by problem, and each problem's rate over its operations per byte; needs matplotlib.

        `bench`: a file of `attn bench --json`, whose records are drawn as the rates that are known to be reached.
        The figure is written to `path` if one is given, and returned.
        """
        from ._trace_figure import draw

        return draw(self, path, read_records(bench) if bench is not None else [], most)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """The table of a file that ATTN_TRACE named while a program ran, from whatever threads and processes."""
    trace = Trace()
    trace.add(_events(path))
    return trace


def _events(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        lines = (line.rstrip().rstrip(",") for line in file)
        return [json.loads(line) for line in lines if line.startswith("{")]


def read_records(path: str | os.PathLike[str]) -> list[tuple[str, float, float]]:
    """(label, operations per byte, TFLOP/s) of each execution in a file of `attn bench --json`."""
    found = []
    with open(path, encoding="utf-8") as file:
        for record in map(json.loads, file):
            if record.get("measure", "execution") == "execution" and record.get("tflops") and record.get("gbps"):
                label = f"{record['impl']}, {record['problem']}"
                found.append((label, 1e3 * record["tflops"] / record["gbps"], record["tflops"]))
    return found


@contextlib.contextmanager
def recording(path: str | os.PathLike[str] | None = None, *, wait: bool = True) -> Iterator[Trace]:
    """Record every problem that the package runs inside the block; the trace is filled in when the block ends.

        with libattn.recording() as trace:
            model(x)
        print(trace)

    `path` keeps the events, for Perfetto, too. On a GPU each execution waits for its work, so that times are the
    device's; with wait=False they are the host's, of queueing it. Plans that were kept are made anew. One at a time.
    """
    trace = Trace()
    with contextlib.ExitStack() as stack:
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = os.path.join(folder, "trace.json")
        before = len(_events(path)) if os.path.exists(path) else 0
        with _library.context_of_its_own({"ATTN_TRACE": os.fspath(path)} | ({"ATTN_SYNC": "1"} if wait else {})):
            _engine.clear_cache()
            try:
                yield trace
            finally:
                _engine.clear_cache()
                trace.add(_events(path)[before:])


__all__ = ["Problem", "Trace", "read_trace", "recording"]
