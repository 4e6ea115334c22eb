# SPDX-License-Identifier: MIT
"""The functions of TileLang's examples for packed sequences (examples/dsa_sparse_finetune).

q [S,H,576], kv [S,1,576]; offsets i32 [B+1] are where the sequences begin, the last is S; indices i32 [S,1,TOPK] count within
a sequence, and a query sees keys up to its own; lse [S,H], natural. To the library the lists are of rows of all sequences
together: nothing waits for the offsets.
"""
from __future__ import annotations

import torch

from ..torch import dist, mla
from ._common import mla_backward, refuse

__all__ = ["sparse_mla_bwd", "sparse_mla_fwd_interface", "sparse_mla_topk_reducesum_interface"]
Tensor = torch.Tensor


def rows_of_all(indices: Tensor, offsets: Tensor) -> Tensor:
    """Indices into all sequences together, -1 where a slot names no key that the query sees."""
    token = torch.arange(indices.shape[0], dtype=torch.int32, device=indices.device)
    sequence = torch.searchsorted(offsets, token, right=True, out_int32=True) - 1
    first = offsets[sequence].view(-1, 1, 1)
    seen = (indices >= 0) & (indices <= token.view(-1, 1, 1) - first)
    return torch.where(seen, indices + first, -1).int()


@torch.no_grad()
def sparse_mla_fwd_interface(q: Tensor, kv: Tensor, indices: Tensor, offsets: Tensor, sm_scale: float | None = None,
                             return_p_sum: bool = False, d_v: int = 512, block_I: int = 32, num_stages: int = 2,
                             threads: int = 128) -> tuple[Tensor, Tensor]:
    """out [S,H,512] and lse; a row without keys is 0 with an lse of -inf."""
    refuse(return_p_sum=return_p_sum, d_v=d_v != 512, kv_group=kv.shape[-2] != 1)
    out, lse = mla(q, kv, rows_of_all(indices, offsets), scale=sm_scale, return_lse=True)
    return out, lse


@torch.no_grad()
def sparse_mla_bwd(q: Tensor, kv: Tensor, o: Tensor, do: Tensor, indices: Tensor, lse: Tensor, offsets: Tensor,
                   sm_scale: float | None = None, is_casual: bool = True, return_kernel: bool = False,
                   delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """dq and dkv, in kv's dtype."""
    refuse(return_kernel=return_kernel, delta=delta is not None, is_casual=not is_casual, kv_group=kv.shape[-2] != 1)
    dq, dkv, _ = mla_backward(q, kv, o, do, rows_of_all(indices, offsets), lse, scale=sm_scale)
    return dq, dkv


@torch.no_grad()
def sparse_mla_topk_reducesum_interface(q: Tensor, kv: Tensor, topk_indices: Tensor, lse: Tensor, offsets: Tensor,
                                        dim_v: int) -> Tensor:
    """Attention of all heads together on every slot, [S,1,TOPK], each row adding up to 1; a row without keys is 0."""
    refuse(dim_v=dim_v != 512)
    return dist(q, kv, rows_of_all(topk_indices, offsets), lse, norm="l1").unsqueeze(1)
