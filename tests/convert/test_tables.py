"""The tables of the families, and their use in both directions."""

import json

import jax
import numpy as np
import pytest
from support import random_params, tiny

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.convert import folder_config
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.folder import from_pretrained, save_pretrained
from transformer_jax.convert.layouts import FUSED_LINEAR, FUSED_VECTOR, Layout, halved, interleaved
from transformer_jax.convert.tensor_files import SINGLE, Outgoing, TensorFiles, write_tensors
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models import presets
from transformer_jax.tasks.task import TASKS

LIKE = {
    "gpt2": {
        **{"architecture": "decoder_only", "norm_position": "pre", "position_encoding": "learned"},
        **{"activation": "gelu_tanh", "scale_embeddings": False},
    },
    "llama": {
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "rmsnorm", "position_encoding": "rotary"},
        **{"activation": "swiglu", "scale_embeddings": False, "use_bias": False},
    },
    "marian": {"norm_epsilon": 1e-5},
    "bert": {
        **{"architecture": "encoder_only", "position_encoding": "learned", "scale_embeddings": False},
        **{"embedding_norm": True, "token_types": 3, "activation": "gelu"},
    },
    "t5": {
        **{"norm_position": "pre", "norm": "rmsnorm", "position_encoding": "relative", "use_bias": False},
        **{"attention_scale": False, "scale_embeddings": False},
    },
    "bart": {"norm_epsilon": 1e-5, "position_encoding": "learned", "embedding_norm": True, "activation": "gelu"},
    "vit": {
        **{"architecture": "encoder_only", "inputs": "patches", "image_size": 12, "patch_size": 4},
        **{"norm_position": "pre", "position_encoding": "learned", "activation": "gelu"},
    },
}
LIKE |= {
    "qwen2": LIKE["llama"] | {"qkv_bias": True},
    "qwen3": LIKE["llama"] | {"qk_norm": "rms"},
    "mistral": LIKE["llama"] | {"attention_window": 4},
    "smollm3": LIKE["llama"],
    "olmo2": LIKE["llama"] | {"norm_position": "output", "qk_norm": "rms_full"},
    "gpt_neox": LIKE["gpt2"]
    | {"position_encoding": "rotary", "rotary_fraction": 0.5, "parallel": "two_norms", "activation": "gelu"},
}
WINDOWS = {"layer_pattern": "AB", "layer_kinds": "A: attention_window=none; B: attention_window=4"}
NO_ROPE = {"layer_pattern": "AB", "layer_kinds": "A: attention_rotates=true; B: attention_rotates=false"}
BOTH = {
    "layer_pattern": "ABC",
    "layer_kinds": "A: attention_window=none, attention_rotates=true; B: attention_window=4, attention_rotates=false; "
    "C: attention_window=none, attention_rotates=false",
}
TASKS_OF = {
    "masked_lm": TaskConfig(name="masked_lm"),
    "classification": TaskConfig(name="classification", num_labels=5, pooler=True),
    "tagging": TaskConfig(name="tagging", num_labels=5),
    "span_qa": TaskConfig(name="span_qa"),
    "images": TaskConfig(name="images", num_labels=5),
}
OPTIONS = [
    ("gpt2", {}),
    ("gpt2", {"tie_output": False, "attention_scale": False, "activation": "silu"}),
    ("llama", {"num_kv_heads": 2}),
    ("llama", {"num_kv_heads": 1, "head_dim": 6, "tie_output": False, "activation": "geglu", "use_bias": True}),
    ("qwen2", {"num_kv_heads": 2}),
    ("qwen2", {"head_dim": 6, "tie_output": False, "attention_window": 3}),
    ("qwen2", WINDOWS),
    ("qwen3", {"num_kv_heads": 2, "head_dim": 6}),
    ("qwen3", {"tie_output": False, "num_decoder_layers": 4, **WINDOWS}),
    ("mistral", {"num_kv_heads": 2, "tie_output": False}),
    ("smollm3", NO_ROPE),
    ("smollm3", {"attention_rotates": False, "attention_window": 4, "use_bias": True}),
    ("smollm3", {"num_decoder_layers": 5, **BOTH}),
    ("olmo2", {"num_kv_heads": 2}),
    ("olmo2", {"head_dim": 6, "tie_output": False, "activation": "geglu"}),
    ("gpt_neox", {}),
    ("gpt_neox", {"parallel": "none", "tie_output": False, "activation": "gelu_tanh", "rotary_fraction": 1.0}),
    ("gpt_neox", {"num_heads": 2, "rotary_fraction": 0.25}),
    ("marian", {}),
    ("marian", {"output_bias": True, "share_embeddings": False, "activation": "silu"}),
    ("marian", {"tie_output": False, "scale_embeddings": False}),
    ("masked_lm", {"output_bias": True, "num_encoder_layers": 3}),
    *((task, {}) for task in ("classification", "tagging", "span_qa")),
    ("t5", {"scale_logits": True, "head_dim": 6, "num_encoder_layers": 3}),
    ("t5", {"tie_output": False, "activation": "geglu_tanh"}),
    ("bart", {}),
    ("bart", {"output_bias": True, "scale_embeddings": False}),
    ("images", {"image_channels": 1, "pixel_mean": "0.1307", "pixel_std": "0.25"}),
    ("images", {"pixel_mean": "0.1,0.2,0.7", "patch_size": 6}),
    ("images", {"qkv_bias": False}),
]


PIXELS = {"pixel_mean", "pixel_std"}
IMAGES = {"inputs", "image_size", "image_channels", "patch_size", "class_token"}


RECURRENT = {
    *("cell", "hidden_dim", "cell_biases", "bidirectional", "bridge", "attention", "input_feeding", "feed_context"),
    "deep_output",
}


def like(family, **fields):
    return tiny(**LIKE[_family_of(family)] | fields)


def _family_of(name):
    return "vit" if name == "images" else "bert" if name in TASKS_OF else name


@pytest.mark.parametrize(("family", "fields"), OPTIONS)
def test_export_and_import_is_bitwise_the_same_tree(family, fields, tmp_path):
    config, task = like(family, **fields), TASKS_OF.get(family)
    params = random_params(config, head=None if task is None else TASKS[task.name].head(task, config))
    table = folder_config.closest(config, TaskConfig(name=FAMILIES[family].tasks[0]) if task is None else task)
    assert table.name == _family_of(family)
    labels = ("B", "A", "C", "E", "D") if task and task.name in ("classification", "tagging", "images") else ()
    save_pretrained(tmp_path / "folder", config, params, task=task, labels=labels)
    again = from_pretrained(tmp_path / "folder")
    assert jax.tree.structure(again.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
    differing = {k for k, v in vars(config).items() if getattr(again.config, k) != v}
    left = {"init", "max_length", "head_dropout_rate"}
    assert differing <= folder_config.fields_without_meaning(table) - PIXELS | left
    assert again.labels == labels
    if task is not None:
        assert again.task == task


@pytest.mark.parametrize("name", [name for name in TASKS_OF if name != "images"])
def test_a_roberta_has_two_rows_of_positions_that_nothing_reads(name, tmp_path):
    task = TASKS_OF[name]
    config = like("bert", token_types=1, output_bias=name == "masked_lm")
    params = random_params(config, head=TASKS[name].head(task, config))
    labels = tuple("BACED") if task.num_labels == 5 else ()
    folder = tmp_path / "folder"
    save_pretrained(folder, config, params, task=task, labels=labels, family="roberta")
    theirs, files = json.loads((folder / "config.json").read_text()), TensorFiles(folder)
    assert (theirs["model_type"], theirs["max_position_embeddings"], theirs["pad_token_id"]) == ("roberta", 14, 1)
    rows = files.read("roberta.embeddings.position_embeddings.weight")
    np.testing.assert_array_equal(rows[2:], params["encoder"]["position_embedding"]["learned"]["embedding"])
    assert not rows[:2].any()
    again = from_pretrained(folder)
    assert (again.task, again.labels, again.config.max_length) == (task, labels, 12)
    jax.tree.map(np.testing.assert_array_equal, again.params, params)


def test_the_head_of_roberta_for_masked_words_has_gelu():
    """It has whatever the activation of the model; the other heads have none."""
    config = like("bert", token_types=1, output_bias=True, activation="relu")
    with pytest.raises(ConfigError, match=r"model\.activation='relu': RoBERTa has gelu"):
        folder_config.write_model_config(FAMILIES["roberta"], config, TASKS_OF["masked_lm"])
    table = folder_config.family_named("roberta", TASKS_OF["tagging"])
    assert folder_config.write_model_config(table, config, TASKS_OF["tagging"])["hidden_act"] == "relu"


MARIAN_TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("share_embeddings", [True, False])
def test_tables_that_transformers_reads(tie_output, share_embeddings, tmp_path):
    """Without a tied output, it has three tables beside the output: only those of the two sides are used."""
    config = like("marian", tie_output=tie_output, share_embeddings=share_embeddings)
    params = random_params(config)
    save_pretrained(tmp_path / "folder", config, params)
    files = TensorFiles(tmp_path / "folder")
    shared, tables = {"model.shared.weight"}, {*MARIAN_TABLES}
    expected = (shared if tie_output else shared | tables) if share_embeddings else tables
    assert {name for name in files.tensors if "embed_tokens" in name or "shared" in name} == expected
    assert ("lm_head.weight" in files.tensors) == (not tie_output)
    if share_embeddings:
        for name in expected:
            np.testing.assert_array_equal(files.read(name), halved(np.asarray(params["embedding"]["embedding"]), 1))


def test_tables_of_an_untied_marian_that_differ(tmp_path):
    """transformers reads those of the two sides, whatever the third one holds."""
    config = like("marian", tie_output=False)
    save_pretrained(tmp_path / "folder", config, random_params(config))
    files = TensorFiles(tmp_path / "folder")
    arrays = {name: np.array(files.read(name)) for name in files.tensors}
    for name, number in zip(("model.shared.weight", *MARIAN_TABLES), (7, 8, 9), strict=True):
        arrays[name][0] = number
    (tmp_path / "folder" / SINGLE).unlink()
    write_tensors(tmp_path / "folder", [Outgoing(n, x.shape, lambda x=x: x) for n, x in arrays.items()])
    model = from_pretrained(tmp_path / "folder")
    assert (model.config.share_embeddings, model.config.source_vocab_size) == (False, config.vocab_size)
    assert model.params["source_embedding"]["embedding"][0, 0] == 8
    assert model.params["embedding"]["embedding"][0, 0] == 9
    assert model.ignored["model.shared.weight"] == "not used: encoder and decoder have tables of their own"


def test_every_field_of_the_model_is_in_the_table_or_has_no_meaning_in_the_family():
    relative = {"relative_num_buckets", "relative_max_distance"}
    common = {"rotary_base", *relative, *IMAGES, *PIXELS, *RECURRENT}
    encoder = {"num_encoder_layers", "share_embeddings", "source_vocab_size"}
    assert folder_config.fields_without_meaning(FAMILIES["gpt2"]) == common | encoder
    for name in ("llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2", "gpt_neox"):  # rotary_base: `Family.rope`
        assert folder_config.fields_without_meaning(FAMILIES[name]) == common | encoder
    # The tensors, not a key, say whether Marian has a bias.
    assert folder_config.fields_without_meaning(FAMILIES["marian"]) == common | {"output_bias", "parallel"}
    of_bart = common | {"output_bias", "source_vocab_size", "parallel"}
    assert folder_config.fields_without_meaning(FAMILIES["bart"]) == of_bart
    of_t5 = common - relative | {"source_vocab_size", "parallel"}
    assert folder_config.fields_without_meaning(FAMILIES["t5"]) == of_t5
    decoder = {"num_decoder_layers", "share_embeddings", "decoder_start_id", "source_vocab_size"}
    for name in ("bert", "roberta"):
        assert folder_config.fields_without_meaning(FAMILIES[name]) == common - {"inputs"} | decoder
    of_vocabulary = {"tie_output", "output_bias", "scale_logits"}
    for task in ("classification", "tagging", "span_qa"):
        table = folder_config.family_named("bert", TaskConfig(name=task))
        assert folder_config.fields_without_meaning(table) == common - {"inputs"} | decoder | of_vocabulary
    # preprocessor_config.json has the mean and the deviation of pixels.
    of_text = {"vocab_size", "max_length", "scale_embeddings", "token_types", "attention_window"}
    of_text |= {"embedding_multiplier", "logits_multiplier", "output_logit_cap"}
    expected = common - IMAGES | decoder | of_vocabulary | of_text
    assert folder_config.fields_without_meaning(FAMILIES["vit"]) == expected


def test_rows_that_nothing_reads():
    x, layout = np.arange(6.0).reshape(2, 3), Layout(inputs=1, transposed=False, skipped=2)
    theirs = layout.to_theirs(x)
    assert theirs.shape == layout.shape(x.shape) == (4, 3)
    assert not theirs[:2].any()
    np.testing.assert_array_equal(layout.to_ours(theirs, x.shape), x)


@pytest.mark.parametrize(
    "layout", [Layout(i, t, h) for i in (None, 1, 2) for t in (True, False) for h in (True, False)]
)
def test_layouts_are_invertible(layout):
    x = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    theirs = layout.to_theirs(x)
    assert theirs.shape == layout.shape(x.shape)
    np.testing.assert_array_equal(layout.to_ours(theirs, x.shape), x)


def test_gains_over_all_heads_are_reordered_in_each_head():
    """Theirs has the first numbers of all pairs of a head before the second ones, ours has every pair side by side."""
    layout = Layout(inputs=None, halves=True, head_dim=4)
    np.testing.assert_array_equal(layout.to_ours(np.arange(8), (8,)), [0, 2, 1, 3, 4, 6, 5, 7])
    np.testing.assert_array_equal(layout.to_theirs(np.array([0, 2, 1, 3, 4, 6, 5, 7])), np.arange(8))


def test_only_the_rotated_part_of_a_head_is_reordered():
    layout = Layout(inputs=None, halves=True).of(like("gpt_neox", num_heads=2, rotary_fraction=0.5))  # 4 of 8
    np.testing.assert_array_equal(
        layout.to_ours(np.arange(16), (2, 8)), [[0, 2, 1, 3, 4, 5, 6, 7], [8, 10, 9, 11, 12, 13, 14, 15]]
    )
    np.testing.assert_array_equal(layout.to_theirs(layout.to_ours(np.arange(16), (2, 8))), np.arange(16))
    none = Layout(inputs=None, halves=True).of(like("gpt_neox", rotary_fraction=0.0))
    np.testing.assert_array_equal(none.to_ours(np.arange(16), (4, 4)), np.arange(16).reshape(4, 4))


def test_queries_keys_and_values_of_a_head_are_together():
    """GPT-NeoX: [q of head 0, k of head 0, v of head 0, q of head 1, ...], and only q and k are rotated."""
    bias = FUSED_VECTOR.of(like("gpt_neox", emb_dim=8, num_heads=2, rotary_fraction=1.0))
    q, k, v = bias.split(np.arange(24), [(2, 4)] * 3)
    np.testing.assert_array_equal(q, [[0, 2, 1, 3], [12, 14, 13, 15]])
    np.testing.assert_array_equal(k, [[4, 6, 5, 7], [16, 18, 17, 19]])
    np.testing.assert_array_equal(v, [[8, 9, 10, 11], [20, 21, 22, 23]])
    np.testing.assert_array_equal(bias.join([q, k, v]), np.arange(24))
    kernel = FUSED_LINEAR.of(like("gpt_neox", emb_dim=8, num_heads=2, rotary_fraction=1.0))
    theirs = 100 * np.arange(24)[:, None] + np.arange(8)  # [features, inputs]
    for found, of_bias in zip(kernel.split(theirs, [(8, 2, 4)] * 3), (q, k, v), strict=True):
        np.testing.assert_array_equal(found, 100 * of_bias + np.arange(8)[:, None, None])
    np.testing.assert_array_equal(kernel.join(kernel.split(theirs, [(8, 2, 4)] * 3)), theirs)


def test_orders_of_sines_and_cosines():
    np.testing.assert_array_equal(interleaved(np.array([[0, 1, 2, 10, 11, 12]]), 1), [[0, 10, 1, 11, 2, 12]])
    np.testing.assert_array_equal(halved(np.array([[0, 10, 1, 11, 2, 12]]), 1), [[0, 1, 2, 10, 11, 12]])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"norm": "rmsnorm"}, "model.norm='rmsnorm': MarianMT has 'layernorm'"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon=1e-06: MarianMT has 1e-05"),
        ({"norm_position": "pre"}, "model.norm_position='pre': MarianMT has 'post'"),
        ({"norm_position": "peri"}, "model.norm_position='peri': MarianMT has 'post'"),
        ({"norm_scale": "offset"}, "model.norm_scale='offset': MarianMT has 'learned'"),
        ({"residual_scale": "vector"}, "model.residual_scale='vector': MarianMT has 'none'"),
        ({"residual_multiplier": 0.5}, "model.residual_multiplier=0.5: MarianMT has 1.0"),
        ({"residual_lambdas": True}, "model.residual_lambdas=True: MarianMT has False"),
        ({"num_kv_heads": 2}, "model.num_kv_heads=2: MarianMT has 4"),
        ({"attention_window": 4}, "model.attention_window=4: MarianMT has None"),
        ({"attention_logit_cap": 30.0}, "model.attention_logit_cap=30.0: MarianMT has None"),
        ({"attention_multiplier": 0.2}, "model.attention_multiplier=0.2: MarianMT has None"),
        ({"attention_sink": "learned"}, "model.attention_sink='learned': MarianMT has 'none'"),
        ({"layer_pattern": "S", "layer_kinds": "S: attention_window=4"}, "model.layer_pattern='S': MarianMT has ''"),
        ({"activation": "geglu"}, "model.activation='geglu': MarianMT has gelu_tanh, gelu, relu, silu"),
        ({"activation": "relu2"}, "model.activation='relu2': MarianMT has gelu_tanh, gelu, relu, silu"),
        ({"embedding_multiplier": 2.0}, "model.embedding_multiplier=2.0: MarianMT has 1.0"),
        ({"logits_multiplier": 2.0}, "model.logits_multiplier=2.0: MarianMT has 1.0"),
        ({"output_logit_cap": 30.0}, "model.output_logit_cap=30.0: MarianMT has None"),
    ],
)
def test_what_a_family_cannot_express_is_refused_and_named(fields, named, tmp_path):
    config = like("marian", **fields)
    with pytest.raises(ConfigError) as raised:
        save_pretrained(tmp_path / "folder", config, random_params(config))
    assert named in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_parallel_parts_cannot_be_written_as_llama(tmp_path):
    config = like("llama", parallel="one_norm")
    with pytest.raises(ConfigError, match=r"model\.parallel='one_norm': Llama has 'none'"):
        save_pretrained(tmp_path / "folder", config, random_params(config), family="llama")


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("llama", {"qk_norm": "rms"}, "model.qk_norm='rms': Llama has 'none'"),
        ("llama", {"qkv_bias": True}, "model.qkv_bias=True: Llama has False"),
        ("llama", NO_ROPE, "model.layer_pattern='AB': Llama has ''"),
        ("gpt2", {"qkv_bias": False}, "model.qkv_bias=False: GPT-2 has True"),
        ("qwen2", {"qkv_bias": False}, "model.qkv_bias=False: Qwen2 has True"),
        ("qwen2", {"use_bias": True}, "model.use_bias=True: Qwen2 has False"),
        ("qwen2", NO_ROPE, "model.attention_rotates=False: Qwen2 has True in all layers"),
        ("qwen3", {"qk_norm": "none"}, "model.qk_norm='none': Qwen3 has 'rms'"),
        ("qwen3", {"position_encoding": "learned"}, "model.position_encoding='learned': Qwen3 has 'rotary'"),
        (
            "qwen3",
            {"layer_pattern": "AB", "layer_kinds": "A: attention_window=3; B: attention_window=5"},
            "model.attention_window is 3 and 5: Qwen3 has one window",
        ),
        ("mistral", WINDOWS, "model.layer_pattern='AB': Mistral has ''"),
        ("mistral", {"attention_rotates": False}, "model.attention_rotates=False: Mistral has True"),
        (
            "smollm3",
            {"layer_pattern": "AB", "layer_kinds": "A: rotary_base=100; B:"},
            "model.layer_kinds='A: rotary_base=100; B:': SmolLM3 has rotary_base=10000.0 in all layers",
        ),
        (
            "smollm3",
            {"layer_pattern": "AB", "layer_kinds": "A: mixer=gated_delta; B:"},
            "model.layer_kinds='A: mixer=gated_delta; B:': SmolLM3 has mixer='attention' in all layers",
        ),
        ("olmo2", {"norm_position": "pre"}, "model.norm_position='pre': OLMo 2 has 'output'"),
        ("olmo2", {"norm_position": "sandwich"}, "model.norm_position='sandwich': OLMo 2 has 'output'"),
        ("olmo2", {"qk_norm": "rms"}, "model.qk_norm='rms': OLMo 2 has 'rms_full'"),
        ("olmo2", {"qk_norm_after_rotation": True}, "model.qk_norm_after_rotation=True: OLMo 2 has False"),
        ("olmo2", {"rotary_fraction": 0.5}, "model.rotary_fraction=0.5: OLMo 2 has 1.0"),
        ("olmo2", {"attention_window": 4}, "model.attention_window=4: OLMo 2 has None"),
        ("llama", LIKE["olmo2"], "model.norm_position='output': Llama has 'pre'"),
        ("gpt_neox", {"parallel": "one_norm"}, "model.parallel='one_norm': GPT-NeoX has two_norms, none"),
        ("gpt_neox", {"norm_position": "post", "parallel": "none"}, "model.norm_position='post': GPT-NeoX has 'pre'"),
        ("gpt_neox", {"num_kv_heads": 2}, "model.num_kv_heads=2: GPT-NeoX has 4"),
        ("gpt_neox", {"head_dim": 6}, "model.head_dim=6: GPT-NeoX has 4"),
        ("gpt_neox", {"use_bias": False}, "model.use_bias=False: GPT-NeoX has True"),
        ("gpt_neox", {"qkv_bias": False}, "model.qkv_bias=False: GPT-NeoX has True"),
        ("gpt_neox", {"output_bias": True}, "model.output_bias=True: GPT-NeoX has False"),
        ("gpt_neox", {"activation": "swiglu"}, "model.activation='swiglu': GPT-NeoX has gelu_tanh, gelu, relu, silu"),
        ("gpt_neox", NO_ROPE, "model.layer_pattern='AB': GPT-NeoX has ''"),
        ("gpt2", LIKE["gpt_neox"], "model.parallel='two_norms': GPT-2 has 'none'"),
    ],
)
def test_what_a_decoder_cannot_express_is_named(family, fields, named):
    assert named in folder_config.unsaid(FAMILIES[family], like(family, **fields))


def test_keys_of_windows_for_versions_that_do_not_read_a_list():
    config = like("qwen2", num_decoder_layers=4, layer_pattern="AAAB", layer_kinds=WINDOWS["layer_kinds"])
    theirs = folder_config.write_model_config(FAMILIES["qwen2"], config, TaskConfig(name="language_model"))
    assert theirs["layer_types"] == [*["full_attention"] * 3, "sliding_attention"]
    assert (theirs["use_sliding_window"], theirs["sliding_window"], theirs["max_window_layers"]) == (True, 4, 3)
    del theirs["layer_types"]
    assert folder_config.read_model_config(FAMILIES["qwen2"], theirs, "x")[0].layer_pattern == "AAAB"


def test_the_family_that_can_express_a_model_is_suggested(tmp_path):
    config = like("llama", use_bias=False)
    with pytest.raises(
        ConfigError,
        match=r"(?s)this model cannot be written as GPT-2.*model\.norm='rmsnorm'.*This family can: --family=llama",
    ):
        save_pretrained(tmp_path / "folder", config, random_params(config), family="gpt2")


def test_a_width_that_the_heads_of_llama_do_not_divide_is_refused(tmp_path):
    config = like("llama", emb_dim=18, head_dim=4)
    with pytest.raises(ConfigError, match=r"model\.emb_dim=18: Llama has 16"):
        save_pretrained(tmp_path / "folder", config, random_params(config), family="llama")


def test_fields_for_training_alone_are_named(tmp_path):
    config = like("llama", use_bias=False, activation_dropout_rate=0.3)
    left_out = save_pretrained(tmp_path / "folder", config, random_params(config))
    assert left_out == ["model.activation_dropout_rate=0.3"]
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["attention_dropout"] == 0.0


@pytest.mark.parametrize("task", [task for task in TASKS_OF if _family_of(task) == "bert"])
def test_the_dropout_of_a_head_for_labels(task):
    table = folder_config.family_named("bert", TASKS_OF[task])
    theirs = {"model_type": "bert", "hidden_dropout_prob": 0.2, "classifier_dropout": 0.3}
    config, ignored = folder_config.read_model_config(table, theirs, "x")
    if task in ("masked_lm", "span_qa"):
        assert config.head_dropout_rate is None
        assert ignored["classifier_dropout"] == "of a head for labels, which this class does not have"
        assert "classifier_dropout" not in folder_config.write_model_config(table, config, TASKS_OF[task])
        return
    assert (config.head_dropout_rate, ignored) == (0.3, {"model_type": "a note about the file"})
    assert folder_config.write_model_config(table, config, TASKS_OF[task])["classifier_dropout"] == 0.3
    assert folder_config.not_written(table, config) == []
    # Without the key the rate is that of the other layers, in transformers and here.
    config, _ = folder_config.read_model_config(table, theirs | {"classifier_dropout": None}, "x")
    whole = ExperimentConfig(model=config, task=TASKS_OF[task]).resolved()
    assert (config.head_dropout_rate, whole.model.head_dropout_rate) == (None, 0.2)


def test_a_vit_has_no_dropout_in_its_head():
    table = folder_config.family_named("vit", TASKS_OF["images"])
    config, _ = folder_config.read_model_config(table, {"model_type": "vit", "hidden_dropout_prob": 0.2}, "x")
    assert (config.dropout_rate, config.head_dropout_rate) == (0.2, 0.0)


def test_presets_are_models_of_their_families():
    published = {
        "gpt2": [presets.gpt2("medium")],
        "llama": [presets.llama2_7b(), presets.llama3_2_1b()],
        "bert": [presets.bert("base"), presets.bert("large")],
        "t5": [presets.t5("small"), presets.t5_v1_1("base")],
        "bart": [presets.bart("large")],
        "vit": [presets.vit("B/16"), presets.vit("H/14")],
    }
    for family, configs in published.items():
        for config in configs:
            assert folder_config.unsaid(FAMILIES[family], config.resolved()) == []


def test_the_class_is_that_of_the_architectures():
    def named(*names):
        config = {"model_type": "bert", "architectures": list(names)}
        return [family.class_name for family in folder_config.possible_classes(config, "x")]

    assert named("BertForPreTraining") == ["BertForMaskedLM"]
    assert named("BertForQuestionAnswering") == ["BertForQuestionAnswering"]
    assert named("BertModel") == ["BertModel", "BertModel"]  # with and without a pooler
    assert named()[0] == "BertForMaskedLM"
    assert len(named()) == 6
    with pytest.raises(
        CheckpointError, match=r"architectures=\['BertForMultipleChoice'\]: of BERT, transformer_jax converts BertForM"
    ):
        named("BertForMultipleChoice")


def test_a_task_without_a_class_is_refused(tmp_path):
    config = like("bert", output_bias=True)
    with pytest.raises(ConfigError, match=r"family='t5': has no class for task\.name='tagging'; it has some for trans"):
        folder_config.family_named("t5", TaskConfig(name="tagging"))
    with pytest.raises(ConfigError, match=r"task\.pooling='mean': BertForSequenceClassification has 'first'"):
        folder_config.write_model_config(
            folder_config.family_named("bert", TaskConfig(name="classification")),
            config,
            TaskConfig(name="classification", pooling="mean"),
        )


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("scale_logits", [True, False])
def test_the_output_of_t5_is_tied_and_scaled_independently(tie_output, scale_logits, tmp_path):
    """transformers 4 had one key for both. A tied T5 v1.1 has unscaled logits, as transformers 5 writes it."""
    config = like("t5", tie_output=tie_output, scale_logits=scale_logits)
    save_pretrained(tmp_path / "folder", config, random_params(config))
    theirs = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert (theirs["tie_word_embeddings"], theirs["scale_decoder_outputs"]) == (tie_output, scale_logits)
    again = from_pretrained(tmp_path / "folder").config
    assert (again.tie_output, again.scale_logits) == (tie_output, scale_logits)
