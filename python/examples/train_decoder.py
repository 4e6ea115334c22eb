# SPDX-License-Identifier: MIT
"""Train a small decoder on a real text, once with torch's attention and once with libattn's: the same curve.

    python python/examples/train_decoder.py --png curve.png         # two minutes on two cores

The text is Python's own language reference, which comes with every Python, or --text FILE; a token is a byte. The model
calls torch.nn.functional.scaled_dot_product_attention; routed() sends it, and with it the backward, to libattn.
"""
import argparse
import contextlib
import os
import pathlib
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads leave the processor to libattn's
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn.torch import routed  # noqa: E402


class Block(torch.nn.Module):
    """Attention and feed-forward, each after a normalisation, each added."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.join = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # views, no copies
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(out.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(torch.nn.Module):
    """Logits of the next byte."""

    def __init__(self, width, heads, layers, context):
        super().__init__()
        self.byte, self.place = torch.nn.Embedding(256, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.byte(tokens) + self.place.weight[:tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def read(path):
    """The text as a tensor of bytes."""
    if path:
        data = pathlib.Path(path).read_bytes()
    else:
        from pydoc_data.topics import topics

        data = "".join(topics.values()).encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def train(text, words, attention):
    """Loss of each step, and seconds; the seed makes weights and batches the same in every run."""
    torch.manual_seed(words.seed)
    model = Decoder(words.width, words.heads, words.layers, words.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=words.rate, weight_decay=0.1)
    losses, start = [], time.perf_counter()
    for step in range(words.steps):
        first = torch.randint(len(text) - words.context - 1, (words.batch,))
        rows = text[first[:, None] + torch.arange(words.context + 1)]
        with routed() if attention == "libattn" else contextlib.nullcontext():
            logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == words.steps - 1:
            print(f"{attention:8} step {step:4}  loss {loss:.4f}  {time.perf_counter() - start:5.1f} s", flush=True)
    return losses, time.perf_counter() - start


def draw(curves, path):
    """Both curves, and their difference, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), height_ratios=(3, 1))
    for name, style in (("torch", "-"), ("libattn", "--")):
        above.plot(curves[name], style, label=f"{name}'s attention", linewidth=1.2)
    below.semilogy([max(abs(a - b), 1e-9) for a, b in zip(curves["torch"], curves["libattn"])], linewidth=0.8)
    above.set(ylabel="loss (nats per byte)", title="A small decoder on a real text")
    above.legend()
    below.set(xlabel="step", ylabel="difference")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a file; unset: Python's language reference")
    parser.add_argument("--png", help="write the curves here (needs matplotlib)")
    sizes = {"steps": 800, "batch": 8, "context": 128, "width": 128, "heads": 4, "layers": 2, "seed": 1}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=2e-3)
    words = parser.parse_args(arguments)
    text, curves = read(words.text), {}
    for attention in ("torch", "libattn"):
        curves[attention], seconds = train(text, words, attention)
        print(f"{attention:8} {words.steps} steps in {seconds:.1f} s, mean of the last ten losses "
              f"{sum(curves[attention][-10:]) / len(curves[attention][-10:]):.4f}")
    apart = max(abs(a - b) for a, b in zip(curves["torch"], curves["libattn"]))
    print(f"largest difference of the two curves: {apart:.2e}")
    if words.png:
        draw(curves, words.png)
        print(f"wrote {words.png}")
    return curves, apart


if __name__ == "__main__":
    main()
