# SPDX-License-Identifier: MIT
"""Results over parts of the keys put together, largest scores, output wider than the inputs."""
import formulas
import libattn
import numpy as np
import pytest
from support import BOUNDS, DTYPES, Data, assert_close

CUTS = ((0, 5), (5, 6), (6, 24))


def parts_of(data, q, k, v, **options):
    """Results over three parts of the keys, and the mask of each."""
    return [libattn.sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True, **data.words, **options) for a, b in CUTS]


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_the_keys(dtype):
    data = Data(dtype)
    q, k, v = data.qkv()
    outs, lses = zip(*parts_of(data, q, k, v))
    out, lse = libattn.merge(outs, lses, **data.words)
    expected, expected_lse = formulas.sdpa(q, k, v)
    assert out.dtype == outs[0].dtype and lse.dtype == lses[0].dtype
    assert_close(out, expected, 2 * BOUNDS[dtype][0])
    assert_close(lse, expected_lse, max(BOUNDS[dtype][0], 1e-5 if dtype != "f64" else 0))
    assert_close(libattn.merge(None, lses), expected_lse, 1e-5)
    two = libattn.merge(outs, [x / np.log(2) for x in lses], lse_base_2=True, **data.words)
    assert_close(two[0], formulas.wide(out), 2 * BOUNDS[dtype][0])
    assert_close(two[1], expected_lse / np.log(2), 1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parts_that_are_not_rounded(dtype):
    """Parts in f32, merged to f32 and to other dtypes."""
    data = Data(dtype)
    q, k, v = data.qkv()
    outs, lses = zip(*parts_of(data, q, k, v, out_dtype="f32"))
    assert all(x.dtype == np.float32 for x in outs)
    whole, _ = libattn.sdpa(q, k, v, return_lse=True, out_dtype="f32", **data.words)
    out, _ = libattn.merge(outs, lses)
    assert out.dtype == np.float32
    assert_close(out, formulas.wide(whole), BOUNDS[dtype][0] / 2)
    half, _ = libattn.merge(outs, lses, out_dtype="f16")
    assert half.dtype == np.float16 and np.array_equal(half, out.astype(np.float16))
    mixed, _ = libattn.merge((outs[0].astype(np.float16), *outs[1:]), lses, out_dtype="f64")
    assert mixed.dtype == np.float64
    assert_close(mixed, formulas.wide(out), 1e-3)
    given = np.empty(out.shape, np.float64)
    assert libattn.merge(outs, lses, out=given)[0] is given
    assert np.array_equal(given.astype(np.float32), out)


def test_ring():
    """The running result is a part of the next step."""
    data = Data("f32")
    q, k, v = data.qkv()
    (out, lse), *others = parts_of(data, q, k, v)
    for step, step_lse in others:
        found = libattn.merge((out, step), (lse, step_lse), out=out, lse=lse)
        assert found[0] is out and found[1] is lse
    expected, expected_lse = formulas.sdpa(q, k, v)
    assert_close(out, expected, 4e-6)
    assert_close(lse, expected_lse, 1e-5)


def test_sink_and_empty_rows():
    data, sink = Data("f32"), np.array([0.3, -1, 0, 2], np.float32)
    q, k, v = data.qkv(b=1)
    (out, lse), *_ = parts_of(data, q, k, v, window=(0, 0))
    lse_of_sink = np.broadcast_to(sink[:, None], lse.shape[1:])[None]
    found, found_lse = libattn.merge((out, np.zeros_like(out)), (lse, lse_of_sink))
    expected, _ = formulas.sdpa(q, k[:, :, :5], v[:, :, :5], window=(0, 0), sink=sink)
    assert_close(found, expected, 4e-6)
    assert np.allclose(found_lse, np.logaddexp(lse, lse_of_sink), atol=1e-6)
    empty, empty_lse = libattn.merge((out, out), (lse, lse), lse_empty_plus_inf=True)
    assert np.all(empty[:, :, 5:] == 0) and np.all(empty_lse[:, :, 5:] == np.inf) and np.isfinite(empty_lse[:, :, :5]).all()


def test_refusals_of_merge():
    out, lse = np.ones((2, 3, 4), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(libattn.ArgumentError, match="2 outs and 1 lses"):
        libattn.merge((out, out), (lse,))
    with pytest.raises(libattn.ArgumentError, match="at least one"):
        libattn.merge((), ())
    with pytest.raises(libattn.ArgumentError) as fault:
        libattn.merge((out, out[:1]), (lse, lse))
    assert fault.value.name == "ATTN_E_SHAPE" and fault.value.given == 1
    with pytest.raises(TypeError, match="no option causal"):
        libattn.merge((out,), (lse,), causal=True)
    with pytest.raises(libattn.ArgumentError, match="expected one of f32"):
        libattn.merge((out,), (lse,), out_dtype="f8")
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(libattn.ArgumentError, match="read-only"):
        libattn.merge((out,), (lse,), out=frozen)


def scores(q, k, **options):
    seen, offset = formulas.visible(q.shape[2], k.shape[2], options.pop("causal", False), options.pop("bottom_right", False))
    return formulas.biased_scores(formulas.wide(q), formulas.wide(k), q.shape[-1] ** -0.5, seen=seen, offset=offset, **options)[0]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 0.9}, {"alibi": np.full(4, 0.2, np.float32)}],
                         ids=["plain", "causal", "softcap", "alibi"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_scores(dtype, options):
    data = Data(dtype)
    q, k, v = data.qkv()
    out, lse, largest = libattn.sdpa(q, k, v, return_max_logits=True, **data.words, **options)
    plain, plain_lse = libattn.sdpa(q, k, v, return_lse=True, **data.words, **options)
    assert_close(out, formulas.wide(plain), BOUNDS[dtype][0])
    assert_close(lse, plain_lse, 1e-5)
    assert largest.dtype == lse.dtype
    assert_close(largest, scores(q, k, **options).max(-1), 1e-12 if dtype == "f64" else 1e-4)
    given = np.empty_like(largest)
    libattn.sdpa(q, k, v, max_logits=given, **data.words, **options)
    assert np.array_equal(given, largest)


def test_largest_scores_of_rows_without_keys():
    q, k, v = Data("f32").qkv(b=1)
    largest = libattn.sdpa(q, k[:, :, :4], v[:, :, :4], return_max_logits=True, window=(0, 0))[2]
    assert np.all(largest[:, :, 4:] == -np.inf) and np.isfinite(largest[:, :, :4]).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_output_that_is_not_rounded(dtype):
    """Nearer to the formulas than a rounded one, and what rounding makes of it is the rounded one."""
    data = Data(dtype)
    q, k, v = data.qkv()
    wide, rounded = libattn.sdpa(q, k, v, out_dtype="f32", **data.words), libattn.sdpa(q, k, v, **data.words)
    assert wide.dtype == np.float32
    error = np.abs(formulas.wide(rounded) - wide).max()
    assert 0 < error <= np.abs(wide).max() * 2.0 ** -(8 if dtype == "bf16" else 11) * 1.01
    given = np.empty_like(wide)
    assert libattn.sdpa(q, k, v, out=given, **data.words) is given and np.array_equal(given, wide)
    q, kv, slots = data(6, 4, 576), data(20, 1, 576), np.random.default_rng(2).integers(-1, 20, (6, 1, 12), dtype=np.int32)
    sparse = libattn.mla(q, kv, slots, out_dtype="f32", **data.words)
    assert sparse.dtype == np.float32
    assert_close(sparse, formulas.mla(q, kv, slots)["out"], BOUNDS[dtype][0])
    given = np.empty_like(sparse)
    assert np.array_equal(libattn.mla(q, kv, slots, out=given, **data.words), sparse)


def test_refusals_of_out_dtype():
    q, k, v = Data("f32").qkv()
    with pytest.raises(libattn.ArgumentError, match="out_dtype"):
        libattn.sdpa(q, k, v, out_dtype="f16")
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    with pytest.raises(TypeError, match="no option out_dtype"):
        libattn.sdpa_backward(out, q, k, v, out, lse, out_dtype="f32")
