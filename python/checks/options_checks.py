# SPDX-License-Identifier: MIT
"""Options of later versions: out that is not rounded, largest scores, merged parts. What no kernel has is skipped."""

import libattn
import reference
import torch
from libattn import torch as lt
from record import BOUNDS, Skipped, check

HALF = (torch.bfloat16, torch.float16)


def served(function):
    """Skip where no kernel of the device has it."""
    try:
        return function()
    except libattn.UnsupportedError as refusal:
        raise Skipped(f"no kernel of this device: {str(refusal).splitlines()[0]}") from None


def inputs(case, dtype, d=128):
    return [case.random(2, heads, rows, d, dtype=dtype, grad=True) for heads, rows in ((8, 200), (2, 260), (2, 260))]


@check
def wide_output(case):
    for dtype in HALF:
        q, k, v = inputs(case, dtype)
        right, right_lse = reference.sdpa(q, k, v, causal=True)
        out, lse = served(lambda: lt.sdpa(q, k, v, causal=True, out_dtype="f32", return_lse=True))
        case.must(out.dtype == torch.float32, f"out is {out.dtype}")
        case.close(f"{str(dtype)[6:]} out", out, right, BOUNDS[dtype][0] / 2)
        case.close(f"{str(dtype)[6:]} lse", lse, right_lse, 1e-4)
        dout = case.random(*out.shape)
        grads = zip(torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(right, (q, k, v), dout.double()))
        for found, expected in grads:
            case.close(f"{str(dtype)[6:]} gradients", found, expected, BOUNDS[dtype][1])


@check
def wide_output_of_mla(case):
    q, kv = (case.random(*shape, dtype=torch.bfloat16) for shape in ((33, 64, 576), (300, 1, 576)))
    slots = torch.randint(-1, 300, (33, 1, 128), generator=case.generator, device=case.device, dtype=torch.int32)
    out = served(lambda: lt.mla(q, kv, slots, out_dtype="f32"))
    case.must(out.dtype == torch.float32, f"out is {out.dtype}")
    case.close("out", out, reference.mla(q, kv, slots)[0], 8e-3)


@check
def largest_scores(case):
    for dtype in (*HALF, torch.float32):
        q, k, v = inputs(case, dtype, 64)
        out, _, largest = served(lambda: lt.sdpa(q, k, v, causal=True, softcap=1.5, return_max_logits=True))
        case.close(f"{str(dtype)[6:]} out", out, reference.sdpa(q, k, v, causal=True, softcap=1.5)[0], BOUNDS[dtype][0])
        scores = q.double() @ k.double().repeat_interleave(4, 1).mT / 8
        seen, _ = reference.visible(200, 260, case.device, causal=True)
        right = (1.5 * (scores / 1.5).tanh()).masked_fill(~seen, float("-inf")).amax(-1)
        case.close(f"{str(dtype)[6:]} max_logits", largest, right, 1e-3)


@check
def merged_parts(case):
    for dtype in (*HALF, torch.float32):
        q, k, v = inputs(case, dtype, 64)
        parts = [lt.sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 100), (100, 110), (110, 260))]
        out, lse = served(lambda: lt.merge(*zip(*parts)))
        right, right_lse = reference.sdpa(q, k, v)
        case.close(f"{str(dtype)[6:]} out", out, right, 2 * BOUNDS[dtype][0])
        case.close(f"{str(dtype)[6:]} lse", lse, right_lse, 1e-4)
        grads = zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(right.sum(), (q, k, v)))
        for found, expected in grads:
            case.close(f"{str(dtype)[6:]} gradients", found, expected, 2 * BOUNDS[dtype][1])
