# SPDX-License-Identifier: MIT
"""The table "Beside others" of docs/python.md: every cell of our column, by a call that serves the feature or refuses it."""
import importlib.util
import pathlib

import formulas
import libattn
import numpy as np
import pytest
from support import Data, assert_close

DOCS = (pathlib.Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
TABLE = DOCS.split("## Beside others", 1)[1].split("\n## ", 1)[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")][1:]
REFUSED = (libattn.UnsupportedError, libattn.ArgumentError, TypeError)
LENGTHS, SLOPES, SINK = np.array([9, 5], np.int32), np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.zeros(4, np.float32)
PROBES = {}


def probe(name):
    """Add a probe: it returns the cell's text, or raises what a caller would see (`no`)."""
    def add(function):
        PROBES[name] = function
        return function
    return add


def compare(bound=4e-6, width=None, **options):
    """The forward with these options is the formulas'."""
    q, k, v = Data("f32").qkv(dv=width)
    assert_close(libattn.sdpa(q, k, v, **options), formulas.sdpa(q, k, v, **options)[0], bound)
    return "yes"


def gradient(role, **options):
    """The backward gives it, with a value other than 0."""
    q, k, v = Data("f32").qkv()
    out, lse = libattn.sdpa(q, k, v, return_lse=True, **options)
    found = getattr(libattn.sdpa_backward(out, q, k, v, out, lse, want=(role,), **options), role)
    assert found.any()
    return "yes"


PLAIN = {
    "tensors on a CPU": {},
    "causal, diagonal at the top left": {"causal": True},
    "causal, diagonal at the bottom right": {"causal": True, "bottom_right": True},
    "softcap": {"softcap": 0.9},
    "ALiBi slopes": {"alibi": SLOPES},
    "added mask that broadcasts": {"mask": np.random.default_rng(1).standard_normal((1, 4, 1, 24)).astype(np.float32)},
    "boolean mask": {"mask": np.random.default_rng(1).random((2, 1, 20, 24)) < 0.7},
    "sink": {"sink": SINK},
    "lengths in use": {"seqlens_k": LENGTHS, "seqlens_q": LENGTHS},
}
for _name, _options in PLAIN.items():
    PROBES[_name] = lambda options=_options: compare(**options)
for _name, _role, _options in (("gradient of ALiBi slopes", "dalibi", {"alibi": SLOPES}), ("gradient of a sink", "dsink", {"sink": SINK}),
                               ("gradient of an added mask", "dmask", {"mask": np.zeros((1, 4, 1, 24), np.float32)})):
    PROBES[_name] = lambda role=_role, options=_options: gradient(role, **options)


@probe("window, either side")
def window():
    for sides in ((3, None), (None, 2), (3, 2)):
        compare(window=sides)
    return "yes"


@probe("values of another width than keys")
def values():
    return compare(width=24)


@probe("f32 and f64 inputs")
def wide():
    for dtype, bound in (("f32", 4e-6), ("f64", 1e-13)):
        q, k, v = Data(dtype).qkv()
        assert_close(libattn.sdpa(q, k, v), formulas.sdpa(q, k, v)[0], bound)
    return "yes"


@probe("fp8 inputs")
def fp8():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.float8_e4m3fn) for x in Data("f32").qkv())
    scales = {f"{name}_scale": np.full(x.shape[:2], 0.5, np.float32) for name, x in (("q", q), ("k", k), ("v", v))}
    found, expected = libattn.sdpa(q, k, v, out_dtype="f32", **scales), formulas.sdpa(*(x.astype(np.float32) / 2 for x in (q, k, v)))[0]
    assert_close(found, expected, 1e-4)
    return "forward"


@probe("widest head")
def widest():
    assert libattn.sdpa(*Data("f32").qkv(d=512)).shape[-1] == 512
    with pytest.raises(REFUSED):
        libattn.sdpa(*Data("f32").qkv(d=513))
    return "512"


@probe("dropout")
def dropout():
    libattn.sdpa(*Data("f32").qkv(), dropout_p=0.1)


@probe("lse as a result")
def lse():
    q, k, v = Data("f32").qkv()
    assert_close(libattn.sdpa(q, k, v, return_lse=True)[1], formulas.sdpa(q, k, v)[1], 1e-5)
    return "yes"


@probe("gradient through lse")
def through_lse():
    q, k, v = Data("f32").qkv()
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    found = libattn.sdpa_backward(np.zeros_like(out), q, k, v, out, lse, dlse=np.ones_like(lse), want=("dq",))
    assert found.dq.any()
    return "yes"


@probe("packed sequences")
def packed():
    data, cu = Data("f32"), np.array([0, 5, 12], np.int32)
    q, k, v = data(4, 12, 16), data(2, 12, 16), data(2, 12, 16)
    words = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "causal": True}
    out, lse = libattn.sdpa(q, k, v, return_lse=True, **words)
    assert_close(out[:, :5], formulas.sdpa(*(x[None, :, :5] for x in (q, k, v)), causal=True)[0][0], 4e-6)
    assert libattn.sdpa_backward(out, q, k, v, out, lse, **words).dk.any()
    return "yes"


def paged(q, **options):
    data = Data("f32")
    pool_k, pool_v, table = data(10, 2, 8, 16), data(10, 2, 8, 16), np.array([[3, 1, 7], [0, 9, 4]], np.int32)
    out = libattn.sdpa(q, pool_k, pool_v, block_table=table, seqlens_k=LENGTHS, **options)
    keys, values = (pool[table[0]].transpose(1, 0, 2, 3).reshape(2, 24, 16)[None, :, :9] for pool in (pool_k, pool_v))
    return out, keys, values


@probe("keys on pages (forward)")
def pages():
    q = Data("f32")(2, 4, 5, 16)
    out, keys, values = paged(q)
    assert_close(out[:1], formulas.sdpa(q[:1], keys, values)[0], 4e-6)
    return "yes"


@probe("packed queries on pages")
def packed_pages():
    q = Data("f32")(4, 5, 16)
    out, keys, values = paged(q, cu_seqlens_q=np.array([0, 3, 5], np.int32))
    assert_close(out[:, :3], formulas.sdpa(q[None, :, :3], keys, values)[0][0], 4e-6)
    return "yes"


@probe("new rows and rotary embedding on a cache")
def cache():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch")
    from libattn.compat.flash_attn_2 import flash_attn_with_kvcache  # results: test_compat
    torch = importlib.import_module("torch")
    with pytest.raises(TypeError):
        libattn.sdpa(*Data("f32").qkv(), rotary_cos=1)
    q, k = torch.ones(1, 2, 2, 8), torch.zeros(1, 4, 2, 8)
    flash_attn_with_kvcache(q, k, k.clone(), q, q, rotary_cos=torch.ones(4, 4), rotary_sin=torch.zeros(4, 4), cache_seqlens=1)
    assert torch.equal(k[0, 1:3], q[0]) and not k[0, 3:].any()
    return "drop-in"


def sparse(name):
    data, slots = Data("f32"), np.random.default_rng(2).integers(-1, 20, (6, 1, 12), dtype=np.int32)
    q, kv, dout = data(6, 4, 576), data(20, 1, 576), data(6, 4, 512)
    right = formulas.mla(q, kv, slots, dout=dout)
    out, lse = libattn.mla(q, kv, slots, return_lse=True)
    found = {"out": out} if name == "out" else {"dist": libattn.dist(q, kv, slots, lse)} if name == "dist" else \
        libattn.mla_backward(dout, q, kv, out, lse, slots)._asdict()
    assert_close(found[name], right[name], 4e-5)
    return "yes"


PROBES["sparse MLA, forward"] = lambda: sparse("out")
PROBES["sparse MLA, backward"] = lambda: sparse("dkv")
PROBES["head-summed distribution of sparse MLA"] = lambda: sparse("dist")


@probe("merging of parts")
def merging():
    q, k, v = Data("f32").qkv()
    parts = [libattn.sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 9), (9, 24))]
    assert_close(libattn.merge(*zip(*parts))[0], formulas.sdpa(q, k, v)[0], 4e-6)
    return "yes"


@probe("largest score of each row")
def largest():
    q, k, v = Data("f32").qkv(hq=2, hk=2)
    assert_close(libattn.sdpa(q, k, v, return_max_logits=True)[2], (q @ k.swapaxes(-1, -2) / 4).max(-1), 1e-5)
    return "yes"


@probe("f32 output of 16-bit inputs")
def wide_output():
    assert libattn.sdpa(*Data("f16").qkv(), out_dtype="f32").dtype == np.float32
    return "yes"


@probe("backward with the same bits")
def same_bits():
    q, k, v = Data("f32").qkv(sq=100, sk=100, d=64)
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    first, second = (libattn.sdpa_backward(out, q, k, v, out, lse, deterministic=True) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first[:3], second[:3]))
    return "yes"


@probe("second derivatives")
def second():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch")
    torch = importlib.import_module("torch")
    from libattn.torch import sdpa
    q = torch.ones(1, 1, 2, 4, requires_grad=True)
    first, = torch.autograd.grad(sdpa(q, q, q).square().sum(), q, create_graph=True)
    torch.autograd.grad(first.sum(), q)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_our_cell(row):
    try:
        found = PROBES[row[0]]()
    except REFUSED:
        found = "no"
    assert found == row[1]


def test_the_tests_that_the_docs_name():
    """Those of the table of our own modules, row by row."""
    table = DOCS.split("| feature | `libattn` | `libattn.torch` |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines()[2:]]
    assert len(rows) >= 12 and {len(row) for row in rows} == {6}
    names = {name.strip() for row in rows for name in row[-1].split(",")}
    folder = pathlib.Path(__file__).parent
    assert [name for name in names if not (folder / f"{name}.py").exists() and not (folder.parents[1] / name).is_dir()] == []


def test_every_probe_has_its_row():
    assert [row[0] for row in ROWS if row[0] not in PROBES] == [] and set(PROBES) == {row[0] for row in ROWS}
    assert len({len(row) for row in ROWS}) == 1
