# SPDX-License-Identifier: MIT
"""Keyword options: their types, and how each becomes a field or flag of attn_problem.

A name that names a tensor (attn_args) is a tensor; every other name must be in the operator's table below.
"""
from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from . import _abi
from ._errors import error
from ._tensor import DTYPE_WORDS

if TYPE_CHECKING:
    import numpy as np

    from ._tensor import SupportsDLPack

    Array = np.ndarray[Any, Any] | SupportsDLPack


class Common(TypedDict, total=False):
    """Options of every operator."""

    causal: bool  #: hide keys past the diagonal
    scale: float | None  #: default 1/sqrt(D)
    sink: Array | None  #: f32 [HQ], one extra logit a head
    lse_base_2: bool  #: lse (and dlse) in base 2
    lse_empty_plus_inf: bool  #: lse of a row without keys is +inf, else -inf
    deterministic: bool  #: only kernels that are bit-equal from run to run
    dtype: str  #: "bf16": arrays of uint16 hold bf16
    kernel: str  #: take only kernels whose name matches this pattern (* and ?)
    stream: int  #: CUDA: address of the CUstream, default the legacy default stream


class Sdpa(Common, total=False):
    """Options of sdpa and sdpa_backward."""

    bottom_right: bool  #: the diagonal ends at the last key, off = SK - SQ; else off = 0
    softcap: float  #: scores become softcap * tanh(score / softcap)
    window: tuple[int | None, int | None]  #: keys left and right of the diagonal that are seen, None = all
    mask: Array | None  #: [B,HQ,SQ,SK] or with extents of 1: boolean (true = keep) or added to the scores
    alibi: Array | None  #: f32 slopes [HQ] or [B,HQ]
    alibi_form: str  #: "linear" (default) or "distance"
    lse_with_sink: bool  #: lse includes the sink
    seqlens_q: Array | None  #: i32 [B], lengths in use
    seqlens_k: Array | None
    cu_seqlens_q: Array | None  #: i32 [B+1], packed: q is [HQ,TOTALQ,D]
    cu_seqlens_k: Array | None
    max_seqlen_q: int  #: packed: upper bound of the lengths, default the total
    max_seqlen_k: int  #: packed or paged: default the total, or all pages
    fill_padding: bool  #: packed: rows of no sequence are written as empty rows
    block_table: Array | None  #: i32 [B,MAX_PAGES], paged: k is [PAGES,HK,PAGE,D]


class SdpaForward(Sdpa, total=False):
    """Options of sdpa: outputs given by the caller, too."""

    q_scale: Array | None  #: f32 [B,HQ], of q in e4m3 (float8_e4m3fn): what its elements are to be multiplied by
    k_scale: Array | None  #: f32 [B,HK], the same of k
    v_scale: Array | None  #: f32 [B,HK], the same of v
    out_dtype: str | None  #: "f32": out is not rounded to the inputs' f16 or bf16 (e4m3: to bf16)
    out: Array
    lse: Array
    lse_rounded: Array
    max_logits: Array


class SdpaBackward(Sdpa, total=False):
    """Options of sdpa_backward."""

    dlse: Array | None
    dq: Array
    dk: Array
    dv: Array
    dmask: Array
    dalibi: Array
    dsink: Array


class Sparse(Common, total=False):
    """Options of mla, mla_backward and dist."""

    q_start: int  #: causal: position of query 0
    k_stride: int  #: causal: tokens a key row
    topk_length: Array | None  #: i32 [SQ] or [B,SQ], slots in use
    joined: Array | None  #: the same lists, lengths and causal rule as mla_join gives them


class MlaForward(Sparse, total=False):
    """Options of mla."""

    out_dtype: str | None  #: "f32": out is not rounded to the inputs' f16 or bf16
    out: Array
    lse: Array
    max_logits: Array


class MlaBackward(Sparse, total=False):
    """Options of mla_backward."""

    dlse: Array | None
    dkv_dtype: str  #: "f32": dkv in f32, default as q
    accumulate: bool  #: add to the dkv that is given
    dist_norm: str  #: "sum" (default), "mean" or "l1", with "dist" among `want`
    dq: Array
    dkv: Array
    dsink: Array
    dist: Array


class Dist(Sparse, total=False):
    """Options of dist."""

    dist: Array


class Merge(TypedDict, total=False):
    """Options of merge."""

    out: Array
    lse: Array
    out_dtype: str | None  #: of a new out: "f32", "f16", "bf16" or "f64", default as the first part's
    lse_base_2: bool  #: every lse in base 2
    lse_empty_plus_inf: bool  #: lse of a row without keys is written +inf, else -inf
    dtype: str  #: "bf16": arrays of uint16 hold bf16
    stream: int  #: CUDA: address of the CUstream


class Join(TypedDict, total=False):
    """Options of mla_join."""

    causal: bool  #: hide keys past the diagonal
    q_start: int  #: causal: position of query 0
    k_stride: int  #: causal: tokens a key row
    topk_length: Array | None  #: i32 [SQ] or [B,SQ], slots in use
    union_limit: int  #: a group with more entries is left apart
    kernel: str  #: take only kernels whose name matches this pattern (* and ?)
    stream: int  #: CUDA: address of the CUstream
    joined: Array


Setter = Callable[[_abi.attn_problem, Any], None]


def flag(bit: int) -> Setter:
    """Option that sets a flag."""
    def set_flag(problem: _abi.attn_problem, value: Any) -> None:
        if value:
            problem.flags |= bit
    return set_flag


def field(name: str, bit: int = 0) -> Setter:
    """Option that is a number; None leaves it out."""
    def set_field(problem: _abi.attn_problem, value: Any) -> None:
        if value is not None:
            setattr(problem, name, value)
            problem.flags |= bit
    return set_field


def choice(name: str, option: str, words: Mapping[str, int]) -> Setter:
    """Option that is one of some words; None leaves it out."""
    def set_choice(problem: _abi.attn_problem, value: Any) -> None:
        if value is None:
            return
        if value not in words:
            raise error(_abi.ATTN_E_ENUM, f"{option} is {value!r}; expected one of {', '.join(words)}", option)
        setattr(problem, name, words[value])
    return set_choice


def _window(problem: _abi.attn_problem, value: Any) -> None:
    left, right = value
    field("window_left", _abi.ATTN_WINDOW_LEFT)(problem, left)
    field("window_right", _abi.ATTN_WINDOW_RIGHT)(problem, right)


def _elsewhere(problem: _abi.attn_problem, value: Any) -> None:
    """Option that is read where the call is made."""


def _dtype(problem: _abi.attn_problem, value: Any) -> None:
    if value != "bf16":
        raise error(_abi.ATTN_E_DTYPE, f"dtype is {value!r}; only \"bf16\" must be said, for arrays of uint16", "dtype")


COMMON: dict[str, Setter] = {
    "causal": flag(_abi.ATTN_CAUSAL),
    "scale": field("scale", _abi.ATTN_SCALE),
    "lse_base_2": flag(_abi.ATTN_LSE_BASE_2),
    "lse_empty_plus_inf": flag(_abi.ATTN_LSE_EMPTY_PLUS_INF),
    "deterministic": flag(_abi.ATTN_DETERMINISTIC),
    "dtype": _dtype,
    "kernel": _elsewhere,
    "stream": _elsewhere,
}
SDPA = COMMON | {
    "bottom_right": flag(_abi.ATTN_BOTTOM_RIGHT),
    "softcap": field("softcap"),
    "window": _window,
    "alibi_form": choice("alibi", "alibi_form", {"linear": _abi.ATTN_ALIBI_LINEAR, "distance": _abi.ATTN_ALIBI_DISTANCE}),
    "lse_with_sink": flag(_abi.ATTN_LSE_WITH_SINK),
    "max_seqlen_q": field("seq_q"),
    "max_seqlen_k": field("seq_k"),
    "fill_padding": flag(_abi.ATTN_FILL_PADDING),
}
_NORM = choice("dist_norm", "dist_norm", {"sum": _abi.ATTN_DIST_SUM, "mean": _abi.ATTN_DIST_MEAN, "l1": _abi.ATTN_DIST_L1})
_OUT_DTYPE = {"out_dtype": choice("out_dtype", "out_dtype", DTYPE_WORDS)}
SDPA_FORWARD = SDPA | _OUT_DTYPE
SPARSE = COMMON | {"q_start": field("q_start"), "k_stride": field("k_stride")}
JOIN = SPARSE | {"group": field("group"), "seq_k": field("seq_k"), "union_limit": field("union_limit")}
MLA_FORWARD = SPARSE | _OUT_DTYPE
MLA_BACKWARD = SPARSE | {"dkv_dtype": choice("dkv_dtype", "dkv_dtype", DTYPE_WORDS),
                         "accumulate": flag(_abi.ATTN_ACCUMULATE), "dist_norm": _NORM}
DIST = SPARSE | {"norm": _NORM}


def apply(problem: _abi.attn_problem, options: Mapping[str, Any], table: Mapping[str, Setter], call: str) -> None:
    """Set the fields and flags that the options ask for; a name that the operator lacks is refused."""
    for name, value in options.items():
        setter = table.get(name)
        if setter is None:
            known = [*table, *_abi.ROLES]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{call}() has no option {name}{hint}")
        try:
            setter(problem, value)
        except (TypeError, ValueError) as fault:
            raise error(_abi.ATTN_E_ARGUMENT, f"{name} is {value!r}: {fault}", name) from fault
