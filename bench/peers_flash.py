#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure FlashAttention-3 and FlashAttention-4 on dense problems, as records that join with those of `attn bench --json`.

    attn bench --device cuda:0 --json --run-id R @dense @backward > attn.jsonl
    python3 bench/peers_flash.py --run-id R --fa3 flash_attn_3/_C.so @dense @backward > peers.jsonl

fa3: a shared object that registers torch.ops.flash_attn_3 (xformers 0.0.34 carries one, forward and backward, built for CUDA 12:
--preload names its libcudart.so.12). fa4: the package flash-attn-4 with nvidia-cutlass-dsl[cu13], on the path; a shape compiles
for about 6 s. Either is left out where it is absent. Problems: b, hq, hk, sq, d in bf16 or f16, causal with SQ = SK.
--check compares each with the formula in f32 before it is timed."""
import argparse
import ctypes
import os

import peers_timing as timing
import peers_torch as dense

IMPLS = ("fa3", "fa4")


def load_fa3(torch, args):
    for path in args.preload:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(args.fa3)
    ops = torch.ops.flash_attn_3

    def forward(q, k, v, causal):
        return ops.fwd(q, k, v, softmax_scale=q.shape[-1] ** -0.5, is_causal=causal, num_splits=1)[:2]

    def backward(dout, q, k, v, out, lse, grads, causal):
        ops.bwd(dout, q, k, v, out, lse, *grads, softmax_scale=q.shape[-1] ** -0.5, is_causal=causal)

    return f"FlashAttention-3, {os.path.basename(os.path.dirname(args.fa3)) or args.fa3}", forward, backward


def load_fa4(torch, args):
    major, minor = torch.cuda.get_device_capability()
    os.environ.setdefault("CUTE_DSL_ARCH", f"sm_{major}{minor}a")
    from importlib.metadata import version

    from flash_attn.cute import interface

    def forward(q, k, v, causal):
        return interface._flash_attn_fwd(q, k, v, causal=causal, return_lse=True)[:2]

    def backward(dout, q, k, v, out, lse, grads, causal):
        interface._flash_attn_bwd(q, k, v, out, dout, lse, causal=causal, dq=grads[0], dk=grads[1], dv=grads[2])

    return f"flash-attn-4 {version('flash-attn-4')}", forward, backward


def tensors(torch, p):
    """q, k, v, dout as these libraries take them: [B, S, H, D]."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[p["dtype"]]
    shapes = [(p["hq"], p["sq"], p["d"]), (p["hk"], p["sk"], p["d"]), (p["hk"], p["sk"], p["dv"]), (p["hq"], p["sq"], p["dv"])]
    return [torch.randn(p["b"], s, h, d, device="cuda", dtype=dtype) for h, s, d in shapes]


def calls(torch, p, cache, forward, backward):
    made = []
    for _ in range(timing.copies_of(dense.traffic(p), cache)):
        q, k, v, dout = tensors(torch, p)
        if p["op"] == "sdpa_fwd":
            made.append(lambda q=q, k=k, v=v: forward(q, k, v, p["causal"]))
            continue
        out, lse = forward(q, k, v, p["causal"])
        grads = [torch.empty_like(x) for x in (q, k, v)]
        made.append(lambda a=(dout, q, k, v, out, lse, grads): backward(*a, p["causal"]))
    return made


def check(torch, p, forward, backward):
    """Largest difference from the formula in f32, over its root mean square, of a small problem with p's head dim and mask."""
    small = {**p, "b": 2, "hq": 4, "hk": 4, "sq": 384, "sk": 384}
    q, k, v, dout = tensors(torch, small)
    out, lse = forward(q, k, v, p["causal"])
    got = [out]
    if p["op"] == "sdpa_bwd":
        got = [torch.empty_like(x) for x in (q, k, v)]
        backward(dout, q, k, v, out, lse, got, p["causal"])
    x = [t.float().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    scores = x[0] @ x[1].transpose(-1, -2) * p["d"] ** -0.5
    if p["causal"]:
        scores = scores.masked_fill(torch.ones(384, 384, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
    want = [scores.softmax(-1) @ x[2]]
    if p["op"] == "sdpa_bwd":
        want = torch.autograd.grad(want[0], x, dout.float().transpose(1, 2))
    return max(float((a.float() - b.detach().transpose(1, 2)).abs().max() / b.detach().square().mean().sqrt()) for a, b in zip(got, want))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    timing.arguments(parser, IMPLS)
    parser.add_argument("--fa3", help="the shared object with torch.ops.flash_attn_3")
    parser.add_argument("--preload", action="append", default=[], help="a shared object that it needs, loaded first")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    import torch

    found = timing.load(torch, args, {"fa3": (load_fa3, args.fa3), "fa4": (load_fa4, True)})
    for _, line in timing.problems(args.problems):
        p = dense.parse(line)
        if not p or p["dtype"] not in ("bf16", "f16") or (p["causal"] and p["sq"] != p["sk"]):
            timing.complain("not theirs:", line)
            continue
        for impl, (kernel, forward, backward) in found.items():
            timing.print_measured(torch, args, (dense.canonical(p), impl, kernel), lambda: check(torch, p, forward, backward),
                                  lambda: calls(torch, p, args.cache, forward, backward), (dense.flops(p), dense.traffic(p)))


if __name__ == "__main__":
    main()
