# SPDX-License-Identifier: MIT
"""The formulas of docs/semantics.md in plain torch, double precision, whole matrices, with torch's own autograd."""

import torch


def visible(sq, sk, device, causal=False, bottom_right=False, window=(None, None)):
    """[SQ,SK], true where rule 5 lets query i see key j, and the distance of each key from the diagonal."""
    distance = (
        torch.arange(sk, device=device) - torch.arange(sq, device=device)[:, None] - (sk - sq if bottom_right else 0)
    )
    left, right = window
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        seen = seen & (distance >= -left)
    if causal or right is not None:
        seen = seen & (distance <= (0 if causal else right))
    return seen, distance


def softmax(s, sink=None):
    """P and lse without the sink; a row without keys has P of 0 and gradients of 0."""
    empty = s.isneginf().all(-1, keepdim=True)
    safe = s.masked_fill(empty, 0.0)
    lse = safe.logsumexp(-1, keepdim=True)
    total = lse if sink is None else torch.logaddexp(lse, sink.double()[:, None, None])
    return (safe - total).exp().masked_fill(empty | s.isneginf(), 0.0), lse.masked_fill(empty, float("-inf")).squeeze(
        -1
    )


def sdpa(
    q,
    k,
    v,
    *,
    scale=None,
    softcap=0.0,
    mask=None,
    alibi=None,
    alibi_form="linear",
    sink=None,
    seqlens_k=None,
    **diagonal,
):
    """out and lse of q [B,HQ,SQ,D], k [B,HK,SK,D], v [B,HK,SK,DV]."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.mT)
    seen, distance = visible(*s.shape[-2:], q.device, **diagonal)
    if softcap:
        s = softcap * (s / softcap).tanh()
    if alibi is not None:
        s = s + alibi.double()[:, None, None] * (distance if alibi_form == "linear" else -distance.abs())
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else s + mask.double()
    s = s.masked_fill(~seen, float("-inf"))
    if seqlens_k is not None:
        s = s.masked_fill(torch.arange(s.shape[-1], device=s.device) >= seqlens_k[:, None, None, None], float("-inf"))
    p, lse = softmax(s, sink)
    return p @ v, lse


def mla(q, kv, indices, *, scale=None, sink=None, topk_length=None):
    """out, lse, dist and max_logits of q [SQ,HQ,D], kv [SK,1,D], indices [SQ,1,TOPK]."""
    q, kv, slots = q.double(), kv.double()[:, 0], indices[:, 0].long()
    valid = (slots >= 0) & (slots < len(kv))
    if topk_length is not None:
        valid &= torch.arange(slots.shape[1], device=q.device) < topk_length[:, None]
    rows = kv[slots.where(valid, 0)]
    s = (q.shape[-1] ** -0.5 if scale is None else scale) * torch.einsum("ihd,itd->iht", q, rows)
    s = s.masked_fill(~valid[:, None], float("-inf"))
    p, lse = softmax(s)
    top = s.amax(-1)
    dist = p.sum(1)
    if sink is not None:
        p = p * torch.sigmoid(lse - sink.double())[..., None]
    return torch.einsum("iht,itc->ihc", p, rows[..., :512]), lse, dist, top
