# SPDX-License-Identifier: MIT
"""libattn.torch on CPU tensors, against torch's own attention and autograd."""
import formulas
import libattn
import numpy as np
import pytest
from support import Data, assert_close

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from libattn import torch as lt  # noqa: E402
from libattn.torch._dense_op import OPTIONS, TENSORS  # noqa: E402
from libattn.torch._sparse_op import SPARSE_OPTIONS  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported_before  # noqa: E402
from torch.library import opcheck  # noqa: E402

torch.set_num_threads(2)
BRIEF = ("test_schema", "test_autograd_registration", "test_faketensor")  # without tracing, which takes half a minute


def tensors(*shapes, dtype=torch.float64, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes]


def both(ours, theirs, inputs, bound=1e-12):
    """Same outputs and same gradients of all inputs."""
    results = []
    for function in (ours, theirs):
        fresh = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        out = function(*fresh)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape))
        results.append([out.detach(), *(x.grad for x in fresh if x.requires_grad)])
    for found, expected in zip(*results):
        assert found.dtype == expected.dtype
        assert_close(found.double().numpy(), expected.double().numpy(), bound)


MASKS = {
    "bool": lambda b, h, l, s: torch.rand(b, h, l, s, generator=torch.Generator().manual_seed(5)) < 0.7,
    "padding": lambda b, h, l, s: (torch.arange(s) < torch.tensor([[s - 3]] * b)).view(b, 1, 1, s),
    "two_axes": lambda b, h, l, s: torch.ones(l, s, dtype=torch.bool).tril(),
    "float": lambda b, h, l, s: torch.randn(b, 1, l, s, generator=torch.Generator().manual_seed(5)),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 7, 16), (3, 7, 16), (7, 16), (2, 3, 4, 7, 16)])
def test_signature_of_torch(shape, causal):
    q, = tensors(shape)
    k, v = tensors((*shape[:-2], 9, 16), (*shape[:-2], 9, 8), seed=1)
    both(lambda *x: lt.scaled_dot_product_attention(*x, is_causal=causal, scale=0.3),
         lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal, scale=0.3), (q, k, v))


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_torch(name):
    q, k, v = tensors((2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16), dtype=torch.float32)
    mask = MASKS[name](2, 4, 7, 9)
    both(lambda *x: lt.scaled_dot_product_attention(*x, attn_mask=mask),
         lambda *x: F.scaled_dot_product_attention(*x, attn_mask=mask), (q, k, v), 3e-5)
    if name == "float":
        mask.requires_grad_()
        both(lambda *x: lt.scaled_dot_product_attention(*x), lambda *x: F.scaled_dot_product_attention(*x), (q, k, v, mask),
             3e-5)


def test_grouped_and_broadcast_heads():
    q, k, v = tensors((2, 6, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    both(lambda *x: lt.scaled_dot_product_attention(*x, enable_gqa=True),
         lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True), (q, k, v))
    k, v = tensors((1, 1, 9, 16), (2, 1, 9, 16))
    both(lt.scaled_dot_product_attention, F.scaled_dot_product_attention, (q, k, v))
    with pytest.raises(RuntimeError):
        lt.scaled_dot_product_attention(q, *tensors((2, 2, 9, 16), (2, 2, 9, 16)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    q, k, v = tensors((2, 4, 33, 32), (2, 4, 33, 32), (2, 4, 33, 32), dtype=dtype)
    both(lambda *x: lt.scaled_dot_product_attention(*x, is_causal=True),
         lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), (q, k, v), 3e-2)


def test_memory_orders():
    packed, = tensors((2, 7, 3, 4, 16))
    both(lambda x: lt.scaled_dot_product_attention(*x.permute(2, 0, 3, 1, 4)),
         lambda x: F.scaled_dot_product_attention(*x.permute(2, 0, 3, 1, 4)), (packed,))
    assert lt.scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4)).transpose(1, 2).is_contiguous()
    q, = tensors((2, 4, 16, 7))  # the innermost stride is not 1
    both(lambda x: lt.scaled_dot_product_attention(*[x.transpose(2, 3)] * 3),
         lambda x: F.scaled_dot_product_attention(*[x.transpose(2, 3)] * 3), (q,))


def test_refusals():
    q, = tensors((1, 2, 4, 8))
    with pytest.raises(libattn.UnsupportedError, match="no dropout"):
        lt.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    with pytest.raises(RuntimeError, match="exclude each other"):
        lt.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4, dtype=torch.bool), is_causal=True)
    with pytest.raises(libattn.ArgumentError, match="float64"):
        lt.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4, dtype=torch.float64))
    with pytest.raises(TypeError, match="no option casual"):
        lt.sdpa(q, q, q, casual=True)
    for function in (lt.sdpa, lt.scaled_dot_product_attention):
        with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
            torch.func.jvp(lambda x: function(x, x, x), (q.detach(),), (q.detach(),))
    first, = torch.autograd.grad(lt.sdpa(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(libattn.UnsupportedError, match="no second derivatives"):
        torch.autograd.grad(first.sum(), q)


def test_routed():
    q, = tensors((1, 2, 4, 8))
    expected = lt.scaled_dot_product_attention(q, q, q)
    with lt.routed():
        assert torch.equal(F.scaled_dot_product_attention(q, q, q), expected)
        assert torch.equal(imported_before(q, q, q), expected)
        assert "libattn" in type(imported_before(q, q, q).grad_fn).__name__
        with pytest.raises(libattn.UnsupportedError):
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
        inside = layer(q[0])
    assert "libattn" not in type(F.scaled_dot_product_attention(q, q, q).grad_fn).__name__
    assert_close(inside.detach().numpy(), layer(q[0]).detach().numpy(), 1e-12)


FEATURES = {
    "softcap": {"softcap": 0.8},
    "window": {"window": (3, 1)},
    "bottom_right": {"causal": True, "bottom_right": True},
    "seqlens": {"seqlens_k": torch.tensor([5, 9], dtype=torch.int32)},
    "sink": {"sink": torch.tensor([0.1, -0.4, 1.0, 0.0])},
    "alibi": {"alibi": torch.tensor([0.1, 0.2, 0.3, 0.4]), "alibi_form": "distance"},
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_and_their_gradients(name):
    inputs = tensors((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    options = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in FEATURES[name].items()}
    learned = {key: options[key].requires_grad_() for key in ("sink", "alibi") if key in options}
    out, lse = lt.sdpa(*inputs, return_lse=True, **options)
    dout = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    out.backward(dout)
    plain = {key: x.detach().numpy() if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    expected, expected_lse, grads = formulas.sdpa(*(x.detach().numpy() for x in inputs), dout=dout.numpy(), **plain)
    assert_close(out.detach().numpy(), expected, 1e-12)
    assert_close(lse.detach().numpy(), expected_lse, 1e-12)
    for x, role in zip(inputs, ("dq", "dk", "dv")):
        assert_close(x.grad.numpy(), grads[role], 1e-12)
    for key, x in learned.items():
        assert_close(x.grad.numpy(), grads["d" + key].sum(0) if key == "alibi" else grads["d" + key], 1e-6)


def test_gradcheck_through_out_and_lse():
    inputs = tensors((1, 2, 5, 6), (1, 1, 7, 6), (1, 1, 7, 4))
    assert torch.autograd.gradcheck(lambda *x: lt.sdpa(*x, causal=True, bottom_right=True, return_lse=True), inputs)


def test_packed_sequences():
    q, k, v = tensors((4, 12, 16), (2, 12, 16), (2, 12, 16))
    cu = torch.tensor([0, 5, 12], dtype=torch.int32)
    out = lt.sdpa(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
    out.sum().backward()
    whole = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    parts = [lt.sdpa(*(x[None, :, first:last] for x in (q, k, v)), causal=True)[0] for first, last in ((0, 5), (5, 12))]
    torch.cat(parts, 1).sum().backward()
    assert_close(out.detach().numpy(), torch.cat(parts, 1).detach().numpy(), 1e-13)
    for x, grad in zip((q, k, v), whole):
        assert_close(grad.numpy(), x.grad.numpy(), 1e-12)


def test_packed_queries_on_pages():
    q, pool_k, pool_v = tensors((4, 5, 16), (10, 2, 8, 16), (10, 2, 8, 16), grad=False)
    cu, lengths = torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([20, 9], dtype=torch.int32)
    table = torch.tensor([[3, 1, 7], [0, 9, 4]], dtype=torch.int32)
    out = lt.sdpa(q, pool_k, pool_v, cu_seqlens_q=cu, block_table=table, seqlens_k=lengths, causal=True, bottom_right=True)
    for b in range(2):
        keys, values = (x[table[b].long()].transpose(0, 1).flatten(1, 2)[None, :, :lengths[b]] for x in (pool_k, pool_v))
        one = slice(cu[b], cu[b + 1])
        assert_close(out[:, one].numpy(), lt.sdpa(q[None, :, one], keys, values, causal=True, bottom_right=True)[0].numpy(), 1e-13)


def test_largest_scores():
    q, k, v = tensors((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    found = lt.sdpa(q, k, v, causal=True, return_max_logits=True)
    arrays = [x.detach().numpy() for x in (q, k, v)]
    for x, expected in zip(found, libattn.sdpa(*arrays, causal=True, return_max_logits=True)):
        assert_close(x.detach().numpy(), expected, 1e-13)
    assert not found[2].requires_grad
    grads = torch.autograd.grad(found[0].sum() + found[1].sum(), (q, k, v))
    out, lse = lt.sdpa(q, k, v, causal=True, return_lse=True)
    for x, expected in zip(grads, torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))):
        assert_close(x.numpy(), expected.numpy(), 1e-13)
    nothing = (None,) * len(TENSORS)
    inputs = [x.detach().float().requires_grad_() for x in (q, k, v)]
    opcheck(torch.ops.libattn.sdpa_fwd_logits.default, (*inputs, *nothing, *defaults(OPTIONS)), test_utils=BRIEF)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_that_is_not_rounded(dtype):
    q, k, v = tensors((2, 4, 33, 32), (2, 4, 33, 32), (2, 4, 33, 32), dtype=dtype)
    out, plain = lt.sdpa(q, k, v, out_dtype="f32"), lt.sdpa(q, k, v)
    assert out.dtype == torch.float32 and torch.equal(out.to(dtype), plain) and not torch.equal(out, plain.float())
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    grads = torch.autograd.grad(out, (q, k, v), dout.float()), torch.autograd.grad(plain, (q, k, v), dout)
    for x, expected in zip(*grads):  # delta is of an out that is not rounded, which dv does not see
        assert x.dtype == dtype and (x - expected).norm() <= (1e-3 if dtype == torch.float16 else 8e-3) * expected.norm()
    assert torch.equal(grads[0][2], grads[1][2])
    across = q.detach().transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.compile(lambda x: lt.sdpa(x, k, v, out_dtype="f32"), fullgraph=True, backend="aot_eager")(across)
    assert wide.dtype == torch.float32 and wide.stride() == out.transpose(1, 2).contiguous().transpose(1, 2).stride()
    with pytest.raises(libattn.ArgumentError, match="out_dtype"):
        lt.sdpa(q, k, v, out_dtype="f8")
    rows, keys = tensors((6, 4, 576), (20, 1, 576), dtype=dtype)
    slots = torch.randint(-1, 20, (6, 1, 12), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    wide, plain = lt.mla(rows, keys, slots, out_dtype="f32"), lt.mla(rows, keys, slots)
    assert wide.dtype == torch.float32 and torch.equal(wide.to(dtype), plain)
    for x, expected in zip(torch.autograd.grad(wide.sum(), (rows, keys)), torch.autograd.grad(plain.float().sum(), (rows, keys))):
        assert x.dtype == dtype and torch.equal(x, expected)
    for name in ("out_dtype", "dkv_dtype"):
        with pytest.raises(TypeError, match=f"no option {name}"):
            lt.dist(rows, keys, slots, torch.zeros(6, 4), **{name: "f32"})


@pytest.mark.parametrize("options", [{}, {"sink": torch.zeros(6), "lse_with_sink": True}])
@pytest.mark.parametrize("dtype, bound", [(torch.float16, 3e-4), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("keys", [2, 3])
def test_few_keys(keys, dtype, bound, options):
    """dS is a difference of dP and delta, in which out's rounding shows where keys are few: without care dq is off by four bounds."""
    for seed in range(40):
        given = tensors((1, 6, 1, 256), (1, 1, keys, 256), (1, 1, keys, 256), (1, 6, 1, 256), dtype=dtype, seed=seed, grad=False)
        *narrow, dout = (x.requires_grad_(i < 3) for i, x in enumerate(given))
        wide = [x.detach().double().requires_grad_() for x in narrow]
        out, lse = lt.sdpa(*narrow, return_lse=True, **options)
        assert out.dtype == dtype
        expected = lt.sdpa(*wide, return_lse=True, **options)
        torch.autograd.backward((out, lse), (dout, torch.ones_like(lse)))
        torch.autograd.backward(expected, (dout.double(), torch.ones_like(expected[1])))
        for found, want in zip(narrow[:2], wide):
            assert (found.grad.double() - want.grad).norm() <= bound * want.grad.norm()


@pytest.mark.parametrize("base_2", [False, True])
def test_merge(base_2):
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    unit = np.log(2) if base_2 else 1.0

    def in_parts(q, k, v):
        outs, lses = zip(*(lt.sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True, window=(3, 3)) for a, b in ((0, 2), (2, 7))))
        out, lse = lt.merge(outs, [lse / unit for lse in lses], lse_base_2=base_2)
        return out, lse * unit

    outs, lses = zip(*(lt.sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 2), (2, 7))))
    for x, expected in zip(lt.merge(outs, lses), lt.sdpa(q, k, v, return_lse=True)):
        assert_close(x.detach().numpy(), expected.detach().numpy(), 1e-13)
    assert torch.autograd.gradcheck(in_parts, (q, k, v))
    plain = [[x.detach().clone().requires_grad_() for x in xs] for xs in (outs, lses)]
    opcheck(torch.ops.libattn.merge.default, (*plain, None, base_2, False), test_utils=BRIEF)
    out, lse = lt.merge([x.half() for x in plain[0]], plain[1], out_dtype="f32")
    assert out.dtype == torch.float32 and lse.dtype == torch.float64
    with pytest.raises(libattn.ArgumentError, match="at least one"):
        lt.merge([], [])


def test_merge_where_rows_are_empty():
    out, lse = tensors((2, 3, 4), (2, 3))
    nothing, never = torch.full_like(out, torch.nan).requires_grad_(), torch.full_like(lse, -torch.inf).requires_grad_()
    found, found_lse = lt.merge((out, nothing), (lse, never))
    (found.sum() + found_lse.sum()).backward()
    assert_close(found.detach().numpy(), out.detach().numpy(), 1e-15)
    assert torch.equal(out.grad, torch.ones_like(out)) and torch.equal(lse.grad, torch.ones_like(lse))
    assert not nothing.grad.any() and not never.grad.any()


def test_autocast():
    q, = tensors((1, 2, 4, 8), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = lt.scaled_dot_product_attention(q, q, q)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_the_way_without_autograd():
    """The same results where no gradient is asked for, and gradients wherever one tensor asks."""
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), grad=False)
    mask = torch.randn(1, 2, 4, 5)
    expected = lt.sdpa(q.clone().requires_grad_(), k, v, mask=mask)
    assert expected.requires_grad and not lt.sdpa(q, k, v, mask=mask).requires_grad
    assert torch.equal(lt.sdpa(q, k, v, mask=mask), expected)
    assert lt.sdpa(q, k, v, mask=mask.requires_grad_()).requires_grad
    with torch.no_grad():
        out = lt.sdpa(q.requires_grad_(), k, v, mask=mask)
    assert not out.requires_grad and torch.equal(out, expected)
    with torch.inference_mode():
        assert torch.equal(lt.sdpa(q, k, v, mask=mask), expected)


def test_vmap_is_right():
    q, k, v = tensors((3, 2, 2, 4, 8), (3, 2, 2, 5, 8), (3, 2, 2, 5, 8), grad=False)
    expected = torch.stack([lt.scaled_dot_product_attention(*x) for x in zip(q, k, v)])
    assert torch.equal(torch.vmap(lt.scaled_dot_product_attention)(q, k, v), expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic):
    def step(q, k, v, sink):
        out, lse = lt.sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True, sink=sink, return_lse=True)
        return out.transpose(1, 2).flatten(2).square().mean() + lse.mean() * 0.1

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (5, 8):
        inputs = tensors((2, rows, 4, 16), (2, rows, 2, 16), (2, rows, 2, 16), (4,), dtype=torch.float32)
        expected = torch.autograd.grad(step(*inputs), inputs)
        for found, right in zip(torch.autograd.grad(compiled(*inputs), inputs), expected):
            assert_close(found.numpy(), right.numpy(), 1e-5)


def defaults(table):
    return tuple(default for _, default in table.values())


def test_opcheck_dense():
    q, k, v, sink = tensors((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 8), (4,), dtype=torch.float32)
    nothing = (None,) * len(TENSORS)
    opcheck(torch.ops.libattn.sdpa_fwd.default, (q, k, v, *nothing, *defaults(OPTIONS)))
    with_sink = (None, None, sink, *nothing[3:])
    across = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    opcheck(torch.ops.libattn.sdpa_fwd.default, (across, k, v, *with_sink, True, *defaults(OPTIONS)[1:]))
    with torch.no_grad():
        out, lse = torch.ops.libattn.sdpa_fwd(q, k, v, *with_sink, *defaults(OPTIONS))
        plain = [x.detach() for x in (q, k, v)]
        opcheck(torch.ops.libattn.sdpa_bwd.default,
                (out, None, *plain, out.clone(), lse, [True] * 3 + [False, False, True], None, None, sink.detach(),
                 *nothing[3:], *defaults(OPTIONS)))


def test_sparse():
    data, random = Data("f32"), np.random.default_rng(2)
    arrays = data(6, 4, 576), data(20, 1, 576), np.array([0.3, -1, 0, 2], np.float32)
    indices, dout = random.integers(-1, 20, (6, 1, 12), dtype=np.int32), data(6, 4, 512)
    q, kv, sink = (torch.from_numpy(x).requires_grad_() for x in arrays)
    slots = torch.from_numpy(indices)
    out, lse, top = lt.mla(q, kv, slots, sink=sink, return_max_logits=True)
    out.backward(torch.from_numpy(dout))
    expected = formulas.mla(*arrays[:2], indices, sink=arrays[2], dout=dout)
    for found, role in ((out, "out"), (lse, "lse"), (top, "max_logits")):
        assert_close(found.detach().numpy(), expected[role], 1e-5)
    for found, role in ((q, "dq"), (kv, "dkv"), (sink, "dsink")):
        assert_close(found.grad.numpy(), expected[role], 4e-5)
    assert_close(lt.dist(q, kv, slots, lse).numpy(), expected["dist"], 1e-5)
    options = defaults(SPARSE_OPTIONS)
    opcheck(torch.ops.libattn.mla_fwd.default, (q, kv, slots, None, None, sink, *options))
    plain = [x.detach() for x in (q, kv)]
    opcheck(torch.ops.libattn.mla_bwd.default, (out.detach(), None, *plain, slots, out.detach(), lse.detach(), [True] * 3, None, None,
                                                sink.detach(), *options))
    opcheck(torch.ops.libattn.dist.default, (*plain, slots, lse.detach(), "l1", None, None, *options))
    joined = lt.mla_join(slots, group=4, seq_k=20, causal=True, q_start=9)
    expected = libattn.mla_join(indices, group=4, seq_k=20, causal=True, q_start=9)
    assert joined.shape == expected.shape and np.array_equal(joined[:, :40].numpy(), expected[:, :40])
    opcheck(torch.ops.libattn.mla_join.default, (slots, 4, 20, None, False, 0, 0, 0),
            test_utils=("test_schema", "test_faketensor"))  # words that are not written differ from run to run


def test_one_join_for_a_step_with_gradients():
    """mla_join, mla, its backward and dist on the same lists, also compiled as a whole."""
    data, random = Data("f32"), np.random.default_rng(3)
    indices = torch.from_numpy(random.integers(-1, 20, (6, 1, 12), dtype=np.int32))
    arrays = data(6, 4, 576), data(20, 1, 576)

    def step(q, kv, joined):
        out, lse = lt.mla(q, kv, indices, joined=joined, causal=True, q_start=9, return_lse=True)
        return out, lt.dist(q, kv, indices, lse, joined=joined, causal=True, q_start=9)

    def joins(q, kv):
        return step(q, kv, lt.mla_join(indices, group=4, seq_k=20, causal=True, q_start=9))

    expected = None
    for function in (lambda q, kv: step(q, kv, None), joins, torch.compile(joins, fullgraph=True, backend="aot_eager")):
        q, kv = (torch.from_numpy(x).requires_grad_() for x in arrays)
        with libattn.recording() as trace:
            out, target = function(q, kv)
            (out.square().sum() + target.sum()).backward()
        grouped = sum("group=4" in problem.problem for problem in trace.problems)
        assert grouped == (0 if expected is None else 4)  # mla_join, mla, dist, the backward
        found = [x.detach().numpy() for x in (out, target, q.grad, kv.grad)]
        expected = expected or found
        for x, y in zip(found, expected):
            assert_close(x, y, 1e-6)
    lists = lt.mla_join(indices, group=4, seq_k=20)
    q, kv = (torch.from_numpy(x).requires_grad_() for x in arrays)
    options = defaults(SPARSE_OPTIONS)
    opcheck(torch.ops.libattn.mla_fwd.default, (q, kv, indices, None, lists, None, *options))
    out, lse, _ = torch.ops.libattn.mla_fwd(q, kv, indices, None, lists, None, *options)
    plain = [x.detach() for x in (q, kv)]
    opcheck(torch.ops.libattn.mla_bwd.default, (out.detach(), None, *plain, indices, out.detach(), lse.detach(), [True, True, False],
                                                None, lists, None, *options))
    opcheck(torch.ops.libattn.dist.default, (*plain, indices, lse.detach(), "sum", None, lists, *options))


def of_e4m3(seed=0, **options):
    """q, k, v in e4m3 with scales, and what they are worth."""
    narrow = [x.to(torch.float8_e4m3fn) for x in tensors((2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 24), dtype=torch.float32, seed=seed,
                                                         grad=False)]
    scales = [0.5 + torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed + 1)) for x in narrow]
    return narrow, dict(zip(("q_scale", "k_scale", "v_scale"), scales)), [
        x.float() * scale[:, :, None, None] for x, scale in zip(narrow, scales)]


@pytest.mark.parametrize("word,dtype,bound", [(None, torch.bfloat16, 2**-7), ("bf16", torch.bfloat16, 2**-7), ("f32", torch.float32, 1e-4)])
def test_e4m3(word, dtype, bound):
    narrow, scales, worth = of_e4m3()
    out, lse = lt.sdpa(*narrow, return_lse=True, causal=True, out_dtype=word, **scales)
    expected, expected_lse = lt.sdpa(*worth, return_lse=True, causal=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert_close(out.float().numpy(), expected.numpy(), bound)
    assert_close(lse.numpy(), expected_lse.numpy(), 1e-5)


def test_e4m3_traces():
    narrow, scales, _ = of_e4m3(seed=4)
    extra = [scales.get(name) for name in TENSORS] + [default for _, default in OPTIONS.values()]
    opcheck(torch.ops.libattn.sdpa_fwd.default, (*narrow, *extra), test_utils=BRIEF[1:])  # torch cannot compare e4m3
    compiled = torch.compile(lambda *x: lt.sdpa(*x, return_lse=True, **scales), backend="aot_eager", fullgraph=True)
    for found, expected in zip(compiled(*narrow), lt.sdpa(*narrow, return_lse=True, **scales)):
        assert torch.equal(found, expected)
    with torch.autocast("cpu", torch.bfloat16):  # which leaves e4m3 as it is
        assert torch.equal(lt.sdpa(*narrow, **scales), lt.sdpa(*narrow, **scales))


def test_e4m3_refusals():
    narrow, scales, _ = of_e4m3()
    with pytest.raises(libattn.UnsupportedError, match="sdpa of e4m3 is a forward alone"):
        lt.sdpa(*narrow, **scales | {"v_scale": scales["v_scale"].requires_grad_()})
    with torch.no_grad():
        lt.sdpa(*narrow, **scales)
    scales["v_scale"].requires_grad_(False)
    with pytest.raises(libattn.ArgumentError, match="k_scale is NULL"):
        lt.sdpa(*narrow, q_scale=scales["q_scale"])
    with pytest.raises(libattn.ArgumentError, match="expected none .0., bf16 .3. or f32 .1. from e4m3 inputs"):
        lt.sdpa(*narrow, out_dtype="f16", **scales)
    with pytest.raises(libattn.ArgumentError, match="q_scale is given"):
        lt.sdpa(*(x.bfloat16() for x in narrow), **scales)


@pytest.mark.parametrize("b,h,sq,sk,d,dv", [(0, 2, 3, 4, 8, 8), (2, 0, 3, 4, 8, 8), (2, 2, 0, 4, 8, 8), (2, 2, 3, 0, 8, 8), (2, 2, 3, 4, 0, 8),
                                            (2, 2, 3, 4, 8, 0), (0, 0, 0, 0, 0, 0)])
def test_empty_extents(b, h, sq, sk, d, dv):
    q, k, v = tensors((b, h, sq, d), (b, h, sk, d), (b, h, sk, dv))
    out, lse = lt.sdpa(q, k, v, return_lse=True)
    assert out.shape == (b, h, sq, dv) and lse.shape == (b, h, sq)
    assert sk or (not out.any() and torch.isneginf(lse).all())
    (out.sum() + (lse.sum() if sk else 0)).backward()
    for x in (q, k, v):
        assert x.grad.shape == x.shape and torch.isfinite(x.grad).all()
    assert sq or not (k.grad.any() or v.grad.any())  # written, as nothing
