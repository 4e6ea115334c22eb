# SPDX-License-Identifier: MIT
"""What may be passed: memory orders, dtypes, DLPack objects, outputs of the caller; what is refused, and in which words."""
import pickle

import formulas
import libattn
import numpy as np
import pytest
from libattn import _abi
from support import Data, assert_close


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array, old=False):
        self.array, self.old = array, old

    def __dlpack__(self, **words):
        if self.old and words:
            raise TypeError("an old producer knows no words")
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_memory_orders_without_copies():
    data = Data("f32")
    q, k, v = data(2, 20, 4, 16), data(2, 24, 2, 16), data(2, 24, 2, 16)  # [B,S,H,D]
    across = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    out = libattn.sdpa(*across)
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous  # q's order
    expected, _ = formulas.sdpa(*across)
    assert_close(out, expected, 4e-6)
    packed = data(2, 20, 3, 4, 16).transpose(2, 0, 3, 1, 4)  # q, k and v in one array
    assert_close(libattn.sdpa(*packed), formulas.sdpa(*packed)[0], 4e-6)
    one_key_head = np.broadcast_to(data(2, 1, 24, 16), (2, 4, 24, 16))
    assert_close(libattn.sdpa(across[0], one_key_head, one_key_head), formulas.sdpa(across[0], one_key_head, one_key_head)[0],
                 4e-6)
    backwards = q[:, ::-1].transpose(0, 2, 1, 3)
    assert_close(libattn.sdpa(backwards, *across[1:]), formulas.sdpa(backwards, *across[1:])[0], 4e-6)


def test_outputs_of_the_caller():
    q, k, v = Data("f32").qkv()
    out, lse = np.empty((2, 4, 20, 16), np.float32), np.empty((2, 4, 20), np.float32)
    assert libattn.sdpa(q, k, v, out=out) is out
    found = libattn.sdpa(q, k, v, out=out, lse=lse, return_lse=True)
    assert found[0] is out and found[1] is lse
    rounded = np.empty((2, 4, 20), np.float32)
    libattn.sdpa(q, k, v, lse_rounded=rounded)
    assert np.array_equal(rounded, lse)
    dq = np.empty_like(q)
    assert libattn.sdpa_backward(out, q, k, v, out, lse, dq=dq).dq is dq
    out.flags.writeable = False
    with pytest.raises(libattn.ArgumentError, match="out is read-only"):
        libattn.sdpa(q, k, v, out=out)


def test_read_only_inputs():
    q, k, v = Data("f32").qkv()
    expected = libattn.sdpa(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert np.array_equal(libattn.sdpa(q, k, v), expected)


@pytest.mark.parametrize("old", [False, True])
def test_dlpack(old):
    q, k, v = Data("f32").qkv()
    found = libattn.sdpa(*(Foreign(x.copy(), old) for x in (q, k, v)), mask=Foreign(np.eye(20, 24) > 0, old))
    assert np.array_equal(found, libattn.sdpa(q, k, v, mask=np.eye(20, 24) > 0))
    out = np.empty_like(found)
    target = Foreign(out, old)
    assert libattn.sdpa(q, k, v, out=target) is target
    assert np.array_equal(out, libattn.sdpa(q, k, v))


def test_bf16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = Data("bf16").qkv()
    out = libattn.sdpa(*(x.view(ml_dtypes.bfloat16) for x in bits))
    assert out.dtype == ml_dtypes.bfloat16
    plain = libattn.sdpa(*bits, dtype="bf16")
    assert plain.dtype == np.uint16 and np.array_equal(out.view(np.uint16), plain)


def test_e4m3_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = [x.astype(ml_dtypes.float8_e4m3fn) for x in Data("f32").qkv()]
    scales = [np.random.default_rng(3).uniform(0.5, 2, x.shape[:2]).astype(np.float32) for x in narrow]
    words = dict(zip(("q_scale", "k_scale", "v_scale"), scales))
    out = libattn.sdpa(*narrow, out_dtype="f32", **words)
    assert out.dtype == np.float32
    worth = [x.astype(np.float32) * scale[:, :, None, None] for x, scale in zip(narrow, scales)]
    assert np.allclose(out, libattn.sdpa(*worth), rtol=1e-4, atol=1e-5)
    assert libattn.sdpa(*narrow, **words).dtype == ml_dtypes.bfloat16
    one = np.broadcast_to(np.float32(1), scales[0].shape)
    with pytest.raises(libattn.ArgumentError, match="k_scale is NULL"):
        libattn.sdpa(*narrow, q_scale=one)


def test_subclasses_of_arrays(tmp_path):
    q, k, v = Data("f32").qkv()
    mapped = np.memmap(tmp_path / "q", np.float32, "w+", shape=q.shape)
    mapped[:] = q
    assert np.array_equal(libattn.sdpa(mapped, k, v), libattn.sdpa(q, k, v))
    with pytest.raises(libattn.ArgumentError, match="q is a masked array"):
        libattn.sdpa(np.ma.masked_array(q), k, v)


@pytest.mark.parametrize("x, words", [
    (np.ones((2, 4, 20, 16), ">f4"), "dtype >f4"),
    (np.ones((2, 4, 20, 16), np.uint16), "says that it holds bf16"),
    (np.ones((2, 4, 20, 16), np.complex64), "dtype <c8"),
    (np.ones((2, 4, 20, 32), np.float32)[..., ::2], "stride"),
    (np.frombuffer(bytes(2 * 4 * 20 * 16 * 5), np.dtype([("x", "f4"), ("y", "u1")]))["x"].reshape(2, 4, 20, 16), "bytes"),
    ([[1.0]], "q is list"),
    (np.ones((4, 20, 16), np.float32), "q has 3 axes; expected 4"),
])
def test_refused_arrays(x, words):
    _, k, v = Data("f32").qkv()
    with pytest.raises(libattn.ArgumentError, match=words) as caught:
        libattn.sdpa(x, k, v)
    assert caught.value.argument == "q"


def test_exceptions_say_what_was_expected():
    q, k, v = Data("f32").qkv()
    with pytest.raises(libattn.ArgumentError) as caught:
        libattn.sdpa(q, k[:1], v)
    fault = caught.value
    assert (fault.status, fault.name, fault.argument) == (_abi.ATTN_E_SHAPE, "ATTN_E_SHAPE", "k")
    assert (fault.expected, fault.given) == (2, 1) and "ATTN_E_SHAPE" in str(fault)
    assert isinstance(fault, ValueError) and isinstance(fault, libattn.AttnError)
    again = pickle.loads(pickle.dumps(fault))
    assert type(again) is type(fault) and again.argument == "k" and str(again) == str(fault)


def test_outputs_that_share_memory_with_inputs_are_refused():
    q, k, v = Data("f32").qkv()
    with pytest.raises(libattn.ArgumentError) as caught:
        libattn.sdpa(q, k, v, out=q)
    assert caught.value.status == _abi.ATTN_E_OVERLAP


@pytest.mark.parametrize("options, words", [
    ({"scale": float("nan")}, "scale"),
    ({"softcap": -1.0}, "softcap"),
    ({"scale": "small"}, "scale"),
    ({"window": (1, 2, 3)}, "window"),
    ({"window": [1, 2]}, "numbers, words and tuples"),
    ({"alibi_form": "linear"}, "without alibi"),
    ({"dtype": "fp8"}, "dtype"),
    ({"mask": np.ones((3, 24), bool)}, "does not broadcast"),
    ({"seqlens_k": np.array([1, 2])}, "seqlens_k"),  # 64-bit
    ({"indices": np.zeros((1, 1, 1, 1), np.int32)}, "indices"),
])
def test_refused_options(options, words):
    with pytest.raises(libattn.ArgumentError, match=words):
        libattn.sdpa(*Data("f32").qkv(), **options)


def test_unknown_names():
    q, k, v = Data("f32").qkv()
    with pytest.raises(TypeError, match="casual; did you mean causal"):
        libattn.sdpa(q, k, v, casual=True)
    with pytest.raises(TypeError, match="dropout"):
        libattn.sdpa(q, k, v, dropout=0.1)
    with pytest.raises(TypeError, match="mla.. has no option softcap"):
        libattn.mla(q, k, v, softcap=1.0)
    with pytest.raises(libattn.ArgumentError, match="want names 'dw'"):
        libattn.sdpa_backward(q, q, k, v, q, q, want=("dw",))
    with pytest.raises(libattn.ArgumentError, match="dsink is wanted without sink"):
        libattn.sdpa_backward(q, q, k, v, q, q[..., 0], want=("dsink",))


def test_features_and_kernels_that_are_not_there():
    q, k, v = Data("f32").qkv()
    with pytest.raises(libattn.UnsupportedError) as caught:
        libattn.sdpa(q, k, v, kernel="*_sm90_*")
    assert caught.value.name == "ATTN_E_NO_KERNEL"
    with pytest.raises(NotImplementedError):
        libattn.sdpa(q, k, v, kernel="no_such_kernel")
