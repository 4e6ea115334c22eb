# SPDX-License-Identifier: MIT
"""The Python of README.md, run as written."""
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_pytorch():
    (block,) = (block for block in BLOCKS if "routed" in block)
    names = {"model": Model(), "x": torch.randn(1, 2, 5, 8, requires_grad=True)}
    exec(block, names)
    assert "libattn" in type(names["y"].grad_fn).__name__
    assert torch.allclose(names["y"], Model()(names["x"]), atol=1e-6)


def test_transformers(tmp_path):
    (block,) = (block for block in BLOCKS if "register" in block)
    config = transformers.LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                                      vocab_size=20)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    names = {"path": tmp_path, "AutoModelForCausalLM": transformers.AutoModelForCausalLM}
    exec(block, names)
    tokens = torch.arange(6)[None]
    eager = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert names["model"].config._attn_implementation == "libattn"
    assert torch.allclose(names["model"](tokens).logits, eager(tokens).logits, atol=1e-5)
