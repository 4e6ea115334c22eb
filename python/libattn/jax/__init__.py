# SPDX-License-Identifier: MIT
"""libattn for JAX: calls of XLA's foreign function interface on CPU and CUDA, with jit, grad and vmap.

    from libattn.jax import sdpa
    out = jax.jit(lambda q, k, v: sdpa(q, k, v, causal=True))(q, k, v)

Importing this module imports jax.
"""
from ._operators import dist, dot_product_attention, mla, mla_join, sdpa

__all__ = ["dist", "dot_product_attention", "mla", "mla_join", "sdpa"]
