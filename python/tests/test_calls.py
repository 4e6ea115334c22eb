# SPDX-License-Identifier: MIT
"""How calls run: what is kept between them, threads, the GIL, forks, listings, the package itself."""
import os
import pathlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import libattn
import numpy as np
import pytest
from libattn import _engine
from support import Data


def test_calls_are_kept_by_shape_strides_and_options():
    libattn.clear_cache()
    q, k, v = Data("f32").qkv()
    for _ in range(3):
        libattn.sdpa(q, k, v, causal=True)
        libattn.sdpa(q.copy(), k, v, causal=True)
    assert len(_engine._calls) == 1
    libattn.sdpa(q, k, v)
    libattn.sdpa(q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v)
    libattn.sdpa(q[:, :, :-1], k, v)
    assert len(_engine._calls) == 4
    libattn.clear_cache()
    assert not _engine._calls and not _engine._workspaces


def test_the_oldest_call_goes_first(monkeypatch):
    libattn.clear_cache()
    monkeypatch.setattr(_engine, "MAX_CALLS", 3)
    q, k, v = Data("f32").qkv(sq=8)
    for rows in range(1, 8):
        libattn.sdpa(q[:, :, :rows], k, v)
    assert len(_engine._calls) == 3


def test_arrays_are_not_kept():
    q, k, v = Data("f32").qkv()
    before = sys.getrefcount(q)
    out = libattn.sdpa(q, k, v)
    assert sys.getrefcount(q) == before and sys.getrefcount(out) == 2


def test_threads_share_calls():
    data = Data("bf16")
    q, k, v = data.qkv(sq=64, sk=64)
    sets = [(data(2, 4, 64, 16), k, v) for _ in range(8)] + [(q, k, v)]
    expected = [libattn.sdpa(*x, causal=True, dtype="bf16") for x in sets]

    def many(index):
        return all(np.array_equal(libattn.sdpa(*sets[index], causal=True, dtype="bf16"), expected[index])
                   for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(many, range(len(sets))))


def test_the_gil_is_released():
    q, k, v = Data("f32").qkv(b=1, hq=8, hk=8, sq=1500, sk=1500, d=64)
    done, ticks = threading.Event(), []

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    libattn.sdpa(q, k, v, kernel="*_c_f32_*")  # takes long
    end = time.perf_counter()
    done.set()
    thread.join()
    inside = [x for x in ticks if start < x < end]
    assert end - start > 0.01 and len(inside) > 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads, which is the point
def test_a_child_of_fork_computes():
    q, k, v = Data("f32").qkv(b=4, hq=8, hk=8, sq=128, sk=128, d=64)
    expected = libattn.sdpa(q, k, v)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if np.array_equal(libattn.sdpa(q, k, v), expected) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def run_python(text, **environment):
    words = {**os.environ, "PYTHONPATH": str(pathlib.Path(libattn.__file__).parents[1]), **environment}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=words)


def test_numpy_is_all_that_is_imported():
    found = run_python("import sys, libattn; print([m for m in ('torch', 'jax', 'transformers', 'ml_dtypes', 'typing_extensions') "
                       "if m in sys.modules])")
    assert found.stdout.strip() == "[]", found.stderr


def test_a_library_that_cannot_be_loaded_is_named():
    found = run_python("import libattn", LIBATTN_LIBRARY="/nowhere/libattn.so")
    assert found.returncode and "LIBATTN_LIBRARY names it" in found.stderr and "/nowhere/libattn.so" in found.stderr


def test_why_there_is_no_cuda_device():
    """A driver that is absent, and one that lacks what a driver of CUDA 12 has."""
    ask = "import libattn; libattn.plan('sdpa_fwd hq=2 sq=64 d=64 bf16', device='cuda')"
    for driver, why in (("/nowhere/libcuda.so", "the CUDA driver cannot be opened: /nowhere/libcuda.so"),
                        ("libm.so.6", "it is not a CUDA driver, or older than CUDA 12.0")):
        found = run_python(ask, ATTN_CUDA_DRIVER=driver, ATTN_LOG="off")
        assert found.returncode and "there is no device cuda:0" in found.stderr and why in found.stderr, found.stderr


def test_listings():
    names = [kernel.name for kernel in libattn.kernels()]
    assert "attn_sdpa_fwd_ref_f32_any" in names
    assert libattn.devices()[0].type == "cpu"
    text = "sdpa_fwd b=1 hq=8 sq=64 d=64 f32 causal"
    plan = libattn.plan(text)
    assert plan.kernel in names and plan.flops > 0
    assert libattn.plan(text, kernel="*_ref_*").arch == "ref"
    assert f"> {plan.kernel}" in libattn.explain(text) or plan.kernel in libattn.explain(text)
    with pytest.raises(libattn.ArgumentError, match="hurried"):
        libattn.plan("sdpa_fwd hurried")
    with pytest.raises(libattn.DeviceError):
        libattn.plan(text, device="cuda:77")
    with pytest.raises(ValueError, match="expected cpu, cuda"):
        libattn.explain(text, device="tpu")
    assert libattn.version().count(".") == 2


def test_check(capsys):
    assert libattn.check()
    text = capsys.readouterr().out
    assert " 0 failed" in text and "FAIL" not in text
    assert all(kernel.name in text for kernel in libattn.kernels()
               if kernel.usable and kernel.arch == "c" and kernel.op.startswith(("sdpa", "mla_fwd", "mla_bwd", "dist"))
               and kernel.dtype != "e4m3")  # which NumPy alone does not have


def test_check_sees_a_kernel_that_is_wrong(monkeypatch, capsys):
    from libattn import _check

    right = _check.sdpa

    def wrong(q, k, v, **options):
        out, lse = right(q, k, v, **options)
        return (out * np.float32(1.001), lse) if "_c_f32_" in options["kernel"] else (out, lse)

    monkeypatch.setattr(_check, "sdpa", wrong)
    assert not libattn.check()
    assert "FAIL attn_sdpa_fwd_c_f32_any" in capsys.readouterr().out
