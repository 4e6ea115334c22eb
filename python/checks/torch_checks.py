# SPDX-License-Identifier: MIT
"""libattn.torch, dense: features and dtypes against the formulas, opcheck, gradcheck, torch.compile, routing."""

import reference
import torch
import torch.nn.functional as F
from libattn import torch as lt
from libattn.torch._dense_op import OPTIONS, TENSORS
from record import BOUNDS, Skipped, check
from torch.library import opcheck

HALF = (torch.bfloat16, torch.float16)
WIDE = (torch.float32, torch.float64)


def compare(case, label, dtype, inputs, function, formula, learned=()):
    """Outputs and all gradients of two functions of the same inputs."""
    forward, backward = BOUNDS[dtype]
    both = []
    for run in (function, formula):
        fresh = [x.detach().requires_grad_() for x in (*inputs, *learned)]
        out, lse = run(*fresh)
        dout = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=torch.float64).reshape(out.shape).to(dtype)
        both.append((out, lse, *torch.autograd.grad(out, fresh, dout.to(out.dtype))))
    for name, found, expected in zip(("out", "lse", *(f"d{i}" for i in range(9))), *both):
        case.close(f"{label} {name}", found, expected, forward if name in ("out", "lse") else backward)


def features(case):
    """Options of sdpa by name, with tensors that get gradients apart."""
    mask = case.random(2, 4, 130, 140) > -0.5
    mask[0, :, 3] = False  # an empty row
    return {
        "plain": ({}, {}),
        "causal": ({"causal": True}, {}),
        "bottom_right": ({"causal": True, "bottom_right": True}, {}),
        "window": ({"window": (20, 5)}, {}),
        "softcap": ({"softcap": 1.5}, {}),
        "scale": ({"scale": 0.3}, {}),
        "boolean mask": ({"mask": mask}, {}),
        "added mask": ({}, {"mask": case.random(1, 4, 130, 140)}),
        "alibi": ({}, {"alibi": case.random(4).abs() * 0.1}),
        "alibi, distance": ({"alibi_form": "distance"}, {"alibi": case.random(4).abs() * 0.1}),
        "sink": ({"window": (20, 0)}, {"sink": case.random(4)}),
        "lengths": ({"seqlens_k": torch.tensor([77, 140], dtype=torch.int32, device=case.device)}, {}),
    }


def each_feature(case, dtype):
    inputs = [case.random(2, heads, rows, 64, dtype=dtype) for heads, rows in ((4, 130), (2, 140), (2, 140))]
    for name, (options, learned) in features(case).items():
        words = tuple(learned)

        def ours(q, k, v, *extra):
            return lt.sdpa(q, k, v, return_lse=True, **options, **dict(zip(words, extra)))

        def formula(q, k, v, *extra):
            return reference.sdpa(q, k, v, **options, **dict(zip(words, extra)))

        compare(case, name, dtype, inputs, ours, formula, tuple(learned.values()))


@check
def features_bf16(case):
    each_feature(case, torch.bfloat16)


@check
def features_f16(case):
    each_feature(case, torch.float16)


@check
def features_f32(case):
    each_feature(case, torch.float32)


@check
def features_f64(case):
    each_feature(case, torch.float64)


@check
def shapes_and_dtypes(case):
    """Head widths, more values than keys, one query, long keys."""
    shapes = {
        "d128": (1, 4, 2, 200, 260, 128, 128),
        "d256": (1, 2, 2, 70, 90, 256, 256),
        "d40, dv24": (1, 2, 1, 33, 65, 40, 24),
        "one query": (2, 8, 2, 1, 1000, 128, 128),
        "no keys": (1, 2, 2, 5, 0, 64, 64),
    }
    for name, (b, hq, hk, sq, sk, d, dv) in shapes.items():
        for dtype in (*HALF, *WIDE):
            q, k, v = (case.random(*shape, dtype=dtype) for shape in ((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv)))
            compare(
                case,
                f"{name} {str(dtype)[6:]}",
                dtype,
                (q, k, v),
                lambda *x: lt.sdpa(*x, return_lse=True),
                reference.sdpa,
            )


@check
def views_without_copies(case):
    """Packed and transposed tensors go in as they are: no memory is taken but the results'."""
    qkv = case.random(2, 512, 3, 8, 64, dtype=torch.bfloat16)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    compare(
        case,
        "packed",
        torch.bfloat16,
        (q, k, v),
        lambda *x: lt.sdpa(*x, causal=True, return_lse=True),
        lambda *x: reference.sdpa(*x, causal=True),
    )
    out = lt.sdpa(q, k, v)
    case.must(out.transpose(1, 2).is_contiguous(), "out has not q's memory order")
    if case.cuda:
        case.synchronize()
        before = torch.cuda.memory_allocated(case.device)
        torch.cuda.reset_peak_memory_stats(case.device)
        kept = lt.sdpa(q, k, v)
        case.synchronize()
        taken = torch.cuda.max_memory_allocated(case.device) - before
        results = kept.numel() * 2 + 2 * 8 * 512 * 4
        case.measured.update(bytes_of_results=results, bytes_taken=taken)
        case.must(
            taken < results + qkv.numel() * 2 // 3,
            f"{taken} bytes were taken for {results} of results: an operand was copied",
        )


@check
def opcheck_dense(case):
    q, k, v, sink = (case.random(*shape, grad=True) for shape in ((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 8), (4,)))
    nothing, defaults = (None,) * len(TENSORS), tuple(default for _, default in OPTIONS.values())
    forward, backward = torch.ops.libattn.sdpa_fwd.default, torch.ops.libattn.sdpa_bwd.default
    opcheck(forward, (q, k, v, *nothing, *defaults))
    across = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    opcheck(forward, (across, k, v, None, None, sink, *nothing[3:], True, *defaults[1:]))
    with torch.no_grad():
        extra = (None, None, sink.detach(), *nothing[3:], *defaults)
        plain = [x.detach() for x in (q, k, v)]
        out, lse = forward(*plain, *extra)
        opcheck(backward, (out.clone(), None, *plain, out, lse, [True] * 3 + [False, False, True], *extra))


@check
def gradcheck_f64(case):
    q, k, v = (
        case.random(*shape, dtype=torch.float64, grad=True) for shape in ((1, 2, 5, 6), (1, 1, 7, 6), (1, 1, 7, 4))
    )
    for options in ({}, {"causal": True, "bottom_right": True}, {"softcap": 0.7}, {"window": (2, 1)}):
        case.must(torch.autograd.gradcheck(lambda *x: lt.sdpa(*x, return_lse=True, **options), (q, k, v)), str(options))


def step(q, k, v, sink):
    out, lse = lt.sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True, sink=sink, return_lse=True)
    return out.transpose(1, 2).flatten(2).float().square().mean() + lse.mean() * 0.1


def compiled(case, backend, dynamic, dtype):
    torch._dynamo.reset()
    function = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (50, 80):
        inputs = [case.random(2, rows, heads, 64, dtype=dtype, grad=True) for heads in (4, 2, 2)] + [
            case.random(4, grad=True)
        ]
        expected = torch.autograd.grad(step(*inputs), inputs)
        for i, (found, right) in enumerate(zip(torch.autograd.grad(function(*inputs), inputs), expected)):
            case.close(f"{backend}, dynamic={dynamic} d{i}", found, right, 1e-5 if dtype == torch.float32 else 1e-2)


@check
def compiled_whole(case):
    for dynamic in (False, True):
        compiled(case, "aot_eager", dynamic, torch.float32)


@check
def compiled_whole_inductor(case):
    if not case.cuda:
        raise Skipped("on a CPU it needs a C++ compiler")
    for dynamic in (False, True):
        compiled(case, "inductor", dynamic, torch.bfloat16)


@check
def signature_of_torch(case):
    """scaled_dot_product_attention against torch's own."""
    q, k, v = (case.random(2, 4, rows, 64, dtype=torch.float64, grad=True) for rows in (30, 40, 40))
    keep = case.random(2, 1, 30, 40) > -1
    for name, words in {
        "plain": {},
        "is_causal": {"is_causal": True},
        "scale": {"scale": 0.2},
        "attn_mask": {"attn_mask": keep},
    }.items():
        found, right = (
            function(q, k, v, **words) for function in (lt.scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
        case.close(name, found, right, 1e-12)
        for a, b in zip(torch.autograd.grad(found.sum(), (q, k, v)), torch.autograd.grad(right.sum(), (q, k, v))):
            case.close(f"{name}, gradients", a, b, 1e-11)
    found = lt.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    case.close("enable_gqa", found, F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True), 1e-12)


@check
def routed_model(case):
    """A module of torch that calls F.scaled_dot_product_attention, routed, forward and backward."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True, device=case.device)
    x, padding = case.random(2, 60, 256), torch.zeros(2, 60, dtype=torch.bool, device=case.device)
    padding[1, 50:] = True
    results = []
    for routed in (False, True):
        layer.zero_grad()
        with lt.routed() if routed else torch.enable_grad():
            out = layer(x, src_key_padding_mask=padding)
            name = type(F.scaled_dot_product_attention(x[None].requires_grad_(), x[None], x[None]).grad_fn).__name__
        case.must(("libattn" in name) == routed, f"routed is {routed}, the graph's node is {name}")
        out[~padding].square().sum().backward()
        results.append([out[~padding], *(p.grad for p in layer.parameters())])
    for i, (found, right) in enumerate(zip(results[1], results[0])):
        case.close("out" if i == 0 else "gradients", found, right, 1e-4)


@check
def autocast(case):
    q = case.random(1, 2, 64, 64, grad=True)
    with torch.autocast(case.device.type, torch.bfloat16):
        out = lt.scaled_dot_product_attention(q, q, q, is_causal=True)
    case.must(out.dtype == torch.bfloat16, f"out is {out.dtype}")
    out.float().sum().backward()
    case.must(q.grad.dtype == torch.float32, f"q.grad is {q.grad.dtype}")
    case.close("out", out, reference.sdpa(*[q.detach().bfloat16()] * 3, causal=True)[0], 1.6e-2)


@check
def packed_and_paged(case):
    """Packed sequences with gradients; packed queries on pages of keys."""
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=case.device) for x in ([0, 100, 130], [0, 120, 300]))
    q, k, v = (
        case.random(heads, rows, 64, dtype=torch.bfloat16, grad=True) for heads, rows in ((4, 130), (2, 300), (2, 300))
    )
    out = lt.sdpa(
        q,
        k,
        v,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=100,
        max_seqlen_k=180,
        causal=True,
        bottom_right=True,
    )
    parts = [
        reference.sdpa(q[None, :, a:b], k[None, :, c:d], v[None, :, c:d], causal=True, bottom_right=True)[0][0]
        for a, b, c, d in ((0, 100, 0, 120), (100, 130, 120, 300))
    ]
    whole = torch.cat(parts, 1)
    case.close("packed out", out, whole, 1.6e-2)
    for found, right in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(whole.sum(), (q, k, v))):
        case.close("packed gradients", found, right, 3.2e-2)
    table = torch.tensor([[3, 1, 6], [0, 2, 5]], dtype=torch.int32, device=case.device)
    lengths = torch.tensor([120, 180], dtype=torch.int32, device=case.device)
    pages_k, pages_v = (case.random(8, 2, 64, 64, dtype=torch.bfloat16) for _ in range(2))
    out = lt.sdpa(
        q.detach(),
        pages_k,
        pages_v,
        cu_seqlens_q=cu_q,
        max_seqlen_q=100,
        block_table=table,
        seqlens_k=lengths,
        causal=True,
        bottom_right=True,
    )
    for i, (a, b, length) in enumerate(((0, 100, 120), (100, 130, 180))):
        keys, values = (
            pages[table[i].long()].transpose(0, 1).flatten(1, 2)[None, :, :length] for pages in (pages_k, pages_v)
        )
        case.close(
            "paged out",
            out[:, a:b],
            reference.sdpa(q[None, :, a:b], keys, values, causal=True, bottom_right=True)[0][0],
            1.6e-2,
        )
