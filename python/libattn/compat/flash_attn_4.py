# SPDX-License-Identifier: MIT
"""The interface of FlashAttention 4 (flash_attn.cute), as far as libattn serves it.

A window's None is no bound; lse includes the sink and is -inf on rows without keys.
"""
from __future__ import annotations

from typing import Any

import torch

from ..torch import sdpa
from ._common import heads_first, refuse

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "get_scheduler_metadata"]
Tensor = torch.Tensor
Window = tuple[int | None, int | None]


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window: Window, sink: Tensor | None,
              softcap: float, deterministic: bool, **options: Any) -> tuple[Tensor, Tensor]:
    """out in q's shape, and lse [B,H,S] or [H,T]."""
    if sink is not None:
        options.update(sink=sink.float(), lse_with_sink=True)
    out, lse = sdpa(heads_first(q), heads_first(k), heads_first(v), return_lse=True, scale=scale, causal=causal,
                    bottom_right=True, window=tuple(window), softcap=softcap, deterministic=deterministic, **options)
    return heads_first(out), lse


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None, gather_kv_indices: Tensor | None = None,
                    softmax_scale: float | None = None, causal: bool = False, window_size: Window = (None, None),
                    learnable_sink: Tensor | None = None, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: bool | None = None, deterministic: bool = False, score_mod: Any = None,
                    score_mod_bwd: Any = None, mask_mod: Any = None, aux_tensors: Any = None, aux_scalars: Any = None,
                    block_sparse_tensors: Any = None, block_sparse_tensors_bwd: Any = None,
                    return_lse: bool = False) -> tuple[Tensor, Tensor]:
    """out and lse of q [B,SQ,HQ,D], k [B,SK,HK,D], v [B,SK,HK,DV]. num_splits and pack_gqa change no result and are left to the
    library, which gives lse at any time."""
    refuse(qv=qv is not None, gather_kv_indices=gather_kv_indices is not None, score_mod=score_mod is not None,
           mask_mod=mask_mod is not None, block_sparse_tensors=block_sparse_tensors is not None)
    return attention(q, k, v, softmax_scale, causal, window_size, learnable_sink, softcap, deterministic)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
                           cu_seqlens_k: Tensor | None = None, max_seqlen_q: int | None = None,
                           max_seqlen_k: int | None = None, min_seqlen_k: int | None = None,
                           seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
                           gather_kv_indices: Tensor | None = None, page_table: Tensor | None = None,
                           softmax_scale: float | None = None, causal: bool = False, window_size: Window = (None, None),
                           learnable_sink: Tensor | None = None, softcap: float = 0.0, num_splits: int = 1,
                           pack_gqa: bool | None = None, deterministic: bool = False, score_mod: Any = None,
                           score_mod_bwd: Any = None, mask_mod: Any = None, block_sparse_tensors: Any = None,
                           aux_tensors: Any = None, aux_scalars: Any = None, return_lse: bool = False,
                           scheduler_metadata: Any = None, seqlen_k_per_split: int | None = None,
                           disable_scheduler_metadata: bool = False) -> tuple[Tensor, Tensor]:
    """out and lse of packed sequences, of [B,S,H,D] with rows in use, and of either on pages [PAGES,PAGE,HK,D]. Packed queries on
    keys [B,SK,HK,D] have no gradients, as on pages; packed keys want packed queries."""
    refuse(qv=qv is not None, gather_kv_indices=gather_kv_indices is not None, score_mod=score_mod is not None,
           mask_mod=mask_mod is not None, block_sparse_tensors=block_sparse_tensors is not None,
           cu_seqlens_k=cu_seqlens_k is not None and (cu_seqlens_q is None or page_table is not None))
    options: dict[str, Any] = {"seqlens_q": seqused_q, "seqlens_k": seqused_k, "block_table": page_table}
    if cu_seqlens_q is not None:
        options.update(cu_seqlens_q=cu_seqlens_q, max_seqlen_q=len(q) if max_seqlen_q is None else int(max_seqlen_q))
        if cu_seqlens_k is not None:
            options.update(cu_seqlens_k=cu_seqlens_k, max_seqlen_k=len(k) if max_seqlen_k is None else int(max_seqlen_k))
        elif page_table is None:  # a sequence of keys is a page
            refuse(cu_seqlens_q=torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
            options["block_table"] = torch.arange(len(k), dtype=torch.int32, device=k.device)[:, None]
        if cu_seqlens_k is None and seqused_k is None:
            keys = k.shape[1] * (1 if page_table is None else page_table.shape[1])
            options["seqlens_k"] = torch.full((len(cu_seqlens_q) - 1,), keys, dtype=torch.int32, device=k.device)
    return attention(q, k, v, softmax_scale, causal, window_size, learnable_sink, softcap, deterministic, **options)


def get_scheduler_metadata(*args: Any, **words: Any) -> None:
    """The library schedules by itself."""
