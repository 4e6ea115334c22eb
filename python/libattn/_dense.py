# SPDX-License-Identifier: MIT
"""Dense attention: sdpa and sdpa_backward."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from . import _abi, _options
from ._engine import run
from ._errors import error
from ._tensor import View

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from ._options import Array

    NDArray = np.ndarray[Any, Any]

_OUTPUTS = frozenset(("out", "lse", "lse_rounded", "max_logits"))
_GRADIENTS = frozenset(("dq", "dk", "dv", "dmask", "dalibi", "dsink"))
_ROLES = frozenset(_abi.ROLES)


class SdpaGradients(NamedTuple):
    """Results of sdpa_backward; None where not wanted."""

    dq: Any = None
    dk: Any = None
    dv: Any = None
    dmask: Any = None
    dalibi: Any = None
    dsink: Any = None


@overload
def sdpa(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ..., return_max_logits: Literal[False] = ...,
         **options: Unpack[_options.SdpaForward]) -> NDArray: ...
@overload
def sdpa(q: Array, k: Array, v: Array, *, return_lse: Literal[True], return_max_logits: Literal[False] = ...,
         **options: Unpack[_options.SdpaForward]) -> tuple[NDArray, NDArray]: ...
@overload
def sdpa(q: Array, k: Array, v: Array, *, return_lse: bool = ..., return_max_logits: Literal[True],
         **options: Unpack[_options.SdpaForward]) -> tuple[NDArray, NDArray, NDArray]: ...


def sdpa(q: Array, k: Array, v: Array, *, return_lse: bool = False, return_max_logits: bool = False, **options: Any) -> Any:
    """Attention softmax(scale * Q K^T + bias) V of q [B,HQ,SQ,D], k [B,HK,SK,D] and v [B,HK,SK,DV].

    Returns out [B,HQ,SQ,DV] in q's memory order, with return_lse=True (out, lse), with return_max_logits=True (out, lse,
    max_logits). Any strides with a unit innermost one: a [B,S,H,D] array is passed as x.transpose(0, 2, 1, 3). Options:
    libattn._options.SdpaForward, docs/python.md. Outputs given by name (out=, lse=) are written and returned.
    """
    inputs = {"q": q, "k": k, "v": v}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, _OUTPUTS) if options else options
    wanted = ("out", "lse", "max_logits") if return_max_logits else ("out", "lse") if return_lse else ("out",)
    results = run(build_forward, _abi.ATTN_OP_SDPA_FWD, inputs, outputs, wanted, plain)
    return tuple(results[role] for role in wanted) if len(wanted) > 1 else results["out"]


def sdpa_backward(dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *,
                  want: tuple[str, ...] = ("dq", "dk", "dv"),
                  **options: Unpack[_options.SdpaBackward]) -> SdpaGradients:
    """Gradients of sdpa from its inputs, its results and dout: those of dq, dk, dv, dmask, dalibi, dsink in `want`.

    Options are those of the forward, and dlse (the gradient of lse). dmask is summed over the axes on which the mask is
    broadcast, whose extents are 1.
    """
    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout}
    outputs: dict[str, Any] = {}
    plain = split(options, inputs, outputs, _GRADIENTS)
    unknown = [role for role in want if role not in _GRADIENTS]
    if unknown:
        raise error(_abi.ATTN_E_ARGUMENT, f"want names {unknown[0]!r}; expected some of {', '.join(SdpaGradients._fields)}",
                    "want")
    return SdpaGradients(**run(build_backward, _abi.ATTN_OP_SDPA_BWD, inputs, outputs, tuple(want), plain))


def split(options: Mapping[str, Any], inputs: dict[str, Any], outputs: dict[str, Any],
          output_roles: frozenset[str]) -> dict[str, Any]:
    """Sort keyword arguments: tensors into inputs and outputs, the rest is returned. A tensor of None is left out."""
    plain = {}
    for name, value in options.items():
        if name in output_roles:
            if value is not None:
                outputs[name] = value
        elif name in _ROLES:
            if value is not None:
                inputs[name] = value
        else:
            plain[name] = value
    return plain


def build_forward(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any],
                  wanted: tuple[str, ...]) -> None:
    """As build, with what the forward alone has."""
    build(problem, views, options, wanted, _options.SDPA_FORWARD)
    problem.flags |= _abi.ATTN_MAX_LOGITS if "max_logits" in wanted or "max_logits" in views else 0
    if "out" in views and views["out"].dtype != problem.dtype:
        problem.out_dtype = views["out"].dtype


def build(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any], wanted: tuple[str, ...],
          known: Mapping[str, _options.Setter] = _options.SDPA) -> None:
    """Fill in the problem from shapes and options; shapes that disagree are left for the library to refuse."""
    q, k, v = views["q"], views["k"], views["v"]
    packed, paged = "cu_seqlens_q" in views, "block_table" in views
    for role, rank in (("q", 3 if packed else 4), ("k", 3 if packed and not paged else 4), ("v", len(k.shape))):
        if len(views[role].shape) != rank:
            raise error(_abi.ATTN_E_SHAPE, f"{role} has {len(views[role].shape)} axes; expected {rank}"
                        f"{' (packed: heads, rows, width)' if rank == 3 else ''}", role, rank, len(views[role].shape))
    problem.heads_q, problem.heads_k = q.shape[-3], k.shape[-3]
    problem.dim_qk, problem.dim_v = q.shape[-1], v.shape[-1]
    problem.seq_q, problem.seq_k = q.shape[-2], k.shape[-2]
    problem.batch = q.shape[0]
    if packed:
        problem.flags |= _abi.ATTN_PACKED
        problem.batch = views["cu_seqlens_q"].shape[0] - 1
        problem.total_q, problem.total_k = q.shape[1], 0 if paged else k.shape[-2]
    if paged:
        table = views["block_table"]
        problem.flags |= _abi.ATTN_PAGED
        problem.n_pages, problem.page_size, problem.max_pages = k.shape[0], k.shape[2], table.shape[-1]
        problem.seq_k = problem.page_size * problem.max_pages
    for role, bit in (("seqlens_q", _abi.ATTN_SEQLENS_Q), ("seqlens_k", _abi.ATTN_SEQLENS_K), ("sink", _abi.ATTN_SINK)):
        problem.flags |= bit if role in views else 0
    if "alibi" in views:
        problem.alibi = _abi.ATTN_ALIBI_LINEAR
    _options.apply(problem, options, known, "sdpa")
    if "alibi_form" in options and "alibi" not in views:
        raise error(_abi.ATTN_E_ARGUMENT, "alibi_form is given without alibi", "alibi_form")
    if "mask" in views:
        problem.mask_dtype = views["mask"].dtype
        views["mask"] = broadcast("mask", views["mask"], problem)


def build_backward(problem: _abi.attn_problem, views: dict[str, View], options: Mapping[str, Any],
                   wanted: tuple[str, ...]) -> None:
    """As build, with what the backward alone has."""
    build(problem, views, options, wanted)
    problem.flags |= _abi.ATTN_DLSE if "dlse" in views else 0
    for role, source, bit in (("dmask", "mask", _abi.ATTN_GRAD_MASK), ("dalibi", "alibi", _abi.ATTN_GRAD_ALIBI),
                              ("dsink", "sink", _abi.ATTN_GRAD_SINK)):
        if role in wanted or role in views:
            if source not in views:
                raise error(_abi.ATTN_E_ARGUMENT, f"{role} is wanted without {source}", role)
            problem.flags |= bit
    if "dmask" in views:
        views["dmask"] = broadcast("dmask", views["dmask"], problem)


def broadcast(role: str, view: View, problem: _abi.attn_problem) -> View:
    """A mask with fewer axes, or extents of 1, as [B,HQ,SQ,SK] with strides of 0."""
    full = (problem.batch, problem.heads_q, problem.seq_q, problem.seq_k)
    short = len(full) - len(view.shape)
    shape = (1,) * short + view.shape
    fits = short >= 0 and all(extent in (1, whole) for extent, whole in zip(shape, full))
    if not fits:
        raise error(_abi.ATTN_E_SHAPE, f"{role} has shape {list(view.shape)}, which does not broadcast to {list(full)}", role)
    strides = (0,) * short + view.strides
    return view._replace(shape=full, strides=tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides)))
