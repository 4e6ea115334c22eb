# SPDX-License-Identifier: MIT
"""The interface of FlashMLA (flash_mla), as far as libattn serves it: the sparse forward."""
from __future__ import annotations

from typing import Any

import torch

from ..torch import mla
from ._common import refuse

__all__ = ["flash_mla_sparse_fwd", "flash_mla_with_kvcache"]


def flash_mla_sparse_fwd(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int = 512,
                         attn_sink: torch.Tensor | None = None,
                         topk_length: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [SQ,HQ,576], kv [SK,1,576], indices i32 [SQ,1,TOPK]: out [SQ,HQ,512], max_logits and lse [SQ,HQ], lse natural and
    +inf on rows without keys."""
    refuse(d_v=d_v != 512)
    out, lse, top = mla(q, kv, indices, scale=sm_scale, sink=attn_sink, topk_length=topk_length, lse_empty_plus_inf=True,
                        return_max_logits=True)
    return out, top, lse


def flash_mla_with_kvcache(*args: Any, **words: Any) -> Any:
    """Decoding on pages."""
    refuse(flash_mla_with_kvcache=True)
