# SPDX-License-Identifier: MIT
"""Attention on a cache of keys and values in FlashAttention's conventions: [B,S,H,D], or pages [PAGES,PAGE,H,D].

New rows are rotated and written by torch before the call of the library. A cache whose sequences are picked by number, or
start late, is a pool of pages to the library: of a whole sequence, or of a single row; nothing is copied.
"""
from __future__ import annotations

from typing import Any

import torch

from ._common import attention, chunk_mask, refuse


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """A view that torch can index and join on every device: e4m3 as its bytes."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotary embedding of x [B,S,H,D], whose row s of sequence b is at position first[b] + s; columns past the tables' stay."""
    half = cos.shape[-1]
    position = first.long()[:, None] + torch.arange(x.shape[1], device=x.device)
    c, s = (as_bytes(table)[position].view(table.dtype).float().unsqueeze(2) for table in (cos, sin))
    turned, rest = x[..., :2 * half].float(), x[..., 2 * half:]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    parts = (a * c - b * s, a * s + b * c)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([as_bytes(joined.to(x.dtype)), as_bytes(rest)], -1).view(x.dtype)


def rotate_queries(q: torch.Tensor, *tables: Any, each_row: bool) -> torch.Tensor:
    """Each row at its own position (causal or windowed attention), else all rows of a sequence at its first."""
    if each_row:
        return rotate(q, *tables)
    return rotate(q.flatten(1, 2).unsqueeze(1), *tables).view_as(q)


def append(cache: torch.Tensor, new: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None,
           batch_idx: torch.Tensor | None, cu_new: torch.Tensor | None) -> None:
    """Write new rows [B,S,H,D], or packed [T,H,D] with cu_new, behind the first `lengths` rows of each sequence."""
    if cu_new is None:
        batch, count = new.shape[:2]
        sequence = torch.arange(batch, device=new.device).repeat_interleave(count)
        position = (lengths.long()[:, None] + torch.arange(count, device=new.device)).flatten()
        new = new.flatten(0, 1)
    else:
        row = torch.arange(len(new), device=new.device)
        sequence = torch.searchsorted(cu_new.long(), row, right=True) - 1
        position = lengths.long()[sequence] + row - cu_new.long()[sequence]
    if batch_idx is not None:
        sequence = batch_idx.long()[sequence]
    if table is not None:
        page = cache.shape[1]
        sequence, position = table.long()[sequence, position // page], position % page
    as_bytes(cache)[sequence, position] = as_bytes(new)


def with_cache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
               *, lengths: torch.Tensor | int | None, batch_idx: torch.Tensor | None, leftpad: torch.Tensor | None,
               table: torch.Tensor | None, rotary: tuple[Any, ...], scale: float | None, causal: bool,
               window_size: tuple[int, int], softcap: float, cu_q: torch.Tensor | None = None, max_q: int | None = None,
               cu_new: torch.Tensor | None = None, rotary_lengths: torch.Tensor | None = None,
               chunk: int = 0, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of q [B,SQ,HQ,D], or packed [T,HQ,D] with cu_q and max_q; rotary: (cos, sin, interleaved), cos None without."""
    batch = len(q) if cu_q is None else len(cu_q) - 1
    refuse(rotary_cos=rotary[0] is not None and (cu_q is not None or cu_new is not None or k is None))
    if isinstance(lengths, int):
        lengths = torch.full((batch,), lengths, dtype=torch.int32, device=q.device)
    if rotary[0] is not None or k is not None:
        if lengths is None or (k is None) != (v is None):
            raise ValueError("k and v are written behind cache_seqlens: all three are needed")
        first = lengths if rotary_lengths is None else rotary_lengths
        if rotary[0] is not None:
            cos, sin, interleaved = rotary
            each_row = causal or int(window_size[0]) >= 0 or int(window_size[1]) >= 0
            q = rotate_queries(q, cos, sin, first, interleaved, each_row=each_row)
            k = rotate(k, cos, sin, first, interleaved) if k is not None else None
        if k is not None and v is not None:
            append(k_cache, k, lengths, table, batch_idx, cu_new)
            append(v_cache, v, lengths, table, batch_idx, cu_new)
            lengths = lengths + (k.shape[1] if cu_new is None else cu_new.diff())
    if table is not None and batch_idx is not None:
        table = table[batch_idx.long()]
    elif batch_idx is not None:
        table = batch_idx.int()[:, None]
    elif table is None and cu_q is not None:
        table = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    if leftpad is not None:
        table, k_cache, v_cache, lengths = skip_rows(leftpad, table, k_cache, v_cache, lengths, batch)
    if table is not None:
        options["block_table"] = table
    if lengths is not None:
        options["seqlens_k"] = lengths.int()
    elif cu_q is not None and table is not None:
        options["seqlens_k"] = torch.full((batch,), table.shape[1] * k_cache.shape[1], dtype=torch.int32, device=q.device)
    longest = q.shape[1]
    if cu_q is not None:
        longest = len(q) if max_q is None else int(max_q)
        options.update(cu_seqlens_q=cu_q, max_seqlen_q=longest)
    if chunk:
        keys = k_cache.shape[1] * (1 if table is None else table.shape[1])
        options["mask"] = chunk_mask(chunk, longest, keys, None if cu_q is None else cu_q.diff(), lengths, q.device, causal)
    return attention(q, k_cache, v_cache, scale=scale, causal=causal, window_size=window_size, softcap=softcap, **options)


def skip_rows(leftpad: torch.Tensor, table: torch.Tensor | None, k_cache: torch.Tensor, v_cache: torch.Tensor,
              lengths: torch.Tensor | None, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first leftpad[b] rows of each sequence left out: pages of one row, and the table that says which."""
    page = k_cache.shape[1]
    for cache in (k_cache, v_cache):  # one row after the other through all pages
        refuse(cache_leftpad=len(cache) > 1 and cache.stride(0) != page * cache.stride(1))
    if table is None:
        table = torch.arange(batch, dtype=torch.int32, device=k_cache.device)[:, None]
    rows = table.shape[1] * page
    position = (leftpad.long()[:, None] + torch.arange(rows, device=k_cache.device)).clamp(max=rows - 1)
    one_row = table.long().gather(1, position // page) * page + position % page
    kept = (rows if lengths is None else lengths) - leftpad
    return one_row.int(), k_cache.flatten(0, 1).unsqueeze(1), v_cache.flatten(0, 1).unsqueeze(1), kept
