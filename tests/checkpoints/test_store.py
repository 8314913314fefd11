import asyncio
import errno
import gc
import json
import logging
import os
import resource
import threading
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from transformer_jax.checkpoints import manifest, orbax_io
from transformer_jax.checkpoints import store as store_module
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.errors import CheckpointError


def names(store):
    return sorted(entry.name for entry in store.directory.iterdir())


# Saving and restoring.


def test_restores_every_bit_of_the_state_and_all_side_files(store, helpers, template):
    state = helpers.make_state(7)
    record = {"config": {"model": {"num_heads": 8}}, "best": 0.1 + 0.2, "versions": ["a", "b"], "none": None}
    store.save(7, state, record, {"tokenizer.model": helpers.tokenizer, "notes.txt": b""}, {"loss": 1.25})
    store.close()
    restored = store.restore(template)
    assert restored.step == 7
    assert restored.record == record == store.read_record(7)
    assert store.open(7).side_files["tokenizer.model"] == helpers.tokenizer
    assert store.open(7).side_files["notes.txt"] == b""
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    assert helpers.bits(restored.state) == helpers.bits(state)


def test_restores_special_values_exactly(store, helpers):
    words = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001, 0x7F7FFFFF], np.uint32)
    state = {"x": jnp.asarray(words.view(np.float32))}  # a NaN with a payload, -inf, -0, a subnormal, the largest
    store.save(1, state, {}, {})
    store.close()
    assert helpers.bits(store.restore(jax.eval_shape(lambda: state)).state) == helpers.bits(state)


def test_params_alone(store, helpers, template):
    helpers.fill(store, 1, 2)
    for step in (None, 1):
        restored = store.restore_params(template.params, step)
        assert restored.step == (step or 2)
        assert restored.record == {"config": {"seed": step or 2}}
        assert helpers.bits(restored.state) == helpers.bits(helpers.make_state(step or 2).params)


def test_the_folder_is_an_orbax_checkpoint_that_orbax_alone_can_read(store, helpers):
    helpers.fill(store, 3)
    metadata = ocp.metadata(store.directory / "3").metadata
    assert set(metadata) == {"step", "params", "opt_state"}
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    template = {"kernel": jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=jnp.zeros(1).sharding)}
    with context:
        loaded = ocp.load(store.directory / "3", {"params": {"decoder": template}})
    expected = helpers.make_state(3).params["decoder"]["kernel"]
    assert np.array_equal(loaded["params"]["decoder"]["kernel"], expected)


def test_a_copied_folder_is_enough(store, helpers, template, tmp_path):
    helpers.fill(store, 5)
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    (store.directory / "5").rename(elsewhere.directory / "5")
    assert helpers.bits(elsewhere.restore(template).state) == helpers.bits(helpers.make_state(5))
    assert elsewhere.open(5).side_files["tokenizer.model"] == helpers.tokenizer
    assert elsewhere.open(5).side_files == {"tokenizer.model": helpers.tokenizer}


def test_by_default_arrays_are_restored_to_this_process(store, helpers, template):
    helpers.fill(store, 1)
    for leaf in jax.tree.leaves(store.restore(template).state):
        assert leaf.devices() == {jax.local_devices()[0]}


def test_every_save_is_written_even_without_a_pause_between_them(store, helpers):
    for step in range(5):
        store.save(step, helpers.make_state(step), {}, {})
    store.close()
    assert store.steps() == [0, 1, 2, 3, 4]


def test_save_returns_before_the_checkpoint_is_written(store, helpers, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(store_module, "seal", lambda *args: (gate.wait(30), manifest.seal(*args)))
    store.save(1, helpers.make_state(1), {}, {})
    assert store.steps() == []
    gate.set()
    store.wait()
    assert store.steps() == [1]


def test_donated_and_overwritten_buffers_do_not_reach_the_disk(store, helpers):
    """On the CPU Orbax reads the buffers of the state while it writes; see orbax_io.start_writing."""
    state = {f"w{i}": jax.random.normal(jax.random.key(i), (1024, 1024)) for i in range(8)}
    expected = helpers.bits(state)
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 7, tree), donate_argnums=0)
    template = jax.eval_shape(lambda: state)
    store.save(1, state, {}, {})
    for _ in range(5):
        state = update(state)
    jax.block_until_ready(state)
    store.close()
    assert helpers.bits(store.restore(template).state) == expected


def test_numpy_leaves_may_be_overwritten_too(store, helpers):
    raw = np.zeros(2**20 + 64, np.float32)
    first = (-raw.ctypes.data % 64) // 4
    state = {"w": raw[first : first + 2**20]}  # aligned, so that JAX uses it in place
    state["w"][:] = np.arange(2**20)
    assert state["w"].ctypes.data % 64 == 0
    expected = helpers.bits(state)
    store.save(1, state, {}, {})
    state["w"][:] = -1
    store.close()
    assert helpers.bits(store.restore({"w": jax.ShapeDtypeStruct((2**20,), jnp.float32)}).state) == expected


def test_transfers_are_allowed_inside_a_guarded_loop(store, helpers, template):
    """On the CPU this guard only sees transfers to the device in this thread: NumPy leaves."""
    state = jax.block_until_ready(helpers.make_state(1))._replace(step=np.int32(1))
    with jax.transfer_guard("disallow_explicit"):
        store.save(1, state, {}, {})
        store.wait()
        store.restore(template)


# Errors of save.


def test_a_step_is_saved_once(store, helpers, template):
    helpers.fill(store, 4)
    with pytest.raises(CheckpointError, match=r"/4: there is a checkpoint of this step already"):
        store.save(4, helpers.make_state(5), {}, {})
    assert helpers.bits(store.restore(template).state) == helpers.bits(helpers.make_state(4))


@pytest.mark.parametrize(
    "name", ["record.json", "SHA256SUMS", "state", "../x.txt", "a/b.txt", "", "_METADATA", ".x", "orbax.checkpoint"]
)
def test_side_files_have_plain_names(store, helpers, name):
    with pytest.raises(CheckpointError, match="side file"):
        store.save(1, helpers.make_state(1), {}, {name: b""})
    assert names(store) == []


def test_an_unstorable_leaf_is_named_before_anything_is_written(store):
    with pytest.raises(CheckpointError, match="params/n: expected an array, got int"):
        store.save(1, {"params": {"n": 3}}, {}, {})
    assert names(store) == []


def test_a_record_that_is_not_json_fails_at_once(store, helpers):
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save(1, helpers.make_state(1), {"config": object()}, {})
    assert names(store) == []


def test_a_read_only_store_writes_nothing(helpers, tmp_path):
    store = CheckpointStore(tmp_path / "none", read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        store.save(1, helpers.make_state(1), {}, {})
    assert store.steps() == []
    assert not (tmp_path / "none").exists()


# Errors of restore.


def test_an_empty_store_says_so(store, template):
    with pytest.raises(CheckpointError, match="no checkpoint in it"):
        store.restore(template)


def test_an_absent_step_is_an_error_that_lists_the_steps(store, helpers, template):
    helpers.fill(store, 10, 20)
    with pytest.raises(CheckpointError, match=r"/15: no such checkpoint; there are 10, 20"):
        store.restore(template, 15)
    with pytest.raises(CheckpointError, match=r"/15: no such checkpoint; there are 10, 20"):
        store.read_record(15)


def test_another_model_is_refused_naming_every_difference(store, helpers):
    helpers.fill(store, 1, 2)
    template = jax.eval_shape(lambda: helpers.make_state(0, width=16))
    template.params["encoder"]["scale"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    template.params["encoder"]["bias"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    del template.params["decoder"]["kernel"]
    with pytest.raises(CheckpointError) as caught:
        store.restore(template)
    message = str(caught.value)
    assert type(caught.value) is CheckpointError  # not damage: an older checkpoint would not help
    assert "/2: " in message
    for line in (
        "params/encoder/kernel: float32[4, 8] in the checkpoint, float32[4, 16] expected",
        "params/encoder/bias: bfloat16[3] in the checkpoint, float32[3] expected",  # Orbax would cast
        "params/encoder/scale: float32[3] expected, absent in the checkpoint",
        "params/decoder/kernel: float32[8, 2] in the checkpoint, not expected",
        "opt_state/0/1/0/mu/encoder/kernel: float32[4, 8] in the checkpoint",
    ):
        assert line in message
    with pytest.raises(CheckpointError, match=r"params/encoder/scale: float32\[3\] expected") as caught:
        store.restore_params(template.params)
    assert "opt_state" not in str(caught.value)


def test_a_renamed_checkpoint_is_refused(store, helpers, template):
    helpers.fill(store, 1)
    (store.directory / "1").rename(store.directory / "9")
    with pytest.raises(CheckpointError, match=r"/9: holds step 1"):
        store.restore(template)


def test_a_newer_format_is_refused(store, helpers, template, monkeypatch):
    monkeypatch.setattr(manifest, "FORMAT", 2)
    helpers.fill(store, 1)
    monkeypatch.setattr(manifest, "FORMAT", 1)
    with pytest.raises(CheckpointError, match="newer version"):
        store.restore(template)


def test_failing_to_read_good_files_is_not_damage(store, helpers, template, monkeypatch, caplog):
    """For example out of memory: an older checkpoint would lose work and not help."""
    helpers.fill(store, 1, 2)

    def fail(*args):
        raise MemoryError("out of memory")

    monkeypatch.setattr(ocp, "load_checkpointables", fail)
    with pytest.raises(CheckpointError, match=r"/2: the arrays cannot be read: MemoryError: out of memory") as caught:
        store.restore(template)
    assert type(caught.value) is CheckpointError
    assert names(store) == ["1", "2"]


# Failures while writing.


def no_space(*args):
    raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")


def assert_intact_and_usable(store, helpers, template):
    """Check that steps 1 and 2 are unchanged, and that step 3 is absent and can be saved now."""
    assert names(store) == ["1", "2"]
    assert helpers.bits(store.restore(template).state) == helpers.bits(helpers.make_state(2))
    helpers.fill(store, 3)
    assert store.steps() == [1, 2, 3]
    assert helpers.bits(store.restore(template).state) == helpers.bits(helpers.make_state(3))


MESSAGE = r"/3: could not be saved: No space left on device; earlier checkpoints are intact: 1, 2$"


@pytest.mark.parametrize(
    "use",
    [
        lambda store, state: store.wait(),
        lambda store, state: store.close(),
        lambda store, state: store.save(4, state, {}, {}),
        lambda store, state: store.__exit__(None, None, None),
    ],
    ids=["wait", "close", "save", "with"],
)
def test_a_failure_in_the_background_is_raised(store, helpers, template, monkeypatch, use):
    helpers.fill(store, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_file", no_space)
        store.save(3, helpers.make_state(3), {}, {})
        with pytest.raises(CheckpointError, match=MESSAGE):
            use(store, helpers.make_state(4))
    store.wait()  # reported only once
    assert_intact_and_usable(store, helpers, template)


def test_a_failure_at_the_start_is_raised_at_once(store, helpers, template, monkeypatch):
    helpers.fill(store, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ocp, "save_checkpointables_async", no_space)
        with pytest.raises(CheckpointError, match=MESSAGE):
            store.save(3, helpers.make_state(3), {}, {})
    assert_intact_and_usable(store, helpers, template)


def test_a_failing_commit_leaves_nothing(store, helpers, template, monkeypatch):
    helpers.fill(store, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(store_module.folders, "commit", no_space)
        store.save(3, helpers.make_state(3), {}, {})
        with pytest.raises(CheckpointError, match=MESSAGE):
            store.wait()
    assert_intact_and_usable(store, helpers, template)


def test_a_writer_that_fails_inside_tensorstore(store, helpers, template, capfd):
    """A real write error: files may not grow over 1 MB for a moment."""
    helpers.fill(store, 1, 2)
    state = {"w": jax.random.normal(jax.random.key(0), (1024, 1024))}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        store.save(3, state, {}, {})
        with pytest.raises(CheckpointError, match=r"/3: could not be saved: File too large; earlier"):
            store.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_intact_and_usable(store, helpers, template)
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_while_waiting_loses_nothing(store, helpers, monkeypatch):
    class Interrupted(Future):
        def result(self, timeout=None):
            raise KeyboardInterrupt

    store.save(1, helpers.make_state(1), {}, {})
    folder, future = store._pending
    store._pending = folder, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        store.wait()
    store._pending = folder, future
    store.close()
    assert store.steps() == [1]


def test_a_directory_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file: cannot be used for checkpoints: File exists"):
        CheckpointStore(tmp_path / "file")


# Retention and housekeeping.


def test_keeps_the_newest_and_the_best(helpers, tmp_path):
    losses = {1: 5.0, 2: 1.0, 3: 4.0, 4: None, 5: 3.0, 6: float("nan")}
    with CheckpointStore(tmp_path, keep_last=2, keep_best=1, best_metric="loss") as store:
        for step, loss in losses.items():
            store.save(step, helpers.make_state(step), {}, {}, None if loss is None else {"loss": loss, "x": 0.0})
    assert store.steps() == [2, 5, 6]
    assert store.best_step() == 2
    # A process that starts later has the same information.
    with CheckpointStore(tmp_path, keep_last=1, keep_best=2, best_metric="loss") as store:
        store.save(7, helpers.make_state(7), {}, {}, {"loss": 2.0})
    assert store.steps() == [2, 7]


def test_keeps_the_best_of_a_score(helpers, tmp_path):
    with CheckpointStore(tmp_path, keep_last=1, keep_best=1, best_metric="chrf", higher_is_better=True) as store:
        for step, score in enumerate([10.0, 30.0, 20.0]):
            store.save(step, helpers.make_state(step), {}, {}, {"chrf": score})
    assert store.steps() == [1, 2]
    assert store.best_step() == 1


def test_metrics_without_the_ranking_one_are_refused(helpers, tmp_path):
    store = CheckpointStore(tmp_path, keep_best=1, best_metric="loss")
    with pytest.raises(CheckpointError, match=r"no metric 'loss' among losss, accuracy \(did you mean 'losss'\?\)"):
        store.save(1, helpers.make_state(1), {}, {}, {"losss": 1.0, "accuracy": 0.5})


def test_a_deletion_that_is_interrupted_leaves_nothing_that_looks_complete(helpers, tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=1)
    with monkeypatch.context() as patch:
        patch.setattr(store_module.folders.shutil, "rmtree", lambda *args, **kwargs: None)
        helpers.fill(store, 1, 2)
    assert names(store) == ["1.deleted", "2"]
    assert store.steps() == [2]
    CheckpointStore(tmp_path)
    assert names(store) == ["2"]


def test_all_are_kept_by_default(store, helpers):
    helpers.fill(store, *range(4))
    assert store.steps() == [0, 1, 2, 3]
    assert store.best_step() is None


def test_leftovers_are_removed_and_reported_when_opened_for_writing(store, helpers, caplog):
    helpers.fill(store, 1)
    leftovers = ["2.saving", "3.saving.orbax-checkpoint-tmp", "4.orbax-checkpoint-tmp", "5.deleted"]
    others = ["6.damaged", "notes", "1.orbax-checkpoint-tmp.bak", "007"]
    for name in leftovers + others:
        (store.directory / name).mkdir()
        (store.directory / name / "x").write_text("x")
    with caplog.at_level(logging.WARNING):
        CheckpointStore(store.directory, read_only=True)
        assert caplog.text == ""
        assert len(names(store)) == 9
        assert CheckpointStore(store.directory).steps() == [1]
    assert names(store) == sorted(["1", *others])
    for name in leftovers[:3]:
        assert f"removing {store.directory / name}, left over from an interrupted save" in caplog.text


def test_in_a_process_of_its_own_orbax_is_silent_and_float64_keeps_every_bit(helpers, tmp_path):
    code = """
from absl import logging
logging.set_verbosity(logging.INFO)
state = {"x": jnp.arange(5, dtype=jnp.float64) / 3, "n": jnp.array([2**40 + 1], jnp.int64)}
store = CheckpointStore(sys.argv[1])
store.save(1, state, {}, {})
store.wait()
restored = store.restore(jax.eval_shape(lambda: state)).state
assert restored["x"].dtype == np.float64
assert bits(restored) == bits(state)
logging.warning("others are heard")
"""
    done = helpers.run_python(code, tmp_path, JAX_ENABLE_X64="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("others are heard\n")
    assert len(done.stderr.splitlines()) == 1


def test_writes_that_end_after_a_failed_save_are_silent_and_other_errors_are_not(helpers, tmp_path):
    """If one of several writes fails, Orbax closes the event loop that the other writes report to."""
    code = """
import asyncio
import tensorstore
async def wait(future):
    await future
async def fail():
    raise OSError(28, "No space left on device")
async def save(future):
    await asyncio.gather(wait(future), fail())
class Bad:
    def __del__(self):
        raise RuntimeError("Event loop is closed")
for directory in sys.argv[1:]:
    CheckpointStore(directory)
    promise, future = tensorstore.Promise.new()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(save(future))
    except OSError:
        loop.close()
    promise.set_result(1)
    print("heard", file=sys.stderr)
del promise, future, loop
Bad()
"""
    done = helpers.run_python(code, tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    first, second, other, *rest = done.stderr.splitlines()
    assert (first, second) == ("heard", "heard")
    assert other.startswith("Exception ignored in: <function Bad.__del__")
    assert rest[-1] == "RuntimeError: Event loop is closed"


@pytest.mark.parametrize(
    ("file", "heard"), [(f"{ocp.__file__}/../write.py", False), ("/data/orbax/checkpoint/write.py", True)]
)
def test_only_abandoned_tasks_of_orbax_are_silent(store, caplog, file, heard):
    """Orbax leaves such tasks after a save in which one of several writes has failed."""
    code = 'async def write():\n    raise OSError(28, "No space left on device")'
    scope = {}
    exec(compile(code, file, "exec"), scope)

    async def save() -> None:
        task = asyncio.create_task(scope["write"]())
        await asyncio.sleep(0)
        del task

    asyncio.run(save())
    gc.collect()
    assert any("never retrieved" in record.getMessage() for record in caplog.records) == heard


def test_record_json_is_plain_and_complete(store, helpers):
    helpers.fill(store, 1)
    values = json.loads((store.directory / "1" / "record.json").read_text())
    assert values["step"] == 1
    assert values["record"] == {"config": {"seed": 1}}
    leaf = values["leaves"]["params/encoder/bias"]
    assert (leaf["shape"], leaf["dtype"]) == ([3], "bfloat16")
    assert orbax_io.STATE in {entry.name for entry in (store.directory / "1").iterdir()}


def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path):
    folder = tmp_path / os.fsdecode(b"w\xff") / "checkpoints"
    for read_only in (False, True):
        with pytest.raises(CheckpointError, match="the path is not UTF-8; rename"):
            CheckpointStore(folder, read_only=read_only)
    assert not folder.exists()
