# SPDX-License-Identifier: MIT
"""Before a test file is imported: the published names, and what it imports of its own checkout beside them."""

from __future__ import annotations

import os
import sys
import types

from selection import SUITES


def absent(name):
    """What a test file imports and the published module here lacks: refused when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args, **words):
        from libattn import _abi, _errors

        raise _errors.error(_abi.ATTN_E_FEATURE, f"{name} is not served by libattn", name)

    return call


def prepare():
    """The suite of this process, its checkout, the device."""
    suite, checkout, device = (os.environ[f"PEERS_{name}"] for name in ("SUITE", "CHECKOUT", "DEVICE"))
    suite = SUITES[suite]
    if device == "cpu":
        import on_cpu

        on_cpu.install()
    import libattn.compat

    made = {name: libattn.compat.install(name) for name in suite.published}
    for name, module in made.items():
        folder = os.path.join(checkout, *name.split("."))
        if os.path.isdir(folder):  # helpers of the test files, padding say, are the checkout's
            module.__path__ = [folder]
        module.__dict__.update(suite.constants, __getattr__=absent)
    for name, members in suite.stubs.items():  # modules of the checkout that want its compiler
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(dict.fromkeys(members, object))
    sys.path[:0] = [os.path.join(checkout, path) for path in suite.paths]
    return suite, checkout, device
