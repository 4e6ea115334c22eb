# SPDX-License-Identifier: MIT
"""Time that Python adds to a call of the C library: python python/overhead.py

A problem so small that its kernel takes a microsecond, on one thread; the best of many rounds of each way to call it.
"""
import importlib.util
import os
import timeit

os.environ.setdefault("ATTN_THREADS", "1")
import libattn  # noqa: E402
import numpy as np  # noqa: E402
from libattn import _engine  # noqa: E402


def best(function, number=500, rounds=400):
    """Microseconds of a call."""
    return min(timeit.repeat(function, number=number, repeat=rounds)) / number * 1e6


def main():
    q = np.ones((1, 1, 4, 16), np.float32)
    out, lse = np.empty_like(q), np.empty((1, 1, 4), np.float32)
    libattn.clear_cache()
    libattn.sdpa(q, q, q, out=out, lse=lse, return_lse=True, causal=True)
    (call,) = _engine._calls.values()
    call.execute([x.ctypes.data for x in (q, q, q, out, lse)], None)
    (frame,), (workspace,) = call.frames, _engine._workspaces or [None]
    if workspace:
        frame.args.workspace, frame.args.workspace_bytes = workspace.address, workspace.bytes
    execute, plan, args = _engine._execute, call.plan, frame.reference
    through_ctypes = best(lambda: execute(plan, args))
    nothing = best(lambda: _engine.lib.attn_version()) - best(lambda: None)
    print(f"attn_execute, args filled in, through ctypes   {through_ctypes:6.2f} us ({nothing:.2f} of them ctypes)")
    calls = [("sdpa(q, k, v)", lambda: libattn.sdpa(q, q, q)),
             ("sdpa(q, k, v, out=out)", lambda: libattn.sdpa(q, q, q, out=out)),
             ("sdpa(q, k, v, causal=True, return_lse=True)", lambda: libattn.sdpa(q, q, q, causal=True, return_lse=True))]
    if importlib.util.find_spec("torch"):
        import torch
        from libattn import torch as on_torch

        x = torch.from_numpy(q)
        calls.append(("libattn.torch.sdpa(q, k, v)", lambda: on_torch.sdpa(x, x, x)))
    for text, function in calls:
        took = best(function)
        print(f"{text:46} {took:6.2f} us: {took - through_ctypes + nothing:.2f} over the C call")


if __name__ == "__main__":
    main()
