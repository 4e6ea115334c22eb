# SPDX-License-Identifier: MIT
"""libattn.jax on the CPU against the formulas and jax.nn: jit, grad, vmap, refusals."""
import pathlib
import re

import formulas
import libattn
import numpy as np
import pytest
from support import BOUNDS, Data, assert_close

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
from libattn import jax as lj  # noqa: E402

_random = np.random.default_rng(5)
FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "bottom_right": {"causal": True, "bottom_right": True},
    "window": {"window": (3, 1)},
    "softcap": {"softcap": 0.8},
    "scale": {"scale": 0.3},
    "boolean mask": {"mask": _random.random((2, 4, 7, 9)) < 0.7},
    "added mask": {"mask": _random.standard_normal((1, 4, 7, 9)).astype(np.float32)},
    "alibi": {"alibi": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
    "sink": {"sink": np.array([0.1, -0.4, 1.0, 0.0], np.float32)},
    "lengths": {"seqlens_k": np.array([5, 9], np.int32)},
}


def problem(dtype="f64"):
    return [np.asarray(x) for x in Data(dtype).qkv(b=2, hq=4, hk=2, sq=7, sk=9, d=16, dv=12)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", FEATURES)
def test_features_and_their_gradients(name, compiled):
    arrays, options = problem(), dict(FEATURES[name])
    learned = {key: options.pop(key) for key in ("mask", "alibi", "sink") if key in options and options[key].dtype != bool}
    dout, dlse = _random.standard_normal((2, 4, 7, 12)), _random.standard_normal((2, 4, 7))

    def attend(q, k, v, extra):
        return lj.sdpa(q, k, v, return_lse=True, **options, **extra)

    def both(*x):
        results, backward = jax.vjp(attend, *x)
        return results, backward((jnp.asarray(dout), jnp.asarray(dlse)))

    (out, lse), (dq, dk, dv, extra) = (jax.jit(both) if compiled else both)(*map(jnp.asarray, arrays), learned)
    right, right_lse, grads = formulas.sdpa(*arrays, dout=dout, dlse=dlse, **options, **learned)
    assert_close(out, right, 1e-12)
    assert_close(lse, right_lse, 1e-12)
    for found, role in ((dq, "dq"), (dk, "dk"), (dv, "dv")):
        assert_close(found, grads[role], 1e-12)
    for key, found in extra.items():
        assert found.dtype == learned[key].dtype
        expected = {"mask": lambda: grads["ds"].sum(0, keepdims=True), "alibi": lambda: grads["dalibi"].sum(0),
                    "sink": lambda: grads["dsink"]}[key]()
        assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_dtypes_and_layouts(dtype):
    arrays = problem(dtype)
    wide = [formulas.wide(x) for x in arrays]
    q, k, v = (jnp.asarray(x.view(jnp.bfloat16) if dtype == "bf16" else x) for x in arrays)
    right, _ = formulas.sdpa(*wide, causal=True)
    out = lj.sdpa(q, k, v, causal=True)
    assert out.dtype == q.dtype
    assert_close(out.astype(jnp.float64), right, BOUNDS[dtype][0])
    swapped = lj.sdpa(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=True, layout="bshd")
    assert swapped.shape == (2, 7, 4, 12) and np.array_equal(swapped.swapaxes(1, 2).astype(jnp.float32), out.astype(jnp.float32))


def test_gradients_are_of_what_is_differentiated():
    q, k, v = map(jnp.asarray, problem())
    text = jax.jit(jax.grad(lambda q: lj.sdpa(q, k, v).sum())).lower(q).as_text()
    backward = [line for line in text.splitlines() if "sdpa_bwd" in line]
    assert len(backward) == 1 and '"q,k,v,out,lse,dout,dq"' in backward[0]
    with pytest.raises(Exception, match="(?i)differentiat|jvp|forward-mode"):
        jax.hessian(lambda q: lj.sdpa(q, k, v).sum())(q)


def test_vmap_is_one_call():
    q, k, v = map(jnp.asarray, problem())
    many, mask = jnp.stack([q, 2 * q, q + 1]), jnp.asarray(_random.random((3, 2, 1, 7, 9)) < 0.7)

    def attend(q, mask):
        return lj.sdpa(q, k, v, mask=mask)

    def expected(function, *x):
        return np.stack([function(*(y[i] for y in x)) for i in range(3)])

    for function in (attend, jax.grad(lambda q, mask: (attend(q, mask) ** 2).sum())):
        found = jax.vmap(function)(many, mask)
        assert_close(found, expected(function, many, mask), 1e-13)
        text = jax.jit(jax.vmap(function)).lower(many, mask).as_text()
        assert "while" not in text and "b=6" in text
    assert_close(jax.vmap(attend, (0, None))(many, mask[0]), expected(lambda q: attend(q, mask[0]), many), 1e-13)
    assert_close(jax.vmap(attend, (None, 0))(q, mask[:, :1]), np.stack([attend(q, x[:1]) for x in mask]), 1e-13)
    twice = jax.vmap(jax.vmap(attend, (0, None)), (None, 0))(many, mask)
    assert_close(twice, np.stack([expected(lambda q: attend(q, x), many) for x in mask]), 1e-13)
    summed = jax.grad(lambda k: jax.vmap(lambda q: lj.sdpa(q, k, v))(many).sum())(k)
    assert_close(summed, sum(jax.grad(lambda k: lj.sdpa(q, k, v).sum())(k) for q in many), 1e-13)


def test_vmap_without_a_batch_axis_loops():
    q, k, v = map(jnp.asarray, problem())
    sinks = jnp.asarray(_random.standard_normal((3, 4)), jnp.float32)
    function = jax.value_and_grad(lambda sink: lj.sdpa(q, k, v, sink=sink).sum())
    values, grads = jax.vmap(function)(sinks)
    for i, sink in enumerate(sinks):
        value, grad = function(sink)
        assert_close(values[i], value, 1e-13)
        assert_close(grads[i], grad, 1e-6)


def test_the_signature_of_jax():
    q, k, v = (jnp.asarray(x.transpose(0, 2, 1, 3)) for x in Data("f64").qkv(b=2, hq=4, hk=2, sq=7, sk=9, d=16))
    bias, mask = jnp.asarray(_random.standard_normal((2, 4, 7, 9)), jnp.float32), jnp.asarray(_random.random((2, 1, 7, 9)) < 0.9)
    lengths = {"query_seq_lengths": jnp.array([7, 4], jnp.int32), "key_value_seq_lengths": jnp.array([9, 6], jnp.int32)}
    for words in ({}, {"is_causal": True}, {"scale": 0.3}, {"bias": bias}, {"mask": mask}, {"local_window_size": 8}, lengths):
        found, expected = (function(q, k, v, **words) for function in (lj.dot_product_attention, jax.nn.dot_product_attention))
        if "query_seq_lengths" in words:  # rows past the length
            found, expected = found[1, :4], expected[1, :4]
        assert_close(found, expected, 1e-6)  # its softmax is in f32
    assert_close(lj.dot_product_attention(q[0], k[0], v[0]), jax.nn.dot_product_attention(q[0], k[0], v[0]), 1e-6)
    with pytest.raises(libattn.UnsupportedError, match="bias and mask"):
        lj.dot_product_attention(q, k, v, bias, mask)


def test_sparse():
    data, random = Data("f32"), np.random.default_rng(2)
    q, kv, dout, sink = data(6, 4, 576), data(20, 1, 576), data(6, 4, 512), np.array([0.3, -1, 0, 2], np.float32)
    slots, lengths = random.integers(-1, 20, (6, 1, 12), dtype=np.int32), np.array([12, 3, 1, 7, 12, 5], np.int32)
    words = {"topk_length": lengths}
    right = formulas.mla(q, kv, slots, sink=sink, dout=dout, **words)

    def attend(q, kv, sink):
        out, lse, top = lj.mla(q, kv, slots, sink=sink, return_max_logits=True, **words)
        return (out * dout).sum(), (out, lse, top)

    grads, (out, lse, top) = jax.jit(jax.grad(attend, (0, 1, 2), has_aux=True))(q, kv, sink)
    for found, role in ((out, "out"), (lse, "lse"), (top, "max_logits")):
        assert_close(found, right[role], 1e-5)
    for found, role in zip(grads, ("dq", "dkv", "dsink")):
        assert_close(found, right[role], 4e-5)
    assert_close(lj.dist(q, kv, slots, lse, **words), right["dist"], 1e-5)
    assert jax.grad(lambda q: lj.dist(q, kv, slots, lse).sum())(q).any() == False  # noqa: E712 - a target
    two = jnp.stack([q, 2 * q])
    for found, x in zip(jax.vmap(lambda q: lj.mla(q, kv, slots))(two), two):
        assert_close(found, lj.mla(x, kv, slots), 1e-6)
    both = jax.vmap(jax.grad(lambda q, kv: lj.mla(q, kv, slots).sum(), 1))(two, jnp.stack([kv, kv + 1]))
    for found, x, y in zip(both, two, (kv, kv + 1)):
        assert_close(found, jax.grad(lambda kv: lj.mla(x, kv, slots).sum())(y), 1e-6)


def test_one_join_for_a_step():
    """mla_join, mla, its gradients and dist on the same lists, compiled together, and mapped."""
    data, random = Data("f32"), np.random.default_rng(3)
    q, kv, slots = data(6, 4, 576), data(20, 1, 576), random.integers(-1, 20, (6, 1, 12), dtype=np.int32)
    words = {"causal": True, "q_start": 9}

    def step(q, kv, joins):
        lists = lj.mla_join(slots, group=4, seq_k=20, **words) if joins else None

        def loss(q, kv):
            out, lse = lj.mla(q, kv, slots, joined=lists, return_lse=True, **words)
            return (out ** 2).sum(), lse

        grads, lse = jax.grad(loss, (0, 1), has_aux=True)(q, kv)
        return *grads, lj.dist(q, kv, slots, lse, joined=lists, **words)

    with libattn.recording() as trace:
        found = jax.block_until_ready(jax.jit(step, static_argnums=2)(q, kv, True))
    assert sum("group=4" in problem.problem for problem in trace.problems) == 4  # mla_join, mla, the backward, dist
    for x, right in zip(found, step(q, kv, False)):
        assert_close(x, right, 1e-6)
    two = jnp.stack([slots, slots[::-1]])
    lists = jax.vmap(lambda x: lj.mla_join(x, group=4, seq_k=20))(two)
    assert np.array_equal(lists[1, :, :3], libattn.mla_join(slots[::-1], group=4, seq_k=20)[:, :3])
    mapped = jax.vmap(lambda x, y: lj.mla(q, kv, x, joined=y))(two, lists)
    assert_close(mapped[1], lj.mla(q, kv, slots[::-1]), 1e-6)
    with pytest.raises(libattn.ArgumentError, match="joined has shape"):
        jax.jit(lambda x: lj.mla(q, kv, slots, joined=x))(lists[0][:, :-1])
    with pytest.raises(TypeError, match="no option scale"):
        lj.mla_join(slots, group=4, seq_k=20, scale=1.0)


def test_readme():
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "libattn.jax" in block)
    q, k, v = map(jnp.asarray, problem())
    names = {"jax": jax, "q": q, "k": k, "v": v}
    exec(block, names)
    assert_close(names["y"], lj.sdpa(q, k, v, causal=True), 1e-13)


def test_refusals():
    q, k, v = map(jnp.asarray, problem())
    with pytest.raises(TypeError, match="no option casual"):
        lj.sdpa(q, k, v, casual=True)
    with pytest.raises(libattn.ArgumentError, match="v has shape"):
        jax.jit(lj.sdpa)(q, k, v[:, :, :5])
    with pytest.raises(libattn.ArgumentError, match="softcap"):
        lj.sdpa(q, k, v, softcap=-1.0)
    with pytest.raises(libattn.ArgumentError, match="layout"):
        lj.sdpa(q, k, v, layout="sbhd")
    with pytest.raises(libattn.ArgumentError, match="traced"):
        jax.jit(lambda x: lj.sdpa(q, k, v, scale=x))(1.0)
    with pytest.raises(libattn.ArgumentError, match="int8"):
        lj.sdpa(q.astype(jnp.int8), k, v)
    with pytest.raises(Exception, match="alibi"):  # judged when it runs
        lj.sdpa(q, k, v, alibi=jnp.ones(3, jnp.float32)).block_until_ready()


@pytest.mark.parametrize("b,h,sq,sk,d,dv", [(0, 2, 3, 4, 8, 8), (2, 0, 3, 4, 8, 8), (2, 2, 0, 4, 8, 8), (2, 2, 3, 0, 8, 8), (2, 2, 3, 4, 0, 8),
                                            (2, 2, 3, 4, 8, 0)])
def test_empty_extents(b, h, sq, sk, d, dv):
    arrays = [jnp.ones(shape) for shape in ((b, h, sq, d), (b, h, sk, d), (b, h, sk, dv))]
    out = lj.sdpa(*arrays)
    assert out.shape == (b, h, sq, dv) and (sk or not out.any())
    for found, x in zip(jax.grad(lambda *x: lj.sdpa(*x).sum(), argnums=(0, 1, 2))(*arrays), arrays):
        assert found.shape == x.shape and jnp.isfinite(found).all() and (sq or not found.any())


def test_e4m3():
    q, k, v = (jnp.asarray(x, jnp.float32).astype(jnp.float8_e4m3fn) for x in problem())
    scales = {f"{name}_scale": jnp.full(x.shape[:2], 0.5, jnp.float32) for name, x in (("q", q), ("k", k), ("v", v))}
    worth = [x.astype(jnp.float32) / 2 for x in (q, k, v)]
    for attend in (lj.sdpa, jax.jit(lj.sdpa)):
        found = attend(q, k, v, **scales)
        assert found.dtype == jnp.bfloat16
        assert_close(found.astype(jnp.float32), lj.sdpa(*worth), 2**-7)
    both = jax.vmap(lj.sdpa)(*(jnp.stack([x, x]) for x in (q, k, v)), **{name: jnp.stack([x, 2 * x]) for name, x in scales.items()})
    assert jnp.array_equal(both[0], lj.sdpa(q, k, v, **scales))
    with pytest.raises(libattn.UnsupportedError, match="sdpa of e4m3 is a forward alone"):
        jax.grad(lambda x: lj.sdpa(q, k, v, **scales | {"v_scale": x}).astype(jnp.float32).sum())(scales["v_scale"])
    with pytest.raises(libattn.ArgumentError, match="q_scale is not for this problem"):
        lj.sdpa(*worth, **scales)


def test_recordings_hold_what_xla_runs():
    q, k, v = map(jnp.asarray, problem())
    attend = jax.jit(lambda q: lj.sdpa(q, k, v, causal=True))
    attend(q).block_until_ready()
    with libattn.recording() as trace:
        attend(q).block_until_ready()
    attend(q).block_until_ready()
    assert [(x.problem, x.calls) for x in trace.problems] == [("sdpa_fwd b=2 hq=4 hk=2 sq=7 sk=9 d=16 dv=12 f64 causal", 1)]
