# SPDX-License-Identifier: MIT
"""The formulas of docs/semantics.md in NumPy, double precision, whole matrices: what the tests compare with."""
import numpy as np


def wide(x):
    """float64 of an array; 16-bit unsigned integers are bf16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(x, np.float64)


def bf16_bits(x):
    """bf16 as 16-bit unsigned integers, rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def visible(sq, sk, causal=False, bottom_right=False, window=(None, None), seqlen_q=None, seqlen_k=None):
    """[SQ,SK], true where rule 5 lets query i see key j."""
    lq = sq if seqlen_q is None else seqlen_q
    lk = sk if seqlen_k is None else seqlen_k
    offset = lk - lq if bottom_right else 0
    i, j = np.arange(sq)[:, None], np.arange(sk)[None, :]
    seen = (i < lq) & (j < lk)
    left, right = window
    if causal:
        right = 0
    if left is not None:
        seen = seen & (j >= i + offset - left)
    if right is not None:
        seen = seen & (j <= i + offset + right)
    return seen, offset


def biased_scores(q, k, scale, softcap=0.0, mask=None, alibi=None, alibi_form="linear", seen=None, offset=0):
    """Scores [B,HQ,SQ,SK] by rules 1 to 5, and the factor of the softcap's derivative."""
    group = q.shape[1] // k.shape[1]
    s = scale * (q @ np.repeat(k, group, 1).swapaxes(-1, -2))
    slope_of_cap = np.ones_like(s)
    if softcap:
        t = np.tanh(s / softcap)
        s, slope_of_cap = softcap * t, 1 - t * t
    if alibi is not None:
        distance = np.arange(s.shape[-1])[None, :] - (np.arange(s.shape[-2])[:, None] + offset)
        s = s + wide(alibi)[..., :, None, None] * (distance if alibi_form == "linear" else -abs(distance))
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + wide(mask)
    if seen is not None:
        s = np.where(seen, s, -np.inf)
    return s, slope_of_cap


def softmax(s, sink=None):
    """P, lse (without the sink) and lse of rows with the sink; a row without keys has P of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.logaddexp.reduce(s, axis=-1) if s.shape[-1] else np.full(s.shape[:-1], -np.inf)
        total = lse if sink is None else np.logaddexp(lse, wide(sink)[:, None])
        p = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isinf(total), 0.0, total)[..., None]))
    return p, lse, total


def sdpa(q, k, v, *, scale=None, sink=None, causal=False, bottom_right=False, window=(None, None), seqlens_q=None,
         seqlens_k=None, dout=None, dlse=None, **bias):
    """out, lse and, with dout, a dict of gradients, too."""
    q, k, v = wide(q), wide(k), wide(v)
    (batch, hq, sq, d), (_, hk, sk, _) = q.shape, k.shape
    scale = d ** -0.5 if scale is None else scale
    out, lse = np.zeros((batch, hq, sq, v.shape[-1])), np.full((batch, hq, sq), -np.inf)
    grads = {"dq": np.zeros_like(q), "dk": np.zeros_like(k), "dv": np.zeros_like(v), "ds": np.zeros((batch, hq, sq, sk)),
             "dsink": np.zeros(hq), "dalibi": np.zeros((batch, hq))}
    for b in range(batch):
        seen, offset = visible(sq, sk, causal, bottom_right, window, None if seqlens_q is None else seqlens_q[b],
                               None if seqlens_k is None else seqlens_k[b])
        one = slice(b, b + 1)
        here = {name: x[one] if name == "mask" and x is not None and x.ndim == 4 and x.shape[0] > 1 else x
                for name, x in bias.items()}
        if here.get("alibi") is not None and here["alibi"].ndim == 2 and here["alibi"].shape[0] > 1:
            here["alibi"] = here["alibi"][one]
        s, cap = biased_scores(q[one], k[one], scale, seen=seen, offset=offset, **here)
        p, lse[one], total = softmax(s, sink)
        group = hq // hk
        vs, ks = np.repeat(v[one], group, 1), np.repeat(k[one], group, 1)
        out[one] = p @ vs
        if dout is None:
            continue
        do = wide(dout)[one]
        row = (do * out[one]).sum(-1)
        ds = p * (do @ vs.swapaxes(-1, -2) - row[..., None])
        if dlse is not None:
            with np.errstate(invalid="ignore"):
                shares = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isinf(lse[one]), 0.0, lse[one])[..., None]))
            ds = ds + wide(dlse)[one][..., None] * shares
        grads["ds"][one] = ds
        distance = np.arange(sk)[None, :] - (np.arange(sq)[:, None] + offset)
        form = distance if bias.get("alibi_form", "linear") == "linear" else -abs(distance)
        grads["dalibi"][one] = (ds * form).sum((-1, -2))
        if sink is not None:
            inside = seen.any(-1) | (np.arange(sq) < (sq if seqlens_q is None else seqlens_q[b]))
            with np.errstate(invalid="ignore"):
                p_sink = np.where(inside, np.exp(wide(sink)[:, None] - total), 0.0)
            grads["dsink"] -= (p_sink * row).sum(-1)[0]
        ds = ds * cap * scale
        grads["dq"][one] = ds @ ks
        grads["dk"][one] = (ds.swapaxes(-1, -2) @ q[one]).reshape(1, hk, group, sk, d).sum(2)
        grads["dv"][one] = (p.swapaxes(-1, -2) @ do).reshape(1, hk, group, sk, -1).sum(2)
    return (out, lse) if dout is None else (out, lse, grads)


def mla(q, kv, indices, *, scale=None, sink=None, causal=False, q_start=0, k_stride=1, topk_length=None, dout=None,
        dlse=None):
    """Sparse attention without a batch axis: a dict of out, lse, max_logits, dist and, with dout, dq, dkv, dsink."""
    q, kv, slots = wide(q), wide(kv)[:, 0], indices[:, 0]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    valid = (slots >= 0) & (slots < len(kv))
    if causal:
        valid &= q_start + np.arange(len(q))[:, None] + 1 >= k_stride * (slots + 1)
    if topk_length is not None:
        valid &= np.arange(slots.shape[1])[None, :] < topk_length[:, None]
    rows = kv[np.where(valid, slots, 0)]
    s = np.where(valid[:, None], scale * np.einsum("ihd,itd->iht", q, rows), -np.inf)
    p, lse, total = softmax(s)
    with np.errstate(invalid="ignore", over="ignore"):
        found = {"lse": lse, "max_logits": s.max(-1, initial=-np.inf), "dist": p.sum(1)}
        keep = 1.0 if sink is None else np.where(np.isneginf(lse), 0.0, 1 / (1 + np.exp(wide(sink) - lse)))[..., None]
    p = p * keep
    values = rows[..., :512]
    found["out"] = np.einsum("iht,itc->ihc", p, values)
    if dout is None:
        return found
    do = wide(dout)
    row = (do * found["out"]).sum(-1)
    ds = p * (np.einsum("ihc,itc->iht", do, values) - row[..., None])
    if dlse is not None:
        ds = ds + wide(dlse)[..., None] * p
    ds *= scale
    found["dq"] = np.einsum("iht,itd->ihd", ds, rows)
    part = np.einsum("iht,ihd->itd", ds, q)
    part[..., :512] += np.einsum("iht,ihc->itc", p, do)
    found["dkv"] = np.zeros_like(kv)
    np.add.at(found["dkv"], slots[valid], part[valid])
    found["dkv"] = found["dkv"][:, None]
    if sink is not None:
        with np.errstate(invalid="ignore"):
            p_sink = np.where(np.isneginf(lse), 1.0, 1 / (1 + np.exp(lse - wide(sink))))
        found["dsink"] = -(p_sink * row).sum(0)
    return found
