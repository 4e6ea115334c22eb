# SPDX-License-Identifier: MIT
"""CUDA arrays by DLPack, on the PTX simulator beside the library: a process of its own, as the driver is chosen once."""
import ctypes
import os
import pathlib

import numpy as np
import pytest

SIMULATOR = pathlib.Path(os.environ.get("LIBATTN_LIBRARY", "")).resolve().with_name("libattn_sim_cuda.so")


class OnDevice:
    """An array in memory of cuda:0 that exports DLPack's older capsule."""

    def __init__(self, array):
        from libattn import _abi, _library
        from libattn._tensor import _DLTensor

        self.array, self.lib, self.context = array, _library.lib, _library.context()
        self.cpu, self.cuda = _abi.attn_device(0, 0), _abi.attn_device(1, 0)
        self.memory, self.streams = ctypes.c_void_p(), []
        _library.must(self.lib.attn_memory_alloc(self.context, self.cuda, array.nbytes, ctypes.byref(self.memory)))
        _library.must(self.lib.attn_memory_copy(self.context, self.cuda, self.memory, self.cpu, array.ctypes.data, array.nbytes))
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.tensor = _DLTensor(data=self.memory, device_type=2, ndim=array.ndim, code=2, bits=32, lanes=1, shape=self.shape)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def numpy(self):
        from libattn import _library

        _library.must(self.lib.attn_device_synchronize(self.context, self.cuda))
        found = np.empty_like(self.array)
        _library.must(self.lib.attn_memory_copy(self.context, self.cpu, found.ctypes.data, self.cuda, self.memory, found.nbytes))
        return found


def run_on_simulator():
    import libattn
    from libattn import _engine

    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 2, rows, 16)).astype(np.float32) for rows in (5, 9, 9))
    arrays = [OnDevice(x) for x in (q, k, v)]
    out, lse = OnDevice(np.zeros_like(q)), OnDevice(np.zeros((1, 2, 5), np.float32))
    assert libattn.devices()[1].type == "cuda"
    found = libattn.sdpa(*arrays, causal=True, out=out, lse=lse, return_lse=True)
    assert found == (out, lse) and arrays[0].streams == [1]  # the legacy default stream
    expected = libattn.sdpa(q, k, v, causal=True, return_lse=True)
    for x, right in zip(found, expected):
        assert np.allclose(x.numpy(), right, atol=2e-6)
    n_calls = len(_engine._calls)
    libattn.sdpa(*arrays, causal=True, out=out, lse=lse, return_lse=True, stream=1)
    assert len(_engine._calls) == n_calls  # one plan for every stream
    with pytest.raises(libattn.ArgumentError, match="out is missing: on a CUDA device"):
        libattn.sdpa(*arrays)
    with pytest.raises(libattn.ArgumentError, match="k lives on|k is on|device"):
        libattn.sdpa(arrays[0], k, v, out=out)
    print("simulated")


@pytest.mark.skipif(not SIMULATOR.is_file(), reason="no simulator beside the library")
def test_cuda_arrays():
    from test_calls import run_python

    found = run_python(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_cuda; test_cuda.run_on_simulator()",
                       ATTN_CUDA_DRIVER=str(SIMULATOR), ATTN_CUDA_IMAGE="ptx", ATTN_LOG="off")
    assert found.stdout.strip() == "simulated", found.stderr
