#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure what ONNX Runtime, PyTorch and oneDNN offer for the same problems on this processor, as records that join with
`attn bench --json`.

    python3 -m pip install onnxruntime numpy torch
    attn bench --json --run-id R --threads 2 @cpu > attn.jsonl
    python3 bench/peers_cpu.py --run-id R --threads 2 @cpu > peers.jsonl
    python3 bench/table.py attn.jsonl peers.jsonl

Each dense forward in f32 or f16 is given to every operator of ONNX Runtime that can say it: MultiHeadAttention,
GroupQueryAttention (always causal; with a cache, its buffers shared so that no copy is timed) and the standard's
Attention. PyTorch's scaled_dot_product_attention gets dense forwards and backwards in f32, f16 and bf16. oneDNN's graph
API gets dense forwards where ONEDNN_LIBRARY names its library (bench/peers_onednn.py says how to build it). Measured as
`attn bench` measures on a CPU: after warm-up, single runs by the host's clock, the last-level cache overwritten before
each. An operator that refuses a problem gives a record without times, with its words.
Records: docs/json.md. Run both in the same minutes on a machine that does nothing else.
"""
import argparse
import datetime
import json
import math
import os
import pathlib
import sys
import time

import peers_onednn
from peers_timing import problems, quantile
from peers_torch import canonical, flops, parse, traffic

MOST_RANDOM = 1 << 22  # numbers of a tensor; more are the same again
# PyTorch's tensors on large pages, like those of NumPy (which ONNX Runtime reads in place) and of attn bench.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

def flush_bytes():
    """Twice the last-level cache, as attn bench does."""
    try:
        size = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        cache = int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
    except OSError:
        cache = 256 << 20
    return min(max(2 * cache, 64 << 20), 1 << 30)


def device_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "CPU"


# A model of one node in the wire format of protocol buffers, fields as numbered in onnx.proto: the runtime reads
# models, and the package that writes them is not needed for this.
def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number, value):
    """A field of a message: an int, a text, or the bytes of another message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def node_bytes(kind, inputs, outputs, domain="", **attributes):
    message = b"".join(field(1, n) for n in inputs) + b"".join(field(2, n) for n in outputs) + field(4, kind)
    for name, value in attributes.items():
        message += field(5, field(1, name) + field(3, value) + field(20, 2))
    return message + field(7, domain)


def model_bytes(node, values, outputs, opset):
    def info(name, array):
        types = {"float32": 1, "int32": 6, "float16": 10}
        shape = b"".join(field(1, field(1, extent)) for extent in array.shape)
        return field(1, name) + field(2, field(1, field(1, types[str(array.dtype)]) + field(2, shape)))

    graph = field(1, node) + field(2, "one")
    graph += b"".join(field(11, info(n, a)) for n, a in values.items())
    graph += b"".join(field(12, info(n, a)) for n, a in outputs.items())
    sets = field(8, field(1, "") + field(2, opset)) + field(8, field(1, "com.microsoft") + field(2, 1))
    return field(1, 10) + sets + field(7, graph)


class Session:
    """One node with its inputs bound; call to run it."""

    def __init__(self, threads, node, values, outputs, shared=(), opset=17):
        import onnxruntime as ort

        model = model_bytes(node, values, outputs, opset)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.kept = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in {**values, **outputs}.items()}
        for name, out in shared:  # a cache that is read and extended in place
            self.kept[out] = self.kept[name]
        for name in values:
            self.binding.bind_ortvalue_input(name, self.kept[name])
        for name in outputs:
            self.binding.bind_ortvalue_output(name, self.kept[name])

    def __call__(self):
        self.session.run_with_iobinding(self.binding)


def random_arrays(dtype):
    """A maker of NumPy's arrays of random numbers, by their extents."""
    import numpy as np

    rng = np.random.default_rng(1)

    def tensor(*shape):
        some = rng.standard_normal(min(math.prod(shape), MOST_RANDOM), dtype=np.float32).astype(dtype)
        return np.resize(some, shape)

    return tensor


def operators(p, threads):
    """(name, maker) of the operators that can express the problem."""
    import numpy as np

    tensor = random_arrays({"f32": np.float32, "f16": np.float16}[p["dtype"]])
    b, hq, hk, sq, sk, d, dv = (p[k] for k in ("b", "hq", "hk", "sq", "sk", "d", "dv"))

    def multi_head():
        values = {"q": tensor(b, sq, hq * d), "k": tensor(b, sk, hk * d), "v": tensor(b, sk, hk * dv)}
        node = node_bytes("MultiHeadAttention", values, ["o"], "com.microsoft", num_heads=hq,
                          unidirectional=int(p["causal"]))
        return Session(threads, node, values, {"o": tensor(b, sq, hq * dv)})

    def group_query():
        cache = (b, hk, sk, d)
        values = {"q": tensor(b, sq, hq * d), "k": tensor(b, sq, hk * d), "v": tensor(b, sq, hk * d),
                  "past_k": tensor(*cache), "past_v": tensor(*cache),
                  "last": np.full((b,), sk - 1, np.int32), "total": np.array([sk], np.int32)}
        node = node_bytes("GroupQueryAttention", values, ["o", "now_k", "now_v"], "com.microsoft", num_heads=hq,
                          kv_num_heads=hk)
        outputs = {"o": tensor(b, sq, hq * d), "now_k": values["past_k"], "now_v": values["past_v"]}
        return Session(threads, node, values, outputs, shared=(("past_k", "now_k"), ("past_v", "now_v")))

    def standard():
        values = {"q": tensor(b, hq, sq, d), "k": tensor(b, hk, sk, d), "v": tensor(b, hk, sk, dv)}
        node = node_bytes("Attention", values, ["o"], is_causal=int(p["causal"]))
        return Session(threads, node, values, {"o": tensor(b, hq, sq, dv)}, opset=23)

    if hq == hk:
        yield "MultiHeadAttention", multi_head
    if d == dv and ((p["causal"] and sq == sk) or sq == 1):
        yield "GroupQueryAttention", group_query
    yield "Attention", standard


def torch_call(p, threads):
    """The dense operators of PyTorch; the backward is that of a forward done before."""
    import torch

    torch.set_num_threads(threads)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[p["dtype"]]
    back = p["op"] == "sdpa_bwd"
    generator = torch.Generator().manual_seed(1)

    def tensor(heads, rows, width):
        n = p["b"] * heads * rows * width
        some = torch.randn(min(n, MOST_RANDOM), generator=generator).to(dtype)
        x = some.repeat(-(-n // MOST_RANDOM))[:n].reshape(p["b"], heads, rows, width).contiguous()
        return x.requires_grad_(back)

    q, k, v = (tensor(p["hq"], p["sq"], p["d"]), tensor(p["hk"], p["sk"], p["d"]), tensor(p["hk"], p["sk"], p["dv"]))

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(p["causal"]),
                                                                enable_gqa=p["hq"] != p["hk"])

    if not back:
        return forward
    out = forward()
    grad = torch.randn(out.shape, generator=generator).to(dtype)
    return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)


def default_peers():
    return "onnxruntime,torch" + ",onednn" * peers_onednn.available()


def peers(p, threads, only):
    """(implementation, kernel, maker) of what there is for the problem."""
    if "onnxruntime" in only and p["op"] == "sdpa_fwd" and p["dtype"] in ("f32", "f16"):
        import onnxruntime as ort

        for name, make in operators(p, threads):
            yield "onnxruntime", f"{name}, {ort.__version__}", make
    if "torch" in only and p["op"] in ("sdpa_fwd", "sdpa_bwd") and p["dtype"] != "f64":
        import torch

        yield "torch", f"scaled_dot_product_attention, {torch.__version__}", lambda: torch_call(p, threads)
    if "onednn" in only and p["op"] == "sdpa_fwd" and p["dtype"] != "f64":
        yield "onednn", f"graph, {peers_onednn.Library().version()}", lambda: peers_onednn.make(p, threads, random_arrays("f4"))


def measure(call, runs, min_time, max_time, flush):
    call()
    samples, total = [], 0.0
    while len(samples) < runs or total < min_time:
        flush += 1  # overwrites what the caches hold
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
        total += samples[-1]
        if total > max_time and len(samples) >= 3:
            break
    return sorted(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM|@NAME|FILE")
    parser.add_argument("--run-id", required=True, help="the id of the attn bench run beside it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=30, help="timed samples, at least (default 30)")
    parser.add_argument("--min-time", type=float, default=0.2, help="and seconds of timed work (default 0.2)")
    parser.add_argument("--max-time", type=float, default=20, help="but stop after that many (default 20)")
    parser.add_argument("--cache", default="flush", choices=("flush", "warm"), help="as of attn bench (default flush)")
    parser.add_argument("--only", default=default_peers(), help="peers, default onnxruntime,torch and, with ONEDNN_LIBRARY, onednn")
    args = parser.parse_args()
    import numpy as np

    warm = args.cache == "warm"
    flush = np.zeros(1 if warm else flush_bytes() // 8, np.int64)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    for _, line in problems(args.problems):
        p = parse(line)
        found = list(peers(p, args.threads, args.only.split(","))) if p else []
        if not found:
            print(f"no peer's: {line}", file=sys.stderr)
        for impl, name, make in found:
            record = {"run": args.run_id, "date": date, "commit": None, "device": device_name(), "driver": None,
                      "problem": canonical(p), "impl": impl, "kernel": name,
                      "measure": "execution"}
            try:
                x = measure(make(), args.runs, args.min_time, args.max_time, flush)
            except Exception as error:  # whatever the runtime says: no such kernel, unknown type, memory
                words = str(error).splitlines()[0][:160]
                print(json.dumps({**record, "median_us": None, "note": words}), flush=True)
                continue
            median = quantile(x, 0.5)
            record.update(median_us=round(median * 1e6, 3), p10_us=round(quantile(x, 0.1) * 1e6, 3),
                          p90_us=round(quantile(x, 0.9) * 1e6, 3), n=len(x), batch=1, clock="host", host_us=None,
                          cache="warm" if warm else "flushed", tflops=round(flops(p) / median / 1e12, 6),
                          gbps=round(traffic(p) / median / 1e9, 3), limit_share=None,
                          note=("caches warm" if warm else "last-level cache flushed") + f", {args.threads} threads")
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
