"""Damaged checkpoints are found, named and skipped; no wrong numbers, no traceback."""

import errno
import logging
import os
import random
import shutil
import subprocess
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.checkpoints import manifest, orbax_io
from transformer_jax.checkpoints import store as store_module
from transformer_jax.checkpoints.locate import open_checkpoint
from transformer_jax.checkpoints.manifest import DamagedCheckpointError, VanishedCheckpointError
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.errors import CheckpointError
from transformer_jax.host.files import sha256_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory, helpers):
    """Return a directory with the checkpoints 1, 2 and 3; tests copy it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with CheckpointStore(directory) as store:
        helpers.fill(store, 1, 2, 3)
    return directory


@pytest.fixture
def directory(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(path, seed):
    """Flip a bit, overwrite a range or truncate the file, at random."""
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "cut", "zeros", "longer"]) if data else "longer"
    position = rng.randrange(len(data) or 1)
    if kind == "flip":
        data[position] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[position:]
    elif kind == "zeros":
        data[position : position + 64] = bytes(len(data[position : position + 64]))
    else:
        data += b"\n"
    path.write_bytes(data)


def outcome(directory, template, expected, helpers):
    """Return 'damaged' or 'unchanged' for one way to read everything; anything else fails the test."""
    store, step = open_checkpoint(directory / "3", lambda config: False)
    try:
        restored = store.restore(template, step)
        tokenizer = store.open(step).side_files["tokenizer.model"]
    except CheckpointError as error:
        assert str(directory / "3") in str(error)  # noqa: PT017
        assert len(str(error)) < 500  # noqa: PT017
        return "damaged"
    assert helpers.bits(restored.state) == expected
    assert (restored.record, tokenizer) == ({"config": {"seed": 3}}, helpers.tokenizer)
    return "unchanged"


def test_sampled_damage_of_every_file(directory, template, helpers, capfd):
    expected = helpers.bits(helpers.make_state(3))
    outcomes = {"damaged": 0, "unchanged": 0}
    files = files_of(directory / "3")
    for i in range(240):
        path = files[i % len(files)]
        data = path.read_bytes()
        damage(path, i)
        outcomes[outcome(directory, template, expected, helpers)] += path.read_bytes() != data
        path.write_bytes(data)
    assert outcome(directory, template, expected, helpers) == "unchanged"
    assert outcomes["damaged"] > 200
    assert capfd.readouterr() == ("", "")


def test_every_missing_file_is_found(directory, template, helpers):
    expected = helpers.bits(helpers.make_state(3))
    for path in files_of(directory / "3"):
        data = path.read_bytes()
        path.unlink()
        assert outcome(directory, template, expected, helpers) == "damaged", path
        path.write_bytes(data)


def test_truncated_sums_are_found(directory, template, helpers):
    path = directory / "3" / manifest.SUMS
    lines = path.read_text().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        with pytest.raises(DamagedCheckpointError, match="SHA256SUMS is damaged"):
            CheckpointStore(directory).restore(template, 3)


def test_the_sums_are_those_of_sha256sum_over_every_other_file(directory):
    folder = directory / "3"
    listed = {line.split("  ")[1] for line in (folder / manifest.SUMS).read_text().splitlines()}
    assert listed == {str(path.relative_to(folder)) for path in files_of(folder)} - {manifest.SUMS}
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum")
    done = subprocess.run(["sha256sum", "-c", manifest.SUMS], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Damage that only Orbax can notice.


def reseal(folder):
    """Update the sums of damaged files, as if they had been damaged before they were written."""
    record = (folder / manifest.RECORD).read_bytes()
    for name in (manifest.RECORD, manifest.SUMS):
        (folder / name).unlink()
    manifest.seal(folder, record, {})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_before_the_sums_were_made_gives_no_wrong_numbers(directory, template, helpers):
    """Orbax prints its own tracebacks for some of these, but the result is right or an error."""
    expected = helpers.bits(helpers.make_state(3))
    pristine = shutil.copytree(directory / "3", directory / "pristine")
    outcomes = {"damaged": 0, "unchanged": 0}
    names = [path.relative_to(pristine) for path in files_of(pristine / orbax_io.STATE)]
    for i in range(60):
        shutil.rmtree(directory / "3")
        shutil.copytree(pristine, directory / "3")
        damage(directory / "3" / names[i % len(names)], i)
        reseal(directory / "3")
        outcomes[outcome(directory, template, expected, helpers)] += 1
    assert min(outcomes.values()) > 5


def test_wrong_numbers_on_the_way_to_the_disk_are_found(tmp_path, template, helpers, monkeypatch):
    start_writing = orbax_io.start_writing

    def start_writing_wrong(folder, state):
        bias = state.params["encoder"]["bias"]
        state.params["encoder"]["bias"] = bias.at[1].set(jnp.nextafter(bias[1], jnp.bfloat16(9)))
        return start_writing(folder, state)

    monkeypatch.setattr(orbax_io, "start_writing", start_writing_wrong)
    with CheckpointStore(tmp_path) as store:
        helpers.fill(store, 1)
    with pytest.raises(DamagedCheckpointError, match=r"/1: wrong numbers in params/encoder/bias$"):
        store.restore(template, 1)
    with pytest.raises(DamagedCheckpointError, match=r"/1: wrong numbers in params/encoder/bias$"):
        store.restore_params(template.params, 1)


# Falling back.


def test_the_newest_good_checkpoint_is_used_and_damaged_ones_are_named_and_moved(directory, template, helpers, caplog):
    data = next(path for path in files_of(directory / "3") if "/d/" in path.as_posix())
    damage(data, 0)
    (directory / "2" / "tokenizer.model").unlink()
    store = CheckpointStore(directory)
    with caplog.at_level(logging.WARNING):
        restored = store.restore(template)
    assert restored.step == 1
    assert helpers.bits(restored.state) == helpers.bits(helpers.make_state(1))
    name = data.relative_to(directory / "3")
    assert f"DAMAGED CHECKPOINT {directory}/3: {name} does not match its sha256" in caplog.text
    assert f"DAMAGED CHECKPOINT {directory}/2: tokenizer.model is missing" in caplog.text
    assert f"using step 1; damaged step 3 is now {directory}/3.damaged" in caplog.text
    # The run resumes and reaches the same steps again.
    helpers.fill(store, 2, 3)
    assert store.steps() == [1, 2, 3]
    assert helpers.bits(store.restore(template).state) == helpers.bits(helpers.make_state(3))
    assert sorted(p.name for p in directory.iterdir()) == ["1", "2", "2.damaged", "3", "3.damaged"]


def test_a_second_damaged_checkpoint_of_a_step_gets_another_name(directory, template, helpers):
    (directory / "3.damaged").mkdir()
    (directory / "3" / "record.json").unlink()
    CheckpointStore(directory).restore(template)
    assert (directory / "3.damaged-2" / manifest.SUMS).exists()


def test_a_reader_falls_back_but_moves_nothing(directory, template, helpers, caplog):
    (directory / "3" / "record.json").unlink()
    before = files_of(directory)
    store, step = open_checkpoint(directory, lambda config: False)
    assert step is None
    with caplog.at_level(logging.WARNING):
        restored = store.restore_params(template.params)
    assert (restored.step, helpers.bits(restored.state)) == (2, helpers.bits(helpers.make_state(2).params))
    assert "record.json is missing" in caplog.text
    assert files_of(directory) == before


def test_an_explicit_step_is_never_replaced_by_another(directory, template):
    damage(directory / "2" / "record.json", 1)
    with pytest.raises(DamagedCheckpointError, match=r"/2: record.json does not match its sha256"):
        CheckpointStore(directory).restore(template, 2)
    with pytest.raises(DamagedCheckpointError, match=r"record\.json does not match"):
        CheckpointStore(directory).read_record(2)
    assert (directory / "2").exists()


def test_if_none_is_good_the_error_names_all_and_none_is_moved(directory, template):
    for step in "123":
        (directory / step / "record.json").write_text("{}")
    for _ in range(2):  # a second try does not start from scratch either
        with pytest.raises(CheckpointError, match="no valid checkpoint in it") as caught:
            CheckpointStore(directory).restore(template)
        for step in "123":
            assert f"{directory}/{step}: record.json does not match its sha256" in str(caught.value)
    assert sorted(p.name for p in directory.iterdir()) == ["1", "2", "3"]


def test_an_empty_folder_with_the_name_of_a_step_is_skipped(directory, template):
    (directory / "4").mkdir()
    assert CheckpointStore(directory).restore(template).step == 3


LOSSES = {1: 3.0, 2: 1.0, 3: 2.0, 4: 4.0}  # step 2 is the best, 3 the second best


def ranked_store(directory, **options):
    return CheckpointStore(directory, keep_last=1, keep_best=1, best_metric="loss", **options)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory, helpers):
    """Return WORKDIR/checkpoints with the checkpoints of LOSSES; tests copy it."""
    directory = tmp_path_factory.mktemp("ranked") / "checkpoints"
    with CheckpointStore(directory) as store:
        for step, loss in LOSSES.items():
            record = {"config": {"seed": 0, "training": {"best_metric": "loss"}}}
            store.save(step, helpers.make_state(step), record, {"labels.json": b"x"}, {"loss": loss})
    return directory


def arrays_of(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def other_step(file, step):
    """Replace a file of step 2 by that of another step."""
    other = file.parents[1] / str(step) / file.name
    assert other.read_bytes() != file.read_bytes()
    shutil.copy(other, file)


DAMAGES_OF_THE_BEST = {
    "digit": lambda best: damage_digit(best / "record.json", b'"loss": 1.0', b'"loss": 7.0'),
    "cut record": lambda best: (best / "record.json").write_bytes(b"{"),
    "record of another step": lambda best: other_step(best / "record.json", 3),
    "no record": lambda best: (best / "record.json").unlink(),
    "no sums": lambda best: (best / manifest.SUMS).unlink(),
    "sums of another step": lambda best: other_step(best / manifest.SUMS, 3),
    "arrays": lambda best: damage(arrays_of(best), 0),
    "no side file": lambda best: (best / "labels.json").unlink(),
}


def damage_digit(file, before, after):
    data = file.read_bytes()
    assert data.count(before) == 1
    file.write_bytes(data.replace(before, after))


@pytest.mark.parametrize("kind", DAMAGES_OF_THE_BEST)
def test_a_damaged_best_checkpoint_is_named_and_never_deleted(ranked, tmp_path, helpers, caplog, kind):
    directory = Path(shutil.copytree(ranked, tmp_path / "checkpoints"))
    assert open_checkpoint(directory / "best", lambda config: False).step == 2
    assert caplog.text == ""
    DAMAGES_OF_THE_BEST[kind](directory / "2")
    before = {path: path.read_bytes() for path in files_of(directory / "2")}
    # A reader uses the next best one, and says so.
    assert open_checkpoint(directory / "best", lambda config: False).step == 3
    assert f"DAMAGED CHECKPOINT {directory}/2: " in caplog.text
    assert "the best by loss; it is not used, and it is not deleted" in caplog.text
    assert f"{directory}/best: step 3 is the best of the undamaged checkpoints, and is used" in caplog.text
    # A run that resumes says so too, and deletes neither the damaged best nor the next best.
    caplog.clear()
    with ranked_store(directory) as store:
        store.check_best(4)
        assert f"DAMAGED CHECKPOINT {directory}/2: " in caplog.text
        store.save(5, helpers.make_state(5), {}, {}, {"loss": 5.0})
        store.wait()
        assert store.steps() == [2, 3, 5]
        store.save(6, helpers.make_state(6), {}, {}, {"loss": 0.5})
    assert store.steps() == [2, 6]
    assert caplog.text.count("DAMAGED") == 1
    assert {path: path.read_bytes() for path in files_of(directory / "2")} == before


def test_if_every_best_checkpoint_is_damaged_none_is_used(ranked, tmp_path, caplog):
    directory = Path(shutil.copytree(ranked, tmp_path / "checkpoints"))
    for step in LOSSES:
        (directory / str(step) / "labels.json").unlink()
    with pytest.raises(CheckpointError, match=r"best: no undamaged checkpoint .* by its step: 1, 2, 3, 4$"):
        open_checkpoint(directory / "best", lambda config: False)
    assert caplog.text.count("DAMAGED CHECKPOINT") == 4


def test_a_best_checkpoint_that_cannot_be_read_now_is_kept_unchecked(ranked, tmp_path, monkeypatch, caplog):
    directory = Path(shutil.copytree(ranked, tmp_path / "checkpoints"))
    fail_to_read(monkeypatch, errno.EMFILE, "2", "labels.json")
    with ranked_store(directory) as store:
        store.check_best(4)
        assert store.best_step() == 2
    assert "2: labels.json cannot be read: Too many open files; it is not checked" in caplog.text


def test_the_best_is_kept_when_its_record_cannot_be_read(tmp_path, helpers, monkeypatch, caplog):
    with CheckpointStore(tmp_path, keep_last=1, keep_best=1, best_metric="loss") as store:
        for step, loss in enumerate([1.0, 2.0]):
            store.save(step, helpers.make_state(step), {}, {}, {"loss": loss})
    with monkeypatch.context() as patch:
        fail_to_read(patch, errno.EMFILE, "0", "record.json")
        with CheckpointStore(tmp_path, keep_last=1, keep_best=1, best_metric="loss") as store:
            store.save(2, helpers.make_state(2), {}, {}, {"loss": 3.0})
            store.wait()
            assert store.best_step() == 1
    assert "0: record.json cannot be read: Too many open files; it is kept" in caplog.text
    assert store.steps() == [0, 1, 2]
    store.save(3, helpers.make_state(3), {}, {}, {"loss": 4.0})
    store.wait()
    assert store.steps() == [0, 3]


def test_a_step_saved_again_is_ranked_again(tmp_path, template, helpers):
    with CheckpointStore(tmp_path, keep_best=1, best_metric="loss") as store:
        for step, loss in enumerate([3.0, 1.0]):
            store.save(step, helpers.make_state(step), {}, {}, {"loss": loss})
    assert store.best_step() == 1
    damage(tmp_path / "1" / "commit_success.txt", 0)
    assert store.restore(template).step == 0
    store.save(1, helpers.make_state(1), {}, {}, {"loss": 4.0})
    store.wait()
    assert store.best_step() == 0


def test_a_valid_sum_of_other_content_gives_no_traceback(directory, template):
    for content in ("[]", "{}", '{"format": 1, "leaves": 3}', "not json", '{"format": "x"}'):
        (directory / "3" / "record.json").write_text(content)
        sums = directory / "3" / manifest.SUMS
        lines = sums.read_text().splitlines()[:-1]
        lines.append(f"{sha256_of(directory / '3' / 'record.json')}  record.json")
        sums.write_text("\n".join(lines))
        with pytest.raises(CheckpointError, match=r"record.json: not written by this program"):
            CheckpointStore(directory).restore(template, 3)


def fail_to_read(monkeypatch, code, *place):
    """Make reading a file fail, in a folder whose path ends with `place`."""
    digest = manifest.sha256_of

    def fail(path):
        if path.parts[-len(place) :] == place:
            raise OSError(code, os.strerror(code), str(path))
        return digest(path)

    monkeypatch.setattr(manifest, "sha256_of", fail)


PASSING = ["EACCES", "EPERM", "EMFILE", "ENFILE", "ENOMEM", "ESTALE", "ETIMEDOUT", "EINTR", "EAGAIN", "ENOTCONN"]


@pytest.mark.parametrize("code", PASSING)
def test_a_temporary_read_error_is_not_damage(directory, template, monkeypatch, code):
    """The error does not concern the content, and an older checkpoint would lose work."""
    code = getattr(errno, code)
    fail_to_read(monkeypatch, code, "3", "tokenizer.model")
    message = f"/3: tokenizer.model cannot be read: {os.strerror(code)}"
    with pytest.raises(CheckpointError, match=message) as caught:
        CheckpointStore(directory).restore(template)
    assert type(caught.value) is CheckpointError
    assert sorted(p.name for p in directory.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("code", ["EIO", "ENAMETOOLONG"])
def test_a_bad_block_and_an_invalid_name_are_damage(directory, template, monkeypatch, code):
    fail_to_read(monkeypatch, getattr(errno, code), "3", "tokenizer.model")
    assert CheckpointStore(directory).restore(template).step == 2
    assert (directory / "3.damaged").is_dir()


@pytest.mark.parametrize("name", ["", "x" * 300, "record.json/x", "state", "\0"])
def test_a_changed_file_name_is_damage(directory, template, name):
    sums = directory / "3" / manifest.SUMS
    sums.write_text(sums.read_text().replace("tokenizer.model", name))
    assert CheckpointStore(directory).restore(template).step == 2


# Checkpoints that a running training deletes during reading.


def vanish(monkeypatch, module, name, folder):
    """Delete a checkpoint at the first call of a function for it."""
    function = getattr(module, name)

    def wrapper(path, *args, **kwargs):
        if folder in (path, *path.parents) and folder.exists():
            shutil.rmtree(folder)
        return function(path, *args, **kwargs)

    monkeypatch.setattr(module, name, wrapper)


@pytest.mark.parametrize(
    ("module", "name"),
    [(manifest, "_read_sums"), (manifest, "sha256_of"), (orbax_io, "read"), (store_module, "verify")],
)
def test_a_checkpoint_that_vanishes_is_not_damaged(directory, template, monkeypatch, caplog, module, name):
    with monkeypatch.context() as patch:
        vanish(patch, module, name, directory / "3")
        with pytest.raises(VanishedCheckpointError, match=r"/3: was deleted meanwhile"):
            CheckpointStore(directory, read_only=True).restore_params(template.params, 3)
    vanish(monkeypatch, module, name, directory / "2")
    assert CheckpointStore(directory, read_only=True).restore_params(template.params).step == 1
    assert caplog.text == ""


def test_arrays_that_vanish_are_not_read_as_zeros(directory, template, monkeypatch):
    """Missing chunks would be read as zeros."""
    read = orbax_io.read

    def read_late(folder, *args, **kwargs):
        state = read(folder, *args, **kwargs)
        shutil.rmtree(folder)
        return jax.tree.map(jnp.zeros_like, state)

    monkeypatch.setattr(orbax_io, "read", read_late)
    with pytest.raises(VanishedCheckpointError):
        CheckpointStore(directory, read_only=True).restore(template, 3)


def test_a_deleted_checkpoint_has_no_files(directory, monkeypatch):
    store = CheckpointStore(directory, read_only=True)
    vanish(monkeypatch, manifest, "_read_sums", directory / "3")
    with pytest.raises(VanishedCheckpointError):
        store.read_record(3)
    for read in (lambda: store.read_record(3), lambda: store.open(3).side_files["tokenizer.model"]):
        with pytest.raises(VanishedCheckpointError, match="there are 1, 2"):
            read()


def test_restoring_warns_about_nothing(directory, template):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(CheckpointStore(directory).restore(template).state)


@pytest.mark.parametrize("kind", ["pipe", "link out of it", "link to a device", "path out of it"])
def test_a_file_that_never_ends_or_lies_elsewhere_is_refused(directory, template, tmp_path_factory, kind):
    file, elsewhere = directory / "2" / "tokenizer.model", tmp_path_factory.mktemp("elsewhere") / "tokenizer.model"
    if kind == "path out of it":
        sums = directory / "2" / manifest.SUMS
        sums.write_text(sums.read_text().replace("  tokenizer.model", "  ../3/tokenizer.model"))
    else:
        file.rename(elsewhere)
        {
            "pipe": lambda: os.mkfifo(file),
            "link out of it": lambda: file.symlink_to(elsewhere),
            "link to a device": lambda: file.symlink_to("/dev/zero"),
        }[kind]()
    with pytest.raises(DamagedCheckpointError, match=r"model (is not a regular file|leads out of the checkpoint)"):
        CheckpointStore(directory).restore(template, 2)


def test_a_checkpoint_may_be_a_link_and_have_links_to_its_own_files(directory, template, tmp_path_factory, helpers):
    real = tmp_path_factory.mktemp("large_disk") / "2"
    (directory / "2").rename(real)
    (real / "tokenizer.model").rename(real / "kept")
    (real / "tokenizer.model").symlink_to("kept")
    (directory / "2").symlink_to(real)
    assert helpers.bits(CheckpointStore(directory).restore(template, 2).state) == helpers.bits(helpers.make_state(2))
