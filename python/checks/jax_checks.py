# SPDX-License-Identifier: MIT
"""libattn.jax on the device against the formulas in torch: jit, grad, vmap, the sparse operators."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch shares the device
import jax
import jax.numpy as jnp
import reference
import torch
from record import BOUNDS, check

JAX = {
    torch.bfloat16: jnp.bfloat16,
    torch.float16: jnp.float16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.int32: jnp.int32,
    torch.bool: jnp.bool_,
}


def setup(case):
    """JAX's own first device is the one that is checked."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cuda,cpu" if case.cuda else "cpu")
    case.must((jax.devices()[0].platform == "gpu") == case.cuda, f"JAX runs on {jax.devices()[0]}")


def to_jax(x):
    x = x.detach()
    return jnp.asarray((x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()).astype(JAX[x.dtype])


def to_torch(case, x):
    return torch.from_numpy(jax.device_get(x.astype(jnp.float64)).copy()).to(case.device)


def features(case):
    """Options of sdpa, and tensors that get gradients."""
    mask = case.random(2, 4, 130, 140) > -0.5
    return {
        "plain": ({}, {}),
        "causal": ({"causal": True, "bottom_right": True}, {}),
        "window": ({"window": (20, 5)}, {}),
        "softcap": ({"softcap": 1.5}, {}),
        "boolean mask": ({"mask": mask}, {}),
        "added mask": ({}, {"mask": case.random(1, 4, 130, 140)}),
        "alibi": ({}, {"alibi": case.random(4).abs() * 0.1}),
        "sink": ({"window": (20, 0)}, {"sink": case.random(4)}),
        "lengths": ({"seqlens_k": torch.tensor([77, 140], dtype=torch.int32, device=case.device)}, {}),
    }


@check
def features_compiled(case):
    """Outputs and all gradients under jit, in four dtypes and both layouts."""
    setup(case)
    from libattn import jax as lj

    for dtype, layout in (
        (torch.bfloat16, "bshd"),
        (torch.float16, "bhsd"),
        (torch.float32, "bshd"),
        (torch.float64, "bhsd"),
    ):
        forward, backward = BOUNDS[dtype]
        inputs = [case.random(2, heads, rows, 64, dtype=dtype) for heads, rows in ((4, 130), (2, 140), (2, 140))]
        dout = case.random(2, 4, 130, 64, dtype=dtype)
        swap = (lambda x: x.transpose(1, 2)) if layout == "bshd" else (lambda x: x)
        for name, (options, learned) in features(case).items():
            fresh = [x.detach().requires_grad_() for x in (*inputs, *learned.values())]
            right, right_lse = reference.sdpa(*fresh[:3], **options, **dict(zip(learned, fresh[3:])))
            expected = torch.autograd.grad(right, fresh, dout.double())
            words = {key: to_jax(x) if isinstance(x, torch.Tensor) else x for key, x in options.items()}

            def attend(*x):
                return lj.sdpa(*x[:3], return_lse=True, layout=layout, **words, **dict(zip(learned, x[3:])))

            def both(given, *x):
                (out, lse), backward = jax.vjp(attend, *x)
                return out, lse, backward((given, jnp.zeros_like(lse)))

            out, lse, grads = jax.jit(both)(
                to_jax(swap(dout)), *map(to_jax, map(swap, fresh[:3])), *map(to_jax, fresh[3:])
            )
            label = f"{name} {str(dtype)[6:]}"
            case.close(f"{label} out", swap(to_torch(case, out)), right, forward)
            case.close(f"{label} lse", to_torch(case, lse), right_lse, forward)
            for i, (found, one) in enumerate(zip(grads, expected)):
                found = to_torch(case, found)
                case.close(f"{label} d{i}", swap(found) if i < 3 else found, one, backward)


@check
def batches_by_vmap(case):
    setup(case)
    from libattn import jax as lj

    q, k, v = (
        case.random(3, 2, heads, rows, 64, dtype=torch.bfloat16) for heads, rows in ((4, 100), (2, 120), (2, 120))
    )
    right = torch.stack([reference.sdpa(*x, causal=True)[0] for x in zip(q, k, v)])
    found = jax.jit(jax.vmap(lambda *x: lj.sdpa(*x, causal=True)))(*map(to_jax, (q, k, v)))
    case.close("out", to_torch(case, found), right, 1.6e-2)


@check
def loop_on_the_device(case):
    """A hundred calls in one compiled loop, each on the result of the one before."""
    setup(case)
    from libattn import jax as lj

    q = case.random(1, 4, 200, 64)
    x = to_jax(q)
    found = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: lj.sdpa(y, x, x, causal=True), x))(x)
    right = q.double()
    for _ in range(100):
        right = reference.sdpa(right, q, q, causal=True)[0]
    case.close("out", to_torch(case, found), right, 1e-4)


@check
def sparse(case):
    """mla, its backward and dist under jit."""
    setup(case)
    from libattn import jax as lj

    for hq, d in ((64, 576), (128, 512)):
        q, kv = (case.random(*shape, dtype=torch.bfloat16, grad=True) for shape in ((40, hq, d), (300, 1, d)))
        slots = torch.randint(-3, 300, (40, 1, 128), generator=case.generator, device=case.device, dtype=torch.int32)
        sink, dout = case.random(hq, grad=True), case.random(40, hq, 512, dtype=torch.bfloat16)
        out, lse, _, _ = reference.mla(q, kv, slots, sink=sink)
        expected = torch.autograd.grad(out, (q, kv, sink), dout.double())
        dist = reference.mla(q, kv, slots)[2]
        indices = to_jax(slots)

        def both(given, *x):
            (found, found_lse), backward = jax.vjp(
                lambda q, kv, sink: lj.mla(q, kv, indices, sink=sink, return_lse=True), *x
            )
            return (
                found,
                found_lse,
                backward((given, jnp.zeros_like(found_lse))),
                lj.dist(x[0], x[1], indices, found_lse),
            )

        found, found_lse, grads, found_dist = jax.jit(both)(*map(to_jax, (dout, q, kv, sink)))
        label = f"{hq} heads, d{d}"
        case.close(f"{label}: out", to_torch(case, found), out, 1.6e-2)
        case.close(f"{label}: lse", to_torch(case, found_lse), lse, 1e-3)
        case.close(f"{label}: dist", to_torch(case, found_dist), dist, 1.6e-2)
        for role, x, y in zip(("dq", "dkv", "dsink"), grads, expected):
            case.close(f"{label}: {role}", to_torch(case, x), y, 3.2e-2)
