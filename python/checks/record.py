# SPDX-License-Identifier: MIT
"""Checks of a group by name, and what one of them leaves: figures, or the reason why it failed."""

from __future__ import annotations

import traceback
from time import perf_counter

import torch

# Relative norm of the error that docs/semantics.md section 5 allows: forward, backward.
BOUNDS = {
    torch.float64: (1e-13, 1e-12),
    torch.float32: (4e-6, 2e-5),
    torch.float16: (2e-3, 4e-3),
    torch.bfloat16: (1.6e-2, 3.2e-2),
}
CHECKS = {}


class Skipped(Exception):
    """This device or environment has nothing to check."""


def check(function):
    """Add a check: function(case), in the order of the file."""
    CHECKS[function.__name__] = function
    return function


class Case:
    """One run of one check on a device."""

    def __init__(self, device):
        self.device, self.cuda, self.figures = torch.device(device), device.startswith("cuda"), {}
        self.measured = {}
        self.generator = torch.Generator(device).manual_seed(11)

    def random(self, *shape, dtype=torch.float32, grad=False):
        """Normal numbers on the device, rounded to dtype."""
        x = torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return x.to(dtype).requires_grad_(grad)

    def close(self, name, found, expected, bound):
        """Norm of the error against the expected tensor's, and the same infinite places."""
        found, expected = found.detach().double(), expected.detach().double()
        if found.shape != expected.shape:
            raise AssertionError(f"{name} has shape {list(found.shape)}, expected {list(expected.shape)}")
        finite = expected.isfinite()
        if not torch.equal(found[~finite], expected[~finite]):
            raise AssertionError(f"{name}: infinite elements differ")
        error = ((found - expected)[finite].norm() / expected[finite].norm().clamp_min(1e-30)).item()
        self.figures[name] = max(self.figures.get(name, 0.0), error) if error == error else error
        if not error <= bound:
            raise AssertionError(f"{name}: error {error:.2e}, bound {bound:.1e}")

    def must(self, condition, text):
        """Fail with the text unless the condition holds."""
        if not condition:
            raise AssertionError(text)

    def needs_cuda(self):
        """Skip on a CPU."""
        if not self.cuda:
            raise Skipped("for a CUDA device")

    def synchronize(self):
        """Wait for the device, so that a fault shows."""
        if self.cuda:
            torch.cuda.synchronize(self.device)


def run(name, device):
    """One check as a dict, and whether the process can go on: after a fault of the device it cannot."""
    case, start, found = Case(device), perf_counter(), {"name": name, "result": "passed"}
    try:
        CHECKS[name](case)
        case.synchronize()
    except Skipped as why:
        found.update(result="skipped", reason=str(why))
    except BaseException as fault:  # noqa: BLE001 - a failed check is a line of the record, whatever raised
        where = traceback.extract_tb(fault.__traceback__)[-1]
        found.update(
            result="failed",
            reason=f"{type(fault).__name__}: {fault}"[:2000],
            where=f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}",
            trace=traceback.format_exc()[-4000:],
        )
    found.update(seconds=round(perf_counter() - start, 3), figures=case.figures, measured=case.measured)
    try:
        case.synchronize()
    except RuntimeError:
        return found, False
    return found, True
