# SPDX-License-Identifier: MIT
"""How long the first call on a device takes in a fresh process, with and without the driver's cache of compiled PTX."""

import json
import os
import subprocess
import sys

from record import check

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "first_call.py")


def times(case, op, **environment):
    done = subprocess.run(
        [sys.executable, PROGRAM, str(case.device), op],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    case.must(done.returncode == 0, done.stderr[-1500:])
    return json.loads(done.stdout)


def record(case, label, op, **environment):
    for name, ms in times(case, op, **environment).items():
        case.measured[f"{label}: ms of {name}"] = ms


@check
def first_call_sdpa(case):
    if case.cuda:
        record(case, "without the driver's cache", "sdpa", CUDA_CACHE_DISABLE="1")
    times(case, "sdpa")
    record(case, "again", "sdpa")


@check
def first_call_mla(case):
    if case.cuda:
        record(case, "without the driver's cache", "mla", CUDA_CACHE_DISABLE="1")
    times(case, "mla")
    record(case, "again", "mla")
