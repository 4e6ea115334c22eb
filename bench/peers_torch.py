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
import datetime
import json
import pathlib
import sys
import time

OPS = ("sdpa_fwd", "sdpa_bwd")
DTYPES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}
EXTENTS = ("b", "hq", "hk", "sq", "sk", "d", "dv")
IMPLS = ("cudnn", "fa2", "efficient", "math")
ROTATE_BYTES = 256 << 20
MOST_COPIES = 16


def parse(line):
    """A problem text as a dict, or None if PyTorch has no such operator."""
    words = line.split()
    if not words or words[0] not in OPS:
        return None
    p = {"op": words[0], "b": 1, "causal": False}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if word in DTYPES:
            p["dtype"] = word
        elif word == "causal":
            p["causal"] = True
        elif key in EXTENTS and value:
            p[key] = int(value)
        else:
            return None
    p.setdefault("hk", p["hq"])
    p.setdefault("sk", p["sq"])
    p.setdefault("dv", p["d"])
    return p if "dtype" in p else None


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
    once = (q * (p["d"] + p["dv"]) + k * (p["d"] + p["dv"])) * DTYPES[p["dtype"]]
    lse = q * (8 if p["dtype"] == "f64" else 4)
    return (1 if p["op"] == "sdpa_fwd" else 2) * once + lse  # the backward reads out and dout and writes dq, dk, dv besides


def wanted(impl, p):
    if impl == "math":  # its score matrix must fit, several times over
        return p["dtype"] in ("f32", "f64") and p["b"] * p["hq"] * p["sq"] * p["sk"] * DTYPES[p["dtype"]] <= 8 << 30
    return p["dtype"] in ("bf16", "f16") or (impl == "efficient" and p["dtype"] == "f32")


class Work:
    """One problem on one backend: callables on copies of the tensors, to be called in turn."""

    def __init__(self, torch, p, cache):
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}[p["dtype"]]
        copies = 1 if cache != "rotate" else min(MOST_COPIES, ROTATE_BYTES // traffic(p) + 2)
        backward = p["op"] == "sdpa_bwd"

        def tensor(heads, length, width):
            t = torch.randn(p["b"], heads, length, width, device="cuda", dtype=dtype)
            return t.requires_grad_(backward)

        self.calls = []
        for _ in range(copies):
            q, k, v = tensor(p["hq"], p["sq"], p["d"]), tensor(p["hk"], p["sk"], p["d"]), tensor(p["hk"], p["sk"], p["dv"])

            def forward(q=q, k=k, v=v):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"],
                                                                        enable_gqa=p["hk"] != p["hq"])

            if not backward:
                self.calls.append(forward)
                continue
            out = forward()
            grad = torch.randn_like(out)
            self.calls.append(lambda out=out, qkv=(q, k, v), grad=grad: torch.autograd.grad(out, qkv, grad, retain_graph=True))
        self.turn = 0
        self.torch = torch
        self.flush = torch.empty(ROTATE_BYTES, device="cuda", dtype=torch.int8) if cache == "flush" else None
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def batch(self, n):
        """Seconds per run on the device's and on the host's clock."""
        if self.flush is not None:
            self.flush.zero_()
        start = time.perf_counter()
        self.events[0].record()
        for _ in range(n):
            self.calls[self.turn % len(self.calls)]()
            self.turn += 1
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e-3 / n, (time.perf_counter() - start) / n

    def measure(self, runs, min_time):
        self.batch(3)
        _, host = self.batch(3)
        n = 1 if self.flush is not None else int(2e-3 / host) + 1 if host < 1e-3 else 2
        warm = 0.0
        while warm < 0.1:
            warm += self.batch(n)[1] * n
        samples, total = [], 0.0
        while len(samples) < runs or total < min_time:
            samples.append(self.batch(n))
            total += samples[-1][1] * n
        return n, sorted(s[0] for s in samples), sorted(s[1] for s in samples)


def quantile(x, q):
    at = q * (len(x) - 1)
    i = int(at)
    return x[i] + (at - i) * (x[i + 1] - x[i]) if i + 1 < len(x) else x[-1]


def problems(words):
    """@NAME is bench/cases/NAME.txt; a word with blanks is a problem; anything else a file."""
    here = pathlib.Path(__file__).resolve().parent / "cases"
    for word in words:
        if " " in word:
            yield word
            continue
        path = pathlib.Path(word[1:]) if word.startswith("@") else pathlib.Path(word)
        path = path if path.exists() else here / f"{path}.txt"
        for line in path.read_text().splitlines():
            line = line.split("#")[0].strip()
            if line:
                yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM|@NAME|FILE")
    parser.add_argument("--run-id", required=True, help="the id of the attn bench run beside it")
    parser.add_argument("--runs", type=int, default=30, help="timed samples, at least (default 30)")
    parser.add_argument("--min-time", type=float, default=0.2, help="and seconds of timed work (default 0.2)")
    parser.add_argument("--cache", choices=("rotate", "flush", "warm"), default="rotate")
    parser.add_argument("--only", default=",".join(IMPLS), help="backends, by comma")
    args = parser.parse_args()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
    state = {"rotate": "rotated", "flush": "flushed", "warm": "warm"}[args.cache]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    torch.backends.cuda.matmul.allow_tf32 = False
    for line in problems(args.problems):
        p = parse(line)
        if not p:
            print(f"not PyTorch's: {line}", file=sys.stderr)
            continue
        for impl in args.only.split(","):
            if not wanted(impl, p):
                continue
            cudnn = f", cuDNN {torch.backends.cudnn.version()}" if impl == "cudnn" else ""
            record = {"run": args.run_id, "date": date, "commit": None, "device": torch.cuda.get_device_name(),
                      "driver": f"CUDA {torch.version.cuda}", "problem": canonical(p), "impl": impl,
                      "kernel": f"torch {torch.__version__}{cudnn}", "measure": "execution"}
            try:
                with sdpa_kernel([backends[impl]]), torch.set_grad_enabled(p["op"] == "sdpa_bwd"):
                    n, device, host = Work(torch, p, args.cache).measure(args.runs, args.min_time)
            except RuntimeError as error:  # the backend refuses, or memory is short
                words = str(error).splitlines()[0][:160]
                print(json.dumps({**record, "median_us": None, "note": words}), flush=True)
                torch.cuda.empty_cache()
                continue
            median = quantile(device, 0.5)
            record.update(median_us=round(median * 1e6, 3), p10_us=round(quantile(device, 0.1) * 1e6, 3),
                          p90_us=round(quantile(device, 0.9) * 1e6, 3), n=len(device), batch=n, clock="device",
                          host_us=round(quantile(host, 0.5) * 1e6, 3), cache=state,
                          tflops=round(flops(p) / median / 1e12, 4), gbps=round(traffic(p) / median / 1e9, 3),
                          limit_share=None, note=f"inputs {state}, CUDA events around batches of {n}")
            print(json.dumps(record), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
