# SPDX-License-Identifier: MIT
"""libattn.compat.flash_attn_3 alone: 8-bit inputs and chunks."""
import libattn
import numpy as np
import pytest
from support import assert_close

torch = pytest.importorskip("torch")

from interfaces import expected, published, rows  # noqa: E402, F401


def e4m3(*shape, seed):
    """A tensor of e4m3, a number for each sequence and key head, and what the two make."""
    narrow = rows(*shape, seed=seed).to(torch.float8_e4m3fn)
    return narrow, 0.5 + rows(shape[0], 2, seed=seed + 1).float().abs()


def worth(narrow, scale):
    return narrow.double() * scale.double().repeat_interleave(narrow.shape[2] // 2, 1)[:, None, :, None]


def test_e4m3_of_version_3(published):
    """descale [B,HK]: a query head's is that of its key head. Dense, packed and on a cache to which rows are appended; None is 1."""
    module = published("flash_attn_interface")
    (q, q_scale), (k, k_scale), (v, v_scale) = e4m3(2, 9, 4, 16, seed=1), e4m3(2, 12, 2, 16, seed=3), e4m3(2, 12, 2, 24, seed=5)
    words = {"q_descale": q_scale, "k_descale": k_scale, "v_descale": v_scale, "causal": True}
    right, right_lse = expected(worth(q, q_scale), worth(k, k_scale), worth(v, v_scale), causal=True)
    out, lse = module.flash_attn_func(q, k, v, **words, return_attn_probs=True)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    assert_close(out.double().numpy(), right, 2**-7)
    assert_close(lse.double().numpy(), right_lse, 1e-5)
    for x in (q_scale, k_scale, v_scale):  # each of them counts
        assert not torch.equal(module.flash_attn_func(q, k, v, **words | {next(n for n in words if words[n] is x): x.flip(0)}), out)

    cu_q, cu_k = torch.tensor([0, 9, 18]).int(), torch.tensor([0, 12, 24]).int()
    packed, packed_lse = module.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), cu_q, cu_k, 9, 12, **words,
                                                       return_attn_probs=True)
    assert_close(packed.double().numpy(), right.reshape(18, 4, 24), 2**-7)
    assert_close(packed_lse.double().numpy(), right_lse.transpose(1, 0, 2).reshape(4, 18), 1e-5)

    caches = [torch.zeros(2, 16, 2, x.shape[-1]).to(torch.float8_e4m3fn) for x in (k, v)]
    for cache, x in zip(caches, (k, v)):
        cache[:, :8] = x[:, :8]
    cached = module.flash_attn_with_kvcache(q, *caches, k[:, 8:], v[:, 8:], cache_seqlens=torch.tensor([8, 8]).int(), **words)
    assert_close(cached.double().numpy(), right, 2**-7)
    assert torch.equal(caches[0][:, :12].float(), k.float())

    cos, sin = (torch.cos(rows(16, 4, seed=n)).to(torch.float8_e4m3fn) for n in (7, 8))  # rotated rows are rounded to e4m3
    tables, lengths = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False}, torch.tensor([11, 11]).int()
    turned = module.flash_attn_with_kvcache(q[:, :1], *caches, k[:, 11:], v[:, 11:], cache_seqlens=lengths, **tables, **words)
    c, s = cos[11].float(), sin[11].float()
    for x, found in ((k[:, 11], caches[0][:, 11]), (q[:, 0], None)):
        a, b, rest = x.float().split([4, 4, 8], -1)
        right = torch.cat([a * c - b * s, a * s + b * c, rest], -1).to(torch.float8_e4m3fn)
        assert found is None or torch.equal(found.float(), right.float())
    assert torch.equal(turned, module.flash_attn_with_kvcache(right[:, None], *caches, cache_seqlens=lengths + 1, **words))

    plain, _ = expected(worth(q, torch.ones(2, 2)), worth(k, k_scale), worth(v, torch.ones(2, 2)))
    assert_close(module.flash_attn_func(q, k, v, k_descale=k_scale).double().numpy(), plain, 2**-7)


def test_e4m3_of_version_3_has_no_gradients(published):
    module, (q, scale) = published("flash_attn_interface"), e4m3(2, 5, 2, 16, seed=1)
    out = module.flash_attn_func(q, q, q, q_descale=scale)
    asking = module.flash_attn_func(q.requires_grad_(), q, q, q_descale=scale)
    assert torch.equal(asking, out) and not out.requires_grad
    with pytest.raises(libattn.UnsupportedError, match="e4m3 is a forward alone"):
        asking.sum().backward()
    for wrong in (scale[:, :1], scale[0], scale.double()):
        with pytest.raises(ValueError, match="v_descale"):
            module.flash_attn_func(q, q, q, v_descale=wrong)
    for name in ("q_descale", "k_descale", "v_descale"):
        with pytest.raises(libattn.UnsupportedError, match=name):
            module.flash_attn_func(*[q.detach().bfloat16()] * 3, **{name: scale})


def test_what_kernels_lack_in_e4m3_is_refused_by_name(published, monkeypatch):
    """As on a GPU, where every kernel refuses: by the argument that asked for it, which docs/python.md names."""
    from libattn import _abi
    from libattn._errors import error
    from libattn.compat import _common
    module, (q, scale) = published("flash_attn_interface"), e4m3(2, 8, 2, 16, seed=1)

    def refuse(*_, **__):
        raise error(_abi.ATTN_E_NO_KERNEL, "no kernel for this", "problem")

    monkeypatch.setattr(_common, "sdpa", refuse)
    wide, odd, table = rows(2, 8, 2, 130).to(q.dtype), rows(2, 8, 2, 15).to(q.dtype), torch.zeros(2, 1).int()
    for name, x, words in (("softcap", q, {"softcap": 1.0}), ("attention_chunk", q, {"attention_chunk": 3}), ("q", wide, {}), ("q", odd, {})):
        with pytest.raises(libattn.UnsupportedError, match="no kernel for this") as found:
            module.flash_attn_func(x, x, x, q_descale=scale, **words)
        assert found.value.argument == name
    for name, words in (("page_table", {"page_table": table}), ("page_table", {"cache_batch_idx": table[:, 0]}), ("problem", {})):
        with pytest.raises(libattn.UnsupportedError, match="no kernel for this") as found:
            module.flash_attn_with_kvcache(q, q, q, cache_seqlens=8, **words)
        assert found.value.argument == name
    for x in (q.bfloat16(), q.float()):  # of other dtypes as the library says it
        with pytest.raises(libattn.UnsupportedError) as found:
            module.flash_attn_func(x, x, x, softcap=1.0)
        assert found.value.argument == "problem"


def test_chunks(published):
    """attention_chunk: a query sees the keys of its own chunk."""
    module, chunk = published("flash_attn_interface"), 4
    q, k, v = rows(2, 7, 2, 8), rows(2, 10, 2, 8, seed=1), rows(2, 10, 2, 8, seed=2)

    def right(q, k, v, causal=True):
        positions = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        mask = positions // chunk == np.arange(k.shape[1]) // chunk
        return expected(q, k, v, causal=causal, mask=mask[None, None])[0]

    for causal in (False, True):
        found = module.flash_attn_func(q, k, v, causal=causal, attention_chunk=chunk)
        assert_close(found.numpy(), right(q, k, v, causal), 1e-13)
    cu_q, cu_k = torch.tensor([0, 3, 7]).int(), torch.tensor([0, 4, 10]).int()
    packed = module.flash_attn_varlen_func(q[0], k[0], v[0], cu_q, cu_k, 4, 6, causal=True, attention_chunk=chunk)
    for a, b, first, last in ((0, 3, 0, 4), (3, 7, 4, 10)):
        assert_close(packed[a:b].numpy(), right(q[:1, a:b], k[:1, first:last], v[:1, first:last])[0], 1e-13)


def test_a_chunk_that_holds_all_keys_is_no_mask(published):
    """But for queries before the first key, which it hides all keys from."""
    from libattn.compat import _common
    module, cpu = published("flash_attn_interface"), torch.device("cpu")
    three, two = torch.tensor([3, 3]), torch.tensor([2, 1])
    for made, call in ((False, (10, 7, 10, None, None, cpu, False)), (True, (9, 7, 10, None, None, cpu, False)),
                       (True, (10, 10, 7, None, None, cpu, False)), (False, (10, 10, 7, None, None, cpu, True)),
                       (True, (3, 3, 3, three, two, cpu, False)), (False, (3, 3, 3, three, two, cpu, True)),
                       (False, (0, 7, 10, None, None, cpu, False))):
        assert (_common.chunk_mask(*call) is not None) == made, call
    q, k, v = rows(2, 7, 2, 8), rows(2, 5, 2, 8, seed=1), rows(2, 5, 2, 8, seed=2)
    position = np.arange(7)[:, None] - 2
    for causal in (False, True):
        right, _ = expected(q, k, v, causal=causal, mask=np.broadcast_to(position >= 0, (7, 5))[None, None])
        assert_close(module.flash_attn_func(q, k, v, causal=causal, attention_chunk=5).numpy(), right, 1e-13)


@pytest.mark.parametrize("packed", [False, True])
def test_chunks_on_a_cache(published, packed):
    """Rows before leftpad do not count as positions."""
    module, chunk, lengths, start = published("flash_attn_interface"), 4, torch.tensor([9, 15]).int(), torch.tensor([3, 0]).int()
    q, k, v = rows(2, 3, 2, 8), rows(2, 16, 2, 8, seed=1), rows(2, 16, 2, 8, seed=2)
    words = {"cu_seqlens_q": torch.tensor([0, 2, 5]).int(), "max_seqlen_q": 3} if packed else {}
    queries = [q[:1, :2], q[1:]] if packed else [q[:1], q[1:]]
    found = module.flash_attn_with_kvcache(torch.cat([x[0] for x in queries]) if packed else q, k, v, cache_seqlens=lengths,
                                           cache_leftpad=start, causal=True, attention_chunk=chunk, **words)
    found = [found[:2], found[2:]] if packed else found
    for b, (first, last) in enumerate(zip(start.tolist(), lengths.tolist())):
        keys, count = last - first, queries[b].shape[1]
        mask = (np.arange(count)[:, None] + keys - count) // chunk == np.arange(keys) // chunk
        right, _ = expected(queries[b], k[b:b + 1, first:last], v[b:b + 1, first:last], causal=True, mask=mask[None, None])
        assert_close(found[b].numpy(), right[0], 1e-13)
