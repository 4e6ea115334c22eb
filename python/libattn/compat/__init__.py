# SPDX-License-Identifier: MIT
"""Published interfaces of other libraries, served by libattn.

    import libattn.compat
    libattn.compat.install("flash_attn")        # or "flash_attn_interface", "flash_attn.cute", "flash_mla", "flash_mla_bwd", "cudnn"
    from flash_attn import flash_attn_func

The wheel owns no name but libattn: theirs exist in a process only after install(). What libattn lacks raises
libattn.UnsupportedError, what an interface accepts and libattn would ignore does, too.

Functions that are published in example files, without a package, are modules here: tilelang_v32, tilelang_packed, deepseek_v4.
"""
from __future__ import annotations

import importlib
import importlib.util
import sys
import types

# Published module: our module, and submodules under which it is imported, too.
_MODULES = {
    "flash_attn": ("flash_attn_2", ("flash_attn_interface",)),
    "flash_attn_interface": ("flash_attn_3", ()),
    "flash_attn.cute": ("flash_attn_4", ("interface",)),
    "flash_mla": ("flash_mla", ("flash_mla_interface",)),
    "flash_mla_bwd": ("flash_mla_bwd", ()),
    "cudnn": ("cudnn", ("deepseek_sparse_attention",)),
}


def install(name: str) -> types.ModuleType:
    """Make `import name` give libattn's version; refused where the real one is installed."""
    if name not in _MODULES:
        raise ValueError(f"{name} is not served; expected one of {', '.join(_MODULES)}")
    ours, submodules = _MODULES[name]
    present = sys.modules.get(name)
    state = getattr(present, "__libattn__", None)
    if present is not None and state == "served":
        return present
    if state != "package" and (present is not None or _found(name)):
        raise ImportError(f"{name} is installed here: libattn does not replace it")
    made = present or types.ModuleType(name)
    source = importlib.import_module(f"{__name__}.{ours}")
    made.__dict__.update({key: getattr(source, key) for key in source.__all__}, __libattn__="served", __path__=[],
                         __version__="libattn", __doc__=source.__doc__)
    package, _, last = name.rpartition(".")
    if package:  # beside what is there, the real package or ours
        if package not in sys.modules and not _found(package):
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__dict__.update(__libattn__="package", __path__=[])
        setattr(importlib.import_module(package), last, made)
    sys.modules[name] = made
    for part in submodules:
        sys.modules[f"{name}.{part}"] = made
        setattr(made, part, made)
    return made


def _found(name: str) -> bool:
    """Is there a real module of this name?"""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False
    except ValueError:  # a module of this process without a specification: ours
        return False
