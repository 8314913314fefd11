import types

import pytest

from transformer_jax.cli import evaluate, generate, quickstart, train
from transformer_jax.cli.arguments import (
    Positionals,
    comma_separated,
    declare,
    integer,
    override_flags,
    parse,
    path_flag,
    switch,
    text,
)
from transformer_jax.cli.main import main
from transformer_jax.config_file import parse_overrides
from transformer_jax.errors import ConfigError


def define(values):
    text(values, "name", "a name", "default")
    switch(values, "loud", "shout")
    path_flag(values, "folder", "a folder", "here")


COMMAND = types.SimpleNamespace(__doc__="A command.", OVERRIDES=("config",), define=define, run=lambda arguments: 0)


def parsed(*argv):
    return parse(COMMAND, "program command", argv)


def test_values_and_defaults():
    flags = parsed().flags
    assert (flags.name, flags.loud, flags.folder, flags.debug) == ("default", False, "here", False)
    flags = parsed("--name", "x", "--loud", "--folder=there", "--debug").flags
    assert (flags.name, flags.loud, flags.folder, flags.debug) == ("x", True, "there", True)
    assert parsed("--noloud").flags.loud is False


def test_commands_do_not_share_flags():
    assert parsed("--name=x").flags.name == "x"
    assert parsed().flags.name == "default"


@pytest.mark.parametrize(
    ("argv", "overrides"),
    [
        (["--config.model.num_heads=4"], {"model.num_heads": 4}),
        (["--config.model.num_heads", "4"], {"model.num_heads": 4}),
        (["-config.seed=4"], {"seed": 4}),
        (["--config.model.use_bias"], {"model.use_bias": True}),
        (["--noconfig.model.use_bias"], {"model.use_bias": False}),
        (["--config.model.use_bias=false"], {"model.use_bias": False}),
        (["--config.data.dir="], {"data.dir": ""}),
        (["--config.data.dir=a=b"], {"data.dir": "a=b"}),
        (["--config.data.dir=--x"], {"data.dir": "--x"}),
        (["--config.optimizer.learning_rate", "-1"], {"optimizer.learning_rate": -1.0}),
        (["--config.seed=1", "--name=x", "--config.model.emb_dim=8"], {"seed": 1, "model.emb_dim": 8}),
    ],
)
def test_overrides(argv, overrides):
    assert parse_overrides(parsed(*argv).overrides) == overrides


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nmae=x"], r"unknown flag --nmae \(did you mean '--name'\?\); see program command --help"),
        (["--zzzzzz"], r"unknown flag --zzzzzz; see"),
        (["--confg.seed=3"], r"unknown flag --confg\.seed \(did you mean '--config'\?\)"),
        (["--noname"], r"unknown flag --noname"),
        (["--noconfig.seed"], r"unknown flag --noconfig\.seed"),
        (["--noconfig.model.use_bias=3"], r"--noconfig\.model\.use_bias takes no value"),
        (["--name"], r"issing value for flag --name"),
        (["--name", "--loud"], r"missing value for flag --name: the next argument is --loud"),
        (["--config.seed"], r"missing value for flag --config\.seed"),
        (["--config.seed", "--name=x"], r"missing value for flag --config\.seed"),
        (["--name=a", "--name=b"], r"--name is given twice, as a and as b"),
        (["--config.seed=1", "--config.seed=2"], r"--config\.seed is given twice, as 1 and as 2"),
        (["--config.model.use_bias", "--noconfig.model.use_bias"], r"use_bias is given twice, as true and as false"),
        (["--folder=~nosuchuser/x"], r"--folder=~nosuchuser/x: there is no user 'nosuchuser'; .* \./~nosuchuser$"),
        (["--folder=a", "--folder=b"], r"--folder is given twice, as a and as b"),
        (["--loud=maybe"], r"--loud=maybe: expected true or false"),
        (["extra"], r"unexpected argument 'extra'; flags begin with two dashes"),
        (["--name=x", "extra", "--loud"], r"unexpected argument 'extra'"),
        (["--", "--config.seed=3"], r"unexpected argument '--config\.seed=3'"),
        (["--flagfile=/no/such/file"], r"/no/such/file"),
    ],
)
def test_bad_usage(argv, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--evaluation.tokens_per=1"],
            r"evaluation\.tokens_per: no such field \(did you mean 'evaluation\.tokens_per_batch'",
        ),
        (["--decode.max_extra_length=x"], r"config: decode\.max_extra_length=x: expected an integer"),
    ],
)
def test_overrides_for_commands_without_a_config_file_are_checked_at_once(argv, message):
    with pytest.raises(ConfigError, match=message):
        parse(
            types.SimpleNamespace(**{**vars(COMMAND), "OVERRIDES": ("evaluation", "decode")}), "program command", argv
        )


def test_flags_from_a_file(tmp_path):
    (tmp_path / "flags").write_text("--name=x\n--config.seed=3\n")
    arguments = parsed(f"--flagfile={tmp_path / 'flags'}", "--loud")
    assert (arguments.flags.name, arguments.flags.loud, arguments.overrides) == ("x", True, {"seed": "3"})


def test_the_home_folder_is_expanded_in_paths_and_not_in_other_text(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    flags = parsed("--folder=~/x y", "--name=~/x").flags
    assert (flags.folder, flags.name) == (f"{tmp_path}/x y", "~/x")
    for given in ("x/~", "./~x", "", "x.py:~"):
        assert parsed(f"--folder={given}").flags.folder == given


def test_flags_that_are_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/me")
    paths = {"config", "workdir", "checkpoint", "input", "output_file", "prompts"}
    for command, name in ((train, "train"), (evaluate, "evaluate"), (generate, "generate"), (quickstart, "quickstart")):
        for flag in paths.intersection(declare(command)):
            assert parse(command, name, [f"--{flag}=~/x"]).required(flag) == "/home/of/me/x"


def test_a_required_flag():
    arguments = parse(train, "train", ["--workdir="])
    for name in ("config", "workdir"):
        with pytest.raises(ConfigError, match=f"--{name}=... is missing: "):
            arguments.required(name)


def test_fields_that_may_be_overridden():
    assert override_flags(train)["config.model.num_heads"] == "model.num_heads"
    assert override_flags(evaluate)["evaluation.average_checkpoints"] == "evaluation.average_checkpoints"
    assert {name.partition(".")[0] for name in override_flags(evaluate)} == {"data", "decode", "evaluation", "task"}
    assert {name.partition(".")[0] for name in override_flags(generate)} == {"decode", "evaluation"}
    with pytest.raises(ConfigError, match=r"unknown flag --config\.seed"):
        parse(generate, "generate", ["--config.seed=3"])
    for field in ("data.source", "task.name"):
        with pytest.raises(ConfigError, match=rf"{field}: cannot be overridden here"):
            parse(evaluate, "evaluate", [f"--{field}=text"])


def test_every_flag_refuses_to_be_given_twice():
    for command in (train, evaluate, generate):
        for flag in declare(command)._flags().values():
            assert not flag.allow_overwrite, flag.name


# Positionals.


def with_positionals(*names, more=None):
    return types.SimpleNamespace(**vars(COMMAND), POSITIONALS=Positionals(names, more, "things"))


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["a", "b"], ("a", "b")),
        (["--name=x", "a", "--loud", "b"], ("a", "b")),
        (["a", "--config.seed", "3", "b", "--folder", "f"], ("a", "b")),
        (["a", "b", "c", "b"], ("a", "b", "c", "b")),
        (["--", "a", "--loud"], ("a", "--loud")),
    ],
)
def test_positionals(argv, given):
    assert parse(with_positionals("A", "B", more="C"), "program command", argv).positionals == given


def test_flags_between_positionals():
    arguments = parse(with_positionals("A"), "program command", ["--name=x", "a", "--config.seed=3", "--loud"])
    assert (arguments.flags.name, arguments.flags.loud, arguments.overrides) == ("x", True, {"seed": "3"})
    assert parsed().positionals == ()


@pytest.mark.parametrize(
    ("positionals", "argv", "message"),
    [
        ((("A", "B"), None), [], r"^A and B are missing: program command A B; see program command --help$"),
        ((("A", "B"), "C"), ["a"], r"^B is missing: program command A B \[C \.\.\.\]; see"),
        ((("A", "B"), None), ["a", "b", "c", "d"], r"^unexpected argument 'c'; program command takes A B; flags begin"),
        ((("A", "B"), "C"), ["a", "", "c"], r"^argument 2 is empty: program command A B \[C"),
        (((), None), ["a"], r"^unexpected argument 'a'; flags begin with two dashes; see program command --help$"),
    ],
)
def test_too_few_and_too_many_positionals(positionals, argv, message):
    names, more = positionals
    with pytest.raises(ConfigError, match=message):
        parse(with_positionals(*names, more=more), "program command", argv)


def test_a_wrong_flag_is_reported_before_a_missing_positional():
    with pytest.raises(ConfigError, match=r"unknown flag --nmae \(did you mean '--name'\?\)"):
        parse(with_positionals("A"), "program command", ["--nmae=x"])


@pytest.mark.parametrize("name", ["train", "evaluate", "generate", "inspect", "quickstart"])
def test_commands_without_positionals_refuse_them(name, capsys):
    assert main([name, "runs/a"]) == 2
    message = f"unexpected argument 'runs/a'; flags begin with two dashes; see transformer-jax {name} --help\n"
    assert capsys.readouterr().err == f"transformer-jax: error: {message}"


# Kinds of flags.


def test_integers():
    def define_number(values):
        integer(values, "count", "how many", default=5, minimum=2)

    command = types.SimpleNamespace(**{**vars(COMMAND), "define": define_number})
    assert parse(command, "program", []).flags.count == 5
    assert parse(command, "program", ["--count=2"]).flags.count == 2
    for given, message in (("1", "expected at least 2"), ("x", "expected an integer"), ("2.5", "expected an integer")):
        with pytest.raises(ConfigError, match=rf"^--count={given}: {message}$"):
            parse(command, "program", [f"--count={given}"])
    with pytest.raises(ConfigError, match=r"--count is given twice, as 3 and as 4"):
        parse(command, "program", ["--count=3", "--count=4"])


def test_names_separated_by_commas():
    assert comma_separated("splits", "test, valid") == ["test", "valid"]
    for given in ("", "a,,b", "a,b,a"):
        with pytest.raises(ConfigError, match=f"--splits={given}: expected different names, separated by commas"):
            comma_separated("splits", given)
