# SPDX-License-Identifier: MIT
"""libattn.torch, sparse: mla, its backward and dist against the formulas, opcheck."""

import libattn
import reference
import torch
from libattn import torch as lt
from libattn.torch._sparse_op import SPARSE_OPTIONS
from record import check
from torch.library import opcheck


def problem(case, sq, hq, sk, topk, d=576):
    """q, kv, indices with invalid slots anywhere, sink, slots in use."""
    q, kv = (case.random(*shape, dtype=torch.bfloat16, grad=True) for shape in ((sq, hq, d), (sk, 1, d)))
    slots = torch.randint(-3, sk, (sq, 1, topk), generator=case.generator, device=case.device, dtype=torch.int32)
    slots[1] = -1
    lengths = torch.randint(1, topk + 1, (sq,), generator=case.generator, device=case.device, dtype=torch.int32)
    return q, kv, slots, case.random(hq, grad=True), lengths


@check
def mla(case):
    """Forward, backward and dist, with and without sink and lengths."""
    for label, extent in {
        "64 heads": (40, 64, 300, 128),
        "128 heads, d512": (24, 128, 500, 256, 512),
        "16 heads": (9, 16, 70, 50),
    }.items():
        q, kv, slots, sink, lengths = problem(case, *extent)
        for name, words in {"plain": {}, "sink": {"sink": sink}, "lengths": {"topk_length": lengths}}.items():
            out, lse, top = lt.mla(q, kv, slots, return_max_logits=True, **words)
            right, right_lse, dist, right_top = reference.mla(q, kv, slots, **words)
            case.close(f"{label}, {name}: out", out, right, 1.6e-2)
            case.close(f"{label}, {name}: lse", lse, right_lse, 1e-3)
            case.close(f"{label}, {name}: max_logits", top, right_top, 1e-3)
            learned = (q, kv, *((sink,) if "sink" in words else ()))
            dout = case.random(*out.shape, dtype=torch.bfloat16)
            found = torch.autograd.grad(out, learned, dout)
            expected = torch.autograd.grad(right, learned, dout.double())
            for role, x, y in zip(("dq", "dkv", "dsink"), found, expected):
                case.close(f"{label}, {name}: {role}", x, y, 3.2e-2)
            if "sink" not in words:
                case.close(f"{label}, {name}: dist", lt.dist(q, kv, slots, lse.detach(), **words), dist, 1.6e-2)


@check
def opcheck_sparse(case):
    q, kv, slots, sink, _ = problem(case, 6, 64, 60, 64)
    options = tuple(default for _, default in SPARSE_OPTIONS.values())
    out, lse, _ = lt.mla(q, kv, slots, sink=sink, return_max_logits=True)
    plain, sink = [x.detach() for x in (q, kv)], sink.detach()
    opcheck(torch.ops.libattn.mla_fwd.default, (q, kv, slots, None, None, sink.requires_grad_(), *options))
    opcheck(
        torch.ops.libattn.mla_bwd.default,
        (
            out.detach(),
            None,
            *plain,
            slots,
            out.detach(),
            lse.detach(),
            [True] * 3,
            None,
            None,
            sink.detach(),
            *(True if name == "deterministic" else x for name, x in zip(SPARSE_OPTIONS, options)),
        ),
    )
    opcheck(torch.ops.libattn.dist.default, (*plain, slots, lse.detach(), "l1", None, None, *options))


@check
def batches(case):
    """A leading batch axis gives what its entries give."""
    two = [problem(case, 12, 64, 90, 64)[:3] for _ in range(2)]
    out = lt.mla(*(torch.stack(x) for x in zip(*two)))
    for i, one in enumerate(two):
        case.close("out", out[i], lt.mla(*one), 1e-2)


@check
def joined_lists(case):
    """mla_join gives the words that it gives on the CPU, in what the format has written."""
    for sq, sk, topk in ((37, 300, 128), (64, 5000, 512)):
        slots = torch.randint(-3, sk, (sq, 1, topk), generator=case.generator, device=case.device, dtype=torch.int32)
        lengths = torch.randint(1, topk + 1, (sq,), generator=case.generator, device=case.device, dtype=torch.int32)
        for group in (2, 4, 8, 16):
            words = {"group": group, "seq_k": sk, "causal": True, "q_start": sk - sq}
            found = lt.mla_join(slots, topk_length=lengths, **words).cpu()
            right = lt.mla_join(slots.cpu(), topk_length=lengths.cpu(), **words)
            for x, y in zip(found, right):
                written = 32 + int(y[0])
                case.must(torch.equal(x[:written], y[:written]), f"group {group}: other headers or keys")


@check
def one_join_for_a_step(case):
    """mla_join once for forward, dist and backward gives what the lists alone give, to within sums in another order."""
    sq, sk, topk = (512, 2048, 512) if case.cuda else (40, 300, 128)
    for hq in (8, 32):
        q, kv, slots, _, lengths = problem(case, sq, hq, sk, topk)
        text = f"mla_bwd b=1 sq={sq} sk={sk} hq={hq} d=576 topk={topk} bf16 topk_length"
        group = libattn.plan(text, str(case.device)).group or 4
        lists = lt.mla_join(slots, group=group, seq_k=sk, topk_length=lengths)
        dout, found = case.random(sq, hq, 512, dtype=torch.bfloat16), []
        for joined in (lists, None):
            out, lse = lt.mla(q, kv, slots, topk_length=lengths, joined=joined, return_lse=True)
            dist = lt.dist(q, kv, slots, lse, topk_length=lengths, joined=joined)
            found.append((out, lse, dist, *torch.autograd.grad(out, (q, kv), dout)))
        for role, x, y in zip(("out", "lse", "dist", "dq", "dkv"), *found):
            case.close(f"{hq} heads in groups of {group}: {role}", x, y, 1e-3 if role == "lse" else 1.6e-2)
