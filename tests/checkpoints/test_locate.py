import functools
import shutil

import pytest

from transformer_jax.checkpoints import locate
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.errors import CheckpointError

open_checkpoint = functools.partial(locate.open_checkpoint, higher_is_better=lambda config: False)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, helpers):
    """Return a work directory with the checkpoints 100 and 200."""
    path = tmp_path_factory.mktemp("runs") / "quickstart"
    with CheckpointStore(path / "checkpoints") as store:
        helpers.fill(store, 100, 200)
    (path / "config.json").write_text("{}")
    return path


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/"])
def test_a_run_means_its_newest_checkpoint(workdir, template, inside):
    store, step = open_checkpoint(f"{workdir}/{inside}")
    assert step is None
    assert store.directory == workdir / "checkpoints"
    assert store.restore(template, step).step == 200


def test_a_step_means_itself_and_sees_its_neighbours(workdir, template):
    store, step = open_checkpoint(workdir / "checkpoints" / "100")
    assert step == 100
    assert store.restore(template, step).step == 100
    assert store.steps() == [100, 200]


def test_a_copy_under_any_name_is_enough(workdir, template, helpers, tmp_path):
    copy = shutil.copytree(workdir / "checkpoints" / "100", tmp_path / "my best model")
    store, step = open_checkpoint(copy)
    assert step == 100
    assert store.steps() == [100]
    assert helpers.bits(store.restore(template).state) == helpers.bits(helpers.make_state(100))
    assert helpers.bits(store.restore_params(template.params, 100).state) == helpers.bits(
        helpers.make_state(100).params
    )
    assert store.open(100).side_files["tokenizer.model"] == helpers.tokenizer


def test_relative_paths_and_the_home_directory(workdir, monkeypatch):
    monkeypatch.chdir(workdir.parent)
    monkeypatch.setenv("HOME", str(workdir.parent))
    for path in ("quickstart", "./quickstart/checkpoints/200", "~/quickstart"):
        assert open_checkpoint(path)[0].directory == workdir / "checkpoints"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("quickstrat", r"/quickstrat: no such folder; .* has no 'quickstrat' \(did you mean 'quickstart'\?\)$"),
        ("zzz/checkpoints/3", r"/zzz/checkpoints/3: no such folder; .* has no 'zzz'$"),
        ("quickstart/checkpoint", r"has no 'checkpoint' \(did you mean 'checkpoints'\?\)$"),
        ("quickstart/checkpoints/150", r"/150: no such folder; .*/checkpoints has the checkpoints 100, 200$"),
        ("quickstart/config.json", r"config.json: is a file; expected a work directory or a checkpoint folder$"),
        ("quickstart/checkpoints/200/state", r"/state: neither a work directory nor a checkpoint folder$"),
    ],
)
def test_a_wrong_path_is_an_error_with_the_names_that_exist(workdir, path, message):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(workdir.parent / path)


def test_a_run_without_a_checkpoint_yet(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint in it yet$"):
        open_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for path in (tmp_path, tmp_path / "checkpoints"):
        with pytest.raises(CheckpointError, match=r"no checkpoint in it yet$"):
            open_checkpoint(path)


@pytest.mark.parametrize("name", ["300.saving", "300.saving.orbax-checkpoint-tmp", "300.orbax-checkpoint-tmp"])
def test_a_run_with_only_an_unfinished_save(tmp_path, name):
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
    for path in (tmp_path, tmp_path / "checkpoints"):
        with pytest.raises(CheckpointError, match=f"no complete checkpoint, only an unfinished save: {name}$"):
            open_checkpoint(path)
    with pytest.raises(CheckpointError, match="not a checkpoint, but the remains of an interrupted save"):
        open_checkpoint(tmp_path / "checkpoints" / name)
    assert (tmp_path / "checkpoints" / name).exists()


def test_some_other_folder(tmp_path):
    (tmp_path / "2024").mkdir()  # photographs, for example
    (tmp_path / "2024" / "a.jpg").write_text("")
    for path in (tmp_path, tmp_path / "2024"):
        with pytest.raises(CheckpointError, match=r"neither a work directory nor a checkpoint folder$"):
            open_checkpoint(path)


def test_a_path_that_the_system_refuses(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be opened: File name too long"):
        open_checkpoint(tmp_path / ("x" * 5000))
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint("~no-such-user/run")


def test_a_damaged_checkpoint_is_called_damaged(workdir, template, tmp_path):
    copy = shutil.copytree(workdir / "checkpoints" / "100", tmp_path / "100")
    (copy / "record.json").unlink()
    store, step = open_checkpoint(copy)
    with pytest.raises(CheckpointError, match=r"/100: record.json is missing"):
        store.restore(template, step)
    with pytest.raises(CheckpointError, match=r"/other: record.json is missing"):
        open_checkpoint(copy.rename(tmp_path / "other"))
