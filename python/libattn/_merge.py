# SPDX-License-Identifier: MIT
"""merge: attention over all keys from the results over parts of them."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _abi, _library
from ._engine import describe, foreign
from ._errors import error
from ._library import lib, must
from ._tensor import CPU, DTYPE_WORDS, View, numpy_dtype

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Array, Merge

_FLAGS = {"lse_base_2": _abi.ATTN_LSE_BASE_2, "lse_empty_plus_inf": _abi.ATTN_LSE_EMPTY_PLUS_INF}
_KNOWN = {"out", "lse", "out_dtype", "dtype", "stream", *_FLAGS}


def merge(outs: Sequence[Array] | None, lses: Sequence[Array], **options: Unpack[Merge]) -> Any:
    """Attention over the keys of all parts: outs [..,DV] and lses [..] are a forward's results over keys of its own each.

    Returns (out, lse), with outs=None lse alone. Parts may differ in dtype; out and lse have the first part's unless given, or
    out_dtype says so. Any part's arrays may be those of the result, as in a ring: merge((acc, new), (acc_lse, new_lse),
    out=acc, lse=acc_lse). A sink is one more part: out 0, lse the sink.
    """
    unknown = [name for name in options if name not in _KNOWN]
    if unknown:
        raise TypeError(f"merge() has no option {unknown[0]}")
    if not lses or outs is not None and len(outs) != len(lses):
        raise error(_abi.ATTN_E_ARGUMENT, f"merge has {0 if outs is None else len(outs)} outs and {len(lses)} lses: as many, and "
                    "at least one", "lses", len(lses), 0 if outs is None else len(outs))
    stream, bf16 = options.get("stream"), options.get("dtype") == "bf16"
    parts = [[foreign(f"{role}_parts[{i}]", x, stream, bf16) for i, x in enumerate(arrays)]
             for role, arrays in (("out", outs or ()), ("lse", lses))]
    results: dict[str, Any] = {}
    views: dict[str, View] = {}
    for role, like in (("out", parts[0][:1]), ("lse", parts[1][:1])):
        given = options.get(role)
        if like or given is not None:
            results[role] = _new(role, like[0], options.get("out_dtype") if role == "out" else None) if given is None else given
            views[role] = foreign(role, results[role], stream, bf16 or given is None)
            if not views[role].writable:
                raise error(_abi.ATTN_E_ARGUMENT, f"{role} is read-only", role)
    call(parts, views, sum(bit for name, bit in _FLAGS.items() if options.get(name)), stream)
    return (results["out"], results["lse"]) if "out" in results else results["lse"]


def _new(role: str, like: View, word: str | None) -> Any:
    """A result in the shape of a part's."""
    if like.device != CPU:
        raise error(_abi.ATTN_E_ARGUMENT, f"{role} is missing: on a CUDA device outputs are not allocated here", role)
    if word is not None and word not in DTYPE_WORDS:
        raise error(_abi.ATTN_E_ENUM, f"out_dtype is {word!r}; expected one of {', '.join(DTYPE_WORDS)}", "out_dtype")
    return np.empty(like.shape, numpy_dtype(like.dtype if word is None else DTYPE_WORDS[word], like.numpy_dtype))


def call(parts: list[list[View]], results: dict[str, View], flags: int, stream: int | None) -> None:
    """attn_merge on views; parts: those of outs (or none) and of lses."""
    tensors = {role: describe(view) for role, view in results.items()}
    listed = [[describe(view) for view in views] for views in parts]
    pointers = [(ctypes.c_void_p * len(views))(*map(ctypes.addressof, views)) for views in listed]
    args = _abi.attn_merge_args(size=ctypes.sizeof(_abi.attn_merge_args), n_parts=len(parts[1]), flags=flags, stream=stream)
    args.out_parts, args.lse_parts = (ctypes.addressof(x) if x else None for x in pointers)
    args.out, args.lse = (ctypes.addressof(tensors[role]) if role in tensors else None for role in ("out", "lse"))
    device = next(iter(results.values())).device
    must(lib.attn_merge(_library.context(), _abi.attn_device(*device), args))
