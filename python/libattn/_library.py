# SPDX-License-Identifier: MIT
"""The shared library: found, loaded, its functions typed; the context that the whole package uses.

The wheel carries libattn.so beside this file. LIBATTN_LIBRARY names another one. Calls release the GIL (ctypes does).
"""
import contextlib
import ctypes
import os
import pathlib
import threading
from collections.abc import Callable, Iterator

from . import _abi
from ._errors import error


def _load() -> ctypes.CDLL:
    named = os.environ.get("LIBATTN_LIBRARY")
    path = named or str(pathlib.Path(__file__).with_name("libattn.so"))
    try:
        library = ctypes.CDLL(path)
    except OSError as fault:
        hint = "LIBATTN_LIBRARY names it" if named else "install the wheel, or set LIBATTN_LIBRARY to a built libattn.so"
        raise ImportError(f"libattn: the shared library cannot be loaded ({hint}): {fault}") from fault
    version: int = library.attn_version()
    found = (version >> 16, version >> 8 & 255)
    if found != _abi.VERSION[:2]:
        raise ImportError(f"libattn: {path} has version {found[0]}.{found[1]}, this package is for "
                          f"{_abi.VERSION[0]}.{_abi.VERSION[1]}")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"libattn: {path} has no {name}: it is older than this package")
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()
context_users: list[Callable[[int], None]] = []  # told of another context
_lock = threading.Lock()
_context = None


def last_error(status: int) -> Exception:
    """The exception for the calling thread's last failed call."""
    detail = _abi.attn_error(size=ctypes.sizeof(_abi.attn_error))
    lib.attn_last_error_detail(ctypes.byref(detail))
    text = lib.attn_last_error().decode(errors="replace")
    if status == _abi.ATTN_E_NO_DEVICE and "device cuda:" in text and _context is not None and lib.attn_cuda_status(_context):
        text += f": {lib.attn_last_error().decode(errors='replace')}"  # no driver, too old a driver
    return error(status, text, detail.argument.decode(errors="replace"), detail.expected, detail.given)


def must(status: int) -> None:
    """Raise unless the status is success."""
    if status:
        raise last_error(status)


def context() -> int:
    """Address of the package's attn_ctx, made at the first use: the environment is read then."""
    global _context
    if _context is None:
        with _lock:
            if _context is None:
                made = ctypes.c_void_p()
                must(lib.attn_ctx_create(None, ctypes.byref(made)))
                _context = made.value
    assert _context is not None
    return _context


@contextlib.contextmanager
def context_of_its_own(environment: dict[str, str]) -> Iterator[None]:
    """Another context inside the block, made with these environment variables; the caller lets go of plans of both."""
    global _context
    kept, before = _context, {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        _context = None
        context()
    except BaseException:
        _context = kept
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    made = context()
    for use in context_users:
        use(made)
    try:
        yield
    finally:
        _context = kept
        for use in context_users:
            use(context())
        lib.attn_ctx_release(made)


def forget_context() -> None:
    """In the child of a fork: the parent's context has no threads here, so that the next call makes a new one."""
    global _context, _lock
    _context, _lock = None, threading.Lock()


def text_of(call: str, *arguments: object) -> str:
    """Text from a function that writes into (buffer, bytes, &needed)."""
    function, needed = getattr(lib, call), ctypes.c_size_t()
    status = function(*arguments, None, 0, ctypes.byref(needed))
    if status not in (_abi.ATTN_OK, _abi.ATTN_E_ARGUMENT) or not needed.value:
        must(status)
    buffer = ctypes.create_string_buffer(needed.value)
    must(function(*arguments, buffer, needed.value, ctypes.byref(needed)))
    return buffer.value.decode()
