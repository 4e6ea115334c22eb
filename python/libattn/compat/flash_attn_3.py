# SPDX-License-Identifier: MIT
"""The interface of FlashAttention 3 (flash_attn_interface), as far as libattn serves it."""
from __future__ import annotations

from typing import Any

import torch

from ._cache import with_cache
from ._common import attention, chunk_mask, refuse

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]
Window = tuple[int, int]


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None,
                    causal: bool = False, qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None,
                    k_descale: torch.Tensor | None = None, v_descale: torch.Tensor | None = None,
                    window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
                    return_attn_probs: bool = False) -> Any:
    """q [B,SQ,HQ,D], k and v [B,SK,HK,D]; with return_attn_probs (out, lse). num_splits, pack_gqa and sm_margin change no
    result and are left to the library; attention_chunk makes a boolean mask of SQ x SK."""
    refuse(qv=qv is not None)
    mask = chunk_mask(attention_chunk, q.shape[1], k.shape[1], None, None, q.device, causal)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         deterministic=deterministic, mask=mask, descale=(q_descale, k_descale, v_descale))
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                           cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           seqused_q: torch.Tensor | None = None, seqused_k: torch.Tensor | None = None,
                           softmax_scale: float | None = None, causal: bool = False, qv: torch.Tensor | None = None,
                           q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                           v_descale: torch.Tensor | None = None, window_size: Window = (-1, -1), attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                           deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """q [TOTALQ,HQ,D], k and v [TOTALK,HK,D]; seqused: rows in use of each sequence; attention_chunk makes a boolean mask."""
    refuse(qv=qv is not None)
    mask = chunk_mask(attention_chunk, int(max_seqlen_q), int(max_seqlen_k), cu_seqlens_q.diff() if seqused_q is None else seqused_q,
                      cu_seqlens_k.diff() if seqused_k is None else seqused_k, q.device, causal)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         deterministic=deterministic, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                         max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k), seqlens_q=seqused_q,
                         seqlens_k=seqused_k, mask=mask, descale=(q_descale, k_descale, v_descale))
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
                            v: torch.Tensor | None = None, qv: torch.Tensor | None = None,
                            rotary_cos: torch.Tensor | None = None, rotary_sin: torch.Tensor | None = None,
                            cache_seqlens: torch.Tensor | int | None = None, cache_batch_idx: torch.Tensor | None = None,
                            cache_leftpad: torch.Tensor | None = None, page_table: torch.Tensor | None = None,
                            cu_seqlens_q: torch.Tensor | None = None, cu_seqlens_k_new: torch.Tensor | None = None,
                            max_seqlen_q: int | None = None, rotary_seqlens: torch.Tensor | None = None,
                            q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                            v_descale: torch.Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                            window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
                            rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False) -> Any:
    """q [B,SQ,HQ,D] or, with cu_seqlens_q, [TOTALQ,HQ,D] on a cache [B,S,HK,D] or pages [PAGES,PAGE,HK,D]; k and v, packed with
    cu_seqlens_k_new, are written behind cache_seqlens first. attention_chunk makes a boolean mask, hints change no result."""
    refuse(qv=qv is not None)
    out, lse = with_cache(q, k_cache, v_cache, k, v, lengths=cache_seqlens, batch_idx=cache_batch_idx, leftpad=cache_leftpad,
                          table=page_table, rotary=(rotary_cos, rotary_sin, rotary_interleaved), scale=softmax_scale,
                          causal=causal, window_size=window_size, softcap=softcap, cu_q=cu_seqlens_q, max_q=max_seqlen_q,
                          cu_new=cu_seqlens_k_new, rotary_lengths=rotary_seqlens, chunk=attention_chunk,
                          descale=(q_descale, k_descale, v_descale))
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(*args: Any, **words: Any) -> None:
    """The library schedules by itself."""
