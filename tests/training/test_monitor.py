"""The monitor: values of layers at some updates, which change no update."""

import shutil

import pytest
from run_support import assert_same_run, metric_lines, run_main, train, trained_folder, write_corpus
from support import assert_close

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError

EVERY = "--config.training.monitor_every_steps=3"


@pytest.fixture(scope="module")
def monitored_run(tmp_path_factory):
    """Return the folder of a run of 8 updates, of which the third and the sixth are monitored."""
    folder = write_corpus(tmp_path_factory.mktemp("monitored"))
    assert train(folder, EVERY) == 0
    return folder


def test_a_run_logs_the_values_of_its_monitored_updates(monitored_run):
    lines = metric_lines(monitored_run / "run")
    monitored = [line for line in lines if line["split"] == "monitor"]
    assert [line["step"] for line in monitored] == [3, 6]
    assert all(line["stream_rms_decoder_0"] > 0.1 for line in monitored)
    assert monitored[0].keys() == monitored[1].keys()
    others = [line for line in lines if line["split"] != "monitor"]
    expected = metric_lines(trained_folder() / "run")
    assert [line.keys() for line in others] == [line.keys() for line in expected]
    for line, of in zip(others, expected, strict=True):
        numbers = [name for name, value in of.items() if isinstance(value, float)]
        assert_close([line[name] for name in numbers], [of[name] for name in numbers], 1e-5)


def test_a_resumed_run_is_the_same(monitored_run, tmp_path):
    """From step 5, between two monitored updates."""
    folder = shutil.copytree(monitored_run, tmp_path / "copy")
    shutil.rmtree(folder / "run" / "checkpoints" / "8")
    assert run_main(["train", f"--workdir={folder / 'run'}"]) == 0
    assert_same_run(folder, monitored_run)


@pytest.mark.parametrize(
    ("every", "message"),
    [
        (9, "training.monitor_every_steps=9 is more than num_train_steps=8: no update would be monitored"),
        (-1, "training.monitor_every_steps=-1: expected at least 0"),
    ],
)
def test_bad_intervals(every, message):
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig.from_config_dict({"training": {"num_train_steps": 8, "monitor_every_steps": every}})
