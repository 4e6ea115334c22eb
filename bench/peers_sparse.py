#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure FlashMLA and cuDNN's sparse attention on the sparse operators, as records that join with those of `attn bench --json`.

    attn bench --device cuda:0 --json --run-id R @dsa @shared > attn.jsonl
    python3 bench/peers_sparse.py --run-id R --flash-mla flash_mla/_C_legacy.abi3.so @dsa @shared > peers.jsonl

flashmla: mla_fwd, a shared object of the package sgl-flash-mla (torch.ops.flash_mla_legacy). cudnn-dsa: mla_bwd and dist of the
package nvidia-cudnn-frontend with nvidia-cutlass-dsl[cu13], on the path; a shape compiles for about 10 s. Either is left out
where it is absent. Lists are drawn as `attn bench --overlap` draws them, from another stream of numbers; a record's `overlap`
holds what they have. FLOPs are those of `attn bench`. --check compares each with the formula in f32 before it is timed."""
import argparse
import os

import peers_timing as timing

IMPLS = ("flashmla", "cudnn-dsa")
EXTENTS = ("b", "hq", "sq", "sk", "d", "dv", "topk")
FLOPS = {"mla_fwd": lambda d: 2 * (d + 512), "mla_bwd": lambda d: 2 * (3 * d + 2 * 512), "dist": lambda d: 2 * d}


def canonical(p):
    """The library's own text of the problem, on which records join."""
    same_as = {"b": 1, "dv": 512}
    return " ".join([p["op"], *(f"{k}={p[k]}" for k in EXTENTS if k in p and p[k] != same_as.get(k)), p["dtype"]])


def flops(p):
    return p["sq"] * p["topk"] * p["hq"] * FLOPS[p["op"]](p["d"])


def traffic(p):
    """Rows of q, kv, lists and outputs, each once."""
    rows, d = p["sq"] * p["hq"], p["d"]
    lists = p["sq"] * p["topk"] * 4
    outputs = {"mla_fwd": 2 * 512 * rows + 4 * rows, "mla_bwd": 2 * (d + 2 * 512) * rows + 2 * p["sk"] * d, "dist": lists}
    return 2 * d * (rows + p["sk"]) + lists + outputs[p["op"]]


def lists(numpy, p, overlap, seed=1):
    """[SQ, TOPK] distinct keys: random ones; the prefix; or a walk, two neighbours of which share J of their keys in common."""
    rng = numpy.random.default_rng(seed)
    sq, sk, n = p["sq"], p["sk"], p["topk"]
    out = numpy.empty((sq, n), numpy.int32)
    if overlap == "prefix":
        out[:] = numpy.arange(n, dtype=numpy.int32)
        return rng.permuted(out, axis=1)
    if overlap in (None, "random"):
        for i in range(sq):
            out[i] = rng.choice(sk, n, replace=False)
        return out
    part, owed = (1 - float(overlap)) / (1 + float(overlap)), 0.0
    order = rng.permutation(sk).astype(numpy.int32)  # the first n are the query's keys
    for i in range(sq):
        if i:
            owed += part * n
            m = min(int(owed), sk - n)
            owed -= int(owed)
            leave, enter = rng.choice(n, m, replace=False), n + rng.choice(sk - n, m, replace=False)
            order[leave], order[enter] = order[enter], order[leave]
        out[i] = rng.permutation(order[:n])
    return out


def shared(numpy, x, asked):
    """A record's `overlap`: mean J of neighbours, mean lengths of the unions of 2, 4, 8 and 16 lists (of distinct keys)."""
    both = [len(numpy.intersect1d(a, b, assume_unique=True)) for a, b in zip(x[:256], x[1:257])]
    j = [n / (2 * x.shape[1] - n) for n in both]
    unions = [float(numpy.mean([len(numpy.unique(x[i:i + g])) for i in range(0, min(256, len(x)), g)])) for g in (2, 4, 8, 16)]
    return {"asked": asked, "j": sum(j) / len(j), "union_length": unions}


def tensors(torch, p, idx):
    q = torch.randn(p["sq"], p["hq"], p["d"], device="cuda", dtype=torch.bfloat16) / 4
    kv = torch.randn(p["sk"], p["d"], device="cuda", dtype=torch.bfloat16) / 4
    return q, kv, torch.from_numpy(idx).cuda()


def formula(torch, q, kv, idx, scale, chunk=16):
    """out and lse of all queries, products in bf16."""
    outs, lses = [], []
    for i in range(0, q.shape[0], chunk):
        k = kv[idx[i:i + chunk].long()]
        s = torch.bmm(q[i:i + chunk], k.transpose(1, 2)).float() * scale
        lse = torch.logsumexp(s, -1)
        outs.append(torch.bmm((s - lse[..., None]).exp().to(q.dtype), k[..., :512]))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def load_flashmla(torch, args):
    torch.ops.load_library(args.flash_mla)
    op = torch.ops.flash_mla_legacy.sparse_prefill_fwd

    def prepare(p, q, kv, idx):
        scale = p["d"] ** -0.5
        return lambda: op(q, kv.unsqueeze(1), idx.unsqueeze(1), scale, 512, None, None)

    return "FlashMLA of sgl-flash-mla", {"mla_fwd": prepare}


def load_cudnn(torch, args):
    major, minor = torch.cuda.get_device_capability()
    os.environ.setdefault("CUTE_DSL_ARCH", f"sm_{major}{minor}a")
    import cudnn
    from cudnn import deepseek_sparse_attention as dsa

    def backward(p, q, kv, idx):
        scale = p["d"] ** -0.5
        out, lse = formula(torch, q, kv, idx, scale)
        dout = torch.randn_like(out)
        sink = torch.full((p["hq"],), -torch.inf, device="cuda")  # no sink
        plan = dsa.SparseAttentionBackward(q, kv, out, dout, lse, sink, idx, softmax_scale=scale)
        if not plan.check_support():
            raise RuntimeError("check_support refuses")
        plan.compile()
        size = plan.scratch_workspace_bytes()
        work = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        grads = torch.empty_like(q), torch.empty_like(kv), torch.empty_like(sink)

        def call():  # zeroing of sums, the kernels before and after: all that a caller launches
            plan.execute(q, kv, out, dout, lse, sink, idx, *grads[:2], workspace=work, d_sink=grads[2])
            return grads[:2]

        call.dout = dout
        return call

    def dist(p, q, kv, idx):
        scale = p["d"] ** -0.5
        lse = formula(torch, q, kv, idx, scale)[1]
        target = torch.empty(1, p["sq"], p["topk"], device="cuda")
        return lambda: dsa.sparse_attn_score_recompute_wrapper(
            q[None], kv[None], lse[None], idx[None], scale, qhead_per_kv_head=p["hq"], topk_indices_global=True, out=target)["target"]

    return f"cudnn-frontend {cudnn.__version__}", {"mla_bwd": backward, "dist": dist}


def check(torch, numpy, p, prepare):
    """Largest difference from the formula in f32, over its root mean square, of 64 queries with 512 keys each."""
    small = {**p, "sq": 64, "sk": 2048, "topk": 512}
    q, kv, idx = tensors(torch, small, lists(numpy, small, "random"))
    call = prepare(small, q, kv, idx)
    x, y = q.float().requires_grad_(), kv.float().requires_grad_()
    k = y[idx.long()]
    prob = (torch.einsum("nhd,ntd->nht", x, k) * p["d"] ** -0.5).softmax(-1)
    out = torch.einsum("nht,ntd->nhd", prob, k[..., :512])
    got = call()
    if p["op"] == "mla_fwd":
        pairs = [(got[0], out)]
    elif p["op"] == "dist":
        pairs = [(got[0], prob.sum(1) / p["hq"])]
    else:
        pairs = list(zip(got, torch.autograd.grad(out, (x, y), call.dout.float())))
    return max(float((a.float() - b.detach()).abs().max() / b.detach().square().mean().sqrt()) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    timing.arguments(parser, IMPLS)
    parser.add_argument("--flash-mla", help="the shared object with torch.ops.flash_mla_legacy")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    import numpy
    import torch

    found = timing.load(torch, args, {"flashmla": (load_flashmla, args.flash_mla), "cudnn-dsa": (load_cudnn, True)})
    drawn = {}  # lists are costly to draw: one problem's serve all with the same extents
    for overlap, line in timing.problems(args.problems):
        p = timing.parse(line, EXTENTS) if line.split()[0] in FLOPS else None
        if not p or p["dtype"] != "bf16" or p.get("dv", 512) != 512:
            timing.complain("not theirs:", line)
            continue
        for impl, (kernel, prepares) in found.items():
            if p["op"] not in prepares:
                continue
            key = overlap, p["sq"], p["sk"], p["topk"]
            if key not in drawn:
                drawn = {k: x for k, x in drawn.items() if k[0] == overlap} | {key: lists(numpy, p, overlap)}
            overlapping = {"overlap": shared(numpy, drawn[key], overlap)} if overlap else {}
            call, drawn_now, n_calls = prepares[p["op"]], drawn[key], timing.copies_of(traffic(p), args.cache)
            timing.print_measured(torch, args, (canonical(p), impl, kernel), lambda: check(torch, numpy, p, call),
                                  lambda: [call(p, *tensors(torch, p, drawn_now)) for _ in range(n_calls)],
                                  (flops(p), traffic(p)), **overlapping)


if __name__ == "__main__":
    main()
