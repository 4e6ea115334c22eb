# SPDX-License-Identifier: MIT
"""Data and comparisons that the tests share."""
import numpy as np

import formulas

# Relative norm of the error that docs/semantics.md section 5 allows: forward, backward.
BOUNDS = {"f64": (1e-13, 1e-12), "f32": (4e-6, 2e-5), "f16": (2e-3, 4e-3), "bf16": (1.6e-2, 3.2e-2)}
DTYPES = tuple(BOUNDS)
NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


class Data:
    """Random arrays of one dtype; bf16 are 16-bit unsigned integers, and `words` says so to libattn."""

    def __init__(self, dtype="f32", seed=1):
        self.dtype, self.random = dtype, np.random.default_rng(seed)
        self.words = {"dtype": "bf16"} if dtype == "bf16" else {}

    def __call__(self, *shape):
        x = self.random.standard_normal(shape)
        return formulas.bf16_bits(x) if self.dtype == "bf16" else x.astype(NUMPY[self.dtype])

    def qkv(self, b=2, hq=4, hk=2, sq=20, sk=24, d=16, dv=None):
        return self(b, hq, sq, d), self(b, hk, sk, d), self(b, hk, sk, dv or d)


def assert_close(found, expected, bound):
    """The error's norm against the expected array's, and the same infinite places."""
    found, expected = formulas.wide(np.asarray(found)), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite])
    error = np.linalg.norm(found[finite] - expected[finite])
    size = np.linalg.norm(expected[finite])
    assert error <= bound * max(size, 1e-30), f"error {error / max(size, 1e-300):.2e}, bound {bound:.0e}"
