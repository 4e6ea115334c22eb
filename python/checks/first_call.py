# SPDX-License-Identifier: MIT
"""Milliseconds of importing libattn.torch and of the first calls of an operator in this process, as one line of JSON.

usage: first_call.py DEVICE sdpa|mla
"""
import json
import sys
from time import perf_counter

import torch

device, operator = sys.argv[1:]


def done():
    """Now, when the device has nothing left to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return perf_counter()


def random(*shape):
    return torch.randn(shape, device=device).bfloat16().requires_grad_()


q, sparse_q, kv = random(1, 8, 256, 128), random(16, 64, 576), random(300, 1, 576)
slots, ms = torch.randint(0, 300, (16, 1, 128), device=device, dtype=torch.int32), {}
start = done()
from libattn import torch as lt  # noqa: E402

ms["import"] = done() - start
for name in ("first call", "second call"):
    start = done()
    out = lt.sdpa(q, q, q, causal=True) if operator == "sdpa" else lt.mla(sparse_q, kv, slots)
    ms[name] = done() - start
for name in ("first backward", "second backward"):
    start = done()
    out.sum().backward(retain_graph=True)
    ms[name] = done() - start
print(json.dumps({name: round(1e3 * seconds, 2) for name, seconds in ms.items()}))
