# SPDX-License-Identifier: MIT
"""FlashAttention's conventions on libattn.torch: [B,S,H,D] or packed [T,H,D], diagonal at the bottom right, -1 for no bound,
ALiBi by distance, lse natural and +inf on rows without keys."""
from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from .. import _abi
from .._errors import UnsupportedError, error
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
               device: torch.device, causal: bool) -> torch.Tensor | None:
    """attention_chunk as a boolean mask [B or 1,1,SQ,SK]: a query sees the keys of its own chunk of `chunk` positions. None where the
    first chunk holds all keys, and every query that sees any; 0 is off."""
    if not chunk or chunk >= sk and (causal or lengths_q is None and lengths_k is None and sq <= sk):
        return None
    one = torch.zeros(1, dtype=torch.long, device=device)
    offset = (one + sk if lengths_k is None else lengths_k.long()) - (one + sq if lengths_q is None else lengths_q.long())
    position = torch.arange(sq, device=device)[:, None] + offset[:, None, None]
    first, key = position - position % chunk, torch.arange(sk, device=device)
    return ((key >= first) & (key < first + chunk))[:, None]


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """[B,S,H,D] as [B,H,S,D], [T,H,D] as [H,T,D]."""
    return x.transpose(-2, -3)


class _ForwardAlone(torch.autograd.Function):
    """out of e4m3 tensors, some of which ask for gradients: those are refused when they are computed, as in the original."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, lse: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.mark_non_differentiable(lse)
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise error(_abi.ATTN_E_FEATURE, "q is float8_e4m3fn, which has no gradients: attention of e4m3 is a forward alone", "q")


def e4m3_scales(q: torch.Tensor, k: torch.Tensor, descale: tuple[torch.Tensor | None, ...], batch: int) -> dict[str, Any]:
    """Options of sdpa for q, k, v in e4m3, from q_descale, k_descale and v_descale [B,HK] (None: 1): a number of q_descale is
    that of all query heads on one key head. Refused beside other dtypes, in which they would say nothing."""
    names = ("q_descale", "k_descale", "v_descale")
    if q.dtype != torch.float8_e4m3fn:
        refuse(**{name: x is not None for name, x in zip(names, descale)})
        return {}
    found, heads = {}, k.shape[-2]
    for name, x in zip(names, descale):
        if x is not None and (x.dtype != torch.float32 or x.shape != (batch, heads)):
            raise ValueError(f"{name} is {x.dtype} {tuple(x.shape)}, expected torch.float32 {(batch, heads)}: of each sequence and key head")
        one = torch.ones((), device=q.device).expand(batch, heads) if x is None else x
        if name == "q_descale":
            one = one.unsqueeze(-1).expand(batch, heads, q.shape[-2] // heads).flatten(1)
        found[name.replace("descale", "scale")] = one
    return found


def e4m3_refusal(fault: UnsupportedError, q: torch.Tensor, v: torch.Tensor, softcap: float, options: dict[str, Any]) -> Exception:
    """The refusal by every kernel, by the name of the argument that those of a GPU lack in e4m3; else as it is."""
    asked = {"attention_chunk": options.get("mask") is not None, "softcap": softcap > 0, "page_table": "block_table" in options,
             "q": max(q.shape[-1], v.shape[-1]) > 128 or q.shape[-1] % 2 > 0 or v.shape[-1] % 2 > 0}
    name = next((name for name, given in asked.items() if given), "")
    if fault.status != _abi.ATTN_E_NO_KERNEL or not name:
        return fault
    what = "head dims that are odd or above 128" if name == "q" else name
    return error(fault.status, f"{what}: not in e4m3 on this device: {fault.text}", name)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None, causal: bool,
              window_size: tuple[int, int], softcap: float, alibi: torch.Tensor | None = None,
              deterministic: bool = False, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out in q's shape, and lse [B,H,S] or [H,T]. Options of sdpa, and descale: of q, k and v, see e4m3_scales."""
    if alibi is not None:
        options.update(alibi=alibi, alibi_form="distance")
    cu = options.get("cu_seqlens_q")
    scales = e4m3_scales(q, k, options.pop("descale", ()), len(q) if cu is None else len(cu) - 1)
    alone = bool(scales) and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    try:
        with torch.no_grad() if alone else nullcontext():
            out, lse = sdpa(heads_first(q), heads_first(k), heads_first(v), return_lse=True, scale=scale, causal=causal,
                            bottom_right=True, window=window(window_size), softcap=softcap, deterministic=deterministic,
                            lse_empty_plus_inf=True, **scales, **options)
    except UnsupportedError as fault:
        raise (e4m3_refusal(fault, q, v, softcap, options) if scales else fault) from None
    if alone:
        refusing: Any = _ForwardAlone.apply
        out, lse = refusing(out, lse, q, k, v)
    return heads_first(out), lse


@torch.no_grad()
def mla_backward(q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, dout: torch.Tensor, indices: torch.Tensor, lse: torch.Tensor,
                 *, topk_length: torch.Tensor | None = None, **options: Any) -> tuple[torch.Tensor, ...]:
    """dq, dkv and a tensor without elements, for interfaces that keep what the backward needs themselves."""
    found: tuple[torch.Tensor, ...] = torch.ops.libattn.mla_bwd(dout, None, q, kv, indices, out, lse, [True, True, False], topk_length,
                                                                None, None, *_arguments("mla_backward", options, (), SPARSE_OPTIONS))
    return found
