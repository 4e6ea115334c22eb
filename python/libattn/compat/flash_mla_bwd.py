# SPDX-License-Identifier: MIT
"""The interface of FlashMLA's forks with a sparse backward (flash_mla_bwd)."""
from __future__ import annotations

import torch

from ._common import mla_backward, refuse

__all__ = ["flash_mla_sparse_bwd"]
Tensor = torch.Tensor


def flash_mla_sparse_bwd(q: Tensor, kv: Tensor, o: Tensor, dO: Tensor, indices: Tensor, lse: Tensor,
                         sm_scale: float | None = None, d_v: int = 512, topk_length: Tensor | None = None,
                         q_start_index_s: int = 0, fast_mode: bool = False) -> tuple[Tensor, Tensor]:
    """dQ [SQ,HQ,576] and dKV [SK,1,576], in their inputs' dtype, from indices i32 [SQ,1,TOPK] and a natural lse [SQ,HQ].

    As there, query i sees keys up to q_start_index_s + i. fast_mode changes no result.
    """
    refuse(d_v=d_v != 512)
    dq, dkv, _ = mla_backward(q, kv, o, dO, indices, lse, topk_length=topk_length, scale=sm_scale, causal=True,
                              q_start=q_start_index_s)
    return dq, dkv
