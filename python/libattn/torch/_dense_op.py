# SPDX-License-Identifier: MIT
"""libattn::sdpa_fwd and libattn::sdpa_bwd: schemas, kernels, fake kernels, the autograd formula."""
from __future__ import annotations

from typing import Any

import torch

from .. import _abi, _dense
from .._engine import run
from .._errors import error
from ._tensors import empty_like, lse_dtype, out_dtype, scratch, stream, unit

# Optional tensors, then options with their types and defaults, in the order of both schemas.
TENSORS = ("mask", "alibi", "sink", "seqlens_q", "seqlens_k", "cu_seqlens_q", "cu_seqlens_k", "block_table",
           "q_scale", "k_scale", "v_scale")
OPTIONS: dict[str, tuple[str, Any]] = {
    "causal": ("bool", False), "bottom_right": ("bool", False), "scale": ("float?", None), "softcap": ("float", 0.0),
    "window_left": ("int?", None), "window_right": ("int?", None), "alibi_form": ("str", "linear"),
    "lse_with_sink": ("bool", False), "deterministic": ("bool", False), "fill_padding": ("bool", False), "lse_empty_plus_inf": ("bool", False),
    "max_seqlen_q": ("SymInt?", None), "max_seqlen_k": ("SymInt?", None), "out_dtype": ("str?", None),
}
GRADIENTS = ("dq", "dk", "dv", "dmask", "dalibi", "dsink")
_EXTRA = ", ".join([f"Tensor? {name}" for name in TENSORS] + [f"{kind} {name}" for name, (kind, _) in OPTIONS.items()])
torch.library.define("libattn::sdpa_fwd", f"(Tensor q, Tensor k, Tensor v, {_EXTRA}) -> (Tensor, Tensor)")
# With max_logits: an operator of its own, since kernels that lack it would otherwise be lost, and each call has one more tensor.
torch.library.define("libattn::sdpa_fwd_logits", f"(Tensor q, Tensor k, Tensor v, {_EXTRA}) -> (Tensor, Tensor, Tensor)")
torch.library.define("libattn::sdpa_bwd", "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
                     f"bool[6] want, {_EXTRA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")


def _split(q: torch.Tensor, extra: tuple[Any, ...]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Given tensors by role, and the options of libattn.sdpa."""
    tensors = {name: x for name, x in zip(TENSORS, extra) if x is not None}
    given = {name: value for (name, (_, default)), value in zip(OPTIONS.items(), extra[len(TENSORS):]) if value != default}
    left, right = given.pop("window_left", None), given.pop("window_right", None)
    if left is not None or right is not None:
        given["window"] = (left, right)
    return tensors, given | stream(q)


def _fake_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *extra: Any) -> tuple[torch.Tensor, ...]:
    return empty_like(q, v.shape[-1], out_dtype(q, extra[-1])), q.new_empty(q.shape[:-1], dtype=lse_dtype(q))


def _fake_forward_logits(*args: Any) -> tuple[torch.Tensor, ...]:
    out, lse = _fake_forward(*args)
    return out, lse, torch.empty_like(lse)


def _forward(*args: Any) -> tuple[torch.Tensor, ...]:
    return _run_forward(("out", "lse"), _fake_forward(*args), *args)


def _forward_logits(*args: Any) -> tuple[torch.Tensor, ...]:
    return _run_forward(("out", "lse", "max_logits"), _fake_forward_logits(*args), *args)


def _run_forward(roles: tuple[str, ...], made: tuple[torch.Tensor, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                 *extra: Any) -> tuple[torch.Tensor, ...]:
    tensors, options = _split(q, extra)
    if "cu_seqlens_q" in tensors and not options.get("fill_padding"):
        for x in made:
            x.zero_()  # rows of no sequence are not written
    inputs = {"q": unit(q), "k": unit(k), "v": unit(v), **tensors}
    run(_dense.build_forward, _abi.ATTN_OP_SDPA_FWD, inputs, dict(zip(roles, made)), roles, options, scratch)
    return made


def _fake_backward(dout: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   out: torch.Tensor, lse: torch.Tensor, want: list[bool], *extra: Any) -> tuple[torch.Tensor, ...]:
    mask, alibi, sink = extra[:3]
    made = [empty_like(x, x.shape[-1]) if wanted else x.new_empty(0) for x, wanted in zip((q, k, v), want)]
    for x, wanted in zip((mask, alibi, sink), want[3:]):
        made.append(q.new_empty(x.shape if wanted else (0,), dtype=lse_dtype(q)))
    return tuple(made)


def _backward(dout: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              out: torch.Tensor, lse: torch.Tensor, want: list[bool], *extra: Any) -> tuple[torch.Tensor, ...]:
    made = _fake_backward(dout, dlse, q, k, v, out, lse, want, *extra)
    tensors, options = _split(q, extra)
    options.pop("out_dtype", None)  # out and dout are rounded to q's dtype: see _gradient
    if "cu_seqlens_q" in tensors and not options.get("fill_padding"):
        for x in made[:3]:
            x.zero_()
    inputs = {"q": unit(q), "k": unit(k), "v": unit(v), "out": unit(out), "lse": lse, "dout": unit(dout), **tensors}
    if dlse is not None:
        inputs["dlse"] = dlse
    wanted = tuple(role for role, chosen in zip(GRADIENTS, want) if chosen)
    outputs = {role: x for role, x, chosen in zip(GRADIENTS, made, want) if chosen}
    run(_dense.build_backward, _abi.ATTN_OP_SDPA_BWD, inputs, outputs, wanted, options, scratch)
    return made


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    q, k, v, *extra = inputs
    if q.dtype == torch.float8_e4m3fn:
        raise error(_abi.ATTN_E_FEATURE, "q is float8_e4m3fn, which has no gradients: sdpa of e4m3 is a forward alone, and none of its tensors "
                    "may ask for one", "q")
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.options = extra[len(TENSORS):]
    ctx.save_for_backward(q, k, v, *output[:2], *extra[:len(TENSORS)])


def delta_of_summed(sink: torch.Tensor | None, options: tuple[Any, ...]) -> bool:
    """Whether an f32 out can serve the backward as it was summed. delta = out . dout is subtracted where dlse is added, so the
    part of delta that is out's rounding goes in with dlse; a sink outside of lse has a weight of its own there."""
    return sink is None or bool(options[list(OPTIONS).index("lse_with_sink")])


def _gradient(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    summed, out = out, out.to(q.dtype)  # of a wider out_dtype: the backward takes both in q's
    dout = torch.zeros_like(out) if dout is None else dout.to(q.dtype)
    if summed is not out and delta_of_summed(tensors[2], ctx.options):
        shift = ((out.float() - summed) * dout.float()).sum(-1)
        dlse = shift if dlse is None else dlse + shift
    want = [bool(needed) for needed in ctx.needs_input_grad[:6]]
    found = torch.ops.libattn.sdpa_bwd(dout, dlse, q, k, v, out, lse, want, *tensors, *ctx.options)
    grads = [x.to(like.dtype) if wanted else None
             for x, wanted, like in zip(found, want, (q, k, v, *tensors[:3]))]
    return (*grads, *[None] * (len(TENSORS) - 3 + len(OPTIONS)))


def _refuse_second(ctx: Any, *grads: Any) -> Any:
    raise error(_abi.ATTN_E_FEATURE, "libattn has no second derivatives: the backward of sdpa cannot be differentiated")


for _device in ("cpu", "cuda"):
    torch.library.impl("libattn::sdpa_fwd", _device)(_forward)
    torch.library.impl("libattn::sdpa_fwd_logits", _device)(_forward_logits)
    torch.library.impl("libattn::sdpa_bwd", _device)(_backward)
torch.library.register_fake("libattn::sdpa_fwd")(_fake_forward)
torch.library.register_fake("libattn::sdpa_fwd_logits")(_fake_forward_logits)
torch.library.register_fake("libattn::sdpa_bwd")(_fake_backward)
for _name in ("sdpa_fwd", "sdpa_fwd_logits"):
    torch.library.register_autograd(f"libattn::{_name}", _gradient, setup_context=_setup)
torch.library.register_autograd("libattn::sdpa_bwd", _refuse_second)
