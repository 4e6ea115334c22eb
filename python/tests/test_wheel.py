# SPDX-License-Identifier: MIT
"""tools/check_wheel.py on wheels made for it, and on that of build/wheel where there is one."""
import pathlib
import struct
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_wheel.py"
NAME = "libattn-0.1.0-py3-none-manylinux_2_28_x86_64.whl"


def fatbin(*entries):
    """Entries (kind, architecture) as nvcc lays them out, with 8 bytes of data each."""
    body = b"".join(struct.pack("<HHIQ", kind, 0x101, 64, 8) + bytes(12) + struct.pack("<I", arch) + bytes(32 + 8)
                    for kind, arch in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def make(folder, name=NAME, glibc="2.17", extra=(), entries=((2, 80), (2, 90), (1, 80))):
    path = folder / name
    library = b"\x7fELF" + f"\0GLIBC_2.2.5\0GLIBC_{glibc}\0".encode() + b"\0" * 8 + fatbin(*entries) + fatbin((2, 100), (1, 100))
    with zipfile.ZipFile(path, "w") as wheel:
        for inside in ("libattn/__init__.py", "libattn-0.1.0.dist-info/WHEEL", *extra):
            wheel.writestr(inside, "")
        wheel.writestr("libattn/libattn.so", library)
    return path


def run(path, *words):
    done = subprocess.run([sys.executable, TOOL, path, *words], capture_output=True, text=True, check=False, env={"PATH": ""})
    return done.returncode, done.stdout + done.stderr


def test_a_right_wheel(tmp_path):
    status, text = run(make(tmp_path), "--code", "80", "90", "100")
    assert (status, "0 faults" in text) == (0, True), text
    assert "PTX of 2 kernels; machine code: sm_80 1, sm_90 1, sm_100 1" in text


@pytest.mark.parametrize("words, options, fault", [
    ({"glibc": "2.34"}, (), "asks for glibc 2.34, the tag promises 2.28"),
    ({"name": "libattn-0.1.0-py3-none-linux_x86_64.whl"}, (), "the tag is linux_x86_64"),
    ({"name": "libattn-0.1.0-py3-none-manylinux_2_35_x86_64.whl"}, (), "glibc 2.35 and later"),
    ({"name": "libattn-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"}, (), "the name is not"),
    ({"extra": ("flash_attn/__init__.py",)}, (), "flash_attn/__init__.py lies outside"),
    ({"entries": ((2, 80), (1, 80))}, ("--code", "90"), "no machine code of sm_90"),
    ({"entries": ((1, 80),)}, ("--code", "100"), "machine code of 1 of 2 kernels"),
], ids=["glibc", "linux", "newer", "python", "name", "code", "kernels"])
def test_faults(tmp_path, words, options, fault):
    status, text = run(make(tmp_path, **words), *options)
    assert status == 1 and fault in text and "1 faults" in text, text


def test_a_wheel_that_is_too_large(tmp_path):
    path = make(tmp_path)
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("libattn/large", bytes(40_000_001))
    status, text = run(path)
    assert status == 1 and "at most 40" in text


def test_a_wheel_of_this_system(tmp_path):
    assert run(make(tmp_path, "libattn-0.1.0-py3-none-linux_x86_64.whl", "2.40"), "--this-system")[0] == 0


def test_the_wheel_that_was_built():
    wheels = sorted((ROOT / "build" / "wheel").glob("*.whl"))
    if not wheels:
        pytest.skip("make wheel has not been run")
    done = subprocess.run([sys.executable, TOOL, wheels[-1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
