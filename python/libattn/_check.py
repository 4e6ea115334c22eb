# SPDX-License-Identifier: MIT
"""libattn.check(): does every kernel that this processor runs give what the reference kernels give?"""
from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from ._dense import sdpa, sdpa_backward
from ._errors import AttnError, UnsupportedError
from ._listing import Kernel, kernels, version
from ._sparse import dist, mla, mla_backward

_BOUNDS = {"f64": (1e-13, 1e-12), "f32": (4e-6, 2e-5), "f16": (2e-3, 4e-3), "bf16": (1.6e-2, 3.2e-2)}  # forward, backward
_OPS = ("sdpa_fwd", "sdpa_bwd", "mla_fwd", "mla_bwd", "dist")
_SHAPE = {"b": 2, "hq": 4, "hk": 2, "s": 96, "d": 64}  # the demo's kind of problem: a sentence, a few heads


def _rounded(x: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """x in a kernel's element type; bf16 as 16-bit integers, rounded to nearest even."""
    if dtype != "bf16":
        return x.astype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype])
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def _run(kernel: str, op: str, dtype: str) -> list[np.ndarray[Any, Any]]:
    """Outputs of one kernel on data that are the same for every kernel of the operator and dtype."""
    random = np.random.default_rng(7)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return _rounded(random.standard_normal(shape), dtype)

    common: dict[str, Any] = {"causal": True} | ({"dtype": "bf16"} if dtype == "bf16" else {})
    b, hq, hk, s, d = _SHAPE.values()
    if op.startswith("sdpa"):
        q, k, v, dout = draw(b, hq, s, d), draw(b, hk, s, d), draw(b, hk, s, d), draw(b, hq, s, d)
        if op == "sdpa_fwd":
            return list(sdpa(q, k, v, return_lse=True, kernel=kernel, **common))
        out, lse = sdpa(q, k, v, return_lse=True, kernel="*_ref_*", **common)
        return list(sdpa_backward(dout, q, k, v, out, lse, kernel=kernel, **common)[:3])
    q, kv, dout = draw(16, hq, 576), draw(s, 1, 576), draw(16, hq, 512)
    indices = random.integers(-1, s, (16, 1, 40), dtype=np.int32)
    common["q_start"] = s - 16
    if op == "mla_fwd":
        return list(mla(q, kv, indices, return_lse=True, kernel=kernel, **common))
    out, lse = mla(q, kv, indices, return_lse=True, kernel="*_ref_*", **common)
    if op == "mla_bwd":
        return list(mla_backward(dout, q, kv, out, lse, indices, kernel=kernel, **common)[:2])
    return [dist(q, kv, indices, lse, kernel=kernel, **common)]


def _error(found: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """||found - reference|| / ||reference||; infinite for NaN."""
    a, b = _wide(found), _wide(reference)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return np.inf
    value = float(np.linalg.norm((a - b)[finite]) / max(float(np.linalg.norm(b[finite])), 1e-300))
    return value if value == value else np.inf


def _verdict(kernel: Kernel, reference: list[np.ndarray[Any, Any]]) -> tuple[bool, str]:
    try:
        worst = max(_error(x, y) for x, y in zip(_run(kernel.name, kernel.op, kernel.dtype), reference))
    except UnsupportedError as refusal:
        return True, f"refuses this problem: {refusal.text.splitlines()[0]}"
    except AttnError as fault:
        return False, str(fault)
    bound = _BOUNDS[kernel.dtype][kernel.op.endswith("bwd")]
    return worst <= bound, f"error {worst:.1e}, bound {bound:.0e}"


def check(verbose: bool = True) -> bool:
    """Run a small problem on every attention kernel of this processor and compare with the reference kernels.

    Returns True if all agree; prints a line for each kernel if verbose. Kernels for GPUs are listed, not run.
    """
    start, failed, n_run, unusable = time.perf_counter(), 0, 0, 0
    references: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for kernel in kernels():
        if kernel.arch == "ref" or kernel.op not in _OPS:
            continue
        if not kernel.usable or kernel.arch.startswith("sm"):
            unusable += 1
            continue
        case = kernel.op, kernel.dtype
        if case not in references:
            references[case] = _run("*_ref_*", *case)
        good, text = _verdict(kernel, references[case])
        n_run += 1
        failed += not good
        if verbose:
            print(f"{'ok  ' if good else 'FAIL'} {kernel.name:44} {text}")
    if verbose:
        print(f"libattn {version()}: {n_run - failed} passed, {failed} failed, {unusable} for other processors or GPUs, "
              f"{time.perf_counter() - start:.1f} s")
        sys.stdout.flush()
    return not failed
