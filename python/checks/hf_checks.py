# SPDX-License-Identifier: MIT
"""libattn.hf in small random models of transformers against "eager": padding, windows, sinks, softcap, caches."""

import copy

import libattn.hf
import torch
import transformers
from record import check

SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "head_dim": 64,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=9),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, sliding_window=9, attn_logit_softcapping=2.0),
    "gpt_oss": lambda: transformers.GptOssConfig(**SMALL, sliding_window=9, num_local_experts=2, num_experts_per_tok=1),
    "bert": lambda: transformers.BertConfig(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=101,
        max_position_embeddings=128,
    ),
}


def model(case, config, name, dtype):
    """A random model with the attention of that name."""
    libattn.hf.register()
    torch.manual_seed(3)
    kind = transformers.AutoModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
    made = kind.from_config(copy.deepcopy(config), attn_implementation=name).eval()
    for parameter in made.parameters():  # so that sinks are not what the initialisation left
        torch.nn.init.normal_(parameter, std=0.05)
    case.must(made.config._attn_implementation == name, f"the model took {made.config._attn_implementation}")
    return made.to(case.device, dtype)


def inputs(case):
    tokens = torch.randint(1, 100, (2, 61), generator=torch.Generator().manual_seed(1)).to(case.device)
    padding = torch.ones_like(tokens)
    padding[1, :14] = 0
    return tokens, padding


def attention_of(made):
    """The first layer's attention, whose input does not depend on the attention's implementation."""
    return next(part for name, part in made.named_modules() if name.endswith(("self_attn", "attention.self")))


def results(made, tokens, padding):
    """Final values, and the first layer's attention output, on rows that are no padding."""
    layer, seen = [], torch.ones_like(tokens).bool() if padding is None else padding.bool()
    handle = attention_of(made).register_forward_hook(lambda module, given, found: layer.append(found[0]))
    with torch.no_grad():
        found = made(tokens, attention_mask=padding)
    handle.remove()
    return (found.logits if "logits" in found else found.last_hidden_state)[seen], layer[0][seen]


def compare(case, name):
    config, (tokens, padding) = CONFIGS[name](), inputs(case)
    eager, ours = (model(case, config, kind, torch.float32) for kind in ("eager", "libattn"))
    for label, mask in (("whole", None), ("padding", padding)):
        right, right_layer = results(eager, tokens, mask)
        found, found_layer = results(ours, tokens, mask)
        case.close(f"{label}, layer", found_layer, right_layer, 1e-5)
        case.close(f"{label}, result", found, right, 2e-5)
        case.must(torch.equal(found.argmax(-1), right.argmax(-1)), f"{label}: another argmax")
        for dtype in (torch.bfloat16, torch.float16):
            half, half_layer = results(copy.deepcopy(ours).to(dtype), tokens, mask)
            again, again_layer = results(copy.deepcopy(eager).to(dtype), tokens, mask)
            word = str(dtype)[6:]
            error = lambda x, y: ((x.double() - y.double()).norm() / y.double().norm()).item()  # noqa: E731
            case.figures[f"{label}, eager {word}, layer"] = theirs = error(again_layer, right_layer)
            case.close(f"{label}, {word}, layer", half_layer, right_layer, max(1.3 * theirs, 1e-3))
            case.close(f"{label}, {word}, result", half, right, max(1.5 * error(again, right), 1e-3))


@check
def llama(case):
    compare(case, "llama")


@check
def mistral_with_window(case):
    compare(case, "mistral")


@check
def gemma2_with_softcap(case):
    compare(case, "gemma2")


@check
def gpt_oss_with_sinks(case):
    compare(case, "gpt_oss")


@check
def bert(case):
    compare(case, "bert")


@check
def generation_with_cache(case):
    tokens, padding = inputs(case)
    words = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "attention_mask": padding}
    for name in ("llama", "mistral", "gemma2", "gpt_oss"):
        eager, ours = (
            model(case, CONFIGS[name](), kind, torch.float32).generate(tokens, **words) for kind in ("eager", "libattn")
        )
        case.must(torch.equal(eager, ours), f"{name}: other tokens")


@check
def gradients(case):
    for name in ("llama", "gpt_oss"):
        tokens, padding = inputs(case)
        # The first token's label is left out, too: what a row of padding predicts is no model's promise.
        made = [model(case, CONFIGS[name](), kind, torch.float32) for kind in ("eager", "libattn")]
        for one in made:
            one(tokens, attention_mask=padding, labels=tokens.where(padding.cumsum(1) > 1, -100)).loss.backward()
        ours = dict(made[1].named_parameters())
        for label, parameter in made[0].named_parameters():
            if parameter.grad is not None and parameter.grad.norm() > 0:
                case.close(
                    f"{name} {'sinks' if 'sinks' in label else 'weights'}", ours[label].grad, parameter.grad, 1e-3
                )


@check
def static_cache_compiled(case):
    """A decoding step with a cache of fixed size, whole in torch.compile."""
    tokens, _ = inputs(case)
    steps = []
    for kind in ("eager", "libattn"):
        made = model(case, CONFIGS["llama"](), kind, torch.float32)
        cache = transformers.StaticCache(config=made.config, max_cache_len=80)
        with torch.no_grad():
            made(tokens, past_key_values=cache, cache_position=torch.arange(61, device=case.device))
            forward = (
                torch.compile(made.forward, fullgraph=True, backend="aot_eager") if kind == "libattn" else made.forward
            )
            steps.append(
                forward(
                    tokens[:, :1], past_key_values=cache, cache_position=torch.tensor([61], device=case.device)
                ).logits
            )
    case.close("logits", steps[1], steps[0], 2e-5)
