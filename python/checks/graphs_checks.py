# SPDX-License-Identifier: MIT
"""libattn.torch and the order of a GPU's work: current stream, CUDA graphs; memory and time that a call takes."""

from time import perf_counter

import reference
import torch
from libattn import torch as lt
from record import check


def attend(q, k, v):
    return lt.sdpa(q, k, v, causal=True)


def trained(q, k, v, dout):
    out = attend(q, k, v)
    return (out, *torch.autograd.grad(out, (q, k, v), dout))


def operands(case, rows=300, dtype=torch.bfloat16, grad=True):
    return [case.random(2, heads, rows, 64, dtype=dtype, grad=grad) for heads in (8, 2, 2)]


def right_results(q, k, v, dout):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = reference.sdpa(q, k, v, causal=True)[0]
    return (out, *torch.autograd.grad(out, (q, k, v), dout.double()))


@check
def replayed_graph(case):
    """Forward and backward captured once, replayed on new data five times."""
    case.needs_cuda()
    for rows, dtype in ((300, torch.bfloat16), (1024, torch.float16), (130, torch.float32), (40, torch.float64)):
        q, k, v = operands(case, rows, dtype)
        dout, side = case.random(*q.shape, dtype=dtype), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                trained(q, k, v, dout)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = trained(q, k, v, dout)
        for _ in range(5):
            with torch.no_grad():
                for x in (q, k, v, dout):
                    x.copy_(case.random(*x.shape, dtype=dtype))
            graph.replay()
            bound = {torch.bfloat16: 3.2e-2, torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
            for name, found, right in zip(("out", "dq", "dk", "dv"), results, right_results(q, k, v, dout)):
                case.close(f"{str(dtype)[6:]} {name}", found, right, bound)


@check
def replayed_sparse_graph(case):
    case.needs_cuda()
    q, kv = (case.random(*shape, dtype=torch.bfloat16, grad=True) for shape in ((64, 64, 576), (400, 1, 576)))
    slots = torch.randint(-3, 400, (64, 1, 128), generator=case.generator, device=case.device, dtype=torch.int32)
    dout = case.random(64, 64, 512, dtype=torch.bfloat16)

    def both():
        out = lt.mla(q, kv, slots)
        return (out, *torch.autograd.grad(out, (q, kv), dout))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = both()
    for _ in range(3):
        with torch.no_grad():
            q.copy_(case.random(*q.shape, dtype=torch.bfloat16))
            kv.copy_(case.random(*kv.shape, dtype=torch.bfloat16))
        graph.replay()
        a, b = (x.detach().clone().requires_grad_() for x in (q, kv))
        right = reference.mla(a, b, slots)[0]
        for name, found, expected in zip(
            ("out", "dq", "dkv"), results, (right, *torch.autograd.grad(right, (a, b), dout.double()))
        ):
            case.close(name, found, expected, 3.2e-2)


@check
def graphed_callable(case):
    case.needs_cuda()
    q, k, v = operands(case)
    graphed = torch.cuda.make_graphed_callables(attend, (q, k, v))
    fresh, dout = operands(case), case.random(*q.shape, dtype=torch.bfloat16)
    out = graphed(*fresh)
    for name, found, right in zip(
        ("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, fresh, dout)), right_results(*fresh, dout)
    ):
        case.close(name, found, right, 3.2e-2)


@check
def current_stream(case):
    """Work goes to torch's current stream alone: after a long wait there, and the default stream stays free."""
    case.needs_cuda()
    q, k, v = operands(case)
    dout, side, new = case.random(*q.shape, dtype=torch.bfloat16), torch.cuda.Stream(), operands(case, grad=False)
    trained(q, k, v, dout)
    case.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # a fifth of a second
        with torch.no_grad():
            for x, y in zip((q, k, v), new):
                x.copy_(y)
        results = trained(q, k, v, dout)
        waiting = not side.query()
    free = torch.cuda.default_stream().query()
    case.must(waiting, "the side stream was done before its wait was over")
    case.must(free, "the default stream has work")
    side.synchronize()
    for name, found, right in zip(("out", "dq", "dk", "dv"), results, right_results(q, k, v, dout)):
        case.close(name, found, right, 3.2e-2)


@check
def two_streams(case):
    """Two streams at once, each with its own workspace."""
    case.needs_cuda()
    inputs = [[*operands(case, 700), case.random(2, 8, 700, 64, dtype=torch.bfloat16)] for _ in range(2)]
    right = [right_results(*x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    case.synchronize()
    for _ in range(10):
        results = []
        for stream, x in zip(streams, inputs):
            with torch.cuda.stream(stream):
                results.append(trained(*x))
        case.synchronize()
        for found, expected in zip(results, right):
            for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected):
                case.close(name, a, b, 3.2e-2)


@check
def memory_stays(case):
    """No call keeps memory of the device."""
    case.needs_cuda()
    q, k, v = operands(case, 1000)
    dout, sizes = case.random(*q.shape, dtype=torch.bfloat16), []
    for _ in range(30):
        trained(q, k, v, dout)
        case.synchronize()
        sizes.append(torch.cuda.memory_allocated())
    # autograd's thread may free a call's operands after it has returned
    first, last = min(sizes[5:15]), min(sizes[20:])
    case.measured.update(bytes_allocated=last, bytes_more=last - first)
    case.must(last == first, f"allocated memory went from {first} to {last} bytes in 15 calls")


@check
def time_of_a_call(case):
    """Microseconds of the host for one call that is queued; printed, not judged."""
    q, k, v = operands(case, 64, grad=False)
    theirs = torch.nn.functional.scaled_dot_product_attention
    for name, call in {
        "libattn.torch.sdpa": lambda: lt.sdpa(q, k, v),
        "torch": lambda: theirs(q, k, v, enable_gqa=True),
    }.items():
        best = 1.0
        for _ in range(20):
            call()
            case.synchronize()
            start = perf_counter()
            for _ in range(50):
                call()
            best = min(best, (perf_counter() - start) / 50)
            case.synchronize()
        case.measured[f"us of {name}"] = round(best * 1e6, 2)
