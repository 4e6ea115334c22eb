# SPDX-License-Identifier: MIT
"""Sparse multi-head latent attention over gathered rows: mla, mla_backward, dist."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, _options
from ._dense import split
from ._engine import run
from ._errors import error
from ._tensor import View

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from ._options import Array

    NDArray = np.ndarray[Any, Any]

GROUPS = (2, 4, 8, 16)  # queries that may share a joined list
_GRADIENTS = frozenset(("dq", "dkv", "dsink", "dist"))


class MlaGradients(NamedTuple):
    """Results of mla_backward; None where not wanted."""

    dq: Any = None
    dkv: Any = None
    dsink: Any = None
    dist: Any = None


def mla(q: Array, kv: Array, indices: Array, *, return_lse: bool = False, return_max_logits: bool = False,
        **options: Unpack[_options.MlaForward]) -> Any:
    """Attention of q [SQ,HQ,D] over the rows of kv [SK,1,D] that indices i32 [SQ,1,TOPK] name; values are their first 512
    columns. All tensors may have a leading batch axis.

    Returns out [SQ,HQ,512]; with return_lse (out, lse [SQ,HQ]); with return_max_logits (out, lse, max_logits). Slots that
    name no row (-1, say) do not count. `joined` hands over what mla_join made of the same lists, once for forward, dist and backward.
    """
    inputs = {"q": q, "kv": kv, "indices": indices}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, frozenset(("out", "lse", "max_logits")))
    wanted = ("out", "lse", "max_logits") if return_max_logits else ("out", "lse") if return_lse else ("out",)
    results = run(build, _abi.ATTN_OP_MLA_FWD, inputs, outputs, wanted, plain)
    return tuple(results[role] for role in wanted) if len(wanted) > 1 else results["out"]


def mla_backward(dout: Array, q: Array, kv: Array, out: Array, lse: Array, indices: Array, *,
                 want: tuple[str, ...] = ("dq", "dkv"), **options: Unpack[_options.MlaBackward]) -> MlaGradients:
    """Gradients of mla from its inputs, its results and dout: those of dq, dkv and dsink in `want`; "dist" there adds the
    distribution that `dist` computes.
    """
    inputs = {"q": q, "kv": kv, "indices": indices, "out": out, "lse": lse, "dout": dout}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, _GRADIENTS)
    unknown = [role for role in want if role not in _GRADIENTS]
    if unknown:
        raise error(_abi.ATTN_E_ARGUMENT, f"want names {unknown[0]!r}; expected some of {', '.join(MlaGradients._fields)}",
                    "want")
    if plain.get("accumulate") and "dkv" not in outputs:
        raise error(_abi.ATTN_E_ARGUMENT, "accumulate adds to dkv: give dkv", "dkv")
    return MlaGradients(**run(build_backward, _abi.ATTN_OP_MLA_BWD, inputs, outputs, tuple(want), plain))


def dist(q: Array, kv: Array, indices: Array, lse: Array, *, norm: str = "sum",
         **options: Unpack[_options.Dist]) -> NDArray:
    """Attention of all heads together on every slot, f32 [SQ,TOPK]: exp(scale * q.k - lse) added over heads.

    norm: "sum", "mean" (over heads) or "l1" (each row sums to 1).
    """
    inputs = {"q": q, "kv": kv, "indices": indices, "lse": lse}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, frozenset(("dist",)))
    result: NDArray = run(build_dist, _abi.ATTN_OP_DIST, inputs, outputs, ("dist",), plain | {"norm": norm})["dist"]
    return result


def mla_join(indices: Array, *, group: int, seq_k: int, **options: Unpack[_options.Join]) -> NDArray:
    """Joined lists of `group` (2, 4, 8 or 16) neighbouring queries: i32 [ceil(SQ/group),WORDS], docs/joined_lists.md.

    `seq_k` is the number of key rows that an index may name. Words that the format leaves unwritten are undefined.
    """
    inputs = {"indices": indices}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, frozenset(("joined",)))
    result: NDArray = run(build_join, _abi.ATTN_OP_MLA_JOIN, inputs, outputs, ("joined",),
                          plain | {"group": group, "seq_k": seq_k})["joined"]
    return result


def joined_words(group: int, topk: int) -> int:
    """Words of a group's joined list, docs/joined_lists.md."""
    entries = -(-group * topk // 128) * 128
    words = 32 + entries + entries // 64 * group * 2 + group * (-(-topk // 8) * 4)
    return -(-words // 32) * 32


def group_of(shape: tuple[int, ...], seq_q: int, topk: int) -> int:
    """Queries a group of joined lists of this shape; the words of a row tell it."""
    fitting = [group for group in GROUPS if shape[-1:] == (joined_words(group, topk),)]
    same_rows = [group for group in fitting if shape[-2:-1] == (-(-seq_q // group),)]
    if not fitting:
        words = ", ".join(f"{joined_words(group, topk)} for {group}" for group in GROUPS)
        raise error(_abi.ATTN_E_SHAPE, f"joined has shape [{','.join(map(str, shape))}]; mla_join's rows of {topk} slots a query have "
                    f"{words} queries a group", "joined")
    return (same_rows or fitting)[0]


def shape_problem(problem: _abi.attn_problem, views: dict[str, View]) -> None:
    """Extents of the problem from q, kv and indices."""
    q, kv, indices = views["q"], views["kv"], views["indices"]
    for role in ("q", "kv", "indices"):
        if len(views[role].shape) not in (3, 4):
            raise error(_abi.ATTN_E_SHAPE, f"{role} has {len(views[role].shape)} axes; expected 3, or 4 with a batch axis",
                        role, 3, len(views[role].shape))
    problem.batch = q.shape[0] if len(q.shape) == 4 else 1
    problem.seq_q, problem.heads_q, problem.dim_qk = q.shape[-3:]
    problem.seq_k, problem.heads_k, problem.dim_v = kv.shape[-3], kv.shape[-2], 512
    problem.topk = indices.shape[-1]
    if "joined" in views:
        problem.group = group_of(views["joined"].shape, q.shape[-3], indices.shape[-1])
    problem.flags |= (_abi.ATTN_SINK if "sink" in views else 0) | (_abi.ATTN_TOPK_LENGTH if "topk_length" in views else 0)


def build(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
    """Problem of mla."""
    shape_problem(problem, views)
    if "out" in views and views["out"].dtype != problem.dtype:
        problem.out_dtype = views["out"].dtype
    _options.apply(problem, options, _options.MLA_FORWARD, "mla")


def build_backward(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any],
                   wanted: tuple[str, ...]) -> None:
    """Problem of mla_backward."""
    shape_problem(problem, views)
    problem.flags |= _abi.ATTN_DLSE if "dlse" in views else 0
    problem.flags |= _abi.ATTN_GRAD_SINK if "dsink" in wanted or "dsink" in views else 0
    problem.flags |= _abi.ATTN_WITH_DIST if "dist" in wanted or "dist" in views else 0
    if "dkv" in views and views["dkv"].dtype != problem.dtype:
        problem.dkv_dtype = views["dkv"].dtype
    _options.apply(problem, options, _options.MLA_BACKWARD, "mla_backward")


def build_join(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any],
               wanted: tuple[str, ...]) -> None:
    """Problem of mla_join."""
    indices = views["indices"]
    if len(indices.shape) not in (3, 4):
        raise error(_abi.ATTN_E_SHAPE, f"indices has {len(indices.shape)} axes; expected 3, or 4 with a batch axis",
                    "indices", 3, len(indices.shape))
    problem.batch = indices.shape[0] if len(indices.shape) == 4 else 1
    problem.seq_q, problem.topk = indices.shape[-3], indices.shape[-1]
    problem.flags |= _abi.ATTN_TOPK_LENGTH if "topk_length" in views else 0
    _options.apply(problem, options, _options.JOIN, "mla_join")


def build_dist(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any],
               wanted: tuple[str, ...]) -> None:
    """Problem of dist."""
    shape_problem(problem, views)
    _options.apply(problem, options, _options.DIST, "dist")
