# SPDX-License-Identifier: MIT
"""Before a test file is imported: the published names, and what it imports of its own checkout beside them."""

from __future__ import annotations

import importlib
import os
import sys
import types
from unittest import mock

from selection import SUITES


def absent(name):
    """What a test file imports and the published module here lacks: refused when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args, **words):
        from libattn import _abi, _errors

        raise _errors.error(_abi.ATTN_E_FEATURE, f"{name} is not served by libattn", name)

    return call


def packages_of(name):
    """Empty packages around a module that the checkout has, so that importing it finds ours."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        sys.modules.setdefault(package, types.ModuleType(package)).__path__ = []


def stand_in_for_tilelang():
    """The compiler of the originals' kernels: names can be looked up, kernels are refused when they are called."""

    def jit(function=None, **_):
        return jit if function is None else absent(function.__name__)

    made = {name: mock.MagicMock(name=name) for name in ("tilelang", "tilelang.language", "tilelang.profiler")}
    made["tilelang"].jit = jit
    made["tilelang.profiler"].do_bench = lambda *_, **__: 1.0  # times are not taken
    sys.modules.update(made)


def prepare():
    """The suite of this process, its checkout, the device."""
    suite, checkout, device = (os.environ[f"PEERS_{name}"] for name in ("SUITE", "CHECKOUT", "DEVICE"))
    suite = SUITES[suite]
    if device == "cpu":
        import on_cpu

        on_cpu.install()
    import libattn.compat

    made = {name: libattn.compat.install(name) for name in suite.published if not name.startswith("libattn.")}
    for name, module in made.items():
        folder = os.path.join(checkout, *name.split("."))
        if os.path.isdir(folder):  # helpers of the test files, padding say, are the checkout's
            module.__path__ = [folder]
        module.__dict__.update(suite.constants, __getattr__=absent)
    for name, members in suite.stubs.items():  # modules of the checkout that want its compiler
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(dict.fromkeys(members, object))
    sys.path[:0] = [os.path.join(checkout, path) for path in suite.paths]
    if suite.tilelang:
        stand_in_for_tilelang()
    for name, ours in suite.served.items():
        source = importlib.import_module(f"libattn.compat.{ours}")
        if suite.form == "calls":  # the file has its reference beside what we serve
            module = importlib.import_module(name)
            names = [function for function in source.__all__ if hasattr(module, function)]
        else:
            packages_of(name)
            module, names = sys.modules.setdefault(name, types.ModuleType(name)), source.__all__
        module.__dict__.update({function: getattr(source, function) for function in names})
    return suite, checkout, device
