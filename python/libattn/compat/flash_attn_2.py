# SPDX-License-Identifier: MIT
"""The interface of FlashAttention 2 (flash_attn), as far as libattn serves it."""
from __future__ import annotations

from typing import Any

import torch

from ._cache import with_cache
from ._common import attention, refuse

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]
Window = tuple[int, int]


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
                    softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:
    """q [B,SQ,HQ,D], k and v [B,SK,HK,D]; with return_attn_probs (out, lse, None)."""
    refuse(dropout_p=dropout_p)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         alibi=alibi_slopes, deterministic=deterministic)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                           cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: torch.Tensor | None = None) -> Any:
    """q [TOTALQ,HQ,D], k and v [TOTALK,HK,D] or, with block_table, pages [PAGES,PAGE,HK,D]; lse is [HQ,TOTALQ]."""
    refuse(dropout_p=dropout_p)
    if block_table is None:
        keys = {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": int(max_seqlen_k)}
    else:
        keys = {"block_table": block_table, "seqlens_k": cu_seqlens_k.diff()}
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                         alibi=alibi_slopes, deterministic=deterministic, cu_seqlens_q=cu_seqlens_q,
                         max_seqlen_q=int(max_seqlen_q), **keys)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **words: Any) -> Any:
    """kv [B,SK,2,HK,D]."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **words)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **words: Any) -> Any:
    """qkv [B,S,3,H,D]."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **words)


def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **words: Any) -> Any:
    """kv [TOTALK,2,HK,D]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *args, **words)


def flash_attn_varlen_qkvpacked_func(qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args: Any,
                                     **words: Any) -> Any:
    """qkv [TOTAL,3,H,D]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **words)


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
                            v: torch.Tensor | None = None, rotary_cos: torch.Tensor | None = None,
                            rotary_sin: torch.Tensor | None = None, cache_seqlens: torch.Tensor | int | None = None,
                            cache_batch_idx: torch.Tensor | None = None, cache_leftpad: torch.Tensor | None = None,
                            block_table: torch.Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: torch.Tensor | None = None,
                            num_splits: int = 0, return_softmax_lse: bool = False) -> Any:
    """q [B,SQ,HQ,D] on a cache [B,S,HK,D] or pages [PAGES,PAGE,HK,D]; k and v are written behind cache_seqlens first.

    num_splits changes no result and is left to the library.
    """
    refuse(cache_batch_idx=block_table is not None and cache_batch_idx is not None,
           cache_leftpad=block_table is not None and cache_leftpad is not None)
    out, lse = with_cache(q, k_cache, v_cache, k, v, lengths=cache_seqlens, batch_idx=cache_batch_idx, leftpad=cache_leftpad,
                          table=block_table, rotary=(rotary_cos, rotary_sin, rotary_interleaved), scale=softmax_scale,
                          causal=causal, window_size=window_size, softcap=softcap, alibi=alibi_slopes)
    return (out, lse) if return_softmax_lse else out
