# SPDX-License-Identifier: MIT
"""sdpa, mla, dist and mla_join on JAX arrays, with gradients by custom_vjp."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from .. import _abi, _options
from .._errors import error
from ._call import Spec, primitive

SDPA_TENSORS = ("mask", "alibi", "sink", "seqlens_q", "seqlens_k", "q_scale", "k_scale", "v_scale")
SDPA_OPTIONS = frozenset(_options.SDPA) - {"dtype", "kernel", "stream", "max_seqlen_q", "max_seqlen_k", "fill_padding"}
SPARSE_TENSORS = ("topk_length", "joined", "sink")
SPARSE_OPTIONS = frozenset(_options.SPARSE) - {"dtype", "kernel", "stream"}
JOIN_OPTIONS = frozenset(("causal", "q_start", "k_stride", "union_limit"))
_LEARNED = frozenset(("q", "k", "v", "kv", "mask", "alibi", "sink"))


@functools.lru_cache(maxsize=1024)
def attention(forward: int, backward: int, roles: tuple[str, ...], options: tuple[tuple[str, Any], ...], swapped: bool,
              wanted: tuple[str, ...]) -> Callable[..., tuple[jax.Array, ...]]:
    """The forward of one operator, whose gradients the backward makes: of those arrays alone that are differentiated."""
    @functools.partial(jax.custom_vjp)
    def attend(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return primitive(Spec(forward, roles, wanted, options, swapped))(*arrays)

    def run(*primals: Any) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
        arrays = tuple(primal.value for primal in primals)
        if arrays[0].dtype == jnp.float8_e4m3fn:
            raise error(_abi.ATTN_E_FEATURE, "q is float8_e4m3fn, which has no gradients: sdpa of e4m3 is a forward alone", "q")
        outputs = wanted if "lse" in wanted else (*wanted, "lse")
        found = primitive(Spec(forward, roles, outputs, options, swapped))(*arrays)
        by_role = dict(zip(outputs, found))
        # What is differentiated is known now and must be known later: None and () are structure, not data.
        differentiated = tuple(() if primal.perturbed else None for primal in primals)
        return tuple(found[:len(wanted)]), (arrays, by_role["out"], by_role["lse"], differentiated)

    def gradients(saved: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays, out, lse, differentiated = saved
        by_role = dict(zip(wanted, cotangents))
        dout, dlse = by_role["out"], by_role.get("lse")
        inputs = dict(zip(roles, arrays)) | {"out": out, "lse": lse}
        inputs["dout"] = jnp.zeros(out.shape, out.dtype) if isinstance(dout, SymbolicZero) else dout
        if dlse is not None and not isinstance(dlse, SymbolicZero):
            inputs["dlse"] = dlse
        asked = tuple(f"d{role}" for role, flag in zip(roles, differentiated) if flag is not None and role in _LEARNED)
        found = dict(zip(asked, primitive(Spec(backward, tuple(inputs), asked, options, swapped))(*inputs.values())))
        return tuple(found[f"d{role}"].astype(x.dtype) if f"d{role}" in found else None for role, x in zip(roles, arrays))

    attend.defvjp(run, gradients, symbolic_zeros=True)
    made: Callable[..., tuple[jax.Array, ...]] = attend
    return made


def split(call: str, options: dict[str, Any], tensors: tuple[str, ...],
          known: frozenset[str]) -> tuple[dict[str, jax.Array], tuple[tuple[str, Any], ...]]:
    """Keyword arguments as arrays by role and options in an order of their own; a name that is unknown is refused."""
    arrays = {name: jnp.asarray(options[name]) for name in tensors if options.get(name) is not None}
    plain = {name: value for name, value in options.items() if name not in tensors and value is not None}
    for name, value in plain.items():
        if name not in known:
            raise TypeError(f"{call}() has no option {name}")
        if isinstance(value, (jax.core.Tracer, jax.Array)):
            raise error(_abi.ATTN_E_ARGUMENT, f"{name} is a traced value: options are numbers and words", name)
    return arrays, tuple(sorted((name, tuple(x) if isinstance(x, list) else x) for name, x in plain.items()))


def sdpa(q: Any, k: Any, v: Any, *, return_lse: bool = False, layout: str = "bhsd", **options: Any) -> Any:
    """Attention of q [B,HQ,SQ,D], k [B,HK,SK,D], v [B,HK,SK,DV]; with layout="bshd" of [B,S,H,D], the result, too.

    Options as of libattn.sdpa: causal, bottom_right, scale, softcap, window, mask, alibi, alibi_form, sink,
    lse_with_sink, seqlens_q, seqlens_k, lse_base_2, lse_empty_plus_inf, deterministic. Gradients of q, k, v, mask,
    alibi, sink, also through lse [B,HQ,SQ]. q, k, v of float8_e4m3fn with q_scale, k_scale, v_scale [B,H] give bf16 and
    have no gradients.
    """
    if layout not in ("bhsd", "bshd"):
        raise error(_abi.ATTN_E_ENUM, f"layout is {layout!r}; expected bhsd or bshd", "layout")
    arrays, plain = split("sdpa", options, SDPA_TENSORS, SDPA_OPTIONS)
    arrays = {"q": jnp.asarray(q), "k": jnp.asarray(k), "v": jnp.asarray(v)} | arrays
    if "mask" in arrays and arrays["mask"].ndim < 4:
        arrays["mask"] = arrays["mask"].reshape((1,) * (4 - arrays["mask"].ndim) + arrays["mask"].shape)
    call = attention(_abi.ATTN_OP_SDPA_FWD, _abi.ATTN_OP_SDPA_BWD, tuple(arrays), plain, layout == "bshd",
                     ("out", "lse") if return_lse else ("out",))
    found = call(*arrays.values())
    return tuple(found) if return_lse else found[0]


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *,
                          scale: float | None = None, is_causal: bool = False, query_seq_lengths: Any = None,
                          key_value_seq_lengths: Any = None,
                          local_window_size: int | tuple[int, int] | None = None) -> Any:
    """jax.nn.dot_product_attention, as far as it is served: [B,S,H,D] or [S,H,D], a bias or a boolean mask."""
    if bias is not None and mask is not None:
        raise error(_abi.ATTN_E_FEATURE, "bias and mask together are not served: add the mask to the bias", "bias")
    window = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
    one = jnp.ndim(query) == 3
    q, k, v = (jnp.asarray(x)[None] if one else x for x in (query, key, value))
    found = sdpa(q, k, v, layout="bshd", scale=scale, causal=is_causal, mask=mask if bias is None else bias, window=window,
                 seqlens_q=query_seq_lengths, seqlens_k=key_value_seq_lengths)
    return found[0] if one else found


def mla(q: Any, kv: Any, indices: Any, *, return_lse: bool = False, return_max_logits: bool = False,
        **options: Any) -> Any:
    """Sparse attention as libattn.mla: q [SQ,HQ,D], kv [SK,1,D], indices i32 [SQ,1,TOPK], or with a batch axis.

    Options: topk_length, joined, sink, causal, scale, q_start, k_stride, lse_base_2, lse_empty_plus_inf, deterministic.
    Gradients of q, kv, sink, also through lse; none through max_logits.
    """
    arrays, plain = split("mla", options, SPARSE_TENSORS, SPARSE_OPTIONS)
    arrays = {"q": jnp.asarray(q), "kv": jnp.asarray(kv), "indices": jnp.asarray(indices)} | arrays
    wanted = ("out", "lse", "max_logits") if return_max_logits else ("out", "lse") if return_lse else ("out",)
    found = attention(_abi.ATTN_OP_MLA_FWD, _abi.ATTN_OP_MLA_BWD, tuple(arrays), plain, False, wanted)(*arrays.values())
    if return_max_logits:
        return found[0], found[1], jax.lax.stop_gradient(found[2])
    return tuple(found) if return_lse else found[0]


def dist(q: Any, kv: Any, indices: Any, lse: Any, *, norm: str = "sum", **options: Any) -> jax.Array:
    """Attention of all heads together on every slot, as libattn.dist; a target, so without gradients."""
    arrays, plain = split("dist", options, ("topk_length", "joined"), SPARSE_OPTIONS)
    arrays = {"q": jnp.asarray(q), "kv": jnp.asarray(kv), "indices": jnp.asarray(indices), "lse": jnp.asarray(lse)} | arrays
    spec = Spec(_abi.ATTN_OP_DIST, tuple(arrays), ("dist",), (*plain, ("norm", norm)), False)
    return primitive(spec)(*map(jax.lax.stop_gradient, arrays.values()))[0]


def mla_join(indices: Any, *, group: int, seq_k: int, **options: Any) -> jax.Array:
    """Joined lists of neighbouring queries, as libattn.mla_join; integers, so without gradients."""
    arrays, plain = split("mla_join", options, ("topk_length",), JOIN_OPTIONS)
    arrays = {"indices": jnp.asarray(indices)} | arrays
    spec = Spec(_abi.ATTN_OP_MLA_JOIN, tuple(arrays), ("joined",), (*plain, ("group", group), ("seq_k", seq_k)), False)
    return primitive(spec)(*map(jax.lax.stop_gradient, arrays.values()))[0]
