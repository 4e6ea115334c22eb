# SPDX-License-Identifier: MIT
"""libattn.compat: published interfaces, their shapes, alignment, lse and refusals, against the formulas."""
import importlib
import sys

import formulas
import libattn
import numpy as np
import pytest
from support import Data, assert_close

torch = pytest.importorskip("torch")

import libattn.compat  # noqa: E402
from interfaces import expected, published, rows  # noqa: E402, F401


def test_names_exist_only_after_install(published):
    for name in ("flash_attn.cute", "flash_attn", "flash_attn_interface", "flash_mla", "flash_mla_bwd", "cudnn"):
        assert getattr(sys.modules.get(name), "__libattn__", "package") == "package"
        with pytest.raises(ImportError):
            importlib.import_module(f"{name}.interface")
        module = published(name)
        assert importlib.import_module(name) is module and published(name) is module
    from flash_attn.cute.interface import flash_attn_varlen_func as four
    assert four.__module__ == "libattn.compat.flash_attn_4" and sys.modules["flash_attn"].cute is sys.modules["flash_attn.cute"]
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


def test_a_part_beside_a_real_package(published, tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = published("flash_attn.cute")
    import flash_attn
    assert flash_attn.real and flash_attn.cute is module


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


def test_packed_of_flash_mla(published):
    module, cu_q, cu_k = published("flash_mla"), torch.tensor([0, 3, 9]).int(), torch.tensor([0, 5, 12]).int()
    q, k, v = rows(9, 4, 24).requires_grad_(), rows(12, 2, 24, seed=1), rows(12, 2, 16, seed=2)
    out, lse = module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 6, 7, causal=True, softmax_scale=0.3)
    assert lse.shape == (9, 4)
    for b in range(2):
        one, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        right, right_lse = expected(q[None, one], k[None, keys], v[None, keys], causal=True, scale=0.3)
        assert_close(out[one].detach().numpy(), right[0], 1e-13)
        assert_close(lse[one].detach().numpy(), right_lse[0].T, 1e-13)
    (dq,) = torch.autograd.grad(out.sum(), q)
    together = module.flash_attn_varlen_kvpacked_func(q, torch.cat([k, v], -1), cu_q, cu_k, 6, 7, 24, causal=True, softmax_scale=0.3)
    assert torch.equal(together[0], out) and torch.equal(torch.autograd.grad(together[0].sum(), q)[0], dq)
    alike = module.flash_attn_varlen_func(k, k, v, cu_k, cu_k, 7, 7, causal=True)
    assert torch.equal(module.flash_attn_varlen_qkvpacked_func(torch.cat([k, k, v], -1), cu_k, 7, 24, causal=True)[0], alike[0])
    with pytest.raises(libattn.UnsupportedError, match="dropout_p"):
        module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 6, 7, dropout_p=0.1)


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


def turned(x, cos, sin, first, interleaved):
    """Rotary embedding by complex numbers: x [S,H,D] from position `first` on."""
    half = cos.shape[1]
    pairs = x[..., :2 * half].reshape(*x.shape[:2], half, 2) if interleaved else x[..., :2 * half].reshape(*x.shape[:2], 2, half)
    a, b = pairs.unbind(-1 if interleaved else -2)
    z = torch.complex(a, b) * torch.complex(cos, sin)[first:first + len(x), None]
    parts = torch.stack((z.real, z.imag), -1 if interleaved else -2).flatten(-2)
    return torch.cat([parts, x[..., 2 * half:]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_cache_with_rotary_embedding(published, causal, interleaved):
    module, lengths = published("flash_attn"), torch.tensor([3, 7]).int()
    q, new_k, new_v = rows(2, 3, 4, 16), rows(2, 3, 2, 16, seed=1), rows(2, 3, 2, 16, seed=2)
    cache_k, cache_v, angles = rows(2, 16, 2, 16, seed=3), rows(2, 16, 2, 16, seed=4), rows(16, 4, seed=5)
    cos, sin, before = angles.cos(), angles.sin(), cache_k.clone()
    found = module.flash_attn_with_kvcache(q, cache_k, cache_v, new_k, new_v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths,
                                           causal=causal, rotary_interleaved=interleaved)
    for b, length in enumerate(lengths.tolist()):
        keys = torch.cat([before[b, :length], turned(new_k[b], cos, sin, length, interleaved)])
        if causal:
            queries = turned(q[b], cos, sin, length, interleaved)
        else:  # all queries at the position of the first
            queries = torch.cat([turned(row[None], cos, sin, length, interleaved) for row in q[b]])
        right, _ = expected(queries[None], keys[None], cache_v[b:b + 1, :length + 3], causal=causal)
        assert_close(found[b:b + 1].numpy(), right, 1e-6)  # angles are multiplied in f32
        assert_close(cache_k[b, :length + 3].numpy(), keys.numpy(), 1e-6)


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_interface"])
def test_cache_by_number_and_from_a_later_row(published, name):
    module, lengths, number = published(name), torch.tensor([9, 16]).int(), torch.tensor([2, 0]).int()
    q, cache_k, cache_v, start = rows(2, 3, 4, 16), rows(4, 16, 2, 16, seed=1), rows(4, 16, 2, 16, seed=2), torch.tensor([4, 1]).int()
    for words in ({}, {"cache_leftpad": start}):
        found, lse = module.flash_attn_with_kvcache(q, cache_k, cache_v, cache_seqlens=lengths, cache_batch_idx=number, causal=True,
                                                    return_softmax_lse=True, **words)
        for b in range(2):
            kept = slice(int(start[b]) if words else 0, int(lengths[b]))
            right, right_lse = expected(q[b:b + 1], cache_k[number[b], kept][None], cache_v[number[b], kept][None], causal=True)
            assert_close(found[b:b + 1].numpy(), right, 1e-13)
            assert_close(lse[b:b + 1].numpy(), right_lse, 1e-13)
    new, before = rows(2, 2, 2, 16, seed=5), cache_k.clone()
    lengths[1] = 3
    module.flash_attn_with_kvcache(q, cache_k, cache_v, new, new, cache_seqlens=lengths, cache_batch_idx=number)
    before[2, 9:11], before[0, 3:5] = new
    assert torch.equal(cache_k, before)


@pytest.mark.parametrize("paged", [False, True])
def test_packed_queries_and_new_rows_on_a_cache(published, paged):
    module, lengths = published("flash_attn_interface"), torch.tensor([3, 8]).int()
    cu_q, cu_new = torch.tensor([0, 2, 5]).int(), torch.tensor([0, 4, 5]).int()
    q, new_k, new_v = rows(5, 4, 16), rows(5, 2, 16, seed=1), rows(5, 2, 16, seed=2)
    whole_k, whole_v = rows(2, 16, 2, 16, seed=3), rows(2, 16, 2, 16, seed=4)
    cache_k, cache_v, table = whole_k.clone(), whole_v.clone(), None
    if paged:
        table = torch.tensor([[3, 1], [0, 2]]).int()
        cache_k, cache_v = (torch.empty(4, 8, 2, 16, dtype=q.dtype) for _ in range(2))
        for cache, whole in ((cache_k, whole_k), (cache_v, whole_v)):
            cache[table.long()] = whole.view(2, 2, 8, 2, 16)
    out, lse = module.flash_attn_with_kvcache(q, cache_k, cache_v, new_k, new_v, cache_seqlens=lengths, page_table=table,
                                              cu_seqlens_q=cu_q, cu_seqlens_k_new=cu_new, max_seqlen_q=3, causal=True,
                                              return_softmax_lse=True)
    for b, length in enumerate(lengths.tolist()):
        mine, new = slice(cu_q[b], cu_q[b + 1]), slice(cu_new[b], cu_new[b + 1])
        keys, values = (torch.cat([whole[b, :length], rest[new]])[None] for whole, rest in ((whole_k, new_k), (whole_v, new_v)))
        right, right_lse = expected(q[None, mine], keys, values, causal=True)
        assert_close(out[mine].numpy(), right[0], 1e-13)
        assert_close(lse[:, mine].numpy(), right_lse[0], 1e-13)
    assert module.get_scheduler_metadata(2, 3) is None


@pytest.mark.parametrize("causal", [False, True])
def test_decoding_of_flash_mla(published, causal):
    """Whole sequences on pages; two key heads; a sequence of no keys; a table with rubbish behind the last page."""
    module, data = published("flash_mla"), Data("f32")
    q, pages = data(3, 2, 6, 576), data(5, 4, 2, 576)
    table, lengths = np.array([[3, 1, 2], [0, 2**30, -5], [4, 0, 1]], np.int32), np.array([11, 4, 0], np.int32)
    out, lse = module.flash_mla_with_kvcache(*map(torch.from_numpy, (q, pages, table, lengths)), 512, *module.get_mla_metadata(),
                                             causal=causal)
    assert out.shape == (3, 2, 6, 512) and lse.shape == (3, 6, 2)
    for b, length in enumerate(lengths):
        for head in range(2):
            keys = pages[table[b, :-(-length // 4)]].reshape(-1, 2, 576)[:length, head:head + 1]
            slots = np.full((2, 1, 12), -1, np.int32)
            for i in range(2):
                seen = max(0, length - (1 - i) * causal)
                slots[i, 0, :seen] = np.arange(seen)
            mine = slice(3 * head, 3 * head + 3)
            if not length:
                assert not out[b].any() and bool((lse[b] == np.inf).all())
                continue
            right = formulas.mla(q[b, :, mine], keys, slots)
            assert_close(out[b, :, mine].numpy(), right["out"], 1e-5)
            assert_close(lse[b, mine].numpy().T, np.where(np.isneginf(right["lse"]), np.inf, right["lse"]), 1e-5)


def test_sparse_decoding_of_flash_mla(published):
    module, data, random = published("flash_mla"), Data("f32"), np.random.default_rng(3)
    q, pages, sink = data(2, 2, 4, 576), data(5, 4, 1, 576), np.array([0.3, -1, 0, 2], np.float32)
    slots, lengths = random.integers(-1, 20, (2, 2, 12), dtype=np.int32), np.array([12, 5], np.int32)
    out, lse = module.flash_mla_with_kvcache(torch.from_numpy(q), torch.from_numpy(pages), None, None, 512, None, softmax_scale=0.05,
                                             indices=torch.from_numpy(slots), attn_sink=torch.from_numpy(sink),
                                             topk_length=torch.from_numpy(lengths))
    right = formulas.mla(q.reshape(4, 4, 576), pages.reshape(20, 1, 576), slots.reshape(4, 1, 12), scale=0.05, sink=sink,
                         topk_length=lengths.repeat(2))
    assert_close(out.flatten(0, 1).numpy(), right["out"], 1e-5)
    assert_close(lse.transpose(1, 2).flatten(0, 1).numpy(), right["lse"], 1e-5)


FOUR = {"window": {"window_size": (None, -2)}, "causal": {"causal": True}, "softcap": {"softcap": 2.0}}


@pytest.mark.parametrize("name", FOUR)
def test_version_4(published, name):
    """A window that ends before the diagonal leaves rows without keys, whose lse is -inf."""
    module, q, k, v = published("flash_attn.cute"), rows(2, 7, 4, 16), rows(2, 9, 2, 16, seed=1), rows(2, 9, 2, 8, seed=2)
    theirs = {{"window_size": "window"}.get(key, key): x for key, x in FOUR[name].items()}
    right, right_lse, _ = formulas.sdpa(*(x.numpy().transpose(0, 2, 1, 3) for x in (q, k, v)), bottom_right=True, **theirs,
                                        dout=np.ones((2, 4, 7, 8)))
    out, lse = module.flash_attn_func(q, k, v, **FOUR[name])
    assert_close(out.numpy(), right.transpose(0, 2, 1, 3), 1e-13)
    assert_close(lse.numpy(), right_lse, 1e-13)


def test_sink_of_version_4(published):
    module, q, sink = published("flash_attn.cute"), rows(2, 7, 4, 16).requires_grad_(), rows(4, seed=1).bfloat16().requires_grad_()
    out, lse = module.flash_attn_func(q, q, q, learnable_sink=sink)
    out.sum().backward()
    x = q.detach().numpy().transpose(0, 2, 1, 3)
    plain = sink.detach().double().numpy()
    right, bare, grads = formulas.sdpa(x, x, x, sink=plain, dout=np.ones_like(x))
    assert_close(out.detach().numpy(), right.transpose(0, 2, 1, 3), 1e-13)
    assert_close(lse.detach().numpy(), np.logaddexp(bare, plain[:, None]), 1e-13)
    assert sink.grad.dtype == torch.bfloat16
    assert_close(sink.grad.double().numpy(), grads["dsink"], 1e-2)


@pytest.mark.parametrize("keys", ["packed", "dense", "paged"])
def test_packed_queries_of_version_4(published, keys):
    module, cu_q, lengths = published("flash_attn.cute"), torch.tensor([0, 3, 5]).int(), torch.tensor([12, 7]).int()
    q, whole_k, whole_v = rows(5, 4, 16), rows(2, 16, 2, 16, seed=1), rows(2, 16, 2, 16, seed=2)
    if keys == "packed":
        k, v = (torch.cat([x[b, :length] for b, length in enumerate(lengths)]) for x in (whole_k, whole_v))
        words = {"cu_seqlens_k": torch.tensor([0, 12, 19]).int(), "max_seqlen_k": 12}
    elif keys == "dense":
        k, v, words = whole_k, whole_v, {"seqused_k": lengths}
    else:
        table = torch.tensor([[3, 1], [0, 2]]).int()
        k, v = (torch.empty(4, 8, 2, 16, dtype=q.dtype) for _ in range(2))
        k[table.long()], v[table.long()] = whole_k.view(2, 2, 8, 2, 16), whole_v.view(2, 2, 8, 2, 16)
        words = {"seqused_k": lengths, "page_table": table}
    out, lse = module.flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu_q, max_seqlen_q=3, causal=True, **words)
    for b, length in enumerate(lengths.tolist()):
        mine = slice(cu_q[b], cu_q[b + 1])
        right, right_lse = expected(q[None, mine], whole_k[b:b + 1, :length], whole_v[b:b + 1, :length], causal=True)
        assert_close(out[mine].numpy(), right[0], 1e-13)
        assert_close(lse[:, mine].numpy(), right_lse[0], 1e-13)
    if keys == "dense":
        with pytest.raises(libattn.UnsupportedError, match="cu_seqlens_q"):
            module.flash_attn_varlen_func(q.requires_grad_(), k, v, cu_seqlens_q=cu_q, **words)
        whole, _ = module.flash_attn_varlen_func(q.detach(), k, v, cu_seqlens_q=cu_q)  # every row of the cache
        assert_close(whole[:3].numpy(), expected(q.detach()[None, :3], whole_k[:1], whole_v[:1])[0][0], 1e-13)
    used, _ = module.flash_attn_varlen_func(whole_k, whole_k, whole_v, seqused_q=lengths, seqused_k=lengths)
    assert_close(used[:1, :12].numpy(), expected(*(x[:1, :12] for x in (whole_k, whole_k, whole_v)))[0], 1e-13)


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


def sparse_inputs(batch=None, width=576, seed=2):
    """Arrays of the formulas: q, kv, slots of which some name no row, dout."""
    data, random = Data("f32", seed), np.random.default_rng(seed)
    lead = () if batch is None else (batch,)
    slots = random.integers(-2, 22, (*lead, 6, 1, 12), dtype=np.int32)
    slots[..., 2, :, :] = -1
    return data(*lead, 6, 4, width), data(*lead, 20, 1, width), slots, data(*lead, 6, 4, 512)


def test_tilelang_v32():
    from libattn.compat import tilelang_v32 as module
    q, kv, slots, dout = sparse_inputs(batch=2)
    tensors = [torch.from_numpy(x) for x in (q, kv, slots)]
    out, lse = module.sparse_mla_fwd_interface(*tensors, 0.05)
    dq, dkv = module.sparse_mla_bwd(tensors[0], tensors[1], out, torch.from_numpy(dout), tensors[2], lse, sm_scale=0.05)
    for b in range(2):
        right = formulas.mla(q[b], kv[b], slots[b], scale=0.05, causal=True, dout=dout[b])
        assert_close(out[b].numpy(), right["out"], 1e-5)
        assert_close(lse[b].numpy(), right["lse"] / np.log(2), 1e-5)
        assert_close(dq[b].numpy(), right["dq"], 4e-5)
        assert_close(dkv[b].numpy(), right["dkv"], 4e-5)
    for words in ({"return_p_sum": True}, {"d_v": 256}):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words))):
            module.sparse_mla_fwd_interface(*tensors, **words)
    for words in ({"return_kernel": True}, {"delta": lse}):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words))):
            module.sparse_mla_bwd(*tensors[:2], out, out, tensors[2], lse, **words)
    with pytest.raises(libattn.UnsupportedError, match="kv_group"):
        module.sparse_mla_fwd_interface(tensors[0], tensors[1].expand(-1, -1, 2, -1), tensors[2])


def test_tilelang_packed():
    from libattn.compat import tilelang_packed as module
    data, random = Data("f32"), np.random.default_rng(4)
    q, kv, dout = data(11, 4, 576), data(11, 1, 576), data(11, 4, 512)
    slots = random.integers(-1, 13, (11, 1, 9), dtype=np.int32)  # those past the query are hidden, also where another sequence has the row
    offsets = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    tensors = [torch.from_numpy(x) for x in (q, kv, slots)]
    out, lse = module.sparse_mla_fwd_interface(*tensors, offsets)
    dq, dkv = module.sparse_mla_bwd(*tensors[:2], out, torch.from_numpy(dout), tensors[2], lse, offsets)
    score = module.sparse_mla_topk_reducesum_interface(*tensors, lse, offsets, 512)
    assert score.shape == (11, 1, 9)
    for part in (slice(0, 4), slice(4, 11)):
        right = formulas.mla(q[part], kv[part], slots[part], causal=True, dout=dout[part])
        for found, role, bound in ((out, "out", 1e-5), (lse, "lse", 1e-5), (dq, "dq", 4e-5), (dkv, "dkv", 4e-5)):
            assert_close(found[part].numpy(), right[role], bound)
        total = right["dist"].sum(-1, keepdims=True)
        assert_close(score[part, 0].numpy(), right["dist"] / np.where(total > 0, total, 1), 1e-5)
    with pytest.raises(libattn.UnsupportedError, match="is_casual"):
        module.sparse_mla_bwd(*tensors[:2], out, out, tensors[2], lse, offsets, is_casual=False)
    with pytest.raises(libattn.UnsupportedError, match="dim_v"):
        module.sparse_mla_topk_reducesum_interface(*tensors, lse, offsets, 256)


def test_deepseek_v4():
    from libattn.compat import deepseek_v4 as module
    q, kv, slots, dout = sparse_inputs(batch=2, width=512)
    sink = np.array([0.3, -1, 0, 9], np.float32)
    right = [formulas.mla(q[b], kv[b], slots[b], scale=0.05, sink=sink, dout=dout[b]) for b in range(2)]
    tensors = [torch.from_numpy(x) for x in (q, kv[:, :, 0], sink, slots[:, :, 0])]
    learned = [x.requires_grad_() for x in tensors[:3]]
    out = module.sparse_attn_tilelang(*tensors, 0.05)
    gradients = torch.autograd.grad(out, learned, torch.from_numpy(dout))
    plain, lse = module.sparse_mqa_fwd_interface(*tensors, sm_scale=0.05)
    assert not plain.requires_grad and torch.equal(plain, out)
    given = module.sparse_mqa_bwd_interface(*tensors[:3], plain, torch.from_numpy(dout), tensors[3], lse, sm_scale=0.05)
    for dq, dkv, dsink in (gradients, given):
        assert_close(dsink.numpy(), sum(one["dsink"] for one in right), 1e-4)
        for b, one in enumerate(right):
            assert_close(dq[b].numpy(), one["dq"], 4e-5)
            assert_close(dkv[b].numpy(), one["dkv"][:, 0], 4e-5)
    for b, one in enumerate(right):
        assert_close(out[b].detach().numpy(), one["out"], 1e-5)
        assert_close(lse[b].numpy(), np.logaddexp(one["lse"], sink) / np.log(2), 1e-5)


def test_sparse_backward_of_flash_mla_forks(published):
    backward = published("flash_mla_bwd").flash_mla_sparse_bwd
    q, kv, slots, dout = sparse_inputs()
    lengths = np.array([12, 3, 0, 7, 12, 1], np.int32)
    for words in ({}, {"topk_length": lengths, "q_start_index_s": 9, "sm_scale": 0.05}):
        names = {"q_start_index_s": "q_start", "sm_scale": "scale"}
        right = formulas.mla(q, kv, slots, causal=True, dout=dout, **{names.get(name, name): x for name, x in words.items()})
        tensors = [torch.from_numpy(np.asarray(x, np.float32)) for x in (q, kv, right["out"], dout)]
        words = {name: torch.from_numpy(x) if name == "topk_length" else x for name, x in words.items()}
        dq, dkv = backward(*tensors, torch.from_numpy(slots), torch.from_numpy(right["lse"].astype(np.float32)), **words)
        assert_close(dq.numpy(), right["dq"], 4e-5)
        assert_close(dkv.numpy(), right["dkv"], 4e-5)
    with pytest.raises(libattn.UnsupportedError, match="d_v"):
        backward(*tensors, tensors[0], tensors[0], d_v=256)


def test_refusals(published):
    two, three, mla = published("flash_attn"), published("flash_attn_interface"), published("flash_mla")
    q = rows(1, 2, 2, 8)
    table = torch.zeros(1, 1, dtype=torch.int32)
    for call, words in ((two.flash_attn_func, {"dropout_p": 0.1}), (three.flash_attn_func, {"q_descale": q}),
                        (three.flash_attn_func, {"qv": q}), (two.flash_attn_with_kvcache, {"rotary_cos": q}),
                        (two.flash_attn_with_kvcache, {"cache_leftpad": table[0], "block_table": table}),
                        (two.flash_attn_with_kvcache, {"cache_batch_idx": table[0], "block_table": table})):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words))):
            call(q, q, q, **words)
    scattered = rows(4, 2, 2, 8)[::2]
    with pytest.raises(libattn.UnsupportedError, match="cache_leftpad"):
        two.flash_attn_with_kvcache(rows(2, 1, 2, 8), scattered, scattered, cache_leftpad=torch.ones(2, dtype=torch.int32))
    four = published("flash_attn.cute")
    for call, words in ((four.flash_attn_func, {"qv": q}), (four.flash_attn_func, {"score_mod": min}),
                        (four.flash_attn_varlen_func, {"mask_mod": min}), (four.flash_attn_varlen_func, {"cu_seqlens_k": table[0]})):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words))):
            call(q, q, q, **words)
    for words in ({"is_fp8_kvcache": True}, {"extra_k_cache": q}):
        with pytest.raises(libattn.UnsupportedError, match=next(iter(words))):
            mla.flash_mla_with_kvcache(q, q, table, table[0], 512, None, **words)
    with pytest.raises(libattn.UnsupportedError, match="d_v"):
        mla.flash_mla_sparse_fwd(q, q, q, 1.0, d_v=256)
