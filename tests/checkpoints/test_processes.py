"""Tests that need another process: kills, other numbers of devices, a full disk."""

import shutil
import signal
import subprocess

import jax
import pytest

from transformer_jax.checkpoints.locate import open_checkpoint
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.errors import CheckpointError

SAVE_THREE = """
store = CheckpointStore(sys.argv[1], keep_last=2)
fill(store, 1, 2, 3)
print("alive", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("inside_save", "3.saving.orbax-checkpoint-tmp"),
        ("before_commit", "3.saving"),
    ],
)
def test_after_a_kill_during_a_save_the_previous_checkpoint_is_restored(tmp_path, template, helpers, point, left):
    done = helpers.run_python(SAVE_THREE, tmp_path, TRANSFORMER_JAX_KILL_AT=f"{point}:3")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "alive" not in done.stdout
    entries = {entry.name for entry in tmp_path.iterdir()}
    assert {"1", "2"} < entries
    # If Orbax has been quick, the earlier kill point may find the save further on.
    assert len(entries) == 3
    assert left in entries or "3.saving" in entries
    reader, _ = open_checkpoint(tmp_path, lambda config: False)
    assert reader.restore(template).step == 2
    store = CheckpointStore(tmp_path)
    restored = store.restore(template)
    assert (restored.step, helpers.bits(restored.state)) == (2, helpers.bits(helpers.make_state(2)))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2"]
    helpers.fill(store, 3)
    assert store.restore(template).step == 3


@pytest.mark.slow
def test_after_a_kill_during_the_first_save_there_is_no_checkpoint(tmp_path, template, helpers):
    done = helpers.run_python(SAVE_THREE, tmp_path, TRANSFORMER_JAX_KILL_AT="before_commit:1")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with pytest.raises(CheckpointError, match=r"no complete checkpoint, only an unfinished save: 1\.saving$"):
        open_checkpoint(tmp_path, lambda config: False)
    with pytest.raises(CheckpointError, match="not a checkpoint, but the remains of an interrupted save"):
        open_checkpoint(tmp_path / "1.saving", lambda config: False)
    assert CheckpointStore(tmp_path).steps() == []


EIGHT_DEVICES = """
jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.checksums import by_path, checksums
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
def sharding(x):
    spec = ["data" if size % 4 == 0 else None for size in x.shape]
    if spec and spec[0] == "data" and x.shape[-1] % 2 == 0 and x.ndim > 1:
        spec = ["data", *[None] * (x.ndim - 2), "model"]
    elif spec.count("data") > 1:
        spec = [None] * x.ndim
    return NamedSharding(mesh, PartitionSpec(*spec))
def sharded(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(x))
state = make_state(1)
spread = jax.tree.map(lambda x: jax.device_put(x, sharding(x)), state)
assert len(spread.params["encoder"]["kernel"].addressable_shards[0].data.ravel()) == 4
assert checksums(by_path(spread)) == checksums(by_path(state))
template = jax.tree.map(sharded, state)

store = CheckpointStore(sys.argv[1])
store.save(1, spread, {}, {})
spread = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0)(spread)
store.wait()
saved_by_one = store.restore(template, 0).state
assert bits(saved_by_one) == bits(make_state(0))
assert jax.tree.all(jax.tree.map(lambda x, t: x.sharding == t.sharding, saved_by_one, template))
def reader(store, template):
    return lambda step: store.restore_params(template, step).state


mean = average_params(reader(store, template.params), [0, 1])
alone = average_params(reader(store, jax.eval_shape(lambda: state.params)), [0, 1])
assert bits(mean) == bits(alone)
assert mean["encoder"]["kernel"].sharding == template.params["encoder"]["kernel"].sharding
"""


@pytest.mark.slow
def test_other_numbers_of_devices(tmp_path, template, helpers):
    """One device to eight and back; the restores check that checksums do not depend on the number of devices."""
    assert jax.device_count() == 1
    store = CheckpointStore(tmp_path)
    helpers.fill(store, 0)
    done = helpers.run_python(EIGHT_DEVICES, tmp_path)
    assert done.returncode == 0, done.stderr
    restored = store.restore(template, 1).state
    assert helpers.bits(restored) == helpers.bits(helpers.make_state(1))
    assert all(leaf.devices() == {jax.devices()[0]} for leaf in jax.tree.leaves(restored))


FULL_DISK = """
from pathlib import Path
from transformer_jax.errors import CheckpointError
from transformer_jax.checkpoints.workdir import open_workdir
directory = Path(sys.argv[1])
state = {"w": jax.random.normal(jax.random.key(0), (512, 512))}  # 1 MB
template = jax.eval_shape(lambda: state)
def fill_up(leave):
    with (directory / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))
store = CheckpointStore(directory / "checkpoints")
store.save(1, state, {}, {})
store.wait()
for leave in (0, 300_000, 0):
    fill_up(leave)
    try:
        store.save(2, state, {}, {"tokenizer.model": TOKENIZER})
        store.wait()
        raise SystemExit("saved on a full disk")
    except CheckpointError as error:
        assert str(error).endswith("/2: could not be saved: No space left on device; "
                                   "earlier checkpoints are intact: 1"), error
        print(leave, error)
    assert store.steps() == [1]
    assert [entry.name for entry in store.directory.iterdir()] == ["1"]
    assert bits(store.restore(template).state) == bits(state)
    if leave == 0:
        try:
            with open_workdir(directory / "run", {"seed": 1}) as workdir:
                workdir.write_config()
            raise SystemExit("config.json written on a full disk")
        except CheckpointError as error:
            assert "No space left on device" in str(error), error
(directory / "ballast").unlink()

# No room for one more folder, which Orbax would otherwise notice in a thread that outlives the process.
folders = []
try:
    while True:
        folders.append(directory / f"folder{len(folders)}")
        folders[-1].mkdir()
except OSError:
    folders.pop()
try:
    store.save(2, state, {}, {})
    raise SystemExit("saved without room for a folder")
except CheckpointError as error:
    assert "No space left on device" in str(error), error
for folder in folders:
    folder.rmdir()

store.save(2, state, {}, {"tokenizer.model": TOKENIZER})
store.wait()
assert store.steps() == [1, 2]
assert store.restore(template).step == 2
print("done")
"""


@pytest.mark.slow
def test_a_full_file_system(tmp_path, helpers):
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=100", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        done = helpers.run_python(FULL_DISK, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")
    assert "Traceback" not in done.stderr, done.stderr
