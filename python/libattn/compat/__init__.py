# SPDX-License-Identifier: MIT
"""Published interfaces of other libraries, served by libattn.

    import libattn.compat
    libattn.compat.install("flash_attn")        # or "flash_attn_interface", "flash_mla", "cudnn"
    from flash_attn import flash_attn_func

The wheel owns no name but libattn: theirs exist in a process only after install(). What libattn lacks raises
libattn.UnsupportedError, what an interface accepts and libattn would ignore does, too.
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
    "flash_mla": ("flash_mla", ("flash_mla_interface",)),
    "cudnn": ("cudnn", ("deepseek_sparse_attention",)),
}


def install(name: str) -> types.ModuleType:
    """Make `import name` give libattn's version; refused where the real one is installed."""
    if name not in _MODULES:
        raise ValueError(f"{name} is not served; expected one of {', '.join(_MODULES)}")
    ours, submodules = _MODULES[name]
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__libattn__", False):
        return present
    if present is not None or importlib.util.find_spec(name) is not None:
        raise ImportError(f"{name} is installed here: libattn does not replace it")
    source = importlib.import_module(f"{__name__}.{ours}")
    made = types.ModuleType(name, source.__doc__)
    made.__dict__.update({key: getattr(source, key) for key in source.__all__}, __libattn__=True, __path__=[],
                         __version__="libattn")
    sys.modules[name] = made
    for part in submodules:
        sys.modules[f"{name}.{part}"] = made
        setattr(made, part, made)
    return made
