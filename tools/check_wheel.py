#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a wheel promises: at most 40 MB, no name but libattn's, a tag of glibc 2.28 or older that its libraries keep, and which
GPU code it holds. auditwheel confirms the tag where it is installed.

usage: tools/check_wheel.py WHEEL [--code 80 90 100] [--this-system]
--code: architectures that must have machine code, and every kernel must have some.   --this-system: a wheel that was not tagged for others.
"""
import argparse
import collections
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile

MOST_BYTES, OLDEST_GLIBC = 40_000_000, (2, 28)
FATBIN, KIND_PTX, KIND_CODE = b"\x50\xed\x55\xba", 1, 2
PACKED_PTX = b"attnptx\1"  # src/cuda/backend/unpack.h


def images(data):
    """Counter of (kind, architecture) of the entries of all fatbins in a library; under KIND_CODE alone, fatbins with code.
    Packed PTX, whose header does not name the architecture, counts under (KIND_PTX, 0)."""
    found = collections.Counter()
    for match in re.finditer(re.escape(PACKED_PTX), data):
        if match.start() + 24 > len(data):
            continue
        text, tokens, numbers, packed = struct.unpack_from("<IIII", data, match.end())
        # not the magic itself in the code that reads it
        found[KIND_PTX, 0] += 0 < tokens <= text < 1 << 26 and numbers < text and 0 < packed < tokens
    for match in re.finditer(re.escape(FATBIN), data):
        start = match.start()
        version, header, size = struct.unpack_from("<HHQ", data, start + 4)
        end = start + header + size
        if version != 1 or header != 16 or end > len(data):
            continue
        entry, kinds = start + header, set()
        while entry + 64 <= end:
            kind, _, bytes_of_header, bytes_of_data = struct.unpack_from("<HHIQ", data, entry)
            if kind not in (KIND_PTX, KIND_CODE):
                break
            found[kind, struct.unpack_from("<I", data, entry + 28)[0]] += 1
            kinds.add(kind)
            entry += bytes_of_header + bytes_of_data
        found[KIND_CODE] += KIND_CODE in kinds
    return found


def newest_glibc(data):
    """Newest version of the C library that a shared object asks for."""
    return max((tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+)(?:\.\d+)?\0", data)), default=(0, 0))


def tag_faults(name, libraries, this_system):
    match = re.fullmatch(r"libattn-[^-]+-py3-none-(.+)\.whl", name)
    if match is None:
        yield "the name is not libattn-VERSION-py3-none-PLATFORM.whl"
        return
    promised = re.search(r"manylinux_(\d+)_(\d+)_x86_64", match.group(1))
    if promised is None:
        if not this_system:
            yield f"the tag is {match.group(1)}, no manylinux_2_28_x86_64 or older"
        return
    oldest = tuple(map(int, promised.groups()))
    if oldest > OLDEST_GLIBC:
        yield f"the tag is for glibc {oldest[0]}.{oldest[1]} and later"
    for path, data in libraries.items():
        if newest_glibc(data) > oldest:
            yield f"{path} asks for glibc {'.'.join(map(str, newest_glibc(data)))}, the tag promises {oldest[0]}.{oldest[1]}"


def faults_of(path, code, this_system):
    """Faults in words; prints what GPU code there is."""
    size, name = os.path.getsize(path), os.path.basename(path)
    if size > MOST_BYTES:
        yield f"{size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f}"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        libraries = {x: wheel.read(x) for x in names if re.search(r"\.so(\.\d+)*$", x)}
    for x in names:
        if not re.match(r"libattn/|libattn-[^/]+\.dist-info/", x):
            yield f"{x} lies outside libattn/"
    if not any(x.startswith("libattn/libattn.so") for x in libraries):
        yield "there is no libattn/libattn.so"
    yield from tag_faults(name, libraries, this_system)
    found = sum((images(data) for data in libraries.values()), collections.Counter())
    with_code = found.pop(KIND_CODE, 0)
    ptx = sum(count for (kind, _), count in found.items() if kind == KIND_PTX)
    machine = {arch: count for (kind, arch), count in sorted(found.items()) if kind == KIND_CODE}
    words = ", ".join(f"sm_{arch} {count}" for arch, count in machine.items()) or "none"
    print(f"{name}: {size / 1e6:.1f} MB; PTX of {ptx} kernels; machine code: {words}")
    for arch in code:
        if not machine.get(arch):
            yield f"no machine code of sm_{arch}"
    if code and with_code < ptx:
        yield f"machine code of {with_code} of {ptx} kernels"


def auditwheel_faults(path):
    """What auditwheel says of the tag, where there is one."""
    tool = shutil.which("auditwheel", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
    if tool is None or "manylinux" not in path:
        return
    said = subprocess.run([tool, "show", path], capture_output=True, text=True, check=False)
    tags = re.findall(r"manylinux_(\d+)_(\d+)_x86_64", said.stdout)
    if said.returncode or not tags:
        yield f"auditwheel: {said.stdout[-300:]}{said.stderr[-300:]}"
    elif min(tuple(map(int, tag)) for tag in tags) > OLDEST_GLIBC:
        yield f"auditwheel: consistent with {said.stdout.strip()[:200]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel")
    parser.add_argument("--code", nargs="*", type=int, default=[])
    parser.add_argument("--this-system", action="store_true")
    words = parser.parse_args()
    faults = [*faults_of(words.wheel, words.code, words.this_system), *auditwheel_faults(words.wheel)]
    for fault in faults:
        print(f"{os.path.basename(words.wheel)}: {fault}")
    print(f"wheel: {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
