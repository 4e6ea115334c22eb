# SPDX-License-Identifier: MIT
"""The interface of cuDNN frontend's sparse attention (cudnn.DSA), as far as libattn serves it: the backward."""
from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from .. import _abi, _sparse
from .._engine import run
from ..torch import _tensors
from ..torch._tensors import scratch, unit
from ._common import refuse

__all__ = ["DSA", "sparse_attention_backward_wrapper"]


class TupleDict(dict[str, torch.Tensor]):
    """Results by name, by number and by unpacking."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __getitem__(self, key: str | int) -> torch.Tensor:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


@torch.no_grad()
def sparse_attention_backward_wrapper(
        q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor,
        attn_sink: torch.Tensor, topk_idxs: torch.Tensor, softmax_scale: float | None = None,
        topk_length: torch.Tensor | None = None, dq: torch.Tensor | None = None, dkv: torch.Tensor | None = None,
        block_tile: int = 64, stream: Any = None, deterministic: bool = False) -> TupleDict:
    """dq, dkv and d_sink of q [SQ,HQ,D], kv [SK,D], out and dout [SQ,HQ,512], lse f32 [SQ,HQ] (natural, without the
    sink), attn_sink f32 [HQ], topk_idxs i32 [SQ,TOPK], topk_length i32 [SQ]; dq and dkv are written if given.

    Invalid slots may stand anywhere. block_tile changes no result; work goes to torch's current stream, and `stream` is
    refused.
    """
    refuse(stream=stream is not None)
    inputs = {"q": unit(q), "kv": unit(kv).unsqueeze(1), "indices": unit(topk_idxs).unsqueeze(1), "out": unit(out),
              "lse": lse, "dout": unit(dout), "sink": attn_sink}
    if topk_length is not None:
        inputs["topk_length"] = topk_length
    dq = torch.empty_like(q) if dq is None else dq
    dkv = torch.empty_like(kv) if dkv is None else dkv
    d_sink = torch.empty_like(attn_sink)
    outputs = {"dq": dq, "dkv": dkv.unsqueeze(1), "dsink": d_sink}
    options = {"scale": softmax_scale, "deterministic": deterministic} | _tensors.stream(q)
    run(_sparse.build_backward, _abi.ATTN_OP_MLA_BWD, inputs, outputs, tuple(outputs), options, scratch)
    return TupleDict(dq=dq, dkv=dkv, d_sink=d_sink)


DSA = types.SimpleNamespace(sparse_attention_backward_wrapper=sparse_attention_backward_wrapper)
