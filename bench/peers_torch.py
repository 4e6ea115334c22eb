#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure what PyTorch offers for the same problems, as records that join with those of `attn bench --json`.

    attn bench --device cuda:0 --json --run-id R @dense @backward > attn.jsonl
    python3 bench/peers_torch.py --run-id R @dense @backward > peers.jsonl
    python3 bench/table.py attn.jsonl peers.jsonl

Each problem that PyTorch's scaled_dot_product_attention can express (dense, no window, softcap, ALiBi) runs on its backends
cuDNN, FlashAttention-2 ("fa2"), memory-efficient attention ("efficient") and, for f32 and f64, the unfused formula ("math").
Measured as `attn bench` measures: batches of runs between two CUDA events, copies of the tensors taken in turn so that none
is cached (--cache flush: a buffer larger than the L2 cache is overwritten before each run; --cache warm: neither), and the
host's clock beside it. Records: docs/json.md. A backend that refuses a problem gives a record without times, with its words.
"""
import argparse

import peers_timing as timing

OPS = ("sdpa_fwd", "sdpa_bwd")
EXTENTS = ("b", "hq", "hk", "sq", "sk", "d", "dv")
IMPLS = ("cudnn", "fa2", "efficient", "math")


def parse(line):
    """A problem text as a dict, or None if PyTorch has no such operator."""
    p = timing.parse(line, EXTENTS, ("causal",)) if line.split()[0] in OPS else None
    if p:
        p.setdefault("hk", p["hq"])
        p.setdefault("sk", p["sq"])
        p.setdefault("dv", p["d"])
    return p


def canonical(p):
    """The library's own text of the problem, on which records join."""
    same_as = {"b": 1, "hk": p["hq"], "sk": p["sq"], "dv": p["d"]}
    extents = [f"{k}={p[k]}" for k in EXTENTS if p[k] != same_as.get(k)]
    return " ".join([p["op"], *extents, p["dtype"]] + ["causal"] * p["causal"])


def flops(p):
    pairs = p["sq"] * p["sk"]
    if p["causal"]:
        pairs = sum(min(i + 1, p["sk"]) for i in range(p["sq"]))
    per_pair = 2 * (p["d"] + p["dv"]) if p["op"] == "sdpa_fwd" else 2 * (3 * p["d"] + 2 * p["dv"])
    return p["b"] * p["hq"] * pairs * per_pair


def traffic(p):
    """Every input read once, every output written once; lse counts four bytes a row (f64: eight)."""
    q, k = p["b"] * p["hq"] * p["sq"], p["b"] * p["hk"] * p["sk"]
    once = (q * (p["d"] + p["dv"]) + k * (p["d"] + p["dv"])) * timing.DTYPES[p["dtype"]]
    lse = q * (8 if p["dtype"] == "f64" else 4)
    return (1 if p["op"] == "sdpa_fwd" else 2) * once + lse  # the backward reads out and dout and writes dq, dk, dv besides


def wanted(impl, p):
    if impl == "math":  # its score matrix must fit, several times over
        return p["dtype"] in ("f32", "f64") and p["b"] * p["hq"] * p["sq"] * p["sk"] * timing.DTYPES[p["dtype"]] <= 8 << 30
    return p["dtype"] in ("bf16", "f16") or (impl == "efficient" and p["dtype"] == "f32")


def calls(torch, p, cache):
    """One problem as callables on copies of the tensors, to be called in turn."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}[p["dtype"]]
    backward = p["op"] == "sdpa_bwd"

    def tensor(heads, length, width):
        t = torch.randn(p["b"], heads, length, width, device="cuda", dtype=dtype)
        return t.requires_grad_(backward)

    made = []
    for _ in range(timing.copies_of(traffic(p), cache)):
        q, k, v = tensor(p["hq"], p["sq"], p["d"]), tensor(p["hk"], p["sk"], p["d"]), tensor(p["hk"], p["sk"], p["dv"])

        def forward(q=q, k=k, v=v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"], enable_gqa=p["hk"] != p["hq"])

        if not backward:
            made.append(forward)
            continue
        out = forward()
        grad = torch.randn_like(out)
        made.append(lambda out=out, qkv=(q, k, v), grad=grad: torch.autograd.grad(out, qkv, grad, retain_graph=True))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    timing.arguments(parser, IMPLS)
    args = parser.parse_args()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
    torch.backends.cuda.matmul.allow_tf32 = False
    for _, line in timing.problems(args.problems):
        p = parse(line)
        if not p:
            timing.complain("not PyTorch's:", line)
            continue
        for impl in args.only.split(","):
            if not wanted(impl, p):
                continue
            cudnn = f", cuDNN {torch.backends.cudnn.version()}" if impl == "cudnn" else ""
            name = canonical(p), impl, f"torch {torch.__version__}{cudnn}"
            try:
                with sdpa_kernel([backends[impl]]), torch.set_grad_enabled(p["op"] == "sdpa_bwd"):
                    measured = timing.Timer(torch, calls(torch, p, args.cache), args.cache).measure(args.runs, args.min_time)
                timing.print_record(torch, args, *name, measured, (flops(p), traffic(p)))
            except RuntimeError as error:  # the backend refuses, or memory is short
                timing.print_record(torch, args, *name, note=str(error).splitlines()[0][:160])
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
