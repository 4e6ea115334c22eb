# SPDX-License-Identifier: MIT
"""The interface of FlashMLA (flash_mla), as far as libattn serves it: the sparse forward, decoding on pages of bf16, dense
attention on packed sequences."""
from __future__ import annotations

from typing import Any

import torch

from ..torch import mla
from ._common import attention, refuse

__all__ = ["FlashMLASchedMeta", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func",
           "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata"]
Tensor = torch.Tensor


class FlashMLASchedMeta:
    """The library schedules by itself."""


def get_mla_metadata(*args: object, **words: object) -> tuple[FlashMLASchedMeta, None]:
    """What flash_mla_with_kvcache wants and libattn has no use for."""
    return FlashMLASchedMeta(), None


def flash_mla_sparse_fwd(q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int = 512,
                         attn_sink: Tensor | None = None, topk_length: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """q [SQ,HQ,576], kv [SK,1,576], indices i32 [SQ,1,TOPK]: out [SQ,HQ,512], max_logits and lse [SQ,HQ], lse natural and
    +inf on rows without keys."""
    refuse(d_v=d_v != 512)
    out, lse, top = mla(q, kv, indices, scale=sm_scale, sink=attn_sink, topk_length=topk_length, lse_empty_plus_inf=True,
                        return_max_logits=True)
    return out, top, lse


def flash_mla_with_kvcache(q: Tensor, k_cache: Tensor, block_table: Tensor | None, cache_seqlens: Tensor | None,
                           head_dim_v: int, tile_scheduler_metadata: object, num_splits: None = None,
                           softmax_scale: float | None = None, causal: bool = False, is_fp8_kvcache: bool = False,
                           indices: Tensor | None = None, attn_sink: Tensor | None = None,
                           extra_k_cache: Tensor | None = None, extra_indices_in_kvcache: Tensor | None = None,
                           topk_length: Tensor | None = None,
                           extra_topk_length: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q [B,SQ,HQ,576] on pages [PAGES,PAGE,HK,576]: out [B,SQ,HQ,512], lse [B,HQ,SQ], natural and +inf on rows without keys.

    All keys of a sequence, or those that indices i32 [B,SQ,TOPK] names. To the library both are lists of rows: pages become
    a list i32 [B*SQ,1,MAX_PAGES*PAGE] and a length, so that a key costs 4 bytes beside its 1152.
    """
    refuse(is_fp8_kvcache=is_fp8_kvcache, extra_k_cache=extra_k_cache is not None, head_dim_v=head_dim_v != 512)
    batch, rows, heads, width = q.shape
    page, key_heads = k_cache.shape[1:3]
    if indices is not None:
        slots = indices.reshape(batch * rows, 1, -1)
        lengths = None if topk_length is None else topk_length.repeat_interleave(rows)
    elif block_table is None or cache_seqlens is None:
        raise ValueError("block_table and cache_seqlens are missing, and no indices are given")
    else:
        slots, lengths = whole_sequences(block_table, cache_seqlens, page, rows, causal)
    out, lse = q.new_empty((batch, rows, heads, head_dim_v)), q.new_empty((batch, rows, heads), dtype=torch.float32)
    share = heads // key_heads
    for head in range(key_heads):
        mine = slice(head * share, (head + 1) * share)
        found, found_lse = mla(q[:, :, mine].reshape(batch * rows, share, width), k_cache[:, :, head].flatten(0, 1).unsqueeze(1),
                               slots, scale=softmax_scale, sink=None if attn_sink is None else attn_sink[mine],
                               topk_length=lengths, lse_empty_plus_inf=True, return_lse=True)
        out[:, :, mine], lse[:, :, mine] = found.view(batch, rows, share, -1), found_lse.view(batch, rows, share)
    return out, lse.transpose(1, 2)


def whole_sequences(block_table: Tensor, cache_seqlens: Tensor, page: int, rows: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Slots [B*SQ,1,MAX_PAGES*PAGE] of every key, and how many of them each query sees; the host does not wait for lengths."""
    first = block_table * page  # past a sequence's last page, which no query reaches, an entry may be anything
    slots = (first[:, :, None] + torch.arange(page, dtype=torch.int32, device=first.device)).flatten(1)
    later = torch.arange(rows - 1, -1, -1, dtype=torch.int32, device=first.device) * int(causal)
    lengths = (cache_seqlens[:, None] - later).clamp(min=0).flatten()
    return slots.int().repeat_interleave(rows, 0).unsqueeze(1), lengths.int()


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_qo: Tensor, cu_seqlens_kv: Tensor, max_seqlen_qo: int,
                           max_seqlen_kv: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                           deterministic: bool = False, is_varlen: bool = True) -> tuple[Tensor, Tensor]:
    """out [TOTALQ,HQ,DV] and lse [TOTALQ,HQ] of q [TOTALQ,HQ,D], k [TOTALK,HK,D], v [TOTALK,HK,DV], with gradients. is_varlen, a
    hint that lengths differ, changes no result."""
    refuse(dropout_p=dropout_p)
    out, lse = attention(q, k, v, scale=softmax_scale, causal=causal, window_size=(-1, -1), softcap=0.0, deterministic=deterministic,
                         cu_seqlens_q=cu_seqlens_qo, cu_seqlens_k=cu_seqlens_kv, max_seqlen_q=int(max_seqlen_qo),
                         max_seqlen_k=int(max_seqlen_kv))
    return out, lse.transpose(0, 1)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_qo: Tensor, cu_seqlens_kv: Tensor, max_seqlen_qo: int,
                                    max_seqlen_kv: int, head_dim_qk: int, *args: Any, **words: Any) -> tuple[Tensor, Tensor]:
    """kv [TOTALK,HK,D+DV]."""
    return flash_attn_varlen_func(q, kv[..., :head_dim_qk], kv[..., head_dim_qk:], cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo,
                                  max_seqlen_kv, *args, **words)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, head_dim_qk: int, *args: Any,
                                     **words: Any) -> tuple[Tensor, Tensor]:
    """qkv [TOTAL,H,D+D+DV]."""
    return flash_attn_varlen_kvpacked_func(qkv[..., :head_dim_qk], qkv[..., head_dim_qk:], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                           head_dim_qk, *args, **words)
