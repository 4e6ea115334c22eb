# SPDX-License-Identifier: MIT
"""What the tests of libattn.compat share: install() for one test, data, and the formulas in FlashAttention's conventions."""
import sys

import formulas
import libattn.compat
import numpy as np
import pytest
import torch


@pytest.fixture
def published():
    """install() for one test; the names are taken away again."""
    def get(name):
        return libattn.compat.install(name)

    before = set(sys.modules)
    yield get
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flash_attn", "flash_attn_interface", "flash_mla", "flash_mla_bwd", "cudnn"):
            del sys.modules[name]


def rows(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def expected(q, k, v, **options):
    """The formulas on [B,S,H,D] tensors, diagonal at the bottom right."""
    out, lse = formulas.sdpa(*(x.detach().numpy().transpose(0, 2, 1, 3) for x in (q, k, v)), bottom_right=True, **options)
    return out.transpose(0, 2, 1, 3), np.where(np.isneginf(lse), np.inf, lse)
