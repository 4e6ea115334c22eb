# SPDX-License-Identifier: MIT
"""libattn::merge: schema, kernel, fake kernel, the autograd formula."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .. import _abi, _merge
from .._errors import error
from ._tensors import out_dtype, stream, unit, view

Tensors = list[torch.Tensor]
torch.library.define("libattn::merge", "(Tensor[] outs, Tensor[] lses, str? out_dtype, bool lse_base_2, bool lse_empty_plus_inf) -> "
                     "(Tensor, Tensor)")


def as_many(outs: Sequence[Any], lses: Sequence[Any]) -> None:
    """Refuse lists of different lengths, and empty ones."""
    if not outs or len(outs) != len(lses):
        raise error(_abi.ATTN_E_ARGUMENT, f"merge has {len(outs)} outs and {len(lses)} lses: as many, and at least one", "lses",
                    len(lses), len(outs))


def _fake(outs: Tensors, lses: Tensors, word: str | None, *flags: bool) -> tuple[torch.Tensor, torch.Tensor]:
    as_many(outs, lses)
    return outs[0].new_empty(outs[0].shape, dtype=out_dtype(outs[0], word)), lses[0].new_empty(lses[0].shape)


def _run(outs: Tensors, lses: Tensors, word: str | None, base_2: bool, plus_inf: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _fake(outs, lses, word)
    parts = [[view(f"{role}_parts[{i}]", x) for i, x in enumerate(tensors)]
             for role, tensors in (("out", list(map(unit, outs))), ("lse", lses))]
    flags = base_2 * _abi.ATTN_LSE_BASE_2 | plus_inf * _abi.ATTN_LSE_EMPTY_PLUS_INF
    _merge.call(parts, {"out": view("out", out), "lse": view("lse", lse)}, flags, stream(out).get("stream"))
    return out, lse


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    outs, lses, _, base_2, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.count, ctx.unit = len(outs), math.log(2) if base_2 else 1.0
    ctx.save_for_backward(*outs, *lses, *output)


def _gradient(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    """With the weights w_i = exp(lse_i - lse): dout_i = w_i dout, dlse_i = w_i (dlse + dout . (out_i - out)), in the unit of lse."""
    *parts, out, lse = ctx.saved_tensors
    outs, lses = parts[:ctx.count], parts[ctx.count:]
    douts, dlses = [], []
    for out_i, lse_i in zip(outs, lses):
        empty = lse_i.isinf() | lse.isinf()  # weighs nothing, and its out is not read
        weight = torch.where(empty, 0.0, ((lse_i - lse) * ctx.unit).exp())
        grad = torch.zeros_like(lse) if dlse is None else dlse
        if dout is not None:
            apart = torch.where(empty.unsqueeze(-1), 0.0, out_i.to(lse.dtype) - out.to(lse.dtype))
            grad = grad + ctx.unit * (dout.to(lse.dtype) * apart).sum(-1)
        dlses.append((weight * grad).to(lse_i.dtype))
        douts.append(None if dout is None else (weight.unsqueeze(-1) * dout).to(out_i.dtype))
    return douts, dlses, None, None, None


for _device in ("cpu", "cuda"):
    torch.library.impl("libattn::merge", _device)(_run)
torch.library.register_fake("libattn::merge")(_fake)
torch.library.register_autograd("libattn::merge", _gradient, setup_context=_setup)
