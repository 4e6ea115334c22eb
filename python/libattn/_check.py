# SPDX-License-Identifier: MIT
"""libattn.check(): does every kernel that this processor or GPU runs give what the reference kernels give?"""
from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy as np

from . import _abi, _library
from ._dense import sdpa, sdpa_backward
from ._engine import viewers
from ._errors import AttnError, UnsupportedError
from ._library import lib, must
from ._listing import Kernel, kernels, version
from ._sparse import dist, mla, mla_backward
from ._tensor import View, view_numpy

_BOUNDS = {"f64": (1e-13, 1e-12), "f32": (4e-6, 2e-5), "f16": (2e-3, 4e-3), "bf16": (1.6e-2, 3.2e-2)}  # forward, backward
_OPS = {"sdpa_fwd": ("out", "lse"), "sdpa_bwd": ("dq", "dk", "dv"), "mla_fwd": ("out", "lse"), "mla_bwd": ("dq", "dkv"),
        "dist": ("dist",)}  # and results that are compared
_HOST, _GPU = _abi.attn_device(_abi.ATTN_DEVICE_TYPE_CPU, 0), _abi.attn_device(_abi.ATTN_DEVICE_TYPE_CUDA, 0)
_SHAPE = {"b": 2, "hq": 4, "hk": 2, "s": 96, "d": 64}  # the demo's kind of problem: a sentence, a few heads


class _OnGpu:
    """An array's copy in memory of the first GPU."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.context, self.memory = np.ascontiguousarray(array), _library.context(), ctypes.c_void_p()
        must(lib.attn_memory_alloc(self.context, _GPU, self.array.nbytes, ctypes.byref(self.memory)))
        must(lib.attn_memory_copy(self.context, _GPU, self.memory, _HOST, self.array.ctypes.data, self.array.nbytes))

    def __del__(self) -> None:
        lib.attn_memory_free(self.context, _GPU, self.memory, self.array.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """What the GPU has written, when it has nothing left to do."""
        found = np.empty_like(self.array)
        must(lib.attn_device_synchronize(self.context, _GPU))
        must(lib.attn_memory_copy(self.context, _HOST, found.ctypes.data, _GPU, self.memory, found.nbytes))
        return found


def _view(role: str, x: _OnGpu) -> View:
    return view_numpy(role, x.array, True)._replace(device=(_GPU.type, _GPU.index), address=x.memory.value or 0, writable=True)


viewers[_OnGpu] = _view


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


def _run(kernel: str, op: str, dtype: str, like: list[np.ndarray[Any, Any]] | None = None) -> list[Any]:
    """Outputs of one kernel on data that are the same for every kernel of the operator and dtype; on the GPU if `like` has
    arrays of the outputs' shapes."""
    random, common = np.random.default_rng(7), dict[str, Any](causal=True)
    if dtype == "bf16":
        common["dtype"] = "bf16"
    if like is not None:
        given: dict[str, Any] = {role: _OnGpu(np.zeros_like(x)) for role, x in zip(_OPS[op], like)}
        _results(kernel, op, dtype, random, common, given)
        return [x.numpy() for x in given.values()]
    return _results(kernel, op, dtype, random, common, {})


def _results(kernel: str, op: str, dtype: str, random: np.random.Generator, common: dict[str, Any],
             given: dict[str, Any]) -> list[Any]:
    """The call; `given` outputs are on the GPU, then inputs go there, too."""
    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return _rounded(random.standard_normal(shape), dtype)

    def there(x: np.ndarray[Any, Any]) -> Any:
        return _OnGpu(x) if given else x

    b, hq, hk, s, d = _SHAPE.values()
    if op.startswith("sdpa"):
        q, k, v, dout = draw(b, hq, s, d), draw(b, hk, s, d), draw(b, hk, s, d), draw(b, hq, s, d)
        if op == "sdpa_fwd":
            return list(sdpa(there(q), there(k), there(v), return_lse=True, kernel=kernel, **given, **common))
        out, lse = sdpa(q, k, v, return_lse=True, kernel="*_ref_*", **common)
        return list(sdpa_backward(there(dout), there(q), there(k), there(v), there(out), there(lse), kernel=kernel, **given,
                                  **common)[:3])
    q, kv, dout = draw(16, hq, 576), draw(s, 1, 576), draw(16, hq, 512)
    indices = random.integers(-1, s, (16, 1, 40), dtype=np.int32)
    common["q_start"] = s - 16
    if op == "mla_fwd":
        return list(mla(there(q), there(kv), there(indices), return_lse=True, kernel=kernel, **given, **common))
    out, lse = mla(q, kv, indices, return_lse=True, kernel="*_ref_*", **common)
    if op == "mla_bwd":
        return list(mla_backward(there(dout), there(q), there(kv), there(out), there(lse), there(indices), kernel=kernel,
                                 **given, **common)[:2])
    return [dist(there(q), there(kv), there(indices), there(lse), kernel=kernel, **given, **common)]


def _error(found: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """||found - reference|| / ||reference||; infinite for NaN."""
    a, b = _wide(found), _wide(reference)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return np.inf
    value = float(np.linalg.norm((a - b)[finite]) / max(float(np.linalg.norm(b[finite])), 1e-300))
    return value if value == value else np.inf


def _verdict(kernel: Kernel, reference: list[np.ndarray[Any, Any]]) -> tuple[bool | None, str]:
    """None: a GPU's kernel that is for other problems."""
    gpu = kernel.arch.startswith("sm")
    try:
        found = _run(kernel.name, kernel.op, kernel.dtype, reference if gpu else None)
        worst = max(_error(x, y) for x, y in zip(found, reference))
    except UnsupportedError as refusal:
        return None if gpu else True, f"refuses this problem: {refusal.text.splitlines()[0]}"
    except AttnError as fault:
        return False, str(fault)
    bound = _BOUNDS[kernel.dtype][kernel.op.endswith("bwd")]
    return worst <= bound, f"error {worst:.1e}, bound {bound:.0e}"


def check(verbose: bool = True) -> bool:
    """Run a small problem on every attention kernel of this processor, and of the first GPU if there is one, that takes it,
    and compare with the reference kernels.

    Returns True if all agree; prints a line for each kernel if verbose. Takes seconds, but minutes on a GPU for which the
    library has PTX alone: the driver then compiles each kernel.
    """
    start, failed, n_run, unusable = time.perf_counter(), 0, 0, 0
    references: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for kernel in kernels():
        if kernel.arch == "ref" or kernel.op not in _OPS:
            continue
        if not kernel.usable or kernel.dtype not in _BOUNDS:  # NumPy alone has no e4m3
            unusable += 1
            continue
        case = kernel.op, kernel.dtype
        if case not in references:
            references[case] = _run("*_ref_*", *case)
        good, text = _verdict(kernel, references[case])
        if good is None:
            unusable += 1
            continue
        n_run += 1
        failed += not good
        if verbose:
            print(f"{'ok  ' if good else 'FAIL'} {kernel.name:44} {text}")
    if verbose:
        print(f"libattn {version()}: {n_run - failed} passed, {failed} failed, {unusable} for other problems, processors or GPUs, "
              f"{time.perf_counter() - start:.1f} s")
        sys.stdout.flush()
    return not failed
