#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails on any #include that docs/architecture.md does not allow: between rooms, of third-party and of system headers; and on
imports of the Python package that PYTHON below does not allow.

It reads text, not the preprocessor's output: an include under #if counts like any other.
usage: tools/check_edges.py [root]
"""
import ast
import os
import re
import sys

ROOT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
PUBLIC = {"attn.h", "attn_dlpack.h"}

# Room -> rooms it may include from (itself is implied). "any" = every room.
EDGES = {
    "include": set(),
    "src/base": {"include"},
    "src/core": {"include", "src/base"},
    # The CPU's rooms, ground floor first: vector layers, microkernels, fused microkernels on tiles, operators.
    "src/cpu/vec": {"include"},
    "src/cpu/ukr": {"include", "src/base", "src/cpu/vec"},
    "src/cpu/amx": {"include", "src/cpu/ukr", "src/cpu/vec"},
    "src/cpu/host": {"include", "src/base", "src/core"},
    "src/cpu/ref": {"include", "src/base", "src/core", "src/cpu/host"},
    "src/cpu/dense": {"include", "src/base", "src/core", "src/cpu/host", "src/cpu/ukr", "src/cpu/vec", "src/cpu/ref"},
    "src/cpu/sparse": {"include", "src/base", "src/core", "src/cpu/host", "src/cpu/ukr", "src/cpu/vec"},
    "src/cpu": {"include", "src/base", "src/core"},
    "src/cuda/backend": {"include", "src/base", "src/core", "kernels/params"},
    "src/cuda/dense": {"include", "src/base", "src/core", "src/cuda/backend", "kernels/params", "kernels/variants"},
    "src/cuda/sparse": {"include", "src/base", "src/core", "src/cuda/backend", "src/cuda/dense", "kernels/params",
                        "kernels/variants"},
    "src/cuda": {"include", "src/base", "src/core", "kernels", "kernels/variants"},
    "src/api": {"include", "src/base", "src/core", "src/cpu/host", "src/cuda", "src/cuda/backend"},
    "kernels": set(),
    "kernels/params": set(),  # shared with the host, so it sees neither side
    "kernels/variants": set(),
    "kernels/device": {"kernels/params"},
    **{f"kernels/{arch}": {"kernels/params", "kernels/device", "kernels/variants"} for arch in ("sm80", "sm90", "sm100", "smxx")},
    "sim": set(),
    "sim/runtime": set(),  # the CUDA runtime, over the driver's binary interface alone
    "sim/command": set(),
    "cli/shared": {"include"},
    "cli/io": {"include"},
    "cli/commands": {"include", "cli/io", "cli/shared"},
    "cli/bench": {"include", "cli/io", "cli/shared"},
    "cli/check": {"include", "cli/shared"},
    "cli": {"include", "cli/shared"},
    "bench": {"include"},
    "examples": {"include"},
    "python": {"include"},
    "tests/consumer": {"include"},
    "tests": {"any"},
    "tools": {"include"},
    "cmake": {"src/cuda/backend"},  # programs of the build
}
# The simulator's rooms, ground floor first. A header includes headers of rooms before its own alone, so that what a room
# declares never depends on the rooms above. Sources also call rooms above theirs: the pairs that do are listed, and the
# list is to become shorter.
SIM_ROOMS = ["ptx", "machine", "decode", "checks", "counts", "exec", "units", "driver"]
SIM_UPWARD_HEADERS = {"sim/machine/address.h"}  # of exec by its content
SIM_CALLS = {
    "machine": {"checks", "counts", "exec", "units"},  # the scheduler runs handlers and tells checks what happened
    "decode": {"checks", "exec", "units"},             # tables of handlers
    "checks": {"exec", "units", "driver"},             # state of units, the driver's error numbers
    "counts": {"units"},
    "exec": {"units"},
}
# The only file that may see both backends.
BOTH_BACKENDS = {"src/api/kernel_list.c"}

C_STD = set("""assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h iso646.h limits.h locale.h math.h setjmp.h
signal.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h tgmath.h
threads.h time.h uchar.h wchar.h wctype.h""".split())
POSIX = set("""dirent.h fcntl.h pthread.h sched.h strings.h sys/mman.h sys/stat.h sys/types.h sys/wait.h sys/time.h
sys/resource.h unistd.h sys/ioctl.h sys/uio.h poll.h""".split())
SIMD = {"immintrin.h", "xmmintrin.h", "cpuid.h", "arm_neon.h"}
LINUX = {"sys/syscall.h", "linux/futex.h", "sys/auxv.h", "sys/prctl.h"}
SYSTEM = {
    "include": {"stddef.h", "stdint.h"},
    "src/base": C_STD | POSIX | {"xmmintrin.h"},
    "src/core": C_STD | POSIX,
    **{room: C_STD | POSIX | SIMD | LINUX for room in EDGES if room.startswith("src/cpu")},
    **{room: C_STD | POSIX | {"dlfcn.h"} for room in EDGES if room.startswith("src/cuda")},
    "src/api": C_STD | POSIX | {"sys/syscall.h"},
    **{room: {"stdint.h", "stddef.h"} for room in EDGES if room.startswith("kernels")},
    "sim": C_STD | POSIX | {"dlfcn.h", "zstd.h"},
    "sim/runtime": C_STD | POSIX,
    "sim/command": C_STD | POSIX | {"elf.h"},
    **{room: C_STD | POSIX | {"jansson.h", "cairo.h", "getopt.h", "sys/utsname.h", "dlfcn.h"}
       for room in EDGES if room.startswith("cli/")},
    "cli": C_STD | POSIX | {"jansson.h", "cairo.h", "getopt.h", "sys/utsname.h", "dlfcn.h"},
    "bench": C_STD | POSIX | {"dlfcn.h"},
    "examples": C_STD | POSIX,
    "python": C_STD | POSIX | {"dlfcn.h"},
    "tools": C_STD | POSIX,
    "cmake": C_STD,
}


def room_of(path):
    """Longest known room that holds the file, or None."""
    best = None
    for room in EDGES:
        if path.startswith(room + "/") and (best is None or len(room) > len(best)):
            best = room
    return best


def resolve(path, name):
    """File that a quoted include means: beside the includer, under src, include or the includer's room, else None."""
    room = room_of(path) or ""
    top = path.split("/", 1)[0]
    folders = [os.path.dirname(path), "include", room, top]
    if top in ("src", "tests", "kernels", "cmake"):
        folders.append("src")
    if top == "tests":
        folders.append("cli")
    if top in ("kernels", "src") or path.startswith("tests/sim/"):  # device code of tests
        folders.append(".")
    for folder in folders:
        at = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(ROOT, at)):
            return at
    return None


# Packages that the Python modules may import beside the standard library's; NumPy is what the wheel depends on.
PYTHON = {
    "python/libattn": {"numpy", "ml_dtypes", "typing_extensions"},
    "python/libattn/torch": {"torch"},
    "python/libattn/_trace_figure.py": {"matplotlib"},
    "python/libattn/jax": {"jax", "numpy"},
    "python/libattn/hf.py": {"torch", "transformers"},
    "python/libattn/compat": {"torch"},
}


def python_faults():
    """Imports that PYTHON does not allow: torch for everybody, say."""
    faults = []
    for folder, _, names in os.walk(os.path.join(ROOT, "python", "libattn")):
        for name in sorted(n for n in names if n.endswith(".py")):
            path = os.path.relpath(os.path.join(folder, name), ROOT)
            allowed = PYTHON.get(path) or PYTHON[os.path.dirname(path)]
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                tree = ast.parse(f.read())
            for node in ast.walk(tree):
                modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    modules = [node.module]
                faults += [f"{path}:{node.lineno}: import of {module} is not for this file" for module in modules
                           if module.split(".")[0] not in allowed | sys.stdlib_module_names]
    return faults


def sim_fault(path, to):
    """Why a file of the simulator may not include another of it, or None. New rooms beside these have EDGES."""
    rooms = [p.split("/")[1] for p in (path, to) if p.startswith("sim/") and p.count("/") == 2]
    if len(rooms) < 2 or rooms[0] == rooms[1] or any(room not in SIM_ROOMS for room in rooms):
        return None
    if SIM_ROOMS.index(rooms[1]) < SIM_ROOMS.index(rooms[0]):
        return None
    if path.endswith(".h") and path not in SIM_UPWARD_HEADERS:
        return f"a header of sim/{rooms[0]} must not include sim/{rooms[1]}, which is above it ({to})"
    if rooms[1] not in SIM_CALLS.get(rooms[0], set()):
        return f"sim/{rooms[0]} does not call sim/{rooms[1]} ({to})"
    return None


def main():
    faults = python_faults()
    graph = {}
    n_files = n_includes = 0
    for top in sorted({room.split("/")[0] for room in EDGES}):
        for folder, folders, names in os.walk(os.path.join(ROOT, top)):
            folders[:] = [f for f in folders if f not in ("build", "__pycache__", "corpus")]
            for name in sorted(names):
                if not re.search(r"\.(c|h|cc|cpp|cu|cuh|inc|def)$", name):
                    continue
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                room = room_of(path)
                if room is None:
                    faults.append(f"{path}: belongs to no room of the architecture")
                    continue
                n_files += 1
                seen = set()
                with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
                    lines = f.read().splitlines()
                for number, line in enumerate(lines, 1):
                    m = INCLUDE.match(line)
                    if not m:
                        if re.match(r"\s*#\s*include\b", line) and not line.rstrip().endswith("_FILE"):
                            faults.append(f"{path}:{number}: computed include")
                        continue
                    n_includes += 1
                    kind, target = m.groups()
                    here = f"{path}:{number}"
                    if kind == "<":
                        if target in PUBLIC and room not in ("examples", "tests/consumer"):
                            faults.append(f"{here}: write \"{target}\", not <{target}>")
                        elif target not in PUBLIC and room in SYSTEM and target not in SYSTEM[room]:
                            faults.append(f"{here}: <{target}> is not for {room}")
                        continue
                    at = resolve(path, target)
                    if at is None:
                        faults.append(f"{here}: \"{target}\" is found nowhere that {room} may look")
                        continue
                    graph.setdefault(path, []).append(at)
                    to = room_of(at)
                    seen.add(to)
                    fault = sim_fault(path, at)
                    if fault:
                        faults.append(f"{here}: {fault}")
                    allowed = EDGES[room]
                    if to != room and to not in allowed and "any" not in allowed:
                        faults.append(f"{here}: {room} must not include {to} ({at})")
                if {"src/cpu", "src/cuda"} <= {re.sub(r"^(src/c\w+)/.*", r"\1", r) for r in seen} and path not in BOTH_BACKENDS and not path.startswith("tests/"):
                    faults.append(f"{path}: only {', '.join(sorted(BOTH_BACKENDS))} may see both backends")
    faults += cycles(graph)
    for fault in faults:
        print(fault)
    print(f"edges: {n_files} files, {n_includes} includes, {len(faults)} faults")
    return 1 if faults else 0


def cycles(graph):
    """Headers that include each other in a ring."""
    found, done = [], set()
    for start in graph:
        if start in done:
            continue
        stack, on_path = [(start, iter(graph.get(start, ())))], [start]
        while stack:
            node, rest = stack[-1]
            for nxt in rest:
                if nxt in on_path:
                    found.append("ring of includes: " + " -> ".join(on_path[on_path.index(nxt):] + [nxt]))
                elif nxt not in done:
                    stack.append((nxt, iter(graph.get(nxt, ()))))
                    on_path.append(nxt)
                    break
            else:
                done.add(node)
                stack.pop()
                on_path.pop()
    return found


if __name__ == "__main__":
    sys.exit(main())
