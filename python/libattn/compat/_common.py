# SPDX-License-Identifier: MIT
"""FlashAttention's conventions on libattn.torch: [B,S,H,D] or packed [T,H,D], diagonal at the bottom right, -1 for no bound,
ALiBi by distance, lse natural and +inf on rows without keys."""
from __future__ import annotations

from typing import Any

import torch

from .. import _abi
from .._errors import error
from ..torch import sdpa


def refuse(**features: Any) -> None:
    """Raise for features that were asked for and are not served."""
    for name, asked in features.items():
        if asked:
            raise error(_abi.ATTN_E_FEATURE, f"{name} is not served by libattn", name)


def window(size: tuple[int, int]) -> tuple[int | None, int | None]:
    """-1 is no bound."""
    left, right = (None if int(side) < 0 else int(side) for side in size)
    return left, right


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """[B,S,H,D] as [B,H,S,D], [T,H,D] as [H,T,D]."""
    return x.transpose(-2, -3)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None, causal: bool,
              window_size: tuple[int, int], softcap: float, alibi: torch.Tensor | None = None,
              deterministic: bool = False, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out in q's shape, and lse [B,H,S] or [H,T]."""
    if alibi is not None:
        options.update(alibi=alibi, alibi_form="distance")
    out, lse = sdpa(heads_first(q), heads_first(k), heads_first(v), return_lse=True, scale=scale, causal=causal,
                    bottom_right=True, window=window(window_size), softcap=softcap, deterministic=deterministic,
                    lse_empty_plus_inf=True, **options)
    return heads_first(out), lse


def append(cache: torch.Tensor, new: torch.Tensor, lengths: torch.Tensor, block_table: torch.Tensor | None) -> None:
    """Write new rows [B,S,H,D] after the first `lengths` rows of each sequence of a cache [B,S,H,D] or of pages."""
    positions = lengths.long()[:, None] + torch.arange(new.shape[1], device=new.device)
    if block_table is None:
        cache[torch.arange(len(new), device=new.device)[:, None], positions] = new
    else:
        pages = block_table.long().gather(1, positions // cache.shape[1])
        cache[pages, positions % cache.shape[1]] = new
