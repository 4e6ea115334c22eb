# SPDX-License-Identifier: MIT
"""libattn for PyTorch: operators with autograd that torch.compile sees through, on tensors of the CPU and of CUDA devices.

    from libattn.torch import scaled_dot_product_attention, routed
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    with routed():                              # torch.nn.functional.scaled_dot_product_attention goes to libattn
        model(x)

Importing this module imports torch.
"""
from ._functional import dist, merge, mla, mla_join, routed, scaled_dot_product_attention, sdpa

__all__ = ["dist", "merge", "mla", "mla_join", "routed", "scaled_dot_product_attention", "sdpa"]
