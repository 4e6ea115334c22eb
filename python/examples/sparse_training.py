# SPDX-License-Identifier: MIT
"""Training steps of sparse attention with a learned indexer (DeepSeek sparse attention), on synthetic data.

    python python/examples/sparse_training.py                       # a minute on two cores

A sequence is pairs of a key and a value, then keys again; the model answers each with its value, so each query needs
few of the earlier tokens. The lightning indexer scores them cheaply; mla attends to the best `--topk`. Two losses: the
answers' cross entropy trains the attention through mla's backward, and the divergence of the indexer's softmax from
`dist`, the attention of all heads together on the same slots, trains the indexer. The first steps are dense: all tokens
are slots.
"""
import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads leave the processor to libattn's
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn.torch import dist, mla, mla_join  # noqa: E402

QK, V = 576, 512  # widths of a latent row as a key and as a value


class Indexer(torch.nn.Module):
    """score[i,j] = sum over heads of weight[i,h] * relu(q[i,h] . k[j])."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.q, self.k = torch.nn.Linear(width, heads * inner), torch.nn.Linear(width, inner)
        self.weight = torch.nn.Linear(width, heads)

    def forward(self, x):
        q, k = self.q(x).unflatten(-1, (self.heads, -1)), self.k(x)
        scores = F.relu(torch.einsum("bihd,bjd->bihj", q, k)) * k.shape[-1] ** -0.5
        return torch.einsum("bih,bihj->bij", self.weight(x), scores)


class Model(torch.nn.Module):
    """One layer of sparse attention on latent rows."""

    def __init__(self, words):
        super().__init__()
        width, heads, tokens = words.width, words.heads, 2 * words.symbols
        self.heads, self.token = heads, torch.nn.Embedding(tokens, width)
        self.q, self.latent = torch.nn.Linear(width, heads * QK), torch.nn.Linear(2 * width, QK)
        self.out = torch.nn.Linear(heads * V, width)
        self.head = torch.nn.Linear(width, words.symbols)
        self.indexer = Indexer(2 * width, 4, 32)

    def forward(self, tokens, topk, causal):
        x = self.token(tokens)
        pair = torch.cat([x, F.pad(x, (0, 0, 1, 0))[:, :-1]], -1)  # a token and the one before it
        scores = self.indexer(pair.detach()).masked_fill(~causal, -torch.inf)
        best, slots = scores.topk(topk, -1)
        indices = slots.masked_fill(best.isneginf(), -1).int()[:, :, None]  # [B,SQ,1,TOPK], -1 is no slot
        q, kv = self.q(x).unflatten(-1, (self.heads, QK)), self.latent(pair)[:, :, None]
        lists = mla_join(indices, group=8, seq_k=kv.shape[1])  # once for the forward, dist and the backward of a step
        out, lse = mla(q, kv, indices, joined=lists, return_lse=True)
        with torch.no_grad():
            target = dist(q, kv, indices, lse, joined=lists, norm="l1")  # [B,SQ,TOPK], each row sums to 1
        found = best.masked_fill(best.isneginf(), -1e9).log_softmax(-1)
        divergence = F.kl_div(found, target, reduction="none").sum(-1).mean()
        return self.head(x + self.out(out.flatten(-2))), divergence, indices


def batch(words, generator):
    """Tokens [B,SEQ], the answers and where they stand; symbol n as a key is token n, as a value token symbols + n."""
    n, asked = words.symbols, words.asked
    keys = torch.stack([torch.randperm(n, generator=generator) for _ in range(words.batch)])
    values = torch.randint(n, keys.shape, generator=generator)
    chosen = torch.randint(n, (words.batch, asked), generator=generator)
    tokens = torch.cat([torch.stack([keys, values + n], -1).flatten(1), keys.gather(1, chosen)], 1)
    return tokens, values.gather(1, chosen), 2 * chosen + 1


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    defaults = {"steps": 150, "dense": 20, "batch": 8, "symbols": 32, "asked": 16, "topk": 8, "width": 64, "heads": 4}
    for name, value in (defaults | {"seed": 1}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    words = parser.parse_args(arguments)
    torch.manual_seed(words.seed)
    model, generator = Model(words), torch.Generator().manual_seed(words.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    length = 2 * words.symbols + words.asked
    causal, history = torch.ones(length, length, dtype=torch.bool).tril(), []
    for step in range(words.steps):
        tokens, answers, places = batch(words, generator)
        topk = length if step < words.dense else words.topk
        logits, divergence, indices = model(tokens, topk, causal)
        logits, slots = logits[:, -words.asked:], indices[:, -words.asked:, 0]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        (loss + divergence).backward()
        optimizer.step()
        right = (logits.argmax(-1) == answers).float().mean().item()
        found = (slots == places[..., None]).any(-1).float().mean().item()  # the slot that holds the answer is chosen
        history.append((loss.item(), divergence.item(), right, found))
        if step % 25 == 0 or step == words.steps - 1:
            print(f"step {step:4}  {'dense' if topk == length else f'topk {topk}':8} loss {history[-1][0]:.3f}  "
                  f"indexer {history[-1][1]:.3f}  right {right:4.0%}  slot found {found:4.0%}", flush=True)
    return history


if __name__ == "__main__":
    main()
