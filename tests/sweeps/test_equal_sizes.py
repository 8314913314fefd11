"""`equal_parameters` and `equal_flops` of bucketed batches: sizes and steps that make variants equal."""

import json
import re

import jax
import pytest
from run_support import run_main, write_corpus

from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps import planned_batches as module
from transformer_jax.sweeps.equal_notes import notes_on_equal, sentences_on_equal
from transformer_jax.sweeps.equal_sizes import TOLERANCE, EqualParameters, size_for
from transformer_jax.sweeps.planned_batches import planned_batches
from transformer_jax.sweeps.results import STUDY
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.trials import grid, with_chosen
from transformer_jax.tasks.flops import training_operations
from transformer_jax.tasks.task import param_shapes

SMALL = {"model.emb_dim": 32, "model.num_heads": 4, "model.mlp_dim": 128, "model.num_decoder_layers": 1}
GATED = Axis("activation", {"relu": {}, "swiglu": {"model.activation": "swiglu"}})
WIDTH, NAME = "model.mlp_dim", "equal_parameters"


def study(*axes, equal=WIDTH, settings=None, **fields):
    values = SMALL | (settings or {})
    metrics = (Metric("valid/loss", "min"),)
    return Study("?", "language_model", axes, metrics, (0,), values, equal_parameters=equal, **fields)


def configs(of, overrides=None):
    return {tuple(trial.labels.values()): trial.config for trial in grid(of, overrides).trials}


def parameters(config):
    return sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)))


def test_a_gated_network_gets_two_thirds_of_the_width():
    """Three matrices in place of two: 2 x 128 = 3 x 85.3. Of 84 to 87, all within the tolerance, 84 is the roundest."""
    found = configs(study(GATED, settings={"model.use_bias": False}))
    assert {name: config.model.mlp_dim for (name,), config in found.items()} == {"relu": 128, "swiglu": 84}
    sizes = [parameters(config) for config in found.values()]
    assert abs(sizes[1] - sizes[0]) == 4 * 32 <= TOLERANCE * sizes[0]


def test_a_variant_that_is_as_large_already_keeps_its_size():
    found = configs(study(over("model.norm_position", "pre", "post")))
    assert {config.model.mlp_dim for config in found.values()} == {128}


def test_overrides_size_the_baseline_variant_and_the_others_follow():
    found = configs(study(GATED), {"model.mlp_dim": "256"})
    assert found["relu",].model.mlp_dim == 256
    assert 168 <= found["swiglu",].model.mlp_dim <= 173


def test_the_reference_is_the_baseline_variant():
    found = configs(study(GATED, reference={"activation": "swiglu"}))
    assert found["swiglu",].model.mlp_dim == 128
    assert found["relu",].model.mlp_dim == 192


def test_sizes_are_equal_within_each_condition():
    """A contrast at two sizes: each size has a baseline variant of its own."""
    size = Axis("size", {"small": {}, "large": {"model.emb_dim": 64}})
    found = configs(study(size, GATED, contrasts=("activation",)))
    counts = {labels: parameters(config) for labels, config in found.items()}
    for of in size.values:
        assert counts[of, "swiglu"] == pytest.approx(counts[of, "relu"], rel=TOLERANCE)
    assert counts["large", "relu"] > 1.5 * counts["small", "relu"]


def test_tables_and_the_output_layer_may_be_left_out():
    """An untied output layer adds 1000 x 32 parameters. They count, unless embeddings do not."""
    untied = Axis("output", {"tied": {}, "untied": {"model.tie_output": False}})
    all_equal = configs(study(untied, settings={"model.mlp_dim": 1024}))
    assert parameters(all_equal["untied",]) == pytest.approx(parameters(all_equal["tied",]), rel=TOLERANCE)
    without = configs(study(untied, equal=EqualParameters((WIDTH,), embeddings=False)))
    assert {config.model.mlp_dim for config in without.values()} == {128}
    assert parameters(without["untied",]) - parameters(without["tied",]) == 1000 * 32
    equal = EqualParameters((WIDTH,), embeddings=False)
    assert equal.count(without["untied",]) == equal.count(without["tied",])


def test_a_variant_is_sized_by_the_first_field_that_it_reads():
    # A recurrent model reads neither the width nor these fields, which must have their defaults.
    unread = {"model.num_heads": 8, "model.norm_position": "post", "model.deep_output": "maxout"}
    kinds = Axis("model", {"transformer": {"model.num_heads": 4}, "lstm": {"model.architecture": "recurrent"} | unread})
    layers = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    of = Study(
        *("?", "quickstart", (kinds,), (Metric("valid/loss", "min"),), (0,)),
        {"model.emb_dim": 32, "model.mlp_dim": 128} | layers,
        equal_parameters=(WIDTH, "model.hidden_dim"),
    )
    found = configs(of)
    assert parameters(found["lstm",]) == pytest.approx(parameters(found["transformer",]), rel=TOLERANCE)
    assert found["lstm",].model.hidden_dim != 32


def test_values_that_a_config_forbids_are_skipped():
    """The width must be a multiple of the four heads."""
    deep = Axis("depth", {"1": {}, "3": {"model.num_decoder_layers": 3}})
    settings = {"model.emb_dim": 2048, "model.position_encoding": "sinusoidal"}
    found = configs(study(deep, equal="model.emb_dim", settings=settings))
    sizes = {name: (config.model.emb_dim, parameters(config)) for (name,), config in found.items()}
    assert sizes["3"][0] % 4 == 0
    assert sizes["3"][1] == pytest.approx(sizes["1"][1], rel=TOLERANCE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(GATED, equal="model.mlp_dimm"), "equal_parameters: no field 'model.mlp_dimm' (did you mean"),
        (lambda: study(GATED, equal="model.dropout_rate"), "'model.dropout_rate' is not an integer field of the model"),
        (lambda: study(GATED, equal="data.max_length"), "'data.max_length' is not an integer field of the model"),
        (
            lambda: study(over(WIDTH, 64, 128)),
            f"axis 'mlp_dim' cannot set {WIDTH}, which is computed",
        ),
        (lambda: study(Range(WIDTH, 64, 128)), f"equal_parameters: the range '{WIDTH}' has no baseline variant"),
        (
            lambda: grid(study(GATED, equal="model.max_length")),
            "activation=swiglu: equal_parameters: model.max_length does not change the number of parameters",
        ),
        (
            lambda: grid(study(GATED, equal="model.num_decoder_layers")),
            "no value of model.num_decoder_layers gives 44,768 parameters to 0.5%: 1 gives 48,992 (+9.4%)",
        ),
        (
            lambda: grid(study(GATED, equal="model.hidden_dim")),
            "the model does not read model.hidden_dim (see model.architecture)",
        ),
        (
            lambda: grid(study(GATED, settings={"parallel.tensor": 64})),
            "no value of model.mlp_dim",
        ),
    ],
    ids=range(9),
)
def test_sizes_that_cannot_be_met(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def test_the_reason_names_the_closest_value_and_an_invalid_one():
    config = read_config("language_model", SMALL)

    def read(field, value):
        if value != 128:
            raise ConfigError(f"config: {field}={value}: too odd")
        return config

    with pytest.raises(ConfigError, match=r"128 gives 44,\d+ \(.*%\), and \d+ is invalid: model\.mlp_dim=\d+: too odd"):
        size_for(EqualParameters((WIDTH,)), config, 90_000, read)


def test_chosen_values_are_recorded_and_then_need_no_model(tmp_path, monkeypatch):
    before = with_chosen(study(GATED))
    assert before.chosen["activation=relu"] == {}
    assert before.chosen["activation=swiglu"].keys() == {WIDTH}
    again = declared_study(json.loads(json.dumps(declaration_of(before))), tmp_path)
    assert again.chosen == before.chosen
    monkeypatch.setattr(EqualParameters, "count", None)
    assert configs(again) == configs(before)
    assert declaration_of(declared_study({**declaration_of(study(GATED)), "chosen": {}}, tmp_path))["chosen"] == {}
    old = {name: value for name, value in declaration_of(study(GATED)).items() if name not in ("chosen", NAME)}
    assert declared_study(old, tmp_path).equal_sizes is None


def test_chosen_values_are_printed():
    windows = {"data.batching": "windows", "data.packed_length": 256}  # the default, since windows do not read it
    sizes, steps = notes_on_equal(study(GATED, equal_flops=True, settings=windows), {})
    found = re.fullmatch(
        r"equal parameters: 44,768 parameters as activation=relu; model.mlp_dim=(\d+) with activation=swiglu \((.*)%\)",
        sizes,
    )
    assert abs(float(found[2])) <= 0.5
    assert re.fullmatch(r"equal operations: training.num_train_steps is \d+ with activation=swiglu", steps)
    of = study(GATED, equal_flops={"activation": "swiglu"}, contrasts=("activation",))
    assert list(sentences_on_equal(of)) == [
        "model.mlp_dim is set so that every variant has as many parameters as that with activation=relu, to 0.5%.",
        "training.num_train_steps is set so that every variant with activation=swiglu trains with as many operations "
        "as activation=relu: those of the matrix products, of attention with the keys that the mask shows.",
    ]
    assert notes_on_equal(study(GATED, equal=()), {}) == list(sentences_on_equal(study(GATED, equal=()))) == []


TEXT = """
from transformer_jax.sweeps.study import Axis, Metric, Study

STUDY = Study(
    question="?",
    baseline="tiny.py",
    axes=(Axis("activation", {"relu": {}, "swiglu": {"model.activation": "swiglu"}}),),
    metrics=(Metric("test/loss"),),
    seeds=(0, 1),
    equal_parameters="model.mlp_dim",
    equal_flops=True,
)
"""


@pytest.mark.slow
def test_a_sweep_records_what_it_has_chosen(tmp_path, capsys, monkeypatch):
    """The report then reads neither the corpus nor a model, and prints a command that makes the same configs."""
    folder = write_corpus(tmp_path)
    (folder / "study.py").write_text(TEXT)
    command = ["sweep", f"--study={folder}", f"--workdir={folder / 'runs'}", f"--config.data.dir={folder}"]
    assert run_main([*command, "--dry_run"]) == 0
    assert "equal parameters: " in capsys.readouterr().out
    assert run_main([*command, "--executor=vmap"]) == 0
    chosen = json.loads((folder / "runs" / STUDY).read_text())["declaration"]["chosen"]
    assert chosen["activation=swiglu"].keys() == {WIDTH, "training.num_train_steps"}
    said = capsys.readouterr().err
    assert f"model.mlp_dim={chosen['activation=swiglu'][WIDTH]} with activation=swiglu" in said
    monkeypatch.setattr(EqualParameters, "count", None)
    monkeypatch.setattr(module, "prepare_data", None)
    for flags in ([], [f"--study={folder}"]):
        assert run_main(["report", f"--workdir={folder / 'runs'}", *flags]) == 0
        text = (folder / "runs" / "report" / "report.md").read_text()
        assert "model.mlp_dim is set so that" in text.replace("\\_", "_")
    command = re.search(r"^transformer-jax sweep .*", text, re.M)[0]
    assert f"--config.data.dir={folder}" in command
    assert "mlp_dim" not in command


def bucketed(folder, **fields):
    """Return a study of depths with equal operations, whose batches have two shapes or more."""
    write_corpus(folder)
    settings = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache"), "data.num_buckets": 3}
    settings |= {"training.num_train_steps": 11, "optimizer.warmup_steps": 3}
    depth = Axis("depth", {"1": {}, "3": {"model.num_decoder_layers": 3}})
    return Study(
        "?", str(folder / "tiny.py"), (depth,), (Metric("test/loss"),), (0, 1), settings, equal_flops=True, **fields
    )


def test_equal_operations_of_bucketed_batches(tmp_path, monkeypatch):
    found = {trial.labels["depth"]: trial.config for trial in grid(bucketed(tmp_path)).trials if trial.seed == 0}
    plans = {name: planned_batches(config) for name, config in found.items()}
    assert len(plans["1"].shapes) > 1
    budget = training_operations(found["1"], plans["1"])
    steps = found["3"].training.num_train_steps
    assert found["1"].training.num_train_steps == 11 > steps
    totals = {
        count: training_operations(read_config(str(tmp_path / "tiny.py"), with_steps(tmp_path, count)), plans["3"])
        for count in range(1, 12)
    }
    assert abs(totals[steps] - budget) == min(abs(total - budget) for total in totals.values())
    # The recorded steps need no corpus.
    known = with_chosen(bucketed(tmp_path))
    monkeypatch.setattr(module, "prepare_data", None)
    module._splits.clear()
    again = declared_study(json.loads(json.dumps(declaration_of(known))), tmp_path)
    assert again.chosen == {"depth=1": {}, "depth=3": {"training.num_train_steps": steps}}


def with_steps(folder, steps):
    settings = dict(bucketed(folder).settings) | {"model.num_decoder_layers": 3, "training.num_train_steps": steps}
    return {name: str(value) for name, value in settings.items()}
