# SPDX-License-Identifier: MIT
"""Kernels of the CuTe DSL for sm_100a that others have proven on devices: FlashAttention-4's and cuDNN's sparse
attention, called through their own interfaces on CUDA tensors, against sums in double on the CPU.

    attn-sim --gpu b200 --sms 4 python dsl.py [--policies eager,late,random:1] CASE...
    attn-sim --gpu b200 --sms 4 --no-races --counts FILE python dsl.py --speed CASE...

Needs torch and, of the case, flash-attn-4 or nvidia-cudnn-frontend with nvidia-cutlass-dsl; nothing of them is kept here.
A line a case and policy: `right` or `WRONG`, name, policy, findings, each result's largest error and largest value;
--policies compiles once for all of them. --speed runs a shorter and a
longer problem and tells FLOPs a clock of a multiprocessor in the steady state: by the largest counted unit and by the
timeline, beside what was published. tests/sim/outside/table.py runs all of them."""
import ctypes
import importlib.metadata
import json
import math
import os
import sys

import torch

BF16 = torch.bfloat16
BOUND = 2e-2  # of the largest value: bf16 results of bf16 operands


def zeros_by_copy():
    """PyTorch's own kernels are machine code, which is not interpreted: zeros come from the CPU."""
    zeros = torch.zeros
    torch.zeros = lambda *shape, device=None, **more: zeros(*shape, **more).to(device or "cpu")


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def device(x, dtype=BF16):
    return x.to(dtype).contiguous().cuda()


# ---- dense attention -----------------------------------------------------------------------------------------------------


def dense_reference(q, k, v, causal, dout=None):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    s = scale * q @ wide_k.transpose(-1, -2)
    rows, columns = s.shape[-2:]
    if causal:
        s = s.masked_fill(torch.arange(columns)[None] > torch.arange(rows)[:, None] + columns - rows, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse[..., None])
    results = [(p @ wide_v).transpose(1, 2), lse]
    if dout is not None:
        dout = dout.double().transpose(1, 2)
        dp = dout @ wide_v.transpose(-1, -2)
        ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
        grouped = lambda x: x.unflatten(1, (k.shape[1], group)).sum(2)
        gradients = ds @ wide_k, grouped(ds.transpose(-1, -2) @ q), grouped(p.transpose(-1, -2) @ dout)
        results += [x.transpose(1, 2) for x in gradients]
    return results


def dense_forward(checked, d=128, dv=None, rows=256, keys=256, heads=1, kv_heads=1, causal=False):
    from flash_attn.cute import interface
    q, k, v = drawn(0, 1, rows, heads, d), drawn(1, 1, keys, kv_heads, d), drawn(2, 1, keys, kv_heads, dv or d)
    got = interface._flash_attn_fwd(*map(device, (q, k, v)), causal=causal, return_lse=True)[:2]
    return zip(("out", "lse"), got, dense_reference(q, k, v, causal)) if checked else None


def dense_backward(checked, d=128, dv=None, rows=256, keys=256, heads=1, kv_heads=1, causal=False, deterministic=False):
    from flash_attn.cute import interface
    shapes = (rows, heads, d), (keys, kv_heads, d), (keys, kv_heads, dv or d), (rows, heads, dv or d)
    q, k, v, dout = (drawn(i, 1, *shape) for i, shape in enumerate(shapes))
    out, lse, *gradients = dense_reference(q, k, v, causal, dout)
    got = interface._flash_attn_bwd(*map(device, (q, k, v, out, dout)), device(lse, torch.float32), causal=causal, deterministic=deterministic)
    return zip(("dq", "dk", "dv"), got, gradients) if checked else None


# ---- sparse attention of latent keys -------------------------------------------------------------------------------------


def sparse_problem(heads, d, slots, queries, keys):
    q, kv, dout = drawn(0, queries, heads, d), drawn(1, keys, d), drawn(2, queries, heads, 512)
    order = torch.Generator().manual_seed(3)
    index = torch.stack([torch.randperm(keys, generator=order)[:slots] for _ in range(queries)]).int()
    return q, kv, dout, index


def sparse_reference(q, kv, dout, index):
    q, kv, dout = q.double(), kv.double(), dout.double()
    scale = q.shape[-1] ** -0.5
    out, lse, dist, dq, dkv = [], [], [], [], torch.zeros_like(kv)
    for row, row_q in enumerate(q):
        keys = kv[index[row].long()]
        s = scale * row_q @ keys.T
        lse.append(torch.logsumexp(s, -1))
        p = torch.exp(s - lse[-1][:, None])
        out.append((p @ keys[:, :512]).to(BF16).double())
        dist.append(p.sum(0) / p.sum())
        ds = scale * p * (dout[row] @ keys[:, :512].T - (dout[row] * out[-1]).sum(-1, keepdim=True))
        dq.append(ds @ keys)
        dkeys = ds.T @ row_q
        dkeys[:, :512] += p.T @ dout[row]
        dkv.index_add_(0, index[row].long(), dkeys)
    return (*map(torch.stack, (out, lse, dist, dq)), dkv)


def zero_by_own_runtime(module):
    """cuDNN's wrappers fill by the runtime that is linked into cuda.bindings, which cannot be replaced."""
    if hasattr(module, "memset_zero_async"):
        fill = ctypes.CDLL(None).cudaMemsetAsync
        fill.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        module.memset_zero_async = lambda address, size, stream: fill(address, 0, size, stream)


def sparse_backward(checked, heads=64, d=576, slots=128, queries=2, keys=192, deterministic=False):
    from cudnn.deepseek_sparse_attention import SparseAttentionBackward
    from cudnn.deepseek_sparse_attention.sparse_attention_backward import _interface_sm100
    zero_by_own_runtime(_interface_sm100)
    q, kv, dout, index = sparse_problem(heads, d, slots, queries, keys)
    out, lse, _, dq, dkv = sparse_reference(q, kv, dout, index)
    sink = torch.full((heads,), -math.inf).cuda()
    given = (*map(device, (q, kv, out, dout)), device(lse, torch.float32), sink, index.cuda())
    plan = SparseAttentionBackward(*given, softmax_scale=d**-0.5, deterministic=deterministic)
    assert plan.check_support()
    plan.compile()
    size = plan.scratch_workspace_bytes()
    got = torch.empty_like(given[0]), torch.empty_like(given[1])
    work = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
    plan.execute(*given, *got, workspace=work, d_sink=torch.empty_like(sink))
    return zip(("dq", "dkv"), got, (dq, dkv)) if checked else None


def sparse_distribution(checked, heads=64, d=576, slots=128, queries=2, keys=192):
    from cudnn.deepseek_sparse_attention import sparse_attn_score_recompute_wrapper
    q, kv, dout, index = sparse_problem(heads, d, slots, queries, keys)
    _, lse, dist, *_ = sparse_reference(q, kv, dout, index)
    got = torch.empty(1, queries, slots, device="cuda")
    given = device(q)[None], device(kv)[None], device(lse, torch.float32)[None], index.cuda()[None]
    sparse_attn_score_recompute_wrapper(*given, d**-0.5, qhead_per_kv_head=heads, topk_indices_global=True, out=got)
    return zip(("dist",), got, (dist,)) if checked else None


# ---- cases ---------------------------------------------------------------------------------------------------------------

# of --speed: what the longer problem has more of, FLOPs of a problem, TFLOP/s that were published, or None
DENSE_LONG = {"rows": 512, "keys": 1024}, {"rows": 512, "keys": 2048}
DENSE_UNDER = {"rows": 256, "keys": 1024}, {"rows": 256, "keys": 2048}  # causal: what a tile sees in front of its diagonal
DENSE_BACK = {"rows": 1024, "keys": 256}, {"rows": 2048, "keys": 256}
DENSE_BACK_HALF = {"rows": 1024, "keys": 128}, {"rows": 2048, "keys": 128}  # one CTA
SPARSE = {"slots": 512, "keys": 512, "queries": 1}, {"slots": 1024, "keys": 1024, "queries": 1}


def dense_flops(of_d, of_dv):
    """Products along D and along DV."""
    return lambda p: 2 * p["rows"] * p["keys"] * (of_d * p.get("d", 128) + of_dv * p.get("dv", p.get("d", 128)))


def sparse_flops(of_score):
    return lambda p: of_score * p["slots"] * p["queries"] * p.get("heads", 64)


CASES = {
    "fa4_fwd_d64": (dense_forward, {"d": 64}, DENSE_LONG, dense_flops(1, 1), None),
    "fa4_fwd_d128": (dense_forward, {}, DENSE_LONG, dense_flops(1, 1), 1695),
    "fa4_fwd_d128_causal": (dense_forward, {"causal": True, "rows": 512, "keys": 512}, DENSE_UNDER, dense_flops(1, 1), None),
    "fa4_fwd_d128_gqa": (dense_forward, {"heads": 4, "keys": 333, "rows": 200}),
    "fa4_fwd_d192_v128": (dense_forward, {"d": 192, "dv": 128}, DENSE_LONG, dense_flops(1, 1), 1796),
    "fa4_fwd_d192_v128_causal": (dense_forward, {"d": 192, "dv": 128, "causal": True, "rows": 512, "keys": 512}, DENSE_UNDER, dense_flops(1, 1), 1591),
    "fa4_fwd_d256": (dense_forward, {"d": 256}),
    "fa4_bwd_d64": (dense_backward, {"d": 64}, DENSE_BACK_HALF, dense_flops(3, 2), None),
    "fa4_bwd_d128": (dense_backward, {}, DENSE_BACK, dense_flops(3, 2), 1359),
    "fa4_bwd_d128_causal": (dense_backward, {"causal": True}),
    "fa4_bwd_d128_det": (dense_backward, {"deterministic": True}, DENSE_BACK, dense_flops(3, 2), 1381),
    "fa4_bwd_d128_gqa": (dense_backward, {"heads": 2}),
    "fa4_bwd_d192_v128": (dense_backward, {"d": 192, "dv": 128}, DENSE_BACK, dense_flops(3, 2), 1134),
    "fa4_bwd_d192_v128_causal": (dense_backward, {"d": 192, "dv": 128, "causal": True}),
    "fa4_bwd_d256": (dense_backward, {"d": 256}),
    "cudnn_bwd_h16_d576": (sparse_backward, {"heads": 16}),
    "cudnn_bwd_h32_d576": (sparse_backward, {"heads": 32}),
    "cudnn_bwd_h64_d576": (sparse_backward, {}, SPARSE, sparse_flops(5504), 674),
    "cudnn_bwd_h64_d512": (sparse_backward, {"d": 512}),
    "cudnn_bwd_h96_d576": (sparse_backward, {"heads": 96}),
    "cudnn_bwd_h128_d512": (sparse_backward, {"heads": 128, "d": 512}, SPARSE, sparse_flops(5120), 793),
    "cudnn_bwd_h128_d576": (sparse_backward, {"heads": 128}, SPARSE, sparse_flops(5504), None),  # 2 multiprocessors: a pair for a query
    "cudnn_bwd_h64_d576_det": (sparse_backward, {"deterministic": True}),
    "cudnn_dist_h64_d576": (sparse_distribution, {}, SPARSE, sparse_flops(1152), 770),
    "cudnn_dist_h64_d512": (sparse_distribution, {"d": 512}, SPARSE, sparse_flops(1024), 800),
    "cudnn_dist_h128_d512": (sparse_distribution, {"heads": 128, "d": 512}, SPARSE, sparse_flops(1024), 1000),
    "cudnn_dist_h128_d576": (sparse_distribution, {"heads": 128}),
}
MULTIPROCESSORS, GHZ = 148, 1.85


def size_of(file):
    return os.path.getsize(file) if os.path.exists(file) else 0


def records(file, begin):
    """Lines of JSON that were appended since."""
    if not os.path.exists(file):
        return []
    with open(file) as lines:
        lines.seek(begin)
        return [json.loads(line) for line in lines]


def check(name, policy):
    run, problem, *_ = CASES[name]
    report = os.environ["ATTNSIM_REPORT"]
    begin, words, right = size_of(report), [], True
    os.environ["ATTNSIM_POLICY"], _, seed = policy.partition(":")
    os.environ["ATTNSIM_SEED"] = seed or "1"
    for what, got, wanted in run(True, **problem):
        error, largest = (got.cpu().double() - wanted).abs().max().item(), wanted.abs().max().item()
        right = right and error < BOUND * largest
        words.append(f"{what} {error:.2g} of {largest:.2g}")
    classes = [record["class"] for record in records(report, begin)]
    findings = f"faults {classes.count('fault')} advice {classes.count('advice')}"
    print("right" if right else "WRONG", name, policy, findings, ", ".join(words), flush=True)
    return right


def main_launch(file, begin):
    """Of the launches that were counted since, the one with the most products."""
    return max(records(file, begin), key=lambda launch: launch["counts"]["flops"])


def speed(name):
    run, problem, lengths, flops, published = CASES[name]
    file, launches = os.environ["ATTNSIM_COUNTS"], []
    for length in lengths:
        begin = size_of(file)
        run(False, **problem | length)
        torch.cuda.synchronize()
        launches.append(main_launch(file, begin))
    work = flops(problem | lengths[1]) - flops(problem | lengths[0])
    clocks = {unit: launches[1]["clocks"][unit] - launches[0]["clocks"][unit] for unit in launches[1]["clocks"]}
    del clocks["memory"]  # a large problem shares what it reads, this one does not
    unit = max(clocks, key=clocks.get)
    spent = launches[1]["counts"]["timeline"] - launches[0]["counts"]["timeline"]
    rates = [work / n * MULTIPROCESSORS * GHZ / 1000 for n in (clocks[unit], spent)]
    factors = [f" ({published / rate:.2f})" if published else "" for rate in rates]
    print(f"speed {name}: published {published or '-'} TFLOP/s; {unit} {rates[0]:.0f}{factors[0]}, "
          f"timeline {rates[1]:.0f}{factors[1]}; clocks: timeline {spent}, {clocks}", flush=True)


def main():
    zeros_by_copy()
    names = sys.argv[1:]
    if names == ["--list"]:
        print("\n".join(f"{name}{' speed' if len(case) > 2 else ''}" for name, case in CASES.items()))
        return 0
    if names == ["--versions"]:
        for package in ("torch", "flash-attn-4", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "apache-tvm-ffi"):
            print(package, importlib.metadata.version(package))
        return 0
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    if names[0] == "--speed":
        for name in names[1:]:
            speed(name)
        return 0
    policies = ["eager"]
    if names[0] == "--policies":
        policies, names = names[1].split(","), names[2:]
    return 0 if all([check(name, policy) for name in names for policy in policies]) else 1


if __name__ == "__main__":
    sys.exit(main())
