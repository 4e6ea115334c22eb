# SPDX-License-Identifier: MIT
"""libattn.compat: each published call on the device against a plain formula, out, lse and gradients."""

import libattn.compat
import reference
import torch
from record import Skipped, check

HALF = (torch.bfloat16, torch.float16)
BOUND = {torch.bfloat16: (1.6e-2, 3.2e-2), torch.float16: (2e-3, 4e-3)}


def formula(q, k, v, **words):
    """The formulas on [B,S,H,D], diagonal at the bottom right, lse +inf on rows without keys."""
    out, lse = reference.sdpa(*(x.transpose(1, 2) for x in (q, k, v)), bottom_right=True, **words)
    return out.transpose(1, 2), lse.masked_fill(lse.isneginf(), float("inf"))


def compare(case, label, call, right, inputs):
    """call returns (out, lse)."""
    (out, lse), (expected, expected_lse) = call(*inputs), right(*inputs)
    forward, backward = BOUND[inputs[0].dtype]
    case.close(f"{label}: out", out, expected, forward)
    case.close(f"{label}: lse", lse, expected_lse, 1e-3)
    dout = case.random(*out.shape, dtype=out.dtype)
    for role, x, y in zip(
        ("dq", "dk", "dv"), torch.autograd.grad(out, inputs, dout), torch.autograd.grad(expected, inputs, dout.double())
    ):
        case.close(f"{label}: {role}", x, y, backward)


OPTIONS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "window": ({"window_size": (30, 4)}, {"window": (30, 4)}),
    "causal window": ({"causal": True, "window_size": (30, -1)}, {"causal": True, "window": (30, None)}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "scale": ({"softmax_scale": 0.2}, {"scale": 0.2}),
}


def dense(case, name):
    module = libattn.compat.install(name)
    for dtype in HALF if case.cuda else HALF[:1]:  # a CPU takes long
        for d in (64, 128) if case.cuda else (64,):
            for sq, sk in ((113, 203), (128, 128), (150, 60)):
                inputs = [
                    case.random(2, rows, heads, d, dtype=dtype, grad=True)
                    for rows, heads in ((sq, 6), (sk, 2), (sk, 2))
                ]
                for label, (theirs, ours) in OPTIONS.items():
                    compare(
                        case,
                        f"{label} {str(dtype)[6:]}",
                        lambda *x: module.flash_attn_func(*x, return_attn_probs=True, **theirs)[:2],
                        lambda *x: formula(*x, **ours),
                        inputs,
                    )


@check
def flash_attn(case):
    dense(case, "flash_attn")


@check
def flash_attn_interface(case):
    dense(case, "flash_attn_interface")


@check
def flash_attn_interface_e4m3(case):
    """8-bit inputs with descale of each sequence and key head: dense, packed, and new rows on a cache, which on a CPU lies on pages, too.
    Where P is multiplied in e4m3 each row is within 2^-3 (docs/semantics.md), all of them together within half of it. What the
    kernels of a GPU lack is refused by its name."""
    if case.cuda and torch.cuda.get_device_capability(case.device)[0] != 9:
        raise Skipped("e4m3 has kernels for Hopper alone")
    module = libattn.compat.install("flash_attn_interface")
    for d in (64, 96, 128) if case.cuda else (64,):
        q, k, v = (case.random(2, 256, heads, d).to(torch.float8_e4m3fn) for heads in (6, 2, 2))
        descale = [0.5 + case.random(2, 2).abs() for _ in range(3)]
        words = dict(zip(("q_descale", "k_descale", "v_descale"), descale))
        worth = [
            x.double() * scale.double().repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None]
            for x, scale in zip((q, k, v), descale)
        ]
        for causal in (False, True):
            right, right_lse = formula(*worth, causal=causal)
            out, lse = module.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True, **words)
            case.must(out.dtype == torch.bfloat16, f"out is {out.dtype}")
            case.close("dense: out", out, right, 2**-4)
            case.close("dense: lse", lse, right_lse, 2**-7)
            whole = module.flash_attn_func(q, k, v, causal=causal, attention_chunk=256, **words)
            case.must(torch.equal(whole, out), "a chunk that holds all keys changed out")
            cu = torch.tensor([0, 256, 512], device=case.device).int()
            packed = module.flash_attn_varlen_func(
                *(x.flatten(0, 1) for x in (q, k, v)), cu, cu, 256, 256, causal=causal, **words
            )
            case.close("packed: out", packed, right.flatten(0, 1), 2**-4)
            table = torch.tensor([[3, 1, 7, 5], [6, 0, 2, 4]], device=case.device).int()
            for label, shape, page_table in (("cache", (2, 300), None), ("pages", (8, 64), table)):
                if label == "pages" and case.cuda:
                    continue
                cache = [torch.zeros(*shape, 2, d, device=case.device).to(torch.float8_e4m3fn) for _ in range(2)]
                for first, last in ((0, 200), (200, 256)):
                    found = module.flash_attn_with_kvcache(
                        q, *cache, k[:, first:last], v[:, first:last], causal=causal, page_table=page_table,
                        cache_seqlens=torch.full((2,), first, device=case.device).int(), **words
                    )  # fmt: skip
                case.close(f"{label}: out", found, right, 2**-4)
    if not case.cuda:
        return
    wide, paged = (case.random(2, 256, 2, 192).to(torch.float8_e4m3fn), case.random(8, 64, 2, d).to(torch.float8_e4m3fn))
    for name, call in {
        "softcap": lambda: module.flash_attn_func(q, k, v, softcap=15.0),
        "attention_chunk": lambda: module.flash_attn_func(q, k, v, attention_chunk=100),
        "q": lambda: module.flash_attn_func(wide, wide, wide),
        "page_table": lambda: module.flash_attn_with_kvcache(q, paged, paged, cache_seqlens=256, page_table=table),
    }.items():
        try:
            call()
        except libattn.UnsupportedError as refusal:
            case.must(refusal.argument == name, f"{name} is refused as {refusal.argument}: {refusal}")
        else:
            case.must(False, f"{name} is served: the refusal and its row in docs/python.md can go")


@check
def alibi(case):
    module, slopes = libattn.compat.install("flash_attn"), case.random(6).abs() * 0.1
    inputs = [case.random(2, 100, heads, 64, dtype=torch.bfloat16, grad=True) for heads in (6, 2, 2)]
    compare(
        case,
        "alibi",
        lambda *x: module.flash_attn_func(*x, alibi_slopes=slopes, return_attn_probs=True)[:2],
        lambda *x: formula(*x, alibi=slopes, alibi_form="distance"),
        inputs,
    )


def sequences(case, *counts):
    bounds = torch.tensor([0, *counts], device=case.device).cumsum(0)
    return bounds.int(), [slice(a, b) for a, b in zip(bounds.tolist(), bounds.tolist()[1:])]


@check
def packed(case):
    """flash_attn_varlen_func of both, with gradients; seqused of version 3."""
    (cu_q, rows_q), (cu_k, rows_k) = sequences(case, 30, 1, 113), sequences(case, 64, 100, 203)
    for name in ("flash_attn", "flash_attn_interface"):
        module = libattn.compat.install(name)
        for causal in (False, True):
            q, k, v = (
                case.random(rows, heads, 128, dtype=torch.bfloat16, grad=True)
                for rows, heads in ((144, 6), (367, 2), (367, 2))
            )

            def right(q, k, v):
                parts = [formula(q[None, a], k[None, b], v[None, b], causal=causal) for a, b in zip(rows_q, rows_k)]
                return torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)

            compare(
                case,
                name,
                lambda q, k, v: module.flash_attn_varlen_func(
                    q, k, v, cu_q, cu_k, 113, 203, causal=causal, return_attn_probs=True
                )[:2],
                right,
                (q, k, v),
            )
    used = torch.tensor([60, 33, 203], dtype=torch.int32, device=case.device)
    out = module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 113, 203, seqused_k=used)
    for i, (a, b) in enumerate(zip(rows_q, rows_k)):
        keys = slice(b.start, b.start + int(used[i]))
        case.close("seqused_k", out[a], formula(q[None, a], k[None, keys], v[None, keys])[0][0], 1.6e-2)


@check
def cache(case):
    """flash_attn_with_kvcache: appended rows, dense and paged."""
    module, lengths = libattn.compat.install("flash_attn"), [37, 300, 511]
    used = torch.tensor(lengths, dtype=torch.int32, device=case.device)
    for new_rows in (1, 5):
        q = case.random(3, new_rows, 16, 128, dtype=torch.bfloat16)
        new_k, new_v = (case.random(3, new_rows, 2, 128, dtype=torch.bfloat16) for _ in range(2))
        whole = [case.random(3, 768, 2, 128, dtype=torch.bfloat16) for _ in range(2)]
        for paged in (False, True):
            table, caches = None, [x.clone() for x in whole]
            if paged:
                table = torch.randperm(9, generator=case.generator, device=case.device).int().view(3, 3)
                pages = [torch.empty(9, 256, 2, 128, dtype=q.dtype, device=case.device) for _ in range(2)]
                for page, x in zip(pages, whole):
                    page[table.long()] = x.view(3, 3, 256, 2, 128)
                caches = pages
            out, lse = module.flash_attn_with_kvcache(
                q, *caches, new_k, new_v, cache_seqlens=used, block_table=table, causal=True, return_softmax_lse=True
            )
            for b, length in enumerate(lengths):
                keys, values = (
                    torch.cat([x[b : b + 1, :length], new[b : b + 1]], 1) for x, new in zip(whole, (new_k, new_v))
                )
                right, right_lse = formula(q[b : b + 1], keys, values, causal=True)
                case.close(f"{new_rows} rows, paged {paged}: out", out[b : b + 1], right, 1.6e-2)
                case.close(f"{new_rows} rows, paged {paged}: lse", lse[b : b + 1], right_lse, 1e-3)


@check
def rotated_and_padded_cache(case):
    """flash_attn_with_kvcache of both: rotary embedding, cache_batch_idx, cache_leftpad."""
    lengths, number, start = (
        torch.tensor(x, dtype=torch.int32, device=case.device) for x in ([37, 300], [2, 0], [5, 130])
    )
    for name in ("flash_attn", "flash_attn_interface"):
        module = libattn.compat.install(name)
        q = case.random(2, 4, 16, 128, dtype=torch.bfloat16)
        cache_k, cache_v = (case.random(3, 512, 2, 128, dtype=torch.bfloat16) for _ in range(2))
        for words in ({}, {"cache_leftpad": start}):
            out, lse = module.flash_attn_with_kvcache(
                q,
                cache_k,
                cache_v,
                cache_seqlens=lengths,
                cache_batch_idx=number,
                causal=True,
                return_softmax_lse=True,
                **words,
            )
            for b in range(2):
                rows = slice(int(start[b]) if words else 0, int(lengths[b]))
                right, right_lse = formula(
                    q[b : b + 1], cache_k[number[b], rows][None], cache_v[number[b], rows][None], causal=True
                )
                case.close(f"{name} {[*words]}: out", out[b : b + 1], right, 1.6e-2)
                case.close(f"{name} {[*words]}: lse", lse[b : b + 1], right_lse, 1e-3)
        new_k, new_v = (case.random(2, 4, 2, 128, dtype=torch.bfloat16) for _ in range(2))
        angle = torch.arange(512, device=case.device)[:, None] * torch.logspace(0, -4, 64, device=case.device)
        before = cache_k.clone()
        out = module.flash_attn_with_kvcache(
            q, cache_k[:2], cache_v[:2], new_k, new_v, rotary_cos=angle.cos(), rotary_sin=angle.sin(), cache_seqlens=lengths,
            causal=True
        )  # fmt: skip
        turn = torch.polar(torch.ones_like(angle), angle)

        def turned(x, first):
            pairs = torch.view_as_complex(x.float().unflatten(-1, (64, 2)))
            return torch.view_as_real(pairs * turn[first : first + len(x), None]).flatten(-2).to(x.dtype)

        for b, length in enumerate(lengths.tolist()):
            keys = torch.cat([before[b, :length], turned(new_k[b], length)])
            values = torch.cat([cache_v[b, :length], new_v[b]])
            right, _ = formula(turned(q[b], length)[None], keys[None], values[None], causal=True)
            case.close(f"{name} rotary: out", out[b : b + 1], right, 1.6e-2)
            case.close(f"{name} rotary: keys", cache_k[b, : length + 4], keys, 1e-2)


@check
def flash_attn_4(case):
    """flash_attn.cute: windows, sinks, packed queries on pages."""
    module = libattn.compat.install("flash_attn.cute")
    inputs = [
        case.random(2, rows, heads, 64, dtype=torch.bfloat16, grad=True)
        for rows, heads in ((113, 6), (203, 2), (203, 2))
    ]
    for label, words in {
        "causal": {"causal": True},
        "window": {"window_size": (None, -3)},
        "softcap": {"softcap": 2.0},
    }.items():
        ours = {{"window_size": "window"}.get(name, name): x for name, x in words.items()}
        compare(case, label, lambda *x: module.flash_attn_func(*x, **words), lambda *x: reference_4(*x, **ours), inputs)
    sink = case.random(6).bfloat16().requires_grad_()
    (out, lse), (right, bare) = module.flash_attn_func(*inputs, learnable_sink=sink), reference_4(*inputs, sink=sink)
    case.close("sink: out", out, right, 1.6e-2)
    case.close("sink: lse", lse, torch.logaddexp(bare, sink.double()[:, None]), 1e-3)
    dout = case.random(*out.shape, dtype=out.dtype)
    case.close(
        "dsink", torch.autograd.grad(out, sink, dout)[0], torch.autograd.grad(right, sink, dout.double())[0], 6e-2
    )
    lengths, table = (torch.tensor(x, dtype=torch.int32, device=case.device) for x in ([60, 100], [[3, 1], [0, 2]]))
    cu, rows = sequences(case, 30, 83)
    q, pages_k, pages_v = (
        case.random(*shape, 64, dtype=torch.bfloat16) for shape in ((113, 6), (4, 64, 2), (4, 64, 2))
    )
    out, _ = module.flash_attn_varlen_func(
        q, pages_k, pages_v, cu_seqlens_q=cu, max_seqlen_q=83, seqused_k=lengths, page_table=table, causal=True
    )
    for b, mine in enumerate(rows):
        keys, values = (x[table[b].long()].flatten(0, 1)[None, : int(lengths[b])] for x in (pages_k, pages_v))
        case.close("pages", out[mine], formula(q[None, mine], keys, values, causal=True)[0][0], 1.6e-2)


def reference_4(q, k, v, **words):
    """As formula, lse -inf on rows without keys."""
    out, lse = reference.sdpa(*(x.transpose(1, 2) for x in (q, k, v)), bottom_right=True, **words)
    return out.transpose(1, 2), lse


@check
def decoding_of_flash_mla(case):
    """flash_mla_with_kvcache: whole sequences on pages of bf16, one of no keys."""
    module = libattn.compat.install("flash_mla")
    lengths = torch.tensor([130, 64, 0], dtype=torch.int32, device=case.device)
    for heads, key_heads, causal in ((128, 1, True), (16, 2, False)):
        q = case.random(3, 2, heads, 576, dtype=torch.bfloat16)
        pages = case.random(9, 64, key_heads, 576, dtype=torch.bfloat16)
        table = torch.randperm(9, generator=case.generator, device=case.device).int().view(3, 3)
        metadata, splits = module.get_mla_metadata()
        out, lse = module.flash_mla_with_kvcache(q, pages, table, lengths, 512, metadata, splits, causal=causal)
        case.must(not out[2].any() and bool((lse[2] == float("inf")).all()), "a sequence of no keys is no empty row")
        share = heads // key_heads
        for b in range(2):
            for h in range(key_heads):
                keys = pages[table[b].long(), :, h].flatten(0, 1)[: int(lengths[b]), None]
                slots = torch.arange(len(keys), device=case.device, dtype=torch.int32).expand(2, 1, -1).clone()
                slots[0, 0, -1] = -1 if causal else slots[0, 0, -1]
                mine = slice(h * share, (h + 1) * share)
                right, right_lse, _, _ = reference.mla(q[b, :, mine], keys, slots)
                case.close(f"{heads} heads: out", out[b, :, mine], right, 1.6e-2)
                case.close(f"{heads} heads: lse", lse[b, mine].T, right_lse, 1e-3)


@check
def flash_mla(case):
    module = libattn.compat.install("flash_mla")
    for sq, hq, sk, topk, d in ((33, 128, 700, 512, 576), (20, 64, 300, 128, 576), (20, 64, 300, 128, 512)):
        q, kv = (case.random(*shape, dtype=torch.bfloat16) for shape in ((sq, hq, d), (sk, 1, d)))
        slots = torch.randint(-1, sk, (sq, 1, topk), generator=case.generator, device=case.device, dtype=torch.int32)
        slots[3] = -1
        lengths = torch.randint(0, topk + 1, (sq,), generator=case.generator, device=case.device, dtype=torch.int32)
        for label, words in {
            "plain": {},
            "sink": {"attn_sink": case.random(hq)},
            "lengths": {"topk_length": lengths},
        }.items():
            out, top, lse = module.flash_mla_sparse_fwd(q, kv, slots, 0.06, **words)
            ours = {{"attn_sink": "sink"}.get(name, name): x for name, x in words.items()}
            right, right_lse, _, right_top = reference.mla(q, kv, slots, scale=0.06, **ours)
            case.close(f"{label}: out", out, right, 1.6e-2)
            case.close(f"{label}: lse", lse, right_lse.masked_fill(right_lse.isneginf(), float("inf")), 1e-3)
            case.close(f"{label}: max_logits", top, right_top, 1e-3)


@check
def cudnn_backward(case):
    """cudnn.DSA.sparse_attention_backward_wrapper."""
    backward = libattn.compat.install("cudnn").DSA.sparse_attention_backward_wrapper
    for hq, d in ((64, 576), (128, 512), (16, 576)):
        q, kv = (case.random(*shape, dtype=torch.bfloat16, grad=True) for shape in ((40, hq, d), (300, d)))
        slots = torch.randint(-1, 300, (40, 128), generator=case.generator, device=case.device, dtype=torch.int32)
        lengths = torch.randint(1, 129, (40,), generator=case.generator, device=case.device, dtype=torch.int32)
        sink = case.random(hq, grad=True)
        out, lse, _, _ = reference.mla(q, kv[:, None], slots[:, None], sink=sink, topk_length=lengths)
        dout = case.random(40, hq, 512, dtype=torch.bfloat16)
        right = torch.autograd.grad(out, (q, kv, sink), dout.double())
        plain = (q.detach(), kv.detach(), out.detach().bfloat16(), dout, lse.detach().float(), sink.detach(), slots)
        for name, found, expected in zip(("dq", "dkv", "d_sink"), backward(*plain, topk_length=lengths), right):
            case.close(f"{hq} heads, d{d}: {name}", found, expected, 3.2e-2)
