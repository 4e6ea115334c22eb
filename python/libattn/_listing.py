# SPDX-License-Identifier: MIT
"""What the library can say about itself: kernels, devices, the plan of a problem text and why it was chosen."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import _abi, _engine, _library
from ._library import lib, must, text_of


@dataclass(frozen=True)
class Kernel:
    """A kernel of this build, in the order plans consider them."""

    name: str
    op: str
    dtype: str
    arch: str
    usable: bool
    deterministic: bool
    summary: str


@dataclass(frozen=True)
class Device:
    """A device that plans can be made for."""

    type: str
    index: int
    name: str
    features: str


@dataclass(frozen=True)
class Plan:
    """What a plan would run."""

    kernel: str
    arch: str
    deterministic: bool
    workspace_bytes: int
    flops: float
    estimate_seconds: float
    group: int  #: neighbouring queries whose index lists it joins (mla_join), else 0


OPS = {value: name.removeprefix("ATTN_OP_").lower() for name, value in vars(_abi).items() if name.startswith("ATTN_OP_")}
_DEVICES = {_abi.ATTN_DEVICE_TYPE_CPU: "cpu", _abi.ATTN_DEVICE_TYPE_CUDA: "cuda"}


def parse(problem: str) -> _abi.attn_problem:
    """attn_problem of a line of docs/problem-text.md."""
    parsed = _abi.attn_problem()
    must(lib.attn_problem_parse(problem.encode(), parsed))
    return parsed


def _device(text: str) -> _abi.attn_device:
    kind, _, index = text.partition(":")
    number = {word: value for value, word in _DEVICES.items()}.get(kind)
    if number is None or not (index.isdigit() or not index):
        raise ValueError(f"device is {text!r}; expected cpu, cuda or cuda:1")
    return _abi.attn_device(number, int(index or 0))


def kernels() -> list[Kernel]:
    """Every kernel of this build."""
    found, info = [], _abi.attn_kernel_info()
    for index in range(lib.attn_kernel_count(_library.context())):
        info.size = ctypes.sizeof(info)
        must(lib.attn_kernel_get_info(_library.context(), index, info))
        found.append(Kernel(info.name.decode(), OPS[info.op], lib.attn_dtype_name(info.dtype).decode(), info.arch.decode(),
                            bool(info.usable), bool(info.deterministic), info.summary.decode()))
    return found


def devices() -> list[Device]:
    """The CPU, then every CUDA device."""
    found, info = [], _abi.attn_device_info()
    for index in range(lib.attn_device_count(_library.context())):
        info.size = ctypes.sizeof(info)
        must(lib.attn_device_get_info(_library.context(), index, info))
        found.append(Device(_DEVICES[info.device.type], info.device.index, info.name.decode(), info.features.decode()))
    return found


def plan(problem: str, device: str = "cpu", kernel: str | None = None) -> Plan:
    """The plan of a problem text, as in plan("sdpa_fwd b=1 hq=8 sq=512 d=64 bf16 causal")."""
    where = _device(device)
    handle = _engine.make_plan(parse(problem), (where.type, where.index), kernel)
    try:
        info = _engine.plan_info(handle)
    finally:
        lib.attn_plan_release(handle)
    return Plan(info.kernel.decode(), info.arch.decode(), bool(info.deterministic), info.workspace_bytes, info.flops,
                info.estimate_seconds, info.group)


def explain(problem: str, device: str = "cpu") -> str:
    """One line per kernel: accepted with its estimate, or the reason of its refusal."""
    return text_of("attn_explain", _library.context(), _device(device), parse(problem), None)


def version() -> str:
    """Version of the shared library that runs."""
    number = lib.attn_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"
