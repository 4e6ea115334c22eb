# SPDX-License-Identifier: MIT
"""python/peers on small test files of the same form as the originals': results, refusals and their rows, the selection."""
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]
PYTEST_FILE = '''
import pytest, torch
from flash_attn import flash_attn_func, flash_attn_extra
from flash_attn.flash_attn_interface import USE_TRITON_ROCM
from flash_attn.helper import helped

def tensors():
    assert not USE_TRITON_ROCM and helped
    return torch.randn(1, 4, 2, 8, device="cuda", dtype=torch.float32)

@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_flash_attn_bwd_overflow(d):
    q = tensors()
    assert flash_attn_func(q, q, q).device.type == "cpu"
    if d == 2:
        pytest.skip("not here")
    if d == 4:
        pytest.xfail("not yet")
    assert d != 3, "three is wrong"

@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(97, 97), (5, 6)])
@pytest.mark.parametrize("d", [64, 65])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_race_condition(seqlen_q, seqlen_k, d, dropout_p, causal):
    assert (seqlen_q, seqlen_k, d, dropout_p) == (97, 97, 64, 0.0)

def test_flash_attn_bwd_transpose():
    flash_attn_func(*[tensors()] * 3, dropout_p=0.1)

def test_flash_attn_bwd_varlen_overflow():
    flash_attn_extra()

def test_flash_attn_generator_arg_must_be_none():
    assert False, "left out"

def test_of_a_later_version():
    assert False
'''
OF_DTYPES = '''
import pytest, torch

@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize("has_qv", [False])
@pytest.mark.parametrize("softcap", [0.0])
@pytest.mark.parametrize("d", [64])
@pytest.mark.parametrize("mha_type", ["mha"])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(64, 128), (5, 6)])
def test_flash_attn_output(seqlen_q, seqlen_k, mha_type, d, softcap, has_qv, number, dtype):
    assert dtype != torch.float8_e4m3fn or seqlen_q == 64
'''
CALLS = {
    "utils.py": """
judged = True
""",
    "sparse_mla_fwd.py": """
import tilelang, torch
from tilelang import language as T
from utils import judged

@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
def sparse_mla_fwd(heads, dtype: T.dtype = T.bfloat16):
    q: T.Tensor[[heads], dtype]

def sparse_mla_fwd_interface(q, kv, indices):
    raise AssertionError("the original's")

def test_sparse_mla_fwd(B=1, S=9, SKV=9, H=9, topk=9):
    from tilelang.profiler import do_bench
    q, kv = (torch.zeros(*shape, device="cuda") for shape in ((B, 2, H, 576), (B, 3, 1, 576)))
    out, lse = sparse_mla_fwd_interface(q, kv, torch.zeros(B, 2, 1, 1, dtype=torch.int32, device="cuda"))
    assert judged and out.shape == (B, 2, H, 512) and do_bench(None) > 0
    assert (H, B) != (32, 2), "thirty-two is wrong"
""",
    "sparse_mla_bwd.py": """
import pathlib
import torch
from sparse_mla_fwd import sparse_mla_fwd, sparse_mla_fwd_interface

ran = pathlib.Path(__file__).with_name("ran")

def sparse_mla_bwd(*tensors, **words):
    raise AssertionError("the original's")

def test_sparse_mla_bwd(B, S, SKV, H, topk):
    if H == 8:
        sparse_mla_bwd(*[torch.zeros(1, 1, 1, 576)] * 6, delta=1)
    assert sparse_mla_fwd_interface.__module__ == "libattn.compat.tilelang_v32"
    if H == 16:
        sparse_mla_fwd(H)
    if (H, B) == (64, 2) and not ran.exists():
        ran.touch()
        raise RuntimeError("CUDA out of memory. Tried to allocate 5 GiB")
""",
}
OF_ANOTHER_PACKAGE = """
import tilelang
from miles_plugins.models.deepseek_v4.ops.kernel.tilelang_sparse_mla import sparse_attn_tilelang

def test_attn_sink_effect():
    assert sparse_attn_tilelang.__module__ == "libattn.compat.deepseek_v4"
"""
SCRIPT = '''
import dataclasses, sys
import torch
import flash_mla

@dataclasses.dataclass
class TestParam:
    number: int
    num_runs: int = 10

def run_test(p):
    assert p.num_runs == 0
    if p.number == 2:
        flash_mla.flash_mla_sparse_fwd(torch.zeros(1, device="cuda"), None, None, 1.0, d_v=256)
    assert p.number != 3, "three is wrong"
    return p.number != 4

if __name__ == '__main__':
    torch.set_default_device(torch.device("cuda:0"))
    failed = [number for number in [*range(6), 0] if not run_test(TestParam(number))]
    if failed:
        sys.exit(1)
'''


def run(tmp_path, *words):
    record = tmp_path / "record.json"
    done = subprocess.run([sys.executable, ROOT / "python" / "peers", "--device", "cpu", "--record", record, "--jobs", "2", *words],
                          capture_output=True, text=True, timeout=300, check=False)
    assert record.exists(), done.stdout + done.stderr
    with open(record, encoding="utf-8") as file:
        return done, json.load(file)


def test_a_suite_of_pytest(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(PYTEST_FILE)
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "helper.py").write_text("helped = True\n")
    done, record = run(tmp_path, "--flash-attention", str(tmp_path), "--suites", "flash-attn 2")
    found = {line["case"]: line for line in record["cases"]}
    assert done.returncode == 1
    results = {case: line["result"] for case, line in found.items()}
    assert {case: result for case, result in results.items() if "race" not in case} == {
        "test_flash_attn_bwd_overflow[1]": "passed", "test_flash_attn_bwd_overflow[2]": "skipped",
        "test_flash_attn_bwd_overflow[3]": "failed", "test_flash_attn_bwd_overflow[4]": "skipped", "test_flash_attn_bwd_transpose": "refused",
        "test_flash_attn_bwd_varlen_overflow": "failed", "test_of_a_later_version": "unknown"}
    assert [result for case, result in results.items() if "race" in case] == ["passed"] * 2  # 2 of 16 values are chosen
    assert "three is wrong" in found["test_flash_attn_bwd_overflow[3]"]["reason"]
    assert "no row of docs/python.md" in found["test_flash_attn_bwd_varlen_overflow"]["reason"]
    assert record["refused"] == [{"suite": "flash-attn 2", "feature": "dropout_p", "cases": 1}]
    assert "3 passed, 2 failed, 1 refused, 2 skipped" in done.stdout


def test_a_choice_by_dtype(tmp_path):
    """Of e4m3 with lengths of its own, of other dtypes with all lengths."""
    (tmp_path / "hopper").mkdir()
    (tmp_path / "hopper" / "test_flash_attn.py").write_text(OF_DTYPES)
    done, record = run(tmp_path, "--flash-attention", str(tmp_path), "--suites", "flash-attn 3")
    names = [line["case"] for line in record["cases"]]
    assert done.returncode == 0 and {line["result"] for line in record["cases"]} == {"passed"}
    assert {(name.split("[")[1][:2], name[-7:-1]) for name in names} == {("64", "dtype0"), ("5-", "dtype0"), ("64", "dtype1")}


def test_a_suite_that_is_a_program(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_flash_mla_sparse_prefill.py").write_text(SCRIPT)
    done, record = run(tmp_path, "--flash-mla", str(tmp_path), "--suites", "FlashMLA prefill", "--jobs", "1")
    results = {line["case"]: line["result"] for line in record["cases"]}
    assert done.returncode == 1
    assert results == {f"TestParam(number={number}, num_runs=10)": "passed" for number in (0, 1, 5)} | {
        "TestParam(number=0, num_runs=10) #2": "passed",
        "TestParam(number=2, num_runs=10)": "refused", "TestParam(number=3, num_runs=10)": "failed",
        "TestParam(number=4, num_runs=10)": "failed"}


def test_suites_whose_functions_are_replaced(tmp_path):
    """Functions beside ours in one file, or of a package of ours; what lacked memory beside other processes runs again alone."""
    folder = tmp_path / "examples" / "deepseek_v32"
    folder.mkdir(parents=True)
    for name, text in CALLS.items():
        (folder / name).write_text(text)
    file = tmp_path / "tests" / "manual" / "models" / "deepseek_v4" / "test_v4_tilelang_sparse_mla.py"
    file.parent.mkdir(parents=True)
    file.write_text(OF_ANOTHER_PACKAGE)
    done, record = run(tmp_path, "--tilelang", str(tmp_path), "--miles", str(tmp_path), "--suites", "TileLang DeepSeek-V3.2",
                       "DeepSeek-V4")
    results = {line["case"]: line for line in record["cases"]}
    assert done.returncode == 1 and len(results) == 22 and results.pop("test_attn_sink_effect")["result"] == "passed"
    forward = "test_sparse_mla_fwd(B=2, S=128, SKV=256, H=32, topk=64)"
    assert [case for case, line in results.items() if "fwd" in case and line["result"] != "passed"] == [forward]
    assert "thirty-two is wrong" in results[forward]["reason"]
    backward = {case.split("H=")[1].split(",")[0] + case[20:23]: line for case, line in results.items() if "bwd" in case}
    wrong = {name: line["result"] for name, line in backward.items() if line["result"] != "passed"}
    assert wrong == {"8B=1": "refused", "8B=2": "refused", "16B=1": "failed", "16B=2": "failed"}
    assert "no row of docs/python.md" in backward["16B=1"]["reason"]  # a kernel of the original
    assert [name for name, line in backward.items() if line.get("alone")] == ["64B=2"]


def test_the_selection(monkeypatch):
    """Every suite names a published module with a row in docs/python.md, every choice has a reason."""
    monkeypatch.syspath_prepend(ROOT / "python" / "peers")
    place = importlib.util.spec_from_file_location("peers_main", ROOT / "python" / "peers" / "__main__.py")
    main = importlib.util.module_from_spec(place)
    place.loader.exec_module(main)
    rows = main.documented(ROOT / "docs" / "python.md")
    from libattn.compat import _MODULES
    modules = {f"libattn.compat.{name}" for suite in main.SUITES.values() for name in suite.served.values()}
    assert set(rows) == set(_MODULES) | modules
    for suite in main.SUITES.values():
        assert set(suite.published) <= set(rows) and suite.cases
        assert all(cases.reason for cases in suite.cases) and all(suite.left_out.values())
        assert not {cases.function for cases in suite.cases} & set(suite.left_out)
