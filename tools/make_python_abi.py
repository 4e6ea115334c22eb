#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes python/libattn/_abi.py, the ctypes binding, from include/attn.h: constants, structs, functions.

usage: tools/make_python_abi.py [--check] [compiler]
--check writes nothing: it fails if the file is not what the header gives, or if ctypes lays a struct out in another way
than the C compiler does (part of make lint). Names come from the header's text, values and offsets from the compiler.
"""
import ctypes
import importlib.util
import os
import re
import sys

import abi_layout

OUT = os.path.join(abi_layout.ROOT, "python", "libattn", "_abi.py")
SCALARS = {"int32_t": "I32", "int64_t": "I64", "uint32_t": "U32", "uint64_t": "U64", "size_t": "SIZE", "double": "F64",
           "int": "INT", "char": "CHAR", "attn_status": "I32"}
CALLBACKS = ("attn_log_fn", "attn_alloc_fn", "attn_free_fn", "attn_submit_fn", "attn_wait_fn", "attn_task_fn")  # passed as addresses
HEAD = '''# SPDX-License-Identifier: MIT
"""The C interface of libattn as ctypes sees it. Made from include/attn.h by tools/make_python_abi.py: do not edit."""
import ctypes
from typing import Any

I32, I64, U32, U64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
F64, SIZE, INT, CHAR = ctypes.c_double, ctypes.c_size_t, ctypes.c_int, ctypes.c_char
PTR, TEXT, P = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER
'''


def ctype(words, stars, struct_names, pointee):
    """Name of the ctypes type of a C type: `words` without const, `stars` pointer levels.
    Pointers to structs are typed where `pointee` says so, else plain addresses (faster to fill in)."""
    base = words[-1]
    if stars == 0:
        if base in CALLBACKS:
            return "PTR"
        return SCALARS.get(base) or (base if base in struct_names else sys.exit(f"unknown type {' '.join(words)}"))
    if stars == 1 and base == "char":
        return "TEXT"
    if stars == 1 and base in struct_names and pointee:
        return f"P({base})"
    if stars == 1 and base in SCALARS and pointee and base != "char":
        return f"P({SCALARS[base]})"
    return "P(PTR)" if stars == 2 and pointee else "PTR"


def split_type(text):
    words = [w for w in re.findall(r"\w+", text) if w not in ("const", "struct")]
    return words, text.count("*")


def members(body, struct_names, extents):
    """[(name, ctypes expression)] of a struct's body."""
    fields = []
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        first, *rest = declaration.split(",")
        words, _ = split_type(re.sub(r"\[[^\]]*\]", "", first))
        base = words[:-1]
        for part in [first, *rest]:
            name = re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", part))[-1]
            kind = ctype(base, part.count("*"), struct_names, False)
            size = re.search(r"\[(\w+)\]", part)
            fields.append((name, f"{kind} * {extents.get(size[1], size[1])}" if size else kind))
    return fields


def functions(text, struct_names):
    """[(name, result, [arguments])] in the header's order."""
    found = []
    for result, name, arguments in re.findall(r"ATTN_API\s+([^;{(]*?)\b(attn_\w+)\s*\(([^)]*)\)\s*;", text):
        words, stars = split_type(result)
        returns = "None" if words == ["void"] and not stars else ctype(words, stars, struct_names, False)
        kinds = []
        for argument in (a.strip() for a in arguments.split(",")):
            if argument == "void":
                continue
            kind, stars = split_type(argument)
            if len(kind) > 1:  # the last word is the parameter's name
                kind = kind[:-1]
            kinds.append(ctype(kind, stars, struct_names, True))
        found.append((name, returns, kinds))
    return found


def binding(compiler):
    text = abi_layout.plain_text()
    bodies = re.findall(r"typedef struct (attn_\w+)\s*\{(.*?)\}\s*\1\s*;", text, re.S)
    struct_names = {name for name, _ in bodies}
    measured = abi_layout.layout(text, compiler).splitlines()
    values = dict(line.split() for line in measured if line.startswith("ATTN_"))
    lines = [HEAD]
    lines += [f"{name} = {value}" for name, value in values.items()]
    roles = None
    for name, body in bodies:
        fields = members(body, struct_names, values)
        lines += ["", "", f"class {name}(ctypes.Structure):", "    _fields_ = ["]
        lines += [f'        ("{field}", {kind}),' for field, kind in fields]
        lines += ["    ]"]
        if name == "attn_args":
            roles = [field for field, kind in fields if kind == "PTR" and field not in ("workspace", "stream")]
    lines += ["", "", "# Members of attn_args that name tensors.", "ROLES = ("]
    lines += [f'    "{role}",' for role in roles or sys.exit("attn_args is not found")]
    lines += [")", "", "# Function: type of the result, types of the arguments.",
              "FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    found = functions(text, struct_names)
    missing = set(abi_layout.functions(text)) - {name for name, _, _ in found}
    if missing:
        sys.exit(f"cannot read the declaration of {', '.join(sorted(missing))}")
    for name, returns, kinds in found:
        lines.append(f'    "{name}": ({returns}, [{", ".join(kinds)}]),')
    lines += ["}", "", f"VERSION = ({', '.join(re.findall(r'#define ATTN_VERSION_[A-Z]+ +([0-9]+)', text))})", ""]
    return "\n".join(lines), measured


def differing_layout(measured):
    """Lines of the compiler's layout that the committed module's structs do not have."""
    spec = importlib.util.spec_from_file_location("libattn_abi", OUT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    faults = []
    for line in measured:
        words = line.split()
        name, _, member = words[0].partition(".")
        struct = getattr(module, name)
        if isinstance(struct, int):
            same = struct == int(words[1])
        elif member:
            field = getattr(struct, member)
            same = (field.offset, field.size) == (int(words[2]), int(words[4]))
        else:
            same = (ctypes.sizeof(struct), ctypes.alignment(struct)) == (int(words[2]), int(words[4]))
        faults += [] if same else [line]
    return faults


def main():
    words = [w for w in sys.argv[1:] if w != "--check"]
    text, measured = binding(words[0] if words else os.environ.get("CC", "cc"))
    if "--check" not in sys.argv[1:]:
        with open(OUT, "w", encoding="utf-8") as f:
            f.write(text)
    with open(OUT, encoding="utf-8") as f:
        if f.read() != text:
            sys.exit("python/libattn/_abi.py is not what include/attn.h gives: run tools/make_python_abi.py")
    faults = differing_layout(measured)
    for line in faults:
        print(f"ctypes differs from the compiler: {line}")
    print(f"python binding: {len(measured)} lines of layout compared, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
