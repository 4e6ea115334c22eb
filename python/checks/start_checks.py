# SPDX-License-Identifier: MIT
"""How long the first call on a device takes in a fresh process, with and without the driver's cache of compiled PTX."""

import json
import os
import subprocess
import sys

from record import check

PROGRAM = """
import json, sys
from time import perf_counter
import torch
device, op = sys.argv[1:]
bf16, ms = torch.bfloat16, {}
def done():
    if device.startswith("cuda"): torch.cuda.synchronize()
    return perf_counter()
q = torch.randn(1, 8, 256, 128, device=device).to(bf16).requires_grad_()
sparse_q, kv = (torch.randn(*x, device=device).to(bf16).requires_grad_() for x in ((16, 64, 576), (300, 1, 576)))
slots = torch.randint(0, 300, (16, 1, 128), device=device, dtype=torch.int32)
start = done()
import libattn.torch as lt
ms["import"] = done() - start
call = (lambda: lt.sdpa(q, q, q, causal=True)) if op == "sdpa" else (lambda: lt.mla(sparse_q, kv, slots))
for name in ("first call", "second call"):
    start = done(); out = call(); ms[name] = done() - start
for name in ("first backward", "second backward"):
    start = done(); out.sum().backward(retain_graph=True); ms[name] = done() - start
print(json.dumps({name: round(1e3 * x, 2) for name, x in ms.items()}))
"""


def times(case, op, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(case.device), op],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    case.must(done.returncode == 0, done.stderr[-1500:])
    return json.loads(done.stdout)


def record(case, label, op, **environment):
    for name, ms in times(case, op, **environment).items():
        case.measured[f"{label}: ms of {name}"] = ms


@check
def first_call_sdpa(case):
    if case.cuda:
        record(case, "compiled by the driver", "sdpa", CUDA_CACHE_DISABLE="1")
    times(case, "sdpa")
    record(case, "again", "sdpa")


@check
def first_call_mla(case):
    if case.cuda:
        record(case, "compiled by the driver", "mla", CUDA_CACHE_DISABLE="1")
    times(case, "mla")
    record(case, "again", "mla")
