# SPDX-License-Identifier: MIT
"""The functions of TileLang's DeepSeek-V3.2 examples (examples/deepseek_v32), of which training frameworks keep copies.

q [B,S,H,576], kv [B,SK,1,576], indices i32 [B,S,1,TOPK]; a query sees keys up to its own number; lse [B,S,H] in base 2. Work
goes to torch's current stream. Hints about blocks, stages and threads change no result and are left to the library.
"""
from __future__ import annotations

import torch

from ..torch import mla
from ._common import mla_backward, refuse

__all__ = ["sparse_mla_bwd", "sparse_mla_fwd_interface"]
Tensor = torch.Tensor


@torch.no_grad()
def sparse_mla_fwd_interface(q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float | None = None, return_p_sum: bool = False,
                             d_v: int = 512, block_I: int = 64, num_stages: int = 2, threads: int = 256) -> tuple[Tensor, Tensor]:
    """out [B,S,H,512] and lse; a row without keys is 0 with an lse of -inf, where the original divides 0 by 0."""
    refuse(return_p_sum=return_p_sum, d_v=d_v != 512, kv_group=kv.shape[-2] != 1)
    out, lse = mla(q, kv, indices, scale=sm_scale, causal=True, lse_base_2=True, return_lse=True)
    return out, lse


def sparse_mla_bwd(q: Tensor, kv: Tensor, o: Tensor, do: Tensor, indices: Tensor, lse: Tensor, sm_scale: float | None = None,
                   is_casual: bool = True, return_kernel: bool = False, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """dq and dkv, in kv's dtype; slots that name no key, -1 say, may stand anywhere."""
    refuse(return_kernel=return_kernel, delta=delta is not None, kv_group=kv.shape[-2] != 1)
    dq, dkv, _ = mla_backward(q, kv, o, do, indices, lse, scale=sm_scale, causal=is_casual, lse_base_2=True)
    return dq, dkv
