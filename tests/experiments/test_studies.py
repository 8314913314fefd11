"""Every study in experiments/: its variants build, its documents exist, and it runs to its report."""

import dataclasses
import functools
import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from published_support import config_of, reduced, write_folder

from experiments.decoding import cost
from experiments.masking_rate.common_rate import masked_lm_scores
from experiments.objectives.pretraining import size
from transformer_jax.cli.main import main
from transformer_jax.config import walk
from transformer_jax.config_file import read_config
from transformer_jax.data.sources import load_source
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.metrics_file import NAME, readable_lines
from transformer_jax.sweeps.planned_batches import planned_batches
from transformer_jax.sweeps.rebased_study import with_baseline
from transformer_jax.sweeps.report.markdown import escaped
from transformer_jax.sweeps.report.sentences import NOT_SHOWN
from transformer_jax.sweeps.results import TRIALS, claim_sweep, read_result, write_spec
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.study import load_study
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.trials import grid, groups, starting_from
from transformer_jax.sweeps.worker import run_trials
from transformer_jax.tasks.flops import shapes_of, step_operations, training_flops, training_operations
from transformer_jax.tasks.task import param_shapes

ROOT = Path(__file__).parent.parent.parent
SEARCHED = ["tuning"]
MEASURED = ["parallelism"]
"""Questions that a program answers without training."""
STUDIES = sorted({file.parent.name for file in ROOT.glob("experiments/*/study.py")}.difference(SEARCHED))

VARIED = {
    "pretrained": {
        *("training.new_parameters", "task.name", "task.num_labels", "task.pooling", "task.chunks", "data.dir"),
        *("data.format", "data.encoding", "data.coarse_labels", "data.input_feature", "data.target_feature"),
        *("data.train_split", "data.valid_split", "data.test_split", "optimizer.warmup_steps", "optimizer.decay_steps"),
        *("training.num_train_steps", "training.eval_every_steps"),
    },
    "norm_placement": {
        "model.norm_position",
        "optimizer.warmup_steps",
        "model.num_encoder_layers",
        "model.num_decoder_layers",
    },
    "normalisation": {"model.norm", "model.norm_position", "data.tokens_per_batch"},
    "positions": {"model.position_encoding"},
    "length_extrapolation": {"model.position_encoding"},
    "num_heads": {"model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim"},
    "attention_scale": {
        *("model.attention_scale", "model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim"),
    },
    "regularisation": {
        "model.dropout_rate",
        "model.embedding_dropout_rate",
        "training.label_smoothing",
        "optimizer.clip_norm",
    },
    "model_size": {
        "model.emb_dim",
        "model.mlp_dim",
        "model.num_heads",
        "model.num_kv_heads",
        "training.num_train_steps",
        "optimizer.decay_steps",
    },
    "objectives": {
        *("model.architecture", "model.num_encoder_layers", "model.num_decoder_layers"),
        *("task.name", "task.num_labels", "task.pooling", "data.label_names", "model.head_dropout_rate"),
        *("training.init_from", "training.new_parameters"),
    },
    "masking_rate": {"training.init_from"},
    "architectures": {
        *("model.architecture", "model.num_encoder_layers", "model.num_decoder_layers", "model.mlp_dim"),
        *("model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim", "model.norm_position"),
        *("model.hidden_dim", "model.attention", "model.bidirectional", "model.bridge", "model.deep_output"),
        *("task.source_mask", "data.max_length", "data.tokens_per_batch"),
        *("optimizer.decay_steps", "training.num_train_steps"),
    },
    "order": {
        *("model.architecture", "model.position_encoding", "model.num_heads", "model.num_kv_heads", "model.head_dim"),
        *("model.value_head_dim", "model.norm_position"),
        *("model.cell", "model.hidden_dim", "model.bidirectional", "model.attention", "model.bridge"),
    },
    "long_range": {
        *("model.architecture", "model.cell", "model.hidden_dim", "model.num_encoder_layers", "model.norm_position"),
        *("model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim"),
        *("data.max_length", "data.tokens_per_batch"),
    },
    "optimizers": {"optimizer.name", "optimizer.beta2", "optimizer.learning_rate"},
    "optimizers_by_seconds": {
        *("optimizer.name", "optimizer.beta2", "optimizer.learning_rate"),
        *("optimizer.decay_steps", "training.num_train_steps"),
    },
    "norm_placement_12_layers": {"model.norm_position", "optimizer.warmup_steps"},
    "activations": {"model.activation", "model.mlp_dim"},
    "residual_scaling": {
        *("model.residual_scale", "model.residual_scale_init", "model.residual_multiplier"),
        *("model.norm", "model.norm_position", "model.num_decoder_layers"),
    },
    "qk_norm": {"model.qk_norm"},
    "windows": {"model.attention_window", "data.recall_gap"},
    "mixers_first_look": {
        *("model.mixer", "model.layer_pattern", "model.layer_kinds", "model.mlp_dim"),
        *("data.recall_pairs", "data.recall_length"),
    },
    "from_2017_to_llama3": {
        *("model.norm_position", "model.norm", "model.norm_epsilon", "model.position_encoding", "model.rotary_base"),
        *("model.activation", "model.mlp_dim", "model.use_bias", "model.qkv_bias", "model.num_kv_heads", "model.init"),
        *("model.tie_output", "model.scale_embeddings", "model.dropout_rate", "model.embedding_dropout_rate"),
        *("optimizer.beta2", "optimizer.epsilon", "optimizer.schedule", "optimizer.end_fraction"),
        *("optimizer.weight_decay", "optimizer.clip_norm", "training.label_smoothing"),
    },
    "generalisation": {
        *("model.architecture", "model.hidden_dim", "model.bidirectional", "model.bridge", "model.attention"),
        *("model.num_encoder_layers", "model.num_decoder_layers", "model.norm_position", "model.position_encoding"),
        *("model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim"),
        *("data.train_split", "data.valid_split", "data.test_split"),
    },
    "patches": {
        *("model.patch_size", "model.class_token", "task.pooling", "data.rows_per_batch"),
        *("training.num_train_steps", "optimizer.decay_steps"),
    },
    "vision_positions": {"model.position_encoding"},
    "decoding": {
        "decode.method",
        "decode.beam_size",
        "decode.length_penalty",
        "decode.temperature",
        "decode.top_k",
        "decode.top_p",
    },
}

PRETRAINING_VARIED = {
    "objectives": {
        *("model.architecture", "model.num_encoder_layers", "model.num_decoder_layers"),
        *("task.name", "task.prefix", "task.mask_rate", "task.whole_word"),
        *("training.num_train_steps", "optimizer.decay_steps"),
    },
    "masking_rate": {"task.mask_rate"},
}

SMALL = {
    "model.vocab_size": "400",
    "model.max_length": "160",
    "data.num_train_pairs": "300",
    "data.num_eval_pairs": "10",
    "data.num_buckets": "1",
    "data.drop_long": "true",  # a small vocabulary cuts sentences into more tokens
    "decode.max_extra_length": "0",
    "training.num_train_steps": "2",
    "training.log_every_steps": "1",
    "optimizer.decay_steps": "400",
}
NARROW = {"model.emb_dim": "32", "model.mlp_dim": "24"}
SHALLOW = {"model.num_encoder_layers": "1", "model.num_decoder_layers": "1"}
OVERRIDES = dict.fromkeys(STUDIES, SMALL | NARROW | SHALLOW) | {
    "norm_placement": SMALL | NARROW,
    "model_size": {"model.vocab_size": "20", "data.tokens_per_batch": "256", "training.log_every_steps": "1"},
    # Recurrent models do not read mlp_dim, or only its default.
    "order": SMALL | SHALLOW,
    # Its batches and lengths are those of an axis.
    "architectures": {name: SMALL[name] for name in ("model.vocab_size", "data.num_train_pairs", "data.num_eval_pairs")}
    | {"data.num_buckets": "1", "data.drop_long": "true", "decode.max_extra_length": "0"}
    | {"training.num_train_steps": "4", "training.log_every_steps": "1", "optimizer.warmup_steps": "1"},
    # With fewer sentences, the training split lacks some of the labels.
    "normalisation": NARROW
    | {"data.num_train_pairs": "5000", "data.num_eval_pairs": "20", "model.num_encoder_layers": "1"}
    | {"training.num_train_steps": "2", "training.log_every_steps": "1", "optimizer.warmup_steps": "1"},
    "length_extrapolation": NARROW
    | {"data.tokenizer": "byte", "model.vocab_size": "260", "model.num_decoder_layers": "1"}
    | {"training.num_train_steps": "2", "training.log_every_steps": "1", "data.tokens_per_batch": "512"}
    | {"optimizer.warmup_steps": "1"},
    "long_range": {"model.emb_dim": "16", "data.num_train_pairs": "300", "data.num_eval_pairs": "10"}
    | {"training.num_train_steps": "2", "training.log_every_steps": "1", "optimizer.warmup_steps": "1"},
    "pretrained": {"data.max_length": "16", "data.num_buckets": "1"},
    **dict.fromkeys(
        ("windows", "mixers_first_look"),
        {"data.num_train_pairs": "300", "data.num_eval_pairs": "10", "training.num_train_steps": "2"}
        | {"training.log_every_steps": "1", "optimizer.warmup_steps": "1"},
    ),
    "generalisation": {"model.emb_dim": "32"}
    | {"model.vocab_size": "8", "data.num_buckets": "1", "optimizer.warmup_steps": "1"}
    | {"training.num_train_steps": "2", "training.log_every_steps": "1"},
}


SIZES_OF_ARCHITECTURES = ("architectures", "architectures/longer", "architectures/large")
PLANNED = {"data.num_train_pairs": "2000"}
"""A smaller corpus for studies whose steps follow from the batches of the corpus."""


@functools.cache
def study(name):
    return load_study(ROOT / "experiments" / name)


@functools.cache
def trials(name):
    return grid(study(name), PLANNED if name in SIZES_OF_ARCHITECTURES else None)


@functools.cache
def pretrainings(name):
    return grid(study(name).pretraining).trials


def configs(name):
    return {trial.variant: trial.config for trial in trials(name).trials if trial.seed == 0}


def test_every_question_is_a_study():
    assert {path.parent.name for path in ROOT.glob("experiments/*/README.md")} == {*STUDIES, *SEARCHED, *MEASURED}
    assert set(STUDIES) == VARIED.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_its_readme_asks_and_answers(name):
    text = (ROOT / "experiments" / name / "README.md").read_text()
    assert text.startswith(f"# {study(name).question}\n")
    assert f"transformer-jax sweep --study={name} --workdir=" in text
    assert re.search(r"^\*\*Answer:\*\* \S", text, re.M)
    count, per_variant = len(trials(name).trials), len(study(name).seeds)
    trained = sum(trial.trained_by is None for trial in trials(name).trials)
    if study(name).pretraining is not None:
        assert f"{len(pretrainings(name))} pretrainings" in text
    assert re.search(rf"^({trained}|Three) trainings of ", text, re.M)
    assert count % per_variant == 0
    assert per_variant >= 3


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_with_an_answer_says_what_it_does_not_show(name):
    text = " ".join((ROOT / "experiments" / name / "README.md").read_text().split())
    if "**Answer:** not yet run." not in text:
        assert study(name).not_shown.endswith(".")
        assert "does not show" in text
        page = (ROOT / "experiments" / name / "results" / "report.md").read_text()
        assert f"**{NOT_SHOWN}** {escaped(study(name).not_shown)}" in page


@pytest.mark.parametrize("name", MEASURED)
def test_a_question_without_training_asks_and_answers(name):
    module = importlib.import_module(f"experiments.{name}")
    text = (ROOT / "experiments" / name / "README.md").read_text()
    assert text.startswith(f"# {module.__doc__}\n")
    assert re.search(rf"^python -m experiments\.{name}\.\w+ --output=", text, re.M)
    assert re.search(r"^\*\*Answer:\*\* \S", text, re.M)


@pytest.mark.parametrize("name", STUDIES)
def test_its_variants_differ_from_each_other_and_in_little_else(name):
    """A comparison is controlled: a field that is neither varied nor derived from a varied one is equal."""
    found = configs(name)
    assert len(found) >= (3 if name in PRETRAINING_VARIED else 4)
    assert trials(name).same == {}
    assert varied(found.values()) == VARIED[name]


@pytest.mark.parametrize("name", PRETRAINING_VARIED)
def test_its_pretraining_differs_in_little_else(name):
    found = [trial.config for trial in pretrainings(name) if trial.seed == 0]
    assert varied(found) == PRETRAINING_VARIED[name]


def varied(found):
    """Return the fields in which configs differ."""
    values = [{field: value for field, _, value in walk(config)} for config in found]
    return {field for field in values[0] if len({config[field] for config in values}) > 1}


def test_objectives_are_pretrained_at_equal_operations():
    """To half a step."""
    found = [trial.config for trial in pretrainings("objectives") if trial.seed == 0]
    costs = {config.task.name: training_flops(config) / config.training.num_train_steps for config in found}
    totals = [training_flops(config) for config in found]
    assert max(totals) - min(totals) <= max(costs.values())
    assert max(costs.values()) > 2 * min(costs.values())


@pytest.mark.parametrize("name", SIZES_OF_ARCHITECTURES)
def test_architectures_have_equally_many_parameters_and_operations(name):
    """Parameters to half a per cent, operations to half a step; and batches of about as many pairs."""
    found = {trial.labels["model"]: trial.config for trial in trials(name).trials if trial.seed == 0}
    assert [*found] == ["encoder_decoder", "decoder", "lstm", "lstm_attention"]
    sizes = {model: sum(leaf.size for leaf in jax.tree.leaves(param_shapes(c))) for model, c in found.items()}
    assert all(size == pytest.approx(sizes["encoder_decoder"], rel=0.005) for size in sizes.values()), sizes
    plans = {model: planned_batches(config) for model, config in found.items()}
    totals = {model: training_operations(config, plans[model]) for model, config in found.items()}
    for model, config in found.items():
        shapes = shapes_of(config, plans[model])
        step = max(step_operations(config, shape.rows, dict(shape.widths)) for shape in shapes)
        assert abs(totals[model] - totals["encoder_decoder"]) <= step / 2, model
    pairs = {model: plan.num_examples / plan.batches_per_epoch for model, plan in plans.items()}
    assert all(of == pytest.approx(pairs["encoder_decoder"], rel=0.15) for of in pairs.values()), pairs
    steps = {model: config.training.num_train_steps for model, config in found.items()}
    assert steps["decoder"] < 0.55 * steps["encoder_decoder"] < steps["lstm"]


def test_the_longer_study_of_architectures_has_eight_times_the_operations():
    short, longer = (
        next(trial.config for trial in trials(name).trials) for name in ("architectures", "architectures/longer")
    )
    assert training_operations(longer, planned_batches(longer)) == pytest.approx(
        8 * training_operations(short, planned_batches(short)), rel=0.005
    )
    rates, asked = short.optimizer.learning_rate, study("architectures/longer")
    assert [longer.optimizer.learning_rate * factor / rates for factor in asked.tuned.widest] == [0.5, 2]
    assert asked.seeds == (0, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "seeds"), [("decoder", [1]), ("lstm_attention", [1, 2])])
def test_architectures_train_alone_and_as_one_program(model, seeds, tmp_path):
    """Both executors give the same scores; the log has the operations of all steps, and those of hidden keys."""
    folder, asked = ROOT / "experiments" / "architectures", study("architectures")
    overrides = OVERRIDES["architectures"] | {"data.cache_dir": str(tmp_path / "cache")}
    found = [trial for trial in grid(asked, overrides).trials if trial.labels["model"] == model]
    losses = []
    for count in seeds:
        folders = [tmp_path / str(count) / TRIALS / trial.name for trial in found[:count]]
        for path, trial in zip(folders, found, strict=False):
            write_spec(path, trial, asked.metrics, folder)
        run(folders, asked, folder)
        result = read_result(folders[0])
        lines = [line for line in readable_lines(folders[0] / NAME) if line["split"] == "train"]
        logged, operations = sum(line["flops"] for line in lines), result.metrics["training/operations"]
        assert logged > operations if model == "decoder" else logged == operations
        losses.append(result.metrics["test/loss"])
    assert losses == pytest.approx(losses[:1] * len(losses), rel=1e-4)
    claim_sweep(tmp_path / "1", folder)
    report(tmp_path / "1")


def test_patches_are_compared_at_equal_tokens_and_at_equal_operations():
    """Every batch has equally many patches; with `flops`, trainings have equal operations to half a step."""
    found = [(trial.labels, trial.config) for trial in trials("patches").trials if trial.seed == 0]
    assert len(found) == 16
    assert {c.data.rows_per_batch * (c.model.num_positions - c.model.class_token) for _, c in found} == {6272}
    assert len({c.training.num_train_steps for labels, c in found if labels["budget"] == "tokens"}) == 1
    equal = [config for labels, config in found if labels["budget"] == "flops"]
    totals = [training_flops(config) for config in equal]
    assert max(totals) - min(totals) <= max(training_flops(c) / c.training.num_train_steps for c in equal)
    assert len({config.training.num_train_steps for config in equal}) == 8


def test_patches_of_another_config_have_both_budgets():
    config = read_config("images")
    adapted = with_baseline(study("patches"), "images", config, load_source(config.data).split_names)
    assert adapted.notes == []
    assert {trial.labels["budget"] for trial in grid(adapted.study).trials} == {"tokens", "flops"}


def test_the_walk_to_llama_3_has_equal_models_and_contrasts_of_both_designs():
    found = configs("from_2017_to_llama3")
    walk_to = ["2017", "GPT-1", "GPT-2", "GPT-3", "GPT-NeoX", "PaLM", "LLaMA", "Llama-3"]
    left_out = [f"without_{name}" for name in walk_to[1:-1]]
    assert [*found] == [f"model={name}" for name in (*walk_to, *left_out)]
    equal = study("from_2017_to_llama3").equal_sizes
    counts = {name: equal.count(config) for name, config in found.items()}
    assert all(count == pytest.approx(counts["model=2017"], rel=0.005) for count in counts.values())
    pairs = [(one.a, one.b) for one in study("from_2017_to_llama3").contrasts]
    assert pairs == [*zip(walk_to[1:], walk_to, strict=False), *((name, "Llama-3") for name in left_out)]
    last, first = found["model=Llama-3"], found["model=2017"]
    assert (last.model.norm, last.model.num_kv_heads, last.model.rotary_base) == ("rmsnorm", 2, 5e5)
    assert (first.optimizer.schedule, first.model.norm_position) == ("inverse_sqrt", "post")


def test_norm_placement_crosses_placement_warm_up_and_depth():
    cells = {
        (c.model.norm_position, c.optimizer.warmup_steps > 0, c.model.num_decoder_layers)
        for c in configs("norm_placement").values()
    }
    assert len(cells) == 8
    assert len(list(groups(trials("norm_placement").trials))) == 4  # warm-up and seeds share a program


def test_heads_are_compared_at_equal_computation():
    heads = {name: c.model for name, c in configs("num_heads").items() if re.fullmatch(r"attention=\d+_heads", name)}
    assert {model.num_heads for model in heads.values()} == {1, 2, 4, 8, 16}
    assert len({model.num_heads * model.head_dim for model in heads.values()}) == 1
    assert len({model.num_heads * model.value_head_dim for model in heads.values()}) == 1


def test_decoding_trains_once_per_seed():
    found = trials("decoding").trials
    assert {trial.trained_by for trial in found} == {None, *(f"decoder=greedy,seed={seed}" for seed in (0, 1, 2))}
    assert [trial.name for trial in found if trial.trained_by is None] == [
        f"decoder=greedy,seed={seed}" for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize("name", SEARCHED)
def test_the_variants_of_a_search(name):
    space = Space(study(name), {})
    space.check()
    text = (ROOT / "experiments" / name / "README.md").read_text()
    assert text.startswith(f"# {study(name).question}\n")
    assert re.search(rf"^transformer-jax sweep --study={name} --workdir=.* --search=tpe ", text, re.M)
    assert re.search(r"^\*\*Answer:\*\* \S", text, re.M)
    assert len(random_search(space, 4, 0).next([])) == 4 * len(study(name).seeds)


def write_encoder(folder):
    """Write a small BERT with a vocabulary of letters, and a corpus as TREC; return the overrides for them."""
    config = reduced(config_of("all-MiniLM-L6-v2"))
    write_folder(folder / "bert", config)
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in "aeiot")]
    (folder / "bert" / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    assert main(["convert", f"--from={folder / 'bert'}", f"--workdir={folder / 'encoder'}"]) == 0
    corpus = folder / "data" / "trec"
    corpus.mkdir(parents=True)
    labels = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    for split, count in (("train", 240), ("test", 20)):
        lines = [f"{labels[i * 5 % 6]}:x who is {letters[i % 26]} ?\n" for i in range(count)]
        (corpus / f"{split}.txt").write_text("".join(lines))
    model = read_config(str(folder / "encoder" / "config.json")).model
    fields = ("vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_encoder_layers", "max_length")
    sizes = {f"model.{name}": str(getattr(model, name)) for name in fields}
    return sizes | {"training.init_from": str(folder / "encoder")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",  # others only train and score
    [name for name in STUDIES if study(name).measure and not study(name).pretraining and name != "architectures"],
)
def test_it_runs_at_smoke_size(name, tmp_path, monkeypatch):
    """With one variant and one seed, every metric of the study is measured and its figures are drawn."""
    monkeypatch.setattr(cost, "_SECONDS", 0.0)
    overrides = OVERRIDES[name] | {"data.cache_dir": str(tmp_path / "cache")}
    if name in ("length_extrapolation", "model_size"):
        (tmp_path / "input.txt").write_text("All the world's a stage.\n" * 400)
        overrides |= {"data.dir": str(tmp_path)}
    if name == "generalisation":
        for split in ("train_simple", "test_simple"):
            (tmp_path / f"{split}.in").write_text("jump\nrun\n" * 40)
            (tmp_path / f"{split}.out").write_text("I_JUMP\nI_RUN I_RUN\n" * 40)
        overrides |= {"data.dir": str(tmp_path)}
    if name == "pretrained":
        monkeypatch.chdir(tmp_path)
        overrides |= write_encoder(tmp_path)
    claim_sweep(tmp_path, ROOT / "experiments" / name)
    first = next(trial for trial in grid(study(name), overrides).trials if trial.seed == 0)
    first = shortened(first, 2) if name == "model_size" else first  # its lengths are an axis
    assert np.isfinite([*run_trial(tmp_path, first, study(name), name).values()]).all()
    report(tmp_path, f"--study={ROOT / 'experiments' / name}")


@pytest.mark.slow
def test_studies_of_texts_are_asked_of_images(tmp_path):
    """With `--config=images`, nothing else changes: a trial runs, and a report is written."""
    config = read_config("images")
    splits = load_source(config.data).split_names
    small = {"data.num_train_pairs": "100", "data.num_eval_pairs": "16", "data.rows_per_batch": "16"}
    small |= {"training.num_train_steps": "2", "training.log_every_steps": "1", "optimizer.warmup_steps": "1"}
    small |= {"data.cache_dir": str(tmp_path / "c")}
    assert len(grid(with_baseline(study("num_heads"), "images", config, splits).study, small).trials) == 9 * 3
    name = "norm_placement"
    asked = with_baseline(study(name), "images", config, splits).study
    found = [trial for trial in grid(asked, small).trials if trial.seed == 0]
    assert len(found) == 8
    claim_sweep(tmp_path, ROOT / "experiments" / name, declaration_of(asked), asked.baseline)
    metrics = run_trial(tmp_path, found[0], asked, name)
    layers = [metric for metric in metrics if metric.startswith("start[")]
    assert len(layers) == found[0].config.model.num_encoder_layers
    report(tmp_path)


def test_a_start_from_scratch_has_no_pretraining():
    found = [size(config) for name, config in configs("objectives").items() if "start=scratch" in name]
    assert found == [{"pretraining/steps": 0, "pretraining/train_flops": 0}] * 5


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINING_VARIED)
def test_its_two_stages_run_at_smoke_size(name, tmp_path):
    """The pretraining of one variant, and a trial from it: all metrics are measured, and both reports are written."""
    folder, asked = ROOT / "experiments" / name, study(name)
    write_texts(tmp_path)
    small = NARROW | {"model.vocab_size": "400", "training.num_train_steps": "12", "optimizer.warmup_steps": "1"}
    small |= {"data.cache_dir": str(tmp_path / "cache")}
    of_stage = {"wiki": {"data.tokens_per_batch": "512"}, "trec": {"data.num_buckets": "1"}}
    first, last = asked.pretraining.axes[0].name, list(asked.pretraining.axes[0].values)[-1]
    for stage, place, data in ((asked.pretraining, tmp_path / "pretraining", "wiki"), (asked, tmp_path, "trec")):
        claim_sweep(place, folder, is_pretraining=stage is not asked)
        found = grid(stage, small | of_stage[data] | {"data.dir": str(tmp_path / data)}).trials
        (trial,) = (
            trial
            for trial in found
            if trial.seed == 0 and trial.labels[first] == last and not trial.config.training.new_parameters
        )
        metrics = run_trial(place, shortened(trial, 12), stage, name)
        assert np.isfinite([*metrics.values()]).all()
        report(place)
    if name == "objectives":
        assert metrics["pretraining/steps"] > 0
        assert metrics["pretraining/train_flops"] > 0
    else:
        path = tmp_path / trial.starts_from
        config = starting_from(trial.config, str(path))
        at_its_rate, own = masked_lm_scores(config, 0.5), Scorer.from_checkpoint(path).score("test")
        assert at_its_rate["masked_50/token_loss"] == own["loss"] != metrics["masked_15/token_loss"]


def shortened(trial, steps):
    """Return a trial with another number of updates; an axis may set it, so an override cannot."""
    training = dataclasses.replace(trial.config.training, num_train_steps=steps)
    return dataclasses.replace(trial, config=dataclasses.replace(trial.config, training=training))


def run_trial(workdir, trial, asked, name):
    """Train and score a trial of a study in experiments/NAME; return its metrics."""
    folder, path = ROOT / "experiments" / name, workdir / TRIALS / trial.name
    write_spec(path, trial, asked.metrics, folder if asked.measure else None)
    run([path], asked, folder)
    return read_result(path).metrics


def run(paths, asked, folder):
    """Run the trials in these folders, and check that the first has every metric of the study."""
    assert run_trials(paths, study=folder) == 0
    result = read_result(paths[0])
    assert result.status == "finished", result.why
    assert {metric.name for metric in asked.metrics} <= set(result.metrics)


def write_texts(folder):
    """Write documents, and questions with TREC's labels."""
    random = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdklmnrst"]
    for name in ("wiki", "trec"):
        (folder / name).mkdir()
        for split, count in (("train", 600), ("valid", 30), ("test", 30)):
            lines = [" ".join(random.choice(words, random.integers(3, 20))) for _ in range(count)]
            if name == "trec":
                labels = random.permutation(["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"] * (count // 6))
                lines = [f"{label}:fine {line}" for label, line in zip(labels, lines, strict=True)]
            (folder / name / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))


def report(workdir, *flags):
    from transformer_jax.cli.main import main

    assert main(["report", f"--workdir={workdir}", *flags]) == 0
    assert (workdir / "report" / "report.html").stat().st_size > 1000
