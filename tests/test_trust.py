"""Code that a file names runs only if the user trusts it; what the user has written needs nothing.

The work directories are made by hand, and nothing is trained. The modules that they name write a file when they are
imported.
"""

import dataclasses
import importlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from log_support import with_trackers
from report_support import write_workdir
from run_support import ROOT

from transformer_jax import trust
from transformer_jax.checkpoints.manifest import Manifest, seal
from transformer_jax.cli.help import COMMANDS, command_help
from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig, TrainingConfig, parse_kinds
from transformer_jax.config_file import read_config
from transformer_jax.data.sources import SOURCES
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.evaluation.loading import apply_overrides
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps import worker
from transformer_jax.sweeps.executors.executor import Options, worker_command
from transformer_jax.sweeps.report import reproduction
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.results import RESULT, SPEC, claim_sweep, mark_pruned, read_spec
from transformer_jax.sweeps.study import NOWHERE, load_study
from transformer_jax.sweeps.study_json import declaration_of, with_code
from transformer_jax.tasks.task import TASKS
from transformer_jax.trackers.results import track_scores
from transformer_jax.trust import UntrustedError

PART = """
from pathlib import Path

Path({marker!r}).touch()

from transformer_jax.data.sources.embedded import EmbeddedSource
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.translation import Translation


class Task(Translation):
    pass


class Architecture(type(ARCHITECTURES["encoder_decoder"])):
    pass


class Source(EmbeddedSource):
    pass


def make(config):
    return Source(config)


from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.feed_forwards import FEED_FORWARDS
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import ENCODINGS
from transformer_jax.nn.residual import NORM_POSITIONS

ACTIVATION, NORM, ENCODING = ACTIVATIONS["gelu"], NORMS["rmsnorm"], ENCODINGS["rotary"]
NORM_POSITION = NORM_POSITIONS["pre"]
MIXER = MIXERS["attention"]._replace(name="evil")
FEED_FORWARD = FEED_FORWARDS["dense"]._replace(name="evil_too")


def rule(static, hyper, axes):
    return []


def schedule(step, hyper):
    return step
"""
FIELDS = {"task.name": "evil:Task", "model.architecture": "evil:Architecture", "data.source": "evil:Source"}
PARTS = {
    "model.mixer": "evil:MIXER",
    "model.feed_forward": "evil:FEED_FORWARD",
    "model.norm": "evil:NORM",
    "model.norm_position": "evil:NORM_POSITION",
    "model.activation": "evil:ACTIVATION",
    "model.position_encoding": "evil:ENCODING",
    "optimizer.name": "evil:rule",
    "optimizer.schedule": "evil:schedule",
}
IN_A_LAYER = {"model.layer_pattern": "AB", "model.layer_kinds": "A: feed_forward=evil:FEED_FORWARD; B:"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on Python's path with the module `evil` and the package `evils`, which nothing has imported."""
    marker = str(tmp_path / "imported")
    for name in ("evil.py", "evils/__init__.py", "evils/parts.py", "evils2.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PART.format(marker=marker))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.setattr(trust, "_state", trust._State())
    for table in (TASKS, SOURCES, *map(table_of, PARTS)):
        monkeypatch.setattr(table, "_imported", {n: value for n, value in table._imported.items() if ":" not in n})
    parse_kinds.cache_clear()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("evil", "evils", "evils2")]:
        del sys.modules[name]


def imported(folder):
    return (folder / "imported").exists()


def naming(**values):
    """Return a whole config as it is in a file, with other values by dotted name."""
    config = json.loads(json.dumps(ExperimentConfig().resolved().to_dict()))
    for name, value in values.items():
        section, _, leaf = name.partition(".")
        config[section][leaf] = value
    return config


def run_in(folder, **values):
    """Write a work directory with config.json and a checkpoint without arrays, both of a config with other values."""
    config = naming(**values)
    checkpoint = folder / "run" / "checkpoints" / "5"
    checkpoint.mkdir(parents=True)
    record = {"config": config, "corpus": None}
    seal(checkpoint, Manifest(5, record, {"valid/loss": 1.0}, {}).to_bytes(), {"tokenizer.model": b"", "w": b""})
    (folder / "run" / "config.json").write_text(json.dumps(config))
    return folder / "run"


def edit(file, **values):
    file.write_text(json.dumps(with_checksum(without_checksum(json.loads(file.read_text())) | values)))


RECORD, CONFIG = "run/checkpoints/5/record.json", "run/config.json"
READERS = [
    (RECORD, ["evaluate", "--checkpoint=run"]),
    (RECORD, ["evaluate", "--checkpoint=run/checkpoints/5"]),
    (RECORD, ["predict", "--checkpoint=run", "--input=text"]),
    (RECORD, ["generate", "--checkpoint=run", "--input=text"]),
    (RECORD, ["score", "--checkpoint=run", "--input=text"]),
    (RECORD, ["compare", "run", "run/checkpoints/5"]),
    (RECORD, ["attention", "--checkpoint=run", "--text=a"]),
    (RECORD, ["embeddings", "--checkpoint=run"]),
    (RECORD, ["plot", "--checkpoint=run"]),
    (RECORD, ["convert", "--checkpoint=run", "--to=out"]),
    (RECORD, ["inspect", "--checkpoint=run"]),
    (RECORD, ["inspect", "--checkpoint=run/checkpoints/5"]),
    ("run/checkpoints/best", ["evaluate", "--checkpoint=run/checkpoints/best"]),
    (CONFIG, ["train", "--workdir=run"]),
    (CONFIG, ["train", "--workdir=other", "--config=run/config.json"]),
    (CONFIG, ["train", "--workdir=other", "--config=run/config.json", "--config.task.name=translation"]),
    (CONFIG, ["inspect", "--config=run/config.json"]),
    (CONFIG, ["plot", "--config=run/config.json", "--output=plots"]),
    (CONFIG, ["sweep", "--study=norm_placement", "--config=run/config.json", "--dry_run"]),
    (CONFIG, ["convert", "--from=nowhere", "--workdir=other", "--config=run/config.json"]),
    (CONFIG, ["quickstart", "--config=run/config.json"]),
]


@pytest.mark.parametrize(
    ("file", "words"), READERS, ids=lambda value: value if isinstance(value, str) else " ".join(value[:2])
)
def test_commands_import_nothing_that_a_file_names(folder, monkeypatch, capsys, file, words):
    run_in(folder, **{"task.name": "evil:Task"})
    (folder / "text").write_text("a\n")
    monkeypatch.chdir(folder)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{file} names task.name='evil:Task', code that is not part of this package. It is not imported." in said
    assert f"pass --trust=evil (or set {trust.VARIABLE}=evil)" in said
    assert not imported(folder)
    assert "evil" not in sys.modules


@pytest.mark.parametrize(("field", "value"), PARTS.items())
def test_no_part_that_a_file_names_is_imported(folder, capsys, field, value):
    run = run_in(folder, **{field: value})
    assert main(["inspect", f"--checkpoint={run}"]) == 2
    assert (
        f"{RECORD} names {field}='{value}', code that is not part of this package. It is not" in capsys.readouterr().err
    )
    with trust.command(), trust.reading("file"), pytest.raises(UntrustedError):  # neither if nobody asked before
        _ = table_of(field)[value]
    assert not imported(folder)
    assert main(["inspect", f"--config={run / 'config.json'}", "--trust=evil"]) in (0, 2)
    assert imported(folder)


def table_of(field):
    section, _, leaf = field.partition(".")
    return getattr(ExperimentConfig(), section).__dataclass_fields__[leaf].metadata["choices"].table


@pytest.mark.parametrize(
    "kinds", [IN_A_LAYER["model.layer_kinds"], "B:;A:feed_forward = evil:FEED_FORWARD,mixer=attention"]
)
def test_no_part_that_a_file_names_for_a_layer_is_imported(folder, capsys, kinds):
    run = run_in(folder, **{**IN_A_LAYER, "model.layer_kinds": kinds})
    assert main(["inspect", f"--checkpoint={run}"]) == 2
    said = capsys.readouterr().err
    assert "names model.layer_kinds: A: feed_forward='evil:FEED_FORWARD', code that is not part" in said
    assert "pass --trust=evil (or" in said
    assert not imported(folder)
    assert main(["inspect", f"--config={run / 'config.json'}", "--trust=evil"]) == 0
    assert imported(folder)


def test_imported_functions_need_trust_of_their_own(folder):
    """A function does not say what it is for; an entry of a block does."""
    import evil  # ty: ignore[unresolved-import]

    config = ExperimentConfig.from_config_dict(naming(**{"model.activation": "evil:ACTIVATION"}))
    assert table_of("model.activation")[config.model.activation] is evil.ACTIVATION
    values = naming(**{"optimizer.name": "evil:rule"})
    said = r"names optimizer\.name='evil:rule', .* It is not known to be a function of \(static, hyper, axes\)\. If you"
    with pytest.raises(UntrustedError, match=said):
        ExperimentConfig.from_config_dict(values)
    trust.trust_modules("evil")
    assert ExperimentConfig.from_config_dict(values).optimizer.name == "evil:rule"


@pytest.mark.parametrize("how", ["--trust=evil", "--trust=other,evil", "--trust=other --trust=evil", "environment"])
def test_a_trusted_module_is_imported(folder, monkeypatch, capsys, how):
    run = run_in(folder, **{"task.name": "evil:Task"})
    flags = [] if how == "environment" else how.split()
    if how == "environment":
        monkeypatch.setenv(trust.VARIABLE, "other, evil")
    assert main(["inspect", f"--checkpoint={run}", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["task"]["name"] == "evil:Task"
    assert imported(folder)
    assert main(["inspect", f"--checkpoint={run}"]) == (0 if how == "environment" else 2)  # it was for one command


@pytest.mark.parametrize("name", ["evil", "evils2", "evils.parts.more"])
def test_trust_is_in_a_module_and_those_inside_it(folder, name):
    """A longer name with the same beginning is another module, and so is the package around it."""
    values = naming(**{"task.name": "evils.parts:Task"})
    trust.trust_modules(name)
    with pytest.raises(UntrustedError, match=r"names task\.name='evils\.parts:Task'"):
        ExperimentConfig.from_config_dict(values)
    assert not imported(folder)  # nor is the package `evils`, to look for its parts
    trust.trust_modules("evils")
    assert ExperimentConfig.from_config_dict(values).task.name == "evils.parts:Task"


def test_every_part_that_a_file_names_is_listed_at_once(folder, capsys):
    run = run_in(folder, **{**FIELDS, "data.source": "evils.parts:Source"})
    assert main(["inspect", f"--checkpoint={run}"]) == 2
    said = capsys.readouterr().err
    for part in ("model.architecture='evil:Architecture'", "task.name='evil:Task'", "data.source='evils.parts:Source'"):
        assert part in said
    assert "They are not imported" in said
    assert "--trust=evil,evils.parts (or" in said


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--trust=evil:Task", "--trust=evil:Task: expected the name of a module; write --trust=evil"),
        ("--trust=evil.py/", "--trust=evil.py/: expected the name of a module, such as mypackage"),
        ("--trust=--config=x", "--trust=--config=x: expected the name of a module"),
        ("--trust=a..b", "--trust=a..b: expected the name of a module"),
    ],
)
def test_what_is_no_name_of_a_module(capsys, flag, said):
    assert main(["inspect", "--config=quickstart", flag]) == 2
    assert said in capsys.readouterr().err


def test_a_wrong_environment_is_named(folder, monkeypatch):
    monkeypatch.setenv(trust.VARIABLE, "evil:Task")
    with pytest.raises(ConfigError, match=f"{trust.VARIABLE}=evil:Task: expected the name of a module"):
        ExperimentConfig.from_config_dict(naming(**{"task.name": "evil:Task"}))


def test_help_has_the_flag_once():
    for name in COMMANDS:
        count = command_help(name, full=False).count("--trust=")
        assert count == (0 if name in ("list", "doctor", "runs") else 1), name


def test_weights_need_no_tracker_of_their_training(folder, capsys, caplog):
    """A tracker changes no number. Where it would get scores, it is a warning that names the remedy."""
    name = "evil:Tracker"
    run = run_in(folder, **{"training.trackers": f"jsonl, tensorboard,{name}"})
    assert main(["inspect", f"--checkpoint={run}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["training"]["trackers"] == "jsonl,tensorboard"
    assert main(["inspect", f"--config={run / 'config.json'}"]) == 2  # it could train
    assert f"{name}', code that is not part of this package. It is not" in capsys.readouterr().err
    with trust.command():
        config = apply_overrides(naming(**{"training.trackers": f"jsonl,{name},nowhere:Gone"}), {})
        assert config == ExperimentConfig(training=TrainingConfig(trackers="jsonl")).resolved()
        track_scores(with_trackers(f"jsonl,{name}", config), folder, 1, {"test": {"loss": 1.0}})
        assert not imported(folder)
        trust.trust_modules("nowhere")
        track_scores(with_trackers("jsonl,nowhere:Gone", config), folder, 1, {"test": {"loss": 1.0}})
    untrusted, missing = [record.getMessage() for record in caplog.records]
    assert f"the tracker {name} gets nothing more from this process: UntrustedError: " in untrusted
    assert "pass --trust=evil (or" in untrusted
    assert "No module named 'nowhere'" in missing
    assert missing.endswith("The scores are complete in the folder evaluation")


# --- what the user has written -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "value"), [*FIELDS.items(), *PARTS.items()])
def test_the_users_own_names_need_nothing(folder, capsys, field, value):
    model = ["--config=language_model"] if field == "model.mixer" else ["--config=quickstart"]
    rate = ["--config.optimizer.learning_rate=0.1"] if field == "optimizer.schedule" else []
    assert main(["inspect", *model, *rate, f"--config.{field}={value}"]) == 0
    assert imported(folder)


def test_the_users_own_names_in_a_layer_need_nothing(folder, capsys):
    assert main(["inspect", "--config=quickstart", *(f"--config.{n}={v}" for n, v in IN_A_LAYER.items())]) == 0
    assert imported(folder)


def test_a_config_file_and_a_program_of_the_user_need_nothing(folder):
    (folder / "own.py").write_text(
        "from transformer_jax.config import *\n\n\ndef get_config(arg=''):\n"
        "    return ExperimentConfig(task=TaskConfig(name='evil:Task')).to_config_dict()\n"
    )
    with trust.command():
        assert read_config(str(folder / "own.py")).task.name == "evil:Task"
        assert read_config("quickstart", {"data.source": "evils.parts:make"}).data.source == "evils.parts:make"
        assert trust.modules() == ["evil", "evils.parts"]
    made = ExperimentConfig(task=TaskConfig(name="evils2:Task"), model=ModelConfig(architecture="evils2:Architecture"))
    assert made.resolved().model.architecture == "evils2:Architecture"


def test_what_a_file_names_is_not_taken_for_the_users_own(folder):
    with trust.reading("file.json"):
        with pytest.raises(UntrustedError, match=r"^file\.json names task\.name='evil:Task'"):
            ExperimentConfig.from_config_dict(naming(**{"task.name": "evil:Task"}))
        with pytest.raises(ConfigError, match=r"file\.json names task\.name='evil:Task'"):
            ExperimentConfig(task=TaskConfig(name="evil:Task")).resolved()
    with pytest.raises(UntrustedError):
        _ = TASKS["evil:Task"]
    assert not imported(folder)


def test_a_program_trusts_what_it_has_imported(folder):
    values = naming(**FIELDS)
    with pytest.raises(UntrustedError, match=r"If you trust it, import it first, pass trust=\['evil'\] \(or set"):
        ExperimentConfig.from_config_dict(values)
    import evil  # ty: ignore[unresolved-import]

    config = ExperimentConfig.from_config_dict(values)
    assert TASKS[config.task.name].__class__ is evil.Task
    with trust.command(), pytest.raises(UntrustedError):  # what a command has imported says nothing about the user
        ExperimentConfig.from_config_dict(values)


@pytest.mark.parametrize("name", ["os:system", "evil:make", "evil:Path"])
def test_imported_code_that_is_no_source_is_not_called(folder, name):
    """A source is any callable; of modules that nobody named, only classes with the methods of one are called."""
    import evil  # ty: ignore[unresolved-import]  # noqa: F401

    why = "is not imported" if name == "os:system" else "is not a class with the methods of a"
    said = rf"names data\.source='{name}', .* It {why}.* pass trust=\['{name.partition(':')[0]}'\]"
    with pytest.raises(UntrustedError, match=said):
        SOURCES.make(name, DataConfig(source=name))


def test_imported_code_of_another_kind_is_not_called(folder):
    import evil  # ty: ignore[unresolved-import]  # noqa: F401

    with pytest.raises(
        UntrustedError, match=r"names task\.name='evil:make', .* It is not a Task. If you trust it, pass"
    ):
        ExperimentConfig.from_config_dict(naming(**{"task.name": "evil:make"}))


def test_arguments_of_functions(folder):
    from transformer_jax.evaluation.loading import load

    run = run_in(folder, **{"task.name": "evil:Task"})
    with pytest.raises(UntrustedError, match=r"record\.json names task\.name='evil:Task'"):
        load(run)
    assert not imported(folder)
    with pytest.raises(CheckpointError):  # it has no arrays
        load(run, trust="evil")
    assert imported(folder)
    config = read_config(str(run / "config.json"), trust=["evil"])
    assert config.task.name == "evil:Task"


# --- sweeps --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(folder):
    """The work directory of a finished study with made-up numbers, and the folder of the study."""
    return write_workdir(folder)


def test_report_imports_nothing_that_a_trial_names(folder, sweep, capsys):
    workdir, _ = sweep
    task = {"task": {"name": "evil:Task"}}
    for file in workdir.glob(f"trials/*/{SPEC}"):
        edit(file, config=without_checksum(json.loads(file.read_text()))["config"] | task)
    for file in workdir.glob("trials/*/config.json"):
        edit(file, **task)
    assert main(["report", f"--workdir={workdir}"]) == 2
    assert f"{SPEC} names task.name='evil:Task'" in capsys.readouterr().err
    assert not imported(folder)
    trust.trust_modules("evil")
    assert collect(workdir).task.__class__.__module__ == "evil"


def test_a_report_of_the_users_study_trusts_its_baseline(folder, sweep, capsys):
    workdir, place = sweep
    task = {"task": {"name": "evil:Task"}}
    for file in workdir.glob(f"trials/*/{SPEC}"):
        edit(file, config=without_checksum(json.loads(file.read_text()))["config"] | task)
    for file in workdir.glob("trials/*/config.json"):
        edit(file, **task)
    baseline = folder / "tiny.py"
    baseline.write_text(
        baseline.read_text().replace("ExperimentConfig(", "ExperimentConfig(task=TaskConfig(name='evil:Task'), ")
    )
    assert main(["report", f"--workdir={workdir}"]) == 2
    assert not imported(folder)
    assert main(["report", f"--workdir={workdir}", f"--study={place}"]) == 0, capsys.readouterr().err
    assert imported(folder)


@pytest.mark.parametrize("place", ["axes", "settings", "pretraining"])
def test_report_imports_nothing_that_a_recorded_study_names(folder, sweep, place):
    workdir, _ = sweep
    declaration = without_checksum(json.loads((workdir / "study.json").read_text()))["declaration"]
    changed = json.loads(json.dumps(declaration))
    if place == "axes":
        changed["axes"][0]["values"]["1"] = {"data.source": "evil:Source"}
    elif place == "settings":
        changed["settings"] = {"task.name": "evil:Task"}
    else:
        changed["pretraining"] = declaration | {"settings": {"model.architecture": "evil:Architecture"}}
    edit(workdir / "study.json", declaration=changed)
    with pytest.raises(UntrustedError, match=r"study\.json names .*'evil:"):
        collect(workdir)
    assert not imported(folder)


def marking(folder):
    return f"from pathlib import Path\nPath({str(folder / 'imported')!r}).touch()\n"


def test_the_baseline_of_a_record_is_not_run(folder, sweep):
    """With --study, the code of the study is the user's; a config file that the record names is not."""
    workdir, place = sweep
    code = load_study(place)
    (folder / "downloaded.py").write_text(marking(folder))
    recorded = dataclasses.replace(code, baseline=str(folder / "downloaded.py"), folder=NOWHERE)
    for found in (
        with_code(recorded, code),
        with_code(dataclasses.replace(code, pretraining=recorded), code).pretraining,
    ):
        with pytest.raises(ConfigError, match="not among the built-in configs"):
            found.find_baseline()
    assert with_code(dataclasses.replace(code, folder=NOWHERE), code).find_baseline() == code.find_baseline()
    edit(workdir / "study.json", config="x", declaration=declaration_of(recorded))
    assert reproduction.sweep_command(collect(workdir, place)) is None
    assert not imported(folder)


def test_the_folder_of_a_record_is_not_run_for_its_pretraining(folder, sweep, monkeypatch):
    workdir, place = sweep
    first = load_study(place)
    claim_sweep(workdir / "pretraining", place, declaration_of(first), is_pretraining=True)
    (place / "study.py").write_text(marking(folder))
    results = collect(workdir)
    assert results.code is None
    results = dataclasses.replace(results, study=dataclasses.replace(results.study, pretraining=first))
    monkeypatch.setattr(reproduction, "overrides_of", lambda study, variants: {})
    assert reproduction.sweep_command(results) is None
    assert not imported(folder)


@pytest.fixture
def trial(folder, sweep):
    """A trial whose trial.json names `evil`, and which is pruned, so that its worker trains nothing."""
    workdir, _ = sweep
    trial = next(iter(sorted(workdir.glob("trials/*"))))
    edit(trial / SPEC, config=naming(**{"task.name": "evil:Task"}))
    (trial / RESULT).unlink()
    mark_pruned(trial, "others were better")
    return trial


def test_a_worker_inherits_the_trust_of_its_sweep(folder, trial, capsys):
    with trust.command():
        words = worker_command([trial], Options())
    assert words[1:4] == ["-P", "-m", "transformer_jax.sweeps.worker"]
    assert worker.main(words[4:]) == 2
    assert f"{SPEC} names task.name='evil:Task'" in capsys.readouterr().err
    assert not imported(folder)
    with trust.command():
        trust.trust_modules("other")
        read_config("quickstart", {"task.name": "evil:Task"})  # of the sweep's own flags
        words = worker_command([trial], Options(trial_axis="map"))
    assert words[-1] == "--trust=evil,other"
    assert worker.main(words[4:]) == 0
    assert json.loads((trial / RESULT).read_text())["status"] == "pruned"
    assert trust.modules() == []


def test_a_worker_measures_only_with_the_study_of_its_sweep(folder, trial, capsys):
    study = folder / "downloaded" / "study"
    study.mkdir(parents=True)
    (study / "study.py").write_text(marking(folder))
    edit(trial / SPEC, config=naming(), study=str(study))
    for given in ([], [f"--study={folder}"]):
        assert worker.main([str(trial), *given]) == 2
        assert f"names the study {study}, whose code measures the trial. It is not run." in capsys.readouterr().err
    assert worker_command([trial], Options(study=study))[-1] == f"--study={study}"
    assert worker.main(worker_command([trial], Options(study=study))[4:]) == 0
    assert read_spec(trial).study == str(study)


# --- other files ---------------------------------------------------------------------------------------------------


class Pickled:
    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self._marker),)


def test_a_pickled_result_of_slurm_runs_no_code(folder):
    pytest.importorskip("submitit")
    from transformer_jax.sweeps.executors.slurm import JOB, Slurm, SlurmOptions, _Job, _Queue

    (folder / "7_0_result.pkl").write_bytes(pickle.dumps(("success", Pickled(folder / "imported"))))
    job = _Job("7", folder, folder / "output.txt", _Queue("local"), "local")
    assert job.poll() == 1
    assert "it is not a pickle of plain values: it names pathlib." in (folder / "output.txt").read_text()
    assert not imported(folder)
    executor = Slurm(Options(), SlurmOptions(cluster="local"), folder / "slurm")
    for number in ("-1", "../7", "", 7, None, "1 2"):
        (folder / JOB).write_text(json.dumps({"cluster": "local", "job": number}))
        assert executor._earlier_job(folder) is None


PROTO = {"pythonClassName": "evil.Task", "featuresDict": {"features": {}}}
FEATURES_DICT = "tensorflow_datasets.core.features.features_dict.FeaturesDict"


@pytest.mark.parametrize(
    "features",
    [
        PROTO,
        {"python_class_name": "evil.Task"},
        {"type": "evil.Task", "content": {}},
        {"pythonClassName": FEATURES_DICT, "featuresDict": {"features": {"a": PROTO}}},
        {"type": FEATURES_DICT, "content": {"a": {"type": "evil.Task", "content": "{}"}}},
        {
            "type": FEATURES_DICT,
            "proto_cls": "tensorflow_datasets.FeaturesDict",
            "content": " " + json.dumps({"features": {"a": PROTO}}),
        },
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_the_features_of_a_prepared_dataset_import_nothing(folder, features):
    pytest.importorskip("tensorflow_datasets")
    from transformer_jax.data.sources.tfds.catalogue import make_builder, open_prepared

    place = folder / "wmt14_translate" / "de-en" / "1.0.0"
    place.mkdir(parents=True)
    info = {"name": "wmt14_translate", "configName": "de-en", "version": "1.0.0", "fileFormat": "array_record"}
    (place / "dataset_info.json").write_text(json.dumps(info))
    (place / "features.json").write_text(json.dumps(features))
    for read in (lambda: open_prepared(place), lambda: make_builder("wmt14_translate/de-en", str(folder))):
        with pytest.raises(UntrustedError, match=r"features\.json names a feature='evil:Task'"):
            read()
    assert not imported(folder)
    trust.trust_modules("evil")
    with pytest.raises(DataError, match="TFDS cannot read"):  # TFDS imports it, and finds that it is no feature
        open_prepared(place)
    assert imported(folder)


def test_features_that_cannot_be_read(tmp_path):
    from transformer_jax.data.sources.tfds.catalogue import open_prepared

    for text in ("{", json.dumps({"content": '{"pythonClassName": "evil.Task", \ud83d'})):
        (tmp_path / "features.json").write_text(text)
        with pytest.raises(DataError, match=r"features\.json: cannot be read"):
            open_prepared(tmp_path)


def test_python_m_imports_nothing_from_the_current_folder(tmp_path):
    """The first modules that the package imports of others; those of Python itself come before it."""
    for name in ("absl", "ml_collections", "logging", "evil"):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path; Path('{name}.run').touch()")
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "transformer_jax"]
    done = subprocess.run([*words, "list"], cwd=tmp_path, env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("*.run"))


def test_a_file_that_was_accepted_trusts_nothing(folder, monkeypatch):
    """A program that has imported a module accepts its classes; the next file may not call its functions for that."""
    monkeypatch.syspath_prepend(str(folder))
    run_in(folder, **{"task.name": "evil:Task"})
    importlib.import_module("evil")
    assert read_config(str(folder / "run" / "config.json")).task.name == "evil:Task"
    assert trust.modules() == []
