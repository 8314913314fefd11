"""Models of transformers against ours, with random configs. Runs only where torch and transformers are installed."""

import dataclasses
import importlib.util
import itertools
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import random_params, tiny

from transformer_jax.config import DecodeConfig
from transformer_jax.convert.folder import from_pretrained, open_folder, save_pretrained
from transformer_jax.convert.generation import generation_settings
from transformer_jax.decoding.generate import Request, generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.positions import relative_buckets
from transformer_jax.tasks.base import TASKS

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    pytest.skip("torch and transformers are not installed", allow_module_level=True)

import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "marian": (transformers.MarianConfig, transformers.MarianMTModel),
    "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
}
IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}
ACTIVATIONS = st.sampled_from(["gelu_new", "gelu", "relu", "silu"])


@st.composite
def configs(draw, family):
    """Return keyword arguments of a config of the family."""
    heads, groups, dim = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 4))
    layers, hidden = st.integers(1, 3), draw(st.integers(3, 30))
    common = {"vocab_size": draw(st.integers(9, 40)), "tie_word_embeddings": draw(st.booleans()), **IDS}
    if family == "gpt2":
        return common | {
            **{"n_embd": heads * dim, "n_head": heads, "n_layer": draw(layers), "n_inner": hidden, "n_positions": 21},
            **{"activation_function": draw(ACTIVATIONS), "scale_attn_weights": draw(st.booleans())},
        }
    if family == "llama":
        biases = draw(st.booleans())
        return common | {
            **{
                "hidden_size": heads * groups * draw(st.integers(1, 6)),
                "intermediate_size": hidden,
                "num_hidden_layers": draw(layers),
            },
            **{"num_attention_heads": heads * groups, "num_key_value_heads": heads, "head_dim": dim},
            **{"hidden_act": draw(st.sampled_from(["silu", "gelu"])), "attention_bias": biases, "mlp_bias": biases},
            **{"rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])), "max_position_embeddings": 21},
            "rope_parameters": {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 1e4, 5e5]))},
        }
    if family == "bert":
        return common | {
            **{"hidden_size": heads * dim, "intermediate_size": hidden, "num_hidden_layers": draw(layers)},
            **{
                "num_attention_heads": heads,
                "hidden_act": draw(ACTIVATIONS),
                "type_vocab_size": draw(st.integers(1, 3)),
            },
            **{"max_position_embeddings": 21, "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5]))},
            "tie_word_embeddings": True,
        }
    if family == "t5":
        activations = ["relu", "gated-gelu", "gated-silu", "gelu", "silu"]
        return common | {
            **{"d_model": heads * draw(st.integers(2, 6)), "d_kv": dim, "d_ff": hidden, "num_heads": heads},
            **{"num_layers": draw(st.integers(2, 3)), "num_decoder_layers": draw(st.integers(1, 2))},
            **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": draw(st.integers(5, 30))},
            **{"feed_forward_proj": draw(st.sampled_from(activations)), "decoder_start_token_id": 0},
            "tie_word_embeddings": True,
        }
    separate = family == "marian" and draw(st.booleans())
    vocabularies: dict[str, Any] = {"tie_word_embeddings": True}  # one table for both sides is always the output's too
    if separate:
        vocabularies = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": draw(st.integers(9, 40))}
    sides = {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": hidden for side in ("encoder", "decoder")}
    return common | {
        **{"d_model": heads * dim, "encoder_layers": draw(layers), "decoder_layers": draw(layers), **sides},
        **{"activation_function": draw(ACTIVATIONS), "scale_embedding": draw(st.booleans())},
        **{"max_position_embeddings": 21, "decoder_start_token_id": 2, **vocabularies},
    }


def random_model(family, fields, seed):
    config_class, model_class = CLASSES[family]
    model = model_class(config_class(**fields)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            is_computed = "inv_freq" in name or ("embed_positions" in name and family == "marian")
            if x.is_floating_point() and not is_computed:
                is_scale = x.dim() == 1 and name.endswith("weight")
                x.copy_(torch.randn_like(x) * 0.3 + (1.0 if is_scale else 0.0))
    model.set_attn_implementation("eager")
    return model


def batch_of(family, fields, seed):
    rng, vocab_size = np.random.default_rng(seed), fields["vocab_size"]
    batch = {"decoder_inputs": rng.integers(2, fields.get("decoder_vocab_size", vocab_size), (2, 19))}
    if family not in ("gpt2", "llama"):
        batch |= {"inputs": rng.integers(2, vocab_size, (2, 20)), "inputs_mask": np.arange(20) < np.array([[20], [11]])}
    if family == "bert":
        batch["types"] = rng.integers(0, fields["type_vocab_size"], (2, 20))
        del batch["decoder_inputs"]
    return batch


def logits_of(model, batch):
    names = {"inputs": "input_ids", "inputs_mask": "attention_mask", "types": "token_type_ids"}
    names["decoder_inputs"] = "decoder_input_ids" if "inputs" in batch else "input_ids"
    given = {names[key]: torch.tensor(x).long() for key, x in batch.items()}
    with torch.no_grad():
        return model(**given).logits.numpy()


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 1000))
def test_random_configs_in_both_directions(family, data, seed, tmp_path_factory):
    fields = data.draw(configs(family))
    model, folder = random_model(family, fields, seed), tmp_path_factory.mktemp("live")
    model.save_pretrained(folder / "theirs")
    ours = from_pretrained(folder / "theirs")
    config, params = ours.config, ours.params
    batch = batch_of(family, fields, seed)
    expected = logits_of(model, batch)
    module = ARCHITECTURES[config.architecture].module(config, TASKS[ours.task.name].head(ours.task, config))
    np.testing.assert_allclose(
        module.apply({"params": params}, jax.tree.map(jnp.asarray, batch))[0],
        expected,
        rtol=0,
        atol=1e-5 * np.abs(expected).max(),
    )
    save_pretrained(folder / "ours", config, params, family=open_folder(folder / "theirs").family.name)
    again, found = CLASSES[family][1].from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(found.values()), found
    again.set_attn_implementation("eager")
    np.testing.assert_array_equal(logits_of(again.eval(), batch), expected)


LIKE = {
    "gpt2": {"architecture": "decoder_only", "norm_position": "pre", "position_encoding": "learned"},
    "llama": {"architecture": "decoder_only", "norm_position": "pre", "norm": "rmsnorm", "position_encoding": "rotary"},
    "marian": {"norm_epsilon": 1e-5},
    "t5": {"norm_position": "pre", "norm": "rmsnorm", "position_encoding": "relative", "use_bias": False},
    "bart": {"norm_epsilon": 1e-5, "position_encoding": "learned", "embedding_norm": True},
}
LIKE["gpt2"] |= {"scale_embeddings": False}
LIKE["llama"] |= {"scale_embeddings": False, "activation": "swiglu"}
LIKE["t5"] |= {"scale_embeddings": False, "attention_scale": False}
TABLES = [
    ("gpt2", {"tie_output": True}),
    ("gpt2", {"tie_output": False}),
    ("llama", {"tie_output": True}),
    ("llama", {"tie_output": False}),
    *(
        ("marian", {"tie_output": tied, "share_embeddings": shared, "source_vocab_size": size})
        for tied in (True, False)
        for shared, size in ((True, None), (False, None), (False, 23))
    ),
    ("t5", {"tie_output": True, "scale_logits": True}),
    ("t5", {"tie_output": False}),
    ("bart", {}),
]


@pytest.mark.parametrize(("family", "fields"), TABLES)
def test_tables_of_embeddings(family, fields, tmp_path):
    """Nothing is missing, nothing is filled at random, and nothing is left over."""
    config = tiny(**LIKE[family] | fields)
    params = random_params(config)
    save_pretrained(tmp_path / "ours", config, params, family=family)
    model, found = CLASSES[family][1].from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(found.values()), found
    model.set_attn_implementation("eager")
    batch = batch_of(family, {"vocab_size": config.source_vocab_size, "decoder_vocab_size": config.vocab_size}, 0)
    batch = {name: x[:, :11] for name, x in batch.items()}
    expected = logits_of(model.eval(), batch)
    batch = jax.tree.map(jnp.asarray, batch)

    def check(config, params):
        module = ARCHITECTURES[config.architecture].module(config, None)
        actual = jax.jit(module.apply)({"params": params}, batch)[0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    check(config, params)
    model.save_pretrained(tmp_path / "theirs")
    again = from_pretrained(tmp_path / "theirs")
    check(again.config, again.params)


def test_relative_buckets_of_t5():
    distances, compute = np.arange(-1100, 1101), T5Attention._relative_position_bucket
    for bidirectional, buckets, longest in itertools.product(
        (True, False), (4, 6, 8, 16, 20, 32), (20, 72, 100, 128, 200, 512, 1024)
    ):
        expected = compute(torch.tensor(distances), bidirectional, buckets, longest)
        actual = relative_buckets(jnp.asarray(distances), bidirectional, buckets, longest)
        np.testing.assert_array_equal(actual, expected.numpy(), err_msg=str((bidirectional, buckets, longest)))


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_beam_search_in_which_cut_hypotheses_compete(family):
    """Short limits, so that some hypotheses end and others are cut off; `last` would give other outputs."""
    config = tiny(**LIKE[family], vocab_size=12, tie_output=False)
    params, folder = random_params(config), tempfile.mkdtemp()
    params["output"]["kernel"] *= 4
    save_pretrained(folder, config, params, family=family)
    model = CLASSES[family][1].from_pretrained(folder).eval()
    decoder, rng = ARCHITECTURES[config.architecture].decoder(config), np.random.default_rng(0)
    inputs, mask, prompts = rng.integers(2, 12, (24, 4)), np.ones((24, 4), bool), [[config.decoder_start_id]] * 24
    batch: dict[str, Any] = {"inputs": inputs.astype(np.int32), "inputs_mask": mask}
    if family == "gpt2":
        prompts, batch = inputs.tolist(), {}
    request = Request(batch, prompts, np.full(24, 5), 5)
    found = {}
    for rank in ("compete", "last"):
        decode = DecodeConfig(
            beam_size=3, num_best=3, length_penalty="average", max_new_tokens=5, cut_hypotheses=rank, forbidden_ids="0"
        )
        found[rank] = generate((decoder,), [decoder.prepare(params)], decode, Ends(1, ()), request)
    settings = generation_settings(config, dataclasses.replace(decode, cut_hypotheses="compete"))
    assert settings.left_out == []
    with torch.no_grad():
        theirs = model.generate(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(mask).long(),
            generation_config=transformers.GenerationConfig(
                **settings.keys, eos_token_id=1, pad_token_id=0, decoder_start_token_id=config.decoder_start_id
            ),
            return_dict_in_generate=True,
            output_scores=True,
        )
    start = inputs.shape[1] if family == "gpt2" else 1
    expected = np.pad(theirs.sequences[:, start:].numpy(), ((0, 0), (0, 5)))[:, :5].reshape(24, 3, 5)
    for rank, same in (("compete", True), ("last", False)):
        kept = np.arange(5) < np.asarray(found[rank].lengths)[..., None]
        assert np.array_equal(np.where(kept, found[rank].ids, 0), np.where(kept, expected, 0)) == same
    np.testing.assert_allclose(found["compete"].scores.reshape(-1), theirs.sequences_scores, atol=1e-5)
    assert 0 < np.asarray(found["compete"].finished).mean() < 1
