# SPDX-License-Identifier: MIT
"""Functions on torch tensors: sdpa with every feature, mla, dist, torch's own scaled_dot_product_attention."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import _abi
from .._errors import error
from . import _merge_op
from ._dense_op import OPTIONS, TENSORS, delta_of_summed
from ._sparse_op import SPARSE_OPTIONS
from ._tensors import call

_SDPA, _MLA = torch.ops.libattn.sdpa_fwd.default, torch.ops.libattn.mla_fwd.default
_SDPA_LOGITS = torch.ops.libattn.sdpa_fwd_logits.default


#: With as few keys the rounding of out shows in dq and dk, which are differences of dP and delta = out . dout (docs/numerics.md).
FEW_KEYS = 16


def _arguments(call: str, options: dict[str, Any], tensors: tuple[str, ...],
               table: dict[str, tuple[str, Any]], absent: tuple[str, ...] = ()) -> list[Any]:
    """Keyword options in the order of a schema; a name that is unknown, or absent from this call, is refused as Python does."""
    window = options.pop("window", None)
    if window is not None:
        options["window_left"], options["window_right"] = window
    unknown = [name for name in options if name not in tensors and (name not in table or name in absent)]
    if unknown:
        raise TypeError(f"{call}() has no option {unknown[0]}")
    return [options.get(name) for name in tensors] + [options.get(name, default) for name, (_, default) in table.items()]


def _autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """In an autocast region, tensors in its dtype, as torch's own attention does it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype, kept = torch.get_autocast_dtype(kind), (torch.float64, torch.float8_e4m3fn)
    return [x.to(dtype) if x.is_floating_point() and x.dtype not in kept else x for x in tensors]


def _keeps_summed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any], options: list[Any]) -> bool:
    """Whether out is kept in f32 for the backward: few keys, 16-bit inputs, and gradients of them wanted."""
    if q.dtype not in (torch.float16, torch.bfloat16) or given.get("out_dtype") or given.get("block_table") is not None:
        return False
    if not torch.is_grad_enabled() or not (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    n_keys = k.shape[-2] if given.get("max_seqlen_k") is None else given["max_seqlen_k"]
    return bool(n_keys <= FEW_KEYS) and delta_of_summed(given.get("sink"), tuple(options))


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False, return_max_logits: bool = False,
         **options: Any) -> Any:
    """Attention of q [B,HQ,SQ,D], k [B,HK,SK,D], v [B,HK,SK,DV] with autograd for q, k, v, mask, alibi, sink and through lse;
    with return_max_logits (out, lse, max_logits). out_dtype="f32" leaves out as it was summed: its gradient is rounded to q's
    dtype before the backward, and delta is formed of out as it is but where a sink is not in lse. So it is with up to 16 keys.

    Options as of libattn.sdpa: causal, bottom_right, scale, softcap, window, mask, alibi, alibi_form, sink, lse_with_sink,
    deterministic, lse_empty_plus_inf, out_dtype, seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, fill_padding, block_table; q_scale,
    k_scale, v_scale [B,H] of q, k, v in float8_e4m3fn, whose out is bf16 or f32 and which have no gradients.
    """
    q, k, v = _autocast(q, k, v)
    extra = _arguments("sdpa", options, TENSORS, OPTIONS)
    if not return_max_logits and _keeps_summed(q, k, v, options, extra[len(TENSORS):]):
        out, lse = _SDPA(q, k, v, *extra[:-1], "f32")
        return (out.to(q.dtype), lse) if return_lse else out.to(q.dtype)
    found = call(_SDPA_LOGITS if return_max_logits else _SDPA, (q, k, v, *extra[:len(TENSORS)]), *extra[len(TENSORS):])
    return found[0] if not (return_lse or return_max_logits) else tuple(found)


def mla(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, *, return_lse: bool = False,
        return_max_logits: bool = False, **options: Any) -> Any:
    """Sparse attention as libattn.mla, with autograd for q, kv and sink. Options: topk_length, joined, sink, causal, scale,
    q_start, k_stride, lse_base_2, lse_empty_plus_inf, deterministic, out_dtype, dkv_dtype.
    """
    q, kv = _autocast(q, kv)
    extra = _arguments("mla", options, ("topk_length", "joined", "sink"), SPARSE_OPTIONS)
    found = call(_MLA, (q, kv, indices, *extra[:3]), *extra[3:])
    return tuple(found) if return_max_logits else tuple(found[:2]) if return_lse else found[0]


def dist(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, lse: torch.Tensor, *, norm: str = "sum",
         **options: Any) -> torch.Tensor:
    """Attention of all heads together on every slot, as libattn.dist; a target, so without gradients."""
    q, kv, lse = q.detach(), kv.detach(), lse.detach()
    q, kv = _autocast(q, kv)
    found: torch.Tensor = torch.ops.libattn.dist(q, kv, indices, lse, norm,
                                                 *_arguments("dist", options, ("topk_length", "joined"), SPARSE_OPTIONS,
                                                             ("out_dtype", "dkv_dtype")))
    return found


def mla_join(indices: torch.Tensor, *, group: int, seq_k: int, topk_length: torch.Tensor | None = None,
             causal: bool = False, q_start: int = 0, k_stride: int = 0, union_limit: int = 0) -> torch.Tensor:
    """Joined lists of neighbouring queries, as libattn.mla_join; integers, so without gradients."""
    found: torch.Tensor = torch.ops.libattn.mla_join(indices, group, seq_k, topk_length, causal, q_start, k_stride,
                                                     union_limit)
    return found


def merge(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], *, out_dtype: str | None = None, lse_base_2: bool = False,
          lse_empty_plus_inf: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse over the keys of all parts from outs [..,DV] and lses [..], the results over keys of its own each, as
    libattn.merge; with gradients of both."""
    _merge_op.as_many(outs, lses)
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.libattn.merge(list(outs), list(lses), out_dtype, lse_base_2,
                                                                       lse_empty_plus_inf)
    return found


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
                                 scale: float | None = None, enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention: a boolean mask keeps where true, is_causal is aligned top-left."""
    if dropout_p > 0.0:
        raise error(_abi.ATTN_E_FEATURE, f"dropout_p is {dropout_p}: libattn has no dropout", "dropout_p")
    if attn_mask is not None and is_causal:
        raise RuntimeError("attn_mask and is_causal exclude each other, as in torch")
    if attn_mask is not None and attn_mask.dtype == torch.float64:
        raise error(_abi.ATTN_E_DTYPE, "attn_mask is float64: libattn adds masks of float32 or narrower", "attn_mask")
    rank = query.dim()
    if rank < 2 or key.dim() != rank or value.dim() != rank:
        raise error(_abi.ATTN_E_SHAPE, f"query, key and value have {rank}, {key.dim()} and {value.dim()} axes", "query")
    if rank < 4:  # [N,L,E] has no axis of heads: one head
        query, key, value = (x.view(*(1,) * (4 - rank), *x.shape).transpose(0, 1) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(1)
    shapes = query.shape, key.shape, value.shape
    batch = torch.broadcast_shapes(*(shape[:-3] for shape in shapes))  # type: ignore[no-untyped-call]
    heads = None if enable_gqa else torch.broadcast_shapes(*(s[-3:-2] for s in shapes))  # type: ignore[no-untyped-call]

    def four_axes(x: torch.Tensor) -> torch.Tensor:
        x = x.expand(*batch, *(heads or x.shape[-3:-2]), *x.shape[-2:])
        return x if rank <= 4 else x.flatten(0, -4)

    q, k, v = (four_axes(x) for x in (query, key, value))
    if attn_mask is not None and attn_mask.dim() > 4:
        attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-3:]).flatten(0, -4)
    out: torch.Tensor = sdpa(q, k, v, mask=attn_mask, causal=is_causal, scale=scale)
    if rank > 4:
        return out.reshape(*batch, *out.shape[1:])
    return out.transpose(0, 1).reshape(*out.transpose(0, 1).shape[4 - rank:]) if rank < 4 else out


class routed(TorchFunctionMode):
    """Context in which torch.nn.functional.scaled_dot_product_attention goes to libattn, however it was imported."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return scaled_dot_product_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
