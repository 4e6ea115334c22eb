# SPDX-License-Identifier: MIT
"""The interface of FlashAttention 3 (flash_attn_interface), as far as libattn serves it."""
from __future__ import annotations

from typing import Any

import torch

from ._common import attention, refuse

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
Window = tuple[int, int]


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None,
                    causal: bool = False, qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None,
                    k_descale: torch.Tensor | None = None, v_descale: torch.Tensor | None = None,
                    window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
                    return_attn_probs: bool = False) -> Any:
    """q [B,SQ,HQ,D], k and v [B,SK,HK,D]; with return_attn_probs (out, lse). num_splits, pack_gqa and sm_margin change no
    result and are left to the library."""
    refuse(qv=qv is not None, q_descale=q_descale is not None, k_descale=k_descale is not None,
           v_descale=v_descale is not None, attention_chunk=attention_chunk)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         deterministic=deterministic)
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                           cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           seqused_q: torch.Tensor | None = None, seqused_k: torch.Tensor | None = None,
                           softmax_scale: float | None = None, causal: bool = False, qv: torch.Tensor | None = None,
                           q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                           v_descale: torch.Tensor | None = None, window_size: Window = (-1, -1), attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                           deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """q [TOTALQ,HQ,D], k and v [TOTALK,HK,D]; seqused: rows in use of each sequence."""
    refuse(qv=qv is not None, q_descale=q_descale is not None, k_descale=k_descale is not None,
           v_descale=v_descale is not None, attention_chunk=attention_chunk)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         deterministic=deterministic, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                         max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k), seqlens_q=seqused_q,
                         seqlens_k=seqused_k)
    return (out, lse) if return_attn_probs else out
