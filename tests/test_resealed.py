"""Records whose checksum is right but whose values have other types, as another program or an attacker writes them.

Every value of a record, at every depth, becomes one of several other types, and the record gets a new checksum. The
reader must return or raise a UserError; any other error would be a traceback.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_support import write_workdir

from transformer_jax.checkpoints.manifest import Manifest, resumable_record, run_record
from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.labels import parse_labels
from transformer_jax.errors import CheckpointError, UserError
from transformer_jax.evaluation.loading import apply_overrides
from transformer_jax.host.files import CHECKSUM, with_checksum
from transformer_jax.readers.records import COUNT
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.markdown import tables
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.training.metric_window import MetricWindow

OTHERS = (None, True, -1, 1.5, 10**30, float("nan"), "x", "", [], [None], [[]], {}, {"x": None}, {"x": {"y": []}})


def changes(values: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, new value) of every change of one value, and (path, KeyError) to remove it."""
    for other in OTHERS:
        if type(other) is not type(values):
            yield place, other
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inside:
        yield (*place, key), KeyError
        yield from changes(value, (*place, key))


def changed(values: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    result = copy.deepcopy(values)
    *parents, last = place
    inner = result
    for key in parents:
        inner = inner[key]
    if new is KeyError:
        del inner[last]
    else:
        inner[last] = new
    return result


def check(values: Any, read: Callable[[Any], Any], error_type: type[Exception] = UserError, whole: bool = True) -> None:
    """Call `read` with every change of the values; fail with all changes that end in another error than this.

    whole: the reader gets other values in place of the whole object too.
    """
    read(values)
    bad = []
    for place, new in changes(values):
        try:
            if place or whole:
                read(changed(values, place, new))
        except error_type:
            pass
        except Exception as error:
            bad.append(f"{'.'.join(map(str, place))} = {new!r}: {type(error).__name__}: {error}")
    assert not bad, f"{len(bad)}\n" + "\n".join(bad[:40])


def sealed(values: Any) -> str:
    return json.dumps(with_checksum(values) if isinstance(values, dict) else values)


CONFIG = ExperimentConfig().resolved().to_dict()
RECORD = {
    "config": CONFIG,
    "corpus": {"sha256": "0" * 64, "versions": {"sentencepiece": "1"}},
    "data": {"train_pairs": 5, "left_out": 0},
    "versions": {"jax": "1"},
    "window": [{"loss": 1.0, "tokens": 3.0}],
    "window_seconds": 1.5,
    "metrics": {"loss": 1.5},
    "validations": {"metric": "loss", "best": 1.5, "stale": 0},
    "skipped_updates": 0,
}


def test_records_of_checkpoints():
    leaves = {"params/a": {"shape": [2, 3], "dtype": "float32", "checksum": 5}}
    record = {name: value for name, value in RECORD.items() if name != "config"}
    values = {"format": 1, "step": 3, "record": record, "metrics": {"loss": 1.0}, "leaves": leaves}

    def read(values: Any) -> None:
        manifest = Manifest.from_bytes(json.dumps(values).encode())
        assert type(manifest.step) is int
        assert all(type(size) is int for leaf in manifest.leaves.values() for size in leaf.shape)
        assert all(isinstance(value, float | int) for value in (manifest.metrics or {}).values())

    check(values, read, ValueError)  # `read_manifest` names the file


def test_records_of_runs():
    def read(values: Any) -> None:
        record = run_record(values)
        validations = record.get("validations", {"metric": "", "best": 0, "stale": 0})
        assert (
            f"{validations['metric']}{(validations['best'] or 0) + validations['stale'] + record['config'].get('a', 0)}"
        )
        assert record["corpus"] is None or record["corpus"]["sha256"][:12]
        assert all(values.get("tokens", 0.0) >= -1 for values in record.get("window", []))

    check(RECORD | {"config": {}}, read)


def test_configs_of_records():
    small = {
        "name": 0,
        "model": {"architecture", "attention_implementation", "num_heads"},
        "data": {"tokenizer", "dir"},
    }
    small |= {
        "training": {"keep_last"},
        "evaluation": {"average_checkpoints"},
        "task": {"name"},
        "decode": {"beam_size"},
    }
    config = {
        section: {name: value for name, value in values.items() if name in small.get(section, ())}
        for section, values in CONFIG.items()
        if isinstance(values, dict)
    }
    check(config, lambda values: apply_overrides(values, {}), whole=False)


def test_labels():
    def read(values: Any) -> None:
        assert all(isinstance(name, str) for name in parse_labels(json.dumps(values).encode()))

    check({"labels": ["a", "b"]}, read)


def test_progress_of_an_output_file(tmp_path):
    output = tmp_path / "out.txt"

    def write() -> dict[str, Any]:
        file = ResumableFile(output, "--output_file=out.txt", force=False)
        file.begin(lambda: {"checkpoint": "a"}, {"failed": COUNT})
        list(file.remaining([b"1\n", b"2\n"]))
        file.write(["one", "two"], {"failed": 0})
        file.close()
        return json.loads((tmp_path / "out.txt.partial.json").read_text())

    values = {name: value for name, value in write().items() if name != CHECKSUM}

    def read(values: Any) -> None:
        (tmp_path / "out.txt.partial").write_bytes(b"one\ntwo\n")
        (tmp_path / "out.txt.partial.json").write_text(sealed(values))
        file = ResumableFile(output, "--output_file=out.txt", force=False)
        try:
            file.begin(lambda: {"checkpoint": "a"}, {"failed": COUNT})
            list(file.remaining([b"1\n", b"2\n"]))
            int(file.notes.get("failed", 0))
        finally:
            file.close()

    check(values, read)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    workdir, _ = write_workdir(tmp_path_factory.mktemp("study"))
    # Two variants with a seed each are enough.
    for folder in sorted((workdir / "trials").iterdir())[2:]:
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        folder.rmdir()
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.json", "result.json", "trial.json"])
def test_files_of_a_study(workdir, name):
    folder = next(iter(sorted((workdir / "trials").iterdir())))
    file = workdir / name if name == "study.json" else folder / name
    before = file.read_bytes()
    values = {key: value for key, value in json.loads(before).items() if key != CHECKSUM}
    run_config = folder / "config.json"
    stored = run_config.read_bytes()
    if name == "trial.json":
        values["config"] = {"model": {"num_heads": 2}, "training": {}}
        run_config.unlink()  # it has the whole config, which `report` compares with the trial's

    def read(values: Any) -> None:
        file.write_text(sealed(values))
        results = collect(workdir)
        tables(results, summarise(results), effects(results))

    try:
        check(values, read)
    finally:
        file.write_bytes(before)
        run_config.write_bytes(stored)


def test_a_record_without_a_config_is_named():
    with pytest.raises(CheckpointError, match="lacks 'config'"):
        run_record({"corpus": None})


COUNTED = {"learning_rate": 0.1, "filled": 3.0, "slots": 4.0}
STEP = COUNTED | {"loss": 1.0, "gradient_norm": 1.0, "tokens": 3.0, "weight": 3.0}
RESUMED = {"config": {}, "corpus": None, "window": [STEP, COUNTED], "window_seconds": 1.5, "log_sha256": ""}


def test_a_resume_needs_the_window_and_the_digest_of_the_log():
    assert resumable_record(RESUMED) == RESUMED

    def read(values):
        resumable_record(values)
        window = MetricWindow(values["window"], lambda *_: None)
        assert window.values
        window.close()

    missing = [{name: value for name, value in RESUMED.items() if name != left} for left in RESUMED]
    missing += [RESUMED | {"window": [{n: v for n, v in STEP.items() if n != left}]} for left in STEP if left != "loss"]
    for values in missing:
        with pytest.raises(CheckpointError, match=r"record.json: "):
            read(values)
    read(RESUMED)


def test_a_metric_may_be_true_or_false():
    run_record({"config": {}, "corpus": None, "metrics": {"loss": 1.5, "is_better": True, "by_label": {"a": 1}}})


def test_the_part_of_an_object_that_is_not_accepted_is_named():
    with pytest.raises(CheckpointError, match=r"'metrics' is an object of 2, expected .*; 'name' in it is 'x'"):
        run_record({"config": {}, "corpus": None, "metrics": {"loss": 1.5, "name": "x"}})
