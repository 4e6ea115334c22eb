# SPDX-License-Identifier: MIT
"""CUDA arrays by DLPack, on the PTX simulator beside the library: a process of its own, as the driver is chosen once."""
import ctypes
import os
import pathlib

import numpy as np
import pytest

SIMULATOR = pathlib.Path(os.environ.get("LIBATTN_LIBRARY", "")).resolve().with_name("libattn_sim_cuda.so")


class OnDevice:
    """An array in memory of cuda:0 that exports DLPack's older capsule; 16-bit unsigned integers are bf16."""

    CODES = {"int32": 0, "float32": 2, "uint16": 4}

    def __init__(self, array):
        from libattn import _abi, _library
        from libattn._tensor import _DLTensor

        self.array, self.lib, self.context = array, _library.lib, _library.context()
        self.cpu, self.cuda = _abi.attn_device(0, 0), _abi.attn_device(1, 0)
        self.memory, self.streams = ctypes.c_void_p(), []
        _library.must(self.lib.attn_memory_alloc(self.context, self.cuda, array.nbytes, ctypes.byref(self.memory)))
        _library.must(self.lib.attn_memory_copy(self.context, self.cuda, self.memory, self.cpu, array.ctypes.data, array.nbytes))
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.tensor = _DLTensor(data=self.memory, device_type=2, ndim=array.ndim, code=self.CODES[array.dtype.name],
                                bits=array.itemsize * 8, lanes=1, shape=self.shape)

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


def join_on_simulator():
    """mla, dist and the backward on a Hopper's kernels that join queries: they read the lists that are handed over."""
    import formulas
    import libattn
    from support import Data

    data, random = Data("bf16"), np.random.default_rng(1)
    sq, heads, sk, topk, group = 4, 8, 80, 64, 4
    q, kv, dout = data(sq, heads, 512), data(sk, 1, 512), data(sq, heads, 512)
    indices, others = (random.integers(-1, sk, (sq, 1, topk), dtype=np.int32) for _ in range(2))
    inputs = [OnDevice(x) for x in (q, kv, indices)]
    joined = [OnDevice(libattn.mla_join(x, group=group, seq_k=sk)) for x in (indices, others)]
    right = formulas.mla(q, kv, indices, dout=dout)
    wrong = formulas.mla(q, kv, others, dout=dout)
    out, lse, dist = OnDevice(np.zeros_like(dout)), OnDevice(np.zeros((sq, heads), np.float32)), OnDevice(np.zeros((sq, topk), np.float32))
    for lists, expected in zip(joined, (right, wrong)):
        libattn.mla(*inputs, joined=lists, out=out, lse=lse, return_lse=True, kernel="attn_mla_fwd_joined_*")
        assert np.allclose(lse.numpy(), expected["lse"], atol=1e-2)
        assert np.allclose(formulas.wide(out.numpy()), expected["out"], atol=3e-2)
    libattn.mla(*inputs, joined=joined[0], out=out, lse=lse, return_lse=True, kernel="attn_mla_fwd_joined_*")
    libattn.dist(*inputs, lse, joined=joined[0], dist=dist, kernel="attn_dist_joined_*")
    assert np.allclose(dist.numpy(), right["dist"], atol=2e-2)
    dq, dkv, given = OnDevice(np.zeros_like(q)), OnDevice(np.zeros_like(kv)), OnDevice(dout)
    libattn.mla_backward(given, *inputs[:2], out, lse, inputs[2], joined=joined[0], dq=dq, dkv=dkv, kernel="attn_mla_bwd_joined_*")
    for found, role in ((dq, "dq"), (dkv, "dkv")):
        assert np.allclose(formulas.wide(found.numpy()), right[role], atol=5e-2 * abs(right[role]).max())
    plan = libattn.plan("mla_bwd b=1 sq=4096 sk=8192 hq=8 d=576 topk=2048 bf16", device="cuda")
    assert plan.group in (8, 16) and "joined" in plan.kernel
    print("joined")


def check_on_simulator():
    """libattn.check() runs the GPU's kernels, too; of all of them a few, and one is made to look wrong."""
    import libattn
    from libattn import _check

    names = ("attn_sdpa_fwd_sm80_f32_d64", "attn_sdpa_bwd_sm80_f32_d64", "attn_mla_fwd_sm90_bf16_d576", "attn_mla_fwd_sm90_bf16_d512",
             "attn_mla_bwd_sm80_bf16_d576_h16", "attn_dist_sm80_f16_d576_h16")
    few = [kernel for kernel in libattn.kernels() if kernel.name in names]
    assert len(few) == len(names)
    _check.kernels = lambda: few
    assert libattn.check()
    few[:], right = few[:1], _check._OnGpu.numpy
    _check._OnGpu.numpy = lambda x: right(x) * np.float32(1.1)
    assert not libattn.check()


def struct(**fields):
    """Of XLA's foreign function interface: a size, a chain of extensions, then fields as in python/ffi/xla.h."""
    return type("Struct", (ctypes.Structure,), {"_fields_": [("size", SIZE), ("extensions", POINTER), *fields.items()]})


SIZE, POINTER, NUMBER, LONG = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
Version = struct(major=NUMBER, minor=NUMBER)
Memory = struct(context=POINTER, bytes=SIZE, alignment=SIZE, data=POINTER)
Release = struct(context=POINTER, bytes=SIZE, data=POINTER)
Fault = struct(message=ctypes.c_char_p, code=NUMBER)
Buffer = struct(dtype=NUMBER, data=POINTER, rank=LONG, shape=ctypes.POINTER(LONG))
Listed = struct(n=LONG, types=POINTER, buffers=POINTER)
Attributes = struct(n=LONG, types=POINTER, names=POINTER, values=POINTER)
Frame = struct(api=POINTER, context=POINTER, stage=NUMBER, arguments=Listed, results=Listed, attributes=Attributes)


class Text(ctypes.Structure):
    _fields_ = [("start", ctypes.c_char_p), ("length", ctypes.c_size_t)]


FUNCTIONS = ("error_create", "error_details", "error_destroy", "handler_register", "stream_get", "type_register", "context_get",
             "state_set", "state_get", "allocate", "free", "pool_schedule", "pool_threads", "future_create", "future_available",
             "future_error", "run_id_get", "ordinal_get")


def call_handler_of_xla():
    """The handler for GPUs on the stand-in driver, with an allocator like XLA's: it promises 16 bytes at most."""
    from libattn import _abi, _library

    lib, context, device = _library.lib, _library.context(), _abi.attn_device(1, 0)
    handlers = ctypes.CDLL(str(pathlib.Path(lib._name).with_name("libattn_jax.so")))
    handlers.attn_jax_open.restype, handlers.attn_jax_open.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    handlers.attn_jax_use.restype, handlers.attn_jax_use.argtypes = None, [ctypes.c_void_p]
    handlers.attn_jax_cuda.restype, handlers.attn_jax_cuda.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    assert handlers.attn_jax_open(lib._handle) is None
    handlers.attn_jax_use(context)
    faults, taken = [], []

    def memory_of(n_bytes):
        found = ctypes.c_void_p()
        _library.must(lib.attn_memory_alloc(context, device, n_bytes, ctypes.byref(found)))
        return found.value

    def allocate(asked):
        memory = Memory.from_address(asked)
        if memory.alignment > 16:
            faults.append(f"Unsupported alignment: {memory.alignment}")
            return 1
        memory.data = memory_of(memory.bytes + 16) + 16
        taken.append(memory.bytes)
        return None

    def free(asked):
        taken.remove(Release.from_address(asked).bytes)

    def error_create(asked):
        faults.append(Fault.from_address(asked).message.decode())
        return 1

    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    mine = {name: kind(function) for name, function in (("allocate", allocate), ("free", free), ("error_create", error_create),
                                                        ("stream_get", lambda _: None), ("ordinal_get", lambda _: None))}

    api, kept = struct(version=Version, internal=POINTER, **dict.fromkeys(FUNCTIONS, kind))(**mine), []

    def pointers(objects):
        kept.append((objects, (ctypes.c_void_p * len(objects))(*map(ctypes.addressof, objects))))
        return ctypes.addressof(kept[-1][1])

    def listed(shapes):
        buffers = [Buffer(dtype=11, data=memory_of(4 * int(np.prod(shape))), rank=len(shape), shape=(ctypes.c_int64 * len(shape))(*shape))
                   for shape in shapes]
        types = (ctypes.c_int32 * len(buffers))(*[1] * len(buffers))
        kept.append(types)
        return Listed(n=len(buffers), types=ctypes.addressof(types), buffers=pointers(buffers))

    texts = {"problem": b"sdpa_bwd b=1 hq=2 sq=40 sk=40 d=64 f32", "roles": b"q,k,v,out,lse,dout,dq,dk,dv"}
    types = (ctypes.c_int32 * len(texts))(*[4] * len(texts))
    names = pointers([Text(name.encode(), len(name)) for name in texts])
    values = pointers([Text(text, len(text)) for text in texts.values()])
    rows = (1, 2, 40, 64)
    frame = Frame(api=ctypes.addressof(api), stage=3, arguments=listed([rows] * 4 + [rows[:3], rows]), results=listed([rows] * 3),
                  attributes=Attributes(n=len(texts), types=ctypes.addressof(types), names=names, values=values))
    plan = libattn_plan(texts["problem"].decode())
    assert plan.workspace_bytes > 0
    assert handlers.attn_jax_cuda(ctypes.addressof(frame)) is None and faults == [], faults
    assert taken == []
    print("handled")


def libattn_plan(text):
    from libattn import _abi, _engine, _library

    problem = _abi.attn_problem()
    _library.must(_library.lib.attn_problem_parse(text.encode(), ctypes.byref(problem)))
    return _engine.plan_info(_engine.make_plan(problem, (1, 0), None))


STAND_IN = SIMULATOR.parent / "tests" / "libcuda_stub.so"


@pytest.mark.skipif(not STAND_IN.is_file() or not SIMULATOR.with_name("libattn_jax.so").is_file(), reason="no stand-in driver")
def test_workspace_from_xla():
    from test_calls import run_python

    found = run_python(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_cuda; test_cuda.call_handler_of_xla()",
                       ATTN_CUDA_DRIVER=str(STAND_IN), CUDA_STUB_DEVICES="90", ATTN_LOG="off")
    assert found.stdout.strip() == "handled", found.stdout + found.stderr


@pytest.mark.skipif(not SIMULATOR.is_file(), reason="no simulator beside the library")
def test_cuda_arrays():
    from test_calls import run_python

    found = run_python(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_cuda; test_cuda.run_on_simulator()",
                       ATTN_CUDA_DRIVER=str(SIMULATOR), ATTN_CUDA_IMAGE="ptx", ATTN_LOG="off")
    assert found.stdout.strip() == "simulated", found.stderr


@pytest.mark.skipif(not SIMULATOR.is_file(), reason="no simulator beside the library")
def test_one_join_for_a_step():
    from test_calls import run_python

    found = run_python(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_cuda; test_cuda.join_on_simulator()",
                       ATTN_CUDA_DRIVER=str(SIMULATOR), ATTN_CUDA_IMAGE="ptx", ATTN_LOG="off")
    assert found.stdout.strip() == "joined", found.stdout + found.stderr


@pytest.mark.skipif(not SIMULATOR.is_file(), reason="no simulator beside the library")
def test_check_runs_the_kernels_of_a_gpu():
    from test_calls import run_python

    found = run_python(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_cuda; test_cuda.check_on_simulator()",
                       ATTN_CUDA_DRIVER=str(SIMULATOR), ATTN_CUDA_IMAGE="ptx", ATTN_LOG="off")
    lines = found.stdout.splitlines()
    assert len(lines) == 8, found.stdout + found.stderr
    assert [line.split()[0] for line in lines] == ["ok"] * 5 + ["libattn", "FAIL", "libattn"]  # d512 is for other problems
    assert "5 passed, 0 failed, 1 for other problems" in lines[5]
