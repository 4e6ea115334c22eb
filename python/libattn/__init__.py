# SPDX-License-Identifier: MIT
"""Fused attention, forward and backward, on CPU and NVIDIA GPUs, for NumPy arrays and anything with DLPack.

    import libattn
    out = libattn.sdpa(q, k, v, causal=True)                 # q [B,HQ,SQ,D], k and v [B,HK,SK,D]
    out, lse = libattn.sdpa(q, k, v, causal=True, return_lse=True)
    dq, dk, dv, *_ = libattn.sdpa_backward(dout, q, k, v, out, lse, causal=True)

The package needs NumPy alone; torch is imported by libattn.torch only. docs/python.md has every option.
"""
from ._check import check
from ._dense import SdpaGradients, sdpa, sdpa_backward
from ._engine import clear_cache
from ._errors import ArgumentError, AttnError, DeviceError, OutOfMemoryError, UnsupportedError
from ._merge import merge
from ._listing import Device, Kernel, Plan, devices, explain, kernels, plan, version
from ._sparse import MlaGradients, dist, mla, mla_backward, mla_join
from ._trace import Problem, Trace, read_trace, recording

__all__ = [
    "ArgumentError", "AttnError", "Device", "DeviceError", "Kernel", "MlaGradients", "OutOfMemoryError", "Plan",
    "Problem", "SdpaGradients", "Trace", "UnsupportedError", "check", "clear_cache", "devices", "dist",
    "explain", "kernels", "merge", "mla", "mla_backward", "mla_join", "plan", "read_trace", "recording", "sdpa", "sdpa_backward",
    "version",
]
