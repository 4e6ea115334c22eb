# SPDX-License-Identifier: MIT
"""A serving loop: requests come and go, their keys lie in pages of one pool, one call a layer serves a whole step.

    python python/examples/serve.py                                 # NumPy alone, a few seconds

Each step takes from every running request a part of its prompt or its newest token, packs these rows, writes their keys
and values into pages, and attends: packed queries (cu_seqlens_q) on paged keys (block_table, seqlens_k). The model is
small and random; --verify recomputes every request alone, without pages, and compares the tokens.
"""
import argparse
import time
from collections import deque

import libattn
import numpy as np

HEADS, KEY_HEADS, D, LAYERS, WORDS = 8, 2, 64, 2, 500
WIDTH = HEADS * D


class Model:
    """Attention layers with a residual, then logits; attend(layer, q, k, v) is the caller's."""

    def __init__(self, random):
        def weight(*shape):
            return (random.standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32)

        self.embedding, self.place = random.standard_normal((2, 4096, WIDTH), np.float32)
        self.qkv, self.out = weight(LAYERS, WIDTH, (HEADS + 2 * KEY_HEADS) * D), weight(LAYERS, WIDTH, WIDTH)
        self.head = weight(WIDTH, WORDS)

    def __call__(self, tokens, positions, attend):
        x = self.embedding[tokens] + self.place[positions]
        for layer in range(LAYERS):
            y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            heads = (y @ self.qkv[layer]).reshape(len(x), -1, D).transpose(1, 0, 2)  # [heads, rows, D]
            out = attend(layer, *np.split(heads, (HEADS, HEADS + KEY_HEADS)))
            x = x + out.transpose(1, 0, 2).reshape(-1, WIDTH) @ self.out[layer]
        return x @ self.head


class Pool:
    """Pages of keys and values for every layer, and the free ones."""

    def __init__(self, pages, rows):
        self.rows, self.free = rows, list(range(pages))
        self.k, self.v = (np.zeros((LAYERS, pages, KEY_HEADS, rows, D), np.float32) for _ in range(2))

    def write(self, layer, table, positions, k, v):
        """One row for each (page, place in it)."""
        pages, places = table[np.arange(len(positions)), positions // self.rows], positions % self.rows
        self.k[layer, pages, :, places], self.v[layer, pages, :, places] = k.transpose(1, 0, 2), v.transpose(1, 0, 2)


class Request:
    """A prompt, its answer so far, and the pages that hold its keys."""

    def __init__(self, prompt, wanted):
        self.tokens, self.prompt, self.wanted = list(prompt), len(prompt), wanted
        self.cached, self.pages = 0, []

    def done(self):
        return len(self.tokens) == self.prompt + self.wanted

    def take(self, chunk, pool):
        """Tokens of the next step, or none while the pool has no page for them."""
        new = self.tokens[self.cached:self.cached + chunk]
        missing = -(-(self.cached + len(new)) // pool.rows) - len(self.pages)
        if missing > len(pool.free):
            return []
        self.pages += [pool.free.pop() for _ in range(missing)]
        return new


def step(model, pool, running, chunk):
    """Advance every running request that gets its pages; returns the number of rows."""
    taken = [(request, new) for request in running if (new := request.take(chunk, pool))]
    if not taken:
        raise RuntimeError("the pool is too small for the running requests")
    counts = np.array([len(new) for _, new in taken], np.int32)
    cu, lengths = np.concatenate([[0], counts.cumsum()]).astype(np.int32), counts.copy()
    lengths += np.array([request.cached for request, _ in taken], np.int32)
    table = np.full((len(taken), max(len(request.pages) for request, _ in taken)), -1, np.int32)
    for row, (request, _) in zip(table, taken):
        row[:len(request.pages)] = request.pages
    positions = np.concatenate([np.arange(length - count, length) for length, count in zip(lengths, counts)])
    row_table = table.repeat(counts, 0)

    def attend(layer, q, k, v):
        pool.write(layer, row_table, positions, k, v)
        return libattn.sdpa(q, pool.k[layer], pool.v[layer], causal=True, bottom_right=True, cu_seqlens_q=cu,
                            max_seqlen_q=chunk, block_table=table, seqlens_k=lengths)

    logits = model(np.concatenate([new for _, new in taken]), positions, attend)
    for (request, new), last in zip(taken, logits[cu[1:] - 1]):
        request.cached += len(new)
        if request.cached == len(request.tokens):
            request.tokens.append(int(last.argmax()))
    return len(logits)


def alone(model, request):
    """The request's tokens, each from the whole sequence before it, without a cache."""
    def attend(_, q, k, v):
        return libattn.sdpa(q[None], k[None], v[None], causal=True)[0]

    tokens = request.tokens[:request.prompt]
    while len(tokens) < request.prompt + request.wanted:
        logits = model(tokens, np.arange(len(tokens)), attend)
        tokens.append(int(logits[-1].argmax()))
    return tokens


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"requests": 24, "running": 8, "chunk": 64, "pages": 80, "page": 16, "prompt": 120, "answer": 30, "seed": 1}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--verify", action="store_true", help="recompute every request alone and compare")
    words = parser.parse_args(arguments)
    random = np.random.default_rng(words.seed)
    model, pool = Model(random), Pool(words.pages, words.page)
    lengths = random.integers((5, 4), (words.prompt, words.answer), (words.requests, 2))
    waiting = deque(Request(random.integers(0, WORDS, prompt), int(answer)) for prompt, answer in lengths)
    everyone, running, steps, rows, start = list(waiting), [], 0, 0, time.perf_counter()
    while waiting or running:
        while waiting and len(running) < words.running:
            running.append(waiting.popleft())
        rows += step(model, pool, running, words.chunk)
        steps += 1
        for request in [request for request in running if request.done()]:
            running.remove(request)
            pool.free += request.pages
    seconds, made = time.perf_counter() - start, sum(request.wanted for request in everyone)
    print(f"{words.requests} requests, {rows} rows in {steps} steps, {made} new tokens in {seconds:.2f} s, "
          f"{len(pool.free)} of {words.pages} pages free")
    wrong = sum(request.tokens != alone(model, request) for request in everyone) if words.verify else 0
    if words.verify:
        print(f"{words.requests - wrong} of {words.requests} requests have the tokens that they get alone")
    return wrong, len(pool.free) == words.pages


if __name__ == "__main__":
    main()
