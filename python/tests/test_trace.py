# SPDX-License-Identifier: MIT
"""Recording of what a program asks of the library: the table, the picture, the environment variable."""
import json

import libattn
import numpy as np
import pytest
from libattn import _engine, _library
from support import Data
from test_calls import run_python

Q, K, V = Data("f32").qkv(sq=40, sk=48)


def test_a_recording_counts_problems_with_their_kernels():
    outside = libattn.sdpa(Q, K, V)
    context = _library.context()
    with libattn.recording() as trace:
        for _ in range(3):
            out, lse = libattn.sdpa(Q, K, V, causal=True, return_lse=True)
        libattn.sdpa_backward(out, Q, K, V, out, lse, causal=True)
        assert _library.context() != context and np.array_equal(libattn.sdpa(Q, K, V), outside)
    assert _library.context() == context
    libattn.sdpa(Q, K, V, causal=True)  # not recorded
    found = {x.problem: x for x in trace.problems}
    text = "b=2 hq=4 hk=2 sq=40 sk=48 d=16 f32"
    assert {name: x.calls for name, x in found.items()} == {f"sdpa_fwd {text} causal": 3, f"sdpa_bwd {text} causal": 1,
                                                            f"sdpa_fwd {text}": 1}
    assert trace.plans == 3 and trace.plan_seconds > 0
    for name, x in found.items():
        plan = libattn.plan(name)
        assert x.kernel == plan.kernel and x.flops == plan.flops and x.bytes > 0 and 0 < x.median <= x.seconds
    assert [x.seconds for x in trace.problems] == sorted((x.seconds for x in found.values()), reverse=True)
    lines = str(trace).splitlines()
    assert len(lines) == 5 and lines[-1].startswith("5 executions in") and "3 plans" in lines[-1]
    assert any(found[f"sdpa_fwd {text} causal"].kernel in line and line.split()[0] == "3" for line in lines)


def test_recordings_end_after_an_exception():
    context = _library.context()
    with pytest.raises(ZeroDivisionError), libattn.recording() as trace:
        libattn.sdpa(Q, K, V)
        1 / 0
    assert _library.context() == context and [x.calls for x in trace.problems] == [1]
    with pytest.raises(libattn.AttnError), libattn.recording("/nonexistent/trace"):
        pass
    assert _library.context() == context


def test_the_environment_variable(tmp_path):
    path = tmp_path / "trace.json"
    program = "import libattn, numpy as np; q = np.ones((1, 1, 8, 16), np.float32); libattn.sdpa(q, q, q)"
    for _ in range(2):
        found = run_python(program, ATTN_TRACE=str(path))
        assert found.returncode == 0, found.stderr
    trace = libattn.read_trace(path)
    assert [x.calls for x in trace.problems] == [2] and trace.plans == 2
    with libattn.recording(path) as more:  # a file that is there is continued, its older events are not this recording's
        libattn.sdpa(Q, K, V)
    assert [x.calls for x in more.problems] == [1] and len(libattn.read_trace(path).problems) == 2
    _engine.clear_cache()


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    with libattn.recording() as trace:
        libattn.sdpa(Q, K, V)
    records = tmp_path / "bench.jsonl"
    records.write_text("\n".join(json.dumps(x) for x in (
        {"impl": "attn", "problem": "p", "measure": "execution", "tflops": 2.0, "gbps": 100.0},
        {"impl": "attn", "problem": "p", "measure": "plan_create", "tflops": None, "gbps": None})))
    for words in ({}, {"bench": records}):
        figure = trace.figure(tmp_path / "trace.png", **words)
        times, rates = figure.axes
        assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
        assert trace.problems[0].problem in times.texts[0].get_text() and len(times.patches) == 1
        drawn = [tuple(x.get_offsets()[0]) for x in rates.collections]
        one = trace.problems[0]
        assert drawn[0] == pytest.approx((one.flops / one.bytes, one.flops / one.median / 1e12))
        assert drawn[1:] == ([(20.0, 2.0)] if words else [])
    libattn.Trace().figure()  # nothing recorded
