# SPDX-License-Identifier: MIT
"""One call of the library: finds or makes the plan and descriptors of this combination, fills in addresses, executes.

A Call is what one combination of operator, options, dtypes, shapes and strides needs; it is kept, so that the next call of
the same combination only fills in addresses. A Frame is the C structs of one execution: each running thread has its own.
"""
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import _abi, _library
from ._errors import error
from ._library import last_error, lib, must
from ._tensor import CPU, View, address, numpy_dtype, row_major, view_dlpack, view_numpy

Options = tuple[tuple[str, Any], ...]
Builder = Callable[[_abi.attn_problem, dict[str, View], Mapping[str, Any], tuple[str, ...]], None]

MAX_CALLS = 512  # combinations that are kept; the oldest goes first
_ROLE_INDEX: dict[str, int] = {role: getattr(_abi, f"ATTN_ROLE_{role.upper()}") for role in _abi.ROLES}
# A new output lies in memory as the tensor that it mirrors does.
_MIRROR = {"out": "q", "dq": "q", "dk": "k", "dv": "v", "dkv": "kv"}
_execute = lib.attn_execute
_ndarray, _empty = np.ndarray, np.empty

# Views of another library's arrays by their type, where there is a faster way than DLPack; scratch memory on their device.
viewers: dict[type, Callable[[str, Any], View]] = {}
# What tells arrays of such a type apart, cheaper than a view, and their address: kept calls need no more of writable ones.
signatures: dict[type, Callable[[Any], tuple[tuple[Any, ...], int]]] = {}
Scratch = Callable[[int, tuple[int, int]], tuple[int, object]]

_calls: dict[tuple[Any, ...], Call] = {}
_workspaces: list[Workspace] = []


class Workspace:
    """Scratch memory on the CPU, aligned; a running execution owns one."""

    __slots__ = ("address", "buffer", "bytes")

    def __init__(self, n_bytes: int) -> None:
        self.buffer = np.empty(n_bytes + 256, np.uint8)
        start = address(self.buffer)
        self.address, self.bytes = start + -start % 256, n_bytes


class DeviceWorkspaces:
    """Scratch memory of one plan on a CUDA device, one for each stream: executions on a stream follow one another.

    attn_run has its own, but chooses the kernel, too: this serves plans that name theirs.
    """

    __slots__ = ("bytes", "context", "device", "lock", "memory", "process")

    def __init__(self, n_bytes: int, device: tuple[int, int]) -> None:
        self.bytes, self.device, self.process = n_bytes, _abi.attn_device(*device), os.getpid()
        self.context, self.lock, self.memory = _library.context(), threading.Lock(), dict[int | None, ctypes.c_void_p]()

    def execute(self, plan: int, frame: Frame) -> int:
        stream = frame.args.stream
        with self.lock:  # the launches of two threads on one stream must not mix
            if self.bytes and stream not in self.memory:
                memory = ctypes.c_void_p()
                must(lib.attn_memory_alloc(self.context, self.device, self.bytes, ctypes.byref(memory)))
                self.memory[stream] = memory
            frame.args.workspace = self.memory.get(stream)
            frame.args.workspace_bytes = self.bytes
            status: int = _execute(plan, frame.reference)
        return status

    def __del__(self) -> None:
        if self.process == os.getpid():
            for memory in self.memory.values():
                lib.attn_memory_free(self.context, self.device, memory, self.bytes)


class Frame:
    """attn_args of one execution with its tensors, in the order of Call.roles."""

    __slots__ = ("args", "reference", "tensors")

    def __init__(self, roles: tuple[str, ...], views: list[View]) -> None:
        self.args = _abi.attn_args(size=ctypes.sizeof(_abi.attn_args))
        self.reference = ctypes.byref(self.args)
        self.tensors = [describe(view) for view in views]
        for role, tensor in zip(roles, self.tensors):
            setattr(self.args, role, ctypes.addressof(tensor))


def describe(view: View) -> _abi.attn_tensor:
    """attn_tensor of a view. Of more axes than the library has, it gets the count, which the library refuses."""
    rank = len(view.shape)
    tensor = _abi.attn_tensor(data=view.address, dtype=view.dtype, rank=rank)
    tensor.device.type, tensor.device.index = view.device
    for axis in range(min(rank, len(tensor.shape))):
        tensor.shape[axis], tensor.strides[axis] = view.shape[axis], view.strides[axis]
    return tensor


class Call:
    """Everything about one combination that does not change from call to call."""

    def __init__(self, problem: _abi.attn_problem, kernel: str | None, views: dict[str, View],
                 wanted: tuple[str, ...]) -> None:
        self.problem, self.device = problem, device_of(views)
        self.plan = make_plan(problem, self.device, kernel)
        self.info = plan_info(self.plan)
        self.new = [self.allocation(role, views) for role in wanted if role not in views]
        missing = [role for role, *_ in self.new]
        if missing and self.device != CPU:
            raise error(_abi.ATTN_E_ARGUMENT, f"{missing[0]} is missing: on a CUDA device outputs are not allocated here, "
                        f"give {', '.join(missing)}", missing[0])
        self.roles = (*views, *missing)
        # A frame must not keep the first call's arrays alive.
        self.views = [view._replace(owner=None) for view in views.values()] + [view for _, _, _, _, view in self.new]
        self.workspace_bytes = self.info.workspace_bytes
        self.own = DeviceWorkspaces(self.workspace_bytes, self.device) if kernel is not None and self.device != CPU else None
        self.n_given = len(views)
        self.frames: list[Frame] = []

    def __del__(self) -> None:
        plan = getattr(self, "plan", None)
        if plan:
            lib.attn_plan_release(plan)

    def allocation(self, role: str, views: Mapping[str, View]) -> tuple[str, tuple[int, ...], np.dtype[Any], Any, View]:
        """How an output is made: role, shape in memory order, dtype, axes of the transposition (None: none), view."""
        use, expected = ctypes.c_int32(), _abi.attn_tensor()
        must(lib.attn_role_tensor(self.problem, _ROLE_INDEX[role], use, expected))
        if use.value == _abi.ATTN_USE_NONE:
            raise error(_abi.ATTN_E_ARGUMENT, f"{role} is no output of this problem", role)
        shape = tuple(expected.shape[:expected.rank])
        main = main_view(views)
        if len(main.shape) < 4 and self.problem.op not in _DENSE and role != "dsink":
            shape = shape[1:]  # sparse tensors without the batch axis
        if role == "dalibi":
            shape = views["alibi"].shape
        if role == "dmask":
            return self.mask_gradient(shape, expected.dtype, views["mask"])
        mirror = views.get(_MIRROR.get(role, ""))
        axes = list(range(len(shape)))
        if mirror is not None and len(mirror.strides) == len(shape):
            axes[:-1] = sorted(axes[:-1], key=lambda axis: -mirror.strides[axis])
        dtype = numpy_dtype(expected.dtype, main.numpy_dtype)
        order = tuple(shape[axis] for axis in axes)
        inverse = tuple(axes.index(axis) for axis in range(len(axes)))
        in_memory = row_major(order)
        strides = tuple(in_memory[axis] for axis in inverse)
        view = View(expected.dtype, shape, strides, CPU, 0, True, None, dtype)
        return role, order, dtype, None if inverse == tuple(range(len(axes))) else inverse, view

    @staticmethod
    def mask_gradient(full: tuple[int, ...], code: int, mask: View) -> tuple[str, tuple[int, ...], np.dtype[Any], Any, View]:
        """As allocation: summed over the axes on which the mask is broadcast."""
        shape = tuple(1 if stride == 0 else extent for extent, stride in zip(full, mask.strides))
        strides = tuple(0 if by == 0 else step for step, by in zip(row_major(shape), mask.strides))
        dtype = numpy_dtype(code, None)
        return "dmask", shape, dtype, None, View(code, full, strides, CPU, 0, True, None, dtype)

    def execute(self, addresses: list[int], stream: int | None, scratch: Scratch | None = None) -> list[Any]:
        """Run with the addresses of the given tensors; returns the outputs that were allocated."""
        made = []
        for _, shape, dtype, axes, _ in self.new:
            array = _empty(shape, dtype)
            addresses.append(address(array))
            made.append(array if axes is None else array.transpose(axes))
        frame = self.frames.pop() if self.frames else None
        if frame is None:
            frame = Frame(self.roles, self.views)
        for tensor, data in zip(frame.tensors, addresses):
            tensor.data = data
        if self.device != CPU and scratch is not None:
            frame.args.stream = stream
            frame.args.workspace, memory = scratch(self.workspace_bytes, self.device)
            frame.args.workspace_bytes = self.workspace_bytes
            status = _execute(self.plan, frame.reference)
            del memory  # its allocator reuses it in the order of the stream
        elif self.own is not None:
            frame.args.stream = stream
            status = self.own.execute(self.plan, frame)
        elif self.device != CPU:
            frame.args.stream = stream
            status = lib.attn_run(_library.context(), _abi.attn_device(*self.device), self.problem, frame.reference)
        elif self.workspace_bytes:
            status = self.execute_with_workspace(frame)
        else:
            status = _execute(self.plan, frame.reference)
        self.frames.append(frame)
        if status:
            raise last_error(status)
        return made

    def execute_with_workspace(self, frame: Frame) -> int:
        """On the CPU, with scratch memory that no other execution uses meanwhile."""
        workspace = _workspaces.pop() if _workspaces else None
        if workspace is None or workspace.bytes < self.workspace_bytes:
            workspace = Workspace(self.workspace_bytes)
        frame.args.workspace, frame.args.workspace_bytes = workspace.address, workspace.bytes
        status: int = _execute(self.plan, frame.reference)
        _workspaces.append(workspace)
        return status


_DENSE = (_abi.ATTN_OP_SDPA_FWD, _abi.ATTN_OP_SDPA_BWD)


def main_view(views: Mapping[str, View]) -> View:
    """The tensor whose dtype and number of axes are the problem's."""
    return views["q"] if "q" in views else views["indices"]


def device_of(views: Mapping[str, View]) -> tuple[int, int]:
    """Device of the first tensor; the library refuses others that lie elsewhere."""
    return next(iter(views.values())).device


def make_plan(problem: _abi.attn_problem, device: tuple[int, int], kernel: str | None) -> int:
    """attn_plan for a problem, on one of the kernels that match the pattern `kernel` if there is one."""
    options = _abi.attn_plan_options(size=ctypes.sizeof(_abi.attn_plan_options))
    if kernel is not None:
        options.kernel, options.flags = kernel.encode(), _abi.ATTN_PLAN_STRICT
    plan = ctypes.c_void_p()
    must(lib.attn_plan_create(_library.context(), _abi.attn_device(*device), problem, options, ctypes.byref(plan)))
    assert plan.value is not None
    return plan.value


def plan_info(plan: int) -> _abi.attn_plan_info:
    """attn_plan_info of a plan."""
    info = _abi.attn_plan_info(size=ctypes.sizeof(_abi.attn_plan_info))
    must(lib.attn_plan_get_info(plan, info))
    return info


def run(builder: Builder, op: int, inputs: Mapping[str, Any], outputs: Mapping[str, Any], wanted: tuple[str, ...],
        options: dict[str, Any], scratch: Scratch | None = None) -> dict[str, Any]:
    """Execute `op`; `wanted` outputs that are not among `outputs` are allocated. Returns all outputs by role.

    The stream is taken out of the caller's options: one plan serves every stream, so that a stream that records a graph
    finds the plan that another stream made.
    """
    stream = options.pop("stream", None)
    bf16 = options.get("dtype") == "bf16"
    key: list[Any] = [op, wanted, *options.items()]
    addresses, others = [], {}
    for tensors in (inputs, outputs):
        for role, x in tensors.items():
            if type(x) is _ndarray:
                key += (role, x.shape, x.strides, x.dtype)
                addresses.append(address(x))
                if tensors is outputs and not x.flags.writeable:
                    raise error(_abi.ATTN_E_ARGUMENT, f"{role} is read-only", role)
            elif (signature := signatures.get(type(x))) is not None:
                told, where = signature(x)
                key += (role, told)
                addresses.append(where)
            else:
                view = others[role] = foreign(role, x, stream, bf16)
                key += (role, view.shape, view.strides, view.dtype, view.device)
                addresses.append(view.address)
                if tensors is outputs and not view.writable:
                    raise error(_abi.ATTN_E_ARGUMENT, f"{role} is read-only", role)
    found = tuple(key)
    try:
        call = _calls.get(found)
    except TypeError:
        raise error(_abi.ATTN_E_ARGUMENT, "options are numbers, words and tuples") from None
    if call is None:
        views = {role: others[role] if role in others else foreign(role, x, stream, bf16)
                 for tensors in (inputs, outputs) for role, x in tensors.items()}
        call = _calls[found] = prepare(builder, op, views, wanted, options)
        if len(_calls) > MAX_CALLS:
            _calls.pop(next(iter(_calls)), None)
    made = call.execute(addresses, stream, scratch)
    results = dict(outputs)
    for (role, *_), array in zip(call.new, made):
        results[role] = array
    return results


def foreign(role: str, x: Any, stream: int | None, bf16: bool) -> View:
    """View of an array of any kind."""
    if isinstance(x, np.ndarray):
        return view_numpy(role, x, bf16)
    viewer = viewers.get(type(x))
    if viewer is not None:
        return viewer(role, x)
    return view_dlpack(role, x, stream)


def prepare(builder: Builder, op: int, views: dict[str, View], wanted: tuple[str, ...],
            options: Mapping[str, Any]) -> Call:
    """The Call of a combination that is new."""
    problem = _abi.attn_problem(size=ctypes.sizeof(_abi.attn_problem), op=op, dtype=main_view(views).dtype)
    builder(problem, views, options, wanted)
    return Call(problem, options.get("kernel"), views, wanted)


def clear_cache() -> None:
    """Release every kept plan, descriptor and workspace."""
    _calls.clear()
    _workspaces.clear()


def _after_fork() -> None:
    """A child may only release objects of its parent's context."""
    clear_cache()
    _library.forget_context()


os.register_at_fork(after_in_child=_after_fork)
