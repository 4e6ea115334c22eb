# SPDX-License-Identifier: MIT
"""Sparse attention against the formulas: mla, mla_backward, dist."""
import formulas
import libattn
import numpy as np
import pytest
from support import BOUNDS, Data, assert_close

SQ, HQ, SK, TOPK = 9, 4, 30, 14
_random = np.random.default_rng(5)
INDICES = _random.integers(-2, SK + 2, (SQ, 1, TOPK), dtype=np.int32)  # some name no row, some twice
INDICES[4] = -1  # a query without rows
LENGTHS = _random.integers(0, TOPK + 3, SQ, dtype=np.int32).clip(max=TOPK)
SINK = _random.standard_normal(HQ).astype(np.float32)
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.02},
    "causal": {"causal": True, "q_start": 12},
    "compressed": {"causal": True, "q_start": 60, "k_stride": 3},
    "topk_length": {"topk_length": LENGTHS},
    "sink": {"sink": SINK},
}


@pytest.mark.parametrize("width", [576, 512])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_forward_and_gradients(dtype, name, width):
    data, options = Data(dtype), OPTIONS[name]
    q, kv, dout = data(SQ, HQ, width), data(SK, 1, width), data(SQ, HQ, 512)
    forward, backward = BOUNDS[dtype]
    expected = formulas.mla(q, kv, INDICES, dout=dout, **options)
    words = options | data.words
    if "topk_length" in words:  # the library wants its batch axis or none, as for every other tensor
        words["topk_length"] = LENGTHS
    out, lse, top = libattn.mla(q, kv, INDICES, return_max_logits=True, **words)
    assert_close(out, expected["out"], forward)
    assert_close(lse, expected["lse"], max(forward, 1e-5))
    assert_close(top, expected["max_logits"], max(forward, 1e-5))
    want = ("dq", "dkv", "dist") + (("dsink",) if "sink" in options else ())
    found = libattn.mla_backward(dout, q, kv, out, lse, INDICES, want=want, **words)
    assert_close(found.dq, expected["dq"], backward * 2)
    assert_close(found.dkv, expected["dkv"], backward * 2)
    if "sink" in options:
        assert_close(found.dsink, expected["dsink"], backward * 4)
        words.pop("sink")
    alone = libattn.dist(q, kv, INDICES, lse, **words)
    assert_close(alone, expected["dist"], max(forward, 1e-5))
    assert_close(found.dist, expected["dist"], max(forward, 1e-5))


def test_norms_of_dist():
    data = Data("f32")
    q, kv = data(SQ, HQ, 576), data(SK, 1, 576)
    lse = libattn.mla(q, kv, INDICES, return_lse=True)[1]
    total = libattn.dist(q, kv, INDICES, lse)
    assert_close(libattn.dist(q, kv, INDICES, lse, norm="mean"), total / HQ, 1e-6)
    rows = total.sum(-1, keepdims=True)
    assert_close(libattn.dist(q, kv, INDICES, lse, norm="l1"), np.where(rows > 0, total / np.where(rows > 0, rows, 1), 0), 1e-6)


def test_batch_axis():
    data = Data("f32")
    q, kv, indices = data(2, SQ, HQ, 576), data(2, SK, 1, 576), np.stack([INDICES, INDICES[::-1]])
    out, lse = libattn.mla(q, kv, indices, return_lse=True)
    assert out.shape == (2, SQ, HQ, 512) and lse.shape == (2, SQ, HQ)
    for b in range(2):
        assert_close(out[b], formulas.mla(q[b], kv[b], indices[b])["out"], 4e-6)


def test_accumulated_and_wide_gradient_of_keys():
    data = Data("bf16")
    q, kv, dout = data(SQ, HQ, 576), data(SK, 1, 576), data(SQ, HQ, 512)
    out, lse = libattn.mla(q, kv, INDICES, return_lse=True, dtype="bf16")
    wide = libattn.mla_backward(dout, q, kv, out, lse, INDICES, dkv_dtype="f32", dtype="bf16").dkv
    assert wide.dtype == np.float32
    total = np.ones((SK, 1, 576), np.float32)
    found = libattn.mla_backward(dout, q, kv, out, lse, INDICES, dkv=total, accumulate=True, dtype="bf16")
    assert found.dkv is total
    assert_close(total, wide.astype(np.float64) + 1, 1e-6)
    with pytest.raises(libattn.ArgumentError, match="give dkv"):
        libattn.mla_backward(dout, q, kv, out, lse, INDICES, accumulate=True, dtype="bf16")


def entries(row, group, topk):
    """The (key, queries) pairs of a group's joined list, by docs/joined_lists.md, and each query's slots."""
    size = -(-group * topk // 128) * 128
    bits = row[32 + size:32 + size + size // 64 * group * 2].view(np.uint64).reshape(-1, group)
    places = row[32 + size + size // 64 * group * 2:].view(np.uint16)[:group * (-(-topk // 8) * 8)].reshape(group, -1)
    found = [(row[32 + e], tuple(r for r in range(group) if bits[e // 64, r] >> np.uint64(e % 64) & np.uint64(1)))
             for e in range(row[0])]
    return found, places[:, :topk]


@pytest.mark.parametrize("group", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["plain", "causal", "topk_length"])
def test_joined_lists(name, group):
    options = OPTIONS[name]
    joined = libattn.mla_join(INDICES, group=group, seq_k=SK, **options)
    assert joined.dtype == np.int32 and joined.shape[0] == -(-SQ // group)
    for first, row in zip(range(0, SQ, group), joined):
        found, places = entries(row, group, TOPK)
        assert row[2] == min(group, SQ - first) and row[1] == 0
        for r in range(row[2]):
            i, valid = first + r, []
            for t, key in enumerate(INDICES[i, 0]):
                seen = 0 <= key < SK and not ("topk_length" in options and t >= LENGTHS[i])
                seen = seen and not ("causal" in options and key > options["q_start"] + i)
                if seen:
                    valid.append(key)
                assert (places[r, t] == 0xffff) != seen and (not seen or found[places[r, t]][0] == key)
            assert sorted(key for key, queries in found if r in queries) == sorted(valid)
    with pytest.raises(libattn.AttnError, match="group"):
        libattn.mla_join(INDICES, group=3, seq_k=SK)
    with pytest.raises(TypeError, match="no option scales"):
        libattn.mla_join(INDICES, group=2, seq_k=SK, scales=1.0)


def test_joined_lists_with_a_limit_and_a_batch_axis():
    two = np.stack([INDICES, INDICES[::-1]])
    joined = libattn.mla_join(two, group=4, seq_k=SK, union_limit=20)
    assert joined.shape[:2] == (2, 3)
    lone = libattn.mla_join(INDICES, group=4, seq_k=SK)
    apart = (joined[0, :, 1] & 1).astype(bool)
    assert np.array_equal(joined[0, :, 0], lone[:, 0]) and np.array_equal(apart, lone[:, 0] > 20) and apart.any()
    given = np.full_like(lone, 7)
    assert libattn.mla_join(INDICES, group=4, seq_k=SK, joined=given) is given and np.array_equal(given[:, :3], lone[:, :3])


@pytest.mark.parametrize("name", ["plain", "causal", "topk_length"])
def test_one_join_for_a_step(name):
    """Forward, dist and backward take the lists of mla_join; results are those of the lists alone."""
    data, options = Data("f32"), OPTIONS[name]
    q, kv, dout = data(SQ, HQ, 576), data(SK, 1, 576), data(SQ, HQ, 512)
    out, lse = libattn.mla(q, kv, INDICES, return_lse=True, **options)
    alone = (out, libattn.dist(q, kv, INDICES, lse, **options), *libattn.mla_backward(dout, q, kv, out, lse, INDICES, **options)[:2])
    for group in (2, 4, 8, 16):
        joined = libattn.mla_join(INDICES, group=group, seq_k=SK, **options)
        with libattn.recording() as trace:
            words = options | {"joined": joined}
            found = (libattn.mla(q, kv, INDICES, **words), libattn.dist(q, kv, INDICES, lse, **words),
                     *libattn.mla_backward(dout, q, kv, out, lse, INDICES, **words)[:2])
        assert sum(f"group={group}" in problem.problem for problem in trace.problems) == 3
        for x, y in zip(found, alone):
            assert_close(x, y, 1e-6)


def test_joined_lists_of_another_shape():
    data = Data("f32")
    q, kv = data(SQ, HQ, 576), data(SK, 1, 576)
    joined = libattn.mla_join(INDICES, group=4, seq_k=SK)
    with pytest.raises(libattn.ArgumentError, match=r"joined has shape \[3,31\].* for 2, .* for 16 queries a group"):
        libattn.mla(q, kv, INDICES, joined=np.zeros((3, 31), np.int32))
    with pytest.raises(libattn.ArgumentError, match=r"joined has rank 2 and shape \[2,224\], expected"):
        libattn.mla(q, kv, INDICES, joined=joined[:2])
    with pytest.raises(libattn.ArgumentError, match="joined"):
        libattn.dist(q, kv, INDICES, np.zeros((SQ, HQ), np.float32), joined=joined.astype(np.float32))


def test_the_plan_tells_the_group():
    assert libattn.plan("mla_fwd b=1 sq=64 sk=300 hq=8 d=576 topk=128 f32").group == 0  # kernels of the CPU keep queries apart
