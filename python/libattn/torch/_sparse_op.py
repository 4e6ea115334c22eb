# SPDX-License-Identifier: MIT
"""libattn::mla_fwd, libattn::mla_bwd and libattn::dist: schemas, kernels, fake kernels, the autograd formula."""
from __future__ import annotations

from typing import Any

import torch

from .. import _abi, _sparse
from .._engine import run
from .._errors import error
from ._tensors import lse_dtype, out_dtype, scratch, stream, unit

SPARSE_OPTIONS: dict[str, tuple[str, Any]] = {
    "causal": ("bool", False), "scale": ("float?", None), "q_start": ("SymInt", 0), "k_stride": ("int", 0),
    "lse_base_2": ("bool", False), "lse_empty_plus_inf": ("bool", False), "deterministic": ("bool", False),
    "out_dtype": ("str?", None), "dkv_dtype": ("str?", None),
}
_SCALARS = ", ".join(f"{kind} {name}" for name, (kind, _) in SPARSE_OPTIONS.items())
torch.library.define("libattn::mla_fwd", "(Tensor q, Tensor kv, Tensor indices, Tensor? topk_length, Tensor? joined, Tensor? sink, "
                     f"{_SCALARS}) -> (Tensor, Tensor, Tensor)")
torch.library.define("libattn::mla_bwd", "(Tensor dout, Tensor? dlse, Tensor q, Tensor kv, Tensor indices, Tensor out, Tensor lse, "
                     f"bool[3] want, Tensor? topk_length, Tensor? joined, Tensor? sink, {_SCALARS}) -> (Tensor, Tensor, Tensor)")
torch.library.define("libattn::dist", "(Tensor q, Tensor kv, Tensor indices, Tensor lse, str norm, Tensor? topk_length, "
                     f"Tensor? joined, {_SCALARS}) -> Tensor")
torch.library.define("libattn::mla_join", "(Tensor indices, SymInt group, SymInt seq_k, Tensor? topk_length, bool causal, "
                     "SymInt q_start, int k_stride, SymInt union_limit) -> Tensor")
GRADIENTS = ("dq", "dkv", "dsink")
VALUE_WIDTH = 512


def _given(q: torch.Tensor, options: tuple[Any, ...], *others: str) -> dict[str, Any]:
    """The options without those of another operator."""
    given = {name: value for (name, (_, default)), value in zip(SPARSE_OPTIONS.items(), options)
             if value != default and name not in others}
    return given | stream(q)


def _tensors(**tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {role: x for role, x in tensors.items() if x is not None}


def _fake_forward(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, *extra: Any) -> tuple[torch.Tensor, ...]:
    rows = q.shape[:-1]
    return q.new_empty((*rows, VALUE_WIDTH), dtype=out_dtype(q, extra[-2])), q.new_empty(rows, dtype=lse_dtype(q)), q.new_empty(rows, dtype=torch.float32)


def _forward(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, topk_length: torch.Tensor | None,
             joined: torch.Tensor | None, sink: torch.Tensor | None, *options: Any) -> tuple[torch.Tensor, ...]:
    made = _fake_forward(q, kv, indices, *options)
    inputs = _tensors(q=unit(q), kv=unit(kv), indices=unit(indices), topk_length=topk_length, joined=joined, sink=sink)
    roles = ("out", "lse", "max_logits")
    run(_sparse.build, _abi.ATTN_OP_MLA_FWD, inputs, dict(zip(roles, made)), roles, _given(q, options, "dkv_dtype"), scratch)
    return made


def _fake_backward(dout: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor,
                   out: torch.Tensor, lse: torch.Tensor, want: list[bool], topk_length: torch.Tensor | None,
                   joined: torch.Tensor | None, sink: torch.Tensor | None, *options: Any) -> tuple[torch.Tensor, ...]:
    dkv_dtype = torch.float32 if options[-1] == "f32" else kv.dtype
    return (q.new_empty(q.shape if want[0] else (0,)), kv.new_empty(kv.shape if want[1] else (0,), dtype=dkv_dtype),
            q.new_empty(sink.shape if want[2] and sink is not None else (0,), dtype=lse_dtype(q)))


def _backward(dout: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor,
              out: torch.Tensor, lse: torch.Tensor, want: list[bool], topk_length: torch.Tensor | None,
              joined: torch.Tensor | None, sink: torch.Tensor | None, *options: Any) -> tuple[torch.Tensor, ...]:
    made = _fake_backward(dout, dlse, q, kv, indices, out, lse, want, topk_length, joined, sink, *options)
    inputs = _tensors(q=unit(q), kv=unit(kv), indices=unit(indices), out=unit(out), lse=lse, dout=unit(dout), dlse=dlse,
                      topk_length=topk_length, joined=joined, sink=sink)
    outputs = {role: x for role, x, chosen in zip(GRADIENTS, made, want) if chosen}
    run(_sparse.build_backward, _abi.ATTN_OP_MLA_BWD, inputs, outputs, tuple(outputs), _given(q, options, "out_dtype"), scratch)
    return made


def _fake_dist(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, *extra: Any) -> torch.Tensor:
    return q.new_empty((*q.shape[:-2], indices.shape[-1]), dtype=torch.float32)


def _dist(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, lse: torch.Tensor, norm: str,
          topk_length: torch.Tensor | None, joined: torch.Tensor | None, *options: Any) -> torch.Tensor:
    made = _fake_dist(q, kv, indices)
    inputs = _tensors(q=unit(q), kv=unit(kv), indices=unit(indices), lse=lse, topk_length=topk_length, joined=joined)
    run(_sparse.build_dist, _abi.ATTN_OP_DIST, inputs, {"dist": made}, ("dist",),
        _given(q, options, "dkv_dtype", "out_dtype") | {"norm": norm}, scratch)
    return made


def _fake_join(indices: torch.Tensor, group: int, seq_k: int, *extra: Any) -> torch.Tensor:
    *outer, sq, _, topk = indices.shape
    return indices.new_empty((*outer, -(-sq // group), _sparse.joined_words(group, topk)), dtype=torch.int32)


def _join(indices: torch.Tensor, group: int, seq_k: int, topk_length: torch.Tensor | None, *extra: Any) -> torch.Tensor:
    made = _fake_join(indices, group, seq_k)
    names = ("causal", "q_start", "k_stride", "union_limit")
    options = {"group": group, "seq_k": seq_k} | {name: value for name, value in zip(names, extra) if value}
    run(_sparse.build_join, _abi.ATTN_OP_MLA_JOIN, _tensors(indices=unit(indices), topk_length=topk_length), {"joined": made},
        ("joined",), options | stream(indices), scratch)
    return made


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    q, kv, indices, topk_length, joined, sink, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.options = options
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(q, kv, indices, output[0], output[1], topk_length, joined, sink)


def _gradient(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
    q, kv, indices, out, lse, topk_length, joined, sink = ctx.saved_tensors
    out = out.to(q.dtype)  # of a wider out_dtype: the backward takes both in q's
    dout = torch.zeros_like(out) if dout is None else dout.to(q.dtype)
    want = [bool(ctx.needs_input_grad[position]) for position in (0, 1, 5)]
    found = torch.ops.libattn.mla_bwd(dout, dlse, q, kv, indices, out, lse, want, topk_length, joined, sink, *ctx.options)
    dq, dkv, dsink = (x if wanted else None for x, wanted in zip(found, want))
    return (dq, dkv, None, None, None, dsink, *[None] * len(SPARSE_OPTIONS))


def _refuse_second(ctx: Any, *grads: Any) -> Any:
    raise error(_abi.ATTN_E_FEATURE, "libattn has no second derivatives: the backward of mla cannot be differentiated")


for _device in ("cpu", "cuda"):
    torch.library.impl("libattn::mla_fwd", _device)(_forward)
    torch.library.impl("libattn::mla_bwd", _device)(_backward)
    torch.library.impl("libattn::dist", _device)(_dist)
    torch.library.impl("libattn::mla_join", _device)(_join)
torch.library.register_fake("libattn::mla_fwd")(_fake_forward)
torch.library.register_fake("libattn::mla_bwd")(_fake_backward)
torch.library.register_fake("libattn::dist")(_fake_dist)
torch.library.register_fake("libattn::mla_join")(_fake_join)
torch.library.register_autograd("libattn::mla_fwd", _gradient, setup_context=_setup)
torch.library.register_autograd("libattn::mla_bwd", _refuse_second)
