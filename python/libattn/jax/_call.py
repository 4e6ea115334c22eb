# SPDX-License-Identifier: MIT
"""One operator as a call of XLA's foreign function interface: its problem from shapes, its results, its rule for vmap.

python/ffi/jax.c has the other end, which gets the problem as text and the buffers' roles.
"""
from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _abi, _dense, _engine, _library, _sparse
from .._errors import error
from .._library import lib, must, text_of
from .._tensor import CPU, View, numpy_dtype, row_major

TARGET = "libattn"
BUILDERS: dict[int, _engine.Builder] = {
    _abi.ATTN_OP_SDPA_FWD: _dense.build, _abi.ATTN_OP_SDPA_BWD: _dense.build_backward,
    _abi.ATTN_OP_MLA_FWD: _sparse.build, _abi.ATTN_OP_MLA_BWD: _sparse.build_backward, _abi.ATTN_OP_DIST: _sparse.build_dist,
    _abi.ATTN_OP_MLA_JOIN: _sparse.build_join}
DENSE = (_abi.ATTN_OP_SDPA_FWD, _abi.ATTN_OP_SDPA_BWD)
HEADS = frozenset(("q", "k", "v", "out", "dout", "dq", "dk", "dv"))  # [B,H,S,D], or [B,S,H,D] in memory
UNBATCHED = frozenset(("sink", "dsink"))
_ROLES: dict[str, int] = {role: getattr(_abi, f"ATTN_ROLE_{role.upper()}") for role in _abi.ROLES}
_DTYPES = {"float32": _abi.ATTN_F32, "float16": _abi.ATTN_F16, "bfloat16": _abi.ATTN_BF16, "float64": _abi.ATTN_F64,
           "int32": _abi.ATTN_I32, "bool": _abi.ATTN_BOOL, "float8_e4m3fn": _abi.ATTN_E4M3}


class Spec(NamedTuple):
    """An operator with its options; arrays come in the order of `roles`."""

    op: int
    roles: tuple[str, ...]
    wanted: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    swapped: bool  # heads are the third axis, as in [B,S,H,D]


def register() -> None:
    """Make the handlers known to XLA, once."""
    path = pathlib.Path(lib._name).with_name("libattn_jax.so")
    try:
        handlers = ctypes.CDLL(str(path))
    except OSError as fault:
        raise ImportError(f"libattn.jax: {path} cannot be loaded: {fault}") from fault
    handlers.attn_jax_open.restype, handlers.attn_jax_open.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    handlers.attn_jax_use.restype, handlers.attn_jax_use.argtypes = None, [ctypes.c_void_p]
    missing = handlers.attn_jax_open(lib._handle)
    if missing:
        raise ImportError(f"libattn.jax: libattn.so has no {missing.decode()}: it is older than this package")
    handlers.attn_jax_use(_library.context())
    _library.context_users.append(handlers.attn_jax_use)
    for platform, handler in (("cpu", handlers.attn_jax_cpu), ("CUDA", handlers.attn_jax_cuda)):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)  # type: ignore[no-untyped-call]


register()


def swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[B,H,S,D] to [B,S,H,D] and back."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def view(spec: Spec, role: str, shape: tuple[int, ...], dtype: str) -> View:
    """An array as the builders of problems see it."""
    code = _DTYPES.get(dtype)
    if code is None:
        raise error(_abi.ATTN_E_DTYPE, f"{role} has dtype {dtype}, which libattn has not", role)
    if spec.swapped and role in HEADS and len(shape) >= 3:
        shape = swap(shape)
    return View(code, shape, row_major(shape), CPU, 0, True, None, None)


@functools.lru_cache(maxsize=1024)
def described(spec: Spec, shapes: tuple[tuple[int, ...], ...],
              dtypes: tuple[str, ...]) -> tuple[str, tuple[jax.ShapeDtypeStruct, ...]]:
    """The problem's text and the results; arrays that do not fit it are refused here, before anything is compiled."""
    views = {role: view(spec, role, shape, dtype) for role, shape, dtype in zip(spec.roles, shapes, dtypes)}
    given = dict(views)
    problem = _abi.attn_problem(size=ctypes.sizeof(_abi.attn_problem), op=spec.op, dtype=_engine.main_view(views).dtype)
    BUILDERS[spec.op](problem, views, dict(spec.options), spec.wanted)
    must(lib.attn_problem_check(problem))
    batchless = spec.op not in DENSE and len(_engine.main_view(given).shape) == 3

    def expected(role: str) -> tuple[tuple[int, ...], int]:
        use, tensor = ctypes.c_int32(), _abi.attn_tensor()
        must(lib.attn_role_tensor(problem, _ROLES[role], use, tensor))
        if use.value == _abi.ATTN_USE_NONE:
            raise error(_abi.ATTN_E_ARGUMENT, f"{role} is not for this problem", role)
        shape = tuple(tensor.shape[:tensor.rank])
        return shape[1:] if batchless and role not in UNBATCHED else shape, tensor.dtype

    for role, one in given.items():
        shape, dtype = expected(role)
        if role == "mask" or role == "alibi" and len(one.shape) == 1:
            continue  # may be narrower: the builder has judged the mask, the library judges the slopes
        if one.shape != shape or one.dtype != dtype:
            raise error(_abi.ATTN_E_SHAPE, f"{role} has shape {list(one.shape)}, expected {list(shape)}"
                        if one.shape != shape else f"{role} has another dtype than the problem asks for", role)
    results = []
    for role in spec.wanted:
        shape, dtype = expected(role)
        if role in ("dmask", "dalibi"):
            shape = given[role[1:]].shape
        if spec.swapped and role in HEADS:
            shape = swap(shape)
        made = jnp.bfloat16 if dtype == _abi.ATTN_BF16 else numpy_dtype(dtype, None)
        results.append(jax.ShapeDtypeStruct(shape, np.dtype(made)))  # type: ignore[no-untyped-call]
    return text_of("attn_problem_format", problem), tuple(results)


@functools.lru_cache(maxsize=1024)
def primitive(spec: Spec) -> Callable[..., tuple[jax.Array, ...]]:
    """The call of an operator, whose vmap makes one call with a longer batch where all arrays have a batch axis."""
    roles = ",".join(role + ("~" if spec.swapped and role in HEADS else "") for role in (*spec.roles, *spec.wanted))

    @jax.custom_batching.custom_vmap
    def call(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        text, results = described(spec, tuple(x.shape for x in arrays), tuple(x.dtype.name for x in arrays))
        return tuple(jax.ffi.ffi_call(TARGET, results)(*arrays, problem=text, roles=roles))

    @call.def_vmap
    def rule(size: int, batched: list[bool], *arrays: jax.Array) -> tuple[tuple[jax.Array, ...], tuple[bool, ...]]:
        by_role = {role: (x, many) for role, x, many in zip(spec.roles, arrays, batched)}
        main, many = by_role["q" if "q" in by_role else "indices"]
        rank = main.ndim - many
        batch = (main.shape[many],) if rank == 4 else ()

        def alone(role: str) -> bool:
            """No batch axis, so that one call cannot serve several."""
            slopes = role in ("alibi", "dalibi") and by_role["alibi"][0].ndim - by_role["alibi"][1] == 1
            narrow = role == "dmask" and by_role["mask"][0].shape[by_role["mask"][1]] == 1
            return role in UNBATCHED or slopes or narrow

        if any(alone(role) and many for role, (_, many) in by_role.items()) or any(map(alone, spec.wanted)):
            inside = tuple(x for x, many in by_role.values() if many)

            def one(taken: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                rest = iter(taken)
                found: tuple[jax.Array, ...] = call(*(next(rest) if many else x for x, many in by_role.values()))
                return found

            return jax.lax.map(one, inside), (True,) * len(spec.wanted)
        merged = []
        for role, (x, many) in by_role.items():
            if alone(role) or role == "mask" and not many and x.shape[0] == 1:
                merged.append(x)
                continue
            x = x if many else jnp.broadcast_to(x, (size, *x.shape))
            if role == "mask":
                x = jnp.broadcast_to(x, (size, *batch, *x.shape[2:]))
            merged.append(x.reshape(-1, *x.shape[2:]) if batch else x)
        found = call(*merged)
        return tuple(x.reshape(size, *batch, *x.shape[1:]) for x in found), (True,) * len(found)

    bound: Callable[..., tuple[jax.Array, ...]] = call
    return bound
