"""Published config.json files: which are read, as what, and which keys are ignored."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from published_support import CLASSES, FOLDER, config_of, reduced, task_of, write_folder
from safetensors.numpy import load_file, save_file

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.convert import folder_config, keys
from transformer_jax.convert.families import CLASSES as TABLES
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.folder import _shapes, describe_folder, from_pretrained, open_folder
from transformer_jax.convert.tables import COMMON_IGNORED, COMMON_REQUIRED, LABEL_KEYS
from transformer_jax.errors import CheckpointError
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training.init_from import open_other_run

OTHERS = {path.stem for path in FOLDER.glob("*.json")} - {*CLASSES}
SCALED = {"Llama-3.2-1B": "rope_scaling with rope_type='llama3'", "Meta-Llama-3.1-8B": "rope_type='llama3'"}
REFUSED = SCALED | {"mbart-large-en-ro": r"normalize_before=True: transformer_jax supports only False; that is mBART"}
PARAMETERS = {
    **{"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "distilgpt2": 81_912_576, "gpt2--resaved-4.38": 124_439_808},
    **{"Llama-2-7b-hf": 6_738_415_616, "Llama-2-70b-chat-hf": 68_976_648_192},
    "TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    **{"t5-small": 60_506_624, "t5-small--resaved-4.40": 60_492_800, "flan-t5-base": 247_577_856},
    "vit-base-patch16-224--resaved-4.57": 86_567_656,
    **{"Qwen2-0.5B": 494_032_768, "Qwen3-0.6B": 596_049_920, "Mistral-7B-Instruct-v0.3--expanded-4.38": 7_248_023_552},
    # Without two rows of positions that nothing reads.
    **{"roberta-large": 355_412_057 - 2 * 1024, "distilroberta-base": 82_170_201 - 2 * 768},
    "roberta-base-openai-detector": 124_647_170 - 2 * 768,
    "pythia-6.9b-deduped--printed-4.45": 6_857_302_016,
}
"""Sizes of the published models, of families whose parameters are all here."""
KNOWN_TO_ADAPT = {
    "t5": {"dense_act_fn", "is_gated_act"},
    "vit": {"head_dim"},
    **{
        name: {"rope_parameters", "rope_scaling", "rope_theta"}
        for name in ("llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2")
    },
    "gpt_neox": {"rope_parameters", "rope_scaling", "rotary_emb_base", "head_dim"},
}


def of_layers(family):
    return set() if family.layers is None else family.layers.keys


def read(name):
    config = config_of(name)
    family = folder_config.possible_classes(config, name)[0]
    return family, *folder_config.read_model_config(family, config, name)


@pytest.mark.parametrize("name", CLASSES)
def test_published_configs_are_read_in_full_size(name):
    config, class_name = config_of(name), CLASSES[name]
    families = [f for f in folder_config.possible_classes(config, name) if f.class_name == class_name]
    ours, ignored = folder_config.read_model_config(families[0], config, name)
    used = {key.theirs for key in families[0].keys} | {*families[0].required, *keys.aliases(families[0].name)}
    used |= KNOWN_TO_ADAPT.get(families[0].name, set()) | of_layers(families[0])
    assert {*config} - used - {*LABEL_KEYS, "problem_type"} <= {*ignored}  # nothing is left out without a word
    if name in PARAMETERS:
        shapes = by_path(_shapes(ours, task_of(families[0], config)))
        assert sum(leaf.size for leaf in shapes.values()) == PARAMETERS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_our_blocks_cannot_say_is_refused_by_name(name):
    with pytest.raises(CheckpointError, match=REFUSED[name]):
        read(name)


@pytest.mark.parametrize("name", sorted(OTHERS - {*REFUSED}))
def test_other_families_are_refused_by_name(name):
    kind = config_of(name)["model_type"]
    assert kind not in FAMILIES
    with pytest.raises(
        CheckpointError, match=rf"model_type='{kind}': transformer_jax converts gpt2, llama, marian, bert, t5, bart"
    ):
        folder_config.possible_classes(config_of(name), name)


@pytest.mark.parametrize("name", CLASSES)
def test_small_models_of_published_configs_are_read(name, tmp_path):
    config = reduced(config_of(name))
    write_folder(tmp_path / "folder", config)
    report = describe_folder(tmp_path / "folder")
    assert open_folder(tmp_path / "folder").family.class_name == CLASSES[name]
    assert {key for key, text in report["ignored"].items() if "transformers does not read it" in text} == {
        key for key in config if key in UNREAD or (name.startswith("Mistral") and key in UNREAD_OF_MISTRAL)
    }


UNREAD = {
    *("n_special", "predict_special_tokens", "n_ctx", "finetuning_task", "pruned_heads", "torchscript"),
    *("use_bfloat16", "output_past", "_num_labels", "add_bias_logits", "normalize_embedding", "classif_dropout"),
    *("static_position_embeddings", "extra_pos_embeddings", "do_blenderbot_90_layernorm"),
    *("_attn_implementation_autoset", "directionality", "pooler_fc_size", "pooler_num_attention_heads"),
    *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "prefix"),
}
"""Keys of these files that the source of transformers 5.23 does not have."""
UNREAD_OF_MISTRAL = {
    *("add_cross_attention", "cross_attention_hidden_size", "is_decoder", "tf_legacy_loss", "tie_encoder_decoder"),
    "tokenizer_class",
}
"""Such keys of a file with every default of version 4.38; transformers reads some of them for other families."""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.class_name}-{len(table.tensors)}")
def test_every_key_that_transformers_reads_is_used_refused_or_ignored_for_a_reason(table):
    known = {key.theirs for key in table.keys} | {*table.required, *COMMON_REQUIRED, *COMMON_IGNORED, *table.ignored}
    known |= KNOWN_TO_ADAPT.get(table.name, set()) | {*keys.aliases(table.name)} | of_layers(table)
    assert keys.of_family(table.name) - known == set()
    # Another reason than this one would be wrong.
    assert {*table.ignored} <= keys.of_family(table.name) | keys.of_library() | keys.of_generation()


def test_a_key_that_transformers_does_not_read_changes_nothing():
    theirs = {"model_type": "gpt2", "output_past": True, "auto_map": {"AutoModel": "code.Model"}, "num_beams": 3}
    theirs |= {"notes": ["a", {"b": 1}], "is_quantized_by": None, "unpadded_vocab_size": 3}
    config, ignored = folder_config.read_model_config(FAMILIES["gpt2"], theirs, "x")
    assert config == folder_config.read_model_config(FAMILIES["gpt2"], {}, "x")[0]
    assert ignored == {
        "model_type": "a note about the file",
        **dict.fromkeys(("output_past", "notes", "is_quantized_by"), "transformers does not read it for GPT-2"),
        "auto_map": "names code of the folder, which is not run",
        "num_beams": "a setting of generation; here those are the fields of `decode`",
        "unpadded_vocab_size": "a setting of the library, or of other models",
    }


@pytest.mark.parametrize(
    ("family", "given", "found"),
    [
        ("gpt2", {"n_layer": 3, "num_hidden_layers": 5}, {"num_decoder_layers": 5}),
        ("gpt2", {"num_hidden_layers": 5, "n_embd": 48}, {"num_decoder_layers": 5, "emb_dim": 48}),
        ("marian", {"encoder_layers": 3, "num_hidden_layers": 5}, {"num_encoder_layers": 5, "num_decoder_layers": 12}),
        ("bart", {"encoder_layers": 3, "num_hidden_layers": None}, {"num_encoder_layers": 3}),
        ("t5", {"num_layers": 3, "num_hidden_layers": 5}, {"num_encoder_layers": 5, "num_decoder_layers": 3}),
        ("t5", {"d_kv": 3, "head_dim": 5}, {"head_dim": 5}),
        ("t5", {"feed_forward_proj": "gated-gelu"}, {"activation": "geglu_tanh"}),
        ("t5", {"feed_forward_proj": "gated-gelu_new"}, {"activation": "geglu_tanh"}),
        ("t5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, {"activation": "geglu"}),
        ("t5", {"dense_act_fn": "gelu_new", "is_gated_act": True}, {"activation": "geglu_tanh"}),
        ("t5", {"feed_forward_proj": "gated-silu", "is_gated_act": False}, {"activation": "silu"}),
        ("t5", {"tie_word_embeddings": False}, {"scale_logits": False}),
        ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}, {"scale_logits": False}),
        ("vit", {"image_size": [32, 32], "patch_size": [8, 8]}, {"image_size": 32, "patch_size": 8}),
        ("vit", {"head_dim": 64}, {"head_dim": 64}),
        ("llama", {"rope_theta": 5e5, "rope_scaling": None}, {"rotary_base": 5e5}),
        ("llama", {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 7, "factor": 2}}, {"rotary_base": 7}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 1.0}}, {"rotary_base": 10_000.0}),
        ("llama", {"is_causal": True, "quantization_config": None}, {}),
        ("qwen2", {}, {"use_bias": False, "qkv_bias": True, "num_kv_heads": 32, "attention_window": None}),
        ("qwen2", {"bos_token_id": None, "eos_token_id": 7}, {"decoder_start_id": 7}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, {"attention_window": 4096}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 32}, {"attention_window": None}),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 9, "num_hidden_layers": 5, "max_window_layers": 3},
            {"layer_pattern": "AAABB", "layer_kinds": "A: attention_window=none; B: attention_window=9"},
        ),
        (
            "qwen3",
            {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4}
            | {"use_sliding_window": True, "sliding_window": 9},
            {"layer_pattern": "AB", "layer_kinds": "A: attention_window=9; B: attention_window=none"},
        ),
        ("qwen3", {"sliding_window": 9}, {"attention_window": None, "head_dim": 128, "qk_norm": "rms"}),
        ("mistral", {}, {"attention_window": 4096, "num_kv_heads": 8, "head_dim": 128, "qkv_bias": False}),
        ("mistral", {"sliding_window": None}, {"attention_window": None}),
        (
            "smollm3",
            {},
            {"layer_pattern": "AAAB", "layer_kinds": "A: attention_rotates=true; B: attention_rotates=false"}
            | {"rotary_base": 2e6, "tie_output": True, "attention_window": None},
        ),
        ("smollm3", {"no_rope_layer_interval": 99, "rope_theta": 5e6}, {"layer_pattern": "", "rotary_base": 5e6}),
        ("smollm3", {"no_rope_layers": [0] * 99}, {"attention_rotates": False, "layer_pattern": ""}),
        (
            "smollm3",
            {"use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 0], "num_hidden_layers": 3},
            {"layer_pattern": "ABB"}
            | {
                "layer_kinds": "A: attention_window=none, attention_rotates=true; "
                "B: attention_window=8, attention_rotates=false"
            },
        ),
        ("roberta", {"max_position_embeddings": 514, "type_vocab_size": 1}, {"max_length": 512, "token_types": 1}),
        ("roberta", {}, {"max_length": 510, "vocab_size": 50_265, "norm_epsilon": 1e-12}),
        ("olmo2", {}, {"norm_position": "output", "qk_norm": "rms_full", "norm_epsilon": 1e-5, "num_kv_heads": 32}),
        ("olmo2", {}, {"decoder_start_id": 50_279, "tie_output": False, "use_bias": False, "activation": "swiglu"}),
        ("olmo2", {"eos_token_id": 7, "rope_theta": 5e5}, {"decoder_start_id": 7, "rotary_base": 5e5}),
        ("olmo2", {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rotary_base": 7.0}),
        ("gpt_neox", {}, {"parallel": "two_norms", "rotary_fraction": 0.25, "rotary_base": 1e4, "head_dim": 96}),
        ("gpt_neox", {}, {"activation": "gelu", "tie_output": False, "norm_epsilon": 1e-5, "qkv_bias": True}),
        ("gpt_neox", {"use_parallel_residual": False}, {"parallel": "none"}),
        ("gpt_neox", {"hidden_act": "gelu_fast"}, {"activation": "gelu_tanh"}),
        ("gpt_neox", {"hidden_dropout": 0.2}, {"dropout_rate": 0.2, "embedding_dropout_rate": 0.2}),
        ("gpt_neox", {"rotary_emb_base": 7, "rotary_pct": 1}, {"rotary_base": 7.0, "rotary_fraction": 1.0}),
        ("gpt_neox", {"rope_theta": 7, "partial_rotary_factor": 0.5}, {"rotary_base": 1e4, "rotary_fraction": 0.25}),
        (
            "gpt_neox",
            {"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5}, "rotary_emb_base": 9}
            | {"rotary_pct": 1.0},
            {"rotary_base": 7.0, "rotary_fraction": 0.5},
        ),
        ("gpt_neox", {"rope_parameters": {"rope_theta": 7.0}, "rotary_pct": 0.5}, {"rotary_fraction": 0.5}),
        # transformers takes the whole part: 4 of 18 numbers.
        ("gpt_neox", {"hidden_size": 36, "num_attention_heads": 2}, {"rotary_fraction": 4 / 18, "rotary_dim": 4}),
        ("gpt_neox", {"head_dim": 96}, {"head_dim": 96}),
        ("vit", {"qkv_bias": False}, {"use_bias": True, "qkv_bias": False}),
        ("bert", {"is_causal": False}, {}),
    ],
)  # fmt: skip
def test_keys_mean_what_they_mean_in_transformers(family, given, found):
    config, _ = folder_config.read_model_config(FAMILIES[family], given, "x")
    assert {name: getattr(config, name) for name in found} == found


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        ("llama", {"is_causal": False}, "is_causal=False: transformer_jax supports only True; transformers lets every"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "the tensors are quantized; save the folder again"),
        ("bert", {"per_layer_config": {"0": {"hidden_act": "relu"}}}, "supports only None or {}; layers differ"),
        ("llama", {"transformers_weights": "other.safetensors"}, "names another file"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type='linear': transformer_jax cannot scale",
        ),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters with rope_type='yarn'"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "transformer_jax cannot scale"),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, "rope_theta='x': expected a number above 0"),
        ("t5", {"feed_forward_proj": "gated-relu"}, "dense_act_fn='relu', is_gated_act=True: expected one of"),
        ("t5", {"feed_forward_proj": "gelu-gated"}, "feed_forward_proj='gelu-gated': expected ACTIVATION or gated-A"),
        ("t5", {"dense_act_fn": ["relu"]}, r"dense_act_fn=\['relu'\]"),
        ("vit", {"image_size": [32, 16]}, r"image_size=\[32, 16\]: images and patches must be square"),
        ("vit", {"image_size": []}, r"image_size=\[\]: images and patches must be square"),
        ("vit", {"head_dim": 32}, "head_dim=32: a ViT here has hidden_size / num_attention_heads"),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type='relative_key': transformer_jax supports",
        ),
        ("qwen2", {"use_sliding_window": 1}, "use_sliding_window=1: expected true or false"),
        ("qwen2", {"sliding_window": 0}, "sliding_window=0: expected an integer above 0, or null"),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": None},
            "max_window_layers=None: expected an integer",
        ),
        ("qwen2", {"layer_types": ["full_attention"]}, "expected a list with a type for each of 32 layers"),
        (
            "qwen3",
            {"layer_types": ["full_attention", "chunked_attention"], "num_hidden_layers": 2},
            "layer_types has 'chunked_attention': transformer_jax has 'full_attention' and 'sliding_attention'",
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2},
            "layer_types has 'sliding_attention', but use_sliding_window=False and sliding_window=None give no window",
        ),
        ("qwen3", {"attention_bias": True}, "attention_bias=True: transformer_jax supports only False; with biases in"),
        ("qwen2", {"num_hidden_layers": 10**8}, "num_hidden_layers=100000000: transformer_jax reads at most 10,000"),
        ("qwen2", {"num_hidden_layers": "x"}, "num_hidden_layers='x': expected an integer, at least 0"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0: expected an integer, at least 1"),
        (
            "mistral",
            {"layer_types": ["full_attention"] * 32},
            "supports only None; transformers has one window for all",
        ),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers=\[1, 0\]: expected 0 or 1 for each of 36 layers"),
        ("smollm3", {"no_rope_layers": 4}, "no_rope_layers=4: expected 0 or 1"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0: expected an integer above 0"),
        ("smollm3", {"attention_bias": True}, "mlp_bias=False contradicts attention_bias=True"),
        ("smollm3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn': transformer_jax cannot"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id=0: transformer_jax supports only 1; positions are counted"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings=2: expected an integer above 2"),
        ("roberta", {"max_position_embeddings": "x"}, "max_position_embeddings='x': expected an integer above 2"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act='relu': expected one of 'gelu'"),
        ("roberta", {"tie_word_embeddings": False}, "tie_word_embeddings=False: transformer_jax supports only True"),
        ("olmo2", {"attention_bias": True}, "attention_bias=True: transformer_jax supports only False; with biases in"),
        ("olmo2", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type='yarn': transformer_jax cannot"),
        ("olmo2", {"hidden_act": "relu"}, "hidden_act='relu': expected one of 'silu', 'swish', 'gelu'"),
        ("olmo2", {"rms_norm_eps": "x"}, "rms_norm_eps='x': expected a number"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias=False: transformer_jax supports only True; without"),
        ("gpt_neox", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear': transformer_jax cannot"),
        ("gpt_neox", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        (
            "gpt_neox",
            {"rope_parameters": {"rope_theta": -1}},
            r"rope_parameters\.rope_theta=-1: expected a number above",
        ),
        ("gpt_neox", {"rotary_emb_base": "x"}, "rotary_emb_base='x': expected a number above 0"),
        ("gpt_neox", {"rotary_pct": 1.5}, r"rotary_pct=1\.5: expected a number from 0 to 1"),
        ("gpt_neox", {"rotary_pct": None}, "rotary_pct=None: expected a number from 0 to 1"),
        ("gpt_neox", {"rotary_pct": 0.125 / 4}, r"rotary_pct=0\.03125 rotates 3 of 96 numbers of a head; here rotary"),
        ("gpt_neox", {"use_parallel_residual": 1}, "use_parallel_residual=1: expected one of True, False"),
        ("gpt_neox", {"use_parallel_residual": "x"}, "use_parallel_residual='x': expected one of True, False"),
        ("gpt_neox", {"use_parallel_residual": []}, r"use_parallel_residual=\[\]: expected one of True, False"),
        ("gpt_neox", {"head_dim": 64}, "head_dim=64: a GPT-NeoX has hidden_size / num_attention_heads"),
        ("gpt_neox", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu': expected one of 'gelu_new'"),
        ("gpt_neox", {"hidden_size": 6145}, "num_heads=64 does not divide emb_dim=6145"),
        ("gpt_neox", {"num_attention_heads": 0}, "num_attention_heads=0: expected an integer, at least 1"),
        ("gpt_neox", {"num_attention_heads": "x"}, "num_attention_heads='x': expected an integer"),
        ("gpt2", {"n_layer": 10**8}, "n_layer=100000000: transformer_jax reads at most 10,000"),
        ("marian", {"num_hidden_layers": 10**8}, "encoder_layers=100000000: transformer_jax reads at most 10,000"),
        ("gpt2", {"vocab_size": 10**12}, "vocab_size=1000000000000: transformer_jax reads at most 2,147,483,647"),
        ("vit", {"image_size": [10**12, 10**12]}, "image_size=1000000000000: transformer_jax reads at most"),
        ("vit", {"num_labels": 10**12}, "num_labels=1000000000000: transformer_jax reads at most 100,000 labels"),
        (
            "vit",
            {"id2label": {"999999999999": "cat"}},
            "id2label with the id=999999999999: transformer_jax reads at most 100,000",
        ),
    ],
)
def test_a_value_that_changes_the_model_is_refused(family, given, message):
    with pytest.raises(CheckpointError, match=message):
        folder_config.read_model_config(FAMILIES[family], given, "x")


@pytest.mark.parametrize(("key", "value"), [("n_layer", 9_999), ("vocab_size", 2**31 - 1), ("n_positions", 2**31 - 1)])
def test_sizes_within_the_bounds_are_compared_with_the_tensors(key, value, tmp_path):
    config = reduced(config_of("gpt2"))
    write_folder(tmp_path / "folder", config)
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {key: value}))
    expected = "n_layer=9999: the folder has the tensors of 2 layers" if key == "n_layer" else "has the shape"
    with pytest.raises(CheckpointError, match=expected):
        describe_folder(tmp_path / "folder")


BASES = {
    "gpt2": ("GPT2Model", "gpt2"),
    "opus-mt-en-de": ("MarianModel", "marian"),
    "t5-small": ("T5Model", "t5"),
    "bart-large": ("BartModel", "bart"),
}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("said", ["class", "model_type", "nothing"])
def test_base_models_are_read(name, said, tmp_path):
    class_name, kind = BASES[name]
    config = {k: v for k, v in reduced(config_of(name)).items() if k not in ("architectures", "model_type")}
    whole = config | {"model_type": kind}
    write_folder(tmp_path / "whole", whole)
    write_folder(tmp_path / "base", whole, bare=True)
    names = {*load_file(tmp_path / "base" / "model.safetensors")}
    assert not any(name.startswith(("transformer.", "model.")) for name in names)
    given = {"class": whole | {"architectures": [class_name]}, "model_type": whole, "nothing": config}[said]
    (tmp_path / "base" / "config.json").write_text(json.dumps(given))
    folder = open_folder(tmp_path / "base")
    assert folder.family.name == kind
    assert folder.family.lacks == ()
    jax.tree.map(np.testing.assert_array_equal, folder.load().params, from_pretrained(tmp_path / "whole").params)


def test_an_output_that_a_base_model_lacks_is_named(tmp_path):
    config = reduced(config_of("Llama-2-7b-hf")) | {"architectures": ["LlamaModel"]}
    write_folder(tmp_path / "base", config, bare=True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: is missing; a base model has no output of its own"):
        describe_folder(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert describe_folder(tmp_path / "base")["model"]["tie_output"]


def test_t5_v1_1_without_an_output_of_its_own_uses_the_embedding(tmp_path):
    """As transformers 5 does; config.json only says whether the logits are scaled."""
    config = reduced(config_of("flan-t5-base"))
    write_folder(tmp_path / "base", config, bare=True)
    found = open_folder(tmp_path / "base").config
    assert (found.tie_output, found.scale_logits) == (True, False)


def test_a_classifier_of_bart_is_read_as_its_base_model(tmp_path):
    config = reduced(config_of("bart-large-mnli"))
    write_folder(tmp_path / "folder", config)
    file = tmp_path / "folder" / "model.safetensors"
    head = {"dense.weight": (24, 24), "dense.bias": (24,), "out_proj.weight": (3, 24), "out_proj.bias": (3,)}
    arrays = load_file(file) | {f"classification_head.{n}": np.ones(s, np.float32) for n, s in head.items()}
    save_file(arrays, file)
    report = describe_folder(tmp_path / "folder")
    assert report["task"] == "translation"
    left_out = {name for name, text in report["ignored"].items() if text == "the head for labels, which is left out"}
    assert left_out == {f"classification_head.{name}" for name in head}


@pytest.mark.parametrize("said", [["BertModel"], None])
@pytest.mark.parametrize("pooler", [True, False])
def test_the_encoder_of_bert_is_read_without_a_head(said, pooler, tmp_path):
    config = reduced(config_of("all-MiniLM-L6-v2"))
    write_folder(tmp_path / "folder", config)
    file = tmp_path / "folder" / "model.safetensors"
    arrays = {name: x for name, x in load_file(file).items() if pooler or not name.startswith("pooler")}
    assert "embeddings.word_embeddings.weight" in arrays
    save_file(arrays, file)
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {"architectures": said}))
    report = describe_folder(tmp_path / "folder")
    assert (report["family"], report["task"]) == ("BertModel", "classification")
    assert report["untrained"] == ["head/output/kernel", "head/output/bias"]
    params = from_pretrained(tmp_path / "folder").params
    assert ("pooler" in params["head"]) == pooler
    assert not np.any(params["head"]["output"]["kernel"])


@pytest.mark.parametrize("pooler", [True, False])
def test_the_encoder_of_a_vit_is_read_without_a_head(pooler, tmp_path):
    config = reduced(config_of("vit-base-patch16-224--resaved-4.57")) | {"architectures": ["ViTModel"]}
    del config["id2label"], config["label2id"]
    write_folder(tmp_path / "folder", config)
    file = tmp_path / "folder" / "model.safetensors"
    save_file({n: x for n, x in load_file(file).items() if pooler or not n.startswith("pooler")}, file)
    folder = open_folder(tmp_path / "folder")
    assert (folder.family.label, folder.task.pooler) == ("ViTModel", pooler)
    assert describe_folder(tmp_path / "folder")["untrained"] == ["head/output/kernel", "head/output/bias"]


@pytest.mark.parametrize("name", ["Mistral-7B-Instruct-v0.3--expanded-4.38", "Llama-2-7b-hf"])
def test_families_with_the_same_tensors_are_told_apart_by_their_keys(name, tmp_path):
    """Without `model_type` and `architectures`."""
    config = reduced(config_of(name))
    write_folder(tmp_path / "folder", config)
    family, given = config["model_type"], {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    given |= {"sliding_window": 5} if family == "mistral" else {}
    (tmp_path / "folder" / "config.json").write_text(json.dumps(given))
    folder = open_folder(tmp_path / "folder")
    assert (folder.family.name, folder.config.attention_window) == (family, given.get("sliding_window"))


def test_a_folder_that_nothing_names_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    save_file({"strange": np.ones(3, np.float32)}, tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no model_type, and the tensors are those of none of gpt2, llama"):
        open_folder(tmp_path / "folder")


def test_two_classes_with_one_name_are_told_apart(tmp_path):
    config = reduced(config_of("vit-base-patch16-224--resaved-4.57"))
    write_folder(tmp_path / "folder", config)
    folder = open_folder(tmp_path / "folder")
    assert (len(folder.labels), len({*folder.labels})) == (1000, 1000)
    assert (folder.labels[134], folder.labels[517]) == ("crane", "crane (517)")
    assert folder.ignored["id2label"].startswith("1 labels have the name of an earlier label")


@pytest.mark.parametrize(("version", "warns"), [("5.23.9", False), ("5.24.0.dev0", True), ("6.0", True), ("x", False)])
def test_a_later_transformers_is_named(version, warns, tmp_path, capsys):
    write_folder(tmp_path / "folder", reduced(config_of("gpt2")) | {"transformers_version": version})
    assert main(["inspect", f"--folder={tmp_path / 'folder'}"]) == 0
    out = capsys.readouterr().out
    assert (f"transformers {version} wrote it; transformer_jax knows the keys of transformers 5.23.0" in out) == warns
    assert ("warnings:" in out) == warns
    assert "\n  summary_type: of the head for classification\n" in out


def test_a_run_starts_from_a_base_model_with_new_outputs(tmp_path, capsys):
    config = reduced(config_of("all-MiniLM-L6-v2"))
    write_folder(tmp_path / "folder", config)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "folder" / "vocab.txt").write_text("\n".join(words) + "\n")
    run = tmp_path / "run"
    assert main(["convert", f"--from={tmp_path / 'folder'}", f"--workdir={run}"]) == 0
    said = capsys.readouterr().err
    assert "a base model: head/output/kernel, head/output/bias are zeros" in said
    assert "ignored: _name_or_path, architectures, " in said
    converted = ExperimentConfig.from_config_dict(json.loads((run / "config.json").read_text()))
    training = dataclasses.replace(converted.training, init_from=str(run))
    outputs = {"head/output/kernel", "head/output/bias"}
    for task, new in (
        (dataclasses.replace(converted.task, num_labels=5), outputs),
        (TaskConfig(name="tagging", num_labels=5), outputs),
        (TaskConfig(name="span_qa"), outputs),
    ):
        own = dataclasses.replace(converted, task=task, training=training)
        with open_workdir(tmp_path / task.name, own.to_dict()) as directory:
            found = open_other_run(own, directory, param_shapes(own))
        assert {*found.new} == new
        assert ("head/pooler/kernel" in found.loaded) == (task.name == "classification")
        assert not outputs & {*found.unused}
        found.check_labels(["x", "y", "z", "u", "v"])  # those of the folder are of no trained head


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("gpt2", {"resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0, "layer_norm_epsilon": 1, "initializer_range": 1}),
        ("llama", {"attention_dropout": 0, "initializer_range": 1, "rms_norm_eps": 1, "rope_theta": 100}),
        ("bert", {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "layer_norm_eps": 1}),
        ("qwen3", {"attention_dropout": 0, "rms_norm_eps": 1, "rope_theta": 1_000_000}),
    ],
)
def test_integers_of_a_config_are_floats_where_our_field_is_one(family, values):
    """Published files have a rate of 0, not 0.0; checked parameters of blocks are floats."""
    config, _ = folder_config.read_model_config(FAMILIES[family], {"model_type": family, **values}, "here")
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        assert not ("float" in str(field.type) and type(value) is int), field.name


def test_a_bert_without_token_types_is_refused():
    with pytest.raises(CheckpointError, match="type_vocab_size=0: expected an integer, at least 1"):
        folder_config.read_model_config(FAMILIES["bert"], {"model_type": "bert", "type_vocab_size": 0}, "here")
