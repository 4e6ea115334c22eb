#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure what PyTorch offers for the same problems, as records that join with those of `attn bench --json`.

    attn bench --device cuda:0 --json --run-id R @dense > attn.jsonl
    python3 bench/peers_torch.py --run-id R bench/cases/dense.txt > peers.jsonl

Each problem of the file that PyTorch's scaled_dot_product_attention can express (dense, no window, softcap, ALiBi) runs on
its backends cuDNN, FlashAttention-2 ("fa2") and memory-efficient attention ("efficient"). CUDA events around each run, at
least 30 runs after warm-up, a buffer larger than the L2 cache overwritten between runs. Records: docs/json.md.
"""
import argparse
import datetime
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
KNOWN = {"b", "hq", "hk", "sq", "sk", "d", "dv"}


def parse(line):
    """A problem text as a dict, or None if PyTorch has no such operator."""
    words = line.split()
    if not words or words[0] not in ("sdpa_fwd", "sdpa_bwd"):
        return None
    p = {"op": words[0], "b": 1, "causal": False}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if word in DTYPES:
            p["dtype"] = word
        elif word == "causal":
            p["causal"] = True
        elif key in KNOWN and value:
            p[key] = int(value)
        else:
            return None
    p.setdefault("hk", p["hq"])
    p.setdefault("sk", p["sq"])
    p.setdefault("dv", p["d"])
    if p.get("dtype") not in DTYPES or (p["causal"] and p["sq"] != p["sk"]):
        return None
    return p


def flops(p):
    pairs = p["sq"] * p["sk"] if not p["causal"] else p["sq"] * (p["sq"] + 1) // 2
    per_pair = 2 * (p["d"] + p["dv"]) if p["op"] == "sdpa_fwd" else 2 * (3 * p["d"] + 2 * p["dv"])
    return p["b"] * p["hq"] * pairs * per_pair


def measure(p, backend, runs):
    def tensor(heads, length, width):
        t = torch.randn(p["b"], heads, length, width, device="cuda", dtype=DTYPES[p["dtype"]])
        return t.requires_grad_(p["op"] == "sdpa_bwd")

    q, k, v = tensor(p["hq"], p["sq"], p["d"]), tensor(p["hk"], p["sk"], p["d"]), tensor(p["hk"], p["sk"], p["dv"])
    flush = torch.empty(256 << 20, device="cuda", dtype=torch.int8)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"], enable_gqa=p["hk"] != p["hq"])

    with sdpa_kernel([backend]):
        if p["op"] == "sdpa_fwd":
            work = torch.no_grad()(forward)
        else:
            out = forward()
            grad = torch.randn_like(out)

            def work():
                torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

        for _ in range(5):
            work()
        times = []
        for _ in range(runs):
            flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", default="cudnn,fa2,efficient", help="backends, by comma")
    parser.add_argument("--forward", action="store_true", help="only sdpa_fwd problems")
    args = parser.parse_args()
    lines = [line.split("#")[0].strip() for name in args.files for line in open(name)]
    for line in lines:
        p = parse(line)
        if not p or (args.forward and p["op"] != "sdpa_fwd"):
            continue
        for impl in args.only.split(","):
            record = {
                "run": args.run_id,
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "commit": None,
                "device": torch.cuda.get_device_name(),
                "driver": None,
                "problem": line,
                "impl": impl,
                "kernel": f"torch {torch.__version__}",
            }
            try:
                t = measure(p, BACKENDS[impl], args.runs)
            except RuntimeError as error:  # the backend refuses: no record, but said
                print(json.dumps({**record, "median_us": None, "note": str(error).splitlines()[0][:120]}), flush=True)
                continue
            median = statistics.median(t)
            record.update(
                median_us=round(median, 3), p10_us=round(t[len(t) // 10], 3), p90_us=round(t[len(t) * 9 // 10], 3), n=len(t),
                tflops=round(flops(p) / median / 1e6, 3), gbps=None, limit_share=None, note="L2 overwritten between runs, CUDA events",
            )
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
