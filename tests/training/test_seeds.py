"""The parts of `seed`: `seed_init` and `seed_data`."""

import dataclasses
import itertools

import image_support
import jax
import numpy as np
import pytest
from corruption_support import config_of, corpus
from data_support import encoded_pairs
from training_support import compiled_step, identical, small_config, start, uneven_batch

from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS, SpecialIds
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.study import Metric, Study, over
from transformer_jax.sweeps.trials import grid, groups
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training.hyper import split

SPLITS = [(seed, init, data) for seed, init, data in itertools.product((3, 4), (None, 3, 4), (None, 3, 4))]
"""Values of seed, seed_init and seed_data."""


def seeded(config, seed, init, data):
    return dataclasses.replace(config, seed=seed, seed_init=init, seed_data=data)


def pairs(config, folder):
    ids = [list(range(4, 5 + n % 9)) for n in range(60)]
    side = RaggedIds(np.concatenate(ids).astype(np.int32), np.cumsum([0, *map(len, ids)]))
    return encoded_pairs(side, side)


def text(config, folder):
    return EncodedSplit({"ids": RaggedIds(np.arange(4, 304, dtype=np.int32), np.array([0, 300]))}, OWN_SPECIAL_IDS)


def pictures(config, folder):
    images, labels = image_support.pictures(24)
    return EncodedSplit({"images": images, "labels": labels}, SpecialIds())


def language_model(**fields):
    values = {"model": {"architecture": "decoder_only"}, "task": {"name": "language_model"}, **fields}
    return ExperimentConfig.from_config_dict(values)


LIMITS = {"max_length": 12, "tokens_per_batch": 96}
PLANS = {
    "buckets": (lambda folder: small_config({"data.tokens_per_batch": 256}), pairs),
    "packed": (lambda folder: small_config({"data.batching": "packed", "data.packed_length": 16}), pairs),
    "windows": (lambda folder: language_model(data={"batching": "windows", **LIMITS}), text),
    "documents": (lambda folder: language_model(data=LIMITS), text),
    "prefix": (
        lambda folder: language_model(
            data={"batching": "windows", **LIMITS}, task={"name": "language_model", "prefix": "random"}
        ),
        text,
    ),
    "augmented": (lambda folder: image_support.config({"source": "shapes"}, mixup=0.4, rand_augment=1), pictures),
    "corrupted": (lambda folder: config_of(folder, "masked_lm"), lambda c, f: corpus(c, f).splits["train"]),
}


@pytest.mark.parametrize("name", PLANS)
def test_batches_follow_the_seed_of_the_data_alone(name, tmp_path):
    make, split_of = PLANS[name]
    config = make(tmp_path)
    examples = split_of(config, tmp_path)

    def first(*seeds):
        return {
            key: array.tolist() for key, array in training_batches(seeded(config, *seeds), examples).batch(0).items()
        }

    alone = {seed: first(seed, None, None) for seed in (3, 4)}
    assert alone[3] != alone[4]
    for seed, init, data in SPLITS:
        assert first(seed, init, data) == alone[seed if data is None else data]


def test_parameters_follow_the_seed_of_the_parameters_alone():
    alone = {seed: start(*split(seeded(small_config(), seed, None, None))) for seed in (3, 4)}
    assert not identical(alone[3].params, alone[4].params)
    for seed, init, data in SPLITS:
        found = start(*split(seeded(small_config(), seed, init, data)))
        assert identical(found, alone[seed if init is None else init])


def test_dropout_follows_the_seed_itself():
    static, hyper = split(seeded(small_config(), 3, None, None))
    batch = uneven_batch()

    def after(seed, init, data):
        other_static, other = split(seeded(small_config(), seed, init, data))
        assert other_static == static
        return compiled_step(static)(start(static, hyper), batch, other)[0].params

    alone = {seed: after(seed, None, None) for seed in (3, 4)}
    assert not identical(alone[3], alone[4])
    for seeds in SPLITS:
        assert identical(after(*seeds), alone[seeds[0]])


@pytest.mark.parametrize("name", ["seed_init", "seed_data"])
def test_a_seed_is_not_negative(name):
    with pytest.raises(ConfigError, match=f"{name}=-1"):
        read_config("quickstart", {name: "-1"})
    assert getattr(read_config("quickstart", {name: "7"}), name) == 7
    assert getattr(read_config("quickstart"), name) is None


def study(*axes, **fields):
    return Study("Why?", "configs/quickstart.py", axes, (Metric("test/loss", "min"),), **{"seeds": (3, 5)} | fields)


def test_a_study_fixes_one_part_and_varies_the_rest():
    trials = grid(study(over("model.norm_position", "post", "pre"), settings={"seed_init": 0})).trials
    assert [(trial.seed, trial.config.init_seed, trial.config.data_seed) for trial in trials[:2]] == [
        (3, 0, 3),
        (5, 0, 5),
    ]
    shared = split(trials[0].config).hyper
    assert [split(trial.config).hyper.seed_init for trial in trials] == [shared.seed_init] * 4


@pytest.mark.parametrize("name", ["seed_init", "seed_data"])
def test_values_on_an_axis_train_as_one_program(name):
    trials = grid(study(over(name, 1, 2, 3))).trials
    assert [trial.name for trial in trials[:3]] == [f"{name}=1,seed=3", f"{name}=1,seed=5", f"{name}=2,seed=3"]
    assert len(list(groups(trials))) == 1
    trees = {jax.tree.structure(split(trial.config).hyper) for trial in trials}
    assert len(trees) == 1
