# SPDX-License-Identifier: MIT
"""libattn.compat: published interfaces, their shapes, alignment, lse and refusals, against the formulas."""
import sys

import formulas
import libattn
import numpy as np
import pytest
from support import Data, assert_close

torch = pytest.importorskip("torch")

import libattn.compat  # noqa: E402


@pytest.fixture
def published():
    """install() for one test; the names are taken away again."""
    def get(name):
        return libattn.compat.install(name)

    before = set(sys.modules)
    yield get
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flash_attn", "flash_attn_interface", "flash_mla", "cudnn"):
            del sys.modules[name]


def rows(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def expected(q, k, v, **options):
    """The formulas on [B,S,H,D] tensors, diagonal at the bottom right."""
    out, lse = formulas.sdpa(*(x.detach().numpy().transpose(0, 2, 1, 3) for x in (q, k, v)), bottom_right=True, **options)
    return out.transpose(0, 2, 1, 3), np.where(np.isneginf(lse), np.inf, lse)


def test_names_exist_only_after_install(published):
    for name in ("flash_attn", "flash_attn_interface", "flash_mla", "cudnn"):
        assert name not in sys.modules
        with pytest.raises(ImportError):
            __import__(name)
        module = published(name)
        assert __import__(name) is module and published(name) is module
    from flash_attn import flash_attn_func
    from flash_attn.flash_attn_interface import flash_attn_func as again
    assert flash_attn_func is again
    with pytest.raises(ValueError, match="not served"):
        libattn.compat.install("xformers")


def test_a_real_module_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "flash_mla.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="is installed here"):
        libattn.compat.install("flash_mla")


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_interface"])
def test_dense(published, name):
    module = published(name)
    q, k, v = rows(2, 9, 4, 16), rows(2, 7, 2, 16, seed=1), rows(2, 7, 2, 16, seed=2)
    found = module.flash_attn_func(q, k, v, causal=True, window_size=(3, -1), softcap=2.0, return_attn_probs=True)
    out, lse = expected(q, k, v, causal=True, window=(3, None), softcap=2.0)  # queries without keys: lse is +inf
    assert_close(found[0].numpy(), out, 1e-13)
    assert_close(found[1].numpy(), lse, 1e-13)
    q.requires_grad_()
    module.flash_attn_func(q, k, v).sum().backward()
    grads = formulas.sdpa(*(x.detach().numpy().transpose(0, 2, 1, 3) for x in (q, k, v)), dout=np.ones((2, 4, 9, 16)))[2]
    assert_close(q.grad.numpy().transpose(0, 2, 1, 3), grads["dq"], 1e-12)


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_interface"])
def test_packed(published, name):
    module, cu_q, cu_k = published(name), torch.tensor([0, 3, 9]).int(), torch.tensor([0, 5, 12]).int()
    q, k, v = rows(9, 4, 16), rows(12, 2, 16, seed=1), rows(12, 2, 16, seed=2)
    out, lse, *_ = module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 6, 7, causal=True, return_attn_probs=True)
    assert lse.shape == (4, 9)
    for b in range(2):
        one, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        right, right_lse = expected(q[None, one], k[None, keys], v[None, keys], causal=True)
        assert_close(out[one].numpy(), right[0], 1e-13)
        assert_close(lse[:, one].numpy(), right_lse[0], 1e-13)


def test_packed_queries_on_pages(published):
    module, cu_q, cu_k = published("flash_attn"), torch.tensor([0, 3, 5]).int(), torch.tensor([0, 12, 19]).int()
    q, pages_k, pages_v = rows(5, 4, 16), rows(4, 8, 2, 16, seed=1), rows(4, 8, 2, 16, seed=2)
    table = torch.tensor([[3, 1], [0, 2]]).int()
    out = module.flash_attn_varlen_func(q, pages_k, pages_v, cu_q, cu_k, 3, 12, causal=True, block_table=table)
    for b, length in enumerate((12, 7)):
        keys, values = (pages[table[b].long()].flatten(0, 1)[None, :length] for pages in (pages_k, pages_v))
        right, _ = expected(q[None, cu_q[b]:cu_q[b + 1]], keys, values, causal=True)
        assert_close(out[cu_q[b]:cu_q[b + 1]].numpy(), right[0], 1e-13)


def test_rows_in_use(published):
    module, cu = published("flash_attn_interface"), torch.tensor([0, 6, 12]).int()
    q, used = rows(12, 2, 16), torch.tensor([4, 6]).int()
    out = module.flash_attn_varlen_func(q, q, q, cu, cu, 6, 6, seqused_k=used)
    for b in range(2):
        one = slice(cu[b], cu[b + 1])
        keys = q[None, one][:, :used[b]]
        assert_close(out[one].numpy(), expected(q[None, one], keys, keys)[0][0], 1e-13)


def test_alibi_and_packed_tensors(published):
    module, qkv, slopes = published("flash_attn"), rows(2, 9, 3, 4, 16), torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = module.flash_attn_qkvpacked_func(qkv, alibi_slopes=slopes)
    assert_close(found.numpy(), expected(*qkv.unbind(2), alibi=slopes.numpy(), alibi_form="distance")[0], 1e-13)
    assert torch.equal(module.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], alibi_slopes=slopes), found)
    cu = torch.tensor([0, 9]).int()
    packed = module.flash_attn_varlen_qkvpacked_func(qkv[0], cu, 9, alibi_slopes=slopes)
    assert_close(packed.numpy(), found[0].numpy(), 1e-13)
    assert torch.equal(module.flash_attn_varlen_kvpacked_func(qkv[0, :, 0], qkv[0, :, 1:], cu, cu, 9, 9, alibi_slopes=slopes),
                       packed)


@pytest.mark.parametrize("paged", [False, True])
def test_cache_with_appended_rows(published, paged):
    module, lengths = published("flash_attn"), torch.tensor([3, 10]).int()
    q, new_k, new_v = rows(2, 2, 4, 16), rows(2, 2, 2, 16, seed=1), rows(2, 2, 2, 16, seed=2)
    whole_k, whole_v = rows(2, 16, 2, 16, seed=3), rows(2, 16, 2, 16, seed=4)
    cache_k, cache_v, table = whole_k.clone(), whole_v.clone(), None
    if paged:
        table = torch.tensor([[3, 1], [0, 2]]).int()
        cache_k, cache_v = (torch.empty(4, 8, 2, 16, dtype=q.dtype) for _ in range(2))
        for cache, whole in ((cache_k, whole_k), (cache_v, whole_v)):
            cache[table.long()] = whole.view(2, 2, 8, 2, 16)
    found, lse = module.flash_attn_with_kvcache(q, cache_k, cache_v, new_k, new_v, cache_seqlens=lengths, block_table=table,
                                                causal=True, return_softmax_lse=True)
    for b, length in enumerate(lengths.tolist()):
        keys, values = (torch.cat([whole[b:b + 1, :length], new[b:b + 1]], 1)
                        for whole, new in ((whole_k, new_k), (whole_v, new_v)))
        out, right_lse = expected(q[b:b + 1], keys, values, causal=True)
        assert_close(found[b:b + 1].numpy(), out, 1e-13)
        assert_close(lse[b:b + 1].numpy(), right_lse, 1e-13)
    if not paged:
        assert torch.equal(cache_k[0, 3:5], new_k[0]) and torch.equal(cache_k[1, 10:12], new_k[1])


def test_flash_mla(published):
    module, data = published("flash_mla"), Data("f32")
    q, kv, indices = data(6, 4, 576), data(20, 1, 576), np.random.default_rng(2).integers(-1, 20, (6, 1, 12), dtype=np.int32)
    indices[2] = -1
    out, top, lse = module.flash_mla_sparse_fwd(torch.from_numpy(q), torch.from_numpy(kv), torch.from_numpy(indices), 0.05)
    right = formulas.mla(q, kv, indices, scale=0.05)
    assert_close(out.numpy(), right["out"], 1e-5)
    assert_close(top.numpy(), right["max_logits"], 1e-5)
    assert_close(lse.numpy(), np.where(np.isneginf(right["lse"]), np.inf, right["lse"]), 1e-5)


@pytest.mark.parametrize("given", [False, True])
def test_sparse_backward_of_cudnn(published, given):
    module, data = published("cudnn"), Data("f32")
    q, kv, dout = data(6, 4, 576), data(20, 576), data(6, 4, 512)
    slots, sink = np.random.default_rng(2).integers(-1, 20, (6, 12), dtype=np.int32), np.array([0.3, -1, 0, 2], np.float32)
    lengths = np.array([12, 3, 0, 7, 12, 1], np.int32)
    right = formulas.mla(q, kv[:, None], slots[:, None], scale=0.05, sink=sink, topk_length=lengths, dout=dout)
    tensors = [torch.from_numpy(np.asarray(x, np.float32)) for x in (q, kv, right["out"], dout, right["lse"], sink)]
    words = {"dq": torch.full((6, 4, 576), 7.0), "dkv": torch.full((20, 576), 7.0)} if given else {}
    found = module.DSA.sparse_attention_backward_wrapper(*tensors, torch.from_numpy(slots), softmax_scale=0.05,
                                                         topk_length=torch.from_numpy(lengths), **words)
    dq, dkv, d_sink = found
    assert found["dq"] is dq and found[1] is dkv and (not given or dq is words["dq"] and dkv is words["dkv"])
    for x, expected_gradient in ((dq, right["dq"]), (dkv, right["dkv"][:, 0]), (d_sink, right["dsink"])):
        assert_close(x.numpy(), expected_gradient, 4e-5)
    from cudnn.deepseek_sparse_attention import sparse_attention_backward_wrapper as again
    assert again is module.sparse_attention_backward_wrapper
    with pytest.raises(libattn.UnsupportedError, match="stream"):
        again(*tensors, torch.from_numpy(slots), stream=1)


def test_refusals(published):
    two, three, mla = published("flash_attn"), published("flash_attn_interface"), published("flash_mla")
    q = rows(1, 2, 2, 8)
    for call, words in ((two.flash_attn_func, {"dropout_p": 0.1}), (three.flash_attn_func, {"attention_chunk": 4}),
                        (three.flash_attn_func, {"qv": q}), (two.flash_attn_with_kvcache, {"rotary_cos": q}),
                        (two.flash_attn_with_kvcache, {"cache_leftpad": q}), (mla.flash_mla_with_kvcache, {})):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words), "flash_mla_with_kvcache")):
            call(q, q, q, **words)
    with pytest.raises(libattn.UnsupportedError, match="d_v"):
        mla.flash_mla_sparse_fwd(q, q, q, 1.0, d_v=256)
