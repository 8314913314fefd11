"""The order of the labels of a run that starts with the head of a checkpoint: names decide. No model."""

import json

import numpy as np
import pytest

from transformer_jax.checkpoints.manifest import Leaf
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.errors import CheckpointError
from transformer_jax.training.init_from import OtherRun
from transformer_jax.training.set_up import open_data

LINES = ["a good film\tpositive", "a bad film\tnegative", "a film\tneutral", "good\tpositive"]
SORTED = ("negative", "neutral", "positive")


def config_of(folder, kind):
    for name in ("train", "valid", "test"):
        (folder / f"{name}.tsv").write_text("\n".join(LINES) + "\n")
    data = DataConfig(
        source="text", format="tsv", input_feature="1", target_feature="2", tokenizer="char", dir=str(folder),
        batching="buckets",
    )  # fmt: skip
    characters = len({*"".join(line.partition("\t")[0] for line in LINES)} - {" "}) + 5
    return ExperimentConfig(
        task=TaskConfig(name=kind, num_labels=3),
        model=ModelConfig(architecture="encoder_only", vocab_size=characters),
        data=data,
    ).resolved()


def data_of(folder, labels, loaded=("head/output/kernel",), kind="classification"):
    """Return the corpus of a run that starts from a checkpoint with these labels."""
    config = config_of(folder, kind)
    store, leaves = object.__new__(CheckpointStore), {path: Leaf((4, 3), "float32") for path in loaded}
    run = {"name": "training.init_from=other", "store": store, "stored_step": 3, "new": {}, "unused": {}, "stored": {}}
    with open_workdir(folder / "run", config.to_dict(), False) as directory:
        return open_data(config, directory, OtherRun(**run, loaded=leaves, predicted=labels))


@pytest.mark.parametrize("labels", [("neutral", "positive", "negative"), SORTED, ("positive", "neutral", "negative")])
def test_the_order_is_that_of_the_head(labels, tmp_path):
    data = data_of(tmp_path, labels)
    assert data.labels == labels
    assert json.loads((tmp_path / "run" / "labels.json").read_text())["labels"] == list(labels)
    numbers = data.splits["train"].values("labels", np.arange(4))
    assert [labels[number] for number in numbers] == [line.partition("\t")[2] for line in LINES]


def test_a_new_head_has_the_order_of_the_corpus(tmp_path):
    assert data_of(tmp_path, ("neutral", "positive", "negative"), loaded=("encoder/norm",)).labels == SORTED


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("neutral", "positive", "bad"), "it lacks 'bad' and has 'negative'. Give them the same names with"),
        (("negative", "neutral"), "it has 'positive'. Give"),
        ((*SORTED, "mixed"), "it lacks 'mixed'. Give"),
        (("Negative", "neutral", "positive"), "it lacks 'Negative' and has 'negative'. Give"),
    ],
)
def test_other_names_are_refused_and_named(labels, message, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        data_of(tmp_path, labels)
    assert message in str(raised.value)
    assert "training.new_head=true" in str(raised.value)
