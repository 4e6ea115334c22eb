# SPDX-License-Identifier: MIT
"""FlashAttention's conventions on libattn.torch: [B,S,H,D] or packed [T,H,D], diagonal at the bottom right, -1 for no bound,
ALiBi by distance, lse natural and +inf on rows without keys."""
from __future__ import annotations

from typing import Any

import torch

from .. import _abi
from .._errors import error
from ..torch import sdpa
from ..torch._functional import _arguments
from ..torch._sparse_op import SPARSE_OPTIONS


def refuse(**features: Any) -> None:
    """Raise for features that were asked for and are not served."""
    for name, asked in features.items():
        if asked:
            raise error(_abi.ATTN_E_FEATURE, f"{name} is not served by libattn", name)


def window(size: tuple[int, int]) -> tuple[int | None, int | None]:
    """-1 is no bound."""
    left, right = (None if int(side) < 0 else int(side) for side in size)
    return left, right


def chunk_mask(chunk: int, sq: int, sk: int, lengths_q: torch.Tensor | None, lengths_k: torch.Tensor | None,
               device: torch.device) -> torch.Tensor:
    """attention_chunk as a boolean mask [B or 1,1,SQ,SK]: a query sees the keys of its own chunk of `chunk` positions."""
    one = torch.zeros(1, dtype=torch.long, device=device)
    offset = (one + sk if lengths_k is None else lengths_k.long()) - (one + sq if lengths_q is None else lengths_q.long())
    position = torch.arange(sq, device=device)[:, None] + offset[:, None, None]
    first, key = position - position % chunk, torch.arange(sk, device=device)
    return ((key >= first) & (key < first + chunk))[:, None]


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


@torch.no_grad()
def mla_backward(q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, dout: torch.Tensor, indices: torch.Tensor, lse: torch.Tensor,
                 *, topk_length: torch.Tensor | None = None, **options: Any) -> tuple[torch.Tensor, ...]:
    """dq, dkv and a tensor without elements, for interfaces that keep what the backward needs themselves."""
    found: tuple[torch.Tensor, ...] = torch.ops.libattn.mla_bwd(dout, None, q, kv, indices, out, lse, [True, True, False], topk_length,
                                                                None, None, *_arguments("mla_backward", options, (), SPARSE_OPTIONS))
    return found
