"""Configs of recurrent models, and those that are refused."""

import dataclasses

import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, OptimizerConfig, TaskConfig
from transformer_jax.errors import ConfigError

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
    if isinstance(field.default, str):
        return "S:"
    if field.default is None:  # derived from others, which may get the same value
        return {"DerivedBool": True, "DerivedFloat": float(len(field.name))}.get(field.type, len(field.name))
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
