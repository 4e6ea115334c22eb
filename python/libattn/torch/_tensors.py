# SPDX-License-Identifier: MIT
"""torch tensors as the engine sees them, and memory from torch's allocator."""
from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _abi, _engine
from .._errors import error
from .._tensor import CPU, DTYPE_WORDS, View

DTYPES = {torch.float32: _abi.ATTN_F32, torch.float16: _abi.ATTN_F16, torch.bfloat16: _abi.ATTN_BF16,
          torch.float64: _abi.ATTN_F64, torch.int32: _abi.ATTN_I32, torch.int64: _abi.ATTN_I64,
          torch.bool: _abi.ATTN_BOOL, torch.uint8: _abi.ATTN_BOOL, torch.float8_e4m3fn: _abi.ATTN_E4M3}


_WORDS = {word: dtype for word, code in DTYPE_WORDS.items() for dtype, known in DTYPES.items() if known == code}


def view(role: str, x: torch.Tensor) -> View:
    """View of a tensor; the memory belongs to the caller."""
    code = DTYPES.get(x.dtype)
    if code is None:
        raise error(_abi.ATTN_E_DTYPE, f"{role} has dtype {x.dtype}, which libattn has not", role)
    if x.device.type == "cpu":
        device = CPU
    elif x.device.type == "cuda":
        device = (_abi.ATTN_DEVICE_TYPE_CUDA, x.device.index)
    else:
        raise error(_abi.ATTN_E_TENSOR_DEVICE, f"{role} is on {x.device}, neither CPU nor CUDA", role)
    return View(code, tuple(x.shape), x.stride(), device, x.data_ptr(), True, None, None)


def signature(x: torch.Tensor) -> tuple[tuple[Any, ...], int]:
    """What tells tensors apart, and the address."""
    return (x.shape, x.stride(), x.dtype, x.device), x.data_ptr()


for _type in (torch.Tensor, torch.nn.Parameter):
    _engine.viewers[_type], _engine.signatures[_type] = view, signature
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the time of current_stream()
_below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", None)


def _tangent(x: torch.Tensor) -> torch.Tensor | None:
    """Of a dual tensor; None for others."""
    return forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call,no-any-return]


def call(op: Any, tensors: tuple[torch.Tensor | None, ...], *rest: Any) -> Any:
    """Call an operator on its tensors and other arguments. Where no gradient is asked for, autograd's wrapper, which
    looks through all arguments, is left out."""
    if torch.compiler.is_compiling():
        return op(*tensors, *rest)
    if forward_ad._current_level >= 0:  # torch would take such an operator's tangents for zero
        if any(x is not None and _tangent(x) is not None for x in tensors):
            raise error(_abi.ATTN_E_FEATURE, "libattn has no forward-mode derivatives")
    if _below_autograd is None or torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return op(*tensors, *rest)
    with _below_autograd():
        return op(*tensors, *rest)


def scratch(n_bytes: int, device: tuple[int, int]) -> tuple[int, object]:
    """Workspace on a CUDA device; the caching allocator hands it on in the order of the stream, in graphs, too."""
    if not n_bytes:
        return 0, None
    memory = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{device[1]}")
    return memory.data_ptr(), memory


def stream(x: torch.Tensor) -> dict[str, Any]:
    """The option that names torch's current stream."""
    if not x.is_cuda:
        return {}
    if _raw_stream is not None:
        return {"stream": _raw_stream(x.device.index)}
    return {"stream": torch.cuda.current_stream(x.device).cuda_stream}


def unit(x: torch.Tensor) -> torch.Tensor:
    """The library wants an innermost stride of 1; other outer strides are free."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def empty_like(x: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """New tensor in the shape of x with rows of `width`: [B,H,S,D] in memory order if x is, else in [B,S,H,D]'s."""
    *outer, heads, rows, _ = x.shape
    if x.stride(-3) < x.stride(-2):
        return x.new_empty((*outer, rows, heads, width), dtype=dtype).transpose(-3, -2)
    return x.new_empty((*outer, heads, rows, width), dtype=dtype)


def out_dtype(q: torch.Tensor, word: str | None) -> torch.dtype:
    """dtype of out for the option out_dtype."""
    if word is None:
        return torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    if word not in _WORDS:
        raise error(_abi.ATTN_E_ENUM, f"out_dtype is {word!r}; expected one of {', '.join(_WORDS)}", "out_dtype")
    return _WORDS[word]


def lse_dtype(x: torch.Tensor) -> torch.dtype:
    """Of lse and of the gradients of mask, slopes and sink."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
