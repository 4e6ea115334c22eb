# SPDX-License-Identifier: MIT
"""Test files that say "cuda" on a machine without a GPU: their tensors are made on the CPU. For trying the driver itself."""

from __future__ import annotations

import types

import torch
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):
    """Every function of torch with a CUDA device among its arguments gets the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_moved, args), **{name: _moved(x) for name, x in (kwargs or {}).items()})


def _moved(x):
    return torch.device("cpu") if isinstance(x, (str, torch.device)) and str(x).startswith("cuda") else x


def install():
    """For the rest of the process."""
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 40, multi_processor_count=132)
    for name in ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_: None)
    set_default = torch.set_default_device
    torch.set_default_device = lambda device: set_default(_moved(device))
    _OnCpu().__enter__()
