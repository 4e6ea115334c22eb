# SPDX-License-Identifier: MIT
"""Dense attention, forward and backward, against the formulas: every option of libattn.sdpa alone, and some together."""
import formulas
import libattn
import numpy as np
import pytest
from support import BOUNDS, DTYPES, Data, assert_close

B, HQ, HK, SQ, SK = 2, 4, 2, 20, 24
_random = np.random.default_rng(3)
SLOPES = _random.uniform(0.05, 0.5, HQ).astype(np.float32)
SINK = _random.standard_normal(HQ).astype(np.float32)
LENGTHS_Q, LENGTHS_K = np.array([20, 13], np.int32), np.array([9, 24], np.int32)
KEEP = _random.random((B, HQ, SQ, SK)) < 0.7
ADD = _random.standard_normal((B, HQ, SQ, SK)).astype(np.float32)

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "bottom_right": {"causal": True, "bottom_right": True},
    "scale": {"scale": -0.3},
    "softcap": {"softcap": 0.9},
    "window": {"window": (5, 2)},
    "window_left": {"window": (3, None), "causal": True, "bottom_right": True},
    "alibi": {"alibi": SLOPES},
    "alibi_distance": {"alibi": SLOPES, "alibi_form": "distance", "bottom_right": True},
    "alibi_batch": {"alibi": _random.uniform(0.05, 0.5, (B, HQ)).astype(np.float32)},
    "mask_bool": {"mask": KEEP},
    "mask_add": {"mask": ADD},
    "mask_keys": {"mask": KEEP[:, :1, :1]},
    "mask_two_axes": {"mask": ADD[0, 0]},
    "mask_heads": {"mask": ADD[:1, :, :1, :1]},
    "sink": {"sink": SINK},
    "seqlens": {"seqlens_q": LENGTHS_Q, "seqlens_k": LENGTHS_K},
    "seqlens_causal": {"seqlens_q": LENGTHS_Q, "seqlens_k": LENGTHS_K, "causal": True, "bottom_right": True},
    "together": {"sink": SINK, "softcap": 2.0, "alibi": SLOPES, "mask": KEEP, "causal": True, "window": (8, None)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_gradients(dtype, name):
    data, options = Data(dtype), OPTIONS[name]
    q, k, v = data.qkv(B, HQ, HK, SQ, SK, 16, 24)
    dout = data(B, HQ, SQ, 24)
    forward, backward = BOUNDS[dtype]
    out, lse = libattn.sdpa(q, k, v, return_lse=True, **data.words, **options)
    expected, expected_lse, grads = formulas.sdpa(q, k, v, dout=dout, **options)
    assert_close(out, expected, forward)
    assert_close(lse, expected_lse, max(forward, 1e-5 if dtype != "f64" else 0))
    want = ("dq", "dk", "dv") + (("dsink",) if "sink" in options else ()) + (("dalibi",) if "alibi" in options else ())
    found = libattn.sdpa_backward(dout, q, k, v, out, lse, want=want, **data.words, **options)
    if dtype in ("f16", "bf16"):  # the gradients' formulas read the rounded output; its error is in the bound
        backward *= 2
    for role in ("dq", "dk", "dv"):
        assert_close(getattr(found, role), grads[role], backward)
    if "sink" in options:
        assert_close(found.dsink, grads["dsink"], backward * 4)
    if "alibi" in options:
        full = grads["dalibi"]
        assert_close(found.dalibi, full if options["alibi"].ndim == 2 else full.sum(0), backward * 4)


@pytest.mark.parametrize("shape", [(B, HQ, SQ, SK), (B, 1, 1, SK), (SQ, SK), (1, HQ, 1, SK)])
def test_gradient_of_the_mask_is_summed_over_broadcast_axes(shape):
    data = Data("f64")
    q, k, v = data.qkv(B, HQ, HK, SQ, SK)
    mask, dout = data(*shape).astype(np.float32), data(B, HQ, SQ, 16)
    out, lse = libattn.sdpa(q, k, v, mask=mask, return_lse=True)
    found = libattn.sdpa_backward(dout, q, k, v, out, lse, mask=mask, want=("dmask",))
    ds = formulas.sdpa(q, k, v, mask=mask, dout=dout)[2]["ds"]
    full = (1,) * (4 - len(shape)) + shape
    expected = ds.sum(tuple(axis for axis in range(4) if full[axis] == 1), keepdims=True)
    assert found.dq is None and found.dk is None and found.dv is None
    assert_close(found.dmask, expected, 1e-12)


def test_gradient_through_lse():
    data = Data("f64")
    q, k, v = data.qkv()
    dout, dlse = data(2, 4, 20, 16), data(2, 4, 20)
    out, lse = libattn.sdpa(q, k, v, causal=True, return_lse=True)
    found = libattn.sdpa_backward(dout, q, k, v, out, lse, causal=True, dlse=dlse)
    grads = formulas.sdpa(q, k, v, causal=True, dout=dout, dlse=dlse)[2]
    for role in ("dq", "dk", "dv"):
        assert_close(getattr(found, role), grads[role], 1e-12)


def test_forms_of_lse():
    q, k, v = Data("f64").qkv(sq=6, sk=6)
    _, lse = libattn.sdpa(q, k, v, return_lse=True)
    _, base_2 = libattn.sdpa(q, k, v, return_lse=True, lse_base_2=True)
    assert_close(base_2, lse / np.log(2), 1e-14)
    _, with_sink = libattn.sdpa(q, k, v, return_lse=True, sink=SINK, lse_with_sink=True)
    assert_close(with_sink, np.logaddexp(lse, SINK[:, None].astype(np.float64)), 1e-13)
    none = np.zeros((6, 6), bool)
    assert np.all(libattn.sdpa(q, k, v, mask=none, return_lse=True)[1] == -np.inf)
    assert np.all(libattn.sdpa(q, k, v, mask=none, return_lse=True, lse_empty_plus_inf=True)[1] == np.inf)
    assert np.all(libattn.sdpa(q, k, v, mask=none) == 0)


def test_packed_sequences():
    data, cu_q, cu_k = Data("f64"), np.array([0, 5, 5, 17], np.int32), np.array([0, 8, 11, 20], np.int32)
    q, k, v, dout = data(4, 17, 16), data(2, 20, 16), data(2, 20, 16), data(4, 17, 16)
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True, "bottom_right": True}
    out, lse = libattn.sdpa(q, k, v, return_lse=True, max_seqlen_q=12, max_seqlen_k=9, **options)
    found = libattn.sdpa_backward(dout, q, k, v, out, lse, max_seqlen_q=12, max_seqlen_k=9, **options)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = formulas.sdpa(q[None, :, rows], k[None, :, keys], v[None, :, keys], dout=dout[None, :, rows], causal=True,
                            bottom_right=True)
        assert_close(out[:, rows], one[0][0], 1e-13)
        assert_close(lse[:, rows], one[1][0], 1e-13)
        assert_close(found.dq[:, rows], one[2]["dq"][0], 1e-12)
        assert_close(found.dk[:, keys], one[2]["dk"][0], 1e-12)
        assert_close(found.dv[:, keys], one[2]["dv"][0], 1e-12)
    # without bounds, the totals are the bounds
    assert np.array_equal(libattn.sdpa(q, k, v, **options), out)


def test_rows_of_no_sequence_are_filled_when_asked():
    data, cu = Data("f64"), np.array([2, 9], np.int32)
    q, k, v = data(2, 12, 16), data(2, 12, 16), data(2, 12, 16)
    out = np.full((2, 12, 16), 7.0)
    libattn.sdpa(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, fill_padding=True, out=out)
    assert np.all(out[:, :2] == 0) and np.all(out[:, 9:] == 0) and np.all(out[:, 2:9] != 7)


def test_paged_keys():
    data = Data("f32")
    q, pool_k, pool_v = data(2, 4, 3, 16), data(10, 2, 8, 16), data(10, 2, 8, 16)
    table, lengths = np.array([[3, 1, 7], [0, 9, 4]], np.int32), np.array([20, 9], np.int32)
    out = libattn.sdpa(q, pool_k, pool_v, block_table=table, seqlens_k=lengths, causal=True, bottom_right=True)

    def rows(pool):
        return pool[table].transpose(0, 2, 1, 3, 4).reshape(2, 2, 24, 16)

    expected, _ = formulas.sdpa(q, rows(pool_k), rows(pool_v), seqlens_k=lengths, causal=True, bottom_right=True)
    assert_close(out, expected, 4e-6)


def test_no_keys_and_no_queries():
    q, k, v = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 0, 4), np.float32), np.ones((1, 2, 0, 4), np.float32)
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    assert np.all(out == 0) and np.all(lse == -np.inf)
    assert libattn.sdpa(q[:, :, :0], q, q).shape == (1, 2, 0, 4)


def test_same_bits_for_every_run():
    q, k, v = Data("f32").qkv(sq=200, sk=200, d=64)
    assert np.array_equal(libattn.sdpa(q, k, v, deterministic=True), libattn.sdpa(q, k, v, deterministic=True))


def test_packed_queries_on_paged_keys():
    data, cu, lengths = Data("f32"), np.array([0, 3, 5], np.int32), np.array([20, 9], np.int32)
    q, pool_k, pool_v = data(4, 5, 16), data(10, 2, 8, 16), data(10, 2, 8, 16)
    table = np.array([[3, 1, 7], [0, 9, 4]], np.int32)
    out = libattn.sdpa(q, pool_k, pool_v, cu_seqlens_q=cu, block_table=table, seqlens_k=lengths, causal=True, bottom_right=True)
    for b in range(2):
        keys, values = (pool[table[b]].transpose(1, 0, 2, 3).reshape(2, 24, 16)[None, :, :lengths[b]] for pool in (pool_k, pool_v))
        expected, _ = formulas.sdpa(q[None, :, cu[b]:cu[b + 1]], keys, values, causal=True, bottom_right=True)
        assert_close(out[:, cu[b]:cu[b + 1]], expected[0], 4e-6)
