"""Runs of recurrent models by the command line, and configs that are refused."""

import dataclasses
import json
import signal

import pytest
from run_support import metric_lines, run_main, subprocess_main, write_corpus

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, OptimizerConfig, TaskConfig
from transformer_jax.errors import ConfigError

CONFIG = """
from transformer_jax.config import *

MODELS = {
    "translation": {"attention": "additive", "bidirectional": True, "bridge": "tanh", "teacher_forcing_rate": 0.8},
    "language_model": {"num_encoder_layers": 0, "cell": "gru"},
}


def get_config(arg="translation"):
    return ExperimentConfig(
        model=ModelConfig(**dict(
            architecture="recurrent", vocab_size=290, emb_dim=16, num_encoder_layers=1, num_decoder_layers=1,
            dropout_rate=0.1,
        ) | MODELS[arg]),
        task=TaskConfig(name=arg),
        data=DataConfig(source="text", dir=DIR, tokenizer="bpe", max_length=16, tokens_per_batch=512, num_buckets=1),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(
            num_train_steps=6, log_every_steps=1, eval_every_steps=3, checkpoint_every_steps=2
        ),
        decode=DecodeConfig(max_extra_length=4),
    ).to_config_dict()
"""
STUDY = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    "Must the decoder see its own output?",
    CONFIG,
    axes=(over("model.teacher_forcing_rate", 0.9, 0.2, name="rate"),),
    seeds=(0, 1),
    metrics=(Metric("test/loss"), Metric("test/sacrebleu")),
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    result = write_corpus(tmp_path_factory.mktemp("recurrent"))
    (result / "config.py").write_text(CONFIG.replace("DIR", repr(str(result))))
    return result


def train(folder, task, workdir, *flags):
    return ["train", f"--config={folder / 'config.py'}:{task}", f"--workdir={folder / workdir}", *flags]


@pytest.mark.slow
def test_translation_from_training_to_pictures(folder, capsys):
    """A killed and resumed run is the uninterrupted one, with own outputs among the inputs of training."""
    assert run_main(train(folder, "translation", "whole")) == 0
    killed = subprocess_main(train(folder, "translation", "killed"), env={"TRANSFORMER_JAX_KILL_AT": "after_batch:5"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run_main(train(folder, "translation", "killed")) == 0
    assert metric_lines(folder / "killed") == metric_lines(folder / "whole")
    whole = f"--checkpoint={folder / 'whole'}"
    assert run_main(["evaluate", whole, "--decode.beam_size=3"]) == 0
    scores = json.loads((folder / "whole" / "evaluation" / "test.json").read_text())
    assert scores.keys() >= {"loss", "sacrebleu", "unfinished"}
    capsys.readouterr()
    assert run_main(["generate", whole, "--text=1 2 3"]) == 0
    assert run_main(["generate", whole, "--text=1 2 3", "--decode.method=sample"]) == 0
    capsys.readouterr()
    assert run_main(["generate", whole, "--text="]) == 0  # an empty source has an empty translation
    assert capsys.readouterr().out == "\n"
    assert run_main(["attention", whole, "--text=1 2 3", "--target=3 2 1"]) == 0
    assert {path.name for path in (folder / "whole" / "attention").iterdir()} >= {
        "attention.html",
        "decoder_cross_attention_layer_1.png",
    }
    assert run_main(["inspect", whole]) == 0
    assert "not counted" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["buckets", "packed", "windows"])
def test_a_language_model(folder, capsys, batching):
    workdir = f"lm_{batching}"
    sizes = {"buckets": [], "windows": ["--config.data.num_buckets=6"]}  # the default, which is not read
    sizes["packed"] = [*sizes["windows"], "--config.data.packed_length=32"]
    flags = [f"--config.data.batching={batching}", *sizes[batching]]
    assert run_main(train(folder, "language_model", workdir, *flags)) == 0
    assert run_main(["evaluate", f"--checkpoint={folder / workdir}"]) == 0
    capsys.readouterr()
    words = ["generate", f"--checkpoint={folder / workdir}", "--text=1 2", "--decode.max_new_tokens=3"]
    assert run_main([*words, "--decode.beam_size=2"]) == 0
    assert capsys.readouterr().out.startswith("1 2")
    assert run_main([*words[:2], "--text=", words[3]]) == 0  # an empty text is continued from the start id
    assert capsys.readouterr().out.count("\n") == 1
    assert run_main(["attention", f"--checkpoint={folder / workdir}", "--text=1 2"]) == 2
    assert "model.attention='none': this recurrent model has no attention to show" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_by_processes_and_as_one_program(folder):
    study, found = folder / "experiments" / "own", {}
    study.mkdir(parents=True)
    (study / "study.py").write_text(STUDY.replace("CONFIG", repr(f"{folder / 'config.py'}:translation")))
    for executor in ("local", "vmap"):
        workdir = folder / executor
        assert run_main(["sweep", f"--study={study}", f"--workdir={workdir}", f"--executor={executor}"]) == 0
        results = [json.loads(file.read_text()) for file in sorted(workdir.glob("trials/*/result.json"))]
        found[executor] = [(r["labels"], r["seed"], r["metrics"]["test/loss"]) for r in results]
    for one, other in zip(found["local"], found["vmap"], strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], rel=1e-3)
    assert len({loss for _, _, loss in found["local"]}) == 4


# --- configs that are refused --------------------------------------------------------------------------------------

PAIR = {"architecture": "recurrent", "num_encoder_layers": 1, "num_decoder_layers": 1}
LANGUAGE_MODEL = PAIR | {"num_encoder_layers": 0}
REFUSED = [
    (PAIR | {"num_heads": 4}, {}, "model.num_heads=4 has no effect with architecture='recurrent', only with 'encoder_"),
    (
        PAIR | {"position_encoding": "rotary"},
        {},
        "position_encoding='rotary' has no effect with architecture='recurr",
    ),
    (PAIR | {"norm_position": "pre"}, {}, "norm_position='pre' has no effect with architecture='recurrent'"),
    ({"cell": "gru"}, {}, "model.cell='gru' has no effect with architecture='encoder_decoder', only with 'recurrent'"),
    ({"input_feeding": True}, {}, "input_feeding=True has no effect with architecture='encoder_decoder'"),
    (PAIR | {"input_feeding": True}, {}, "input_feeding=True has no effect with attention='none', only with 'dot' and"),
    (PAIR | {"attention": "dot", "feed_context": True}, {}, "feed_context=True has no effect with attention='dot'"),
    (PAIR | {"attention": "bahdanau"}, {}, "attention='bahdanau': expected one of none, additive, dot, general"),
    (PAIR | {"cell": "ltsm"}, {}, "expected one of lstm, gru, rnn (did you mean 'lstm'?)"),
    (PAIR | {"teacher_forcing_rate": 1.5}, {}, "teacher_forcing_rate=1.5: expected at most 1.0"),
    (PAIR | {"teacher_forcing_rate": 0.5}, {"batching": "packed"}, "teacher_forcing_rate=0.5 cannot be used with data"),
    (PAIR | {"bidirectional": True}, {}, "choose bridge='tanh', or equal numbers of layers and bidirectional=false"),
    (PAIR | {"num_decoder_layers": 2}, {}, "bridge='last' copies the states of 1 encoder layers"),
    (PAIR | {"bridge": "zero"}, {}, "the decoder would not read the source; set attention or feed_context"),
    (
        PAIR | {"attention": "dot", "bidirectional": True, "bridge": "tanh"},
        {},
        "attention='dot' multiplies states of width 512 with encoder outputs of width 1024; choose attention='general'",
    ),
    (PAIR | {"hidden_dim": 100}, {}, "tie_output=True needs an output projection that reads emb_dim=512 numbers"),
    (LANGUAGE_MODEL, {"task": "denoising"}, "num_encoder_layers=0 and model.num_decoder_layers=1: task.name='denois"),
    (PAIR | {"num_decoder_layers": 0}, {}, "trains a recurrent model with both stacks or model.num_encoder_layers=0"),
    (PAIR | {"num_encoder_layers": 0, "num_decoder_layers": 0}, {}, "a model needs layers; set one of them"),
    (PAIR, {"task": "language_model"}, "trains a recurrent model with model.num_encoder_layers=0"),
    (PAIR, {"task": "masked_lm"}, "model.architecture='recurrent' cannot be trained with task.name='masked_lm'"),
    (LANGUAGE_MODEL | {"attention": "dot"}, {"task": "language_model"}, "attention='dot' has no effect with num_enc"),
    (LANGUAGE_MODEL, {"task": "language_model", "prefix": "random"}, "reads every text in one direction"),
    (LANGUAGE_MODEL, {"task": "classification"}, "the first token does not see the text; choose last or mean"),
    (PAIR | {"num_decoder_layers": 0}, {"task": "classification"}, "does not see the text; choose last or mean"),
    (PAIR | {"num_decoder_layers": 0, "decoder_start_id": 7}, {}, "decoder_start_id=7 has no effect with num_dec"),
    (PAIR | {"num_decoder_layers": 0, "output_bias": True}, {}, "output_bias=True has no effect with num_dec"),
    (PAIR, {"layer_decay": 0.9}, "layer_decay=0.9 has no effect with model.architecture='recurrent', only with"),
    (PAIR, {"freeze": "encoder:1"}, "freeze them by their paths, such as 'encoder/forwards_0'"),
    ({"num_encoder_layers": 0}, {}, "num_encoder_layers=0: only architecture='recurrent' has stacks without layers"),
]


@pytest.mark.parametrize(("model", "others", "message"), REFUSED)
def test_configs_that_are_refused(model, others, message):
    task = {name: others[key] for key, name in (("task", "name"), ("prefix", "prefix")) if key in others}
    data = {name: value for name, value in others.items() if name == "batching"}
    optimizer = OptimizerConfig(**{name: others[name] for name in ("layer_decay", "freeze") if name in others})
    sections = {"model": ModelConfig(**model), "task": TaskConfig(**task), "data": DataConfig(**data)}
    with pytest.raises(ConfigError) as error:
        ExperimentConfig(**sections, optimizer=optimizer).resolved()
    assert message in str(error.value)


def test_a_bidirectional_encoder_alone_needs_no_output_projection():
    model = ModelConfig(**PAIR | {"num_decoder_layers": 0, "bidirectional": True})
    assert ExperimentConfig(model=model, task=TaskConfig(name="tagging", num_labels=3)).resolved().model.tie_output


def test_a_hint_names_the_more_general_field_and_not_any_similar_one():
    def refused(**fields):
        with pytest.raises(ConfigError) as error:
            ExperimentConfig(model=ModelConfig(**PAIR | fields)).resolved()
        return str(error.value)

    assert refused(attention_dropout_rate=0.1).endswith("(did you mean 'dropout_rate'?)")
    assert "did you mean" not in refused(mlp_dim=10)


def other_value(field):
    """Return a value of a field that is not its default."""
    if (choices := field.metadata.get("choices")) is not None:
        return next(value for value in choices if value != field.default)
    if isinstance(field.default, bool):
        return not field.default
    if isinstance(field.default, float) and field.default <= 1.0:
        return 0.5  # rates
    if field.default is None:  # derived from others, which may get the same value
        return len(field.name)
    return field.default + 1


@pytest.mark.parametrize("architecture", ["recurrent", "encoder_decoder", "decoder_only", "encoder_only"])
def test_every_field_of_other_architectures_is_refused_with_those_that_read_it(architecture):
    changed, readers = {}, {}
    for field in dataclasses.fields(ModelConfig):
        read_by = field.metadata.get("read_by", {}).get("model.architecture", (architecture,))
        if architecture not in read_by:
            changed[field.name], readers[field.name] = other_value(field), read_by
    assert len(changed) >= 10
    with pytest.raises(ConfigError) as error:
        ExperimentConfig(model=ModelConfig(**{"architecture": architecture} | changed)).resolved()
    lines = str(error.value).splitlines()
    for name, read_by in readers.items():
        (line,) = [line for line in lines if f"model.{name}={changed[name]!r} has no effect with arch" in line]
        reason, _, named = line.partition(", only with ")
        assert reason.endswith(f"has no effect with architecture='{architecture}'")
        assert all(f"'{reader}'" in named for reader in read_by)


def test_a_config_with_every_kind_of_stack_is_accepted():
    for model, task in (
        (PAIR | {"emb_dim": 4}, TaskConfig()),
        (LANGUAGE_MODEL, TaskConfig(name="language_model")),
        (PAIR | {"num_decoder_layers": 0}, TaskConfig(name="tagging")),
        (
            PAIR | {"num_decoder_layers": 0, "bidirectional": True, "tie_output": False},
            TaskConfig(name="classification"),
        ),
    ):
        config = ExperimentConfig(model=ModelConfig(**model), task=task).resolved()
        assert ExperimentConfig.from_config_dict(config.to_dict()) == config
