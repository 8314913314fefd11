"""Models of transformers against ours, with random configs. Runs only where torch and transformers are installed."""

import copy
import dataclasses
import importlib.util
import itertools
import json
import pathlib
import shutil
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published_support import CLASSES as PUBLISHED
from published_support import config_of, reduced
from support import random_params, tiny

from transformer_jax.config import DecodeConfig
from transformer_jax.convert.folder import from_pretrained, open_folder, save_pretrained
from transformer_jax.convert.generation import generation_settings
from transformer_jax.decoding.generate import Request, generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.positions import relative_buckets
from transformer_jax.tasks.task import TASKS

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
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
}
LIKE_LLAMA = ("llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2")
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
    if family in LIKE_LLAMA:
        biases = draw(st.booleans()) if family in ("llama", "smollm3") else False
        own: dict[str, Any] = {"attention_bias": biases, "mlp_bias": biases} if biases else {}
        # A norm of an output of few numbers, which may all be near zero, makes rounding large.
        widths = (8, 12) if family == "olmo2" else (1, 6)
        window = draw(st.sampled_from([None, 1, 4, 30]))
        if family in ("qwen2", "qwen3", "smollm3"):
            own |= {"use_sliding_window": window is not None, "sliding_window": window}
        if family in ("qwen2", "qwen3"):
            own["max_window_layers"] = draw(st.integers(0, 3))
        if family == "mistral":
            own["sliding_window"] = window
        if family == "smollm3":
            own["no_rope_layer_interval"] = draw(st.integers(1, 3))
        return (
            common
            | own
            | {
                **{
                    "hidden_size": heads * groups * draw(st.integers(*widths)),
                    "intermediate_size": hidden,
                    "num_hidden_layers": draw(layers),
                },
                **{"num_attention_heads": heads * groups, "num_key_value_heads": heads, "head_dim": dim},
                **{"hidden_act": draw(st.sampled_from(["silu", "gelu"]))},
                **{"rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])), "max_position_embeddings": 21},
                "rope_parameters": {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 1e4, 5e5]))},
            }
        )
    if family == "gpt_neox":
        parameters = {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 1e4]))}
        parameters["partial_rotary_factor"] = 2 * draw(st.integers(0, dim // 2)) / dim
        return common | {
            **{"hidden_size": heads * dim, "num_attention_heads": heads, "intermediate_size": hidden},
            **{"num_hidden_layers": draw(layers), "max_position_embeddings": 21, "rope_parameters": parameters},
            **{"hidden_act": draw(ACTIVATIONS), "use_parallel_residual": draw(st.booleans())},
            "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        }
    if family in ("bert", "roberta"):
        own = {"pad_token_id": 1, "hidden_act": "gelu", "max_position_embeddings": 23} if family == "roberta" else {}
        return (
            common
            | {
                **{"hidden_size": heads * dim, "intermediate_size": hidden, "num_hidden_layers": draw(layers)},
                **{
                    "num_attention_heads": heads,
                    "hidden_act": draw(ACTIVATIONS),
                    "type_vocab_size": draw(st.integers(1, 3)),
                },
                **{"max_position_embeddings": 21, "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5]))},
                "tie_word_embeddings": True,
            }
            | own
        )
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
    if family not in ("gpt2", "gpt_neox", *LIKE_LLAMA):
        batch |= {"inputs": rng.integers(2, vocab_size, (2, 20)), "inputs_mask": np.arange(20) < np.array([[20], [11]])}
    if family in ("bert", "roberta"):
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
    expected, exact = logits_of(model, batch), logits_of(copy.deepcopy(model).double(), batch)
    # A norm of nearly equal numbers makes rounding errors larger, theirs as much as ours.
    atol = 1e-5 * np.abs(exact).max() + 8 * np.abs(expected - exact).max()
    module = ARCHITECTURES[config.architecture].module(config, TASKS[ours.task.name].head(ours.task, config))
    actual = module.apply({"params": params}, jax.tree.map(jnp.asarray, batch))
    np.testing.assert_allclose(actual, exact, rtol=0, atol=atol)
    save_pretrained(folder / "ours", config, params, family=open_folder(folder / "theirs").family.name)
    again, found = CLASSES[family][1].from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(found.values()), found
    again.set_attn_implementation("eager")
    # In float32, outputs of equal weights differ by where torch has them in memory.
    np.testing.assert_allclose(logits_of(again.eval().double(), batch), exact, rtol=1e-12, atol=1e-12)


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
        actual = jax.jit(module.apply)({"params": params}, batch)
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


def test_the_stored_summaries_are_those_of_transformers():
    """Ids and texts of tests/golden/summaries, made again."""
    file = pathlib.Path(__file__).parent.parent / "golden" / "summaries" / "make.py"
    spec = importlib.util.spec_from_file_location("summaries_make", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == module.STORED.read_text(encoding="utf-8")


def randomised(model, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            is_computed = "inv_freq" in name or ("embed_positions" in name and "Marian" in type(model).__name__)
            if x.is_floating_point() and not is_computed:
                is_scale = x.dim() == 1 and name.endswith("weight")
                x.copy_(torch.randn_like(x) * 0.2 + (1.0 if is_scale else 0.0))
    model.set_attn_implementation("eager")
    return model.eval()


def of_both(ours, theirs, config):
    """Return the outputs of both models for one random batch, as two lists of arrays."""
    rng, given = np.random.default_rng(0), {}
    if ours.config.inputs == "patches":
        pixels = rng.integers(0, 256, (2, config["image_size"], config["image_size"], 3)).astype(np.uint8)
        batch = {"inputs": pixels}
        given["pixel_values"] = torch.tensor((pixels / 255.0 - 0.5) / 0.5).permute(0, 3, 1, 2).float()
    else:
        vocabulary = ours.config.vocab_size
        batch = {"inputs": rng.integers(2, vocabulary, (2, 20)), "inputs_mask": np.arange(20) < np.array([[20], [11]])}
        given = {
            "input_ids": torch.tensor(batch["inputs"]),
            "attention_mask": torch.tensor(batch["inputs_mask"]).long(),
        }
        if ours.config.architecture == "encoder_decoder":
            batch["decoder_inputs"] = rng.integers(2, vocabulary, (2, 19))
            given["decoder_input_ids"] = torch.tensor(batch["decoder_inputs"])
        if ours.config.architecture == "decoder_only":
            batch, given = {"decoder_inputs": batch["inputs"]}, {"input_ids": given["input_ids"]}
        if ours.config.token_types:
            batch["types"] = rng.integers(0, min(ours.config.token_types, 2), (2, 20))
            given["token_type_ids"] = torch.tensor(batch["types"])
    head = TASKS[ours.task.name].head(ours.task, ours.config)
    module, batch = ARCHITECTURES[ours.config.architecture].module(ours.config, head), jax.tree.map(jnp.asarray, batch)
    with torch.no_grad():
        expected = theirs(**given)
    if hasattr(expected, "logits"):
        return module.apply({"params": ours.params}, batch), expected.logits.numpy()
    return module.apply({"params": ours.params}, batch, method="features"), expected.last_hidden_state.numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", PUBLISHED)
def test_small_models_of_published_configs(name, tmp_path):
    """The tensors are those that transformers saves; config.json is the published one, but for its sizes."""
    config, model_class = reduced(config_of(name)), getattr(transformers, PUBLISHED[name])
    saved_class = transformers.BartForSequenceClassification if name == "bart-large-mnli" else model_class
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = saved_class.config_class.from_pretrained(tmp_path)
    randomised(saved_class(settings)).save_pretrained(tmp_path / "folder")
    shutil.copy(tmp_path / "config.json", tmp_path / "folder")
    theirs = model_class.from_pretrained(tmp_path / "folder", attn_implementation="eager", dtype=torch.float32).eval()
    ours = from_pretrained(tmp_path / "folder")
    close(*of_both(ours, theirs, config))


PYTHIA = "pythia-6.9b-deduped--printed-4.45"
CHANGED = [
    *(("gpt2", {"n_layer": 3, "num_hidden_layers": 2}), ("gpt2", {"is_causal": True, "output_past": 3})),
    ("opus-mt-en-de", {"num_hidden_layers": 1}),
    ("opus-mt-en-de", {"num_hidden_layers": 3, "normalize_embedding": True, "static_position_embeddings": False}),
    ("bart-large", {"num_hidden_layers": 1, "extra_pos_embeddings": 5, "static_position_embeddings": True}),
    *(("t5-small", {"num_hidden_layers": 3}), ("t5-small", {"head_dim": 4})),
    ("t5-small", {"dense_act_fn": "gelu_new", "is_gated_act": True}),
    ("t5-small", {"dense_act_fn": "gelu", "is_gated_act": True}),
    *(("flan-t5-base", {"is_gated_act": False}), ("flan-t5-base", {"dense_act_fn": "silu"})),
    *(("t5-small", {"tie_word_embeddings": False}), ("t5-small", {"scale_decoder_outputs": False})),
    ("flan-t5-base", {"tie_word_embeddings": False, "scale_decoder_outputs": True}),
    ("Llama-2-7b-hf", {"rope_theta": 100.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
    ("Llama-2-7b-hf", {"rope_theta": 100.0, "rope_parameters": {"rope_type": "default"}}),
    ("Llama-2-7b-hf", {"rope_scaling": {"type": "linear", "factor": 1.0}, "rope_theta": 100.0}),
    ("Llama-2-7b-hf", {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 4, "layer_types": None}),
    ("Qwen2-0.5B", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("Qwen2-0.5B", {"sliding_window": 5, "head_dim": 4, "partial_rotary_factor": 0.5}),
    (
        "Qwen3-0.6B",
        {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 5},
    ),
    ("Mistral-7B-Instruct-v0.3--expanded-4.38", {"sliding_window": 5, "head_dim": 4}),
    ("roberta-large", {"position_embedding_type": "absolute", "embedding_size": 3}),
    *((PYTHIA, {"use_parallel_residual": False}), (PYTHIA, {"hidden_act": "gelu_fast", "rotary_pct": 0.5})),
    (PYTHIA, {"rope_theta": 100.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4}),
    (PYTHIA, {"rotary_emb_base": 100, "rotary_pct": 0.3}),  # 2 of 8
    (PYTHIA, {"rope_scaling": {"type": "linear", "factor": 1.0}, "rotary_emb_base": 100}),
    (PYTHIA, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}, "rotary_emb_base": 100}),
    ("bert-base-uncased", {"is_causal": False, "embedding_size": 3, "hidden_dropout": 0.5}),
    ("vit-base-patch16-224--resaved-4.57", {"image_size": [12, 12], "patch_size": [4, 4], "head_dim": 6}),
    ("all-MiniLM-L6-v2", {"tie_word_embeddings": False, "problem_type": "regression"}),
]


@pytest.mark.parametrize(("name", "changes"), CHANGED)
def test_changed_keys_mean_the_same(name, changes, tmp_path):
    config, model_class = reduced(config_of(name)) | changes, getattr(transformers, PUBLISHED[name])
    config["architectures"] = [PUBLISHED[name]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = randomised(model_class(model_class.config_class.from_pretrained(tmp_path)))
    model.save_pretrained(tmp_path / "folder")
    shutil.copy(tmp_path / "config.json", tmp_path / "folder")
    theirs = model_class.from_pretrained(tmp_path / "folder", attn_implementation="eager", dtype=torch.float32).eval()
    ours = from_pretrained(tmp_path / "folder")
    close(*of_both(ours, theirs, config | {"image_size": 12}))


@pytest.mark.parametrize(
    ("name", "base", "whole"),
    [
        ("gpt2", "GPT2Model", "GPT2LMHeadModel"),
        ("bart-large", "BartModel", "BartForConditionalGeneration"),
        ("opus-mt-en-de", "MarianModel", "MarianMTModel"),
        ("t5-small", "T5Model", "T5ForConditionalGeneration"),
        ("flan-t5-base", "T5Model", "T5ForConditionalGeneration"),
        ("Llama-2-7b-hf", "LlamaModel", "LlamaForCausalLM"),
        (PYTHIA, "GPTNeoXModel", "GPTNeoXForCausalLM"),
        ("vit-base-patch16-224--resaved-4.57", "ViTModel", "ViTModel"),
    ],
)
@pytest.mark.parametrize("said", [True, False])
def test_base_models(name, base, whole, said, tmp_path):
    """transformers takes the embedding as the output of a base model, as we do; both without `model_type` too."""
    config = reduced(config_of(name)) | {"architectures": [base]}
    config |= {"tie_word_embeddings": True} if base in ("LlamaModel", "GPTNeoXModel") else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    classes = [getattr(transformers, class_name) for class_name in (base, whole)]
    randomised(classes[0](classes[0].config_class.from_pretrained(tmp_path))).save_pretrained(tmp_path / "folder")
    shutil.copy(tmp_path / "config.json", tmp_path / "folder")
    theirs = classes[1].from_pretrained(tmp_path / "folder", attn_implementation="eager", dtype=torch.float32).eval()
    if not said:
        left = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
        (tmp_path / "folder" / "config.json").write_text(json.dumps(left))
    close(*of_both(from_pretrained(tmp_path / "folder"), theirs, config))


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("scale_logits", [True, False])
@pytest.mark.parametrize("activation", ["relu", "geglu_tanh", "geglu"])
def test_every_t5_that_we_write_is_read_by_transformers(tie_output, scale_logits, activation, tmp_path):
    config = tiny(
        norm_position="pre", norm="rmsnorm", position_encoding="relative", use_bias=False, attention_scale=False,
        scale_embeddings=False, tie_output=tie_output, scale_logits=scale_logits, activation=activation,
    )  # fmt: skip
    save_pretrained(tmp_path / "folder", config, random_params(config), family="t5")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "folder").eval()
    close(*of_both(from_pretrained(tmp_path / "folder"), theirs, {}))


def test_the_list_of_keys_is_that_of_the_source():
    """Made again by the command that is named in tests/convert/transformers_keys.py."""
    folder = pathlib.Path(__file__).parent
    spec = importlib.util.spec_from_file_location("transformers_keys", folder / "transformers_keys.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.OUT.read_text(encoding="utf-8") == module.text()
    assert transformers.__version__ == "5.23.0"
