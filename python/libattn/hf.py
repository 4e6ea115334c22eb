# SPDX-License-Identifier: MIT
"""libattn for transformers: attn_implementation="libattn".

    import libattn.hf
    libattn.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="libattn")

Both of transformers' interfaces are registered. Without a mask function an implementation gets no mask, and padding and
windows vanish; this one gets the boolean masks that "sdpa" gets, or none where is_causal says it all.
"""
from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from . import _abi
from ._errors import error
from .torch import sdpa


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
              is_causal: bool | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
              **others: Any) -> tuple[torch.Tensor, None]:
    """Attention of one layer: query [B,HQ,SQ,D], key and value [B,HK,SK,D]; returns [B,SQ,HQ,D] and no weights.

    s_aux are sinks, one logit a head; a window is in the mask.
    """
    if dropout:
        raise error(_abi.ATTN_E_FEATURE, f"dropout is {dropout}: libattn has no dropout; set attention_dropout to 0", "dropout")
    if others.get("output_attentions"):
        raise error(_abi.ATTN_E_FEATURE, "output_attentions: libattn keeps no attention weights", "output_attentions")
    if others.get("position_bias") is not None:
        raise error(_abi.ATTN_E_FEATURE, "position_bias is not served: use eager for this model", "position_bias")
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap or 0.0}
    if s_aux is not None:
        options["sink"] = s_aux.float()
    if attention_mask is not None:
        options["mask"] = attention_mask[..., :key.shape[-2]]
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options["causal"] = bool(causal) and query.shape[-2] > 1
    return sdpa(query, key, value, **options).transpose(1, 2).contiguous(), None


def register(name: str = "libattn") -> None:
    """Make attn_implementation=name known to transformers."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
