"""Architectures and tasks from outside, and the config fields that they bring."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.cli import train
from transformer_jax.cli.arguments import parse
from transformer_jax.config import (
    ExperimentConfig,
    ModelConfig,
    TaskConfig,
    completed,
    is_rounding,
    walk,
)
from transformer_jax.config.fields import choice, field, number
from transformer_jax.config_file import leaf_types, override, parse_overrides, read_config
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import with_checksum
from transformer_jax.models.architecture import ARCHITECTURES, Architecture
from transformer_jax.sweeps.study import Metric, Range, Study, over
from transformer_jax.sweeps.trials import grid, program_key
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.task import TASKS, MetricSpec, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaveConfig(ModelConfig):
    num_waves: int = number(3, "waves", 1)
    damping: float = number(0.5, "of a wave", 0.0, hyper=True, switch=True)
    shape: str = choice("sine", ("sine", "saw"), "of a wave")
    unrolled: bool = field(False, "how waves are computed", rounding=True)

    def problems(self):
        yield from super().problems()
        if self.emb_dim == 11:
            1 / 0  # noqa: B018
        if self.num_waves > self.emb_dim:
            yield f"num_waves={self.num_waves} exceeds emb_dim={self.emb_dim}"


class Wave(Architecture):
    config_class = WaveConfig
    reads = frozenset({"emb_dim", "dropout_rate"})

    def module(self, config, head=None):
        raise NotImplementedError

    def example_batch(self, config):
        raise NotImplementedError


class Generating(Wave):
    reads = None

    def decoder(self, config):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingConfig(TaskConfig):
    margin: float = number(0.25, "of the loss", hyper=True)


class Counting(Task):
    config_class = CountingConfig
    metrics = (MetricSpec("loss", "min"),)
    reads = frozenset({"decode.seed"})


class Anything(Counting):
    reads = None


class OnlyEncoderDecoder(Anything):
    architectures = ("encoder_decoder",)


class Generates(Anything):
    def generator(self, config, params, tokenizer, others=()):
        raise NotImplementedError


class Measures(Anything):
    metrics = (*Counting.metrics, MetricSpec("words", needs_generation=True))


class Sentiment(Classification):
    """An extension of a built-in task, which reads what that one reads."""


# No method is abstract, whatever the interface requires.
for cls in (Counting, Anything, OnlyEncoderDecoder, Generates, Measures, Wave, Generating):
    cls.__abstractmethods__ = frozenset()


class NotFinished(Task):
    metrics = ()


class Raising(Wave):
    def __init__(self):
        raise ValueError("no waves today")


class NoDataclass(Wave):
    config_class = type("Bare", (ModelConfig,), {"__annotations__": {"extra": int}, "extra": 3})


class OfAnotherSection(Wave):
    config_class = TaskConfig


WAVE, GENERATING, COUNTING = f"{__name__}:Wave", f"{__name__}:Generating", f"{__name__}:Counting"
ANYTHING, LIMITED = f"{__name__}:Anything", f"{__name__}:OnlyEncoderDecoder"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    """Forget what a test imports or registers."""
    for table in (ARCHITECTURES, TASKS):
        for name in ("_imported", "_registered"):
            monkeypatch.setattr(table, name, dict(getattr(table, name)))


def from_values(**sections):
    """Return the config of a config file with these values."""
    return ExperimentConfig.from_config_dict(ConfigDict(sections))


def wave(**fields):
    return from_values(model={"architecture": WAVE, **fields}, task={"name": ANYTHING})


def message(**sections):
    with pytest.raises(ConfigError) as caught:
        from_values(**sections)
    return str(caught.value)


# --- reading and writing -------------------------------------------------------------------------------------------


def test_the_section_has_the_config_class_of_its_object():
    config = wave(num_waves=5)
    assert type(config.model) is WaveConfig
    assert (config.model.num_waves, config.model.shape, config.task.margin) == (5, "sine", 0.25)
    assert config.resolved() == config
    assert {"model.num_waves", "task.margin"} < {name for name, _, _ in walk(config)}


def test_round_trips():
    config = wave(num_waves=5, emb_dim=64)
    assert ExperimentConfig.from_config_dict(config.to_config_dict().lock()) == config
    assert ExperimentConfig.from_config_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) == hash(ExperimentConfig.from_config_dict(config.to_dict()))


def test_a_config_made_in_python():
    model, task = WaveConfig(architecture=WAVE, num_waves=2), TaskConfig(name=ANYTHING)
    config = ExperimentConfig(model=model, task=task).resolved()
    assert (config.model.num_waves, config.task.margin) == (2, 0.25)
    with pytest.raises(ConfigError, match=r"is a WaveConfig, but with .*'encoder_decoder' it is a ModelConfig"):
        ExperimentConfig(model=WaveConfig()).resolved()


def test_a_registered_name():
    ARCHITECTURES.register("wave", Generating())
    assert from_values(model={"architecture": "wave", "num_waves": 7}, task={"name": ANYTHING}).model.num_waves == 7
    assert "model.architecture='wav'" in message(model={"architecture": "wav"})
    assert "(did you mean 'wave'?)" in message(model={"architecture": "wav"})
    with pytest.raises(ConfigError, match="registered already"):
        ARCHITECTURES.register("wave", Generating())


def test_a_built_in_name_imports_nothing():
    program = (
        "import sys; from transformer_jax.config import ExperimentConfig; "
        "ExperimentConfig.from_config_dict({'model': {'architecture': 'encoder_decoder'}}); "
        "assert not {'jax', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_old_configs_without_the_fields():
    stored = ExperimentConfig().resolved().to_dict()
    del stored["task"], stored["model"]["architecture"]
    assert ExperimentConfig.from_config_dict(stored) == ExperimentConfig().resolved()


def test_a_stored_config_without_the_fields_is_that_of_their_defaults(tmp_path):
    config = ExperimentConfig().resolved().to_dict()
    stored = json.loads(json.dumps(config))
    del stored["task"], stored["model"]["architecture"]
    (tmp_path / "config.json").write_text(json.dumps(with_checksum(stored)))
    open_workdir(tmp_path, config).close()
    with pytest.raises(ConfigError, match=r"task\.name"):
        open_workdir(tmp_path, wave().to_dict())


def test_fields_added_later_have_their_defaults():
    config = wave(num_waves=5).to_dict()
    stored = json.loads(json.dumps(config))
    del stored["model"]["shape"], stored["task"]["margin"]
    assert completed(stored, config) == config


def test_hyper_fields_of_its_own():
    config = from_values(model={"architecture": WAVE, "damping": 0.0}, task={"name": ANYTHING, "margin": 0.0})
    assert config.own_hyper_fields("model") == {"damping": None}  # the switch is off
    assert config.own_hyper_fields("task") == {"margin": 0.0}
    assert wave().own_hyper_fields("model") == {"damping": 0.5}
    for section in ("model", "task"):
        assert config.without_own_hyper_fields(section) == wave().without_own_hyper_fields(section)
        assert ExperimentConfig().without_own_hyper_fields(section) == getattr(ExperimentConfig(), section)
    assert {*ExperimentConfig().own_hyper_fields("model").values()} == {None}  # all are off
    assert ExperimentConfig().own_hyper_fields("task") == {}


# --- values and problems -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"model": {"architecture": "encoder_decodr"}}, ["expected one of encoder_decoder", "did you mean 'encoder"]),
        ({"task": {"name": "translate"}}, ["task.name='translate': expected one of trans", "MODULE:OBJECT"]),
        ({"model": {"architecture": "no_such_module:X"}}, ["No module named 'no_such_module'", "PYTHONPATH"]),
        ({"model": {"architecture": f"{__name__}:Wav"}}, [f"{__name__} has no 'Wav'", "did you mean 'Wave'"]),
        ({"model": {"architecture": f"{__name__}:Counting"}}, ["expected transformer_jax.models.architecture.Archi"]),
        ({"model": {"architecture": f"{__name__}:message"}}, ["got function"]),
        ({"task": {"name": f"{__name__}:NotFinished"}}, ["NotFinished lacks arrays, "]),
        ({"model": {"architecture": f"{__name__}:Raising"}}, ["Raising() raised ValueError: no waves today"]),
        ({"model": {"architecture": f"{__name__}:NoDataclass"}}, ["Bare lacks @dataclasses.dataclass"]),
        ({"model": {"architecture": f"{__name__}:OfAnotherSection"}}, ["expected ModelConfig or a subclass"]),
        ({"model": {"architecture": 3}}, ["model.architecture=3: expected str, got int"]),
        (
            {"model": {"architecture": "no_such_module:b", "num_waves": 3}},
            ["No module named 'no_such_module'"],
        ),  # not: unknown field
        (
            {"model": {"architecture": GENERATING, "num_wave": 3}, "task": {"name": ANYTHING}},
            ["model.num_wave: no such field", "'num_waves'"],
        ),
        (
            {"model": {"architecture": GENERATING, "emb_dim": 11, "num_heads": 1}, "task": {"name": ANYTHING}},
            ["test_own_fields.WaveConfig.problems() raised ZeroDivisionError"],
        ),
        ({"model": {"architecture": GENERATING, "num_waves": 0}}, ["model.num_waves=0: expected at least 1"]),
        ({"model": {"architecture": GENERATING, "shape": "sin"}}, ["model.shape='sin': expected one of sine, saw"]),
        (
            {"model": {"architecture": GENERATING, "emb_dim": 8, "num_waves": 9}, "task": {"name": ANYTHING}},
            ["model.num_waves=9 exceeds emb_dim=8"],
        ),
        ({"model": {"num_waves": 3}}, ["model.num_waves: no such field"]),
    ],
)
def test_wrong_values(sections, parts):
    text = message(**sections)
    assert "\n" not in text
    for part in parts:
        assert part in text


# --- who reads a field ---------------------------------------------------------------------------------------------


def test_a_field_that_an_architecture_does_not_read():
    assert wave(emb_dim=64, dropout_rate=0.3, vocab_size=99, num_waves=4).model.emb_dim == 64
    decayed = dataclasses.replace(wave(), optimizer=dataclasses.replace(wave().optimizer, layer_decay=0.9))
    assert decayed.resolved() == decayed
    assert message(model={"architecture": WAVE, "emb_dims": 3}, task={"name": ANYTHING}).endswith(
        "(did you mean 'emb_dim'?)"
    )
    text = message(model={"architecture": WAVE, "embedding_dropout_rate": 0.3}, task={"name": ANYTHING})
    assert f"model.embedding_dropout_rate=0.3 has no effect with architecture='{WAVE}'" in text
    assert "(did you mean 'dropout_rate'?)" in text
    # Derived values of a resolved config do not count as set by the user.
    assert wave().resolved() == wave()


@pytest.mark.parametrize("emb_dim", [12, 9])
def test_relations_of_fields_that_an_architecture_does_not_read_do_not_matter(emb_dim):
    """8 heads do not divide 12, and sinusoids need an even width."""
    assert wave(emb_dim=emb_dim).model.emb_dim == emb_dim
    with pytest.raises(ConfigError, match="emb_dim"):
        from_values(model={"emb_dim": emb_dim})


def test_a_field_that_a_built_in_architecture_does_not_read():
    task = {"name": ANYTHING}
    text = message(model={"architecture": "decoder_only", "num_encoder_layers": 2}, task=task)
    assert "num_encoder_layers=2 has no effect with architecture='decoder_only', only with 'encoder_decoder'" in text
    assert "(did you mean 'num_decoder_layers'?)" in text
    text = message(model={"architecture": "decoder_only", "share_embeddings": False}, task=task)
    assert "model.share_embeddings=False has no effect" in text
    # An outside architecture that does not declare its fields may read every field.
    assert from_values(model={"architecture": GENERATING, "num_encoder_layers": 2}, task=task)


def test_a_field_that_a_task_does_not_read():
    assert from_values(task={"name": COUNTING, "margin": 0.5}).task.margin == 0.5
    text = message(task={"name": COUNTING}, training={"label_smoothing": 0.0})
    assert f"training.label_smoothing=0.0 has no effect with task.name='{COUNTING}'" in text
    text = message(task={"name": COUNTING}, training={"z_loss": 0.1})
    assert f"training.z_loss=0.1 has no effect with task.name='{COUNTING}'" in text
    text = message(task={"name": COUNTING}, decode={"beam_size": 2})
    assert "decode.beam_size=2 has no effect" in text
    from_values(task={"name": COUNTING}, training={"num_train_steps": 7})
    from_values(task={"name": ANYTHING}, training={"label_smoothing": 0.0, "loss_chunks": 2})


@pytest.mark.parametrize("name", ["Generates", "Measures"])
def test_a_task_that_decodes_reads_the_settings_of_decoding(name):
    assert from_values(task={"name": f"{__name__}:{name}"}, decode={"beam_size": 2}).decode.beam_size == 2
    text = message(task={"name": ANYTHING}, decode={"beam_size": 2})
    assert f"beam_size=2 has no effect with task.name='{ANYTHING}', only with 'translation', 'text_to_text'," in text


ENCODER = {"architecture": "encoder_only"}
NOT_READ = {
    "decode.beam_size": (4, "translation', 'text_to_text', 'language_model', 'span_corruption' and 'denoising'"),
    "decode.max_new_tokens": (7, "'denoising'"),
    "training.loss_chunks": (2, "'masked_lm'"),
    "evaluation.context": (3, "only with 'language_model'"),
    "evaluation.max_length": (30, "only with 'language_model'"),
    "data.separate_tokenizers": (True, "only with 'translation'"),
    "data.cut_documents": (False, "only with 'language_model'"),
    "data.label_names": ("a=b", "only with 'translation', 'text_to_text', 'classification', 'tagging' and 'images'"),
    "data.coarse_labels": (True, "only with 'translation', 'text_to_text', 'classification', 'tagging' and 'images'"),
    "data.input_template": ("x {inputs}", "'classification'"),
    "data.cut_texts": (True, "only with 'classification'"),
}
"""Values of fields that some tasks do not read, and a part of the message."""
READ = {
    "classification": {"data.label_names", "data.coarse_labels", "data.input_template", "data.cut_texts"},
    "tagging": {"data.label_names", "data.coarse_labels"},
    "span_qa": set(),
    "masked_lm": {"training.loss_chunks", "data.input_template"},
}


@pytest.mark.parametrize("task", [*READ, f"{__name__}:Sentiment"])
def test_a_field_that_a_built_in_task_or_its_extension_does_not_read(task):
    for name, (value, part) in NOT_READ.items():
        section, field = name.split(".")
        values: dict = {"model": ENCODER, "task": {"name": task}, section: {field: value}}
        if name in READ[task if task in READ else "classification"]:
            assert getattr(getattr(from_values(**values), section), field) == value
            continue
        text = message(**values)
        assert f"{name}={value!r} has no effect with task.name='{task}', only with '" in text, name
        assert part in text


def test_a_head_of_labels_from_outside_may_begin_at_zero():
    """With a tied output too; a task whose outputs may be logits over the vocabulary needs one that is not tied."""
    model = {**ENCODER, "zero_head": True}
    config = from_values(model=model, task={"name": f"{__name__}:Sentiment"})
    assert config.model.tie_output
    head = TASKS[config.task.name].head(config.task, config.model)
    params = head.init(jax.random.key(0), jnp.ones((2, 3, config.model.emb_dim)), {}, None)["params"]
    assert params["output"]["kernel"].shape == (config.model.emb_dim, config.task.num_labels)
    assert not any(leaf.any() for leaf in jax.tree.leaves(params))
    said = "model.zero_head=True cannot be used with model.tie_output=True"
    assert said in message(model=model, task={"name": ANYTHING})
    assert from_values(model={**model, "tie_output": False}, task={"name": ANYTHING}).model.zero_head


def test_a_second_text_that_nothing_reads():
    data = {"source": "text", "dir": "x", "format": "tsv", "second_feature": "3"}
    text = message(model=ENCODER, task={"name": "masked_lm"}, data=data)
    assert "data.second_feature='3' has no effect with task.name='masked_lm': only" in text
    from_values(model=ENCODER, task={"name": "classification"}, data=data)
    from_values(data=data | {"input_template": "{inputs} {second}"})
    from_values(task={"name": ANYTHING}, data=data)


def selective_fields():
    """Return the built-in tasks that read a field, for every field outside of `task` that others do not read."""
    sections = {field.name: field.metadata.get("read_by", {}) for field in dataclasses.fields(ExperimentConfig)}
    readers = {
        name: (sections.get(name.partition(".")[0], {}) | field.metadata.get("read_by", {})).get("task.name")
        for name, field, _ in walk(ExperimentConfig())
    }
    return {name: tasks for name, tasks in readers.items() if tasks and not name.startswith("task.")}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_and_the_fields_say_the_same_about_what_it_reads(name):
    """Without `reads`, a task may read any field, but those of `decode` only if it decodes."""
    selective = selective_fields()
    assert {*NOT_READ} < {*selective}
    for full_name, readers in selective.items():
        section = full_name.partition(".")[0]
        says = TASKS[name].reads_field({full_name, section})
        assert says == (name in readers) or (TASKS[name].reads is None and section != "decode"), full_name


# --- which architectures a task trains -----------------------------------------------------------------------------


def test_a_task_says_which_architectures_it_trains():
    text = message(model={"architecture": "decoder_only"}, task={"name": LIMITED})
    assert text.endswith(
        f"model.architecture='decoder_only' cannot be trained with task.name='{LIMITED}', which trains encoder_decoder"
    )
    assert "has no method `decoder`" in message(model={"architecture": WAVE}, task={"name": LIMITED})
    assert from_values(model={"architecture": GENERATING}, task={"name": LIMITED})
    assert from_values(model={"architecture": "encoder_decoder"}, task={"name": LIMITED})


# --- overrides -----------------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(tmp_path):
    """Return a folder with two config files, of an architecture from outside and of the default one."""
    for name, model in (("wave", f"architecture='{WAVE}', num_waves=4"), ("plain", "")):
        (tmp_path / f"{name}.py").write_text(
            "import ml_collections\nfrom transformer_jax.config import *\n"
            "def get_config(arg=''):\n"
            "    config = ExperimentConfig().to_config_dict()\n"
            f"    values = dict({model})\n"
            "    with config.unlocked():\n"
            "        config.model.update(values)\n"
            f"        config.task.name = '{ANYTHING}'\n"
            "    return config\n"
        )
    return tmp_path


def test_flags(baseline):
    argv = [f"--config={baseline / 'wave.py'}", "--workdir=x", "--config.model.num_waves=6", "--config.task.margin=1"]
    arguments = parse(train, "transformer-jax train", argv)
    config = read_config(arguments.flags["config"].value, arguments.overrides)
    assert (config.model.num_waves, config.task.margin) == (6, 1.0)


def test_another_architecture_and_its_fields_in_one_set_of_overrides(baseline):
    overrides = {"model.num_waves": "6", "model.unrolled": "true", "model.architecture": WAVE}
    assert read_config(str(baseline / "plain.py"), overrides).model.num_waves == 6
    with pytest.raises(ConfigError, match=r"model\.num_waves: no such field"):
        read_config(str(baseline / "plain.py"), {"model.num_waves": "6"})
    with pytest.raises(ConfigError, match=r"model\.num_waves=x: expected an integer"):
        read_config(str(baseline / "wave.py"), {"model.num_waves": "x"})
    with pytest.raises(ConfigError, match=r"model\.num_wave: no such field \(did you mean 'model.num_waves'\?\)"):
        read_config(str(baseline / "wave.py"), {"model.num_wave": "3"})
    with pytest.raises(ConfigError, match=r"^config: model\.architecture='wav_e:W': No module named"):
        read_config(str(baseline / "wave.py"), {"model.architecture": "wav_e:W", "model.num_waves": "x"})


def test_fields_of_the_previous_architecture_are_dropped_unless_set():
    config = ExperimentConfig(model=WaveConfig(architecture=WAVE), task=TaskConfig(name=ANYTHING)).to_config_dict()
    assert not override(config, {"model.architecture": "encoder_decoder"})
    assert type(ExperimentConfig.from_config_dict(config).model) is ModelConfig
    model = WaveConfig(architecture=WAVE, num_waves=9)
    config = ExperimentConfig(model=model, task=TaskConfig(name=ANYTHING)).to_config_dict()
    override(config, {"model.architecture": "encoder_decoder"})
    with pytest.raises(ConfigError, match=r"model\.num_waves: no such field"):
        ExperimentConfig.from_config_dict(config)


def test_fields_are_known_once_their_object_is_imported():
    assert "model.num_waves" not in leaf_types()
    wave()
    assert leaf_types()["model.num_waves"] is int
    assert "model.num_waves" not in leaf_types({"model": {"architecture": "encoder_decoder"}})
    assert "model.num_waves" in leaf_types({"model": {"architecture": WAVE}})
    assert parse_overrides({"model.num_waves": "4"}) == {"model.num_waves": 4}
    assert is_rounding("model.unrolled")
    assert not is_rounding("model.num_waves")


# --- studies -------------------------------------------------------------------------------------------------------


def study(**fields):
    return Study(**{"question": "?", "metrics": (Metric("test/loss", "min"),), "seeds": (0, 1)} | fields)


def test_a_study_over_fields_of_its_own(baseline, monkeypatch):
    monkeypatch.chdir(baseline)
    axes = (over("model.num_waves", 1, 2), over("model.damping", 0.0, 0.25, 0.5))
    trials = grid(study(baseline="wave.py", axes=axes)).trials
    assert len(trials) == 2 * 3 * 2
    keys = [program_key(trial.config) for trial in trials]
    assert len(set(keys)) == 2 * 2  # num_waves, and whether damping is on
    with pytest.raises(ConfigError, match=r"no field 'model.num_wave' \(did you mean 'model.num_waves'"):
        study(baseline="wave.py", axes=(over("model.num_wave", 1, 2),))
    with pytest.raises(ConfigError, match=r"baseline='nowhere.py': neither in .*, nor among the built-in configs"):
        study(baseline="nowhere.py", axes=(over("model.num_wave", 1, 2),))


def test_a_study_over_architectures_and_a_range(baseline):
    axes = (over("model.architecture", "encoder_decoder", WAVE, name="model"), Range("model.damping", 0, 1))
    assert study(baseline="plain.py", axes=axes).axes[1].is_integer is False
    assert study(baseline="plain.py", settings={"model.architecture": WAVE}, axes=(Range("model.num_waves", 1, 9),))
    with pytest.raises(ConfigError, match=r"from 1\.5 to 9, but the field is an integer"):
        study(baseline="plain.py", settings={"model.architecture": WAVE}, axes=(Range("model.num_waves", 1.5, 9),))
    with pytest.raises(ConfigError, match="the field is not a number"):
        study(baseline="plain.py", settings={"model.architecture": WAVE}, axes=(Range("model.shape", 1, 9),))
