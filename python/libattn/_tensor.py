# SPDX-License-Identifier: MIT
"""What an argument is to the library: NumPy arrays and anything with DLPack as dtype, shape, strides, device, address.

Nothing is copied. A DLPack capsule is borrowed: it is kept for the call and never consumed, so its owner frees it.
"""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import _abi
from ._errors import error

CPU = (_abi.ATTN_DEVICE_TYPE_CPU, 0)


class SupportsDLPack(Protocol):
    """An array of another library."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class View(NamedTuple):
    """One tensor as the library sees it; strides in elements."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]
    address: int
    writable: bool
    owner: object
    numpy_dtype: np.dtype[Any] | None


DTYPE_WORDS = {"f32": _abi.ATTN_F32, "f16": _abi.ATTN_F16, "bf16": _abi.ATTN_BF16, "f64": _abi.ATTN_F64}
_BY_NAME = {"bfloat16": _abi.ATTN_BF16, "float8_e4m3fn": _abi.ATTN_E4M3}  # of ml_dtypes
_NUMPY: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): _abi.ATTN_F32, np.dtype(np.float16): _abi.ATTN_F16, np.dtype(np.float64): _abi.ATTN_F64,
    np.dtype(np.int32): _abi.ATTN_I32, np.dtype(np.int64): _abi.ATTN_I64, np.dtype(np.bool_): _abi.ATTN_BOOL,
    np.dtype(np.uint8): _abi.ATTN_BOOL}
_FROM_CODE: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _NUMPY.items() if dtype != np.uint8}


def numpy_dtype(code: int, like: np.dtype[Any] | None) -> np.dtype[Any]:
    """dtype of an array that is allocated for `code`; bf16 has that of `like`, else ml_dtypes' or uint16."""
    if code != _abi.ATTN_BF16:
        return _FROM_CODE[code]
    if like is not None and (like == np.uint16 or like.name == "bfloat16"):
        return like
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


# ---- NumPy
_read_pointer = ctypes.c_void_p.from_address
_HEADER = object.__basicsize__


def address(array: np.ndarray[Any, Any]) -> int:
    """Address of an array's first element: the word after the object's header, by NumPy's binary interface. The documented
    ways (array.ctypes, __array_interface__) take a microsecond, as long as the rest of a call."""
    return _read_pointer(id(array) + _HEADER).value or 0


if any(address(x) != x.__array_interface__["data"][0] for x in (np.zeros(2), np.zeros((3, 4), np.int8)[1:, ::-2])):
    def address(array: np.ndarray[Any, Any]) -> int:
        """Address of an array's first element, where objects are laid out in another way."""
        found: int = array.__array_interface__["data"][0]
        return found


def view_numpy(role: str, array: np.ndarray[Any, Any], bf16: bool) -> View:
    """View of an array; `bf16`: the caller says that 16-bit unsigned integers are bf16."""
    if isinstance(array, np.ma.MaskedArray):
        raise error(_abi.ATTN_E_ARGUMENT, f"{role} is a masked array, whose mask would be ignored: pass the plain array "
                    "and a mask", role)
    code = _NUMPY.get(array.dtype)
    if code is None:
        code = _abi.ATTN_BF16 if bf16 and array.dtype == np.uint16 else _BY_NAME.get(array.dtype.name)
    if code is None:
        hint = " (dtype=\"bf16\" says that it holds bf16)" if array.dtype == np.uint16 else ""
        raise error(_abi.ATTN_E_DTYPE, f"{role} has dtype {array.dtype.str}, which libattn has not{hint}", role)
    size = array.itemsize
    if any(stride % size for stride, extent in zip(array.strides, array.shape) if extent > 1):
        raise error(_abi.ATTN_E_STRIDE, f"{role} has strides of {array.strides} bytes, no multiples of its element's "
                    f"{size}", role)
    return View(code, array.shape, tuple(stride // size for stride in array.strides), CPU, address(array),
                array.flags.writeable, array, array.dtype)


# ---- DLPack, its published structs.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_DL_DTYPES = {(2, 32): _abi.ATTN_F32, (2, 16): _abi.ATTN_F16, (4, 16): _abi.ATTN_BF16, (2, 64): _abi.ATTN_F64,
              (0, 32): _abi.ATTN_I32, (0, 64): _abi.ATTN_I64, (6, 8): _abi.ATTN_BOOL, (1, 8): _abi.ATTN_BOOL,
              (10, 8): _abi.ATTN_E4M3}
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_READ_ONLY = 1


def _capsule(array: SupportsDLPack, stream: int | None) -> Any:
    """A capsule of either kind. On a CUDA device the owner makes it wait for the stream that will read it."""
    words: dict[str, Any] = {}
    if int(array.__dlpack_device__()[0]) in (_DL_CUDA, _DL_CUDA_MANAGED):
        words["stream"] = stream or 1  # 1 is the legacy default stream
    try:
        return array.__dlpack__(max_version=(1, 0), **words)  # type: ignore[call-arg]
    except TypeError:  # a producer from before version 1
        return array.__dlpack__(**words)


def view_dlpack(role: str, array: Any, stream: int | None) -> View:
    """View of another library's array."""
    if not hasattr(array, "__dlpack__"):
        raise error(_abi.ATTN_E_ARGUMENT, f"{role} is {type(array).__name__}: a NumPy array or one with DLPack is "
                    "expected", role)
    capsule = _capsule(array, stream)
    writable = True
    if _capsule_is(capsule, b"dltensor_versioned"):
        versioned = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise error(_abi.ATTN_E_ARGUMENT, f"{role}: DLPack {versioned.major} is not known", role)
        tensor, writable = versioned.tensor, not versioned.flags & _DL_READ_ONLY
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    code = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if code is None:
        raise error(_abi.ATTN_E_DTYPE, f"{role} has a dtype that libattn has not (DLPack code {tensor.code}, "
                    f"{tensor.bits} bits, {tensor.lanes} lanes)", role)
    if tensor.device_type in (_DL_CPU, _DL_CUDA_HOST):
        device = CPU
    elif tensor.device_type in (_DL_CUDA, _DL_CUDA_MANAGED):
        device = (_abi.ATTN_DEVICE_TYPE_CUDA, int(tensor.device_id))
    else:
        raise error(_abi.ATTN_E_TENSOR_DEVICE, f"{role} is on a device of DLPack type {tensor.device_type}, neither CPU "
                    "nor CUDA", role)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
    else:
        strides = row_major(shape)
    return View(code, shape, strides, device, (tensor.data or 0) + tensor.byte_offset, writable, (array, capsule), None)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))
