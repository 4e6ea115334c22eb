# SPDX-License-Identifier: MIT
"""The functions of DeepSeek-V4's sparse attention in TileLang (radixark/miles, miles_plugins/models/deepseek_v4/ops/kernel),
of which other frameworks keep copies.

q [B,S,H,512], kv [B,SK,512], attn_sink f32 [H], topk_idxs i32 [B,S,TOPK]; the indices alone say what a query sees. lse [B,S,H]
is in base 2 and includes the sink. Hints about blocks, stages and threads change no result and are left to the library.
"""
from __future__ import annotations

import math

import torch

from ..torch import mla
from ._common import mla_backward

__all__ = ["sparse_attn_tilelang", "sparse_mqa_bwd_interface", "sparse_mqa_fwd_interface"]
Tensor = torch.Tensor
_LOG2_E = 1 / math.log(2)


def sparse_attn_tilelang(q: Tensor, kv: Tensor, attn_sink: Tensor, topk_idxs: Tensor, sm_scale: float | None = None) -> Tensor:
    """out [B,S,H,512], with gradients of q, kv and attn_sink."""
    out: Tensor = mla(q, kv.unsqueeze(2), topk_idxs.unsqueeze(2), sink=attn_sink, scale=sm_scale)
    return out


@torch.no_grad()
def sparse_mqa_fwd_interface(q: Tensor, kv: Tensor, attn_sink: Tensor, topk_idxs: Tensor, sm_scale: float | None = None,
                             block_I: int = 64, num_stages: int = 2, threads: int = 256) -> tuple[Tensor, Tensor]:
    """out and lse."""
    out, lse = mla(q, kv.unsqueeze(2), topk_idxs.unsqueeze(2), sink=attn_sink, scale=sm_scale, lse_base_2=True, return_lse=True)
    return out, torch.logaddexp2(lse, attn_sink * _LOG2_E)


@torch.no_grad()
def sparse_mqa_bwd_interface(q: Tensor, kv: Tensor, attn_sink: Tensor, o: Tensor, do: Tensor, topk_idxs: Tensor, lse: Tensor,
                             sm_scale: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dkv in kv's dtype, and the gradient of attn_sink.

    The given lse has the sink, so probabilities follow from it without one: dq and dkv are those of a backward without sink.
    """
    dq, dkv, _ = mla_backward(q, kv.unsqueeze(2), o, do, topk_idxs.unsqueeze(2), lse, scale=sm_scale, lse_base_2=True)
    delta = (o.float() * do.float()).sum(-1)
    d_attn_sink = -(delta * torch.exp2(attn_sink * _LOG2_E - lse)).flatten(0, -2).sum(0)
    return dq, dkv.squeeze(2), d_attn_sink.to(attn_sink.dtype)
