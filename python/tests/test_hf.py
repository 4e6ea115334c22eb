# SPDX-License-Identifier: MIT
"""libattn.hf in small random models of transformers against "eager": padding, windows, sinks, softcap, a cache."""
import copy

import libattn
import pytest
from support import assert_close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libattn.hf  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "vocab_size": 61, "max_position_embeddings": 64, "head_dim": 8}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral, window": lambda: transformers.MistralConfig(**SMALL, sliding_window=5),
    "gemma2, softcap and window": lambda: transformers.Gemma2Config(**SMALL, sliding_window=5, attn_logit_softcapping=2.0),
    "gpt_oss, sinks and window": lambda: transformers.GptOssConfig(**SMALL, sliding_window=5, num_local_experts=2,
                                                                   num_experts_per_tok=1),
}


def pair(config):
    """The same random model with eager attention and with ours."""
    libattn.hf.register()
    made = []
    for name in ("eager", "libattn"):
        torch.manual_seed(3)
        kind = transformers.AutoModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
        model = kind.from_config(copy.deepcopy(config), attn_implementation=name).eval()
        for parameter in model.parameters():  # so that sinks are not what the initialisation left
            torch.nn.init.normal_(parameter, std=0.3)
        made.append(model)
    made[1].load_state_dict(made[0].state_dict())
    assert [model.config._attn_implementation for model in made] == ["eager", "libattn"]
    return made


@pytest.mark.parametrize("name", MODELS)
def test_decoders(name):
    eager, ours = pair(MODELS[name]())
    tokens = torch.randint(1, 60, (2, 13), generator=torch.Generator().manual_seed(1))
    padding = torch.ones_like(tokens)
    padding[1, :4] = 0
    for mask in (None, padding):
        with torch.no_grad():
            expected, found = (model(tokens, attention_mask=mask).logits for model in (eager, ours))
        seen = torch.ones_like(tokens).bool() if mask is None else mask.bool()
        assert_close(found[seen].numpy(), expected[seen].numpy(), 2e-5)
        assert torch.equal(found[seen].argmax(-1), expected[seen].argmax(-1))
    words = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": padding}
    assert torch.equal(eager.generate(tokens, **words), ours.generate(tokens, **words))  # with a cache


def test_gradients_of_a_model_with_sinks():
    eager, ours = pair(MODELS["gpt_oss, sinks and window"]())
    tokens = torch.randint(1, 60, (2, 13), generator=torch.Generator().manual_seed(1))
    for model in (eager, ours):
        model(tokens, labels=tokens).loss.backward()
    ours_by_name = dict(ours.named_parameters())
    sinks = 0
    for name, parameter in eager.named_parameters():
        if parameter.grad is not None:
            sinks += "sinks" in name
            assert_close(ours_by_name[name].grad.numpy(), parameter.grad.numpy(), 1e-3)
    assert sinks == 2


def test_an_encoder_with_padding():
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                                     vocab_size=61, max_position_embeddings=64)
    eager, ours = pair(config)
    tokens, mask = torch.randint(1, 60, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    with torch.no_grad():
        expected, found = (model(tokens, attention_mask=mask).last_hidden_state for model in (eager, ours))
    assert_close(found[mask.bool()].numpy(), expected[mask.bool()].numpy(), 2e-5)


def test_refusals():
    _, ours = pair(transformers.LlamaConfig(**SMALL, attention_dropout=0.1))
    tokens = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(libattn.UnsupportedError, match="no dropout"):
        ours.train()(tokens)
    module = torch.nn.Module()
    q = torch.ones(1, 2, 3, 4)
    for name, value in (("output_attentions", True), ("position_bias", q)):
        with pytest.raises(libattn.UnsupportedError, match=name):
            libattn.hf.attention(module, q, q, q, None, **{name: value})
