import dataclasses
import json
import re

import ml_collections
import pytest

from transformer_jax.config import ExperimentConfig, ModelConfig, OptimizerConfig, walk
from transformer_jax.config_file import check_argument, load_config_dict, override, parse_overrides, read_config
from transformer_jax.errors import ConfigError

HEADER = "from transformer_jax.config import *\nfrom transformer_jax.config_file import check_argument\n"


def write(folder, body, name="some.py"):
    file = folder / name
    file.write_text(HEADER + body)
    return str(file)


def default_config():
    return ExperimentConfig().to_config_dict().lock()


def test_reads_a_file_and_passes_its_argument(tmp_path):
    file = write(
        tmp_path,
        "def get_config(arg=''):\n"
        "    check_argument(arg, ['wide', 'narrow'])\n"
        "    return ExperimentConfig(model=ModelConfig(emb_dim=64 if arg == 'wide' else 32)).to_config_dict()\n",
    )
    assert read_config(file).model.emb_dim == 32
    assert read_config(file + ":wide").model.emb_dim == 64
    assert read_config(file).model.head_dim == 4  # resolved
    with pytest.raises(ConfigError, match=r"some\.py: argument 'wid': expected one of wide, narrow .*'wide'"):
        load_config_dict(file + ":wid")


def test_the_config_of_a_work_directory_is_a_config(tmp_path):
    file = tmp_path / "config.json"
    config = dataclasses.replace(
        ExperimentConfig(model=ModelConfig(emb_dim=64, norm_position="pre")), seed=3
    ).resolved()
    file.write_text(json.dumps(config.to_dict()))
    assert read_config(str(file)) == config
    changed = read_config(str(file), {"model.num_heads": "4", "optimizer.warmup_steps": "64"})
    assert (changed.model.num_heads, changed.seed) == (4, 3)
    assert (changed.model.num_kv_heads, changed.model.head_dim) == (4, 16)  # derived values follow
    assert changed.optimizer.learning_rate == 64**-1.0
    own = dataclasses.replace(config, model=dataclasses.replace(config.model, head_dim=10))
    file.write_text(json.dumps(own.to_dict()))
    assert read_config(str(file), {"model.num_heads": "4"}).model.head_dim == 10


@pytest.mark.parametrize(
    ("text", "argument", "message"),
    [
        ("{", "", "is not JSON: "),
        ("[1]", "", "expected the config.json of a work directory"),
        ('{"model": {"num_head": 3}}', "", "num_head"),
        ('{"model": 3}', "", "model"),
        ("[" * 100_000, "", "is not JSON"),
        ("{}", ":big", "takes no argument, but ':big' was given"),
    ],
)
def test_a_damaged_json_config(tmp_path, text, argument, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s)config\.json: .*{re.escape(message)}"):
        read_config(f"{file}{argument}")


def test_a_missing_json_config(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.json: cannot be read: No such file"):
        read_config(str(tmp_path / "nothing.json"))


def test_a_config_is_locked(tmp_path):
    config = load_config_dict(
        write(tmp_path, "def get_config(arg=''):\n    return ExperimentConfig().to_config_dict()\n")
    )
    with pytest.raises(AttributeError, match="num_head"):
        config.model.num_head = 4


def test_check_argument():
    check_argument("")
    check_argument("b", ["a", "b"])
    with pytest.raises(ConfigError, match="argument 'b': this config has none"):
        check_argument("b")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = 1\n", r"some\.py: has no function get_config"),
        ("get_config = 3\n", r"some\.py: has no function get_config"),
        ("def get_config(arg=''):\n    return {}\n", r"get_config\(''\) returned dict; expected ExperimentConfig"),
        ("def get_config(arg=''):\n    x = 1\n    raise ValueError('boo')\n", r"ValueError: boo \(line 5\)"),
        ("def get_config(arg=''):\n    return ModelConfig(num_head=3)\n", r"TypeError: .*num_head.* \(line 4\)"),
        (
            "def get_config(arg=''):\n"
            "    from transformer_jax.errors import ConfigError\n"
            "    raise ConfigError('mine')\n",
            r"some\.py: mine",
        ),
        ("1 / 0\n", r"some\.py: raised ZeroDivisionError: .* \(line 3\)"),
        ("import no_such_module\n", r"ModuleNotFoundError: No module named 'no_such_module' \(line 3\)"),
        ("def get_config(\n", r"SyntaxError: .* \(line 3\)"),
    ],
)
def test_a_file_that_is_not_a_config_is_described(tmp_path, body, message):
    with pytest.raises(ConfigError, match=message):
        load_config_dict(write(tmp_path, body))


def test_an_exception_keeps_its_cause_for_the_traceback(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config_dict(write(tmp_path, "def get_config(arg=''):\n    raise ValueError('boo')\n"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_missing_or_unreadable_file(tmp_path):
    with pytest.raises(ConfigError, match=r"has no Python file"):
        load_config_dict(str(tmp_path / "multi30.py"))
    write(tmp_path, "", "multi30k.py")
    with pytest.raises(ConfigError, match=r"multi30\.py: no such config file \(did you mean 'multi30k\.py'\?\)"):
        load_config_dict(str(tmp_path / "multi30.py"))
    with pytest.raises(ConfigError, match=r"no such config file; .* has multi30k\.py"):
        load_config_dict(str(tmp_path / "zzz.py"))
    with pytest.raises(ConfigError, match=r"there is no folder .*missing"):
        load_config_dict(str(tmp_path / "missing" / "x.py"))
    with pytest.raises(ConfigError, match=r"is a folder, not a config file; .* has multi30k"):
        load_config_dict(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        load_config_dict(str(tmp_path / "multi30k.py" / "x.py"))


def test_executing_a_file_leaves_no_other_file(tmp_path):
    load_config_dict(write(tmp_path, "def get_config(arg=''):\n    return ExperimentConfig().to_config_dict()\n"))
    assert [path.name for path in tmp_path.iterdir()] == ["some.py"]


def test_overrides_of_every_type():
    config = default_config()
    override(
        config,
        {
            "seed": "7",
            "model.num_kv_heads": "4",
            "model.use_bias": "false",
            "model.dropout_rate": "0",
            "model.norm_position": "pre",
            "optimizer.learning_rate": "1e-3",
            "training.num_train_steps": 12,
        },
    )
    result = ExperimentConfig.from_config_dict(config)
    model = result.model
    assert (result.seed, model.num_kv_heads, model.use_bias, model.norm_position) == (7, 4, False, "pre")
    assert model.dropout_rate == 0.0
    assert isinstance(model.dropout_rate, float)
    assert result.optimizer.learning_rate == 1e-3
    assert result.training.num_train_steps == 12


def test_every_field_can_be_overridden_by_its_own_value_as_text():
    leaves = list(walk(ExperimentConfig()))
    assert len(leaves) > 60
    for name, _, value in leaves:
        assert parse_overrides({name: str(value)}) == {name: value}
    with pytest.raises(ConfigError, match="expected an integer"):
        parse_overrides({"model.num_heads": "none"})


def test_every_choice_can_be_given_as_text():
    """Including `none`, which unsets a number."""
    for name, field, _ in walk(ExperimentConfig()):
        for choice in field.metadata.get("choices", ()):
            assert parse_overrides({name: choice}) == {name: choice}


def test_a_whole_number_in_a_file_does_not_make_a_float_field_an_integer():
    config = ExperimentConfig(optimizer=OptimizerConfig(clip_norm=1)).to_config_dict()
    override(config, {"optimizer.clip_norm": "0.5"})
    assert ExperimentConfig.from_config_dict(config).optimizer.clip_norm == 0.5


def test_values_that_a_file_derives_follow_overrides():
    config = ExperimentConfig(model=ModelConfig(mlp_dim=1)).to_config_dict()
    config.model.mlp_dim = config.model.get_ref("emb_dim") * 3
    override(config, {"model.emb_dim": "64"})
    assert ExperimentConfig.from_config_dict(config).model.mlp_dim == 192


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.num_head", "(did you mean 'model.num_heads'?)"),
        ("num_heads", "(did you mean 'model.num_heads'?)"),
        ("model.learning_rate", "(did you mean 'optimizer.learning_rate'?)"),
        ("num_layers", "(did you mean 'model.num_encoder_layers' or 'model.num_decoder_layers'?)"),
        ("training.max_length", "(did you mean 'model.max_length' or 'data.max_length' or 'evaluation.max_length'?)"),
        ("model.nomr_position", "(did you mean 'model.norm_position'?)"),
        ("model", "is a section; set one of its fields, such as model.architecture"),
        ("model.", "no such field"),
        ("", "no such field"),
        ("seed.x", "no such field"),
        ("model.num_heads.x", "no such field"),
        ("qqq", "no such field"),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest(name, hint):
    (problem,) = override(default_config(), {name: "4"})
    assert problem.startswith(f"{name}: ")
    assert hint in problem


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model.num_heads", "four", "an integer"),
        ("model.num_heads", "4.0", "an integer"),
        ("model.num_heads", "", "an integer"),
        ("model.dropout_rate", "0,1", "a number"),
        ("model.use_bias", "maybe", "true or false"),
    ],
)
def test_a_wrong_type_is_named(name, value, expected):
    assert override(default_config(), {name: value}) == [f"{name}={value}: expected {expected}"]


def test_all_problems_are_reported_at_once(tmp_path):
    """Values of wrong types, unknown fields, values out of range, and relations within the remaining sections."""
    spec = write(tmp_path, "def get_config(arg=''):\n    return ExperimentConfig().to_config_dict()\n")
    overrides = {
        "model.num_heads": "7",
        "model.num_layers": "3",
        "training.num_train_steps": "x",
        "optimizer.beta1": "1.5",
    }
    with pytest.raises(ConfigError) as caught:
        read_config(spec, overrides)
    first, *problems = str(caught.value).splitlines()
    assert first == "config: 4 problems"
    assert [problem.split(":")[0].split(" ")[3] for problem in problems] == [
        "model.num_layers",
        "training.num_train_steps=x",
        "optimizer.beta1=1.5",
        "model.num_heads=7",
    ]
    with pytest.raises(ConfigError, match=r"2 problems\n.*num_heads=x.*\n.*no such field"):
        read_config(spec, {"model.num_heads": "x", "model.foo": "3", "seed": "5"})


def test_only_allowed_names():
    assert parse_overrides({"seed": "3"}, ["seed"]) == {"seed": 3}
    with pytest.raises(ConfigError, match=r"model\.num_heads: cannot be overridden here"):
        parse_overrides({"model.num_heads": "3"}, ["seed"])
    with pytest.raises(ConfigError, match=r"sed: no such field \(did you mean 'seed'\?\)"):
        parse_overrides({"sed": "3"}, ["seed"])


def test_a_config_without_the_section():
    with pytest.raises(ConfigError, match="returns no section 'model'"):
        override(ml_collections.ConfigDict({"seed": 1}), {"model.num_heads": "4"})
